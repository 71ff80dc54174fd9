"""LEO's features: 640 numbers for each image of mini- and tiered-ImageNet (Rusu et al., 2019), centre crops."""

from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO

import numpy as np

from fewsure.data.description import SHORT, DataSet, Item, Remote
from fewsure.data.features import FeatureSet
from fewsure.data.io import archives
from fewsure.data.io.unpickle import as_text, load_fields, published_layout
from fewsure.data.pools import Split
from fewsure.data.sets.mini_imagenet import MiniImageNet
from fewsure.data.sets.tiered_imagenet import TieredImageNet
from fewsure.errors import FewsureError

SIZE = 640
STEM = "embeddings"
"""The official archive: embeddings.zip, or the folder that it unpacks to."""


def _alone(folder: Path, split: Split) -> Path:
    """The pickle of a split that lies in the folder by itself."""
    return folder / f"{SHORT[split]}_embeddings.pkl"


def _files(folder: Path, split: Split) -> list[Path]:
    alone = _alone(folder, split)
    return [alone] if alone.is_file() else archives.files(folder, STEM)


def _read(inside: str, folder: Path, split: Split, stack: ExitStack) -> list[Item]:
    """Read the pickle that lies in the folder by itself, or the one of that name in the folder `inside` the archive."""
    stream, where = _stream(inside, _alone(folder, split), stack)
    with published_layout(where):
        return _items(stream, where)


def _stream(inside: str, alone: Path, stack: ExitStack) -> tuple[IO[bytes], str]:
    if alone.is_file():
        return stack.enter_context(alone.open("rb")), str(alone)
    for member in archives.members(alone.parent, STEM, stack):
        if member.path == f"{inside}/{alone.name}":
            return stack.enter_context(member.open()), member.where
    archive = archives.find(alone.parent, STEM)[0]
    raise FewsureError(f"expected {inside}/{alone.name} in {archive}, but it is not there")


def _items(stream: IO[bytes], where: str) -> list[Item]:
    """`embeddings` (N, 640) and `keys`, which read NUMBER-CLASS-IMAGE."""
    embeddings, keys = load_fields(stream, where, "embeddings", "keys")
    features = np.asarray(embeddings)
    if features.dtype.kind != "f" or features.shape != (len(keys), SIZE):
        raise FewsureError(
            f"expected `embeddings` of {where} to be floats ({len(keys)}, {SIZE}), "
            f"but got {features.dtype} {features.shape}"
        )
    features = features.astype(np.float32)
    wrong = np.flatnonzero(~np.isfinite(features).all(axis=1))
    if len(wrong):
        raise FewsureError(f"expected finite features in {where}, but row {wrong[0]} has NaN or infinity")
    items = []
    for row, key in enumerate(keys):
        parts = as_text(key).split("-", 2)
        if len(parts) != 3:
            raise FewsureError(f"expected keys NUMBER-CLASS-IMAGE in {where}, but row {row} has {as_text(key)!r}")
        items.append(Item(parts[1], "", parts[2], partial(features.__getitem__, row)))
    return items


def _data_set(images: DataSet, inside: str) -> DataSet:
    return DataSet(
        name=f"{images.name}-leo",
        title=f"features of the images of {images.name}, from LEO's network",
        citation="Rusu et al., Meta-learning with latent embedding optimization, ICLR 2019",
        shape=(SIZE,),
        classes=images.classes,
        placement=f"train_embeddings.pkl, val_embeddings.pkl and test_embeddings.pkl of {inside}, or {STEM}.zip",
        files=_files,
        read=partial(_read, inside),
        remotes=(Remote(f"{STEM}.zip", "http://storage.googleapis.com/leo-embeddings/embeddings.zip", None),),
    )


@dataclass(frozen=True)
class MiniImageNetLeo(FeatureSet):
    """mini-ImageNet as LEO's 640-dimensional features (Rusu et al., 2019)."""

    data_set = _data_set(MiniImageNet.data_set, "miniImageNet/center")


@dataclass(frozen=True)
class TieredImageNetLeo(FeatureSet):
    """tiered-ImageNet as LEO's 640-dimensional features (Rusu et al., 2019)."""

    data_set = _data_set(TieredImageNet.data_set, "tieredImageNet/center")
