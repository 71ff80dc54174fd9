"""PACOH (Rothfuss, Fortuin, Josifoski and Krause, 2021, "PACOH: Bayes-optimal meta-learning with PAC-guarantees").

model:            a Gaussian process whose mean and whose features are networks; φ holds all of its numbers (`gp`)
hyper-prior:      𝒫(φ) = N(0, s² I), s smaller for matrices of weights than for all else
hyper-posterior:  𝒬(φ) ∝ 𝒫(φ) · Π_i Z(S_i; φ)^(1/(√(n m) + 1)),   Z the evidence of one of n tasks with m examples
training:         K particles φ_k, moved towards 𝒬 by Stein variational gradient descent; one particle goes to its mode
prediction:       the mixture of the K processes, each given the support set
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from fewsure.algorithms.gp import Gp
from fewsure.algorithms.linear import REGRESSION
from fewsure.core.vectorise import for_each, stack_components
from fewsure.errors import require
from fewsure.posteriors.particles import stein_direction
from fewsure.types import Algorithm, Batch, Draw, Info, Kind, Mixture, Model, Noise, Parts, Stage, Task


@dataclass(frozen=True)
class Pacoh(Algorithm):
    """Gaussian processes with learned means and kernels, several at once, for few training tasks (PACOH).

    A hyper-prior keeps the networks from fitting the training tasks alone. Where the particles disagree, the training
    tasks have not said which prior new tasks have.
    """

    kinds: ClassVar[frozenset[Kind]] = REGRESSION
    min_support: ClassVar[int] = 0
    train_train: ClassVar[bool] = True
    own_density: ClassVar[bool] = True

    kernels: tuple[str, ...] = ("rbf",)
    """The kernels of features that are added up; those of `gp`."""
    particles: int = 5
    """K; one is the most likely process alone (PACOH-MAP)."""
    prior_weight_std: float = 0.5
    """s of matrices of weights."""
    prior_std: float = 3.0
    """s of biases, and of the logarithms of length scales, spreads and noise."""
    prior_tasks: int = 100
    """n, the training tasks that the hyper-prior is weighed against: give the number of groups that you have."""

    def __post_init__(self) -> None:
        _ = self.process  # says which kernels are wrong
        for name in ("prior_weight_std", "prior_std"):
            require(0 < getattr(self, name) < math.inf, name, "a number above 0", getattr(self, name))
        for name in ("particles", "prior_tasks"):
            require(getattr(self, name) >= 1, name, "at least 1", getattr(self, name))

    @property
    def process(self) -> Gp:
        """The process of one particle."""
        return Gp(self.kernels, ard=False, trend="network", learn_features=True)

    def init(self, model: Model, generator: torch.Generator) -> Parts:
        found: Parts = stack_components([self.process.init(model, generator) for _ in range(self.particles)])
        return found

    def adapt(self, meta: Parts, model: Model, support: Batch, noise: Noise) -> Parts:
        adapted: Parts = for_each(lambda one, given: self.process.adapt(one, model, given, {}))(meta, support)
        return adapted

    def loss(self, meta: Parts, model: Model, task: Task, noise: Noise, stage: Stage) -> tuple[Tensor, Info]:
        """A scalar whose gradient is minus the direction of the particles: the mean over tasks is that of all tasks.

        The logarithm of 𝒬 is taken for each example, so it is multiplied by (√(n m) + 1)/(n m).
        """
        examples = len(task.support.y) + len(task.query.y)
        weight = (math.sqrt(self.prior_tasks * examples) + 1) / (self.prior_tasks * examples)

        def negative_evidence(one: Parts, task: Task) -> Tensor:
            return self.process.loss(one, model, task, {}, stage)[0]

        def log_density(particles: Parts) -> tuple[Tensor, Tensor]:
            losses = for_each(negative_evidence)(particles, task)
            return weight * self._log_prior(particles) - losses.sum(), losses  # of independent terms

        at = pytree.tree_map(torch.Tensor.detach, meta)
        scores, losses = torch.func.grad(log_density, has_aux=True)(at)
        direction = weight * stein_direction(_rows(at), _rows(scores) / weight)
        return -(_rows(meta) * direction).sum(), {"loss": losses.mean()}

    def prediction_noise(self, model: Model, samples: int, support: int) -> Mapping[str, Draw]:
        """Each particle draws the same number of functions, together at least as many as are asked for."""
        each = self.process.prediction_noise(model, math.ceil(samples / self.particles), support)
        return {name: Draw((self.particles, *draw.shape), draw.kind) for name, draw in each.items()}

    def predict(self, posterior: Parts, model: Model, x: Tensor, noise: Noise) -> Tensor:
        def functions(one: tuple[Parts, Noise], x: Tensor) -> Tensor:
            return self.process.predict(one[0], model, x, one[1])

        own = {name: noise[name] for name in self.prediction_noise(model, 1, 1)}
        found: Tensor = for_each(functions, loop=True)((posterior, own), x)
        return found.flatten(0, 1)

    def predictive(self, posterior: Parts, model: Model, x: Tensor, noise: Noise) -> Mixture:
        each = for_each(lambda one, x: self.process.predictive(one, model, x, {}), loop=True)(posterior, x)
        weights, means, stds, of_functions = (part.squeeze(-1).mT for part in each)
        return Mixture(weights / self.particles, means, stds, of_functions)

    def _log_prior(self, particles: Parts) -> Tensor:
        """Σ_k ln 𝒫(φ_k), up to a constant."""
        terms = [
            (value / (self.prior_weight_std if value.dim() > 2 else self.prior_std)).square().sum()
            for params in particles.values()
            for value in params.values()
        ]
        return -0.5 * torch.stack(terms).sum()


def _rows(particles: Parts) -> Tensor:
    """(K, n)."""
    values = [value for params in particles.values() for value in params.values()]
    return torch.cat([value.reshape(len(value), -1) for value in values], dim=1)
