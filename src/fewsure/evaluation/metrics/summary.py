"""From one record per task to means and their 95 % intervals, over what is independent.

Tasks that are each drawn anew are independent. Tasks of a user's own data are not. There are as many independent scores
as groups of rows, or classes, however many tasks are drawn from them. A task then names its `groups` (T, w): one group
of rows, or the w classes that it shares with other tasks. With the mean m_g over the tasks of group g, and G groups:

    mean           m = 1/G Σ_g m_g
    pseudo-values  p_g = m + w (G − 1) / (G − w) (m_g − m)
    interval       m ± t_{G−1} std(p) / √G, with Student's 97.5 % quantile

For w = 1 the pseudo-values are the groups' means, so that the interval is exact where these are normal. For w classes
drawn in all sets equally often, it is the jackknife that leaves out one class with all its tasks. Elsewhere it errs on
the wide side. Where there are no more than w groups, nothing is known about others: no interval.

Tasks come piece by piece, and memory does not grow with their number.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NotRequired, TypedDict

import torch
from jaxtyping import Float, Int
from scipy.special import ndtr, stdtrit
from torch import Tensor

from fewsure.core import streams

BOOTSTRAP = 1000
"""Resamples behind the intervals of ECE and MCE."""
BUCKETS = 10_000
"""Up to so many independent tasks are resampled one by one, and more of them in so many parts. Task t belongs to part
t mod 10,000, so that the sums are the same numbers whatever the pieces are."""
NORMAL_BELOW = 10
"""With fewer groups an interval rests on the assumption that their scores are normal."""


class Mean(TypedDict):
    """A mean and the half-width of its 95 % interval, where there is one."""

    mean: float
    ci95: NotRequired[float]


class TaskTotal:
    """The sum of one record per task, and intervals of what is computed from its mean."""

    def __init__(self) -> None:
        self.tasks = 0
        self._width = 0
        """w, the groups of a task; 0 where tasks are independent."""
        self._sums = torch.zeros(0)
        self._counts = torch.zeros(0, dtype=torch.float64)
        """Tasks of each group or part."""

    def add(self, records: Float[Tensor, "T *D"], groups: Int[Tensor, "T w"] | None = None) -> None:
        """More tasks, and the groups that each is made of, where they are not independent."""
        if groups is None:
            groups, parts = (torch.arange(self.tasks, self.tasks + len(records)) % BUCKETS).unsqueeze(-1), BUCKETS
        else:
            self._width, parts = groups.shape[1], int(groups.max()) + 1
        self._make_room(parts, records.shape[1:])
        records = records.double().cpu()
        for column in groups.cpu().long().unbind(-1):
            self._sums.index_add_(0, column, records)
            self._counts.index_add_(0, column, torch.ones(len(records), dtype=torch.float64))
        self.tasks += len(records)

    @property
    def groups(self) -> int | None:
        """How many there are; None where tasks are independent."""
        return int((self._counts > 0).sum()) if self._width else None

    @property
    def degrees(self) -> int:
        """How many independent values an interval has beyond one; 0 where there is no interval."""
        if self.groups is None:
            return self.tasks - 1
        return self.groups - 1 if self.groups > self._width else 0

    def mean(self) -> Float[Tensor, "*D"]:
        """Over all groups, or over all tasks where these are independent."""
        return self.by_group().mean(0) if self._width else self._sums.sum(0) / self.tasks

    def by_group(self) -> Float[Tensor, "G *D"]:
        """The mean of each group, in the order of their numbers."""
        found = self._counts > 0
        return self._sums[found] / self._counts[found].view(-1, *[1] * (self._sums.dim() - 1))

    def group_sizes(self) -> list[tuple[int, int]]:
        """The number of each group that was met, and how many tasks it had."""
        return [(group, int(tasks)) for group, tasks in enumerate(self._counts.tolist()) if tasks]

    def pseudo_values(self) -> Float[Tensor, "G *D"]:
        """One value for each group, whose mean is the mean, and whose spread is that of independent values."""
        means, width = self.by_group(), self._width
        mean, number = means.mean(0), len(means)
        return mean + (means - mean) * (width * (number - 1) / (number - width))

    def intervals(self, errors: Callable[[Tensor], tuple[Tensor, ...]]) -> tuple[list[float], ...] | None:
        """[2.5 %, 97.5 %] over resamples, of statistics of the mean record (B, *D) such as (ECE, MCE).

        Groups are resampled by their pseudo-values. As they are few, the levels are those of Student's quantile
        (the expanded percentile interval of Hesterberg, 2015). None where there is no interval.

        Calibration errors are not means over tasks (what they compare is averaged first), so they have no standard
        error. Chance adds to each |gap|: the estimate is biased upwards, and its resamples twice as much. The interval
        lies too high, the more the fewer the tasks are, and never holds a true error of 0.
        """
        if self.degrees < 1:
            return None
        if self._width:
            values = self.pseudo_values()
            counts = torch.ones(len(values), dtype=torch.float64)
            level = float(ndtr(-((1 + 1 / self.degrees) ** 0.5) * stdtrit(self.degrees, 0.975)))
        else:
            values, counts, level = self._sums[: self.tasks], self._counts[: self.tasks], 0.025
        rows = torch.cat([values.flatten(1), counts.unsqueeze(1)], dim=1)
        generator, totals = streams.generator(0, "bootstrap"), []
        for _ in range(BOOTSTRAP):
            drawn = torch.randint(len(rows), (len(rows),), generator=generator)
            totals.append(torch.bincount(drawn, minlength=len(rows)).double() @ rows)
        drawn_totals = torch.stack(totals)
        means = drawn_totals[:, :-1] / drawn_totals[:, -1:]
        found = errors(means.reshape(BOOTSTRAP, *values.shape[1:]))
        edges = torch.tensor([level, 1 - level], dtype=torch.float64)
        return tuple(error.quantile(edges).tolist() for error in found)

    def calibration(self, errors: Callable[[Tensor], tuple[Tensor, Tensor]]) -> dict[str, Any]:
        """ECE and MCE of the mean record, with their intervals."""
        ends, found = self.intervals(errors), dict[str, Any]()
        for number, (name, error) in enumerate(zip(("ece", "mce"), errors(self.mean()), strict=True)):
            found[name] = float(error)
            if ends is not None:
                found[f"{name}_ci95"] = ends[number]
        return found

    def _make_room(self, number: int, shape: torch.Size) -> None:
        missing = number - len(self._counts)
        if self.tasks == 0:
            self._sums = torch.zeros(0, *shape, dtype=torch.float64)
        if missing > 0:
            self._sums = torch.cat([self._sums, torch.zeros(missing, *shape, dtype=torch.float64)])
            self._counts = torch.cat([self._counts, torch.zeros(missing, dtype=torch.float64)])


class TaskMean:
    """The mean and the standard error of one value per task."""

    def __init__(self) -> None:
        self._start = torch.zeros(())
        self.moments = TaskTotal()
        """Sums of value − start and its square, with the first value as the start: equal values have no error."""

    def add(self, values: Float[Tensor, " T"], groups: Int[Tensor, "T w"] | None = None) -> None:
        """More tasks, and the groups that each is made of, where they are not independent."""
        values = values.double().cpu()
        self._start = self._start if self.moments.tasks else values[0].clone()
        step = values - self._start
        self.moments.add(torch.stack([step, step.square()], dim=-1), groups)

    def mean(self) -> float:
        """Over all groups, or over all tasks where these are independent."""
        return float(self._start + self.moments.mean()[0])

    def by_group(self) -> Float[Tensor, " G"]:
        """The mean of each group."""
        return self._start + self.moments.by_group()[:, 0]

    def error(self) -> float:
        """The standard error of the mean, of at least two independent values."""
        if self.moments.groups is not None:
            values = self.moments.pseudo_values()[:, 0]
            return float(values.std() / len(values) ** 0.5)
        step, square = self.moments.mean()
        return float(((square - step.square()).clamp(min=0) / self.moments.degrees).sqrt())

    def summary(self) -> Mean:
        """The mean ± Student's 97.5 % quantile times the standard error; without an interval where none is known."""
        if self.moments.degrees < 1:
            return {"mean": self.mean()}
        return {"mean": self.mean(), "ci95": round(float(stdtrit(self.moments.degrees, 0.975)) * self.error(), 12)}


