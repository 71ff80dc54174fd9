"""Learning rates over the course of training."""

import math
from typing import Literal

Schedule = Literal["cosine", "linear", "step", "constant"]
STEPS = (0.5, 0.75)
"""Shares of the training after which `step` divides the rate by 10."""


def learning_rate(update: int, updates: int, *, peak: float, schedule: Schedule, warm_up: int = 0) -> float:
    """The rate of update number `update` = 0, 1, …: linear up to `peak` over `warm_up` updates, then the schedule.

    Over the updates that remain, `cosine` and `linear` fall from `peak` to 0, and `constant` stays. `step` divides by
    10 after a half and after three quarters.

    >>> [learning_rate(u, 4, peak=1.0, schedule="cosine") for u in (0, 2)]
    [1.0, 0.5]
    >>> [learning_rate(u, 4, peak=1.0, schedule="step") for u in (0, 2, 3)]
    [1.0, 0.1, 0.010000000000000002]
    >>> [learning_rate(u, 10, peak=1.0, schedule="constant", warm_up=2) for u in (0, 1, 2)]
    [0.5, 1.0, 1.0]
    """
    if update < warm_up:
        return peak * (update + 1) / warm_up
    progress = (update - warm_up) / max(1, updates - warm_up)
    match schedule:
        case "constant":
            return peak
        case "linear":
            return peak * (1 - progress)
        case "step":
            return peak * 0.1 ** sum(progress >= share for share in STEPS)
        case "cosine":
            return peak * 0.5 * (1 + math.cos(math.pi * progress))
