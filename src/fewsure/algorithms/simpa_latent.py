"""SImPa with a latent posterior: the generator of all tasks stays, and a task moves what the generator is given.

prior:        z ~ p(z) = N(0, I),  w = G(z; θ)
posterior:    z ~ q(z) = N(μ, L Lᵀ),  the same G, so that KL[G#q ‖ G#p] ≤ KL[q ‖ p];  L = diag σ without a process
lower level:  (μ, ln σ) = attention over the members of the support set, and then, R times,
              (μ, ln σ) ← (μ, ln σ) + attention over the members, what the function of z = μ misses at them, μ and ln σ
upper level:  min_θ E_task  −ln 1/S Σ_s p(query | G(z_s)) per example  +  β KL[q ‖ p]                 (`predictive`)
              min_θ E_task  Theorem 1's bound on E_q[ℓ] from the m support examples, ℓ in [0, 1]      (`theorem-1`)

| kind of task | members | latent | G (`posteriors.decoders`) |
|---|---|---|---|
| regression | examples | one, the mean over members | all weights of a network, noise on labels included |
| classification | means of the classes' examples | one per class | the rows of a linear head above a shared embedding |

With a process (`kernels`), the first numbers of a regression's latent are those of a Gaussian process from the training
groups. Networks add to it. Their posterior starts as the exact one, and predictions integrate them out.

θ does not depend on a new task's examples. So Theorem 1 holds for that task with the prior G#p as it stands, whatever
the objective was. An encoder may see all of them: the theorem holds for every q at once.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar, Literal

import torch
from torch import Tensor

from fewsure.algorithms.finite_process import FiniteProcess
from fewsure.algorithms.parts.cutting import cut
from fewsure.algorithms.parts.sets import Reader
from fewsure.core.vectorise import for_each
from fewsure.errors import require
from fewsure.posteriors.decoders import START_LOG_STD, Decoder, HeadDecoder, NetworkDecoder
from fewsure.posteriors.latent import Latent, WeightGenerator, bounded
from fewsure.theory.pac_bayes import theorem_1
from fewsure.types import Algorithm, Batch, Draw, Info, Mixture, Model, Network, Noise, NoiseSpec, Parts, Stage, Task

ROUNDING = 1e-6
"""The share by which a weight of the KL may leave the range of the training."""
FIT_EXAMPLES = 20
"""Examples of each training class whose embeddings give the directions that heads start with."""
BOUND_EXAMPLES = 32
"""Support examples, chosen at random, whose loss stands for Theorem 1 in training; m stays their whole number."""
PREDICTIVE_SHARE = 0.35
"""The share of the updates over which the weight of the predictive objective beside Theorem 1 falls from 1 to 0."""


@dataclass(frozen=True)
class SimpaLatent(Algorithm):
    """SImPa with a latent posterior: a few numbers decide the network of a task, or the head row of each class.

    An encoder reads the support set by attention and gives the mean and spread of a latent. One generator for all tasks
    turns samples of the latent into networks. The KL to the prior of the latent is exact and a few nats, and an upper
    bound on that of the networks.
    """

    any_way: ClassVar[bool] = True
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
    """Numbers of the latent z; for classification, of each class."""
    embedding: int = 64
    """For classification, numbers of the embedding below the head: outputs of the base network, shared by all tasks.
    0 takes the base network without its last layer."""
    generator_hidden: tuple[int, ...] = (64, 128)
    """For regression, hidden units of the generator's layers."""
    encoder_width: int = 64
    """Units of the encoder."""
    encoder_layers: int = 2
    """Layers of attention over the support set."""
    refinements: int = 2
    """R, times that the encoder looks at what the network of the mean latent misses, and moves the latent."""
    kl_weight: float = 0.003
    """β, the weight of the KL beside the likelihood of a query example."""
    kl_weight_spread: float = 1.0
    """Training draws β log-uniformly between `kl_weight` / this and `kl_weight` · this, and tells the encoder, so that
    one training serves every weight between them. 1: β is always `kl_weight`."""
    train_samples: int = 8
    """S, networks per task in training."""
    cuts: int = 0
    """For classification, tasks of `cut_way` classes that each training task is cut into at random, after its examples
    are embedded; 0 leaves it whole."""
    cut_way: int = 5
    """Classes of the tasks that training tasks are cut into, which have at least as many."""
    start_at_means: bool = False
    """For classification, the latent of a class starts at the mean of its examples, and the encoder moves it from
    there. Training starts with rows of heads along the directions in which training examples differ most. Pays where
    the embedding is good from the start."""
    prototype_weight: float = 1.0
    """For classification, the weight in training of the loss of prototypical networks on the whole task, which teaches
    the embedding faster."""
    input_scale: float = 1.0
    """For regression, the divisor of inputs; 1 for inputs of unit spread, as in tables."""
    target_scale: float = 1.0
    """For regression, the divisor of targets."""
    noise_floor: float = 0.01
    """For regression, the least standard deviation of a label, in shares of `target_scale`."""
    gaussians: int = 1
    """For regression, the Gaussians whose mixture is the density of a label given a network; several can have heavy
    tails."""
    kernels: tuple[str, ...] = ()
    """For regression, kernels of a Gaussian process from the training groups, as in `gp`. Networks add to it, and
    training starts at it. Without kernels there is no process."""
    basis: int = 24
    """Numbers that stand for the process of a task; they are the first of the latent."""

    def __post_init__(self) -> None:
        for name in ("latent", "encoder_width", "encoder_layers", "train_samples", "gaussians", "basis"):
            require(getattr(self, name) >= 1, name, "at least 1", getattr(self, name))
        for name in ("input_scale", "target_scale", "noise_floor"):
            value = getattr(self, name)
            require(0 < value < math.inf, name, "a number above 0", value)
        for name in ("embedding", "refinements", "cuts"):
            require(getattr(self, name) >= 0, name, "at least 0", getattr(self, name))
        require(self.cut_way >= 2, "cut_way", "at least 2", self.cut_way)
        for name in ("kl_weight", "prototype_weight"):
            value = getattr(self, name)
            require(0 <= value < math.inf, name, "a number of at least 0", value)
        require(0 < self.epsilon <= 1, "epsilon", "a probability in (0, 1]", self.epsilon)
        require(1 <= self.kl_weight_spread < math.inf, "kl_weight_spread", "at least 1", self.kl_weight_spread)
        above = self.kl_weight > 0 or not self._told
        require(above, "kl_weight", "above 0, since kl_weight_spread multiplies it", self.kl_weight)

    def init(self, model: Model, generator: torch.Generator) -> Parts:
        decoder = self._decoder(model)
        encoder, *refinements = self._readers(decoder)
        log_std, spread, step = (0.0, 0.0, 0.0) if self.kernels else (START_LOG_STD, 0.3, 0.1)
        spread = 0.1 * spread if self.start_at_means else spread
        process = self._process.init(model, generator) if self._process and model.kind == "regression" else {}
        parts = process | {"encoder": encoder.init(generator, spread)} | decoder.init(generator)
        parts["encoder"]["head.bias"][decoder.shape[-1] :] = log_std
        return parts | {
            f"refinement{number}": reader.init(generator, step) for number, reader in enumerate(refinements)
        }

    def shared_network(self, model: Model) -> Network | None:
        return self._network(model) if model.kind == "classification" else None

    def fit(self, meta: Parts, model: Model, groups: Sequence[Batch], generator: torch.Generator) -> Parts:
        decoder = self._decoder(model)
        if isinstance(decoder, HeadDecoder) and decoder.means:
            return decoder.along(meta, torch.cat([group.x[:FIT_EXAMPLES] for group in groups]))
        if self._process is None or not isinstance(decoder, NetworkDecoder):
            return meta
        scaled = [Batch(group.x / self.input_scale, group.y / self.target_scale) for group in groups]
        found = self._process.fit(model, scaled, generator)
        return decoder.with_noise(meta | found | {"noise": meta["noise"]}, found["noise"]["log_std"].exp())

    def noise(self, model: Model, support: int, query: int) -> NoiseSpec:
        of_task = self._cut_model(model)
        support, query = (size * of_task.outputs // model.outputs for size in (support, query))
        draws = dict(self.prediction_noise(of_task, self.train_samples, support))
        if self._told:
            draws["kl_weight"] = Draw((), "uniform")
        if self.objective == "theorem-1" and support > BOUND_EXAMPLES:
            draws["examples"] = Draw((support,), "uniform")
        if not self.cuts:
            return NoiseSpec(task=draws)
        cuttable = model.kind == "classification" and not model.fixed_classes
        require(cuttable, "cuts", "0 for regression and for fixed classes", self.cuts)
        way = of_task.outputs
        keys = {"cut_classes": (model.outputs,), "cut_examples": (way, (support + query) // way)}
        draws |= {name: Draw(shape, "uniform") for name, shape in keys.items()}
        return NoiseSpec(task={name: Draw((self.cuts, *draw.shape), draw.kind) for name, draw in draws.items()})

    def prediction_noise(self, model: Model, samples: int, support: int) -> Mapping[str, Draw]:
        return {"z": Draw((samples, *self._decoder(model).shape))}

    def adapt(self, meta: Parts, model: Model, support: Batch, noise: Noise) -> Parts:
        decoder = self._decoder(model)
        embedded = Batch(decoder.embed(meta, support.x), support.y)
        q = self._posterior(meta, decoder, embedded, embedded.x.new_full((), self.kl_weight))
        found = {name: value for name, value in q._asdict().items() if value is not None}
        return {part: meta[part] for part in decoder.parts} | {"latent": found}

    def loss(self, meta: Parts, model: Model, task: Task, noise: Noise, stage: Stage) -> tuple[Tensor, Info]:
        decoder = self._decoder(model)
        support, query = (Batch(decoder.embed(meta, batch.x), batch.y) for batch in (task.support, task.query))
        task = Task(support, query)
        if self.cuts:
            cuts = cut(task, noise["cut_classes"], noise["cut_examples"])
            losses, infos = for_each(partial(self._loss_of_cut, self._cut_model(model), stage))((cuts, noise), meta)
            loss, info = losses.mean(), {name: value.mean() for name, value in infos.items()}
        else:
            loss, info = self._loss(meta, model, task, noise, stage)
        if model.kind == "regression" or self.prototype_weight == 0:
            return loss, info
        assert isinstance(decoder, HeadDecoder)
        prototypes = model.loss(decoder.prototype_logits(meta, support, query.x), query.y).mean()
        return loss + self.prototype_weight * prototypes, info | {"prototype_loss": prototypes}

    def _loss_of_cut(
        self, model: Model, stage: Stage, task_and_noise: tuple[Task, Noise], meta: Parts
    ) -> tuple[Tensor, Info]:
        return self._loss(meta, model, *task_and_noise, stage)

    def predict(self, posterior: Parts, model: Model, x: Tensor, noise: Noise) -> Tensor:
        decoder, q = self._decoder(model), Latent(**posterior["latent"])
        return decoder.functions(decoder.outputs(posterior, q.sample(noise["z"]), decoder.embed(posterior, x)))

    def predictive(self, posterior: Parts, model: Model, x: Tensor, noise: Noise) -> Mixture:
        decoder, q = self._decoder(model), Latent(**posterior["latent"])
        found = decoder.outputs(posterior, q.sample(noise["z"]), decoder.embed(posterior, x), q)
        means, stds, of_function, log_weights = (value.transpose(0, 1).flatten(1) for value in found.unbind(-1))
        return Mixture(log_weights.exp() / len(found), means, stds, of_function)

    def at_kl_weight(self, kl_weight: float) -> "SimpaLatent":
        least, most = self.kl_weight / self.kl_weight_spread, self.kl_weight * self.kl_weight_spread
        known = least * (1 - ROUNDING) <= kl_weight <= most * (1 + ROUNDING)
        require(known, "kl_weight", f"from {least:g} to {most:g}, as in training", kl_weight)
        return replace(self, kl_weight=kl_weight)

    def posterior_kl(self, posterior: Parts) -> Tensor:
        """KL[q(z) ‖ p(z)], which is at least KL[G#q ‖ G#p]."""
        return Latent(**{name: value.double() for name, value in posterior["latent"].items()}).kl()

    @property
    def _told(self) -> bool:
        """Whether the encoder is told β."""
        return self.kl_weight_spread > 1

    def _cut_model(self, model: Model) -> Model:
        """The model of the tasks that a training task is cut into, or of the whole task."""
        return model._replace(outputs=min(self.cut_way, model.outputs)) if self.cuts else model

    def _decoder(self, model: Model) -> Decoder:
        """The decoder of the kind of task."""
        if model.kind == "classification":
            network = self._network(model)
            width = self.embedding or model.network.width
            return HeadDecoder(network, width, self.latent, model.outputs, self.start_at_means)
        family = WeightGenerator(model.network.with_outputs(3 * self.gaussians - 1), self.latent, self.generator_hidden)
        scales = self.input_scale, self.target_scale
        return NetworkDecoder(family, *scales, self.noise_floor, self.gaussians, self._process)

    @property
    def _process(self) -> FiniteProcess | None:
        """For regression, what networks add to."""
        return FiniteProcess(self.kernels, self.basis) if self.kernels else None

    def _network(self, model: Model) -> Network:
        """For classification, the network that embeds."""
        return model.network.with_outputs(self.embedding) if self.embedding else model.network.embedding

    def _readers(self, decoder: Decoder) -> list[Reader]:
        """The encoder, and one for each refinement."""
        (members, missed), found = decoder.sees, 2 * decoder.shape[-1]
        encoder = Reader(members + self._told, found, self.encoder_width, self.encoder_layers)
        return [encoder, *[Reader(missed + found, found, self.encoder_width, 1)] * self.refinements]

    def _loss(self, meta: Parts, model: Model, task: Task, noise: Noise, stage: Stage) -> tuple[Tensor, Info]:
        """The loss of a task whose inputs are embedded."""
        decoder, (support, query, _) = self._decoder(model), task
        kl_weight = query.x.new_full((), self.kl_weight)
        if self._told:
            kl_weight = kl_weight * self.kl_weight_spread ** (2 * noise["kl_weight"] - 1)
        q, seen = self._posterior(meta, decoder, support, kl_weight), self._bound_examples(support, noise)
        z = q.sample(noise["z"])
        on_query = decoder.outputs(meta, z, query.x, q)
        likelihoods, kl = decoder.log_likelihood(on_query, query.y), q.kl()
        loss = -(likelihoods.logsumexp(0) - math.log(len(likelihoods))).mean()
        info = {"loss": loss, "kl": kl} | decoder.info(on_query, query.y)
        predictive = loss + kl_weight * kl
        if self.objective == "predictive":
            return predictive, info
        on_seen = decoder.functions(decoder.outputs(meta, z, seen.x))
        gibbs = torch.func.vmap(model.bounded_loss, in_dims=(0, None))(on_seen, seen.y).mean()
        examples = len(support.y)
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

    def _posterior(self, meta: Parts, decoder: Decoder, support: Batch, kl_weight: Tensor) -> Latent:
        """q(z) from a support set whose inputs are embedded."""
        look = decoder.members(meta, support)
        if self._told:
            look = torch.cat([look, (0.5 * kl_weight.log() + 2.5).expand(len(look), 1)], -1)
        encoder, *refinements = self._readers(decoder)
        members, change = encoder(meta["encoder"], look)
        state, first, turn = decoder.collected(change), decoder.first(meta, support), None
        if first is not None:
            state, turn = state + torch.cat([first.mean, first.log_std], -1), first.turn
        for number, reader in enumerate(refinements):
            missed = decoder.missed(meta, support, bounded(*state.chunk(2, -1)).mean)
            look = torch.cat([missed, state.expand(len(missed), -1)], -1)
            members, change = reader(meta[f"refinement{number}"], look, members)
            state = state + decoder.collected(change)
        mean, log_std = state.chunk(2, -1)
        return bounded(mean, log_std, turn)
