"""A mixture of components: K posteriors of one method, each of which starts, learns and adapts by itself.

The parts of all components lie side by side under names of their own, those of the first under the plain ones:
`generator`, `generator.2`, … Training minimises the mean of the components' own bounds. A mixture's risk is the mean of
its components' risks, and its KL at most the mean of their KLs: with these, a theorem holds for the mixture.
"""

from collections.abc import Mapping, Sequence
from statistics import mean
from typing import Any

import torch

from fewsure.types import Info, Noise, Parts

LAGGING = 2.0
"""A component with so many times the loss of the best has learned badly."""


def merge_components(components: Sequence[Parts]) -> Parts:
    """The parts of all components."""
    return {
        _named(part, number): params
        for number, component in enumerate(components)
        for part, params in component.items()
    }


def split_components(parts: Parts, components: int) -> list[Parts]:
    """The parts of each component.

    >>> split_components({"generator": {}, "generator.2": {}}, 2)
    [{'generator': {}}, {'generator': {}}]
    """
    plain = [part for part in parts if "." not in part]
    return [{part: parts[_named(part, number)] for part in plain} for number in range(components)]


def split_noise(noise: Noise, names: Sequence[str], components: int) -> list[Noise]:
    """The noise of each component: of these names its share of the rows, of the others all."""
    shares = {name: torch.tensor_split(noise[name], components) for name in names if name in noise}
    return [noise | {name: share[number] for name, share in shares.items()} for number in range(components)]


def component_losses(components: Sequence[Info]) -> Info:
    """What a log has of each component, where there are several: they learn apart, and need not learn alike."""
    several = components if len(components) > 1 else []
    return {_loss(number): info["loss"] for number, info in enumerate(several, start=1)}


def lagging_components(log: Sequence[Mapping[str, Any]]) -> list[int]:
    """The components, numbered from 1, that have learned badly by the last tenth of a training's log.

    >>> lagging_components([{"loss": 0.3, "loss.1": 0.1, "loss.2": 0.5}])
    [2]
    """
    lines = [logged(line) for line in log[-max(1, len(log) // 10) :]]
    reached = [mean(of_component) for of_component in zip(*filter(None, lines), strict=True)]
    return [number for number, loss in enumerate(reached, start=1) if loss > LAGGING * min(reached)]


def logged(line: Mapping[str, Any]) -> list[float]:
    """The loss of each component in a line of the log; none where there is one component."""
    return [line[name] for number in range(1, len(line) + 1) if (name := _loss(number)) in line]


def _loss(number: int) -> str:
    return f"loss.{number}"


def _named(part: str, number: int) -> str:
    return part if number == 0 else f"{part}.{number + 1}"
