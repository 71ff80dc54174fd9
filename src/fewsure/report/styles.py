"""How runs and kinds of tasks are named, and runs coloured, the same throughout a report."""

from collections.abc import Mapping, Sequence
from itertools import cycle
from pathlib import Path
from typing import Any, NamedTuple


class RunStyle(NamedTuple):
    """How a run is drawn."""

    label: str
    """A name that no other run of the report has."""
    colour: str
    owner: str = ""
    """The run's number in the report, by which the page knows its parts."""

    @property
    def on_dark(self) -> str:
        """The colour on a dark page: a lighter one where its own could not be seen."""
        return DARK_GROUND.get(self.colour, self.colour)


# Okabe and Ito's palette, which people with any kind of colour vision can tell apart. Its black is the truth's, and its
# yellow is too pale for a line on white.
VERMILLION, BLUE, GREEN, ORANGE, PURPLE, SKY = "#D55E00", "#0072B2", "#009E73", "#E69F00", "#CC79A7", "#56B4E9"
GREY = "#777777"
DARKER = ("#5F2A00", "#003A5C", "#00513B", "#735000", "#70405B", "#1F5F85")
DARK_GROUND = dict(zip(DARKER, ("#F0A878", "#7FC4F2", "#6FD9B8", "#F7D58A", "#EBC1D8", "#A9DCF8"), strict=True))
"""A dark colour → a light one that takes its place on a dark page."""

ALGORITHM_COLOURS = {
    "simpa": VERMILLION,
    "maml": BLUE,
    "platipus": GREEN,
    "bmaml": ORANGE,
    "abml": PURPLE,
    "vampire": SKY,
    "protonet": GREY,
}
"""Each algorithm's own colour, in every figure of every report."""
NAMES = {
    "simpa": "SImPa",
    "simpa-latent": "SImPa-latent",
    "protonet": "ProtoNet",
    "mixed": "mixed model",
    "ridge": "ridge",
    "mean": "mean",
    "boosting": "boosting",
    "simpleshot": "SimpleShot",
    "logistic": "logistic",
    "metaqda": "MetaQDA",
    "metaoptnet": "MetaOptNet",
}
"""Names that are no abbreviations."""
SPARE_COLOURS = (GREEN, PURPLE, SKY, ORANGE, BLUE, VERMILLION, *DARKER)
"""For a second run of an algorithm, and for algorithms that have no colour of their own."""


def run_styles(algorithms: Sequence[str], folders: Sequence[Path]) -> list[RunStyle]:
    """Name each run by its algorithm, or by its folder where several runs share the algorithm.

    >>> [style.label for style in run_styles(["simpa", "maml"], [Path("a"), Path("b")])]
    ['SImPa', 'MAML']
    >>> [style.label for style in run_styles(["maml", "maml"], [Path("runs/slow"), Path("runs/fast")])]
    ['slow', 'fast']
    """
    names = [
        folder.resolve().name if algorithms.count(algorithm) > 1 else display_name(algorithm)
        for algorithm, folder in zip(algorithms, folders, strict=True)
    ]
    labels = [name if names.count(name) == 1 else str(folder) for name, folder in zip(names, folders, strict=True)]
    colours = _colours(algorithms)
    return [RunStyle(label, colours[number], str(number)) for number, label in enumerate(labels)]


def display_name(algorithm: str) -> str:
    """An algorithm's name as papers spell it.

    >>> display_name("simpa"), display_name("abml")
    ('SImPa', 'ABML')
    """
    return NAMES.get(algorithm, algorithm.upper())


def setting(result: Mapping[str, Any]) -> str:
    """The kind of task that an evaluation is of.

    >>> setting({"data": "omniglot", "way": 5, "shot": 1}), setting({"data": "sine-line", "shot": 5})
    ('omniglot, 5-way 1-shot', 'sine-line, 5-shot')
    >>> setting({"data": "images", "way": 2, "fixed_classes": ["defect", "ok"], "shot": 5})
    'images, defect or ok, 5 known'
    """
    if "fixed_classes" in result:
        return f"{result['data']}, {' or '.join(result['fixed_classes'])}, {result['shot']} known"
    way = f"{result['way']}-way " if "way" in result else ""
    return f"{result['data']}, {way}{result['shot']}-shot"


def _colours(algorithms: Sequence[str]) -> list[str]:
    own = {algorithm: ALGORITHM_COLOURS[algorithm] for algorithm in algorithms if algorithm in ALGORITHM_COLOURS}
    spare = cycle([colour for colour in SPARE_COLOURS if colour not in own.values()])
    # The first run of an algorithm takes its colour out of `own`; those after it find none there.
    return [own.pop(algorithm, "") or next(spare) for algorithm in algorithms]
