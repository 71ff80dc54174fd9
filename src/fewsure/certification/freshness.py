"""A record of the data that a run was trained on, so that none of it can certify the run.

`data.json` holds an id of each class (or task of rows) of the training and validation split. It also holds the checksum
of each split, and the random streams of training. A run that starts at another run's checkpoint holds that run's
record, too. An id is a hash of the name: a run can be passed on without the names. Classes and tasks that were given in
Python have no name but their position. Their id is a hash of the examples as they were given.
"""

import dataclasses
import hashlib
import json
from collections.abc import Collection, Iterator, Mapping
from typing import Any, NamedTuple

import torch

from fewsure.core.config import read_record
from fewsure.core.distributed import is_rank_zero
from fewsure.core.files import write_atomically
from fewsure.data import Data
from fewsure.data.pools import Pool, Split
from fewsure.data.scaling import Scale
from fewsure.errors import FewsureError
from fewsure.training.experiment import Experiment
from fewsure.training.runs import Run

FILE = "data.json"
FORMAT = 2
STREAM = "certify"
"""The purpose of every random stream of a certificate."""
TRAINING_STREAMS = ("init", "train", "validation")
"""The purposes of the streams that training, and choosing by validation tasks, draw from."""
USED: dict[Split, str] = {"train": "training", "validation": "validation"}
"""The splits of which nothing may certify a run, in words."""

Record = Mapping[str, Any]


class Freshness(NamedTuple):
    """The comparison of a run's test tasks with all that it was trained on; anything in common was refused."""

    compared: tuple[str, ...]
    """Descriptions of the data that they were compared with."""
    doubts: tuple[str, ...]
    """Comparisons that could not be made."""

    @property
    def rigorous(self) -> bool:
        """Whether a guarantee may rest on it."""
        return bool(self.compared) and not self.doubts

    def record(self) -> dict[str, Any]:
        """As JSON values."""
        compared = f"these tasks have nothing in common with {', '.join(self.compared)}"
        return {"rigorous": self.rigorous, "reason": "; ".join(self.doubts) or compared}


def record_data(run: Run, start: Record | None = None) -> None:
    """Record the data that a run is trained on or chosen by; `start` is the record of the run that it starts at."""
    data = run.experiment.data
    record = {
        "format": FORMAT,
        "streams": TRAINING_STREAMS,
        "ids_of": _ids_of(data),
        "splits": {
            split: {"checksum": pool.checksum, "ids": [*class_ids(data, pool).values()]}
            for split in USED
            if (pool := _pool_as_given(data, split)) is not None
        },
        "start": start,
    }
    if is_rank_zero():
        write_atomically(run.folder / FILE, json.dumps(record) + "\n")


def classes_record(streams: Collection[str], splits: Mapping[Split, tuple[str, Collection[str]]]) -> Record:
    """The record of a training beside runs, from the checksum and the names of the classes of each split it used."""
    found = {
        split: {"checksum": checksum, "ids": [_digest(name.encode()) for name in names]}
        for split, (checksum, names) in splits.items()
    }
    return {"format": FORMAT, "streams": [*streams], "ids_of": "names", "splits": found, "start": None}


def data_record(run: Run) -> Record:
    """The record that `record_data` wrote; a run without it is refused."""
    path, advice = run.folder / FILE, "nothing shows which tasks are fresh; train the run anew"
    record = read_record(path, FORMAT, advice)
    try:
        for _, one in _chain(record):
            names = [
                one["ids_of"],
                *one["streams"],
                *(name for facts in one["splits"].values() for name in facts["ids"]),
            ]
            if not all(isinstance(name, str) for name in names):
                raise TypeError("a name is not text")
    except (KeyError, TypeError, AttributeError) as error:
        raise FewsureError(f"{path} cannot be read ({error}); {advice}") from error
    return record


def require_fresh(run: Run, experiment: Experiment) -> Freshness:
    """Refuse tasks of the test split that had a part in training, or that were there to choose by.

    Compared are the ids that the run has recorded, those of a run that it started at, and the splits as they are now.
    """
    data, compared, doubts = experiment.data, [], []
    fresh = None if data.unit is None else _pool_as_given(data, "test")
    for whose, record in _chain(data_record(run)):
        require_unused({STREAM: STREAM}, record["streams"], f"random streams of training{whose}")
        compared.append(f"the random streams of training{whose}")
        if fresh is not None and record["ids_of"] != _ids_of(data):
            doubts.append(f"ids of {record['ids_of']}{whose} cannot be compared with ids of {_ids_of(data)}")
        elif fresh is not None:
            for split, facts in record["splits"].items():
                used = f"{data.unit} of {USED[split]}{whose}"
                require_unused(class_ids(data, fresh), facts["ids"], used)
                compared.append(used)
    if fresh is not None and not data.given:  # whose names are positions
        for split, role in USED.items():
            pool = _pool_now(data, split)
            require_unused(
                {name: name for name in fresh.classes}, pool.classes if pool else (), f"{data.unit} of {role}"
            )
    return Freshness(tuple(compared), tuple(doubts))


def require_unused(fresh: Mapping[str, str], used: Collection[str], what: str) -> None:
    """Refuse names whose ids were used before: a certificate of them would not hold.

    >>> require_unused({"ant": "a", "bee": "b"}, ["b"], "classes of training")
    Traceback (most recent call last):
    ...
    fewsure.errors.FewsureError: 1 of 2 were classes of training, for instance 'bee'; a certificate needs fresh ones
    """
    known = set(used)
    reused = sorted(name for name, one in fresh.items() if one in known)
    if reused:
        raise FewsureError(
            f"{len(reused)} of {len(fresh)} were {what}, for instance {reused[0]!r}; a certificate needs fresh ones"
        )


def class_ids(data: Data, pool: Pool) -> dict[str, str]:
    """An id of each class of a pool, by its name."""
    if not data.given:
        return {name: _digest(name.encode()) for name in pool.classes}
    each = zip(pool.classes, torch.split(pool.examples, pool.counts.tolist()), strict=True)
    return {name: _digest(b"".join(sorted(row.numpy().tobytes() for row in rows))) for name, rows in each}


def _ids_of(data: Data) -> str:
    return "examples" if data.given else "names"


def _chain(record: Record) -> Iterator[tuple[str, Record]]:
    """The record of a run, and of the runs that it started at, with words for each."""
    whose, one = "", record
    while one is not None:
        yield whose, one
        whose, one = " of the run that it started at", one["start"]


def _pool_as_given(data: Data, split: Split) -> Pool | None:
    """The pool of a split; examples given in Python come without the scale that the training split has."""
    if data.given:
        given: Any = data
        data = dataclasses.replace(given, scale=Scale(data.fitted_scale.shape))
    return _pool_now(data, split)


def _pool_now(data: Data, split: Split) -> Pool | None:
    """The pool of a split; None for a sampler, and where a split is not there: features may have no validation."""
    if data.unit is None:
        return None
    try:
        return data.training_pool() if split == "train" else data.pool(split)
    except FewsureError:
        if split == "test":
            raise
        return None


def _digest(content: bytes) -> str:
    return hashlib.blake2b(content, digest_size=8).hexdigest()
