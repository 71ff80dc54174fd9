"""Methods that read the known examples of a task and answer questions about others: no step is made in a task.

regression:       an example (x_i, y_i) is a token, a question x is one; the last token of a question gives
                  p(y | x, context) = Σ_k π_k N(y; m_k, s_k²)
classification:   tokens hold x alone, and examples know which others share their class; the last tokens give
                  p(c | x, context) = softmax over classes of −‖f(question) − mean of f(examples of c)‖² / width
with a process:   a Gaussian process from the training groups predicts N(m(x), s(x)²), and each example from the others;
                  tokens hold that, and p(y | x, context) = Σ_k π_k N(y; m(x) + s(x) m_k, s(x)² s_k²) starts at it
training:         min −ln p(y | x, context) over the query examples

A method says what examples make of one another (`read`), and what a question makes of them (`answer`).
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

import torch
from torch import Tensor
from torch.nn import functional

from fewsure.algorithms.parts.sets import linear, linear_init, named, normal_init, normalised
from fewsure.algorithms.parts.shares import log_shares, shares_init, with_shares
from fewsure.core.vectorise import for_each, indicators
from fewsure.errors import require
from fewsure.networks.losses import gaussian_log_likelihood
from fewsure.posteriors.prototypes import class_means
from fewsure.types import Algorithm, Batch, Draw, Info, Mixture, Model, Noise, Params, Parts, Stage, Task

RANGE = math.sqrt(3)
"""Inputs that are imagined lie in ± so many times `input_scale`: a uniform one has that spread."""
START_SPREAD = 0.3
"""How far apart the Gaussians of a density start around a process, in its standard deviations."""
START_LOG_STD = -1.5
"""ln of the standard deviations that a density starts with, in shares of `target_scale`."""


class Process(Protocol):
    """A method of closed form whose density of a label is one Gaussian."""

    def init(self, model: Model, generator: torch.Generator) -> Parts: ...
    def fit(self, meta: Parts, model: Model, groups: Sequence[Batch], generator: torch.Generator) -> Parts: ...
    def adapt(self, meta: Parts, model: Model, support: Batch, noise: Noise) -> Parts: ...
    def predictive(self, posterior: Parts, model: Model, x: Tensor, noise: Noise) -> Mixture: ...
    def left_out(self, meta: Parts, model: Model, support: Batch) -> Mixture:
        """The density of each example's label, given the others."""


