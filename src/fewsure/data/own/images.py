"""A user's own images: a folder of class folders of image files of any size."""

import hashlib
from contextlib import ExitStack
from dataclasses import InitVar, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from fewsure.core.config import Range
from fewsure.core.places import data_root
from fewsure.data.classification import ImageSet
from fewsure.data.description import DataSet, Item
from fewsure.data.fixed_classes import MayFixClasses
from fewsure.data.io.images import KINDS, decode
from fewsure.data.memory import forget
from fewsure.data.own.data import SHOTS, doubts_about_tasks, possible_shots
from fewsure.data.own.image_features import ImageFeatures
from fewsure.data.own.image_folders import (
    GROUP_PLACEMENT,
    PLACEMENT,
    UNREADABLE,
    Found,
    find_images,
    image_splits,
)
from fewsure.data.own.rows import SHARES, Shares, require_shares
from fewsure.data.pools import Pool, Split
from fewsure.errors import FewsureError, require
from fewsure.networks.conv4 import Conv4Options, Norm
from fewsure.networks.pretrained import trust

READER = 3
"""Raised whenever a change to the reader changes what it gives, so that caches are made anew."""
LARGEST = 1024
"""Height and width of images: conv4 with its 64 filters would need gigabytes for a task of larger ones."""


@dataclass(frozen=True)
class Images(MayFixClasses, ImageSet):
    """A folder of class folders of images of any size, or such folders in train, validation and test.

    A class with fewer than shot + query images is left out. Fixed classes are folders in each folder of a group,
    GROUP/CLASS/NAME.jpg.

    With a `backbone`, and a file with its `weights` if need be, tasks are solved on the features of a pretrained
    network: timm:NAME, torchvision:NAME, open-clip:NAME, onnx:FILE or python:MODULE:FUNCTION.
    """

    shot: Range = SHOTS
    """k, support images per class. From a range each meta-batch in training draws a number, small ones more often
    (log-uniform); tests have the middle. The most of a range is lowered to what the classes have."""
    softmax_temperature: float | None = None
    """The divisor of outputs before the softmax. `none` fits it to validation tasks when training ends, so that
    predictions are neither too sure nor too unsure on new classes."""
    folder: str = "images"
    """The folder; a relative one is looked for here, then in the data root."""
    image_size: int = 84
    """Height and width that every image is resized to."""
    grey: bool = False
    """Take images as grey values instead of colours."""
    shares: Shares = SHARES
    """Shares of the classes for training, validation and testing, where the folder has no split of its own."""
    backbone: InitVar[str | None] = None
    """A pretrained network, whose features take the place of pixels."""
    weights: InitVar[str | None] = None
    """A file with its weights."""

    name = "images"
    own = True

    def __new__(cls, *values: Any, backbone: str | None = None, **options: Any) -> Any:
        """Images as they are, or as features of a backbone."""
        if backbone is None or values:
            return super().__new__(cls)
        trust(backbone)
        return ImageFeatures(**options, backbone=backbone)

    def __post_init__(self, backbone: str | None, weights: str | None) -> None:
        super().__post_init__()
        require(backbone is None, "backbone", "given with options that are all named", backbone)
        require(weights is None, "weights", "left out without a `backbone`", weights)
        least, most = Conv4Options.SMALLEST, LARGEST
        require(least <= self.image_size <= most, "image_size", f"from {least} to {most} pixels", self.image_size)
        require_shares(self.shares)
        turns = self.fixed_classes and self.train_turn
        require(not turns, "train_turn", "left out where classes are fixed", self.train_turn)

    @property
    def grouped_by(self) -> str:
        return "groups" if self.fixed_classes else "classes"

    @property
    def shape(self) -> tuple[int, int, int]:
        return (1 if self.grey else 3, self.image_size, self.image_size)

    def prepared(self) -> Self:
        forget()
        return replace(self, shot=possible_shots(self)).with_class_names()

    def class_pool(self, split: Split) -> Pool:
        return ImageSet.pool(self, split)

    def pool(self, split: Split) -> Pool:
        return self.large_enough(MayFixClasses.pool(self, split), split)

    def doubts(self) -> list[str]:
        _, others = find_images(self.data_set.folder, grouped=self.fixed_classes)
        named = f", for instance {others[0].name}" if others else ""
        left_out = f"{len(others)} files are no {KINDS} file in a class folder, and are left out{named}"
        return [*([left_out] if others else []), *doubts_about_tasks(self)]

    @property
    def data_set(self) -> DataSet:
        """How the folder is read and cached."""
        here = Path(self.folder).expanduser()
        place = (here if here.is_dir() else data_root() / here).resolve()
        if not place.is_dir():
            there = "is not there" if here.is_absolute() else f"is neither here nor in {data_root()}"
            raise FewsureError(f"expected `folder` to be a folder of class folders of images, but {here} {there}")
        key = repr((str(place), self.shape, self.shares, self.fixed_classes, READER))
        return DataSet(
            name=f"{self.name}-{'x'.join(map(str, self.shape))}",  # each size has a cache of its own
            title="images of your own",
            shape=self.shape,
            placement=GROUP_PLACEMENT if self.fixed_classes else PLACEMENT,
            files=lambda folder, split: [found.path for found in self._found(folder, split)],
            read=self._read,
            version=int(hashlib.sha256(key.encode()).hexdigest()[:8], 16),
            place=place,
            unreadable=UNREADABLE,
        )

    def _read(self, folder: Path, split: Split, stack: ExitStack) -> list[Item]:
        return [
            Item(found.name, found.group, found.path.name, partial(load_image, found.path, self.shape))
            for found in self._found(folder, split)
        ]

    def _found(self, folder: Path, split: Split) -> list["Found"]:
        images, _ = find_images(folder, grouped=self.fixed_classes)
        return image_splits(images, self.shares, str(folder))[split] if images else []


@dataclass(frozen=True)
class OwnConv4Options(Conv4Options):
    """The convolutional base network that solves a task: four blocks, and a linear layer."""

    norm: Norm = "instance"  # no image has a part in the prediction of another


def load_image(path: Path, shape: tuple[int, int, int]) -> NDArray[np.uint8]:
    """An image file as bytes of `shape`."""
    try:
        return decode(path.read_bytes(), str(path), shape)
    except OSError as error:
        raise FewsureError(f"{path} cannot be read ({error.strerror})") from error