class TaskMeans:
    """The means of several values per task, by name."""

    def __init__(self, names: Iterable[str]) -> None:
        self._means = {name: TaskMean() for name in names}

    def add(self, records: Mapping[str, Tensor]) -> None:
        """More tasks, with the `groups` that each is made of, where they are not independent."""
        for name, mean in self._means.items():
            mean.add(records[name], records.get("groups"))

    def summary(self) -> dict[str, Any]:
        """Each with its interval, and the number of `groups` behind them."""
        groups = next(iter(self._means.values())).moments.groups
        counted = {} if groups is None else {"groups": groups}
        return {name: mean.summary() for name, mean in self._means.items()} | counted

    def by_group(self) -> list[dict[str, Any]]:
        """The means of each group that tasks were drawn from, by the `group`'s number, with how many `tasks` it had."""
        first = next(iter(self._means.values()))
        found = {name: mean.by_group().tolist() for name, mean in self._means.items()}
        return [
            {"group": group, "tasks": tasks, **{name: values[row] for name, values in found.items()}}
            for row, (group, tasks) in enumerate(first.moments.group_sizes())
        ]


def means_of_each(values: Float[Tensor, " T"], groups: Int[Tensor, "T w"] | None = None) -> Float[Tensor, " G"]:
    """The mean of each group where a task has one; else the values of tasks.

    >>> means_of_each(torch.tensor([1.0, 3.0, 4.0]), groups=torch.tensor([[5], [2], [2]]))
    tensor([3.5000, 1.0000], dtype=torch.float64)
    """
    if groups is None or groups.shape[1] > 1:
        return values.double()
    found = TaskMean()
    found.add(values, groups)
    return found.by_group()


def mean_over_tasks(values: Float[Tensor, " T"], groups: Int[Tensor, "T w"] | None = None) -> Mean:
    """Mean and Student's 95 % interval.

    >>> mean_over_tasks(torch.tensor([1.0, 3.0]))
    {'mean': 2.0, 'ci95': 12.706204736175}
    >>> mean_over_tasks(torch.tensor([1.0, 3.0, 3.0]), groups=torch.tensor([[0], [1], [1]]))
    {'mean': 2.0, 'ci95': 12.706204736175}
    >>> mean_over_tasks(torch.tensor([1.0, 3.0]), groups=torch.tensor([[0], [0]]))
    {'mean': 2.0}
    """
    found = TaskMean()
    found.add(values, groups)
    return found.summary()
