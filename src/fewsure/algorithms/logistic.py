"""Logistic regression on the known examples of a task, with a Gaussian prior whose spread is learned.

    p(c | x) = softmax of (1, x) W,   W ~ N(0, τ²),   W the most likely one given the support set

W = τ² ΦᵀA with one row of A for each example; K = τ² Φ Φᵀ. Each step minimises a quadratic that lies above the loss
(Böhning, 1992, "Multinomial logistic regression algorithm"). The loss never rises, and one Cholesky factor serves all:
    A ← A + (K/2 + I)⁻¹ (Y − softmax(K A) − A)
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from fewsure.algorithms.linear import with_intercept
from fewsure.algorithms.parts.class_tasks import fit_to_tasks
from fewsure.algorithms.parts.linear_gaussian import add_noise, cholesky
from fewsure.errors import require
from fewsure.types import Algorithm, Batch, Info, Kind, Model, Noise, Parts, Stage, Task


@dataclass(frozen=True)
class Logistic(Algorithm):
    """Logistic regression on a task's known examples, with a penalty that is learned from training tasks.

    The number of classes may differ between tasks.
    """

    kinds: ClassVar[frozenset[Kind]] = frozenset({"classification"})
    any_way: ClassVar[bool] = True
    baseline: ClassVar[bool] = True

    solver_steps: int = 50
    """Steps to the most likely weights of a task."""

    def __post_init__(self) -> None:
        require(self.solver_steps >= 1, "solver_steps", "at least 1", self.solver_steps)

    def init(self, model: Model, generator: torch.Generator) -> Parts:
        start = -0.5 * math.log(math.prod(model.network.inputs))  # so that logits have a spread of about 1
        return {"prior": {"log_std": torch.tensor(start)}}

    def fit(self, meta: Parts, model: Model, groups: Sequence[Batch], generator: torch.Generator) -> Parts:
        return fit_to_tasks(self, meta, ["prior"], model, groups, generator)

    def adapt(self, meta: Parts, model: Model, support: Batch, noise: Noise) -> Parts:
        features = with_intercept(support.x)
        variance = (2 * meta["prior"]["log_std"].double()).exp()
        covariance = variance * features @ features.mT
        factor = cholesky(add_noise(covariance / 2, torch.ones(()).to(features)))
        labels = functional.one_hot(support.y, model.outputs).to(features)
        dual = torch.zeros_like(labels)
        for _ in range(self.solver_steps):
            missed = labels - (covariance @ dual).softmax(-1) - dual
            dual = dual + torch.cholesky_solve(missed, factor)
        return {"logits": {"weights": variance * features.mT @ dual}}

    def loss(self, meta: Parts, model: Model, task: Task, noise: Noise, stage: Stage) -> tuple[Tensor, Info]:
        (logits,) = self.predict(self.adapt(meta, model, task.support, noise), model, task.query.x, noise)
        loss = model.loss(logits, task.query.y).mean()
        return loss, {"loss": loss, "prior_std": meta["prior"]["log_std"].exp()}

    def predict(self, posterior: Parts, model: Model, x: Tensor, noise: Noise) -> Tensor:
        return (with_intercept(x) @ posterior["logits"]["weights"]).unsqueeze(0).to(x.dtype)
