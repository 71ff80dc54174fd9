"""Inputs that have been through a network before: what stands in its place then."""

from dataclasses import dataclass

import torch
from torch import Tensor

from fewsure.types import Modulation, Params


@dataclass(frozen=True)
class Embedded:
    """A network without weights, whose inputs are the outputs of another one."""

    width: int

    maps = None
    modulated = ()
    transductive = False

    @property
    def inputs(self) -> tuple[int, ...]:
        return (self.width,)

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {}

    def init(self, generator: torch.Generator) -> Params:
        return {}

    def __call__(self, params: Params, x: Tensor, modulation: Modulation | None = None) -> Tensor:
        return x

    @property
    def embedding(self) -> "Embedded":
        return self

    def with_outputs(self, outputs: int) -> "Embedded":
        return self

    def given(self, support: Tensor) -> "Embedded":
        return self
