"""Transformer neural process (Nguyen and Grover, 2022, "Transformer neural processes", TNP-D).

context:     a token for each labelled example (x_i, y_i); in L transformer layers the examples attend to one another
question:    a token for x, which passes through the same layers and attends to the examples alone
density:     p(y | x, context) = Σ_k π_k N(y; m_k, s_k²), with π, m and s a linear function of the last layer's token
training:    min −ln p(y | x, context) over the query examples

A question sees no other question, and examples see no question. So a task is the keys and values of its examples in
each layer, and the order of the examples does not matter.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from fewsure.algorithms.parts.sets import Attention, linear, linear_init, named, normal_init, normalised
from fewsure.core.vectorise import for_each
from fewsure.errors import require
from fewsure.networks.losses import gaussian_log_likelihood
from fewsure.types import (
    Algorithm,
    Batch,
    Draw,
    Info,
    Kind,
    Mixture,
    Model,
    Noise,
    Params,
    Parts,
    Stage,
    Task,
)

RANGE = math.sqrt(3)
"""Inputs that are imagined lie in ± so many times `input_scale`: a uniform one has that spread."""
START_LOG_STD = -1.5
"""ln of the standard deviations that a density starts with, in shares of `target_scale`."""


@dataclass(frozen=True)
class Tnp(Algorithm):
    """A transformer neural process: one pass over the known examples and one over the questions, no step in a task.

    The density of a label is a mixture of Gaussians. A function is drawn by autoregression: some `imagined` examples
    get labels, one after the other, each from the density given those before it. The function is the mean label given
    all of them. Without imagined examples there is one function, the mean.
    """

    kinds: ClassVar[frozenset[Kind]] = frozenset({"regression"})
    own_density: ClassVar[bool] = True

    encoder_width: int = 64
    """Units of a token."""
    encoder_layers: int = 3
    """Layers of attention."""
    frequencies: int = 4
    """Sines and cosines of 1, 2, 4 … times an input that a token is made from, beside the input."""
    gaussians: int = 5
    """Gaussians of a density."""
    imagined: int = 0
    """Examples that a function is drawn by. Training must see contexts that are larger by so many."""
    input_scale: float = 1.0
    """The spread of inputs, which they are divided by; 1 for tables, whose columns have been scaled."""
    target_scale: float = 1.0
    """The spread of targets, which they are divided by."""
    noise_floor: float = 0.01
    """The least standard deviation of a label, in shares of `target_scale`."""

    def __post_init__(self) -> None:
        for name in ("encoder_width", "encoder_layers", "gaussians"):
            require(getattr(self, name) >= 1, name, "at least 1", getattr(self, name))
        for name in ("frequencies", "imagined"):
            require(getattr(self, name) >= 0, name, "at least 0", getattr(self, name))
        for name in ("input_scale", "target_scale", "noise_floor"):
            value = getattr(self, name)
            require(0 < value < math.inf, name, "a number above 0", value)

    def init(self, model: Model, generator: torch.Generator) -> Parts:
        width, count = self.encoder_width, self.gaussians
        places = model.network.inputs[0] * (1 + 2 * self.frequencies)
        head = linear_init(width, 3 * count, generator, scale=0.3)
        head["bias"][count : 2 * count] = torch.linspace(-1, 1, count)
        head["bias"][2 * count :] = START_LOG_STD
        entry = named("first", linear_init(places + 2, width, generator))
        entry |= named("second", linear_init(width, width, generator))
        layers = {name: Attention(width).init(generator) for name in self._layers}
        return {"entry": entry} | layers | {"head": named("last", normal_init(width)) | named("head", head)}

    def prediction_noise(self, model: Model, samples: int, support: int) -> Mapping[str, Draw]:
        if not self.imagined:
            return {}
        return {
            "place": Draw((samples, self.imagined, *model.network.inputs), "uniform"),
            "gaussian": Draw((samples, self.imagined), "uniform"),
            "label": Draw((samples, self.imagined)),
        }

    def adapt(self, meta: Parts, model: Model, support: Batch, noise: Noise) -> Parts:
        layer = Attention(self.encoder_width)
        memory: Params = {}
        members = self._entry(meta, support.x, support.y)
        for name in self._layers:
            keys, values = layer.memory(meta[name], members)
            memory |= {f"{name}.keys": keys, f"{name}.values": values}
            if name != self._layers[-1]:  # nobody attends to what the last layer makes of the examples
                members = layer(meta[name], members, (keys, values))
        return meta | {"memory": memory, "support": support._asdict()}

    def loss(self, meta: Parts, model: Model, task: Task, noise: Noise, stage: Stage) -> tuple[Tensor, Info]:
        posterior, y = self.adapt(meta, model, task.support, noise), task.query.y
        log_weights, means, stds = self._density(posterior, task.query.x)
        of_gaussians = gaussian_log_likelihood(means.unsqueeze(-1), stds.unsqueeze(-1), y.unsqueeze(-1))
        loss = -(log_weights + of_gaussians).logsumexp(-1).mean()
        mean = (log_weights.exp() * means).sum(-1, keepdim=True)
        return loss, {"loss": loss, "mse": (mean - y).square().mean()}

    def predict(self, posterior: Parts, model: Model, x: Tensor, noise: Noise) -> Tensor:
        if not self.imagined:
            return self._mean(posterior, x).unsqueeze(0)

        def function(noise: Noise, posterior: Parts) -> Tensor:
            known = Batch(**posterior["support"])
            for place, gaussian, label in zip(noise["place"], noise["gaussian"], noise["label"], strict=True):
                at = (self.input_scale * RANGE * (2 * place - 1)).unsqueeze(0)
                weights, means, stds, _ = self.predictive(self.adapt(posterior, model, known, {}), model, at, {})
                chosen = functional.one_hot((weights.cumsum(-1)[:, :-1] < gaussian).sum(-1), self.gaussians)
                y = ((means + stds * label) * chosen).sum(-1, keepdim=True)
                known = Batch(torch.cat([known.x, at]), torch.cat([known.y, y]))
            return self._mean(self.adapt(posterior, model, known, {}), x)

        functions: Tensor = for_each(function)(noise, posterior)
        return functions

    def predictive(self, posterior: Parts, model: Model, x: Tensor, noise: Noise) -> Mixture:
        log_weights, means, stds = self._density(posterior, x)
        return Mixture(log_weights.exp(), means, stds)

    @property
    def _layers(self) -> list[str]:
        return [f"layer{number}" for number in range(self.encoder_layers)]

    def _density(self, posterior: Parts, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """ln of the weights, means and standard deviations (N, K) of the Gaussians at each x."""
        layer, memory, head = Attention(self.encoder_width), posterior["memory"], posterior["head"]
        tokens = self._entry(posterior, x, None)
        for name in self._layers:
            tokens = layer(posterior[name], tokens, (memory[f"{name}.keys"], memory[f"{name}.values"]))
        logits, means, log_stds = linear(normalised(tokens, head, "last"), head, "head").chunk(3, -1)
        stds = self.noise_floor + log_stds.clamp(-6, 4).exp()
        return logits.log_softmax(-1), self.target_scale * means, self.target_scale * stds

    def _mean(self, posterior: Parts, x: Tensor) -> Tensor:
        """The mean label (N, 1) at each x."""
        log_weights, means, _ = self._density(posterior, x)
        return (log_weights.exp() * means).sum(-1, keepdim=True)

    def _entry(self, meta: Parts, x: Tensor, y: Tensor | None) -> Tensor:
        """Tokens (N, width) of labelled examples, or of questions."""
        x = x / self.input_scale
        angles = torch.cat([2.0**power * x for power in range(self.frequencies)], -1) if self.frequencies else x[:, :0]
        blank = torch.zeros_like(x[:, :1])
        label = [blank, blank] if y is None else [y / self.target_scale, blank + 1]
        entries = torch.cat([x, angles.sin(), angles.cos(), *label], -1)
        entry = meta["entry"]
        return linear(functional.gelu(linear(entries, entry, "first")), entry, "second")
