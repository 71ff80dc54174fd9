"""Transformer neural process (Nguyen and Grover, 2022, "Transformer neural processes", TNP-D).

examples:   layer l = 1..L: attention to the examples' keys and values K_l, V_l, then a network of each token
questions:  layer l = 1..L: the same weights, attention to K_l, V_l alone

A question sees no other question, and examples see no question. So a task is the keys and values of its examples in
each layer, and the order of the examples does not matter. Classes enter as a number that each head adds to the scores
between examples of one class. So the numbering of classes does not matter either, and there may be any number of them.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from fewsure.algorithms.gp import Gp
from fewsure.algorithms.parts.in_context import InContext
from fewsure.algorithms.parts.sets import Attention
from fewsure.types import Model, Params, Parts

SAME_CLASS = 1.0
"""The number that a head starts with."""


@dataclass(frozen=True)
class Tnp(InContext):
    """A transformer neural process: one pass over the known examples and one over the questions, no step in a task.

    The density of a label is a mixture of Gaussians. A function is drawn by autoregression: some `imagined` examples
    get labels, one after the other, each from the density given those before it. The function is the mean label given
    all of them. Without imagined examples there is one function, the mean. Classes have one function.
    """

    kernels: tuple[str, ...] = ()
    """For regression, kernels of a Gaussian process from the training groups, as in `gp`. Tokens hold its predictions,
    and training starts at its densities. Without kernels there is no process."""

    def __post_init__(self) -> None:
        super().__post_init__()
        _ = self.process  # which checks the names of kernels

    @property
    def process(self) -> Gp | None:
        return Gp(kernels=self.kernels) if self.kernels else None

    def body_init(self, model: Model, generator: torch.Generator) -> Parts:
        layer = Attention(self.encoder_width)
        parts = {name: layer.init(generator) for name in self._layers}
        if model.kind == "classification":
            for params in parts.values():
                params["same"] = torch.full((layer.heads, 1, 1), SAME_CLASS)
        return parts

    def read(self, meta: Parts, tokens: Tensor, same: Tensor | None) -> tuple[Params, Tensor]:
        layer = Attention(self.encoder_width)
        memory: Params = {}
        for name in self._layers:
            keys, values = layer.memory(meta[name], tokens)
            memory |= {f"{name}.keys": keys, f"{name}.values": values}
            bias = None if same is None else meta[name]["same"] * same
            tokens = layer(meta[name], tokens, (keys, values), bias)
        return memory, tokens

    def answer(self, meta: Parts, memory: Params, tokens: Tensor) -> Tensor:
        layer = Attention(self.encoder_width)
        for name in self._layers:
            tokens = layer(meta[name], tokens, (memory[f"{name}.keys"], memory[f"{name}.values"]))
        return tokens

    @property
    def _layers(self) -> list[str]:
        return [f"layer{number}" for number in range(self.encoder_layers)]
