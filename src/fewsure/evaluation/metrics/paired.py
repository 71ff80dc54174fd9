"""Are two methods different? The paired t-test over the same tasks."""

import math
from typing import TypedDict

from jaxtyping import Float
from scipy.special import stdtr
from torch import Tensor

from fewsure.evaluation.metrics.summary import Mean, TaskMean


class PairedTest(TypedDict):
    """Means over the same tasks, and whether they differ by more than chance would have them."""

    first: Mean
    second: Mean
    difference: Mean
    """First − second, task by task; its interval is often narrower than those of the means, as tasks vary together."""
    t: float
    p_value: float
    """Two-sided: how often chance alone gives a difference as large as this."""


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

    def add(self, first: Float[Tensor, " T"], second: Float[Tensor, " T"]) -> None:
        """More tasks."""
        self._first.add(first)
        self._second.add(second)
        self._difference.add(first.double() - second.double())

    def test(self) -> PairedTest:
        """t = mean(d) / (std(d) / √T) of the differences d, with T − 1 degrees of freedom."""
        mean, error = self._difference.mean(), self._difference.error()
        t = mean / error if error else math.copysign(math.inf, mean) if mean else 0.0
        return {
            "first": self._first.summary(),
            "second": self._second.summary(),
            "difference": self._difference.summary(),
            "t": t,
            "p_value": float(2 * stdtr(self._difference.tasks - 1, -abs(t))),
        }
