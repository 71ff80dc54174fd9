"""Whether differences of paired values are more than chance."""

import math
from collections.abc import Sequence
from statistics import mean, stdev

from scipy.special import stdtrit

SURE = 0.95
"""The probability of Student's test."""


def is_gain(gains: Sequence[float]) -> bool:
    """Whether the mean of independent gains is above 0 by more than chance, by Student's one-sided test.

    >>> is_gain([0.5, 0.4, 0.6]), is_gain([0.0, 0.1, 1.0]), is_gain([8.0])
    (True, False, False)
    """
    if len(gains) < 2:
        return False
    least: float = stdtrit(len(gains) - 1, SURE) * stdev(gains) / math.sqrt(len(gains))
    return bool(mean(gains) > least)
