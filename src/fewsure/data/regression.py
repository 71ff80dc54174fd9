"""Regression data: tasks with one number to predict."""

from typing import ClassVar

from fewsure.data.protocol import Data
from fewsure.networks.losses import regression
from fewsure.networks.mlp import MlpOptions
from fewsure.types import Kind, Model


class Regression(Data):
    """Tasks of `shot` support and `query` query points."""

    kind: ClassVar[Kind] = "regression"
    outputs: ClassVar[int] = 1
    training_outputs: ClassVar[int] = 1

    @property
    def support_size(self) -> int:
        return self.shot

    @property
    def query_size(self) -> int:
        return self.query

    def model(self, network: MlpOptions, *, training: bool = False) -> Model:
        return regression(network.build(self.fitted_scale.shape, outputs=1))
