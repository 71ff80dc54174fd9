"""The convolutional base network of the paper."""

import dataclasses
import math
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

from fewsure.core.devices import in_full, rounded_on_cpu
from fewsure.errors import FewsureError, require
from fewsure.kernels.fused import conv_block, fused_kernels_fit
from fewsure.networks.weights import modulated, uniform_by_fan_in
from fewsure.types import Modulation, Params

Norm = Literal["batch", "support", "instance", "none"]
EPSILON = 1e-5
"""Added to the variance by which a norm divides."""


@dataclass(frozen=True)
class Conv4:
    """Four blocks of 3×3 convolution, norm, ReLU and 2×2 max-pooling, and a linear layer (section 5.2).

    The norm has no weights of its own, which is what the paper's weight counts imply. With `batch`, images are
    normalised by the statistics of their batch, in adaptation and in testing. Predictions for a query set
    then depend on the whole of it. With `support`, the statistics of the support set normalise both sets. `instance`
    normalises each image by itself.

    >>> from fewsure.networks.weights import weight_count
    >>> weight_count(Conv4((3, 84, 84), outputs=5)), weight_count(Conv4((1, 28, 28), outputs=5))
    (32645, 28229)
    """

    shape: tuple[int, int, int]
    """Channels, height and width of an image."""
    outputs: int | None
    """Outputs of the linear layer; None for a network that ends before it."""
    filters: int = 32
    norm: Norm = "batch"
    strided: bool = False
    """Whether the first block is a 5×5 convolution with stride 2, without pooling."""
    support: Tensor | None = field(default=None, compare=False, repr=False)
    """The support images of the task, whose statistics the norm `support` takes; `given` sets them."""
    body: Params | None = field(default=None, compare=False, repr=False)
    """The initial weights of the blocks, where they have been trained before."""

    BLOCKS = 4

    @property
    def inputs(self) -> tuple[int, int, int]:
        return self.shape

    @property
    def maps(self) -> tuple[int, int, int]:
        return self.shape

    @property
    def modulated(self) -> tuple[int, ...]:
        return (self.filters,) * self.BLOCKS

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        shapes: dict[str, tuple[int, ...]] = {}
        for block in range(self.BLOCKS):
            size = 5 if self._strides(block) else 3
            shapes[f"{block}.weight"] = (self.filters, self.filters if block else self.shape[0], size, size)
            shapes[f"{block}.bias"] = (self.filters,)
        if self.outputs is not None:
            shapes[f"{self.BLOCKS}.weight"] = (self.width, self.outputs)
            shapes[f"{self.BLOCKS}.bias"] = (self.outputs,)
        return shapes

    def init(self, generator: torch.Generator) -> Params:
        fan_ins = [math.prod(self.shapes[f"{block}.weight"][1:]) for block in range(self.BLOCKS)] + [self.width]
        params = uniform_by_fan_in(self.shapes, fan_ins, generator)
        params |= self._keeping_size(params) if self.norm == "none" else {}
        return params | (self.body or {})

    def __call__(self, params: Params, x: Tensor, modulation: Modulation | None = None) -> Tensor:
        if modulation is None and self._fuses(x):
            x = self._fused_blocks(params, x).flatten(1)
        else:
            x = self._blocks(params, x, modulation).flatten(1)
        return x if self.outputs is None else x @ params[f"{self.BLOCKS}.weight"] + params[f"{self.BLOCKS}.bias"]

    @property
    def embedding(self) -> "Conv4":
        return dataclasses.replace(self, outputs=None)

    def with_outputs(self, outputs: int) -> "Conv4":
        return dataclasses.replace(self, outputs=outputs)

    @property
    def transductive(self) -> bool:
        return self.norm == "batch"

    def given(self, support: Tensor) -> "Conv4":
        return dataclasses.replace(self, support=support) if self.norm == "support" else self

    @property
    def width(self) -> int:
        _, height, width = self.shape
        up = 1 if self.strided else 0  # each block halves both, rounding down, but a stride rounds up
        pixels = ((height + up) >> self.BLOCKS) * ((width + up) >> self.BLOCKS)
        return self.filters * pixels

    def _blocks(self, params: Params, x: Tensor, modulation: Modulation | None) -> Tensor:
        alone = self.norm != "support" or x is self.support  # the images bring the statistics that they need
        maps = x if alone else torch.cat([self._support_images, x])
        maps = _channels_last(maps) if maps.device.type == "cpu" else maps
        dtype = rounded_on_cpu(maps)
        for block in range(self.BLOCKS):
            weight = params[f"{block}.weight"].to(dtype)
            bias = params[f"{block}.bias"].to(dtype) if self.norm == "none" else None  # a norm takes it out
            if self._strides(block):
                maps = functional.conv2d(maps.to(dtype), weight, bias, stride=2, padding=2)
            else:
                maps = functional.conv2d(maps.to(dtype), weight, bias, padding=1)
            maps = maps if self.norm == "none" else self._normalised(maps)
            maps = maps if modulation is None else modulated(maps, modulation[block])
            maps = maps if self._strides(block) else functional.max_pool2d(maps, 2)  # which commutes with the ReLU
            maps = maps.relu()
        maps = in_full(maps)
        return maps if alone else maps[-len(x) :]

    @property
    def _support_images(self) -> Tensor:
        if self.support is None:
            raise FewsureError("expected a network with the norm `support` to be given the support set: call `given`")
        return self.support

    def _strides(self, block: int) -> bool:
        return self.strided and block == 0

    def _keeping_size(self, params: Params) -> Params:
        """Weights of variance 2/fan_in (He et al., 2015), for convolutions of inputs that no norm scales."""
        weights = {f"{block}.weight": math.sqrt(6) * params[f"{block}.weight"] for block in range(self.BLOCKS)}
        return weights | {f"{block}.bias": torch.zeros(self.filters) for block in range(self.BLOCKS)}

    def _fuses(self, x: Tensor) -> bool:
        return self.norm == "batch" and not self.strided and self.filters in (16, 32, 64, 128) and fused_kernels_fit(x)

    def _fused_blocks(self, params: Params, x: Tensor) -> Tensor:
        """The same function by kernels of our own, on a GPU."""
        x = x.permute(0, 2, 3, 1)
        for block in range(self.BLOCKS):
            x = conv_block(x, params[f"{block}.weight"], input_gradient=block > 0)
        return x.permute(0, 3, 1, 2)

    def _normalised(self, x: Tensor) -> Tensor:
        # Fused norms differentiate twice under vmap only without their affine part, which is absent here.
        if self.norm == "batch":
            return functional.batch_norm(x, None, None, training=True)  # rounded maps have statistics in full
        if self.norm == "support":
            return _normalised_by(in_full(x), len(self._support_images))
        return functional.instance_norm(in_full(x)) if self.norm == "instance" else x


