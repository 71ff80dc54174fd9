"""Learning rates over the course of training."""

import math
from typing import Literal

Schedule = Literal["constant", "cosine"]


def learning_rate(update: int, updates: int, *, peak: float, schedule: Schedule, warm_up: int = 0) -> float:
    """The rate of update number `update` = 0, 1, …: linear up to `peak` over `warm_up` updates, then the schedule.

    `cosine` falls from `peak` to 0 over the updates that remain; `constant` stays.

    >>> [learning_rate(u, 4, peak=1.0, schedule="cosine") for u in (0, 2)]
    [1.0, 0.5]
    >>> [learning_rate(u, 10, peak=1.0, schedule="constant", warm_up=2) for u in (0, 1, 2)]
    [0.5, 1.0, 1.0]
    """
    if update < warm_up:
        return peak * (update + 1) / warm_up
    if schedule == "constant":
        return peak
    progress = (update - warm_up) / max(1, updates - warm_up)
    return peak * 0.5 * (1 + math.cos(math.pi * progress))
