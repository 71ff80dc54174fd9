"""The registry of task distributions and data sets, and what an experiment asks of each."""

from typing import Any, NamedTuple, Protocol

import torch

from fewsure.data.classification import (
    CifarFs,
    FeatureHeadOptions,
    Features,
    FeatureSet,
    MiniImageNet,
    MiniImageNetLeo,
    Omniglot,
    TieredImageNet,
    TieredImageNetLeo,
    TinyTiered,
)
from fewsure.data.own.arrays import GivenClasses, GivenImages, GivenRegression
from fewsure.data.own.classes import OwnClassification
from fewsure.data.own.images import Images, OwnConv4Options
from fewsure.data.own.regression import OwnRegression
from fewsure.data.own.tables import Table, TableClasses
from fewsure.data.pools import Split
from fewsure.data.sets.sine_line import SineLine
from fewsure.networks.conv4 import Conv4Options
from fewsure.networks.mlp import MlpOptions
from fewsure.types import Facts, Kind, Model, Task


class Tasks(Protocol):
    """Where tasks come from."""

    def sample(self, tasks: int, generator: torch.Generator) -> tuple[Task, Facts]:
        """A meta-batch on the generator's device, and what is known of its tasks that no method sees."""


class Data(Protocol):
    """A frozen dataclass of options: which tasks there are."""

    @property
    def kind(self) -> Kind: ...

    @property
    def shot(self) -> int: ...

    @property
    def outputs(self) -> int:
        """C: numbers to predict, or classes of a task."""

    @property
    def training_outputs(self) -> int:
        """C of a training task."""

    @property
    def support_size(self) -> int:
        """m⁽ᵗ⁾, support examples of a training task."""

    @property
    def query_size(self) -> int:
        """m⁽ᵛ⁾, query examples of a training task."""

    def model(self, network: Any, *, training: bool = False) -> Model:
        """The base model that solves a task, given the network's options."""

    def tasks(self, split: Split, device: torch.device) -> Tasks:
        """The tasks of a split, drawn on a device."""

    def checksum(self, split: Split) -> str | None:
        """Of the files behind a split, if there are any."""


class DataKind(NamedTuple):
    """A data set's options, and the options of the base network that solves its tasks."""

    data: type[Any]
    network: type[Any]
    presets: tuple[str, ...] = ("classification",)
    """The folders that its presets are in."""


PHOTOGRAPHS = ("classification", "photographs")
FEATURES = ("classification", "features")
OWN_CLASSES = ("classification", "own-classes")
OWN_REGRESSION = ("own-regression",)
DATA: dict[str, DataKind] = {
    "sine-line": DataKind(SineLine, MlpOptions, ("sine-line",)),
    "omniglot": DataKind(Omniglot, Conv4Options, ("classification", "omniglot")),
    "cifar-fs": DataKind(CifarFs, Conv4Options, PHOTOGRAPHS),
    "mini-imagenet": DataKind(MiniImageNet, Conv4Options, PHOTOGRAPHS),
    "tiered-imagenet": DataKind(TieredImageNet, Conv4Options, PHOTOGRAPHS),
    "tiny-tiered": DataKind(TinyTiered, Conv4Options, PHOTOGRAPHS),
    "mini-imagenet-leo": DataKind(MiniImageNetLeo, FeatureHeadOptions, FEATURES),
    "tiered-imagenet-leo": DataKind(TieredImageNetLeo, FeatureHeadOptions, FEATURES),
    "features": DataKind(Features, FeatureHeadOptions, FEATURES),
    "images": DataKind(Images, OwnConv4Options, OWN_CLASSES),
    "table": DataKind(Table, MlpOptions, OWN_REGRESSION),
    "table-classes": DataKind(TableClasses, FeatureHeadOptions, OWN_CLASSES),
    "given-regression": DataKind(GivenRegression, MlpOptions, OWN_REGRESSION),
    "given-classes": DataKind(GivenClasses, FeatureHeadOptions, OWN_CLASSES),
    "given-images": DataKind(GivenImages, OwnConv4Options, OWN_CLASSES),
}
"""Name on the command line → what it is. Data sets that begin with `given` come from Python."""


def prepared(data: Data) -> Data:
    """The data with what is learned of it before training; a user's own files, and features, are looked at anew."""
    return data.prepared() if isinstance(data, (OwnRegression, OwnClassification, Images, FeatureSet)) else data
