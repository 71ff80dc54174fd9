"""The diagonal Gaussian posterior: each weight of the base network has its own mean and standard deviation."""

import math
from dataclasses import dataclass
from functools import partial

import torch
from jaxtyping import Float
from torch import Tensor

from fewsure.core.gradient import descend, detach
from fewsure.networks.weights import flatten, unflatten, weight_count
from fewsure.posteriors import outputs
from fewsure.theory.divergences import gaussian_kl
from fewsure.types import Batch, Draw, Model, Network, Params, Parts


@dataclass(frozen=True)
class GaussianPosterior:
    """q(w; λ) = N(w; mean, diag std²),  λ = (mean, ln std).

    Meta-parameters and adapted posteriors are groups of named weights, {"mean": …, "log_std": …}. While a task adapts,
    λ is two flat vectors of the network's n weights, {"mean": (n,), "log_std": (n,)}. `vectors` and `groups` convert
    between the two.
    """

    network: Network
    """The base network whose n weights are drawn."""

    def init(self, generator: torch.Generator, std: float) -> Parts:
        """Means as the network's initial weights, and the same standard deviation for all."""
        mean = self.network.init(generator)
        return {"mean": mean, "log_std": {name: torch.full_like(value, math.log(std)) for name, value in mean.items()}}

    def vectors(self, groups: Parts) -> Params:
        """λ as flat vectors."""
        return {name: flatten(params) for name, params in groups.items()}

    def groups(self, vectors: Params) -> Parts:
        """λ as groups of named weights."""
        return {name: unflatten(self.network, vector) for name, vector in vectors.items()}

    def draw(self, *samples: int) -> Draw:
        """The standard normal noise of so many samples of w."""
        return Draw((*samples, weight_count(self.network)))

    def sample(self, vectors: Params, noise: Float[Tensor, "S n"]) -> Params:
        """S networks, w = mean + std · noise, stacked."""
        return unflatten(self.network, vectors["mean"] + vectors["log_std"].exp() * noise)


def divergence(posterior: Params, prior: Params) -> Float[Tensor, ""]:
    """KL[q ‖ p] of two diagonal Gaussians given as flat vectors, exact."""
    variance, prior_variance = (2 * posterior["log_std"]).exp(), (2 * prior["log_std"]).exp()
    return gaussian_kl(posterior["mean"], variance, prior["mean"], prior_variance)


def expected_loss(vectors: Params, model: Model, batch: Batch, noise: Float[Tensor, "S n"]) -> Float[Tensor, ""]:
    """E_q[ℓ], the mean over samples of w and over examples."""
    weights = GaussianPosterior(model.network).sample(vectors, noise)
    per_example = torch.func.vmap(model.loss, in_dims=(0, None))
    loss: Tensor = per_example(outputs(model.network, weights, batch.x), batch.y)
    return loss.mean()


def descend_free_energy(
    prior: Params,
    model: Model,
    support: Batch,
    noise: Float[Tensor, "K S n"],
    *,
    lr: float,
    kl_weight: float,
    first_order: bool,
    clip_norm: float | None = None,
) -> Params:
    """K gradient steps of λ, from the prior's, on E_q[ℓ(support)] + kl_weight · KL[q(w; λ) ‖ prior]."""
    anchor = detach(prior) if first_order else prior

    def free_energy(posterior: Params, step_noise: Tensor) -> Tensor:
        return expected_loss(posterior, model, support, step_noise) + kl_weight * divergence(posterior, anchor)

    posterior = prior
    for step_noise in noise:
        objective = partial(free_energy, step_noise=step_noise)
        posterior = descend(objective, posterior, lr, first_order=first_order, clip_norm=clip_norm)
    return posterior
