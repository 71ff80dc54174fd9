"""A user's own rows as data: regression tasks that are groups of rows, or classes."""

from collections import Counter
from dataclasses import dataclass, field, replace
from itertools import compress
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch

from fewsure.core.config import LEARNED, Range, ends
from fewsure.data.episodes import RowTasks
from fewsure.data.fixed_classes import MayFixClasses
from fewsure.data.memory import forget, remembered
from fewsure.data.own.doubts import doubts_about_rows, doubts_about_splits
from fewsure.data.own.rows import SHARES, Fold, Rows, Shares, require_shares, row_parts
from fewsure.data.pools import SPLITS, Pool, Split, pool_of_rows, restrict
from fewsure.data.protocol import Data, pool_on
from fewsure.data.regression import Regression
from fewsure.data.scaling import Scale, learn_scale
from fewsure.errors import FewsureError, require

SHOTS: Range = (1, 10)
"""Numbers of support examples that a learner of a user's own data is trained for."""
ENOUGH = 0.75
"""The share of groups that must be large enough for the most of a range."""


@dataclass(frozen=True)
class OwnRows(Data):
    """Tasks of a user's own rows, scaled as the rows of the training tasks or classes say."""

    shares: Shares = SHARES
    """Shares of the tasks or classes for training, validation and testing, where the data has no split of its own."""
    fold: Fold = field(default=(), metadata=LEARNED)
    """The fold that is held out, where folds take the place of shares."""
    scale: Scale | None = field(default=None, metadata=LEARNED)
    """The scale of the training rows."""

    own = True

    def __post_init__(self) -> None:
        super().__post_init__()
        require_shares(self.shares)

    def rows(self) -> Rows:
        """All rows."""
        raise NotImplementedError

    @property
    def fitted_scale(self) -> Scale:
        return self.scale or _read(self.with_shot(1))[1]

    def prepared(self) -> Self:
        forget()
        found: Any = replace(self, scale=_read(replace(self, scale=None).with_shot(1))[1])
        limited: Self = replace(found, shot=possible_shots(found))
        return limited

    def pool(self, split: Split) -> Pool:
        return _read(self.with_shot(1))[0][split]

    def doubts(self) -> list[str]:
        if self.fold:  # the first one speaks of the rows, which all have
            return doubts_about_rows(self.rows()) if self.fold[0] == 0 else []
        return doubts_about_rows(self.rows()) + doubts_about_tasks(self)


@remembered
def _read(data: OwnRows) -> tuple[dict[Split, Pool], Scale]:
    """The pool of each split, and its scale: the same ones, however many examples a task has."""
    rows = data.rows()
    parts = row_parts(rows, data.shares, rows.held_out_name, data.fold)
    train, is_target = parts["train"], rows.y.dtype.kind == "f"
    scale = data.scale or learn_scale(rows.x[train], rows.y[train] if is_target else None, rows.columns, rows.encoding)
    if rows.x.shape[1:] != scale.shape:
        raise FewsureError(
            f"{rows.where}: expected examples of shape {scale.shape}, as in training, but got {rows.x.shape[1:]}"
        )
    x = rows.x if rows.x.dtype == np.uint8 else scale.inputs(torch.from_numpy(rows.x)).float().numpy()
    if is_target:
        x = np.column_stack([x, scale.targets(torch.from_numpy(rows.y)).float().numpy()])
    groups = np.full(len(x), "") if is_target or rows.task is None else rows.task
    where, unit = Path(rows.where), rows.unit
    return {split: pool_of_rows(where, x[part], unit[part], groups[part]) for split, part in parts.items()}, scale


