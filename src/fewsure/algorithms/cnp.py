"""Conditional neural process (Garnelo et al., 2018, "Conditional neural processes").

examples:   r = mean over the examples of a network of each token
questions:  a network of the question's token and r

Each network is L residual layers. Examples count by their share alone: a context that is given twice predicts the same.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from fewsure.algorithms.parts.in_context import InContext
from fewsure.algorithms.parts.sets import linear, linear_init, named, normal_init, normalised
from fewsure.types import Model, Params, Parts


@dataclass(frozen=True)
class Cnp(InContext):
    """A conditional neural process: the known examples are one mean vector, which each question reads.

    Densities, functions and classes are as in `tnp`, which attends to single examples and misses them less.
    """

    def body_init(self, model: Model, generator: torch.Generator) -> Parts:
        width = self.encoder_width
        pooled = named("pooled", linear_init(width, width, generator))
        return {
            "encoder": self._layers_init(generator),
            "decoder": self._layers_init(generator) | pooled,
        }

    def read(self, meta: Parts, tokens: Tensor, same: Tensor | None) -> tuple[Params, Tensor]:
        tokens = self._layers(meta["encoder"], tokens)
        return {"mean": tokens.mean(0)}, tokens

    def answer(self, meta: Parts, memory: Params, tokens: Tensor) -> Tensor:
        return self._layers(meta["decoder"], tokens + linear(memory["mean"], meta["decoder"], "pooled"))

    def _layers_init(self, generator: torch.Generator) -> Params:
        width = self.encoder_width
        params: Params = {}
        for number in range(self.encoder_layers):
            params |= named(f"{number}.before", normal_init(width))
            params |= named(f"{number}.expand", linear_init(width, 2 * width, generator))
            params |= named(f"{number}.contract", linear_init(2 * width, width, generator))
        return params

    def _layers(self, params: Params, tokens: Tensor) -> Tensor:
        for number in range(self.encoder_layers):
            hidden = linear(normalised(tokens, params, f"{number}.before"), params, f"{number}.expand")
            tokens = tokens + linear(functional.gelu(hidden), params, f"{number}.contract")
        return tokens
