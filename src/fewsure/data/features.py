"""Features of a network with labels: LEO's, or any that lie in a folder."""

import math
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Self

import torch

from fewsure.core.config import LEARNED
from fewsure.core.places import data_root
from fewsure.data.augmentation import Augmentation, Mixing
from fewsure.data.classification import Classification
from fewsure.data.fixed_classes import MayFixClasses
from fewsure.data.io.cache import load
from fewsure.data.io.feature_files import load_features
from fewsure.data.memory import forget, remembered
from fewsure.data.pools import Pool, Split
from fewsure.data.scaling import LengthScale, Scale
from fewsure.errors import require
from fewsure.networks.mlp import Mlp, MlpOptions

BLOCK = 10_000
"""Features that are scaled at once, in double precision."""


@dataclass(frozen=True)
class FeatureSet(Classification):
    """Features with labels, which may be centred, scaled and, in training, mixed."""

    length: float | None = None
    """Take the mean of the training classes off each example, and scale it to this length; `none`: as it is."""
    train_mixing: float = 0.0
    """Add so many times the difference of two random examples to each one in training. The classes that the features
    were learned on lie further apart than new ones do."""
    scale: LengthScale | None = field(default=None, metadata=LEARNED)
    """The centre and length of examples, learned from the training classes and kept with a run."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.length is None or 0 < self.length < math.inf, "length", "a number above 0, or none", self.length)
        require(0 <= self.train_mixing < math.inf, "train_mixing", "a number of at least 0", self.train_mixing)

    @property
    def augmentation(self) -> Augmentation | None:
        return Mixing(self.train_mixing) if self.train_mixing else None

    @property
    def fitted_scale(self) -> Scale:
        if self.length is None:
            return Scale(self.shape)
        return self.scale or _length_scale(self.at_temperature_1)

    def prepared(self) -> Self:
        forget()
        return replace(self, scale=None if self.length is None else _length_scale(self))

    def stored_features(self, split: Split) -> Pool:
        return load(self.data_set, split)

    def pool(self, split: Split) -> Pool:
        stored = self.stored_features(split)
        if self.length is None:
            return stored
        scale = self.fitted_scale
        return stored._replace(examples=torch.cat([scale.inputs(rows) for rows in torch.split(stored.examples, BLOCK)]))


@remembered
def _length_scale(data: FeatureSet) -> LengthScale:
    """Learned from the training classes."""
    assert data.length is not None
    mean = data.stored_features("train").examples.mean(0, dtype=torch.float64)
    return LengthScale(tuple(mean.shape), x_mean=tuple(mean.tolist()), x_std=(1.0,) * len(mean), length=data.length)


@dataclass(frozen=True)
class Features(MayFixClasses, FeatureSet):
    """Any features with labels: a folder as `fewsure features` writes it (docs/data.md has the layout)."""

    folder: str = "features"
    """The folder; a relative one is looked for here, then in the data root."""

    name = "features"

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.stored_features("train").examples.shape[1:])

    @property
    def grouped_by(self) -> str | None:
        return "groups" if self.fixed_classes else None

    def prepared(self) -> Self:
        return super().prepared().with_class_names()

    def class_pool(self, split: Split) -> Pool:
        return FeatureSet.pool(self, split)

    def pool(self, split: Split) -> Pool:
        found = MayFixClasses.pool(self, split)
        return self.large_enough(found, split) if self.fixed_classes else found

    def stored_features(self, split: Split) -> Pool:
        here = Path(self.folder)
        return load_features(here if here.is_dir() else data_root() / here, split, grouped=self.fixed_classes)


@dataclass(frozen=True)
class FeatureHeadOptions(MlpOptions):
    """The fully connected head that solves a task on features (ReLU, no normalisation)."""

    hidden: tuple[int, ...] = (128, 32)
    """Hidden units of each layer."""
    centred: bool = False
    """Take the mean of a set off each of its examples. A query set is centred by its own mean, so that a prediction
    depends on the other queries (transductive)."""

    def build(self, shape: tuple[int, ...], outputs: int) -> Mlp:
        return replace(super().build(shape, outputs), centred=self.centred)
