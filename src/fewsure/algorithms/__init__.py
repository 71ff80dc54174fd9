"""The registry of meta-learning methods: one file for a paper, or for a family that shares its formulas."""

from typing import Any

from fewsure.algorithms.abml import Abml
from fewsure.algorithms.bmaml import Bmaml
from fewsure.algorithms.boosting import Boosting
from fewsure.algorithms.cnp import Cnp
from fewsure.algorithms.dkt import Dkt
from fewsure.algorithms.gp import Gp
from fewsure.algorithms.linear import Mean, Mixed, Ridge
from fewsure.algorithms.logistic import Logistic
from fewsure.algorithms.maml import Maml
from fewsure.algorithms.metaoptnet import MetaOptNet
from fewsure.algorithms.metaqda import MetaQda
from fewsure.algorithms.pacoh import Pacoh
from fewsure.algorithms.platipus import Platipus
from fewsure.algorithms.protonet import ProtoNet
from fewsure.algorithms.simpa import Simpa
from fewsure.algorithms.simpa_latent import SimpaLatent
from fewsure.algorithms.simpleshot import SimpleShot
from fewsure.algorithms.tnp import Tnp
from fewsure.algorithms.vampire import Vampire

ALGORITHMS: dict[str, type[Any]] = {
    "simpa": Simpa,
    "simpa-latent": SimpaLatent,
    "tnp": Tnp,
    "cnp": Cnp,
    "maml": Maml,
    "abml": Abml,
    "vampire": Vampire,
    "platipus": Platipus,
    "bmaml": Bmaml,
    "protonet": ProtoNet,
    "gp": Gp,
    "pacoh": Pacoh,
    "mixed": Mixed,
    "ridge": Ridge,
    "mean": Mean,
    "boosting": Boosting,
    "simpleshot": SimpleShot,
    "logistic": Logistic,
    "dkt": Dkt,
    "metaoptnet": MetaOptNet,
    "metaqda": MetaQda,
}
"""Name on the command line → the dataclass of hyper-parameters that is the method."""

__all__ = [
    "ALGORITHMS",
    "Abml",
    "Bmaml",
    "Boosting",
    "Cnp",
    "Dkt",
    "Gp",
    "Logistic",
    "Maml",
    "Mean",
    "MetaOptNet",
    "MetaQda",
    "Mixed",
    "Pacoh",
    "Platipus",
    "ProtoNet",
    "Ridge",
    "Simpa",
    "SimpaLatent",
    "SimpleShot",
    "Tnp",
    "Vampire",
]
