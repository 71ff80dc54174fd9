"""Regression data: tasks with one number to predict."""

import math
from dataclasses import dataclass
from typing import ClassVar

from fewsure.core.config import Range, ends
from fewsure.data.protocol import Data
from fewsure.errors import require
from fewsure.networks.losses import regression
from fewsure.networks.mlp import MlpOptions
from fewsure.types import Kind, Model


@dataclass(frozen=True)
class Regression(Data):
    """Tasks of support and query points with a number to predict."""

    shot: Range = 5
    """m⁽ᵗ⁾, support points of a task. From a range, `1-10`, each meta-batch in training draws a number, small ones
    more often (log-uniform); tests have the middle."""
    query: int = 10
    """m⁽ᵛ⁾, query points of a task."""
    noise_std: float | None = None
    """Standard deviation of the noise on the target, in its unit; `none` learns it from the validation tasks."""

    kind: ClassVar[Kind] = "regression"
    outputs: ClassVar[int] = 1
    training_outputs: ClassVar[int] = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        require(ends(self.shot)[0] >= 1, "shot", "at least 1 example", self.shot)
        require(self.query >= 1, "query", "at least 1 example", self.query)
        positive = self.noise_std is None or 0 < self.noise_std < math.inf
        require(positive, "noise_std", "a number above 0, or none", self.noise_std)

    @property
    def support_size(self) -> int:
        return self.training_shots[0]

    @property
    def query_size(self) -> int:
        return self.query

    @property
    def scaled_noise_std(self) -> float | None:
        return None if self.noise_std is None else self.noise_std / self.fitted_scale.y_std

    def model(self, network: MlpOptions, *, training: bool = False) -> Model:
        return regression(network.build(self.fitted_scale.shape, outputs=1))
