"""MAML (Finn, Abbeel and Levine, 2017, "Model-agnostic meta-learning for fast adaptation of deep networks")."""

from dataclasses import dataclass

import torch
from torch import Tensor

from fewsure.core.gradient import descend, require_clip_norm
from fewsure.errors import require
from fewsure.posteriors import outputs, stack_one
from fewsure.types import Algorithm, Batch, Info, Model, Noise, Params, Parts, Stage, Task


@dataclass(frozen=True)
class Maml(Algorithm):
    """Model-agnostic meta-learning (Finn et al., 2017): one initialisation from which a few gradient steps go far.

    Lower level, k = 1..K, from w_0 = θ:   w_k = w_{k-1} − α ∇ L(support; w_{k-1})
    Upper level:                           min_θ E_task L(query; w_K)

    The posterior of a task is the point w_K, so all its predictions agree: it does not know how sure it is.
    """

    inner_lr: float = 1e-2
    """α, the step size of adaptation."""
    inner_steps: int = 5
    """K, gradient steps per task."""
    inner_clip_norm: float | None = None
    """Largest norm of a gradient in a task; a larger one is scaled down. `none` for no limit."""
    first_order: bool = True
    """Take the inner gradients as constants (cheaper); off, differentiate through them."""

    def __post_init__(self) -> None:
        require(0 < self.inner_lr < float("inf"), "inner_lr", "a number above 0", self.inner_lr)
        require(self.inner_steps >= 1, "inner_steps", "at least 1", self.inner_steps)
        require_clip_norm(self.inner_clip_norm)

    def init(self, model: Model, generator: torch.Generator) -> Parts:
        return {"weights": model.network.init(generator)}

    def adapt(self, meta: Parts, model: Model, support: Batch, noise: Noise) -> Parts:
        def support_loss(weights: Params) -> Tensor:
            return model.loss(model.network(weights, support.x), support.y).mean()

        weights = meta["weights"]
        for _ in range(self.inner_steps):
            weights = descend(
                support_loss, weights, self.inner_lr, first_order=self.first_order, clip_norm=self.inner_clip_norm
            )
        return {"weights": weights}

    def loss(self, meta: Parts, model: Model, task: Task, noise: Noise, stage: Stage) -> tuple[Tensor, Info]:
        weights = self.adapt(meta, model, task.support, noise)["weights"]
        loss = model.loss(model.network(weights, task.query.x), task.query.y).mean()
        return loss, {"loss": loss}

    def predict(self, posterior: Parts, model: Model, x: Tensor, noise: Noise) -> Tensor:
        return outputs(model.network, stack_one(posterior["weights"]), x)
