"""A mixture of components: K posteriors of one method, each of which starts, learns and adapts by itself.

The parts of all components lie side by side under names of their own, those of the first under the plain ones:
`generator`, `generator.2`, … Training minimises the mean of the components' own bounds. A mixture's risk is the mean of
its components' risks, and its KL at most the mean of their KLs: with these, a theorem holds for the mixture.
"""

from collections.abc import Sequence

import torch

from fewsure.types import Noise, Parts


def joined(components: Sequence[Parts]) -> Parts:
    """The parts of all components."""
    return {
        _named(part, number): params
        for number, component in enumerate(components)
        for part, params in component.items()
    }


def split(parts: Parts, components: int) -> list[Parts]:
    """The parts of each component.

    >>> split({"generator": {}, "generator.2": {}}, 2)
    [{'generator': {}}, {'generator': {}}]
    """
    plain = [part for part in parts if "." not in part]
    return [{part: parts[_named(part, number)] for part in plain} for number in range(components)]


def shared_out(noise: Noise, names: Sequence[str], components: int) -> list[Noise]:
    """The noise of each component: of these names its share of the rows, of the others all."""
    shares = {name: torch.tensor_split(noise[name], components) for name in names if name in noise}
    return [noise | {name: share[number] for name, share in shares.items()} for number in range(components)]


def _named(part: str, number: int) -> str:
    return part if number == 0 else f"{part}.{number + 1}"
