"""A mixture of K components: posteriors of one family, stacked, each of which starts, learns and adapts by itself.

Training minimises the mean of the components' own bounds. A mixture's risk is the mean of its components' risks.
Its KL is at most the mean of their KLs. With these two, a theorem holds for the mixture.
"""

from collections.abc import Mapping, Sequence
from statistics import mean
from typing import Any

from torch import Tensor

from fewsure.types import Info

LAGGING = 2.0
"""A component lags with so many times the loss of the best."""


def component_losses(losses: Tensor) -> Info:
    """The loss of each component by name, where there are several: they learn apart, and need not learn alike."""
    return {_name(number): loss for number, loss in enumerate(losses.unbind(), start=1)} if len(losses) > 1 else {}


def lagging_components(log: Sequence[Mapping[str, Any]]) -> list[int]:
    """The components, numbered from 1, that lag in the last tenth of a training's log.

    >>> lagging_components([{"loss": 0.3, "loss.1": 0.1, "loss.2": 0.5}])
    [2]
    """
    lines = [logged_losses(line) for line in log[-max(1, len(log) // 10) :]]
    reached = [mean(losses) for losses in zip(*filter(None, lines), strict=True)]
    return [number for number, loss in enumerate(reached, start=1) if loss > LAGGING * min(reached)]


def logged_losses(line: Mapping[str, Any]) -> list[float]:
    """The loss of each component in a line of the log; empty for a single component."""
    return [line[name] for number in range(1, len(line) + 1) if (name := _name(number)) in line]


def _name(number: int) -> str:
    return f"loss.{number}"
