"""mini-ImageNet: 100 classes of ImageNet, 600 images each (Vinyals et al., 2016), split by Ravi and Larochelle (2017).

It is read from the three published pickles, or from a folder of images with the csv files of the split.
"""

import csv
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import numpy as np

from fewsure.data.description import DataSet, Item
from fewsure.data.io import archives
from fewsure.data.io.folders import load_image
from fewsure.data.io.unpickle import as_text, load_fields, published_layout
from fewsure.data.pools import Split
from fewsure.errors import FewsureError

SHAPE = (3, 84, 84)
PUBLISHED: dict[Split, str] = {"train": "train", "validation": "val", "test": "test"}
IMAGES = "images"


def _pickle(folder: Path, split: Split) -> Path:
    return folder / f"mini-imagenet-cache-{PUBLISHED[split]}.pkl"


def _table(folder: Path, split: Split) -> Path:
    return folder / f"{PUBLISHED[split]}.csv"


def _files(folder: Path, split: Split) -> list[Path]:
    if _pickle(folder, split).is_file():
        return [_pickle(folder, split)]
    images, table = archives.files(folder, IMAGES), _table(folder, split)
    return [table, *images] if images and table.is_file() else []


@contextmanager
def _read(folder: Path, split: Split) -> Iterator[list[Item]]:
    if _pickle(folder, split).is_file():
        with published_layout(_pickle(folder, split)):
            items = _of_pickle(_pickle(folder, split))
        yield items
    else:
        with archives.members(folder, IMAGES) as members:
            yield _of_table(_table(folder, split), members)


def _of_pickle(path: Path) -> list[Item]:
    """`image_data`, uint8 (N, 84, 84, 3), and `class_dict`, name → row numbers."""
    with path.open("rb") as stream:
        data, classes = load_fields(stream, str(path), "image_data", "class_dict")
    images = np.asarray(data)
    channels, height, width = SHAPE
    if images.dtype != np.uint8 or images.shape[1:] != (height, width, channels):
        raise FewsureError(
            f"expected `image_data` of {path} to be uint8 (N, 84, 84, 3), but got {images.dtype} {images.shape}"
        )
    if not isinstance(classes, dict):
        raise FewsureError(f"expected `class_dict` of {path} to be a dict, but got {type(classes).__name__}")
    images = images.transpose(0, 3, 1, 2)
    items, owners = [], dict[int, str]()
    for key, rows in classes.items():
        label = as_text(key)
        for row in rows:
            if not isinstance(row, (int, np.integer)) or not 0 <= row < len(images):
                raise FewsureError(f"expected rows 0 to {len(images) - 1} in {path}, but class {label} has {row!r}")
            owner = owners.setdefault(int(row), label)
            if owner != label:
                raise FewsureError(f"expected each row of {path} in one class, but {row} is in {owner} and {label}")
            items.append(Item(label, "", f"{row:09}", partial(images.__getitem__, int(row))))
    return items


def _of_table(table: Path, members: list[archives.Member]) -> list[Item]:
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
            items.append(Item(label, "", name, partial(load_image, images[name], SHAPE)))
    return items


MINI_IMAGENET = DataSet(
    name="mini-imagenet",
    title="100 classes of ImageNet, 600 photographs each",
    citation="Vinyals et al., Matching networks, NeurIPS 2016; split of Ravi and Larochelle, ICLR 2017",
    licence="research use",
    shape=SHAPE,
    classes={"train": 64, "validation": 16, "test": 20},
    placement=(
        "mini-imagenet-cache-train.pkl, mini-imagenet-cache-val.pkl and mini-imagenet-cache-test.pkl, or the images in "
        "images (a folder or a zip file) with train.csv, val.csv and test.csv"
    ),
    files=_files,
    read=_read,
)
