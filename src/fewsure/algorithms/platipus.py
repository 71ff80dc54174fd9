"""PLATIPUS (Finn, Xu and Levine, 2018, "Probabilistic model-agnostic meta-learning"), Algorithms 1 and 2.

meta-learned, one number per weight: μ_θ, σ_θ², v_q, and the step sizes γ_p, γ_q; ∘ multiplies weight by weight

given the support set:   p(θ | support) = N(μ_θ − γ_p ∘ ∇ L(support; μ_θ), σ_θ²)
given the query set:     q(θ | query)   = N(μ_θ − γ_q ∘ ∇ L(query; μ_θ), v_q)
lower level, from w_0 = θ, k = 1..K:   w_k = w_{k-1} − α ∇ L(support; w_{k-1})
upper level, with θ ~ q(θ | query):    min E_task [ L(query; w_K) + β KL[q(θ | query) ‖ p(θ | support)] ]
prediction:              S functions, each from its own θ ~ p(θ | support), adapted by the lower level
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from fewsure.core.gradient import descend, gradient_of, require_clip_norm
from fewsure.errors import require
from fewsure.networks.weights import flatten, unflatten, weight_count
from fewsure.posteriors import outputs
from fewsure.theory.divergences import gaussian_kl
from fewsure.types import Algorithm, Batch, Draw, Info, Model, Noise, NoiseSpec, Params, Parts, Stage, Task


@dataclass(frozen=True)
class Platipus(Algorithm):
    """Probabilistic model-agnostic meta-learning (PLATIPUS; Finn et al., 2018): MAML from a random initialisation.

    A task's functions differ in where their adaptation starts: in a Gaussian around the meta-learned initialisation,
    moved by one gradient step on the support set. Training draws the start from a Gaussian that has also seen the query
    set, and pays for what only the query set could tell. It is hard to train from scratch; starting at a MAML run's
    weights helps.
    """

    inner_lr: float = 1e-2
    """α, the step size of adaptation."""
    inner_steps: int = 5
    """K, gradient steps per sampled initialisation."""
    inner_clip_norm: float | None = None
    """Largest norm of a gradient in a task; a larger one is scaled down. `none` for no limit."""
    first_order: bool = True
    """Take the gradients inside a task as constants (cheaper); off, differentiate through them."""
    kl_weight: float = 1.0
    """β, the weight of the KL beside the mean query loss. The evidence bound of m query examples has 1/m for a negative
    log-likelihood, and 2·noise²/m for a squared error. A larger weight did better on validation tasks. It keeps
    training from relying on the query set, which is missing at prediction."""
    prior_std: float = 0.1
    """σ_θ where training starts: the spread of the initialisations from which a task's functions are adapted."""
    inference_std: float = 0.1
    """√v_q where training starts: the spread of the initialisations that training draws."""
    prior_lr: float = 1e-2
    """γ_p where training starts: the step size by which the support set moves the initialisations' mean."""
    inference_lr: float = 1e-2
    """γ_q where training starts: the step size by which the query set moves it in training."""

    def __post_init__(self) -> None:
        for name in ("inner_lr", "prior_std", "inference_std"):
            value = getattr(self, name)
            require(0 < value < math.inf, name, "a number above 0", value)
        for name in ("kl_weight", "prior_lr", "inference_lr"):
            value = getattr(self, name)
            require(0 <= value < math.inf, name, "a number of at least 0", value)
        require(self.inner_steps >= 1, "inner_steps", "at least 1", self.inner_steps)
        require_clip_norm(self.inner_clip_norm)

    def init(self, model: Model, generator: torch.Generator) -> Parts:
        return self.from_weights(model.network.init(generator))

    def from_weights(self, weights: Params) -> Parts:
        def constant(value: float) -> Params:
            return {name: torch.full_like(tensor, value) for name, tensor in weights.items()}

        return {
            "weights": {name: tensor.clone() for name, tensor in weights.items()},
            "prior_log_std": constant(math.log(self.prior_std)),
            "inference_log_std": constant(math.log(self.inference_std)),
            "prior_lr_factor": constant(1.0),
            "inference_lr_factor": constant(1.0),
        }

    def noise(self, model: Model, support: int, query: int) -> NoiseSpec:
        return NoiseSpec(task={"theta": Draw((weight_count(model.network),))})

    def adapt(self, meta: Parts, model: Model, support: Batch, noise: Noise) -> Parts:
        """p(θ | support), and the support set, with which `predict` adapts each θ that it draws."""
        mean = self._step(meta["weights"], self.prior_lr, meta["prior_lr_factor"], _loss_on(model, support))
        return {"mean": mean, "log_std": meta["prior_log_std"], "support": support._asdict()}

    def loss(self, meta: Parts, model: Model, task: Task, noise: Noise, stage: Stage) -> tuple[Tensor, Info]:
        query_loss = _loss_on(model, task.query)
        prior = self.adapt(meta, model, task.support, noise)
        mean = flatten(self._step(meta["weights"], self.inference_lr, meta["inference_lr_factor"], query_loss))
        log_std, prior_log_std = flatten(meta["inference_log_std"]), flatten(prior["log_std"])

        theta = mean + log_std.exp() * noise["theta"]
        loss = query_loss(self._descend(unflatten(model.network, theta), model, task.support))
        kl = gaussian_kl(mean, (2 * log_std).exp(), flatten(prior["mean"]), (2 * prior_log_std).exp())
        spread = {"prior_std": prior_log_std.exp().mean(), "inference_std": log_std.exp().mean()}
        return loss + self.kl_weight * kl, {"loss": loss, "kl": kl} | spread

    def prediction_noise(self, model: Model, samples: int, support: int) -> Mapping[str, Draw]:
        return {"theta": Draw((samples, weight_count(model.network)))}

    def predict(self, posterior: Parts, model: Model, x: Tensor, noise: Noise) -> Tensor:
        support = Batch(**posterior["support"])
        thetas = flatten(posterior["mean"]) + flatten(posterior["log_std"]).exp() * noise["theta"]

        def adapted(theta: Params) -> Params:
            return self._descend(theta, model, support)

        return outputs(model.network, torch.func.vmap(adapted)(unflatten(model.network, thetas)), x)

    def _step(self, weights: Params, lr: float, factor: Params, objective: Callable[[Params], Tensor]) -> Params:
        """One gradient step with a step size γ for each weight, learned as a factor of where it starts."""
        gradient = gradient_of(objective, weights, first_order=self.first_order, clip_norm=self.inner_clip_norm)
        return {name: value - lr * factor[name] * gradient[name] for name, value in weights.items()}

    def _descend(self, weights: Params, model: Model, support: Batch) -> Params:
        """The lower level: K steps on the support set."""
        for _ in range(self.inner_steps):
            weights = descend(
                _loss_on(model, support),
                weights,
                self.inner_lr,
                first_order=self.first_order,
                clip_norm=self.inner_clip_norm,
            )
        return weights


def _loss_on(model: Model, batch: Batch) -> Callable[[Params], Tensor]:
    """Weights → the mean loss on a batch."""

    def loss(weights: Params) -> Tensor:
        return model.loss(model.network(weights, batch.x), batch.y).mean()

    return loss
