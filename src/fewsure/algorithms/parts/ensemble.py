"""An ensemble: M members of one method, each trained for itself, averaged in probability.

All parts of a task have a leading M. Each member predicts with the same number of functions. Where a method gives a
density of its own, the ensemble's is the mixture of its members'. Training knows members alone (`fewsure.pipeline`).
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from fewsure.core.vectorise import stack_components, take
from fewsure.types import Algorithm, Batch, Draw, Info, Mixture, Model, Noise, NoiseSpec, Parts, Stage, Task

TRAITS = ("kinds", "any_way", "transductive", "min_support", "min_query", "train_train", "own_density", "rounds")
"""The traits that an ensemble has from its members."""


@dataclass(frozen=True)
class Ensemble(Algorithm):
    """Members of one method."""

    member: Algorithm
    members: int
    """M."""

    def __post_init__(self) -> None:
        for name in TRAITS:
            object.__setattr__(self, name, getattr(self.member, name))

    def init(self, model: Model, generator: torch.Generator) -> Parts:
        found: Parts = stack_components([self.member.init(model, generator) for _ in range(self.members)])
        return found

    def noise(self, model: Model, support: int, query: int) -> NoiseSpec:
        return NoiseSpec(*(self._stacked(draws) for draws in self.member.noise(model, support, query)))

    def adapt(self, meta: Parts, model: Model, support: Batch, noise: Noise) -> Parts:
        found: Parts = stack_components(
            [self.member.adapt(one, model, support, own) for one, own in _each(meta, noise)]
        )
        return found

    def loss(self, meta: Parts, model: Model, task: Task, noise: Noise, stage: Stage) -> tuple[Tensor, Info]:
        raise NotImplementedError("each member is trained for itself")

    def prediction_noise(self, model: Model, samples: int, support: int) -> Mapping[str, Draw]:
        """Members draw equally many functions, together at least as many as are asked for."""
        return self._stacked(self.member.prediction_noise(model, math.ceil(samples / self.members), support))

    def predict(self, posterior: Parts, model: Model, x: Tensor, noise: Noise) -> Tensor:
        pairs = _each(posterior, self._own(model, noise))
        return torch.cat([self.member.predict(one, model, x, own) for one, own in pairs])

    def predictive(self, posterior: Parts, model: Model, x: Tensor, noise: Noise) -> Mixture:
        pairs = _each(posterior, self._own(model, noise))
        found = [self.member.predictive(one, model, x, own) for one, own in pairs]
        weights, means, stds = (torch.cat(parts, dim=-1) for parts in zip(*(one[:3] for one in found), strict=True))
        of_functions = [one.function_stds for one in found if one.function_stds is not None]
        return Mixture(weights / self.members, means, stds, torch.cat(of_functions, dim=-1) if of_functions else None)

    def essentials(self, posterior: Parts) -> Parts:
        return self.member.essentials(posterior)

    def start(self, meta: Parts, model: Model, noise: Noise) -> Parts:
        found: Parts = stack_components([self.member.start(one, model, own) for one, own in _each(meta, noise)])
        return found

    def at_kl_weight(self, kl_weight: float) -> "Ensemble":
        return Ensemble(self.member.at_kl_weight(kl_weight), self.members)

    def shares_a_layer(self, model: Model) -> bool:
        return self.member.shares_a_layer(model)

    def _stacked(self, draws: Mapping[str, Draw]) -> dict[str, Draw]:
        return {name: Draw((self.members, *draw.shape), draw.kind) for name, draw in draws.items()}

    def _own(self, model: Model, noise: Noise) -> Noise:
        """The random numbers of predictions, without those of scores."""
        return {name: noise[name] for name in self.prediction_noise(model, 1, 1)}


def _each(parts: Parts, noise: Noise) -> list[tuple[Parts, Noise]]:
    """The parts and the random numbers of each member."""
    members = next(len(value) for params in parts.values() for value in params.values())
    return [take((parts, noise), number) for number in range(members)]
