"""Functions of sets: pre-norm transformer layers. The order of the members does not matter."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from fewsure.errors import require
from fewsure.types import Params

WIDER = 2
"""How many times the units of a layer's own network exceed the width."""


def normalised(x: Tensor, params: Params, name: str) -> Tensor:
    """Layer norm. Its affine part stands outside the fused norm, which differentiates wrongly twice with it."""
    return functional.layer_norm(x, x.shape[-1:]) * params[f"{name}.scale"] + params[f"{name}.shift"]


def linear(x: Tensor, params: Params, name: str) -> Tensor:
    """x W + b."""
    return x @ params[f"{name}.weight"] + params[f"{name}.bias"]


def linear_init(fan_in: int, fan_out: int, generator: torch.Generator, scale: float = 1.0) -> Params:
    """A weight uniform in ±scale/√fan_in, and a bias of 0."""
    weight = (2 * torch.rand(fan_in, fan_out, generator=generator) - 1) * scale / math.sqrt(fan_in)
    return {"weight": weight, "bias": torch.zeros(fan_out)}


def named(name: str, params: Params) -> Params:
    """The parameters below a name."""
    return {f"{name}.{key}": value for key, value in params.items()}


def normal_init(width: int) -> Params:
    """The affine part of a layer norm that changes nothing."""
    return {"scale": torch.ones(width), "shift": torch.zeros(width)}


@dataclass(frozen=True)
class Attention:
    """One pre-norm transformer layer over the members of a set: attention, then a network of each member."""

    width: int
    heads: int = 4

    def __post_init__(self) -> None:
        require(self.width % self.heads == 0, "encoder_width", f"a multiple of {self.heads}", self.width)

    def init(self, generator: torch.Generator) -> Params:
        """Draw initial weights."""
        width = self.width
        layers = {
            "queries": linear_init(width, 3 * width, generator),
            "mix": linear_init(width, width, generator),
            "expand": linear_init(width, WIDER * width, generator),
            "contract": linear_init(WIDER * width, width, generator),
            "before": normal_init(width),
            "between": normal_init(width),
        }
        return {key: value for name, layer in layers.items() for key, value in named(name, layer).items()}

    def memory(self, params: Params, members: Tensor) -> tuple[Tensor, Tensor]:
        """The keys and values (heads, N, width / heads) of members, for others to attend to."""
        key, value = self._asked(params, members, slice(self.width, None))
        return key, value

    def __call__(
        self,
        params: Params,
        members: Tensor,
        memory: tuple[Tensor, Tensor] | None = None,
        bias: Tensor | None = None,
    ) -> Tensor:
        """(N, width) → (N, width): the members attend to one another, or each of them to the `memory` of m others.

        The `bias` (heads, N, m) is added to the scores.
        """
        if memory is None:
            query, key, value = self._asked(params, members, slice(None))
        else:
            (query,), (key, value) = self._asked(params, members, slice(self.width)), memory
        scores = query @ key.transpose(-1, -2) / math.sqrt(query.shape[-1])
        mixed = ((scores if bias is None else scores + bias).softmax(-1) @ value).transpose(0, 1).flatten(1)
        members = members + linear(mixed, params, "mix")
        hidden = functional.gelu(linear(normalised(members, params, "between"), params, "expand"))
        return members + linear(hidden, params, "contract")

    def _asked(self, params: Params, members: Tensor, columns: slice) -> Tensor:
        """Queries, keys and values, or those of them that the columns of their matrix name: (…, heads, N, ·)."""
        own = {f"queries.{name}": params[f"queries.{name}"][..., columns] for name in ("weight", "bias")}
        asked = linear(normalised(members, params, "before"), own, "queries")
        parts = asked.reshape(*asked.shape[:-1], -1, self.heads, self.width // self.heads)
        return parts.permute(1, 2, 0, 3)


@dataclass(frozen=True)
class Reader:
    """Attention over the members of a set, from `entries` numbers of each to `found` numbers of each."""

    entries: int
    found: int
    width: int
    layers: int

    def init(self, generator: torch.Generator, scale: float) -> Params:
        """Draw initial weights; `scale` is that of the last layer."""
        parts = {
            "head": linear_init(self.width, self.found, generator, scale),
            "entry": linear_init(self.entries, self.width, generator),
            "second": linear_init(self.width, self.width, generator),
            "last": normal_init(self.width),
        } | {f"layer{number}": Attention(self.width).init(generator) for number in range(self.layers)}
        return {key: value for name, params in parts.items() for key, value in named(name, params).items()}

    def __call__(self, params: Params, entries: Tensor, members: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """(the members after attention, what is found at each). `members` are those of the reader before, if any."""
        hidden = linear(functional.gelu(linear(entries, params, "entry")), params, "second")
        members = hidden if members is None else members + hidden
        for number in range(self.layers):
            name = f"layer{number}."
            own = {key.removeprefix(name): value for key, value in params.items() if key.startswith(name)}
            members = Attention(self.width)(own, members)
        return members, linear(normalised(members, params, "last"), params, "head")
