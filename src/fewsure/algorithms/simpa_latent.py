"""SImPa with a latent posterior: the generator of all tasks stays, and a task moves what the generator is given.

prior:        z ~ p(z) = N(0, I),  w = G(z; θ)
posterior:    z ~ q(z) = N(μ, diag σ²),  the same G, so that KL[G#q ‖ G#p] ≤ KL[q ‖ p] = ½ Σ (σ² + μ² − 1 − ln σ²)
lower level:  (μ, ln σ) = mean over examples of attention over the support set (x_i, y_i), and then, R times,
              (μ, ln σ) ← (μ, ln σ) + mean over examples of attention over (x_i, y_i, y_i − f(x_i; G(μ)), μ, ln σ)
upper level:  min_θ E_task  −ln 1/S Σ_s p(query | G(z_s)) per example  +  β KL[q ‖ p]                 (`predictive`)
              min_θ E_task  Theorem 1's bound on E_q[ℓ] from the m support examples, ℓ in [0, 1]      (`theorem-1`)

θ does not depend on a new task's examples. So Theorem 1 holds for that task with the prior G#p as it stands, whatever
the objective was. An encoder may see all of them: the theorem holds for every q at once.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import count
from typing import ClassVar, Literal

import torch
from torch import Tensor
from torch.nn import functional

from fewsure.algorithms.parts.sets import Attention, linear, linear_init, named, normal_init, normalised
from fewsure.errors import require
from fewsure.networks.losses import gaussian_log_likelihood
from fewsure.posteriors import outputs
from fewsure.posteriors.latent import Latent, WeightGenerator, bounded, spread_init
from fewsure.theory.pac_bayes import theorem_1
from fewsure.types import (
    Algorithm,
    Batch,
    Draw,
    Info,
    Kind,
    Mixture,
    Model,
    Noise,
    NoiseSpec,
    Params,
    Parts,
    Stage,
    Task,
)

FAR = 3.0
"""Residuals that a refinement sees are cut there, in shares of `target_scale`."""
START_LOG_STD = -1.0
"""ln σ that the encoder starts with."""
BOUND_EXAMPLES = 32
"""Support examples, chosen at random, whose loss stands for Theorem 1 in training; m stays their whole number."""
PREDICTIVE_SHARE = 0.35
"""The share of the updates over which the weight of the predictive objective beside Theorem 1 falls from 1 to 0."""


@dataclass(frozen=True)
class SimpaLatent(Algorithm):
    """SImPa with a latent posterior: a few numbers per task decide the weights of its network, and how noisy it is.

    An encoder reads the support set by attention and gives the mean and spread of a latent. One generator for all tasks
    turns samples of the latent into networks. The KL to the prior of the latent is exact and a few nats, and an upper
    bound on that of the networks.
    """

    kinds: ClassVar[frozenset[Kind]] = frozenset({"regression"})
    own_density: ClassVar[bool] = True
    theorem: ClassVar[Literal["Theorem 1", "Theorem 2"] | None] = "Theorem 1"

    objective: Literal["predictive", "theorem-1"] = "predictive"
    """The objective of training. `predictive` is the negative log-likelihood of the query set under the mixture of
    sampled networks, and `kl_weight` times the KL. `theorem-1` is the bound of Theorem 1 from the support set."""
    form: Literal["log", "kl"] = "kl"
    """The form of Theorem 1 that is trained on. `log` adds a square root to the loss. `kl` (Seeger, Maurer) inverts the
    binary KL, and is never larger."""
    epsilon: float = 0.05
    """ε: the bound that is trained on holds with probability 1 − ε."""
    latent: int = 16
    """Numbers of the latent z."""
    generator_hidden: tuple[int, ...] = (64, 128)
    """Hidden units of the generator's layers."""
    encoder_width: int = 128
    """Units of the encoder."""
    encoder_layers: int = 2
    """Layers of attention over the support set."""
    refinements: int = 2
    """R, times that the encoder looks at what the network of the mean latent misses, and moves the latent."""
    kl_weight: float = 0.003
    """β, the weight of the KL beside the likelihood of a query example."""
    train_samples: int = 8
    """S, networks per task in training."""
    input_scale: float = 1.0
    """The divisor of inputs; 1 for inputs of unit spread, as in tables."""
    target_scale: float = 1.0
    """The divisor of targets."""
    noise_floor: float = 0.01
    """The least standard deviation of a label, in shares of `target_scale`."""

    def __post_init__(self) -> None:
        for name in ("latent", "encoder_width", "encoder_layers", "train_samples"):
            require(getattr(self, name) >= 1, name, "at least 1", getattr(self, name))
        for name in ("input_scale", "target_scale", "noise_floor"):
            value = getattr(self, name)
            require(0 < value < math.inf, name, "a number above 0", value)
        require(self.refinements >= 0, "refinements", "at least 0", self.refinements)
        require(0 <= self.kl_weight < math.inf, "kl_weight", "a number of at least 0", self.kl_weight)
        require(0 < self.epsilon <= 1, "epsilon", "a probability in (0, 1]", self.epsilon)

    def init(self, model: Model, generator: torch.Generator) -> Parts:
        family = self._family(model)
        weights = spread_init(family.network, generator)
        points = model.network.inputs[0] + 2
        meta = {
            "encoder": self._reader_init(points, self.encoder_layers, generator, START_LOG_STD, scale=0.3),
            "generator": family.init(weights, generator),
            "noise": {"log_std": torch.tensor(math.log(0.1))},
        }
        seen = 4 + 2 * self.latent
        return meta | {
            f"refinement{number}": self._reader_init(seen, 1, generator, 0.0, scale=0.1)
            for number in range(self.refinements)
        }

    def noise(self, model: Model, support: int, query: int) -> NoiseSpec:
        draws = dict(self.prediction_noise(model, self.train_samples, support))
        if self.objective == "theorem-1" and support > BOUND_EXAMPLES:
            draws["examples"] = Draw((support,), "uniform")
        return NoiseSpec(task=draws)

    def prediction_noise(self, model: Model, samples: int, support: int) -> Mapping[str, Draw]:
        return {"z": Draw((samples, self.latent))}

    def adapt(self, meta: Parts, model: Model, support: Batch, noise: Noise) -> Parts:
        x, y = support.x / self.input_scale, support.y / self.target_scale
        members, change = self._read(meta["encoder"], torch.cat([x, y, y / 3], -1), None)
        state = change
        for number in range(self.refinements):
            q = bounded(*state.chunk(2))
            mean, std = self._functions(meta, model, q.mean.unsqueeze(0), support.x)
            mean, std = mean[0] / self.target_scale, std[0] / self.target_scale
            missed = (y - mean).clamp(-FAR, FAR)
            in_noise = (missed / std).clamp(-10, 10)
            look = torch.cat([5 * missed, 0.3 * in_noise, mean, std.log(), state.expand(len(x), -1)], -1)
            members, change = self._read(meta[f"refinement{number}"], look, members)
            state = state + change
        q = bounded(*state.chunk(2))
        return {name: meta[name] for name in ("generator", "noise")} | {"latent": q._asdict()}

    def loss(self, meta: Parts, model: Model, task: Task, noise: Noise, stage: Stage) -> tuple[Tensor, Info]:
        posterior = self.adapt(meta, model, task.support, noise)
        q, seen = Latent(**posterior["latent"]), self._bound_examples(task.support, noise)
        x = torch.cat([seen.x, task.query.x])
        means, stds = self._functions(posterior, model, q.sample(noise["z"]), x)
        on_seen, (on_query, stds) = means[:, : len(seen.x)], (values[:, len(seen.x) :] for values in (means, stds))
        of_functions = gaussian_log_likelihood(on_query, stds, task.query.y)
        loss = -(of_functions.logsumexp(0) - math.log(len(of_functions))).mean()
        kl = q.kl()
        info = {"loss": loss, "kl": kl, "noise_std": stds.mean()}
        predictive = loss + self.kl_weight * kl
        if self.objective == "predictive":
            return predictive, info
        gibbs = torch.func.vmap(model.bounded_loss, in_dims=(0, None))(on_seen, seen.y).mean()
        examples = len(task.support.x)
        theorem = theorem_1(gibbs.double(), kl.double(), examples=examples, epsilon=self.epsilon, form=self.form)
        bound = theorem.total.to(kl.dtype)
        weight = (1 - stage.update / (PREDICTIVE_SHARE * max(stage.planned, 1))).clamp(min=0)
        return bound + weight * predictive, info | {"gibbs_loss": gibbs, "bound": bound}

    def _bound_examples(self, support: Batch, noise: Noise) -> Batch:
        """The support examples that Theorem 1's loss is taken of in training; none for the other objective."""
        if self.objective == "predictive":
            return Batch(support.x[:0], support.y[:0])
        chosen = noise["examples"].argsort()[:BOUND_EXAMPLES] if "examples" in noise else slice(None)
        return Batch(support.x[chosen], support.y[chosen])

    def predict(self, posterior: Parts, model: Model, x: Tensor, noise: Noise) -> Tensor:
        q = Latent(**posterior["latent"])
        return self._functions(posterior, model, q.sample(noise["z"]), x)[0]

    def predictive(self, posterior: Parts, model: Model, x: Tensor, noise: Noise) -> Mixture:
        q = Latent(**posterior["latent"])
        means, stds = (value.squeeze(-1).T for value in self._functions(posterior, model, q.sample(noise["z"]), x))
        return Mixture(torch.full_like(means, 1 / means.shape[-1]), means, stds)

    def posterior_kl(self, posterior: Parts) -> Tensor:
        """KL[q(z) ‖ p(z)], which is at least KL[G#q ‖ G#p]."""
        return Latent(**{name: value.double() for name, value in posterior["latent"].items()}).kl()

    def _family(self, model: Model) -> WeightGenerator:
        """The generator of networks with two outputs: the mean of a label, and the logarithm of its noise."""
        return WeightGenerator(model.network.with_outputs(2), self.latent, self.generator_hidden)

    def _functions(self, parts: Parts, model: Model, z: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        """The mean and the noise's standard deviation (S, N, 1) of a label, by the networks of S latents."""
        family = self._family(model)
        found = outputs(family.network, family(parts["generator"], z), x / self.input_scale)
        mean, log_std = found.chunk(2, -1)
        std = self.noise_floor + (parts["noise"]["log_std"] + log_std).clamp(-6, 4).exp()
        return self.target_scale * mean, self.target_scale * std

    def _reader_init(
        self, entries: int, layers: int, generator: torch.Generator, log_std: float, scale: float
    ) -> Params:
        """Initial weights of a part of the encoder, which reads `entries` numbers of each example."""
        width = self.encoder_width
        head = linear_init(width, 2 * self.latent, generator, scale)
        head["bias"][self.latent :] = log_std
        parts = {
            "entry": linear_init(entries, width, generator),
            "second": linear_init(width, width, generator),
            "last": normal_init(width),
            "head": head,
        } | {f"layer{number}": Attention(width).init(generator) for number in range(layers)}
        return {key: value for name, params in parts.items() for key, value in named(name, params).items()}

    def _read(self, params: Params, entries: Tensor, members: Tensor | None) -> tuple[Tensor, Tensor]:
        """(the members after attention, the mean over them of what (μ, ln σ) is to change by)."""
        hidden = linear(functional.gelu(linear(entries, params, "entry")), params, "second")
        members = hidden if members is None else members + hidden
        for number in count():
            name = f"layer{number}."
            own = {key.removeprefix(name): value for key, value in params.items() if key.startswith(name)}
            if not own:
                break
            members = Attention(self.encoder_width)(own, members)
        return members, linear(normalised(members, params, "last"), params, "head").mean(0)
