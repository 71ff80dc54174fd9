"""The registry of meta-learning methods: one paper, one file."""

from fewsure.algorithms.maml import Maml
from fewsure.algorithms.simpa import Simpa

ALGORITHMS: dict[str, type[Maml] | type[Simpa]] = {"simpa": Simpa, "maml": Maml}
"""Name on the command line → the dataclass of hyper-parameters that is the method."""
