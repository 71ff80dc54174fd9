"""MetaQDA: a Gaussian for each class, with a learned prior.

Zhang, Meng, Gouk and Hospedales, 2021, "Shallow Bayesian meta learning for real-world few-shot recognition".

features:    z = A (x − centre)
a class:     z ~ N(μ, Σ),   μ ~ N(0, Σ/κ),   Σ ~ inverse Wishart(ψ I, D − 1 + δ)      (normal-inverse-Wishart)
posterior:   m = Σ z_i / (κ + n),   Ψ = ψ I + Zᵀ Z − (κ + n) m mᵀ   of its n examples Z (n, D)
prediction:  p(z | c) = Student's t with δ + n degrees of freedom, at m, with scale Ψ (κ+n+1) / ((κ+n) (δ+n))
             p(c | x) ∝ p(z | c)

The degrees of freedom say how much is known of a class: the fewer examples, the heavier the tails. With V of rank n,
Ψ = ψ I + Vᵀ V, so a class costs a Cholesky factor of n rows, whatever D is.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fewsure.algorithms.parts.class_tasks import fit_to_tasks
from fewsure.algorithms.parts.linear_gaussian import add_noise, cholesky
from fewsure.algorithms.parts.shares import log_shares, shares_init, with_shares
from fewsure.core.vectorise import indicators
from fewsure.errors import require
from fewsure.types import Algorithm, Batch, Info, Kind, Model, Network, Noise, Parts, Stage, Task

WIDEST = 4096
"""The most numbers of an input that are whitened."""
POOLED_ROWS = 20_000
"""The most training rows behind the common covariance."""


@dataclass(frozen=True)
class MetaQda(Algorithm):
    """A Gaussian for each class of a task, with a learned prior on its mean and covariance (MetaQDA).

    Inputs should be features of a network. The number of classes may differ between tasks.
    """

    kinds: ClassVar[frozenset[Kind]] = frozenset({"classification"})
    any_way: ClassVar[bool] = True
    baseline: ClassVar[bool] = True

    learn_features: bool = False
    """See features: the base network without its last layer, trained by updates. Off, inputs, which are whitened by
    the training classes."""

    def init(self, model: Model, generator: torch.Generator) -> Parts:
        width = math.prod(model.network.inputs)
        require(self.learn_features or width <= WIDEST, "inputs", f"at most {WIDEST} numbers, or learn_features", width)
        features = (
            {"embedding": model.network.embedding.init(generator)}
            if self.learn_features
            else {"whitening": {"centre": torch.zeros(width), "matrix": torch.eye(width)}}
        )
        prior = {"log_kappa": torch.tensor(-1.0), "log_delta": torch.tensor(2.0), "log_psi": torch.tensor(2.0)}
        return features | {"prior": prior} | shares_init(model)

    def shared_network(self, model: Model) -> Network | None:
        return model.network.embedding if self.learn_features else None

    def fit(self, meta: Parts, model: Model, groups: Sequence[Batch], generator: torch.Generator) -> Parts:
        """The centre of training classes, whitening by their common covariance, and the best prior for their tasks."""
        if self.learn_features:
            return meta
        whitening = {name: value.to(meta["prior"]["log_psi"]) for name, value in _whitening(groups, generator).items()}
        learned = ["prior", *shares_init(model)]
        return fit_to_tasks(self, meta | {"whitening": whitening}, learned, model, groups, generator)

    def adapt(self, meta: Parts, model: Model, support: Batch, noise: Noise) -> Parts:
        z, (kappa, delta, psi) = self._features(meta, model, support.x), _prior(meta)

        def posterior(member: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            """m (D,), L⁻¹ V (n, D) with L Lᵀ = ψ I + V Vᵀ, and ln |Ψ| () less D ln ψ."""
            count = member.sum()
            shrunk = (1 - (kappa / (kappa + count)).sqrt()) / count.clamp(min=1)  # V = (I − shrunk 1 1ᵀ) Z
            rows = member.unsqueeze(-1) * (z - shrunk * (member @ z))
            factor = cholesky(add_noise(rows @ rows.mT, psi.sqrt()))
            log_determinant = 2 * factor.diagonal(dim1=-2, dim2=-1).log().sum(-1) - len(z) * psi.log()
            return (
                member @ z / (kappa + count),
                torch.linalg.solve_triangular(factor, rows, upper=False),
                log_determinant,
            )

        members = indicators(support.y, model.outputs).to(z).mT
        means, roots, log_determinants = torch.func.vmap(posterior)(members)
        kappas, degrees, width = kappa + members.sum(-1), delta + members.sum(-1), z.shape[-1]
        spread = (kappas + 1) / kappas  # of the scale, times the degrees
        log_volume = 0.5 * (width * spread.log() + log_determinants)
        height = torch.lgamma(0.5 * (degrees + width)) - torch.lgamma(0.5 * degrees) - log_volume
        classes = {"mean": means, "root": roots, "height": height, "spread": spread, "power": 0.5 * (degrees + width)}
        return meta | {"classes": classes | log_shares(meta, support.y, model.outputs)}

    def loss(self, meta: Parts, model: Model, task: Task, noise: Noise, stage: Stage) -> tuple[Tensor, Info]:
        (logits,) = self.predict(self.adapt(meta, model, task.support, noise), model, task.query.x, noise)
        loss = model.loss(logits, task.query.y).mean()
        return loss, {"loss": loss} | {name[4:]: value.exp() for name, value in meta["prior"].items()}

    def predict(self, posterior: Parts, model: Model, x: Tensor, noise: Noise) -> Tensor:
        classes, (_, _, psi) = posterior["classes"], _prior(posterior)
        away = self._features(posterior, model, x) - classes["mean"].unsqueeze(1)  # (C, N, D)
        explained = (away @ classes["root"].mT).square().sum(-1)
        distance = (away.square().sum(-1) - explained) / psi  # by Ψ
        tail = classes["power"].unsqueeze(-1) * (1 + distance / classes["spread"].unsqueeze(-1)).log()
        return with_shares((classes["height"].unsqueeze(-1) - tail).mT, classes).unsqueeze(0).to(x.dtype)

    def _features(self, parts: Parts, model: Model, x: Tensor) -> Tensor:
        """z (N, D)."""
        if self.learn_features:
            return model.network.embedding(parts["embedding"], x).double()
        whitening = parts["whitening"]
        return (x.flatten(1).double() - whitening["centre"].double()) @ whitening["matrix"].double().mT


def _prior(parts: Parts) -> tuple[Tensor, Tensor, Tensor]:
    """(κ, δ, ψ)."""
    prior = parts["prior"]
    kappa, delta, psi = (prior[f"log_{name}"].double().exp() for name in ("kappa", "delta", "psi"))
    return kappa, delta, psi


def _whitening(groups: Sequence[Batch], generator: torch.Generator) -> dict[str, Tensor]:
    """The mean of classes, and the inverse root of their common covariance.

    The covariance is shrunk towards its mean variance as for Gaussian rows (Chen and others, 2010, "Shrinkage
    algorithms for MMSE covariance estimation").
    """
    each = max(2, POOLED_ROWS // len(groups))
    means, missed = [], []
    for number in range(len(groups)):
        x = groups[number].x.flatten(1)
        x = x[torch.randperm(len(x), generator=generator, device=generator.device)[:each]].double()
        means.append(x.mean(0))
        missed.append(x - means[-1])
    rows = torch.cat(missed)
    covariance, width = rows.mT @ rows / len(rows), rows.shape[1]
    variance, square = covariance.diagonal().mean(), covariance.square().mean()
    surplus = (len(rows) + 1) * (square - variance.square() / width)
    shrinkage = torch.where(surplus > 0, (square + variance.square()) / surplus, 1.0).clamp(max=1)
    identity = torch.eye(width).to(covariance)
    factor = cholesky((1 - shrinkage) * covariance + shrinkage * variance * identity)
    matrix = torch.linalg.solve_triangular(factor, identity, upper=False)
    return {"centre": torch.stack(means).mean(0), "matrix": matrix}
