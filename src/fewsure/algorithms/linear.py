"""Bayesian linear models with a prior from the training groups: `mean`, `ridge` and `mixed`.

y = w·φ(x) + noise of σ,   w ~ N(μ, diag s²),   exact posterior and density of a task (parts/linear_gaussian)

            φ(x)          μ                           s
`mean`      1             the global mean             τ: how groups differ from it
`ridge`     (1, x)        a global intercept, 0 …     τ₀ of the intercept, τ of all slopes: λ = σ² / τ²
`mixed`     (1, x)        all columns: fixed effects  τ₀ of the intercept; none of the slopes, or one τ of each

`mean` is `mixed` without columns; `ridge` is `gp` with a constant and a linear kernel. μ is the generalised least
squares estimate, and s and σ maximise the (restricted) likelihood of the whole training groups.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from fewsure.algorithms.parts import linear_gaussian
from fewsure.algorithms.parts.class_tasks import fit_to_tasks
from fewsure.algorithms.parts.group_evidence import (
    Statistics,
    Whitened,
    fit_evidence,
    statistics,
    whitened_statistics,
)
from fewsure.core.vectorise import indicators, stack_components
from fewsure.errors import require
from fewsure.types import Algorithm, Batch, Draw, Info, Kind, Mixture, Model, Network, Noise, Parts, Stage, Task

REGRESSION: frozenset[Kind] = frozenset({"regression"})


@dataclass(frozen=True)
class LinearModel(Algorithm):
    """y = w·φ(x) + noise with a Gaussian prior on w, of which the first few weights have a learned mean."""

    kinds: ClassVar[frozenset[Kind]] = REGRESSION
    min_support: ClassVar[int] = 0
    train_train: ClassVar[bool] = True
    own_density: ClassVar[bool] = True
    baseline: ClassVar[bool] = True

    def features(self, parts: Parts, model: Model, x: Tensor) -> Tensor:
        """φ(x) (N, P) in double precision."""
        raise NotImplementedError

    def weights(self, model: Model) -> int:
        """P."""
        raise NotImplementedError

    def learned(self, model: Model) -> tuple[int, int]:
        """How many weights have a learned mean, and how many standard deviations there are."""
        raise NotImplementedError

    def std(self, learned: Tensor, weights: int) -> Tensor:
        """s (P,) from the learned standard deviations."""
        raise NotImplementedError

    @property
    def restricted(self) -> bool:
        """Whether `fit` maximises the restricted likelihood, which allows for the estimation of μ."""
        return True

    def init(self, model: Model, generator: torch.Generator) -> Parts:
        means, stds = self.learned(model)
        prior = {"mean": torch.zeros(means), "log_std": torch.zeros(stds)}
        return {"prior": prior, "noise": {"log_std": torch.zeros(())}}

    def fit(self, meta: Parts, model: Model, groups: Sequence[Batch], generator: torch.Generator) -> Parts:
        whole = stack_components(
            [statistics(self.features(meta, model, group.x), group.y.double()) for group in groups]
        )
        means = len(meta["prior"]["mean"])

        def whiten(group: Statistics, logarithms: Parts) -> Whitened:
            return whitened_statistics(group, *self._stds(logarithms, model), means)

        start = {"prior": {"log_std": meta["prior"]["log_std"]}, "noise": meta["noise"]}
        mean, found = fit_evidence(whiten, whole, start, restricted=self.restricted)
        return meta | {"prior": mean | found["prior"], "noise": found["noise"]}

    def adapt(self, meta: Parts, model: Model, support: Batch, noise: Noise) -> Parts:
        std, noise_std = self._stds(meta, model)
        features = self.features(meta, model, support.x)
        posterior = linear_gaussian.condition_weights(
            features, support.y.double(), self._mean(meta, model), std, noise_std
        )
        return self._kept(meta) | {"weights": posterior._asdict(), "noise": meta["noise"]}

    def loss(self, meta: Parts, model: Model, task: Task, noise: Noise, stage: Stage) -> tuple[Tensor, Info]:
        """The mean negative evidence of an example, of support and query together."""
        features = self.features(meta, model, torch.cat([task.support.x, task.query.x]))
        y = torch.cat([task.support.y, task.query.y]).double()
        std, noise_std = self._stds(meta, model)
        covariance = features * std.square() @ features.mT
        residual = y - features @ self._mean(meta, model)
        loss = -linear_gaussian.log_evidence(covariance, residual, noise_std).to(task.query.y.dtype) / len(y)
        return loss, {"loss": loss, "noise_std": noise_std.to(loss.dtype)}

    def prediction_noise(self, model: Model, samples: int, support: int) -> Mapping[str, Draw]:
        return {"weights": Draw((samples, self.weights(model)))}

    def predict(self, posterior: Parts, model: Model, x: Tensor, noise: Noise) -> Tensor:
        weights = linear_gaussian.Weights(**posterior["weights"])
        drawn = weights.mean + weights.root @ noise["weights"].to(weights.root.dtype).mT
        return (self.features(posterior, model, x) @ drawn).mT.unsqueeze(-1).to(x.dtype)

    def predictive(self, posterior: Parts, model: Model, x: Tensor, noise: Noise) -> Mixture:
        features, weights = self.features(posterior, model, x), linear_gaussian.Weights(**posterior["weights"])
        variance = (features @ weights.root).square().sum(-1, keepdim=True)
        log_noise_std = posterior["noise"]["log_std"]
        return linear_gaussian.label_density(features @ weights.mean, variance, log_noise_std, x.dtype)

    def _kept(self, meta: Parts) -> Parts:
        """The meta-parameters that make features."""
        return {}

    def _stds(self, meta: Parts, model: Model) -> tuple[Tensor, Tensor]:
        """(s (P,), σ)."""
        learned = meta["prior"]["log_std"].double().exp()
        return self.std(learned, self.weights(model)), meta["noise"]["log_std"].double().exp()

    def _mean(self, meta: Parts, model: Model) -> Tensor:
        """μ (P, 1)."""
        learned = meta["prior"]["mean"].double()
        return functional.pad(learned, (0, self.weights(model) - len(learned))).unsqueeze(-1)


@dataclass(frozen=True)
class Mean(LinearModel):
    """The mean of a task's known rows, shrunk to the mean of all training rows as far as groups differ little."""

    def features(self, parts: Parts, model: Model, x: Tensor) -> Tensor:
        return with_intercept(x)[:, :1]

    def weights(self, model: Model) -> int:
        return 1

    def learned(self, model: Model) -> tuple[int, int]:
        return 1, 1

    def std(self, learned: Tensor, weights: int) -> Tensor:
        return learned


