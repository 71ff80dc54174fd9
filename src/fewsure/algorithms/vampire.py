"""VAMPIRE (Nguyen, Do and Carneiro, 2020, "Uncertainty in model-agnostic meta-learning using variational inference").

lower level:   λ descends the variational free energy of the support set, as `gaussian.py` writes it
upper level:   θ minimises E_{q(w; λ_K)}[ℓ(query)]: the negative log-likelihood, here per example and times τ
"""

from dataclasses import dataclass

from torch import Tensor

from fewsure.algorithms.parts.gaussian import GaussianMethod
from fewsure.posteriors.gaussian import GaussianPosterior, divergence, expected_loss
from fewsure.types import Info, Model, Noise, Parts, Stage, Task


@dataclass(frozen=True)
class Vampire(GaussianMethod):
    """Variational inference in MAML (VAMPIRE; Nguyen et al., 2020): a learned Gaussian prior of a task's weights.

    Lower level, k = 1..K, from λ_0 = θ:   λ_k = λ_{k-1} − α ∇ { E_q[ℓ(support)] + (β τ/m) KL[q(w; λ_{k-1}) ‖ p(w; θ)] }
    Upper level:                           min_θ E_task E_{q(w; λ_K)}[ℓ(query)]

    ℓ is the mean loss of the examples, and a label's likelihood is proportional to exp(−ℓ/τ).
    """

    def loss(self, meta: Parts, model: Model, task: Task, noise: Noise, stage: Stage) -> tuple[Tensor, Info]:
        prior = GaussianPosterior(model.network).vectors(meta)
        posterior = self.optimise_lower_level(prior, model, task.support, noise)
        loss = expected_loss(posterior, model, task.query, noise["weights"][-1])
        return loss, {"loss": loss, "kl": divergence(posterior, prior), "std": posterior["log_std"].mean().exp()}
