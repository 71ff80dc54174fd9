"""From one value per task to a mean and its 95 % interval.

Tasks come piece by piece, and memory does not grow with their number. Task t belongs to group t mod 10,000, and the
sums of the groups are the same numbers whatever the pieces are.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypedDict

import torch
from jaxtyping import Float
from scipy.special import stdtrit
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


class TaskTotal:
    """The sum of one record per task, and bootstrap intervals of what is computed from its mean."""

    def __init__(self) -> None:
        self.tasks = 0
        self._sums = torch.zeros(0)

    def add(self, records: Float[Tensor, "T *D"]) -> None:
        """More tasks."""
        if self.tasks == 0:
            self._sums = torch.zeros(GROUPS, *records.shape[1:], dtype=torch.float64)
        done = 0
        while done < len(records):
            group = self.tasks % GROUPS
            piece = records[done : done + GROUPS - group]
            self._sums[group : group + len(piece)] += piece.double().cpu()
            done += len(piece)
            self.tasks += len(piece)

    def total(self) -> Float[Tensor, "*D"]:
        """The sum over all tasks so far."""
        return self._sums[: self.tasks].sum(0)

    def mean(self) -> Float[Tensor, "*D"]:
        """Over all tasks so far."""
        return self.total() / self.tasks

    def intervals(self, errors: Callable[[Tensor], tuple[Tensor, ...]]) -> tuple[list[float], ...]:
        """[2.5 %, 97.5 %] over resamples of the groups, of statistics of the mean record (B, *D) such as (ECE, MCE).

        Calibration errors are not means over tasks (what they compare is averaged first), so they have no standard
        error. Chance adds to each |gap|: the estimate is biased upwards, and its resamples twice as much. The interval
        lies too high, the more the fewer the tasks are, and never holds a true error of 0.
        """
        generator, groups = streams.generator(0, "bootstrap"), self._sums[: self.tasks]
        members = (self.tasks + GROUPS - 1 - torch.arange(len(groups))) // GROUPS
        rows = torch.cat([groups.flatten(1), members.unsqueeze(1)], dim=1)
        totals = []
        for _ in range(BOOTSTRAP):
            drawn = torch.randint(len(rows), (len(rows),), generator=generator)
            totals.append(torch.bincount(drawn, minlength=len(rows)).double() @ rows)
        drawn_totals = torch.stack(totals)
        means = drawn_totals[:, :-1] / drawn_totals[:, -1:]
        found = errors(means.reshape(BOOTSTRAP, *groups.shape[1:]))
        edges = torch.tensor([0.025, 0.975], dtype=torch.float64)
        return tuple(error.quantile(edges).tolist() for error in found)

    def calibration(self, errors: Callable[[Tensor], tuple[Tensor, Tensor]]) -> dict[str, Any]:
        """ECE and MCE of the mean record, with their intervals."""
        named = zip(("ece", "mce"), errors(self.mean()), self.intervals(errors), strict=True)
        return {
            key: value for name, error, ends in named for key, value in ((name, float(error)), (f"{name}_ci95", ends))
        }


class TaskMean:
    """The mean and the standard error of one value per task."""

    def __init__(self) -> None:
        self._start = torch.zeros(())
        self._moments = TaskTotal()
        """Sums of value − start and its square, with the first value as the start: equal values have no error."""

    @property
    def tasks(self) -> int:
        return self._moments.tasks

    def add(self, values: Float[Tensor, " T"]) -> None:
        """More tasks."""
        values = values.double().cpu()
        self._start = self._start if self.tasks else values[0].clone()
        step = values - self._start
        self._moments.add(torch.stack([step, step.square()], dim=-1))

    def mean(self) -> float:
        """Over all tasks so far."""
        return float(self._start + self._moments.mean()[0])

    def error(self) -> float:
        """The standard error of the mean."""
        step, square = self._moments.mean()
        return float(((square - step.square()).clamp(min=0) / (self.tasks - 1)).sqrt())

    def summary(self) -> Mean:
        """Mean ± Student's 97.5 % quantile times the standard error."""
        return {"mean": self.mean(), "ci95": round(float(stdtrit(self.tasks - 1, 0.975)) * self.error(), 12)}


class TaskMeans:
    """The means of several values per task, by name."""

    def __init__(self, names: Iterable[str]) -> None:
        self._means = {name: TaskMean() for name in names}

    def add(self, records: Mapping[str, Tensor]) -> None:
        """More tasks."""
        for name, mean in self._means.items():
            mean.add(records[name])

    def summary(self) -> dict[str, Mean]:
        """Each with its interval."""
        return {name: mean.summary() for name, mean in self._means.items()}


def mean_over_tasks(values: Float[Tensor, " T"]) -> Mean:
    """Mean and Student's 95 % interval.

    >>> mean_over_tasks(torch.tensor([1.0, 3.0]))
    {'mean': 2.0, 'ci95': 12.706204736175}
    """
    found = TaskMean()
    found.add(values)
    return found.summary()