def _normalised_by(x: Tensor, seen: int) -> Tensor:
    """Maps less the mean, and divided by the standard deviation, that each channel has in the first `seen` of them."""
    mean = x[:seen].mean((0, 2, 3), keepdim=True)
    variance = (x[:seen] - mean).square().mean((0, 2, 3), keepdim=True)  # of channels last, var_mean is 20 × slower
    return (x - mean) * (variance + EPSILON).rsqrt()


def _channels_last(maps: Tensor) -> Tensor:
    """The same maps with the channels of a pixel side by side, as a CPU convolves and pools them fastest."""
    return maps.movedim(1, -1).clone(memory_format=torch.contiguous_format).movedim(-1, 1)


@dataclass(frozen=True)
class Conv4Options:
    """The convolutional base network that solves a task: four blocks, and a linear layer."""

    filters: int = 32
    """Filters of each convolution."""
    norm: Norm = "batch"
    """`batch` normalises a query set by its own statistics, so that a prediction depends on the other queries
    (transductive, as in the paper). `support` normalises both sets by the statistics of the support set. `instance`
    normalises each image by itself; `none` does not."""

    strided: bool = False
    """Make the first block a 5×5 convolution with stride 2 instead of a 3×3 convolution and pooling: on a CPU, two to
    three times faster."""

    SMALLEST = 2**Conv4.BLOCKS

    def __post_init__(self) -> None:
        require(self.filters >= 1, "filters", "at least 1", self.filters)

    def build(self, shape: tuple[int, ...], outputs: int) -> Conv4:
        """The network for images of a shape."""
        channels, height, width = shape
        fits = min(height, width) >= self.SMALLEST
        require(fits, "data", f"images of {self.SMALLEST} pixels or more on each side", f"{height}×{width}")
        return Conv4((channels, height, width), outputs, self.filters, self.norm, self.strided)
