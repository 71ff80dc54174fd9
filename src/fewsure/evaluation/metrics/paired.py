"""Are two methods different? The paired t-test over the same tasks, or over the groups that they are made of."""

import math
from typing import TypedDict

from jaxtyping import Float, Int
from scipy.special import stdtr
from torch import Tensor

from fewsure.evaluation.metrics.summary import Mean, TaskMean


class PairedTest(TypedDict):
    """Means over the same tasks, and whether they differ by more than chance would have them."""

    first: Mean
    second: Mean
    difference: Mean
    """First − second, task by task; its interval is often narrower than those of the means, as tasks vary together."""
    t: float | None
    p_value: float | None
    """Two-sided: how often chance alone gives a difference as large as this; None where there is no interval."""


class PairedScores:
    """Two scores of the same tasks, which come piece by piece.

    >>> import torch
    >>> scores = PairedScores()
    >>> scores.add(torch.tensor([1.0, 2.0, 4.0]), torch.tensor([0.0, 0.0, 1.0]))
    >>> round(scores.test()["t"], 4), round(scores.test()["p_value"], 4)
    (3.4641, 0.0742)
    """

    def __init__(self) -> None:
        self._first, self._second, self._difference = TaskMean(), TaskMean(), TaskMean()

    def add(
        self, first: Float[Tensor, " T"], second: Float[Tensor, " T"], groups: Int[Tensor, "T w"] | None = None
    ) -> None:
        """More tasks, and the groups that each is made of, where they are not independent."""
        self._first.add(first, groups)
        self._second.add(second, groups)
        self._difference.add(first.double() - second.double(), groups)

    def test(self) -> PairedTest:
        """t = mean(d) / error(d) of the differences d between tasks, or groups where tasks are not independent."""
        mean, degrees = self._difference.mean(), self._difference.moments.degrees
        t = p_value = None
        if degrees > 0:
            error = self._difference.error()
            t = mean / error if error else math.copysign(math.inf, mean) if mean else 0.0
            p_value = float(2 * stdtr(degrees, -abs(t)))
        return {
            "first": self._first.summary(),
            "second": self._second.summary(),
            "difference": self._difference.summary(),
            "t": t,
            "p_value": p_value,
        }
