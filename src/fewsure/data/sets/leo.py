"""LEO's features: 640 numbers for each image of mini- and tiered-ImageNet (Rusu et al., 2019), centre crops."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import IO

import numpy as np

from fewsure.data.description import DataSet, Item, Remote
from fewsure.data.io import archives
from fewsure.data.io.unpickle import as_text, load_fields, published_layout
from fewsure.data.pools import Split
from fewsure.errors import FewsureError

SIZE = 640
PUBLISHED: dict[Split, str] = {"train": "train", "validation": "val", "test": "test"}
STEM = "embeddings"
"""The official archive: embeddings.zip, or the folder that it unpacks to."""


def _name(split: Split) -> str:
    return f"{PUBLISHED[split]}_embeddings.pkl"


def _files(folder: Path, split: Split) -> list[Path]:
    alone = folder / _name(split)
    return [alone] if alone.is_file() else archives.files(folder, STEM)


@contextmanager
def _read(inside: str, folder: Path, split: Split) -> Iterator[list[Item]]:
    """Read `inside/SPLIT_embeddings.pkl` of the archive, or the pickle that lies in the folder by itself."""
    with ExitStack() as stack:
        stream, where = _stream(folder, f"{inside}/{_name(split)}", stack)
        with published_layout(where):
            items = _items(stream, where)
    yield items


def _stream(folder: Path, path: str, stack: ExitStack) -> tuple[IO[bytes], str]:
    alone = folder / Path(path).name
    if alone.is_file():
        return stack.enter_context(alone.open("rb")), str(alone)
    for member in stack.enter_context(archives.members(folder, STEM)):
        if member.path == path:
            return stack.enter_context(member.open()), member.where
    raise FewsureError(f"expected {path} in {archives.find(folder, STEM)[0]}, but it is not there")


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


def _data_set(name: str, inside: str, of: str, classes: dict[Split, int]) -> DataSet:
    return DataSet(
        name=name,
        title=f"features of the images of {of}, from LEO's network",
        citation="Rusu et al., Meta-learning with latent embedding optimization, ICLR 2019",
        licence="research use",
        shape=(SIZE,),
        classes=classes,
        placement=f"train_embeddings.pkl, val_embeddings.pkl and test_embeddings.pkl of {inside}, or {STEM}.zip",
        files=_files,
        read=partial(_read, inside),
        remotes=(Remote(f"{STEM}.zip", "http://storage.googleapis.com/leo-embeddings/embeddings.zip", None),),
    )


MINI_IMAGENET_LEO = _data_set(
    "mini-imagenet-leo",
    "miniImageNet/center",
    "mini-ImageNet",
    {"train": 64, "validation": 16, "test": 20},
)
TIERED_IMAGENET_LEO = _data_set(
    "tiered-imagenet-leo",
    "tieredImageNet/center",
    "tiered-ImageNet",
    {"train": 351, "validation": 97, "test": 160},
)
