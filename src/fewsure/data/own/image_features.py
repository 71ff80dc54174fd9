"""A user's own images as features of a pretrained network: nothing but a small head has to be learned."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Self

import numpy as np
from numpy.typing import NDArray

from fewsure.core.config import LEARNED, Range
from fewsure.core.places import data_root
from fewsure.data.features import FeatureSet
from fewsure.data.fixed_classes import MayFixClasses
from fewsure.data.io.feature_cache import Source, cached_features
from fewsure.data.io.images import opened
from fewsure.data.memory import remembered
from fewsure.data.own.data import SHOTS, doubts_about_tasks, possible_shots
from fewsure.data.own.image_folders import PLACEMENT, UNREADABLE, Found, find_images, image_splits
from fewsure.data.own.rows import SHARES, Shares, require_shares
from fewsure.data.pools import Pool, Split, pool_of_rows
from fewsure.errors import FewsureError
from fewsure.networks.pretrained import FORMS, Pretrained, load_pretrained


@dataclass(frozen=True)
class ImageFeatures(MayFixClasses, FeatureSet):
    """A folder of class folders of images, seen through a pretrained network that stays as it is.

    Folders are those of `images`. Features are kept in the cache by the content of the images.
    """

    shot: Range = SHOTS
    """k, support images per class. From a range each meta-batch in training draws a number, small ones more often
    (log-uniform); tests have the middle. The most of a range is lowered to what the classes have."""
    softmax_temperature: float | None = None
    """The divisor of outputs before the softmax. `none` fits it to validation tasks when training ends, so that
    predictions are neither too sure nor too unsure on new classes."""
    length: float | None = 4.0
    """Take the mean of the training classes off each example, and scale it to this length; `none`: as it is."""
    folder: str = "images"
    """The folder; a relative one is looked for here, then in the data root."""
    backbone: str = ""
    """The network: timm:NAME, torchvision:NAME, open-clip:NAME, onnx:FILE or python:MODULE:FUNCTION."""
    weights: str | None = None
    """A file with its weights; `none` for those that the library downloads or the network comes with."""
    shares: Shares = SHARES
    """Shares of the classes for training, validation and testing, where the folder has no split of its own."""
    digest: str = field(default="", metadata=LEARNED)
    """The digest of the network's weights and preprocessing."""

    name = "image-features"
    own = True

    def __post_init__(self) -> None:
        super().__post_init__()
        require_shares(self.shares)

    @property
    def grouped_by(self) -> str:
        return "groups" if self.fixed_classes else "classes"

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.stored_features("train").examples.shape[1:])

    def prepared(self) -> Self:
        if not self.backbone:
            raise FewsureError(f"expected `backbone` to be {FORMS}, but got none")
        found = replace(super().prepared(), digest=_loaded(self.backbone, self.weights).digest)
        return replace(found, shot=possible_shots(found)).with_class_names()

    def class_pool(self, split: Split) -> Pool:
        return FeatureSet.pool(self, split)

    def pool(self, split: Split) -> Pool:
        return self.large_enough(MayFixClasses.pool(self, split), split)

    def stored_features(self, split: Split) -> Pool:
        return _features(self.folder, self.shares, self.fixed_classes, self.backbone, self.weights, self.digest, split)

    def features_of(self, files: Sequence[Path]) -> NDArray[np.float32]:
        """The features (N, D) of image files."""
        return _extracted(files, self.backbone, self.weights, self.digest, unreadable=0.0)[1]

    def doubts(self) -> list[str]:
        return doubts_about_tasks(self)


@remembered
def _features(
    folder: str, shares: Shares, grouped: bool, backbone: str, weights: str | None, digest: str, split: Split
) -> Pool:
    """The features of a split."""
    here = Path(folder).expanduser()
    place = here if here.is_dir() else data_root() / here
    if not place.is_dir():
        raise FewsureError(f"expected `folder` to be a folder of class folders of images, but {here} is not there")
    images, _ = find_images(place, grouped=grouped)
    if not images:
        raise FewsureError(f"expected {PLACEMENT} in {place}, but it has none")
    found = sorted(image_splits(images, shares, str(place))[split], key=lambda one: (one.name, str(one.path)))
    there, features = _extracted([one.path for one in found], backbone, weights, digest, unreadable=UNREADABLE)
    kept = [one for one, is_there in zip(found, there, strict=True) if is_there]
    return pool_of_rows(place, features, *_names(kept))


def _names(found: Sequence[Found]) -> tuple[NDArray[np.str_], NDArray[np.str_]]:
    names, groups = ([getattr(one, name) for one in found] for name in ("name", "group"))
    return np.array(names), np.array(groups)


def _extracted(
    files: Sequence[Path], backbone: str, weights: str | None, digest: str, *, unreadable: float
) -> tuple[NDArray[np.bool_], NDArray[np.float32]]:
    load = partial(_loaded, backbone, weights, digest)
    sources = [Source(file.read_bytes, partial(opened, where=str(file))) for file in files]
    return cached_features(sources, digest or load().digest, load, unreadable=unreadable)


def _loaded(backbone: str, weights: str | None, digest: str = "") -> Pretrained:
    """The network that training has seen; any where that is not known yet."""
    changed = Path(weights).stat().st_mtime_ns if weights and Path(weights).is_file() else 0
    network = _network(backbone, weights, changed)
    if digest not in ("", network.digest):
        raise FewsureError(
            f"{backbone} has other weights or another preprocessing than in training; give those, or train anew"
        )
    return network


@lru_cache(maxsize=1)
def _network(backbone: str, weights: str | None, changed: int) -> Pretrained:
    """The last network that was asked for stays in memory, until its file has changed."""
    return load_pretrained(backbone, weights)
