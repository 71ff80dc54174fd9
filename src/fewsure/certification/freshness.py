"""What a run was trained on, recorded in its folder, so that nothing of it can certify the run.

`data.json` holds an id of each class (or task of rows) that training had, by split, the checksum of the split, and the
random streams that training draws from. An id is a hash of the name: a run can be passed on without the names.
Classes and tasks that were given in Python have names by their position alone; there it is a hash of the examples.
"""

import hashlib
import json
from collections.abc import Collection
from itertools import pairwise
from typing import Any

from fewsure.core.config import from_json
from fewsure.core.distributed import is_first
from fewsure.core.files import write_atomically
from fewsure.data import Data
from fewsure.data.pools import Pool, Split
from fewsure.errors import FewsureError
from fewsure.evaluation.calibrate import needed_splits
from fewsure.theory.held_out import require_unused
from fewsure.training.experiment import Experiment
from fewsure.training.runs import Run

FILE = "data.json"
FORMAT = 1
STREAM = "certify"
"""The purpose of every random stream of a certificate."""
TRAINING_STREAMS = ("init", "train", "validation")
"""The purposes of those that training, and choosing by validation tasks, draw from."""


def pool_of(data: Data, split: Split) -> Pool | None:
    """What the tasks of a split are made of, on the CPU; none for a sampler that makes its own."""
    if data.unit is None:
        return None
    return data.training_pool() if split == "train" else data.pool(split)


def record_data(run: Run) -> None:
    """Write what the run is trained on, and what it may be chosen by, into its folder."""
    experiment = run.experiment
    splits: tuple[Split, ...] = ("train", "validation") if experiment.data.own else needed_splits(experiment)
    pools = {split: _now(experiment.data, split) for split in splits}
    record = {
        "format": FORMAT,
        "seed": experiment.training.seed,
        "streams": TRAINING_STREAMS,
        "splits": {
            split: {"checksum": pool.checksum, "ids": class_ids(experiment.data, pool)}
            for split, pool in pools.items()
            if pool is not None
        },
    }
    if is_first():
        write_atomically(run.folder / FILE, json.dumps(record) + "\n")


def require_fresh(run: Run, experiment: Experiment) -> None:
    """Refuse tasks of the test split that had a part in training, or that were there to choose by.

    Compared are the ids that the run has recorded, and the splits as the data has them now.
    """
    data = experiment.data
    fresh = pool_of(data, "test")
    recorded = _recorded(run)
    require_unused([STREAM], recorded["streams"], "random streams of training")
    if fresh is None:
        return
    for split, facts in recorded["splits"].items():
        _require_unused(fresh, class_ids(data, fresh), facts["ids"], f"{data.unit} of {_role(split)}")
    if data.given:  # whose names are positions
        return
    others: dict[Split, Pool | None] = {"train": _now(data, "train"), "validation": _now(data, "validation")}
    if others["train"] is None and not recorded["splits"]:
        raise FewsureError(
            f"the training data of {run.folder} is not there, so that nothing shows which tasks are fresh; put it back"
        )
    for split, pool in others.items():
        if pool is not None:
            _require_unused(fresh, fresh.classes, pool.classes, f"{data.unit} of {_role(split)}")


def class_ids(data: Data, pool: Pool) -> list[str]:
    """An id of each class of a pool, in its order."""
    if not data.given:
        return [_digest(name.encode()) for name in pool.classes]
    rows = [row.tobytes() for row in pool.examples.numpy()]
    starts = pool.starts.tolist()
    return [_digest(b"".join(sorted(rows[first:last]))) for first, last in pairwise(starts)]


def _require_unused(pool: Pool, fresh: Collection[str], used: Collection[str], what: str) -> None:
    """The same as `require_unused`, with the names of the classes in the error."""
    reused = set(fresh) & set(used)
    names = {name for name, found in zip(pool.classes, fresh, strict=True) if found in reused}
    require_unused(pool.classes, names, what)


def _now(data: Data, split: Split) -> Pool | None:
    """The pool of a split, or none where it is not there: features need no validation classes to be tested on."""
    try:
        return pool_of(data, split)
    except FewsureError:
        return None


def _role(split: str) -> str:
    return "training" if split == "train" else "validation"


def _recorded(run: Run) -> dict[str, Any]:
    """What `record_data` wrote; nothing for a run that was trained before there was such a file."""
    path = run.folder / FILE
    if not path.is_file():
        return {"streams": TRAINING_STREAMS, "splits": {}}
    try:
        record: dict[str, Any] = from_json(path.read_text(encoding="utf-8"))
        if record["format"] != FORMAT:
            raise ValueError("of another format")
        names = [*record["streams"], *(name for facts in record["splits"].values() for name in facts["ids"])]
        if not all(isinstance(name, str) for name in names):
            raise TypeError("a name is not text")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise FewsureError(
            f"{path} cannot be read ({error}), so that nothing shows which tasks are fresh; train the run anew"
        ) from error
    return record


def _digest(content: bytes) -> str:
    return hashlib.blake2b(content, digest_size=8).hexdigest()
