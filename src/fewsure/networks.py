"""Networks as functions of their weights. They hold hyper-parameters and no state, so `torch.func` can batch them."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from fewsure.errors import require
from fewsure.types import Network, Params


@dataclass(frozen=True)
class Mlp:
    """A fully connected network with ReLU between its layers.

    Weights start uniform in ±1/√fan_in. `sizes` = (inputs, hidden …, outputs).
    """

    sizes: tuple[int, ...]
    tanh: bool = False
    """Squash the outputs into (−1, 1), as the paper's generator does."""

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        shapes: dict[str, tuple[int, ...]] = {}
        for layer, (fan_in, fan_out) in enumerate(zip(self.sizes, self.sizes[1:], strict=False)):
            shapes[f"{layer}.weight"] = (fan_in, fan_out)
            shapes[f"{layer}.bias"] = (fan_out,)
        return shapes

    def init(self, generator: torch.Generator) -> Params:
        params: Params = {}
        for name, shape in self.shapes.items():
            fan_in = self.sizes[int(name.split(".")[0])]
            params[name] = (2 * torch.rand(shape, generator=generator) - 1) / math.sqrt(fan_in)
        return params

    def __call__(self, params: Params, x: Tensor) -> Tensor:
        last = len(self.sizes) - 2
        for layer in range(last + 1):
            x = x @ params[f"{layer}.weight"] + params[f"{layer}.bias"]
            if layer < last:
                x = x.relu()
        return x.tanh() if self.tanh else x


@dataclass(frozen=True)
class MlpOptions:
    """The fully connected base network that solves a task (ReLU, no normalisation)."""

    hidden: tuple[int, ...] = (40, 40)
    """Hidden units of each layer."""

    def __post_init__(self) -> None:
        require(all(units > 0 for units in self.hidden), "hidden", "layer sizes above 0", self.hidden)

    def build(self, inputs: int, outputs: int) -> Mlp:
        return Mlp((inputs, *self.hidden, outputs))


def weight_count(network: Network) -> int:
    """n, the number of weights.

    >>> weight_count(Mlp((1, 40, 40, 1)))
    1761
    """
    return sum(math.prod(shape) for shape in network.shapes.values())


def flatten(params: Params, dims: int = 0) -> Tensor:
    """All weights as one vector, behind `dims` leading dimensions that every tensor shares."""
    return torch.cat([tensor.flatten(dims) for tensor in params.values()], dim=-1)


def unflatten(network: Network, flat: Tensor) -> Params:
    """The weights that a vector (…, n) holds, each behind the same leading dimensions."""
    sizes = [math.prod(shape) for shape in network.shapes.values()]
    pieces = torch.split(flat, sizes, dim=-1)
    return {
        name: piece.reshape(*piece.shape[:-1], *shape)
        for (name, shape), piece in zip(network.shapes.items(), pieces, strict=True)
    }
