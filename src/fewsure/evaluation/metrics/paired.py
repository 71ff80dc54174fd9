"""Are two methods different? The paired t-test over the same tasks."""

import math
from typing import TypedDict

from jaxtyping import Float
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
    """Two scores of the same tasks, which come piece by piece."""

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
            "p_value": two_sided_p(t, self._difference.tasks - 1),
        }


def paired_t_test(first: Float[Tensor, " T"], second: Float[Tensor, " T"]) -> PairedTest:
    """The paired t-test of two scores of the same tasks.

    >>> import torch
    >>> test = paired_t_test(torch.tensor([1.0, 2.0, 4.0]), torch.tensor([0.0, 0.0, 1.0]))
    >>> round(test["t"], 4), round(test["p_value"], 4)
    (3.4641, 0.0742)
    """
    scores = PairedScores()
    scores.add(first, second)
    return scores.test()


def two_sided_p(t: float, freedom: int) -> float:
    """P(|X| ≥ |t|) for Student's X: the regularised incomplete beta function I_x(ν/2, ½) at x = ν/(ν + t²).

    >>> round(two_sided_p(2.0, 10), 6)
    0.073388
    """
    if math.isinf(t):
        return 0.0
    a, b, x = freedom / 2, 0.5, freedom / (freedom + t * t)
    if x == 1:
        return 1.0
    if x > (a + 1) / (a + b + 2):  # where the continued fraction converges fast
        return 1 - _beta_fraction(b, a, 1 - x)
    return _beta_fraction(a, b, x)


def _beta_fraction(a: float, b: float, x: float) -> float:
    """I_x(a, b) by its continued fraction, evaluated by Lentz's method."""
    tiny = 1e-300
    front = math.exp(math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)) / a
    c, d = 1.0, 1 / _away_from_zero(1 - (a + b) * x / (a + 1), tiny)
    value = d
    for m in range(1, 10_000):
        for numerator in (
            m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)),
            -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1)),
        ):
            d = 1 / _away_from_zero(1 + numerator * d, tiny)
            c = _away_from_zero(1 + numerator / c, tiny)
            value *= c * d
        if abs(c * d - 1) < 1e-15:
            break
    return front * value


def _away_from_zero(value: float, tiny: float) -> float:
    return value if abs(value) > tiny else tiny
