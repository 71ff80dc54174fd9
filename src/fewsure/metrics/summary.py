"""From one value per task to a mean and its 95 % interval."""

from collections.abc import Callable
from typing import TypedDict

import torch
from jaxtyping import Float
from torch import Tensor

from fewsure import streams

BOOTSTRAP = 1000
"""Resamples of the tasks behind the intervals of ECE and MCE."""


class Mean(TypedDict):
    """A mean over tasks and the half-width of its 95 % interval."""

    mean: float
    ci95: float


def mean_over_tasks(values: Float[Tensor, " T"]) -> Mean:
    """Mean ± 1.96 standard errors.

    >>> mean_over_tasks(torch.tensor([1.0, 3.0]))
    {'mean': 2.0, 'ci95': 1.96}
    """
    error = values.double().std() / len(values) ** 0.5
    return {"mean": float(values.double().mean()), "ci95": round(1.96 * float(error), 12)}


def bootstrap_intervals(
    records: Float[Tensor, "T *D"], errors: Callable[[Tensor], tuple[Tensor, ...]]
) -> tuple[list[float], ...]:
    """95 % bootstrap intervals of statistics of the sum of one record per task, such as (ECE, MCE).

    [2.5 %, 97.5 %] over resamples of the tasks with replacement. Calibration errors are not means over tasks (what they
    compare is averaged first), so they have no standard error.
    """
    generator, tasks = streams.generator(0, "bootstrap"), len(records)
    rows = records.double().cpu().flatten(1)
    totals = []
    for _ in range(BOOTSTRAP):
        drawn = torch.randint(tasks, (tasks,), generator=generator)
        totals.append(torch.bincount(drawn, minlength=tasks).double() @ rows)
    found = errors(torch.stack(totals).reshape(BOOTSTRAP, *records.shape[1:]))
    edges = torch.tensor([0.025, 0.975], dtype=torch.float64)
    return tuple(error.quantile(edges).tolist() for error in found)