@dataclass(frozen=True)
class InContext(Algorithm):
    """All but what becomes of tokens."""

    any_way: ClassVar[bool] = True
    own_density: ClassVar[bool] = True

    encoder_width: int = 64
    """Units of a token."""
    encoder_layers: int = 3
    """Layers that tokens pass through."""
    frequencies: int = 4
    """Sines and cosines of 1, 2, 4 … times an input that a token is made from, beside the input."""
    gaussians: int = 5
    """Gaussians of a density, in regression."""
    imagined: int = 0
    """Examples that a function is drawn by, in regression. Training must see contexts that are larger by so many."""
    input_scale: float = 1.0
    """The spread of inputs, which they are divided by; 1 for tables, whose columns have been scaled."""
    target_scale: float = 1.0
    """The spread of targets, which they are divided by."""
    noise_floor: float = 0.01
    """The least standard deviation of a label, in shares of `target_scale`, where no process has one."""

    def __post_init__(self) -> None:
        for name in ("encoder_width", "encoder_layers", "gaussians"):
            require(getattr(self, name) >= 1, name, "at least 1", getattr(self, name))
        for name in ("frequencies", "imagined"):
            require(getattr(self, name) >= 0, name, "at least 0", getattr(self, name))
        for name in ("input_scale", "target_scale", "noise_floor"):
            value = getattr(self, name)
            require(0 < value < math.inf, name, "a number above 0", value)

    @property
    def process(self) -> Process | None:
        """In regression, what training starts at."""
        return None

    def body_init(self, model: Model, generator: torch.Generator) -> Parts:
        """Initial weights of the layers that tokens pass through."""
        raise NotImplementedError

    def read(self, meta: Parts, tokens: Tensor, same: Tensor | None) -> tuple[Params, Tensor]:
        """A memory of the examples, for questions to read, and the examples' last tokens (m, width).

        `same` (m, m) is 1 for two examples of one class, and 0 for others; None in regression.
        """
        raise NotImplementedError

    def answer(self, meta: Parts, memory: Params, tokens: Tensor) -> Tensor:
        """The last tokens (N, width) of questions."""
        raise NotImplementedError

    def init(self, model: Model, generator: torch.Generator) -> Parts:
        width, count, values = model.network.inputs[0], self.gaussians, model.kind == "regression"
        images = {} if model.network.maps is None else {"embedding": model.network.embedding.init(generator)}
        process = self.process.init(model, generator) if values and self.process else {}
        entries = (model.network.width if images else width) * (1 + 2 * self.frequencies)
        entries += (5 if process else 2) * values
        width = self.encoder_width
        scale = 0.0 if process else 0.3 if values else 1.0
        head = linear_init(width, 3 * count if values else width, generator, scale=scale)
        if values:
            spread, log_std = (START_SPREAD, 0.0) if process else (1.0, START_LOG_STD)
            places = torch.linspace(-1, 1, count)
            head["bias"][count : 2 * count] = spread * (places - places.mean())
            head["bias"][2 * count :] = log_std
        entry = named("first", linear_init(entries, width, generator))
        entry |= named("second", linear_init(width, width, generator))
        head = named("last", normal_init(width)) | named("head", head)
        shares = {} if values else shares_init(model)
        return process | images | {"entry": entry} | self.body_init(model, generator) | {"head": head} | shares

    def fit(self, meta: Parts, model: Model, groups: Sequence[Batch], generator: torch.Generator) -> Parts:
        if self.process is None or model.kind == "classification":
            return meta
        return self.process.fit(meta, model, groups, generator)

    def prediction_noise(self, model: Model, samples: int, support: int) -> Mapping[str, Draw]:
        if not self.imagined or model.kind == "classification":
            return {}
        return {
            "place": Draw((samples, self.imagined, *model.network.inputs), "uniform"),
            "gaussian": Draw((samples, self.imagined), "uniform"),
            "label": Draw((samples, self.imagined)),
        }

    def adapt(self, meta: Parts, model: Model, support: Batch, noise: Noise) -> Parts:
        if model.kind == "regression":
            of_others = None if self.process is None else self.process.left_out(meta, model, support)
            memory, _ = self.read(meta, self._tokens(meta, model, support.x, support.y, of_others), None)
            meta = meta if self.process is None else self.process.adapt(meta, model, support, noise)
            return meta | {"memory": memory} | ({"support": support._asdict()} if self.imagined else {})
        tokens = self._tokens(meta, model, support.x, None)
        member = indicators(support.y, model.outputs).to(tokens.dtype)
        memory, tokens = self.read(meta, tokens, member @ member.T)
        means = class_means(self._ends(meta, tokens), support.y, model.outputs)
        return meta | {"memory": memory, "classes": {"mean": means} | log_shares(meta, support.y, model.outputs)}

    def loss(self, meta: Parts, model: Model, task: Task, noise: Noise, stage: Stage) -> tuple[Tensor, Info]:
        posterior, (x, y) = self.adapt(meta, model, task.support, noise), task.query
        if model.kind == "classification":
            loss = model.loss(self.predict(posterior, model, x, noise)[0], y).mean()
            return loss, {"loss": loss}
        log_weights, means, stds = self._density(posterior, model, x)
        of_gaussians = gaussian_log_likelihood(means.unsqueeze(-1), stds.unsqueeze(-1), y.unsqueeze(-1))
        loss = -(log_weights + of_gaussians).logsumexp(-1).mean()
        mean = (log_weights.exp() * means).sum(-1, keepdim=True)
        return loss, {"loss": loss, "mse": (mean - y).square().mean()}

    def predict(self, posterior: Parts, model: Model, x: Tensor, noise: Noise) -> Tensor:
        """Logits of classes (1, N, C); or the values of functions, drawn as the class says."""
        if model.kind == "classification":
            ends = self._answers(posterior, model, x)
            distances = (ends.unsqueeze(1) - posterior["classes"]["mean"]).square().mean(-1)
            return with_shares(-distances, posterior["classes"]).unsqueeze(0)
        if not self.imagined:
            return self._mean(posterior, model, x).unsqueeze(0)

        def function(noise: Noise, posterior: Parts) -> Tensor:
            known = Batch(**posterior["support"])
            for place, gaussian, label in zip(noise["place"], noise["gaussian"], noise["label"], strict=True):
                at = (self.input_scale * RANGE * (2 * place - 1)).unsqueeze(0)
                log_weights, means, stds = self._density(self.adapt(posterior, model, known, {}), model, at)
                below = log_weights.exp().cumsum(-1)[:, :-1] < gaussian
                chosen = indicators(below.sum(-1), self.gaussians)
                y = ((means + stds * label) * chosen).sum(-1, keepdim=True)
                known = Batch(torch.cat([known.x, at]), torch.cat([known.y, y]))
            return self._mean(self.adapt(posterior, model, known, {}), model, x)

        functions: Tensor = for_each(function)(noise, posterior)
        return functions

    def predictive(self, posterior: Parts, model: Model, x: Tensor, noise: Noise) -> Mixture:
        log_weights, means, stds = self._density(posterior, model, x)
        return Mixture(log_weights.exp(), means, stds)

    def _density(self, posterior: Parts, model: Model, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """ln of the weights, means and standard deviations (N, K) of the Gaussians at each x."""
        of_process = None if self.process is None else self.process.predictive(posterior, model, x, {})
        logits, means, log_stds = self._answers(posterior, model, x, of_process).chunk(3, -1)
        stds = log_stds.clamp(-6, 4).exp()
        if of_process is None:
            return logits.log_softmax(-1), self.target_scale * means, self.target_scale * (self.noise_floor + stds)
        return logits.log_softmax(-1), of_process.means + of_process.stds * means, of_process.stds * stds

    def _mean(self, posterior: Parts, model: Model, x: Tensor) -> Tensor:
        """The mean label (N, 1) at each x."""
        log_weights, means, _ = self._density(posterior, model, x)
        return (log_weights.exp() * means).sum(-1, keepdim=True)

    def _answers(self, posterior: Parts, model: Model, x: Tensor, of_process: Mixture | None = None) -> Tensor:
        tokens = self._tokens(posterior, model, x, None, of_process)
        return self._ends(posterior, self.answer(posterior, posterior["memory"], tokens))

    def _ends(self, meta: Parts, tokens: Tensor) -> Tensor:
        """Last tokens, through the head."""
        return linear(normalised(tokens, meta["head"], "last"), meta["head"], "head")

    def _tokens(
        self, meta: Parts, model: Model, x: Tensor, y: Tensor | None, of_process: Mixture | None = None
    ) -> Tensor:
        """Tokens (N, width) of examples; in regression y (N, 1) are their labels, None for questions."""
        if "embedding" in meta:
            x = model.network.embedding(meta["embedding"], x)
        x, entry = x / self.input_scale, meta["entry"]
        multiples = [2.0**power * x for power in range(self.frequencies)]
        entries = [x, *(multiple.sin() for multiple in multiples), *(multiple.cos() for multiple in multiples)]
        if model.kind == "regression":
            blank = torch.zeros_like(x[:, :1])
            entries += [blank, blank] if y is None else [y / self.target_scale, blank + 1]
            if of_process is not None:
                mean, std = of_process.means, of_process.stds
                missed = blank if y is None else ((y - mean) / std).asinh()
                entries += [mean / self.target_scale, (std / self.target_scale).log(), missed]
        hidden = functional.gelu(linear(torch.cat(entries, -1), entry, "first"))
        return linear(hidden, entry, "second")
