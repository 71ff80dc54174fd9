"""What the paper prints for its regression experiment (Figure 2), to stand beside our own numbers."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple


class Printed(NamedTuple):
    """The paper's figures for one method, on 1000 unseen tasks; it prints no intervals and no NLL."""

    name: str
    """What the paper calls the method."""
    mse: float
    ece: float
    mce: float
    reliability: tuple[float, ...]
    """Observed probability at the levels 0, 0.1, …, 1."""


PRINTED_TASKS = 1000
"""Unseen tasks behind each of the paper's figures."""

# fmt: off
SINE_LINE_5_SHOT: dict[str, Printed] = {
    "maml": Printed("MAML", 2.32, 0.2740, 0.5139, (0.4861,) * 11),
    "platipus": Printed(
        "PLATIPUS", 2.52, 0.2214, 0.4095,
        (0.3675, 0.3988, 0.4214, 0.4400, 0.4572, 0.4740, 0.4913, 0.5095, 0.5299, 0.5543, 0.5905),
    ),
    "bmaml": Printed(
        "BMAML", 1.45, 0.1894, 0.3253,
        (0.3253, 0.3810, 0.4205, 0.4522, 0.4796, 0.5054, 0.5313, 0.5583, 0.5885, 0.6252, 0.6773),
    ),
    "abml": Printed(
        "ABML", 2.65, 0.2186, 0.4013,
        (0.4013, 0.4386, 0.4645, 0.4855, 0.5040, 0.5215, 0.5390, 0.5570, 0.5773, 0.6015, 0.6357),
    ),
    "simpa": Printed(
        "SImPa", 1.58, 0.1473, 0.2295,
        (0.2072, 0.3295, 0.3805, 0.4231, 0.4609, 0.4994, 0.5369, 0.5748, 0.6169, 0.6706, 0.7821),
    ),
}
"""Our name of a method → the paper's figures, rounded to 4 digits."""
# fmt: on


def printed_for(result: Mapping[str, Any]) -> Printed | None:
    """The paper's figures for the method and tasks of an evaluation, if it prints them.

    >>> printed_for({"algorithm": "simpa", "data": "sine-line", "shot": 5}).mse
    1.58
    >>> printed_for({"algorithm": "simpa", "data": "sine-line", "shot": 10}) is None
    True
    """
    same_tasks = (result["data"], result["shot"]) == ("sine-line", 5)
    return SINE_LINE_5_SHOT.get(result["algorithm"]) if same_tasks else None


def printed_once(results: Sequence[Mapping[str, Any]]) -> list[Printed | None]:
    """For each result the paper's figures that follow it: those of its method, at the method's first result only."""
    seen: set[str] = set()
    found: list[Printed | None] = []
    for result in results:
        printed = printed_for(result)
        found.append(printed if printed is None or printed.name not in seen else None)
        seen |= {printed.name} if printed else set()
    return found