def doubts_about_tasks(data: Data) -> list[str]:
    """Whether there are too few groups or classes to learn from, or to certify on."""
    data = data.with_shot(data.test_shot)
    try:
        pools = {split: data.pool(split) for split in SPLITS}
    except FewsureError as error:
        return [str(error)]
    if data.unit == "classes" and data.draws_within_group:
        owners = {split: Counter(pool.groups) for split, pool in pools.items()}
        sizes = {split: sum(n >= data.outputs for n in counts.values()) for split, counts in owners.items()}
        return doubts_about_splits(sizes, "groups", sizes["test"] // 2)
    sizes = {split: len(pool.classes) for split, pool in pools.items()}
    halved = sizes["test"] // 2 // data.outputs
    return doubts_about_splits(sizes, *(("tasks", sizes["test"]) if data.unit == "tasks" else ("classes", halved)))


def possible_shots(data: Data) -> Range:
    """The range of a user's shots up to what their data allow: every split has tasks, most groups are large enough.

    A single number stays as it is, and what is too small for it is refused.
    """
    (least, most), smallest = ends(data.shot), data.with_shot(ends(data.shot)[0])
    smallest.tasks("train", torch.device("cpu"))
    if least == most:
        return data.shot
    counts = [smallest.pool(split).counts for split in SPLITS]

    def is_possible(shot: int) -> bool:
        if any(float((sizes >= shot + data.query).float().mean()) < ENOUGH for sizes in counts):
            return False
        try:
            for split in SPLITS:
                data.with_shot(shot).tasks(split, torch.device("cpu"))
        except FewsureError:
            return False
        return True

    most = next((shot for shot in range(most, least, -1) if is_possible(shot)), least)
    return most if least == most else (least, most)


@dataclass(frozen=True)
class OwnRegression(OwnRows, Regression):
    """Tasks of rows with a number to predict. Inputs and targets are scaled as the training tasks' rows say.

    A task with fewer than shot + query rows is left out.
    """

    shot: Range = SHOTS
    """m⁽ᵗ⁾, support rows of a task. From a range each meta-batch in training draws a number, small ones more often
    (log-uniform); tests have the middle. The most of a range is lowered to what the groups have."""
    forecast: float = 0.0
    """The share of tasks that are forecasts: their known rows follow one another in the table, and the rows to predict
    come next. All others take rows at random. Sort the table by time first."""

    unit = "tasks"

    def __post_init__(self) -> None:
        super().__post_init__()
        require(0 <= self.forecast <= 1, "forecast", "a share from 0 to 1", self.forecast)

    @property
    def grouped_by(self) -> str:
        return "tasks"

    def pool(self, split: Split) -> Pool:
        pool, needed = super().pool(split), self.needed_examples
        enough = (pool.counts >= needed).tolist()
        if not any(enough):
            raise FewsureError(
                f"{self.rows().where}, {split}: a task takes {needed} rows (shot + query), but the largest of "
                f"{len(enough)} tasks has {int(pool.counts.max())}; lower --shot or --query"
            )
        return pool if all(enough) else restrict(pool, list(compress(pool.classes, enough)))

    def tasks(self, split: Split, device: torch.device) -> RowTasks:
        shot = self.training_shots[0] if split == "train" else self.test_shot
        return RowTasks(pool_on(self, split, device), shot=shot, query=self.query, forecast=self.forecast)


@dataclass(frozen=True)
class OwnClassification(OwnRows, MayFixClasses):
    """Tasks whose classes are those of a user's own rows. Inputs are scaled as the training classes' rows say.

    Where rows belong to tasks, a class belongs to one task. All classes of a task meet there, and whole tasks are held
    out. Elsewhere any classes may meet, and classes are held out. A class with fewer than shot + query examples is
    left out, or such a task where classes are fixed.
    """

    shot: Range = SHOTS
    """k, support examples per class. From a range each meta-batch in training draws a number, small ones more often
    (log-uniform); tests have the middle. The most of a range is lowered to what the classes have."""
    softmax_temperature: float | None = None
    """The divisor of outputs before the softmax. `none` fits it to validation tasks when training ends, so that
    predictions are neither too sure nor too unsure on new classes."""

    @property
    def shape(self) -> tuple[int, ...]:
        return self.fitted_scale.shape

    @property
    def grouped_by(self) -> str:
        return "classes"

    @property
    def draws_within_group(self) -> bool:
        return not self.fixed_classes and (self.within_group or any(self.class_pool("train").groups))

    def prepared(self) -> Self:
        found: Self = OwnRows.prepared(self)
        return found.with_class_names()

    def class_pool(self, split: Split) -> Pool:
        return OwnRows.pool(self, split)

    def pool(self, split: Split) -> Pool:
        return self.large_enough(MayFixClasses.pool(self, split), split)
