"""From one value per task to a mean and its 95 % interval."""

from typing import TypedDict

import torch
from jaxtyping import Float
from torch import Tensor

from fewsure import streams
from fewsure.metrics.calibration import calibration_errors

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


def calibration_intervals(reliability: Float[Tensor, "T L"]) -> tuple[list[float], list[float]]:
    """95 % bootstrap intervals of (ECE, MCE) over tasks: [2.5 %, 97.5 %] of resamples with replacement.

    The errors are not means over tasks (the reliability is averaged first), so they have no standard error.
    """
    rows, generator = reliability.double().cpu(), streams.generator(0, "bootstrap")
    resampled = torch.stack(
        [rows[torch.randint(len(rows), (len(rows),), generator=generator)].mean(0) for _ in range(BOOTSTRAP)]
    )
    edges = torch.tensor([0.025, 0.975], dtype=torch.float64)
    ece, mce = calibration_errors(resampled)
    return ece.quantile(edges).tolist(), mce.quantile(edges).tolist()
