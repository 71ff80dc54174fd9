"""ABML (Ravi and Beatson, 2019, "Amortized Bayesian meta-learning").

hyper-prior:   p(θ) = N(μ_θ; 0, I) · ∏ Gamma(1/σ_θ²; a₀, b₀), the product over single weights
task prior:    p(w | θ) = N(μ_θ, diag σ_θ²), which is also where λ starts
likelihood:    p(y | x, w) ∝ exp(−ℓ(y, f(x; w)) / τ)
posterior:     q(w; λ) = N(μ_λ, diag σ_λ²)
lower level:   λ descends the negative ELBO of the m support examples (here per example, and times τ)
                   E_q[ℓ(support)]  +  (β τ / m) KL[q(w; λ) ‖ p(w | θ)]
upper level:   θ minimises the negative ELBO of all m' examples of the task, support and query, at the adapted λ,
               and M tasks together pay for the hyper-prior (likewise)
                   E_q[ℓ(support ∪ query)]  +  (τ / m') { β KL[q(w; λ_K) ‖ p(w | θ)]  −  ln p(θ) / M }
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from fewsure.errors import require
from fewsure.posteriors import outputs
from fewsure.posteriors.gaussian import GaussianPosterior, descend_free_energy, divergence, expected_loss
from fewsure.types import Batch, Draw, Info, Model, Noise, NoiseSpec, Params, Parts, Stage, Task


@dataclass(frozen=True)
class Abml:
    """Amortized Bayesian meta-learning (ABML; Ravi and Beatson, 2019): hierarchical Bayes, adapted by gradient steps.

    Lower level, k = 1..K, from λ_0 = θ:   λ_k = λ_{k-1} − α ∇ { E_q[ℓ(support)] + (β τ/m) KL[q(w; λ_{k-1}) ‖ p(w|θ)] }
    Upper level:   min_θ E_task E_q[ℓ(support ∪ query)] + (τ/m') { β KL[q(w; λ_K) ‖ p(w|θ)] − ln p(θ)/M }

    ℓ is the mean loss of m (or m') examples, and a label's likelihood is proportional to exp(−ℓ/τ).
    """

    inner_lr: float = 1e-2
    """α, the step size of adaptation, for means and logarithms of standard deviations alike."""
    inner_steps: int = 5
    """K, gradient steps per task."""
    first_order: bool = False
    """Take the inner gradients as constants (cheaper); off, differentiate through them. First order does not see that
    a step overshoots, and needs a smaller `inner_lr`."""
    temperature: float = 1.0
    """τ, the scale of the loss in the likelihood: 2σ² if it is a squared error and the labels carry noise of standard
    deviation σ, 1 if it is a cross-entropy."""
    kl_weight: float = 1.0
    """β, the weight of KL[q ‖ p] in both levels; 1 is the paper's objective."""
    gamma_shape: float = 1.0
    """a₀ of the Gamma hyper-prior on each weight's precision 1/σ_θ²."""
    gamma_rate: float = 0.01
    """b₀ of the Gamma hyper-prior: precisions above a₀/b₀ are improbable, which keeps σ_θ from vanishing."""
    hyper_prior_tasks: int = 1000
    """M, the number of training tasks that share the hyper-prior; it weighs less the more there are."""
    train_samples: int = 5
    """Samples of w per task and step in training."""
    initial_std: float = 0.05
    """Standard deviation of every weight in the task prior before training. A larger one spreads predictions more.
    Where α β τ/(m · std²) is above 2, steps overshoot on their way back to the prior."""

    def __post_init__(self) -> None:
        for name in ("inner_lr", "temperature", "gamma_shape", "gamma_rate", "initial_std"):
            value = getattr(self, name)
            require(0 < value < float("inf"), name, "a number above 0", value)
        for name in ("inner_steps", "hyper_prior_tasks", "train_samples"):
            require(getattr(self, name) >= 1, name, "at least 1", getattr(self, name))
        require(0 <= self.kl_weight < float("inf"), "kl_weight", "a number of at least 0", self.kl_weight)

    def init(self, model: Model, generator: torch.Generator) -> Parts:
        return GaussianPosterior(model.network).init(generator, self.initial_std)

    def noise(self, model: Model) -> NoiseSpec:
        levels = self.inner_steps + 1  # the last one is the upper level's
        return NoiseSpec(task={"weights": GaussianPosterior(model.network).draw(levels, self.train_samples)})

    def adapt(self, meta: Parts, model: Model, support: Batch, noise: Noise) -> Parts:
        family = GaussianPosterior(model.network)
        return family.groups(self._optimise_lower_level(family.vectors(meta), model, support, noise))

    def loss(self, meta: Parts, model: Model, task: Task, noise: Noise, stage: Stage) -> tuple[Tensor, Info]:
        prior = GaussianPosterior(model.network).vectors(meta)
        posterior = self._optimise_lower_level(prior, model, task.support, noise)
        examples = Batch(torch.cat([task.support.x, task.query.x]), torch.cat([task.support.y, task.query.y]))
        loss = expected_loss(posterior, model, examples, noise["weights"][-1])
        kl, hyper_prior = divergence(posterior, prior), self._hyper_prior_energy(prior)
        regulariser = self.kl_weight * kl + hyper_prior / self.hyper_prior_tasks
        objective = loss + self.temperature / examples.x.shape[0] * regulariser
        std = posterior["log_std"].mean().exp()
        return objective, {"loss": loss, "kl": kl, "hyper_prior": hyper_prior, "std": std}

    def prediction_noise(self, model: Model, samples: int) -> Mapping[str, Draw]:
        return {"weights": GaussianPosterior(model.network).draw(samples)}

    def predict(self, posterior: Parts, model: Model, x: Tensor, noise: Noise) -> Tensor:
        family = GaussianPosterior(model.network)
        return outputs(model.network, family.sample(family.vectors(posterior), noise["weights"]), x)

    def _optimise_lower_level(self, prior: Params, model: Model, support: Batch, noise: Noise) -> Params:
        return descend_free_energy(
            prior,
            model,
            support,
            noise["weights"][:-1],
            lr=self.inner_lr,
            kl_weight=self.kl_weight * self.temperature / support.x.shape[0],
            first_order=self.first_order,
        )

    def _hyper_prior_energy(self, prior: Params) -> Tensor:
        """−ln p(θ), up to a constant."""
        log_precision = -2 * prior["log_std"]
        gamma = self.gamma_rate * log_precision.exp() - (self.gamma_shape - 1) * log_precision
        return (0.5 * prior["mean"].square() + gamma).sum()
