"""Regression tasks of a user's own: each task is a group of rows, and its support and query set are drawn from them."""

import math
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Self

import numpy as np
import torch
from torch import Tensor

from fewsure.core.config import LEARNED, normalise_fields
from fewsure.data.episodes import choose
from fewsure.data.io.feature_files import pool_of_rows
from fewsure.data.own.rows import SHARES, Rows, Shares, require_shares, row_splits
from fewsure.data.pools import Pool, Split
from fewsure.data.regression import Regression
from fewsure.data.scaling import Scale, learn_scale
from fewsure.errors import FewsureError, require
from fewsure.types import Batch, Facts, Task


class RowTasks:
    """Tasks from a pool whose classes are tasks and whose examples are rows (inputs …, target)."""

    def __init__(self, pool: Pool, *, shot: int, query: int) -> None:
        self.pool = pool
        self._shot, self._query = shot, query
        self._most = int(pool.counts.max())

    def sample(self, tasks: int, generator: torch.Generator) -> tuple[Task, Facts]:
        """A meta-batch: each task as likely as any other, and in it `shot` + `query` different rows.

        x has shape (T, N, D) and y (T, N, 1). The fact is the number of each `task` in the pool.
        """
        which = torch.randint(len(self.pool.classes), (tasks,), generator=generator, device=generator.device)
        return self.sample_of(which, generator)

    def sample_of(self, which: Tensor, generator: torch.Generator) -> tuple[Task, Facts]:
        """Given tasks, as numbers in the pool (T,); only their rows are drawn."""
        has = torch.arange(self._most, device=generator.device) < self.pool.counts[which].unsqueeze(-1)
        rows = self.pool.starts[which].unsqueeze(-1) + choose(has, self._shot + self._query, generator)
        examples = self.pool.examples[rows].to(torch.get_default_dtype())
        parts = torch.split(examples, [self._shot, self._query], dim=1)
        support, query = (Batch(part[..., :-1], part[..., -1:]) for part in parts)
        return Task(support, query, which), {"task": which}


@dataclass(frozen=True)
class OwnRegression(Regression):
    """Tasks of rows with a number to predict. Inputs and targets are scaled as the training tasks' rows say.

    A task with fewer than shot + query rows is left out.
    """

    shot: int = 5
    """Support examples of a task."""
    query: int = 10
    """Query examples of a task."""
    noise_std: float | None = None
    """Standard deviation of the noise on the target, in its unit; `none` learns it from the validation tasks."""
    shares: Shares = SHARES
    """Shares of the tasks for training, validation and testing, where the data has no split of its own."""
    scale: Scale | None = field(default=None, metadata=LEARNED)
    """What was learned of the training tasks."""

    own = True
    unit = "tasks"

    def __post_init__(self) -> None:
        normalise_fields(self)
        require(self.shot >= 1, "shot", "at least 1 example", self.shot)
        require(self.query >= 1, "query", "at least 1 example", self.query)
        positive = self.noise_std is None or 0 < self.noise_std < math.inf
        require(positive, "noise_std", "a number above 0, or none", self.noise_std)
        require_shares(self.shares)

    def rows(self) -> Rows:
        """All rows, with their tasks."""
        raise NotImplementedError

    @property
    def fitted_scale(self) -> Scale:
        return self.scale or _split_rows(replace(self, scale=None), "train")[1]

    @property
    def scaled_noise_std(self) -> float | None:
        return None if self.noise_std is None else self.noise_std / self.fitted_scale.y_std

    def prepared(self) -> Self:
        _split_rows.cache_clear()
        _pool_on.cache_clear()
        return replace(self, scale=replace(self, scale=None).fitted_scale)

    def pool(self, split: Split) -> Pool:
        """The rows (inputs …, target) of a split's tasks, scaled, on the CPU."""
        return _pool_on(self, split, torch.device("cpu"))

    def tasks(self, split: Split, device: torch.device) -> RowTasks:
        """The tasks of a split, drawn on a device."""
        return RowTasks(_pool_on(self, split, device), shot=self.shot, query=self.query)

    def checksum(self, split: Split) -> str:
        """SHA-256 of the split's scaled rows."""
        return self.pool(split).checksum


@lru_cache(maxsize=6)
def _split_rows(data: OwnRegression, split: Split) -> tuple[Rows, Scale]:
    """The rows of a split's usable tasks, and their scale."""
    rows = data.rows()
    assert rows.task is not None
    if rows.x.ndim != 2:
        raise FewsureError(f"{rows.where}: expected regression inputs of shape (N, D), but got {rows.x.shape}")
    names, counts = np.unique(rows.task, return_counts=True)
    needed = data.shot + data.query
    usable = np.isin(rows.task, names[counts >= needed])
    if not usable.any():
        raise FewsureError(
            f"{rows.where}: a task takes {needed} rows (shot + query), but the largest of {len(names)} tasks has "
            f"{counts.max()}; lower --shot or --query"
        )
    kept = _take(rows, usable)
    assert kept.task is not None
    chosen = _take(kept, row_splits(kept, kept.task, data.shares, f"tasks with {needed} rows") == split)
    return chosen, learn_scale(chosen.x, chosen.y, chosen.columns)


def _take(rows: Rows, which: np.ndarray) -> Rows:
    task, split = (None if names is None else names[which] for names in (rows.task, rows.split))
    return rows._replace(x=rows.x[which], y=rows.y[which], task=task, split=split)


@lru_cache(maxsize=6)
def _pool_on(data: OwnRegression, split: Split, device: torch.device) -> Pool:
    rows, _ = _split_rows(replace(data, scale=None), split)
    scale = data.fitted_scale
    if rows.x.shape[1:] != scale.shape:
        raise FewsureError(f"{rows.where}: expected {scale.shape[0]} inputs, as in training, but got {rows.x.shape[1]}")
    assert rows.task is not None
    x, y = scale.inputs(torch.from_numpy(rows.x)), scale.targets(torch.from_numpy(rows.y))
    examples = torch.cat([x, y.unsqueeze(-1)], dim=-1).float().numpy()
    pool = pool_of_rows(Path(rows.where), examples, rows.task, np.full(len(rows.task), ""))
    return pool.to(device)
