"""What the paper prints (Figures 2 and 3, Table 1), to stand beside our own numbers."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from fewsure.evaluation.metrics.calibration import LEVELS


class Printed(NamedTuple):
    """The paper's figures for one method on one kind of task; it prints no NLL, and no intervals but the accuracy's."""

    name: str
    """The paper's name of the method."""
    mse: float | None = None
    accuracy: float | None = None
    """A fraction, as are its interval and the calibration errors."""
    ci95: float | None = None
    ece: float | None = None
    mce: float | None = None
    expected: Sequence[float] = ()
    """Of the reliability diagram: the levels 0, 0.1, …, 1, or the mean confidence in each bin that is not empty."""
    observed: Sequence[float] = ()
    """Observed probability at each level, or accuracy in each bin; as printed, one accuracy is above 1."""
    tasks: int | None = None
    """Unseen tasks behind the figures, where the paper says how many."""


def _sine_line(name: str, mse: float, ece: float, mce: float, observed: Sequence[float]) -> Printed:
    return Printed(name, mse=mse, ece=ece, mce=mce, expected=LEVELS, observed=observed, tasks=1000)


# fmt: off
SINE_LINE_5_SHOT: dict[str, Printed] = {
    "maml": _sine_line("MAML", 2.32, 0.2740, 0.5139, (0.4861,) * 11),
    "platipus": _sine_line(
        "PLATIPUS", 2.52, 0.2214, 0.4095,
        (0.3675, 0.3988, 0.4214, 0.4400, 0.4572, 0.4740, 0.4913, 0.5095, 0.5299, 0.5543, 0.5905),
    ),
    "bmaml": _sine_line(
        "BMAML", 1.45, 0.1894, 0.3253,
        (0.3253, 0.3810, 0.4205, 0.4522, 0.4796, 0.5054, 0.5313, 0.5583, 0.5885, 0.6252, 0.6773),
    ),
    "abml": _sine_line(
        "ABML", 2.65, 0.2186, 0.4013,
        (0.4013, 0.4386, 0.4645, 0.4855, 0.5040, 0.5215, 0.5390, 0.5570, 0.5773, 0.6015, 0.6357),
    ),
    "simpa": _sine_line(
        "SImPa", 1.58, 0.1473, 0.2295,
        (0.2072, 0.3295, 0.3805, 0.4231, 0.4609, 0.4994, 0.5369, 0.5748, 0.6169, 0.6706, 0.7821),
    ),
}
"""Our name of a method → the paper's figures, rounded to 4 digits."""

TABLE_1: dict[tuple[str, int], dict[str, Printed]] = {
    ("omniglot", 1): {
        "maml": Printed("MAML", accuracy=0.97143, ci95=0.00005),
        "protonet": Printed("ProtoNet", accuracy=0.96359, ci95=0.00006),
        "bmaml": Printed("BMAML", accuracy=0.94104, ci95=0.00008),
        "abml": Printed("ABML", accuracy=0.97281, ci95=0.00004),
        "simpa": Printed("SImPa", accuracy=0.98352, ci95=0.00005),
    },
    ("mini-imagenet", 1): {
        "maml": Printed(
            "MAML", accuracy=0.4870, ci95=0.0184, ece=0.0410, mce=0.1237,
            expected=(0.2749, 0.3495, 0.4448, 0.5443, 0.6441, 0.7434, 0.8417, 0.9341),
            observed=(0.3111, 0.3802, 0.4769, 0.5796, 0.7014, 0.8408, 0.9655, 1.0301),
        ),
        "protonet": Printed("ProtoNet", accuracy=0.4942, ci95=0.0078),
        "platipus": Printed(
            "PLATIPUS", accuracy=0.5013, ci95=0.0186, ece=0.0317, mce=0.1078,
            expected=(0.2726, 0.3477, 0.4440, 0.5432, 0.6424, 0.7413, 0.8379, 0.9240),
            observed=(0.2906, 0.3703, 0.4711, 0.5780, 0.7101, 0.8491, 0.9450, 0.9897),
        ),
        "bmaml": Printed(
            "BMAML", ece=0.0247, mce=0.0924,
            expected=(0.2763, 0.3515, 0.4457, 0.5445, 0.6443, 0.7429, 0.8406, 0.9287),
            observed=(0.3311, 0.3581, 0.4568, 0.5640, 0.6875, 0.8290, 0.9330, 0.9839),
        ),
        "abml": Printed(
            "ABML", accuracy=0.4500, ci95=0.0060, ece=0.0264, mce=0.0581,
            expected=(0.2765, 0.3530, 0.4474, 0.5460, 0.6456, 0.7453, 0.8439, 0.9357),
            observed=(0.3346, 0.3369, 0.4295, 0.5114, 0.6126, 0.7079, 0.8176, 0.9291),
        ),
        "simpa": Printed(
            "SImPa", accuracy=0.5172, ci95=0.0048, ece=0.0143, mce=0.0546,
            expected=(0.2765, 0.3530, 0.4474, 0.5461, 0.6461, 0.7457, 0.8438, 0.9372),
            observed=(0.3312, 0.3530, 0.4385, 0.5274, 0.6197, 0.7241, 0.8309, 0.9341),
        ),
    },
    ("mini-imagenet", 5): {
        "maml": Printed("MAML", accuracy=0.6315, ci95=0.0091),
        "protonet": Printed("ProtoNet", accuracy=0.6820, ci95=0.0066),
        "simpa": Printed("SImPa", accuracy=0.6349, ci95=0.0040),
    },
    ("mini-imagenet-leo", 1): {"simpa": Printed("SImPa", accuracy=0.6285, ci95=0.0056)},
    ("mini-imagenet-leo", 5): {"simpa": Printed("SImPa", accuracy=0.7765, ci95=0.0050)},
    ("tiered-imagenet-leo", 1): {"simpa": Printed("SImPa", accuracy=0.7026, ci95=0.0035)},
    ("tiered-imagenet-leo", 5): {"simpa": Printed("SImPa", accuracy=0.8015, ci95=0.0028)},
}
"""(data, shot), always 5-way → our name of a method → the paper's figures."""
# fmt: on


def printed_for(result: Mapping[str, Any]) -> Printed | None:
    """The paper's figures for the method and tasks of an evaluation, if it prints them.

    >>> printed_for({"algorithm": "simpa", "data": "sine-line", "shot": 5}).mse
    1.58
    >>> printed_for({"algorithm": "simpa", "data": "sine-line", "shot": 10}) is None
    True
    >>> printed_for({"algorithm": "simpa", "data": "omniglot", "way": 5, "shot": 1}).accuracy
    0.98352
    """
    data, shot, algorithm = result["data"], result["shot"], result["algorithm"]
    if (data, shot) == ("sine-line", 5):
        return SINE_LINE_5_SHOT.get(algorithm)
    return TABLE_1.get((data, shot), {}).get(algorithm) if result.get("way") == 5 else None


def printed_once(results: Sequence[Mapping[str, Any]]) -> list[Printed | None]:
    """For each result the paper's figures that follow it: those of its method, at the method's first result only."""
    found: list[Printed | None] = []
    for result in results:
        printed = printed_for(result)
        found.append(None if printed in found else printed)
    return found
