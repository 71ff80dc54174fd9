"""The weights of a network: their number, as one vector, and how they start."""

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from fewsure.types import Network, Params


def weight_count(network: Network) -> int:
    """n, the number of weights.

    >>> from fewsure.networks.mlp import Mlp
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


def modulated(hidden: Tensor, scale_and_shift: tuple[Tensor, Tensor]) -> Tensor:
    """scale · hidden + shift for each unit, or each map of an image.

    >>> modulated(torch.tensor([[1.0, 2.0]]), (torch.tensor([2.0, 1.0]), torch.tensor([0.0, 3.0])))
    tensor([[2., 5.]])
    """
    scale, shift = (value.reshape(-1, *[1] * (hidden.dim() - 2)) for value in scale_and_shift)
    return scale * hidden + shift


def uniform_by_fan_in(
    shapes: Mapping[str, tuple[int, ...]], fan_ins: Sequence[int], generator: torch.Generator
) -> Params:
    """Weights and biases of layer number i uniform in ±1/√fan_ins[i]; a name starts with its layer's number."""
    params: Params = {}
    for name, shape in shapes.items():
        fan_in = fan_ins[int(name.split(".")[0])]
        params[name] = (2 * torch.rand(shape, generator=generator) - 1) / math.sqrt(fan_in)
    return params
