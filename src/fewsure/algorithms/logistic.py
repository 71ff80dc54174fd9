"""Logistic regression on the known examples of a task, with a Gaussian prior whose spread is learned.

    p(c | x) = softmax of (1, x) W,   W ~ N(M, τ²),   W the most likely one given the support set

M is 0. Where classes are the same in every task, it is the logistic regression of all training rows. With a small τ a
task keeps to it. With a large one it goes by its own examples alone.

W = M + τ² ΦᵀA with one row of A for each example; K = τ² Φ Φᵀ. Each step minimises a quadratic that lies above the loss
(Böhning, 1992, "Multinomial logistic regression algorithm"). The loss never rises, and one Cholesky factor serves all:
    A ← A + (K/2 + I)⁻¹ (Y − softmax(Φ M + K A) − A)
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
from fewsure.algorithms.parts.group_evidence import minimise
from fewsure.algorithms.parts.linear_gaussian import add_noise, cholesky
from fewsure.core.vectorise import indicators
from fewsure.errors import require
from fewsure.types import Algorithm, Batch, Info, Kind, Model, Noise, Parts, Stage, Task

POOLED_ROWS = 20_000
"""The most training rows of the regression of all."""


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
        prior = {"prior": {"log_std": torch.tensor(start)}}
        if not model.fixed_classes:
            return prior
        return prior | {"pooled": {"mean": torch.zeros(1 + math.prod(model.network.inputs), model.outputs)}}

    def fit(self, meta: Parts, model: Model, groups: Sequence[Batch], generator: torch.Generator) -> Parts:
        if model.fixed_classes:
            meta = meta | {"pooled": {"mean": _pooled(model, groups, generator).to(meta["prior"]["log_std"])}}
        return fit_to_tasks(self, meta, ["prior"], model, groups, generator)

    def adapt(self, meta: Parts, model: Model, support: Batch, noise: Noise) -> Parts:
        features = with_intercept(support.x)
        variance = (2 * meta["prior"]["log_std"].double()).exp()
        covariance = variance * features @ features.mT
        factor = cholesky(add_noise(covariance / 2, torch.ones(()).to(features)))
        labels = indicators(support.y, model.outputs).to(features)
        mean = meta["pooled"]["mean"].double() if "pooled" in meta else torch.zeros_like(features.mT @ labels)
        dual, start = torch.zeros_like(labels), features @ mean
        for _ in range(self.solver_steps):
            missed = labels - (start + covariance @ dual).softmax(-1) - dual
            dual = dual + torch.cholesky_solve(missed, factor)
        return {"logits": {"weights": mean + variance * features.mT @ dual}}

    def loss(self, meta: Parts, model: Model, task: Task, noise: Noise, stage: Stage) -> tuple[Tensor, Info]:
        (logits,) = self.predict(self.adapt(meta, model, task.support, noise), model, task.query.x, noise)
        loss = model.loss(logits, task.query.y).mean()
        return loss, {"loss": loss, "prior_std": meta["prior"]["log_std"].exp()}

    def predict(self, posterior: Parts, model: Model, x: Tensor, noise: Noise) -> Tensor:
        return (with_intercept(x) @ posterior["logits"]["weights"]).unsqueeze(0).to(x.dtype)


def _pooled(model: Model, groups: Sequence[Batch], generator: torch.Generator) -> Tensor:
    """The weights (1 + D, C) of all training rows, or of random ones of many; their prior has a spread of 1."""
    each = max(1, POOLED_ROWS // len(groups))
    kept = []
    for number in range(len(groups)):
        x, y = groups[number]
        rows = torch.randperm(len(x), generator=generator, device=generator.device)[:each]
        kept.append(Batch(with_intercept(x[rows]), y[rows]))
    x, y = (torch.cat(parts) for parts in zip(*kept, strict=True))

    def loss(parts: Parts) -> Tensor:
        weights = parts["pooled"]["mean"].to(x)
        return functional.cross_entropy(x @ weights, y) + weights.square().sum() / (2 * len(x))

    start = torch.zeros(x.shape[1], model.outputs, dtype=torch.float64, device=x.device)
    return minimise(loss, {"pooled": {"mean": start}})["pooled"]["mean"]
