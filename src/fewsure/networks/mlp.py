"""Fully connected networks."""

import dataclasses
import math
from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

from fewsure.core.devices import in_full, rounded_type
from fewsure.core.vectorise import for_components
from fewsure.errors import require
from fewsure.kernels.fused import Activation, fused_kernels_fit
from fewsure.kernels.fused import layer as fused_layer
from fewsure.kernels.rounding import ROUNDED
from fewsure.networks.weights import modulated, uniform_by_fan_in
from fewsure.types import Modulation, Params

ALIGNED = 8
"""Rows of a matrix product should hold a multiple of so many numbers: GPUs are several times slower otherwise."""


def layer(x: Tensor, weight: Tensor, bias: Tensor, activation: Activation) -> Tensor:
    """act(x W + b), of one network or of K whose weights (K, in, out) and inputs (K, N, in) are stacked."""
    x, weight = _same_type(x, weight)
    if fused_kernels_fit(x):
        act = partial(fused_layer, activation=activation)
        return act(x, weight, bias) if weight.dim() == 2 else for_components(act, x, weight, bias)
    mapped = product(x, weight)
    bias = bias if bias.dim() == 1 else bias.unsqueeze(-2)
    mapped = mapped + (bias if bias.dtype == mapped.dtype else bias.to(mapped.dtype))
    return mapped if activation == "none" else mapped.relu() if activation == "relu" else mapped.tanh()


def product(x: Tensor, matrix: Tensor) -> Tensor:
    """x @ matrix, with few bits if either has few; one product for each of K networks."""
    x, matrix = _same_type(x, matrix)
    return x @ matrix if matrix.dim() == 2 else for_components(torch.matmul, x, matrix)


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
    """The activation after the last layer."""
    activation: Literal["relu", "silu"] = "relu"
    """The activation after the other layers."""
    scaled: bool = False
    """Each layer divides its inputs by √fan_in, and its weights start √fan_in times as large. The initial
    functions are the same, and the effect of a step of the weights does not grow with the widths."""
    centred: bool = False
    """Subtract the mean of a batch from each of its inputs: the differences between its examples are left."""
    active_inputs: int | None = None
    """Inputs of an example that are not 0, on average, where these are bits; None for all."""

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        shapes: dict[str, tuple[int, ...]] = {}
        for layer, (fan_in, fan_out) in enumerate(zip(self.sizes, self.sizes[1:], strict=False)):
            shapes[f"{layer}.weight"] = (fan_in, fan_out)
            shapes[f"{layer}.bias"] = (fan_out,)
        return shapes

    def init(self, generator: torch.Generator) -> Params:
        fan_ins = (self.active_inputs or self.sizes[0], *self.sizes[1:])
        params = uniform_by_fan_in(self.shapes, fan_ins, generator)
        if self.scaled:
            weights = {f"{layer}.weight": fan_in for layer, fan_in in enumerate(self.sizes[:-1])}
            params |= {name: math.sqrt(fan_in) * params[name] for name, fan_in in weights.items()}
        return params

    def aligned(self, params: Params) -> Params:
        """The same function, its first layer padded so that the rows of its inputs are aligned for matrix units."""
        return params | {"0.weight": functional.pad(params["0.weight"], (0, 0, 0, -self.sizes[0] % ALIGNED))}

    def padded(self, params: Params, x: Tensor) -> Tensor:
        """Inputs as `aligned` weights take them."""
        padding = params["0.weight"].shape[-2] - x.shape[-1]
        return functional.pad(x, (0, padding)) if padding else x

    @property
    def inputs(self) -> tuple[int, ...]:
        return self.sizes[:1]

    @property
    def width(self) -> int:
        return self.sizes[-2]

    @property
    def maps(self) -> None:
        return None

    @property
    def modulated(self) -> tuple[int, ...]:
        return self.sizes[1:-1]

    def __call__(self, params: Params, x: Tensor, modulation: Modulation | None = None) -> Tensor:
        last = len(self.sizes) - 2
        if self.centred:
            expected = "at least 2 examples, which are seen without their mean (or train with --no-centred)"
            require(len(x) >= 2, "x", expected, len(x))
            x = x - x.mean(0)
        x = self.padded(params, x)
        for number in range(last + 1):
            given, bias, entering = params[f"{number}.weight"], params[f"{number}.bias"], self.entering(x, number)
            bits = number == 0 and self.active_inputs is not None  # which are exact in bfloat16
            weight = given.to(rounded_type(given)) if bits else given
            if number == last:
                x = layer(entering, weight, bias, self.last)
            elif modulation is None and self.activation == "relu":
                x = layer(entering, weight, bias, "relu")
            else:
                hidden = layer(entering, weight, bias, "none")
                hidden = hidden if modulation is None else modulated(hidden, modulation[number])
                x = hidden.relu() if self.activation == "relu" else functional.silu(hidden)
            x = x if weight.dtype == given.dtype else in_full(x)
        return x

    def entering(self, x: Tensor, number: int) -> Tensor:
        """The output of one layer as the next multiplies it by its weights."""
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
        return dataclasses.replace(self, sizes=self.sizes[:-1])

    def with_outputs(self, outputs: int) -> "Mlp":
        return dataclasses.replace(self, sizes=(*self.sizes[:-1], outputs))

    @property
    def transductive(self) -> bool:
        return self.centred

    def given(self, support: Tensor) -> "Mlp":
        return self


@dataclass(frozen=True)
class MlpOptions:
    """The fully connected base network that solves a task, without normalisation."""

    hidden: tuple[int, ...] = (40, 40)
    """Hidden units of each layer."""
    activation: Literal["relu", "silu"] = "relu"
    """The activation after each hidden layer: `relu`, or the smooth `silu`, x·sigmoid(x)."""
    active_inputs: int | None = None
    """Where inputs are bits, how many of an example are not 0: the first weights start as large as so few ask for."""

    def __post_init__(self) -> None:
        require(all(units > 0 for units in self.hidden), "hidden", "layer sizes above 0", self.hidden)
        active = self.active_inputs
        require(active is None or active >= 1, "active_inputs", "at least 1, or none", active)

    def build(self, shape: tuple[int, ...], outputs: int) -> Mlp:
        """The network for inputs of a shape."""
        (inputs,) = shape
        return Mlp((inputs, *self.hidden, outputs), activation=self.activation, active_inputs=self.active_inputs)
