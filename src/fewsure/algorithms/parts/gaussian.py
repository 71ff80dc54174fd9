"""Shared by ABML and VAMPIRE: a diagonal Gaussian posterior per task, adapted by gradient steps on its free energy.

prior of a task's weights:  p(w; θ) = N(μ_θ, diag σ_θ²), whose parameters are meta-learned
likelihood:                 p(y | x, w) ∝ exp(−ℓ(y, f(x; w)) / τ)
posterior of a task:        q(w; λ) = N(μ_λ, diag σ_λ²), λ starting at θ
lower level, k = 1..K:      λ_k = λ_{k-1} − α ∇ { E_q[ℓ(support)]  +  (β τ / m) KL[q(w; λ_{k-1}) ‖ p(w; θ)] }

The free energy is that of m support examples, here per example and times τ, so that step sizes mean what they mean in
MAML. The two methods differ in their upper level.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from fewsure.core.gradient import require_clip_norm
from fewsure.errors import require
from fewsure.posteriors import outputs
from fewsure.posteriors.gaussian import GaussianPosterior, descend_free_energy
from fewsure.types import Algorithm, Batch, Draw, Model, Noise, NoiseSpec, Params, Parts


@dataclass(frozen=True)
class GaussianMethod(Algorithm):
    """All but the upper level."""

    inner_lr: float = 1e-2
    """α, the step size of adaptation, for means and logarithms of standard deviations alike."""
    inner_steps: int = 5
    """K, gradient steps per task."""
    inner_clip_norm: float | None = None
    """Largest norm of a gradient in a task; a larger one is scaled down. `none` for no limit."""
    first_order: bool = False
    """Take the inner gradients as constants (cheaper); off, differentiate through them. First order does not see that
    a step overshoots, and needs a smaller `inner_lr`."""
    temperature: float = 1.0
    """τ, the scale of the loss in the likelihood. It is 1 for a cross-entropy, and 2σ² for a squared error of labels
    with noise of standard deviation σ."""
    kl_weight: float = 1.0
    """β, the weight of KL[q ‖ p]; 1 is the paper's objective."""
    train_samples: int = 5
    """Samples of w per task and step in training."""
    initial_std: float = 0.05
    """Standard deviation of every weight in the prior before training. A larger one spreads predictions more. Where
    α β τ/(m · std²) is above 2, steps overshoot on their way back to the prior."""

    def __post_init__(self) -> None:
        for name in ("inner_lr", "temperature", "initial_std"):
            value = getattr(self, name)
            require(0 < value < float("inf"), name, "a number above 0", value)
        for name in ("inner_steps", "train_samples"):
            require(getattr(self, name) >= 1, name, "at least 1", getattr(self, name))
        require_clip_norm(self.inner_clip_norm)
        require(0 <= self.kl_weight < float("inf"), "kl_weight", "a number of at least 0", self.kl_weight)

    def init(self, model: Model, generator: torch.Generator) -> Parts:
        return GaussianPosterior(model.network).init(generator, self.initial_std)

    def noise(self, model: Model, support: int, query: int) -> NoiseSpec:
        levels = self.inner_steps + 1  # the last one is the upper level's
        return NoiseSpec(task={"weights": GaussianPosterior(model.network).draw(levels, self.train_samples)})

    def adapt(self, meta: Parts, model: Model, support: Batch, noise: Noise) -> Parts:
        family = GaussianPosterior(model.network)
        return family.groups(self.optimise_lower_level(family.vectors(meta), model, support, noise))

    def prediction_noise(self, model: Model, samples: int, support: int) -> Mapping[str, Draw]:
        return {"weights": GaussianPosterior(model.network).draw(samples)}

    def predict(self, posterior: Parts, model: Model, x: Tensor, noise: Noise) -> Tensor:
        family = GaussianPosterior(model.network)
        return outputs(model.network, family.sample(family.vectors(posterior), noise["weights"]), x)

    def optimise_lower_level(self, prior: Params, model: Model, support: Batch, noise: Noise) -> Params:
        """λ_K as flat vectors, from θ as flat vectors."""
        return descend_free_energy(
            prior,
            model,
            support,
            noise["weights"][:-1],
            lr=self.inner_lr,
            kl_weight=self.kl_weight * self.temperature / support.x.shape[0],
            first_order=self.first_order,
            clip_norm=self.inner_clip_norm,
        )