@dataclass(frozen=True)
class Mixed(LinearModel):
    """A linear mixed model: fixed effects of the columns, and a random intercept for each group.

    Fixed effects are those of all training rows. A task's known rows move its intercept, and its slopes if they are
    random.
    """

    slopes: bool = False
    """Each column has a random slope, too, independent of the others."""
    reml: bool = True
    """Variances maximise the restricted likelihood, which allows for the estimation of fixed effects; off, the
    likelihood."""

    @property
    def restricted(self) -> bool:
        return self.reml

    def features(self, parts: Parts, model: Model, x: Tensor) -> Tensor:
        return with_intercept(x)

    def weights(self, model: Model) -> int:
        return 1 + math.prod(model.network.inputs)

    def learned(self, model: Model) -> tuple[int, int]:
        return self.weights(model), self.weights(model) if self.slopes else 1

    def std(self, learned: Tensor, weights: int) -> Tensor:
        return functional.pad(learned, (0, weights - len(learned)))


@dataclass(frozen=True)
class Ridge(LinearModel):
    """Ridge regression on a task's known examples, with a penalty that is learned.

    For numbers it is a Bayesian linear model, which knows how sure it is. Classes are regressed on as indicators, and
    the softmax of a learned multiple gives their probabilities; the number of classes may differ between tasks. With
    learned features it is R2-D2 (Bertinetto et al., 2019). Where classes are the same in every task, the prior of their
    weights then has a learned mean.
    """

    kinds: ClassVar[frozenset[Kind]] = frozenset({"regression", "classification"})
    any_way: ClassVar[bool] = True

    learn_features: bool = False
    """Regress on features: the base network without its last layer, trained by updates. Off, on inputs."""
    with_inputs: bool = False
    """Beside learned features, regress on the inputs themselves, made as long as 1. For classes."""
    leave_one_out: bool = False
    """With learned features and fixed classes, train on each example of a task as predicted from all others."""

    def __post_init__(self) -> None:
        for name in ("with_inputs", "leave_one_out"):
            given = getattr(self, name)
            require(self.learn_features or not given, name, "left out without learn_features", given)

    def init(self, model: Model, generator: torch.Generator) -> Parts:
        # In a task with as many examples of each class, the one that is left out is of the class that is short.
        possible = model.fixed_classes or not self.leave_one_out
        require(possible, "leave_one_out", "left out where classes differ between tasks", self.leave_one_out)
        embedding = {"embedding": model.network.embedding.init(generator)} if self.learn_features else {}
        if model.kind == "regression":
            return embedding | super().init(model, generator)
        slopes = -0.5 * math.log(self.weights(model))  # so that φ(x)·w has a spread of about 1
        prior = {"log_std": torch.tensor([0.0, slopes, *[0.0] * self.with_inputs])}
        if self.learn_features and model.fixed_classes:
            prior["mean"] = torch.zeros(self.weights(model), model.outputs)
        return embedding | {"prior": prior, "logits": {"log_scale": torch.ones(())}}

    def shared_network(self, model: Model) -> Network | None:
        return model.network.embedding if self.learn_features and not self.with_inputs else None

    def fit(self, meta: Parts, model: Model, groups: Sequence[Batch], generator: torch.Generator) -> Parts:
        if self.learn_features:
            return meta
        if model.kind == "classification":
            return fit_to_tasks(self, meta, ["prior", "logits"], model, groups, generator)
        return super().fit(meta, model, groups, generator)

    def adapt(self, meta: Parts, model: Model, support: Batch, noise: Noise) -> Parts:
        if model.kind == "regression":
            return super().adapt(meta, model, support, noise)
        columns, variances = self._columns(meta, model, support.x), self._variances(meta, model)
        residual = _indicators(support.y, model) - self._pooled(meta, columns)
        conditioned = linear_gaussian.condition(_covariance(columns, variances), residual, torch.ones(()).to(residual))
        weights = {name: variances[name] * (x.mT.double() @ conditioned.weights) for name, x in columns.items()}
        if "mean" in meta["prior"]:
            weights["features"] = weights["features"] + meta["prior"]["mean"]
        return self._kept(meta) | {"logits": {name: _scale(meta) * found for name, found in weights.items()}}

    def loss(self, meta: Parts, model: Model, task: Task, noise: Noise, stage: Stage) -> tuple[Tensor, Info]:
        """The evidence for numbers, the cross-entropy of the query set for classes."""
        if model.kind == "regression":
            return super().loss(meta, model, task, noise, stage)
        if self.leave_one_out:
            x, y = (torch.cat(parts) for parts in zip(task.support, task.query, strict=True))
            logits = self._left_out(meta, model, Batch(x, y)).to(x.dtype)
        else:
            y = task.query.y
            (logits,) = self.predict(self.adapt(meta, model, task.support, noise), model, task.query.x, noise)
        loss = model.loss(logits, y).mean()
        return loss, {"loss": loss, "scale": meta["logits"]["log_scale"].exp()}

    def _left_out(self, meta: Parts, model: Model, examples: Batch) -> Tensor:
        """The logits (N, C) of each example from the posterior given all others."""
        columns = self._columns(meta, model, examples.x)
        pooled, covariance = self._pooled(meta, columns), _covariance(columns, self._variances(meta, model))
        residual = _indicators(examples.y, model) - pooled
        found = linear_gaussian.leave_one_out(covariance, residual, torch.ones(()).to(residual))
        return _scale(meta) * (pooled + found)

    def _columns(self, parts: Parts, model: Model, x: Tensor) -> dict[str, Tensor]:
        """The columns (N, ·) that indicators of classes are regressed on; inputs need no double precision."""
        inputs = {"inputs": functional.normalize(x.flatten(1), dim=-1)} if self.with_inputs else {}
        return {"features": self.features(parts, model, x)} | inputs

    def _variances(self, meta: Parts, model: Model) -> dict[str, Tensor]:
        """s² of the weights of each kind of column, (P, 1) or (1, 1)."""
        learned = meta["prior"]["log_std"].double().exp()
        features = {"features": self.std(learned[:2], self.weights(model)).square().unsqueeze(-1)}
        return features | {"inputs": learned[2].square().reshape(1, 1)} if self.with_inputs else features

    def _pooled(self, meta: Parts, columns: Mapping[str, Tensor]) -> Tensor:
        """The prior mean of the regression on indicators: (N, C), or 0."""
        mean, features = meta["prior"].get("mean"), columns["features"]
        return torch.zeros_like(features[:, :1]) if mean is None else features @ mean.double()

    def prediction_noise(self, model: Model, samples: int, support: int) -> Mapping[str, Draw]:
        return super().prediction_noise(model, samples, support) if model.kind == "regression" else {}

    def predict(self, posterior: Parts, model: Model, x: Tensor, noise: Noise) -> Tensor:
        if model.kind == "regression":
            return super().predict(posterior, model, x, noise)
        columns, weights = self._columns(posterior, model, x), posterior["logits"]
        parts = [columns[name] @ found.to(columns[name]) for name, found in weights.items()]
        return torch.stack([part.to(x.dtype) for part in parts]).sum(0, keepdim=True)

    def features(self, parts: Parts, model: Model, x: Tensor) -> Tensor:
        return with_intercept(model.network.embedding(parts["embedding"], x) if self.learn_features else x)

    def weights(self, model: Model) -> int:
        return 1 + (model.network.width if self.learn_features else math.prod(model.network.inputs))

    def learned(self, model: Model) -> tuple[int, int]:
        return 1, 2

    def std(self, learned: Tensor, weights: int) -> Tensor:
        return torch.cat([learned[:1], learned[1:].expand(weights - 1)])

    def _kept(self, meta: Parts) -> Parts:
        return {"embedding": meta["embedding"]} if self.learn_features else {}


def _covariance(columns: Mapping[str, Tensor], variances: Mapping[str, Tensor]) -> Tensor:
    """K (N, N) of the regression on columns whose weights have these variances."""
    products = [(x * variances[name].mT.to(x) @ x.mT).double() for name, x in columns.items()]
    return torch.stack(products).sum(0)


def _indicators(y: Tensor, model: Model) -> Tensor:
    """1[y = c] − 1/C (N, C) in double precision."""
    return indicators(y, model.outputs).double() - 1 / model.outputs


def _scale(meta: Parts) -> Tensor:
    return meta["logits"]["log_scale"].double().exp()


def with_intercept(x: Tensor) -> Tensor:
    """(1, x) (N, 1 + D) in double precision."""
    columns = x.flatten(1).double()
    return torch.cat([torch.ones_like(columns[:, :1]), columns], dim=1)
