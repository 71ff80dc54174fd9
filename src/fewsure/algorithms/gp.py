"""Gaussian processes whose mean and kernel come from the training groups.

y = m(x) + f(x) + noise of σ,   f ~ GP(0, k) anew for each task,   k a sum of kernels (parts/kernels)

Inputs as they are make the classical hierarchical Gaussian process (Minka and Picard, 1997, "Learning how to learn is
learning with point sets"). β of m(x) = β·(1, x) is the generalised least squares estimate. The logarithms of k and σ
maximise the evidence of whole training groups. With `group_scales`, f and the noise of a group are s times as large
(parts/group_scales). Tails are then heavier, and known rows say how large s is.

Features of the base network make a deep kernel (Patacchiola et al., 2020, "Bayesian meta-learning for the few-shot
setting via deep kernels"). m(x) may be a network, too. Updates train them by the evidence of tasks. `pacoh` has
several such processes, and `dkt` is the one for classes.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, get_args

import torch
from torch import Tensor

from fewsure.algorithms.linear import REGRESSION, with_intercept
from fewsure.algorithms.parts import linear_gaussian
from fewsure.algorithms.parts.group_evidence import Whitened, fit_evidence, group_distances, whitened_rows
from fewsure.algorithms.parts.group_scales import SCALES, drawn_scales, fit_shares, log_weights, scaled_density
from fewsure.algorithms.parts.kernels import Kernel, covariance, init_kernels, variances
from fewsure.algorithms.parts.pathwise import function_draws, posterior_functions, prior_functions
from fewsure.core.vectorise import stack_components
from fewsure.errors import require, require_known
from fewsure.types import Algorithm, Batch, Draw, Info, Kind, Mixture, Model, Noise, Parts, Stage, Task

Group = tuple[Tensor, Tensor, Tensor, Tensor]
"""Features (n, W), columns of the mean (n, M), labels (n, 1), and which rows there are (n,)."""


@dataclass(frozen=True)
class Gp(Algorithm):
    """A Gaussian process for each task, with one mean and one kernel for all, from the training groups."""

    kinds: ClassVar[frozenset[Kind]] = REGRESSION
    min_support: ClassVar[int] = 0
    train_train: ClassVar[bool] = True
    own_density: ClassVar[bool] = True
    baseline: ClassVar[bool] = True

    kernels: tuple[str, ...] = ("constant", "linear", "rbf", "matern32")
    """The kernels that are added up, of constant, linear, rbf, exponential, matern32, matern52 and periodic."""
    ard: bool = True
    """A length scale, and a spread of slopes, for every input; off, one for all."""
    trend: Literal["constant", "linear", "network"] = "linear"
    """m(x): one constant for all tasks, a linear function of the inputs, or with learned features a base network."""
    learn_features: bool = False
    """Kernels see features: the base network without its last layer, trained by updates. Off, they see inputs."""
    group_scales: bool = False
    """Groups differ in how far their labels stray from m(x): the shares of scales come from the training groups."""
    fit_groups: int = 200
    """The most training groups behind mean and kernel, drawn at random."""
    fit_rows: int = 60
    """The most rows of each of them, drawn at random."""

    def __post_init__(self) -> None:
        require(len(self.kernels) > 0, "kernels", "at least 1", self.kernels)
        require(len(set(self.kernels)) == len(self.kernels), "kernels", "different ones", self.kernels)
        for name in self.kernels:
            require_known("kernels", name, get_args(Kernel))
        fitted = self.learn_features or self.trend != "network"
        require(fitted, "trend", "constant or linear without learn_features", self.trend)
        fits = not (self.learn_features and self.group_scales)
        require(fits, "group_scales", "off with learn_features", self.group_scales)
        require(self.fit_groups >= 1, "fit_groups", "at least 1", self.fit_groups)
        require(self.fit_rows >= 2, "fit_rows", "at least 2", self.fit_rows)

    def init(self, model: Model, generator: torch.Generator) -> Parts:
        network = model.network
        embedding = {"embedding": network.embedding.init(generator)} if self.learn_features else {}
        columns = torch.zeros(1 + math.prod(network.inputs) if self.trend == "linear" else 1)
        scales = {"scale": {"log_shares": torch.zeros(len(SCALES))}} if self.group_scales else {}
        return (
            embedding
            | scales
            | {
                "mean": network.init(generator) if self.trend == "network" else {"mean": columns},
                "kernel": init_kernels(self.kernels, self._width(model), ard=self.ard),
                "noise": {"log_std": torch.tensor(math.log(0.5))},
            }
        )

    def fit(self, meta: Parts, model: Model, groups: Sequence[Batch], generator: torch.Generator) -> Parts:
        if self.learn_features:
            return meta
        chosen = torch.randperm(len(groups), generator=generator, device=generator.device)[: self.fit_groups]
        padded = [self._rows(groups[number], generator) for number in chosen.tolist()]

        def whiten(group: Group, logarithms: Parts) -> Whitened:
            x, columns, y, known = group
            noise_std = logarithms["noise"]["log_std"].exp()
            return whitened_rows(covariance(self.kernels, logarithms["kernel"], x), noise_std, columns, y, known)

        start = {name: meta[name] for name in ("kernel", "noise")}
        stacked = stack_components(padded)
        mean, found = fit_evidence(whiten, stacked, start, restricted=True)
        if self.group_scales:
            shares = fit_shares(*group_distances(whiten, stacked, mean["mean"], found))
            found = found | {"scale": {"log_shares": shares.to(mean["mean"])}}
        return meta | {"mean": mean} | found

    def adapt(self, meta: Parts, model: Model, support: Batch, noise: Noise) -> Parts:
        x = self._features(meta, model, support.x)
        residual = support.y.double() - self._mean(meta, model, support.x)
        order = residual.squeeze(-1).argsort()  # so that a drawn function does not depend on the order of examples
        x, residual = x[order], residual[order]
        noise_std = meta["noise"]["log_std"].double().exp()
        conditioned = linear_gaussian.condition(covariance(self.kernels, meta["kernel"], x), residual, noise_std)
        own = {}
        if self.group_scales:
            distance = (residual * conditioned.weights).sum()
            own = {"scale": {"log_weights": log_weights(meta["scale"]["log_shares"], distance, len(residual))}}
        return meta | own | {"conditioned": {"x": x} | conditioned._asdict()}

    def loss(self, meta: Parts, model: Model, task: Task, noise: Noise, stage: Stage) -> tuple[Tensor, Info]:
        """The mean negative evidence of an example, of support and query together."""
        x, y = (torch.cat(parts) for parts in zip(task.support, task.query, strict=True))
        prior = covariance(self.kernels, meta["kernel"], self._features(meta, model, x))
        noise_std = meta["noise"]["log_std"].double().exp()
        residual = y.double() - self._mean(meta, model, x)
        evidence = linear_gaussian.log_evidence(prior, residual, noise_std)
        if self.group_scales:
            distance = (residual * linear_gaussian.condition(prior, residual, noise_std).weights).sum()
            log_shares = meta["scale"]["log_shares"].log_softmax(-1)
            evidence = evidence + 0.5 * distance + log_weights(log_shares, distance, len(y)).logsumexp(-1)
        loss = -evidence.to(y.dtype) / len(y)
        return loss, {"loss": loss, "noise_std": noise_std.to(y.dtype)}

    def prediction_noise(self, model: Model, samples: int, support: int) -> Mapping[str, Draw]:
        draws = function_draws(self.kernels, self._width(model), samples, support)
        return draws | ({"scale": Draw((samples,), "uniform")} if self.group_scales else {})

    def predict(self, posterior: Parts, model: Model, x: Tensor, noise: Noise) -> Tensor:
        features, (conditioned, known) = self._features(posterior, model, x), _examples(posterior)
        cross = covariance(self.kernels, posterior["kernel"], features, known)
        prior, of_examples = (prior_functions(self.kernels, posterior["kernel"], at, noise) for at in (features, known))
        of_labels = posterior["noise"]["log_std"].double().exp() * noise["labels"][:, : known.shape[0]].double()
        drawn = posterior_functions(conditioned, cross, prior, of_examples + of_labels)
        if self.group_scales:
            scales = drawn_scales(posterior["scale"]["log_weights"].softmax(-1), noise["scale"])
            middle = linear_gaussian.posterior_mean(conditioned, cross).mT
            drawn = middle + scales.unsqueeze(-1) * (drawn - middle)
        return (self._mean(posterior, model, x).mT + drawn).unsqueeze(-1).to(x.dtype)

    def predictive(self, posterior: Parts, model: Model, x: Tensor, noise: Noise) -> Mixture:
        mean, variance = self._moments(posterior, model, x)
        density = linear_gaussian.label_density(mean, variance, posterior["noise"]["log_std"], x.dtype)
        if not self.group_scales:
            return density
        return scaled_density(density, posterior["scale"]["log_weights"].softmax(-1))

    def left_out(self, meta: Parts, model: Model, support: Batch) -> Mixture:
        """The density of each example's label, given the others."""
        prior = covariance(self.kernels, meta["kernel"], self._features(meta, model, support.x))
        mean, noise_std = self._mean(meta, model, support.x), meta["noise"]["log_std"].double().exp()
        conditioned = linear_gaussian.condition(prior, support.y.double() - mean, noise_std)
        missed, variance = linear_gaussian.left_out(conditioned)
        means, stds = support.y - missed.to(support.y), variance.sqrt().to(support.y)
        return Mixture(torch.ones_like(means), means, stds)

    def _moments(self, posterior: Parts, model: Model, x: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and variance (N, 1) of a task's function at each x."""
        features, (conditioned, known) = self._features(posterior, model, x), _examples(posterior)
        cross = covariance(self.kernels, posterior["kernel"], features, known)
        prior = variances(self.kernels, posterior["kernel"], features)
        mean = self._mean(posterior, model, x) + linear_gaussian.posterior_mean(conditioned, cross)
        return mean, linear_gaussian.posterior_variance(conditioned, cross, prior)

    def _features(self, parts: Parts, model: Model, x: Tensor) -> Tensor:
        seen = model.network.embedding(parts["embedding"], x) if self.learn_features else x.flatten(1)
        return seen.double()

    def _columns(self, x: Tensor) -> Tensor:
        columns = with_intercept(x)
        return columns if self.trend == "linear" else columns[:, :1]

    def _width(self, model: Model) -> int:
        """The numbers that kernels see of an input."""
        return model.network.width if self.learn_features else math.prod(model.network.inputs)

    def _mean(self, parts: Parts, model: Model, x: Tensor) -> Tensor:
        if self.trend == "network":
            return model.network(parts["mean"], x).double()
        return self._columns(x) @ parts["mean"]["mean"].double().unsqueeze(-1)

    def _rows(self, group: Batch, generator: torch.Generator) -> Group:
        """Some rows of a group, padded to the same number in every group."""
        chosen = torch.randperm(len(group.x), generator=generator, device=generator.device)[: self.fit_rows]
        missing = self.fit_rows - len(chosen)
        x, y = (torch.cat([part[chosen], part[:1].expand(missing, *part.shape[1:])]) for part in group)
        known = torch.arange(self.fit_rows, device=x.device) < len(chosen)
        return x.flatten(1).double(), self._columns(x), y.double(), known


def _examples(posterior: Parts) -> tuple[linear_gaussian.Conditioned, Tensor]:
    """The process given a task's labels, and the features of its examples."""
    found = posterior["conditioned"]
    return linear_gaussian.Conditioned(found["weights"], found["root"]), found["x"]
