"""The registry of task distributions and data sets."""

from typing import Any, NamedTuple

from fewsure.data.features import FeatureHeadOptions, Features
from fewsure.data.own.arrays import GivenClasses, GivenImages, GivenRegression
from fewsure.data.own.image_features import ImageFeatures
from fewsure.data.own.images import Images, OwnConv4Options
from fewsure.data.own.tables import Table, TableClasses
from fewsure.data.protocol import Data, Tasks
from fewsure.data.sets.cifar_fs import CifarFs
from fewsure.data.sets.fs_mol import DATA_SET as FS_MOL
from fewsure.data.sets.fs_mol import FsMol
from fewsure.data.sets.leo import MiniImageNetLeo, TieredImageNetLeo
from fewsure.data.sets.mini_imagenet import MiniImageNet
from fewsure.data.sets.omniglot import Omniglot
from fewsure.data.sets.sine_line import SineLine
from fewsure.data.sets.tiered_imagenet import TieredImageNet
from fewsure.networks.conv4 import Conv4Options
from fewsure.networks.mlp import MlpOptions

__all__ = ["DATA", "DATA_SETS", "Data", "DataKind", "Tasks"]


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
    "mini-imagenet-leo": DataKind(MiniImageNetLeo, FeatureHeadOptions, FEATURES),
    "tiered-imagenet-leo": DataKind(TieredImageNetLeo, FeatureHeadOptions, FEATURES),
    "fs-mol": DataKind(FsMol, FeatureHeadOptions, ("fs-mol",)),
    "features": DataKind(Features, FeatureHeadOptions, FEATURES),
    "images": DataKind(Images, OwnConv4Options, OWN_CLASSES),
    "image-features": DataKind(ImageFeatures, FeatureHeadOptions, OWN_CLASSES),
    "table": DataKind(Table, MlpOptions, OWN_REGRESSION),
    "table-classes": DataKind(TableClasses, FeatureHeadOptions, OWN_CLASSES),
    "given-regression": DataKind(GivenRegression, MlpOptions, OWN_REGRESSION),
    "given-classes": DataKind(GivenClasses, FeatureHeadOptions, OWN_CLASSES),
    "given-images": DataKind(GivenImages, OwnConv4Options, OWN_CLASSES),
}
"""Name on the command line → what it is. Data sets that begin with `given` come from Python."""

PUBLISHED = (Omniglot, CifarFs, MiniImageNet, TieredImageNet, MiniImageNetLeo, TieredImageNetLeo)
DATA_SETS = {found.name: found for found in (*(kind.data_set for kind in PUBLISHED), FS_MOL)}
"""Name → what is known about a published data set."""
