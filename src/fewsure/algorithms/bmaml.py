"""BMAML (Yoon, Kim, Dia, Kim, Bengio and Ahn, 2018, "Bayesian model-agnostic meta-learning").

task-specific posterior:  M particles W = {w_1 … w_M}, starting at the meta-learned W_0
log-posterior:            ln p(w | D) = −s · L(D; w) + ln p(w),   L the mean loss, p(w) flat or N(0, σ² I)
lower level, k = 1..K:    W_k = W_{k-1} + α φ(W_{k-1}; support),   φ the direction of SVGD for ln p(w | D)
upper level:              min over W_0 of −1/s · ln 1/M Σ_m exp(−s · L(query; w_{K,m}))               (section 3.1)
or the chaser loss:       min over W_0 of 1/M Σ_m ‖w_{K,m} − w_{K+S,m}‖², where the leader W_{K+S} is S more steps,
                          on support ∪ query, from the chaser W_K, and no gradient flows through it   (section 3.2)
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from fewsure.core.gradient import clip, require_clip_norm
from fewsure.errors import require
from fewsure.networks.weights import flatten, unflatten
from fewsure.posteriors import outputs
from fewsure.posteriors.particles import stein_direction
from fewsure.types import Algorithm, Batch, Info, Model, Noise, Parts, Stage, Task


@dataclass(frozen=True)
class Bmaml(Algorithm):
    """Bayesian model-agnostic meta-learning (BMAML; Yoon et al., 2018): an ensemble whose members adapt together.

    The posterior of a task is a set of particles, each the weights of one network. Stein variational gradient descent
    (SVGD) fits them to the support set and keeps them apart; where they disagree, the task is uncertain. One particle
    without chaser is MAML.
    """

    particles: int = 10
    """M, networks in the ensemble, which is also the number of sampled functions."""
    inner_lr: float = 5e-2
    """α, the step size of adaptation. SVGD divides by the number of particles, so it is larger than MAML's."""
    inner_steps: int = 5
    """K, steps of SVGD per task."""
    inner_clip_norm: float | None = None
    """Largest norm of a particle's gradient ∇ ln p(w | D) in a task; a longer one is scaled down. `none`: no limit."""
    first_order: bool = True
    """Take the directions of SVGD as constants (cheaper); off, differentiate through them."""
    likelihood_scale: float = 0.3
    """s: the log-likelihood of a set of examples is −s · its mean loss. The larger s is, the more the best particles of
    a task count in the upper level, so that particles specialise and disagree. Near 0 all count the same. The step size
    of a particle's loss is α·s."""
    prior_std: float | None = None
    """σ of a Gaussian prior N(0, σ² I) on a task's weights; `none` for a flat one."""
    chaser: bool = False
    """Train with the chaser loss instead of the query loss of the ensemble."""
    leader_steps: int = 1
    """S, further steps of SVGD, on support and query, from the chaser to the leader."""

    def __post_init__(self) -> None:
        for name in ("inner_lr", "likelihood_scale"):
            value = getattr(self, name)
            require(0 < value < math.inf, name, "a number above 0", value)
        for name in ("particles", "inner_steps", "leader_steps"):
            require(getattr(self, name) >= 1, name, "at least 1", getattr(self, name))
        require_clip_norm(self.inner_clip_norm)
        flat_or_positive = self.prior_std is None or 0 < self.prior_std < math.inf
        require(flat_or_positive, "prior_std", "a number above 0, or none", self.prior_std)

    def init(self, model: Model, generator: torch.Generator) -> Parts:
        members = [model.network.init(generator) for _ in range(self.particles)]
        return {"particles": {name: torch.stack([member[name] for member in members]) for name in members[0]}}

    def adapt(self, meta: Parts, model: Model, support: Batch, noise: Noise) -> Parts:
        start = flatten(meta["particles"], dims=1)
        particles = self._svgd(start, model, support, self.inner_steps, first_order=self.first_order)
        return {"particles": unflatten(model.network, particles)}

    def loss(self, meta: Parts, model: Model, task: Task, noise: Noise, stage: Stage) -> tuple[Tensor, Info]:
        adapted = self.adapt(meta, model, task.support, noise)["particles"]
        chaser = flatten(adapted, dims=1)
        losses = self._losses(chaser, model, task.query)
        log_mixture = torch.logsumexp(-self.likelihood_scale * losses, 0) - math.log(self.particles)
        loss = -log_mixture / self.likelihood_scale
        info = {"loss": loss, "particle_loss": losses.mean()}
        if not self.chaser:
            return loss, info
        union = Batch(*(torch.cat(pair) for pair in zip(task.support, task.query, strict=True)))
        leader = self._svgd(chaser.detach(), model, union, self.leader_steps, first_order=True)
        distance = (chaser - leader).square().sum(1).mean()
        return distance, info | {"chaser": distance}

    def predict(self, posterior: Parts, model: Model, x: Tensor, noise: Noise) -> Tensor:
        return outputs(model.network, posterior["particles"], x)

    def _svgd(self, particles: Tensor, model: Model, batch: Batch, steps: int, *, first_order: bool) -> Tensor:
        """Particles (M, n) after some steps of SVGD towards the posterior given a batch."""

        def log_posteriors(particles: Tensor) -> Tensor:
            log_likelihood = -self.likelihood_scale * self._losses(particles, model, batch)
            log_prior = 0.0 if self.prior_std is None else -0.5 * (particles / self.prior_std).square().sum(1)
            return (log_likelihood + log_prior).sum()  # of independent terms: the gradient holds each particle's own

        for _ in range(steps):
            at = particles.detach() if first_order else particles
            scores = torch.func.grad(log_posteriors)(at)
            if self.inner_clip_norm is not None:
                scores = clip({"scores": scores}, self.inner_clip_norm, dims=1)["scores"]
            direction = stein_direction(at, scores)
            particles = particles + self.inner_lr * direction
        return particles

    def _losses(self, particles: Tensor, model: Model, batch: Batch) -> Tensor:
        """The mean loss (M,) of each particle on a batch."""
        predictions = outputs(model.network, unflatten(model.network, particles), batch.x)
        return torch.func.vmap(model.loss, in_dims=(0, None))(predictions, batch.y).mean(1)
