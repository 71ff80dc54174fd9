"""ABML (Ravi and Beatson, 2019, "Amortized Bayesian meta-learning").

hyper-prior:   p(θ) = N(μ_θ; 0, I) · ∏ Gamma(1/σ_θ²; a₀, b₀), the product over single weights
task prior:    p(w | θ) = N(μ_θ, diag σ_θ²), which is also where λ starts
lower level:   λ descends the negative ELBO of the support set, as `gaussian.py` writes it
upper level:   θ minimises the negative ELBO of all m' examples of the task, support and query, at the adapted λ,
               and M tasks together pay for the hyper-prior (here per example, and times τ)
                   E_q[ℓ(support ∪ query)]  +  (τ / m') { β KL[q(w; λ_K) ‖ p(w | θ)]  −  ln p(θ) / M }
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fewsure.algorithms.parts.gaussian import GaussianMethod
from fewsure.errors import require
from fewsure.posteriors.gaussian import GaussianPosterior, divergence, expected_loss
from fewsure.types import Batch, Info, Model, Noise, Params, Parts, Stage, Task


@dataclass(frozen=True)
class Abml(GaussianMethod):
    """Amortized Bayesian meta-learning (ABML; Ravi and Beatson, 2019): hierarchical Bayes, adapted by gradient steps.

    Lower level, k = 1..K, from λ_0 = θ:   λ_k = λ_{k-1} − α ∇ { E_q[ℓ(support)] + (β τ/m) KL[q(w; λ_{k-1}) ‖ p(w|θ)] }
    Upper level:   min_θ E_task E_q[ℓ(support ∪ query)] + (τ/m') { β KL[q(w; λ_K) ‖ p(w|θ)] − ln p(θ)/M }

    ℓ is the mean loss of m (or m') examples, and a label's likelihood is proportional to exp(−ℓ/τ).
    """

    train_train: ClassVar[bool] = True

    gamma_shape: float = 1.0
    """a₀ of the Gamma hyper-prior on each weight's precision 1/σ_θ²."""
    gamma_rate: float = 0.01
    """b₀ of the Gamma hyper-prior: precisions above a₀/b₀ are improbable, which keeps σ_θ from vanishing."""
    hyper_prior_tasks: int = 1000
    """M, the number of training tasks that share the hyper-prior; it weighs less the more there are."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("gamma_shape", "gamma_rate"):
            value = getattr(self, name)
            require(0 < value < float("inf"), name, "a number above 0", value)
        require(self.hyper_prior_tasks >= 1, "hyper_prior_tasks", "at least 1", self.hyper_prior_tasks)

    def loss(self, meta: Parts, model: Model, task: Task, noise: Noise, stage: Stage) -> tuple[Tensor, Info]:
        prior = GaussianPosterior(model.network).vectors(meta)
        posterior = self.optimise_lower_level(prior, model, task.support, noise)
        examples = Batch(torch.cat([task.support.x, task.query.x]), torch.cat([task.support.y, task.query.y]))
        loss = expected_loss(posterior, model, examples, noise["weights"][-1])
        kl, hyper_prior = divergence(posterior, prior), self._hyper_prior_energy(prior)
        regulariser = self.kl_weight * kl + hyper_prior / self.hyper_prior_tasks
        objective = loss + self.temperature / examples.x.shape[0] * regulariser
        std = posterior["log_std"].mean().exp()
        return objective, {"loss": loss, "kl": kl, "hyper_prior": hyper_prior, "std": std}

    def _hyper_prior_energy(self, prior: Params) -> Tensor:
        """−ln p(θ), up to a constant."""
        log_precision = -2 * prior["log_std"]
        gamma = self.gamma_rate * log_precision.exp() - (self.gamma_shape - 1) * log_precision
        return (0.5 * prior["mean"].square() + gamma).sum()
