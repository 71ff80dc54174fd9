"""Networks as functions of their weights. They hold hyper-parameters and no state, so `torch.func` can batch them."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

from fewsure.core.devices import rounded_type
from fewsure.core.gradient import ROUNDED
from fewsure.errors import require
from fewsure.kernels.fused import Activation, conv_block, fused_kernels_fit
from fewsure.kernels.fused import layer as fused_layer
from fewsure.types import Network, Params

ALIGNED = 8
"""Rows of a matrix product should hold a multiple of so many numbers: GPUs are several times slower otherwise."""


def layer(x: Tensor, weight: Tensor, bias: Tensor, activation: Activation) -> Tensor:
    """act(x W + b)."""
    x, weight = _same_type(x, weight)
    if fused_kernels_fit(x):
        return fused_layer(x, weight, bias, activation)
    mapped = x @ weight
    mapped = mapped + (bias if bias.dtype == mapped.dtype else bias.to(mapped.dtype))
    return mapped if activation == "none" else mapped.relu() if activation == "relu" else mapped.tanh()


def product(x: Tensor, matrix: Tensor) -> Tensor:
    """x @ matrix, with few bits if either has few."""
    x, matrix = _same_type(x, matrix)
    return x @ matrix


def _same_type(x: Tensor, matrix: Tensor) -> tuple[Tensor, Tensor]:
    if x.dtype == matrix.dtype:  # torch.export cannot trace a conversion that does nothing
        return x, matrix
    return x.bfloat16(), matrix.bfloat16()


@dataclass(frozen=True)
class Mlp:
    """A fully connected network with ReLU between its layers.

    Weights start uniform in ±1/√fan_in. `sizes` = (inputs, hidden …, outputs).
    """

    sizes: tuple[int, ...]
    last: Activation = "none"
    """What follows the last layer."""
    scaled: bool = False
    """Each layer divides its inputs by √fan_in, and its weights start √fan_in times as large. The functions to start
    with are the same, but what a step of the weights does to them no longer grows with the widths."""
    centred: bool = False
    """The mean of a batch is taken off each of its inputs: what tells its examples apart is left."""

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        shapes: dict[str, tuple[int, ...]] = {}
        for layer, (fan_in, fan_out) in enumerate(zip(self.sizes, self.sizes[1:], strict=False)):
            shapes[f"{layer}.weight"] = (fan_in, fan_out)
            shapes[f"{layer}.bias"] = (fan_out,)
        return shapes

    def init(self, generator: torch.Generator) -> Params:
        params = _initial(self.shapes, self.sizes, generator)
        if self.scaled:
            weights = {f"{layer}.weight": fan_in for layer, fan_in in enumerate(self.sizes[:-1])}
            params |= {name: math.sqrt(fan_in) * params[name] for name, fan_in in weights.items()}
        return params

    def aligned(self, params: Params) -> Params:
        """The same function, its first layer padded so that the rows of its inputs are aligned for matrix units."""
        return params | {"0.weight": functional.pad(params["0.weight"], (0, 0, 0, -self.sizes[0] % ALIGNED))}

    def padded(self, params: Params, x: Tensor) -> Tensor:
        """Inputs as `aligned` weights take them."""
        padding = len(params["0.weight"]) - x.shape[-1]
        return functional.pad(x, (0, padding)) if padding else x

    def __call__(self, params: Params, x: Tensor) -> Tensor:
        last = len(self.sizes) - 2
        if self.centred:
            expected = "at least 2 examples, which are seen without their mean (or train with --no-centred)"
            require(len(x) >= 2, "x", expected, len(x))
            x = x - x.mean(0)
        x = self.padded(params, x)
        for number in range(last + 1):
            activation: Activation = "relu" if number < last else self.last
            x = layer(self.entering(x, number), params[f"{number}.weight"], params[f"{number}.bias"], activation)
        return x

    def entering(self, x: Tensor, number: int) -> Tensor:
        """What a layer multiplies by its weights, of what comes out of the one before it."""
        return x / math.sqrt(self.sizes[number]) if self.scaled else x

    def rounded(self, params: Params) -> Params:
        """The same weights for several calls: if one of its matrices is large enough to be rounded, so are all of them.

        Each call would round them otherwise, since a product takes both its inputs as the shorter of them is. A fused
        step leaves the rounded matrix beside the full one.
        """
        matrices = [name for name in self.shapes if name.endswith("weight")]
        dtypes = [rounded_type(params[name]) for name in matrices]
        dtype = torch.bfloat16 if torch.bfloat16 in dtypes else dtypes[0]
        short = {}
        for name in matrices:
            left = params.get(name + ROUNDED)
            short[name] = left if left is not None and left.dtype == dtype else params[name].to(dtype)
        return {name: short.get(name, params[name]) for name in self.shapes}

    @property
    def embedding(self) -> "Mlp":
        return Mlp(self.sizes[:-1], centred=self.centred)

    @property
    def transductive(self) -> bool:
        return self.centred

    @property
    def pixels(self) -> int:
        return 0


@dataclass(frozen=True)
class MlpOptions:
    """The fully connected base network that solves a task (ReLU, no normalisation)."""

    hidden: tuple[int, ...] = (40, 40)
    """Hidden units of each layer."""

    def __post_init__(self) -> None:
        require(all(units > 0 for units in self.hidden), "hidden", "layer sizes above 0", self.hidden)

    def build(self, shape: tuple[int, ...], outputs: int) -> Mlp:
        """The network for inputs of a shape."""
        (inputs,) = shape
        return Mlp((inputs, *self.hidden, outputs))


Norm = Literal["batch", "instance", "none"]


@dataclass(frozen=True)
class Conv4:
    """Four blocks of 3×3 convolution, norm, ReLU and 2×2 max-pooling, and a linear layer (section 5.2).

    The norm has no weights of its own, which is what the paper's weight counts imply. With `batch`, images are
    normalised by the statistics of the batch they come in, in adaptation and in testing: predictions for a query set
    then depend on the whole of it. `instance` normalises each image by itself.

    >>> weight_count(Conv4((3, 84, 84), outputs=5)), weight_count(Conv4((1, 28, 28), outputs=5))
    (32645, 28229)
    """

    shape: tuple[int, int, int]
    """Channels, height and width of an image."""
    outputs: int | None
    """Of the linear layer; None for a network that ends before it."""
    filters: int = 32
    norm: Norm = "batch"

    BLOCKS = 4

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        shapes: dict[str, tuple[int, ...]] = {}
        for block in range(self.BLOCKS):
            shapes[f"{block}.weight"] = (self.filters, self.filters if block else self.shape[0], 3, 3)
            shapes[f"{block}.bias"] = (self.filters,)
        if self.outputs is not None:
            shapes[f"{self.BLOCKS}.weight"] = (self._embedded, self.outputs)
            shapes[f"{self.BLOCKS}.bias"] = (self.outputs,)
        return shapes

    def init(self, generator: torch.Generator) -> Params:
        fan_ins = [9 * self.shape[0], *(3 * [9 * self.filters]), self._embedded]
        return _initial(self.shapes, fan_ins, generator)

    def __call__(self, params: Params, x: Tensor) -> Tensor:
        x = (self._fused_blocks if self._fuses(x) else self._blocks)(params, x).flatten(1)
        return x if self.outputs is None else x @ params[f"{self.BLOCKS}.weight"] + params[f"{self.BLOCKS}.bias"]

    @property
    def embedding(self) -> "Conv4":
        return dataclasses.replace(self, outputs=None)

    @property
    def transductive(self) -> bool:
        return self.norm == "batch"

    @property
    def pixels(self) -> int:
        _, height, width = self.shape
        return height * width

    @property
    def _embedded(self) -> int:
        """Numbers per image before the linear layer."""
        _, height, width = self.shape
        pixels = (height >> self.BLOCKS) * (width >> self.BLOCKS)  # each block halves both, rounding down
        return self.filters * pixels

    def _blocks(self, params: Params, x: Tensor) -> Tensor:
        for block in range(self.BLOCKS):
            x = functional.conv2d(x, params[f"{block}.weight"], params[f"{block}.bias"], padding=1)
            x = functional.max_pool2d(self._normalised(x).relu(), 2)
        return x

    def _fuses(self, x: Tensor) -> bool:
        return self.norm == "batch" and self.filters in (16, 32, 64, 128) and fused_kernels_fit(x)

    def _fused_blocks(self, params: Params, x: Tensor) -> Tensor:
        """The same function by kernels of our own, on a GPU. The bias has no part in it: the norm takes it out."""
        x = x.permute(0, 2, 3, 1)
        for block in range(self.BLOCKS):
            x = conv_block(x, params[f"{block}.weight"], of_input=block > 0)
        return x.permute(0, 3, 1, 2)

    def _normalised(self, x: Tensor) -> Tensor:
        # Fused norms differentiate twice under vmap only without their affine part, which is absent here.
        if self.norm == "batch":
            return functional.batch_norm(x, None, None, training=True)
        return functional.instance_norm(x) if self.norm == "instance" else x


@dataclass(frozen=True)
class Conv4Options:
    """The convolutional base network that solves a task: four blocks, and a linear layer."""

    filters: int = 32
    """Filters of each convolution."""
    norm: Norm = "batch"
    """`batch` normalises a query set by its own statistics, so that a prediction depends on the other queries
    (transductive, as in the paper); `instance` normalises each image by itself; `none` does not."""

    SMALLEST = 2**Conv4.BLOCKS

    def __post_init__(self) -> None:
        require(self.filters >= 1, "filters", "at least 1", self.filters)

    def build(self, shape: tuple[int, ...], outputs: int) -> Conv4:
        """The network for images of a shape."""
        channels, height, width = shape
        fits = min(height, width) >= self.SMALLEST
        require(fits, "data", f"images of {self.SMALLEST} pixels or more on each side", f"{height}×{width}")
        return Conv4((channels, height, width), outputs, self.filters, self.norm)


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


def _initial(shapes: Mapping[str, tuple[int, ...]], fan_ins: Sequence[int], generator: torch.Generator) -> Params:
    """Weights and biases of layer number i uniform in ±1/√fan_ins[i]; a name starts with its layer's number."""
    params: Params = {}
    for name, shape in shapes.items():
        fan_in = fan_ins[int(name.split(".")[0])]
        params[name] = (2 * torch.rand(shape, generator=generator) - 1) / math.sqrt(fan_in)
    return params
