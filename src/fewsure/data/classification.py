"""Classification data as an experiment holds it: which set, how many classes and examples a task has."""

import math
from collections import Counter
from dataclasses import dataclass, replace
from itertools import compress
from typing import ClassVar, Literal, Self

import torch

from fewsure.core.config import Range, ends
from fewsure.data.augmentation import Augmentation, Moving, turned
from fewsure.data.description import DataSet
from fewsure.data.episodes import Episodes
from fewsure.data.io.cache import load
from fewsure.data.pools import Pool, Split, restrict
from fewsure.data.protocol import Data, pool_on
from fewsure.data.scaling import Scale
from fewsure.errors import FewsureError, require
from fewsure.networks.conv4 import Conv4Options
from fewsure.networks.losses import classification
from fewsure.networks.mlp import MlpOptions
from fewsure.types import Kind, Model


@dataclass(frozen=True)
class Classification(Data):
    """Tasks of N classes with k labelled examples each, drawn from the classes of a data set's split."""

    way: int = 5
    """N, classes of a task."""
    shot: Range = 1
    """k, support examples per class. From a range, `1-10`, each meta-batch in training draws a number, small ones
    more often (log-uniform); tests have the middle."""
    query: int = 15
    """Query examples per class."""
    train_way: int | None = None
    """Classes of a task in training, where the method allows another number (protonet); `none` for --way."""
    train_shot: Range | None = None
    """Support examples per class in training, a number or a range; `none` for --shot."""
    train_query: int | None = None
    """Query examples per class in training; `none` for --query."""
    within_group: bool = False
    """Draw all classes of a task from one group: an alphabet of Omniglot, a super-category of tiered-ImageNet."""
    train_on_validation: bool = False
    """Train on the validation classes too, for a last run whose options are settled."""
    softmax_temperature: float | None = 1.0
    """The divisor of outputs before the softmax. `none` fits it to validation tasks when training ends, so that
    predictions are neither too sure nor too unsure on new classes."""
    temperature_exponent: float | None = 0.0
    """How much lower the temperature is for a task whose predictions are surer. It is multiplied by odds^−exponent. The
    odds are the geometric mean of p / (1 − p) over the query points, so that a prediction depends on the others.
    `none` fits it with the temperature, so that predictions are calibrated on easy and on hard tasks."""
    temperature_of: Literal["networks", "mixture"] = "networks"
    """Whether the temperature is that of each sampled network, before their probabilities are averaged, or that of
    their mixture. A mixture can then be surer than its parts agree."""

    kind: ClassVar[Kind] = "classification"
    unit = "classes"

    def __post_init__(self) -> None:
        super().__post_init__()
        for option, least, what in (
            *((option, 2, "at least 2 classes") for option in ("way", "train_way")),
            *((option, 1, "at least 1 example per class") for option in ("shot", "query", "train_shot", "train_query")),
        ):
            value = getattr(self, option)
            require(value is None or ends(value)[0] >= least, option, what, value)
        temperature, exponent = self.softmax_temperature, self.temperature_exponent
        known = temperature is None or 0 < temperature < math.inf
        require(known, "softmax_temperature", "a number above 0, or none", temperature)
        known = exponent is None or abs(exponent) <= 1
        require(known, "temperature_exponent", "a number from −1 to 1, or none", exponent)
        if exponent is None and temperature is not None:
            raise FewsureError(
                "expected --softmax-temperature none where the --temperature-exponent is to be learned, since the two "
                f"are learned together, but got {temperature}; add --softmax-temperature none, or give "
                "--temperature-exponent 0"
            )
        if temperature is None and self.train_on_validation:
            raise FewsureError(
                "expected a --softmax-temperature where the validation classes are trained on, since it cannot be "
                "learned from them, but got none; give --softmax-temperature 1 --temperature-exponent 0, or leave out "
                "--train-on-validation"
            )

    @property
    def data_set(self) -> DataSet:
        """The published files that the examples come from, if they do."""
        raise TypeError(f"{type(self).__name__} is no published data set")

    @property
    def name(self) -> str:
        """Its name in errors."""
        return self.data_set.name

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of an example."""
        return self.data_set.shape

    @property
    def fitted_scale(self) -> Scale:
        return Scale(self.shape)

    @property
    def outputs(self) -> int:
        return self.way

    @property
    def training_outputs(self) -> int:
        return self.train_way or self.way

    @property
    def training_shots(self) -> tuple[int, int]:
        return ends(self.train_shot or self.shot)

    def with_shot(self, shot: Range) -> Self:
        ranged = self.train_shot is not None and not isinstance(self.train_shot, int)
        return replace(self, shot=shot, train_shot=None if ranged else self.train_shot)

    @property
    def support_size(self) -> int:
        return self.training_outputs * self.training_shots[0]

    @property
    def query_size(self) -> int:
        return self.training_outputs * (self.train_query or self.query)

    @property
    def draws_within_group(self) -> bool:
        return self.within_group

    @property
    def at_temperature_1(self) -> Self:
        return replace(self, softmax_temperature=1.0, temperature_exponent=0.0)

    def model(self, network: Conv4Options | MlpOptions, *, training: bool = False) -> Model:
        way = self.training_outputs if training else self.outputs
        return classification(network.build(self.shape, way), way)

    def pool(self, split: Split) -> Pool:
        return load(self.data_set, split)

    def tasks(self, split: Split, device: torch.device) -> Episodes:
        training = split == "train"
        pool = pool_on(self.at_temperature_1, split, device)  # which does not depend on it
        return Episodes(
            self.in_training(pool) if training else pool,
            way=self.training_outputs if training else self.way,
            shot=self.training_shots[0] if training else self.test_shot,
            query=(self.train_query if training else None) or self.query,
            within_group=self.draws_within_group,
            augmentation=self.augmentation if training else None,
            name=f"{self.name}, {split}",
        )

    def in_training(self, pool: Pool) -> Pool:
        """The classes that training tasks are drawn from, of the training classes."""
        return pool

    @property
    def needed_examples(self) -> int:
        """The larger number of testing and training, since validation classes may serve both."""
        training = self.training_shots[0] + (self.train_query or self.query)
        return max(ends(self.shot)[0] + self.query, training)

    def large_enough(self, pool: Pool, split: Split) -> Pool:
        """A split's pool without the classes that have too few examples, as a user's own data may.

        Where the others make no task, it is left as it is, and drawing from it says what is missing.
        """
        enough = (pool.counts >= self.needed_examples).tolist()
        groups = pool.groups if self.draws_within_group else [""] * len(enough)
        largest = max(Counter(compress(groups, enough)).values(), default=0)
        if all(enough) or largest < (self.training_outputs if split == "train" else self.way):
            return pool
        return restrict(pool, list(compress(pool.classes, enough)))


@dataclass(frozen=True)
class ImageSet(Classification):
    """Images with labels, which may be shifted and mirrored in training."""

    train_shift: int = 0
    """In training, shift each image at random by up to so many pixels in each direction."""
    train_flip: bool = False
    """In training, mirror half of the images left to right, where that leaves the class as it is."""

    train_turn: bool = False
    """In training, the images of a class turned by a quarter, a half and three quarters are three more classes."""

    pictures = True

    def __post_init__(self) -> None:
        super().__post_init__()
        size = min(self.shape[1:])
        square = self.shape[1] == self.shape[2]
        require(square or not self.train_turn, "train_turn", "left out where images are not square", self.train_turn)
        known = 0 <= self.train_shift < size
        require(known, "train_shift", f"at least 0 and less than {size} pixels", self.train_shift)

    def in_training(self, pool: Pool) -> Pool:
        return turned(pool) if self.train_turn else pool

    @property
    def augmentation(self) -> Augmentation | None:
        return Moving(self.train_shift, self.train_flip) if self.train_shift or self.train_flip else None
