"""The log of a training while it goes on: its scores, whether they still improve, and terms that explode."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from fewsure.theory.chance import is_gain

SCORE = "validation_nll"
"""The name of a score in the log."""
EACH, AHEAD = "validation_nll_of_each", "ahead_of_start"
"""The names of a start's scores, and of whether an update is ahead of it."""
WINDOWS = 3
"""Logged windows before the first that can be called an explosion."""
FACTOR = 10.0
"""A loss or a gradient so many times larger than ever before has exploded."""
WATCHED = ("loss", "gradient_norm")
UNWATCHED = {*WATCHED, SCORE, AHEAD, "update", "seconds", "tasks_per_second", "skipped", "since_best"}
"""The names in the log that are no terms of the loss."""

Line = Mapping[str, Any]


class Score(NamedTuple):
    """The mean NLL of validation tasks after so many updates: the lower, the better."""

    update: int
    nll: float
    ahead: bool = True
    """Whether it is better than the result of `fit` by more than chance."""


def scores_of(lines: Sequence[Line]) -> list[Score]:
    """The scores in a log."""
    return [Score(int(line["update"]), float(line[SCORE]), bool(line.get(AHEAD, 1))) for line in lines if SCORE in line]


def start_of(lines: Sequence[Line]) -> list[float] | None:
    """The scores of each group, or task, by what `fit` has given."""
    return next((line[EACH] for line in lines if EACH in line), None)


def is_ahead(each: Sequence[float], start: Sequence[float] | None) -> bool:
    """Whether scores are lower than the start's of the same groups, by more than chance."""
    return start is None or is_gain([before - now for before, now in zip(start, each, strict=True)])


def best_of(scores: Sequence[Score]) -> Score | None:
    """The lowest score, the first of equal ones."""
    return min((score for score in scores if score.ahead), key=lambda score: score.nll, default=None)


def since_best(scores: Sequence[Score]) -> int:
    """How many scores have come since the best one.

    >>> since_best([Score(1, 3.0), Score(2, 1.0), Score(3, 2.0), Score(4, 1.0)])
    2
    """
    best = best_of(scores)
    return 0 if best is None else len(scores) - 1 - scores.index(best)


def stalled(scores: Sequence[Score], patience: int) -> bool:
    """Whether training may stop: the best score is older than the last `patience` scores, if that is not 0."""
    return patience > 0 and since_best(scores) >= patience


def explosion(lines: Sequence[Line]) -> str | None:
    """The number that exploded in the last window, with advice; None if nothing has.

    >>> calm = [{"update": n, "loss": 2.0, "gradient_norm": 1.0, "kl": 0.1} for n in range(3)]
    >>> explosion([*calm, {"update": 3, "loss": 219.0, "gradient_norm": 9e5, "kl": 217.0}])
    '`loss` rose from 2 to 219, most by the term `kl`: lower its weight, --lr or --clip-norm'
    """
    *before, last = lines or [{}]
    if len(before) < WINDOWS:
        return None

    def most(name: str) -> float:
        return max((abs(float(line[name])) for line in before if name in line), default=0.0)

    risen = next((name for name in WATCHED if 0 < FACTOR * most(name) < float(last.get(name, 0.0))), None)
    if risen is None:
        return None
    rises = {
        name: float(value) - most(name)
        for name, value in last.items()
        if name not in UNWATCHED and isinstance(value, (int, float))
    }
    cause = max(rises, key=lambda name: rises[name], default=risen)
    term = f"most by the term `{cause}`: lower its weight, " if rises.get(cause, 0.0) > 0 else "so lower "
    return f"`{risen}` rose from {most(risen):.3g} to {last[risen]:.3g}, {term}--lr or --clip-norm"
