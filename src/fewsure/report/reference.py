"""What the paper prints (Figures 2 and 3, Table 1), to stand beside our own numbers."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple


class Printed(NamedTuple):
    """The paper's figures for one method on regression, on 1000 unseen tasks; it prints no intervals and no NLL."""

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


class Bins(NamedTuple):
    """The paper's Figure 3: mean confidence, accuracy and share of the query points in each bin that is not empty.

    As printed, one accuracy is above 1 and the shares add up to a little more than 1.
    """

    confidence: tuple[float, ...]
    accuracy: tuple[float, ...]
    weight: tuple[float, ...]


class PrintedAccuracy(NamedTuple):
    """The paper's figures for one method on classification."""

    name: str
    accuracy: float | None
    """A fraction, as are its interval and the calibration errors."""
    ci95: float | None
    ece: float | None = None
    mce: float | None = None
    bins: Bins | None = None


# fmt: off
FIGURE_3: dict[str, Bins] = {
    "maml": Bins(
        (0.2749, 0.3495, 0.4448, 0.5443, 0.6441, 0.7434, 0.8417, 0.9341),
        (0.3111, 0.3802, 0.4769, 0.5796, 0.7014, 0.8408, 0.9655, 1.0301),
        (0.1314, 0.3686, 0.2489, 0.1303, 0.0672, 0.0365, 0.0234, 0.0210),
    ),
    "platipus": Bins(
        (0.2726, 0.3477, 0.4440, 0.5432, 0.6424, 0.7413, 0.8379, 0.9240),
        (0.2906, 0.3703, 0.4711, 0.5780, 0.7101, 0.8491, 0.9450, 0.9897),
        (0.1867, 0.3946, 0.2312, 0.1086, 0.0509, 0.0281, 0.0186, 0.0128),
    ),
    "bmaml": Bins(
        (0.2763, 0.3515, 0.4457, 0.5445, 0.6443, 0.7429, 0.8406, 0.9287),
        (0.3311, 0.3581, 0.4568, 0.5640, 0.6875, 0.8290, 0.9330, 0.9839),
        (0.0965, 0.3404, 0.2702, 0.1518, 0.0808, 0.0450, 0.0289, 0.0213),
    ),
    "abml": Bins(
        (0.2765, 0.3530, 0.4474, 0.5460, 0.6456, 0.7453, 0.8439, 0.9357),
        (0.3346, 0.3369, 0.4295, 0.5114, 0.6126, 0.7079, 0.8176, 0.9291),
        (0.0714, 0.2748, 0.2575, 0.1689, 0.1044, 0.0662, 0.0450, 0.0342),
    ),
    "simpa": Bins(
        (0.2765, 0.3530, 0.4474, 0.5461, 0.6461, 0.7457, 0.8438, 0.9372),
        (0.3312, 0.3530, 0.4385, 0.5274, 0.6197, 0.7241, 0.8309, 0.9341),
        (0.0693, 0.2691, 0.2553, 0.1705, 0.1093, 0.0706, 0.0459, 0.0312),
    ),
}
"""mini-ImageNet, 5-way 1-shot: our name of a method → its bins, rounded to 4 digits."""
TABLE_1: dict[tuple[str, int], dict[str, PrintedAccuracy]] = {
    ("omniglot", 1): {
        "maml": PrintedAccuracy("MAML", 0.97143, 0.00005),
        "protonet": PrintedAccuracy("ProtoNet", 0.96359, 0.00006),
        "bmaml": PrintedAccuracy("BMAML", 0.94104, 0.00008),
        "abml": PrintedAccuracy("ABML", 0.97281, 0.00004),
        "simpa": PrintedAccuracy("SImPa", 0.98352, 0.00005),
    },
    ("mini-imagenet", 1): {
        "maml": PrintedAccuracy("MAML", 0.4870, 0.0184, 0.0410, 0.1237, FIGURE_3["maml"]),
        "protonet": PrintedAccuracy("ProtoNet", 0.4942, 0.0078),
        "platipus": PrintedAccuracy("PLATIPUS", 0.5013, 0.0186, 0.0317, 0.1078, FIGURE_3["platipus"]),
        "bmaml": PrintedAccuracy("BMAML", None, None, 0.0247, 0.0924, FIGURE_3["bmaml"]),
        "abml": PrintedAccuracy("ABML", 0.4500, 0.0060, 0.0264, 0.0581, FIGURE_3["abml"]),
        "simpa": PrintedAccuracy("SImPa", 0.5172, 0.0048, 0.0143, 0.0546, FIGURE_3["simpa"]),
    },
    ("mini-imagenet", 5): {
        "maml": PrintedAccuracy("MAML", 0.6315, 0.0091),
        "protonet": PrintedAccuracy("ProtoNet", 0.6820, 0.0066),
        "simpa": PrintedAccuracy("SImPa", 0.6349, 0.0040),
    },
    ("mini-imagenet-leo", 1): {"simpa": PrintedAccuracy("SImPa", 0.6285, 0.0056)},
    ("mini-imagenet-leo", 5): {"simpa": PrintedAccuracy("SImPa", 0.7765, 0.0050)},
    ("tiered-imagenet-leo", 1): {"simpa": PrintedAccuracy("SImPa", 0.7026, 0.0035)},
    ("tiered-imagenet-leo", 5): {"simpa": PrintedAccuracy("SImPa", 0.8015, 0.0028)},
}
"""(data, shot), always 5-way → our name of a method → the paper's figures."""
# fmt: on


def printed_for(result: Mapping[str, Any]) -> Printed | PrintedAccuracy | None:
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


def printed_once(results: Sequence[Mapping[str, Any]]) -> list[Printed | PrintedAccuracy | None]:
    """For each result the paper's figures that follow it: those of its method, at the method's first result only."""
    seen: set[str] = set()
    found: list[Printed | PrintedAccuracy | None] = []
    for result in results:
        printed = printed_for(result)
        found.append(printed if printed is None or printed.name not in seen else None)
        seen |= {printed.name} if printed else set()
    return found
