"""Rows of a user's own data, and which of them are for training, for validation and for testing."""

import hashlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fewsure.data.pools import SPLITS, Split
from fewsure.errors import FewsureError, require

Shares = tuple[float, float, float]
SHARES: Shares = (0.6, 0.2, 0.2)
ALIASES: dict[str, Split] = {"train": "train", "validation": "validation", "val": "validation", "test": "test"}
"""What a split may be called."""


class Rows(NamedTuple):
    """N examples as they were given, checked: finite, and as many labels as examples."""

    x: NDArray[Any]
    """(N, *D): floats, or the bytes of images."""
    y: NDArray[Any]
    """(N,): numbers to predict, or names of classes."""
    task: NDArray[np.str_] | None
    """(N,): the task that each row belongs to; none where any classes may meet in a task."""
    split: NDArray[np.str_] | None
    """(N,): the split that the user has chosen for each row; none where the rule decides."""
    columns: tuple[str, ...]
    where: str
    """What errors call the data."""


def require_shares(shares: Shares) -> None:
    """Three positive shares that make a whole."""
    whole = all(share > 0 for share in shares) and abs(sum(shares) - 1) < 1e-6
    require(whole, "shares", "three numbers above 0 (train, validation, test) that add up to 1", shares)


def split_by_name(names: Sequence[str], shares: Shares, what: str, where: str) -> dict[str, Split]:
    """Each name's split: names in the order of their hashes, the first ones for testing, the next for validation.

    The rule depends on the names alone, so that the same classes are held out on every machine and in every run.

    >>> split_by_name(["oak", "elm", "ash", "yew", "fir"], SHARES, "classes", "trees")
    {'ash': 'test', 'fir': 'validation', 'yew': 'train', 'elm': 'train', 'oak': 'train'}
    """
    if len(names) < len(SPLITS):
        raise FewsureError(
            f"{where}: expected 3 {what} or more, to train, validate and test on different ones, but got {len(names)}"
        )
    ordered = sorted(names, key=lambda name: hashlib.sha256(name.encode()).digest())
    _, validation, test = (max(1, round(share * len(ordered))) for share in shares)
    validation = min(validation, len(ordered) - test - 1)
    ends = {"test": test, "validation": test + validation}
    return {
        name: "test" if rank < ends["test"] else "validation" if rank < ends["validation"] else "train"
        for rank, name in enumerate(ordered)
    }


def row_splits(rows: Rows, units: NDArray[np.str_], shares: Shares, what: str) -> NDArray[np.str_]:
    """The split (N,) of each row: all rows of one of the `units` (a task, a class) are in the same."""
    if rows.split is None:
        rule = split_by_name([str(name) for name in np.unique(units)], shares, what, rows.where)
        return np.array([rule[str(unit)] for unit in units])
    wrong = sorted(set(rows.split.tolist()) - set(ALIASES))
    if wrong:
        raise FewsureError(f"{rows.where}: expected splits to be train, validation or test, but got {wrong[0]!r}")
    splits = np.array([ALIASES[name] for name in rows.split.tolist()])
    missing = [split for split in SPLITS if split not in splits]
    if missing:
        raise FewsureError(f"{rows.where}: expected rows of every split, but {missing[0]} has none")
    for unit in np.unique(units):
        found = np.unique(splits[units == unit])
        if len(found) > 1:
            raise FewsureError(
                f"{rows.where}: expected every one of the {what} in one split, but {str(unit)!r} is in {found[0]} and "
                f"{found[1]}; what is tested on must not be trained on"
            )
    return splits
