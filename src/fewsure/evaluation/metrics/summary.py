"""From one value per task to a mean and its 95 % interval.

Tasks come piece by piece, and memory does not grow with their number. Task t belongs to group t mod 10,000, and what is
kept of the groups gives the same numbers whatever the pieces are.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple, TypedDict

import torch
from jaxtyping import Float
from torch import Tensor

from fewsure.core import streams

BOOTSTRAP = 1000
"""Resamples of the tasks behind the intervals of ECE and MCE."""
GROUPS = 10_000
"""Up to so many tasks are resampled one by one, and more of them in so many groups, which are as independent."""


class Mean(TypedDict):
    """A mean over tasks and the half-width of its 95 % interval."""

    mean: float
    ci95: float


class TaskMean:
    """The mean and the standard error of one value per task."""

    def __init__(self) -> None:
        self.tasks = 0
        self._means = torch.zeros(GROUPS, dtype=torch.float64)
        self._squares = torch.zeros(GROUPS, dtype=torch.float64)
        """Σ (value − mean)² of each group, by Welford's rule."""

    def add(self, values: Float[Tensor, " T"]) -> None:
        """More tasks."""
        for piece in _pieces(self.tasks, len(values)):
            new, means = values[piece.tasks].double().cpu(), self._means[piece.groups]
            step = new - means
            means += step / piece.number
            self._squares[piece.groups] += step * (new - means)
        self.tasks += len(values)

    def mean(self) -> float:
        """Over all tasks so far."""
        return float((_members(self.tasks) * self._used(self._means)).sum() / self.tasks)

    def error(self) -> float:
        """The standard error of the mean."""
        members, means = _members(self.tasks), self._used(self._means)
        around = means[0]  # so that equal values have no error at all
        centre = around + (members * (means - around)).sum() / self.tasks
        squares = self._used(self._squares).sum() + (members * (means - centre).square()).sum()
        return float((squares / (self.tasks - 1) / self.tasks).sqrt())

    def summary(self) -> Mean:
        """Mean ± 1.96 standard errors."""
        return {"mean": self.mean(), "ci95": round(1.96 * self.error(), 12)}

    def _used(self, groups: Tensor) -> Tensor:
        return groups[: self.tasks]


class TaskTotal:
    """The sum of one record per task, and bootstrap intervals of what is computed from its mean."""

    def __init__(self) -> None:
        self.tasks = 0
        self._sums: Tensor | None = None

    def add(self, records: Float[Tensor, "T *D"]) -> None:
        """More tasks."""
        if self._sums is None:
            self._sums = torch.zeros(GROUPS, *records.shape[1:], dtype=torch.float64)
        for piece in _pieces(self.tasks, len(records)):
            self._sums[piece.groups] += records[piece.tasks].double().cpu()
        self.tasks += len(records)

    def total(self) -> Float[Tensor, "*D"]:
        """The sum over all tasks so far."""
        return self._groups().sum(0)

    def mean(self) -> Float[Tensor, "*D"]:
        """Over all tasks so far."""
        return self.total() / self.tasks

    def intervals(self, errors: Callable[[Tensor], tuple[Tensor, ...]]) -> tuple[list[float], ...]:
        """95 % bootstrap intervals of statistics of the mean record (B, *D), such as (ECE, MCE).

        [2.5 %, 97.5 %] over resamples of the groups with replacement. Calibration errors are not means over tasks (what
        they compare is averaged first), so they have no standard error.
        """
        generator, groups = streams.generator(0, "bootstrap"), self._groups()
        rows = torch.cat([groups.flatten(1), _members(self.tasks).unsqueeze(1)], dim=1)
        totals = []
        for _ in range(BOOTSTRAP):
            drawn = torch.randint(len(rows), (len(rows),), generator=generator)
            totals.append(torch.bincount(drawn, minlength=len(rows)).double() @ rows)
        drawn_totals = torch.stack(totals)
        means = drawn_totals[:, :-1] / drawn_totals[:, -1:]
        found = errors(means.reshape(BOOTSTRAP, *groups.shape[1:]))
        edges = torch.tensor([0.025, 0.975], dtype=torch.float64)
        return tuple(error.quantile(edges).tolist() for error in found)

    def _groups(self) -> Tensor:
        assert self._sums is not None
        return self._sums[: self.tasks]


def mean_over_tasks(values: Float[Tensor, " T"]) -> Mean:
    """Mean ± 1.96 standard errors.

    >>> mean_over_tasks(torch.tensor([1.0, 3.0]))
    {'mean': 2.0, 'ci95': 1.96}
    """
    found = TaskMean()
    found.add(values)
    return found.summary()


class _Piece(NamedTuple):
    """Consecutive tasks, at most one for each group."""

    tasks: slice
    groups: slice
    number: int
    """Tasks that each of these groups has, these included."""


def _pieces(before: int, tasks: int) -> Iterator[_Piece]:
    done = 0
    while done < tasks:
        earlier, group = divmod(before + done, GROUPS)
        size = min(tasks - done, GROUPS - group)
        yield _Piece(slice(done, done + size), slice(group, group + size), earlier + 1)
        done += size


def _members(tasks: int) -> Float[Tensor, " G"]:
    """How many tasks each group has; those that have none are left out."""
    whole, rest = divmod(tasks, GROUPS)
    counts = torch.full((min(tasks, GROUPS),), whole, dtype=torch.float64)
    counts[:rest] += 1
    return counts
