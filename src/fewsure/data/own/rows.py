"""Rows of a user's own data, and which of them are for training, for validation and for testing."""

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fewsure.data.encoding import Column
from fewsure.data.pools import SPLITS, Split
from fewsure.errors import FewsureError, require

Fold = tuple[int, ...]
"""(which one from 0, of how many folds over groups or classes); empty for shares."""
Shares = tuple[float, float, float]
SHARES: Shares = (0.6, 0.2, 0.2)
ALIASES: dict[str, Split] = {"train": "train", "validation": "validation", "val": "validation", "test": "test"}
"""The names that a split may have."""
ALPHA = 0.1
"""Sets with coverage 1 − ALPHA are what a user asks for as a rule."""
NEEDED = math.ceil(1 / ALPHA) - 1
"""Independent tasks that a certificate needs for that coverage."""
LEAST, LEAST_CLASSES = 5, 10
"""With fewer groups or classes and none to test on, all of them are for training and for validation."""


@dataclass(frozen=True, eq=False)
class Rows:
    """N examples as they were given, checked: finite, and as many labels as examples. No two are equal."""

    x: NDArray[Any]
    """(N, *D): floats, or the bytes of images."""
    y: NDArray[Any]
    """(N,): numbers to predict, or names of classes."""
    task: NDArray[np.str_] | None
    """(N,): the task that each row belongs to; None where any classes may meet in a task."""
    split: NDArray[np.str_] | None
    """(N,): the split that the user has chosen for each row; None where the rule decides."""
    columns: tuple[str, ...]
    where: str
    """The name of the data in errors."""
    encoding: tuple[Column, ...] = ()
    """The columns of a table that the inputs come from."""
    tested_elsewhere: bool = False
    """Whether the user tests on other rows. All of these are then to learn from, and the validation tasks stand in for
    those to test on."""

    @property
    def held_out(self) -> NDArray[np.str_]:
        """(N,): the task of each row, or else its class, which is held out as a whole."""
        return self.y if self.task is None else self.task

    @property
    def held_out_name(self) -> str:
        """The kind of the units that are held out, for errors."""
        return "classes" if self.task is None else "tasks"

    @property
    def unit(self) -> NDArray[np.str_]:
        """(N,): the task of each number to predict, or its class; each task has its own classes."""
        of_task = self.task is not None and self.y.dtype.kind == "U"
        return np.char.add(np.char.add(self.task, "/"), self.y) if of_task else self.held_out  # type: ignore[arg-type]

    def take(self, which: NDArray[np.bool_]) -> "Rows":
        """The rows where `which` (N,) is true."""
        task, split = (None if names is None else names[which] for names in (self.task, self.split))
        return replace(self, x=self.x[which], y=self.y[which], task=task, split=split)


def require_shares(shares: Shares) -> None:
    """Three positive shares that make a whole."""
    whole = all(share > 0 for share in shares) and abs(sum(shares) - 1) < 1e-6
    require(whole, "shares", "three numbers above 0 (train, validation, test) that add up to 1", shares)


def split_by_name(
    names: Sequence[str], shares: Shares, what: str, where: str, *, least_test: int = 1
) -> dict[str, Split]:
    """Each name's split: names in the order of their hashes, the first ones for testing, the next for validation.

    The rule depends on the names alone, so that the same classes are held out on every machine and in every run. At
    least so many are for testing.

    >>> split_by_name(["oak", "elm", "ash", "yew", "fir"], SHARES, "classes", "trees")
    {'ash': 'test', 'fir': 'validation', 'yew': 'train', 'elm': 'train', 'oak': 'train'}
    """
    if len(names) < len(SPLITS):
        raise FewsureError(
            f"{where}: expected 3 {what} or more, to train, validate and test on different ones, but got {len(names)}"
        )
    ordered = sorted(names, key=lambda name: hashlib.sha256(name.encode()).digest())
    _, validation, test = (max(1, round(share * len(ordered))) for share in shares)
    test = max(test, least_test)
    validation = min(validation, len(ordered) - test - 1)
    return {
        name: "test" if rank < test else "validation" if rank < test + validation else "train"
        for rank, name in enumerate(ordered)
    }


def row_parts(rows: Rows, shares: Shares, what: str, fold: Fold = ()) -> dict[Split, NDArray[np.bool_]]:
    """Which rows (N,) each split has."""
    if fold:
        number, folds = fold
        tested = _in_fold(rows, number, folds, what)
        learned = row_parts(replace(rows.take(~tested), tested_elsewhere=True), shares, what)
        parts = {split: np.zeros(len(rows.y), dtype=bool) for split in SPLITS} | {"test": tested}
        for split in ("train", "validation"):
            parts[split][~tested] = learned[split]
        return parts
    if not rows.tested_elsewhere:
        splits = row_splits(rows, shares, what)
        return {split: splits == split for split in SPLITS}
    names = np.unique(rows.held_out)
    if len(names) < (LEAST_CLASSES if rows.task is None else LEAST):
        return dict.fromkeys(SPLITS, np.ones(len(rows.y), dtype=bool))
    rule = split_by_name(names.tolist(), shares, what, rows.where)
    held = np.isin(rows.held_out, [name for name, split in rule.items() if split == "validation"])
    return {"train": ~held, "validation": held, "test": held}


def _in_fold(rows: Rows, number: int, folds: int, what: str) -> NDArray[np.bool_]:
    """The rows (N,) that a fold is tested on, as scikit-learn's GroupKFold has them: folds of about as many rows.

    Where groups have equally many rows, their names in sorted order decide.
    """
    from sklearn.model_selection import GroupKFold  # it takes half a second to import

    units, index = np.unique(rows.held_out, return_inverse=True)
    require(2 <= folds <= len(units), "folds", f"from 2 to {len(units)}, the number of {what}", folds)
    tested = np.zeros(len(rows.y), dtype=bool)
    parts = list(GroupKFold(folds).split(index, groups=index))
    tested[parts[number][1]] = True
    return tested


def row_splits(rows: Rows, shares: Shares, what: str) -> NDArray[np.str_]:
    """The split (N,) of each row: rows that are held out together are in the same. `what` is what errors call them."""
    units = rows.held_out
    if rows.split is None:
        names = np.unique(units).tolist()
        certifiable = rows.task is not None and shares == SHARES and len(names) >= 3 * NEEDED
        rule = split_by_name(names, shares, what, rows.where, least_test=NEEDED if certifiable else 1)
        return np.array([rule[unit] for unit in units.tolist()])
    wrong = sorted(set(rows.split.tolist()) - set(ALIASES))
    if wrong:
        raise FewsureError(f"{rows.where}: expected splits to be train, validation or test, but got {wrong[0]!r}")
    splits = [ALIASES[name] for name in rows.split.tolist()]
    missing = [split for split in SPLITS if split not in splits]
    if missing:
        raise FewsureError(f"{rows.where}: expected rows of every split, but {missing[0]} has none")
    found: dict[str, Split] = {}
    for unit, split in zip(units.tolist(), splits, strict=True):
        if found.setdefault(unit, split) != split:
            raise FewsureError(
                f"{rows.where}: expected every one of the {what} in one split, but {unit!r} is in "
                f"{' and '.join(sorted((found[unit], split)))}; what is tested on must not be trained on"
            )
    return np.array(splits)
