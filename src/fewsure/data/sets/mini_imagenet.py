"""mini-ImageNet: 100 classes of ImageNet, 600 images each (Vinyals et al., 2016), split by Ravi and Larochelle (2017).

It is read from the three published pickles, or from a folder of images with the csv files of the split.
"""

import csv
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from operator import index
from pathlib import Path

import numpy as np

from fewsure.data.classification import ImageSet
from fewsure.data.description import SHORT, DataSet, Item
from fewsure.data.io import archives
from fewsure.data.io.unpickle import as_text, load_fields, published_layout
from fewsure.data.pools import Split
from fewsure.errors import FewsureError

SHAPE = (3, 84, 84)
IMAGES = "images"


def _files(folder: Path, split: Split) -> list[Path]:
    pickle, table = folder / f"mini-imagenet-cache-{SHORT[split]}.pkl", folder / f"{SHORT[split]}.csv"
    if pickle.is_file():
        return [pickle]
    images = archives.files(folder, IMAGES)
    return [table, *images] if images and table.is_file() else []


def _read(folder: Path, split: Split, stack: ExitStack) -> list[Item]:
    first, *images = _files(folder, split)
    if images:
        return _table_items(first, archives.members(folder, IMAGES, stack))
    with published_layout(first):
        return _pickle_items(first)


def _pickle_items(path: Path) -> list[Item]:
    """`image_data`, uint8 (N, 84, 84, 3), and `class_dict`, name → row numbers."""
    with path.open("rb") as stream:
        data, classes = load_fields(stream, str(path), "image_data", "class_dict")
    images = np.asarray(data)
    channels, height, width = SHAPE
    if images.dtype != np.uint8 or images.shape[1:] != (height, width, channels):
        raise FewsureError(
            f"expected `image_data` of {path} to be uint8 (N, 84, 84, 3), but got {images.dtype} {images.shape}"
        )
    images = images.transpose(0, 3, 1, 2)
    items, owners = [], dict[int, str]()
    for key, rows in classes.items():
        label = as_text(key)
        for row in map(index, rows):
            if not 0 <= row < len(images):
                raise FewsureError(f"expected rows 0 to {len(images) - 1} in {path}, but class {label} has {row}")
            if owners.setdefault(row, label) != label:
                raise FewsureError(
                    f"expected each row of {path} in one class, but {row} is in {owners[row]} and {label}"
                )
            items.append(Item(label, "", f"{row:09}", partial(images.__getitem__, row)))
    return items


def _table_items(table: Path, members: list[archives.Member]) -> list[Item]:
    """A csv file with the columns filename and label, and the images that it names."""
    images = {Path(member.path).name: member for member in members}
    items = []
    with published_layout(table), table.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            name, label = row.get("filename"), row.get("label")
            if not name or not label:
                raise FewsureError(f"expected the columns filename and label in {table}, but got {row}")
            if name not in images:
                raise FewsureError(f"expected {name}, which {table} names, among the images, but it is not there")
            items.append(Item(label, "", name, partial(images[name].image, SHAPE)))
    return items


@dataclass(frozen=True)
class MiniImageNet(ImageSet):
    """mini-ImageNet, 84×84, split 64/16/20 (Ravi and Larochelle, 2017)."""

    data_set = DataSet(
        name="mini-imagenet",
        title="100 classes of ImageNet, 600 photographs each",
        citation="Vinyals et al., Matching networks, NeurIPS 2016; split of Ravi and Larochelle, ICLR 2017",
        shape=SHAPE,
        classes={"train": 64, "validation": 16, "test": 20},
        placement=(
            "mini-imagenet-cache-train.pkl, mini-imagenet-cache-val.pkl and mini-imagenet-cache-test.pkl, or the "
            "images in images (a folder or a zip file) with train.csv, val.csv and test.csv"
        ),
        files=_files,
        read=_read,
    )
