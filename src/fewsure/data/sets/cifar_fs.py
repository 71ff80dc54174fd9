"""CIFAR-FS: the 100 classes of CIFAR-100, split for few-shot learning (Bertinetto et al., 2019).

It is read from images in class folders, or from the official CIFAR-100 archive; both give the same pools.
"""

import lzma
import tarfile
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Any

import numpy as np

from fewsure.data.classification import ImageSet
from fewsure.data.description import SHORT, DataSet, Item, Remote
from fewsure.data.io import archives
from fewsure.data.io.unpickle import as_text, load_fields, published_layout
from fewsure.data.pools import SPLITS, Split
from fewsure.errors import FewsureError

SHAPE = (3, 32, 32)
ARCHIVE, FOLDER = "cifar-100-python.tar.gz", "cifar-100-python"
"""The official archive, and the folder in it."""

# Super-category: classes for training / validation / testing.
_TABLE = """
aquatic_mammals: dolphin seal / beaver otter / whale
fish: aquarium_fish ray trout / flatfish shark /
flowers: orchid sunflower tulip / / poppy rose
food_containers: bottle bowl can cup plate / /
fruit_and_vegetables: apple mushroom orange pear / / sweet_pepper
household_electrical_devices: clock keyboard / lamp television / telephone
household_furniture: chair couch / / bed table wardrobe
insects: bee caterpillar cockroach / beetle butterfly /
large_carnivores: bear lion tiger wolf / / leopard
large_man-made_outdoor_things: bridge castle house road skyscraper / /
large_natural_outdoor_scenes: cloud forest mountain / sea / plain
large_omnivores_and_herbivores: elephant kangaroo / camel cattle / chimpanzee
medium_mammals: porcupine possum raccoon skunk / / fox
non-insect_invertebrates: lobster spider / crab / snail worm
people: boy girl / / baby man woman
reptiles: dinosaur lizard snake turtle / crocodile /
small_mammals: hamster mouse rabbit shrew squirrel / /
trees: oak_tree palm_tree pine_tree willow_tree / maple_tree /
vehicles_1: bus train / motorcycle / bicycle pickup_truck
vehicles_2: lawn_mower streetcar tank / tractor / rocket
"""

SPLIT_CLASSES: dict[Split, dict[str, str]] = {split: {} for split in SPLITS}
"""The published split: class → super-category."""
for _line in _TABLE.split("\n")[1:-1]:
    _group, _, _parts = _line.partition(":")
    for _split, _classes in zip(SPLITS, _parts.split("/"), strict=True):
        SPLIT_CLASSES[_split].update(dict.fromkeys(_classes.split(), _group))


def _files(folder: Path, split: Split) -> list[Path]:
    archive = folder / ARCHIVE
    return archives.files(folder, SHORT[split]) or ([archive] if archive.is_file() else [])


def _read(folder: Path, split: Split, stack: ExitStack) -> list[Item]:
    groups = SPLIT_CLASSES[split]
    if archives.find(folder, SHORT[split]):
        return [
            Item(label, groups.get(label, ""), name, partial(member.image, SHAPE))
            for (label, name), member in archives.images(folder, SHORT[split], "CLASS/NAME.png", stack)
        ]
    with published_layout(folder / ARCHIVE):
        return _cifar_100(_streams(folder / ARCHIVE, stack), groups)


def _cifar_100(streams: dict[str, tuple[IO[bytes], str]], groups: dict[str, str]) -> list[Item]:
    """`data` (N, 3072): all red values of an image first, then green, then blue."""
    (names,) = load_fields(*streams["meta"], "fine_label_names")
    items = []
    for part in ("train", "test"):
        stream, where = streams[part]
        data, labels, filenames = load_fields(stream, where, "data", "fine_labels", "filenames")
        images = np.asarray(data)
        if images.dtype != np.uint8 or images.shape != (len(labels), np.prod(SHAPE)):
            raise FewsureError(f"expected `data` of {where} to be uint8 ({len(labels)}, 3072), but got {images.shape}")
        images = images.reshape(-1, *SHAPE)
        for row, (number, filename) in enumerate(zip(labels, filenames, strict=True)):
            label = as_text(names[number])
            if label in groups:
                name = f"{part}_{as_text(filename)}"
                items.append(Item(label, groups[label], name, partial(images.__getitem__, row)))
    return items


def _streams(archive: Path, stack: ExitStack) -> dict[str, tuple[IO[bytes], str]]:
    """The three files of CIFAR-100, each with a name for people."""
    streams = {}
    try:
        tar = stack.enter_context(tarfile.TarFile.open(archive))
        for name in ("meta", "train", "test"):
            member, where = tar.getmember(f"{FOLDER}/{name}"), f"{archive}: {name}"
            archives.require_size(where, member.size, archives.MAX_STREAM)
            stream: Any = tar.extractfile(member)
            streams[name] = stack.enter_context(stream), where
    except (tarfile.TarError, lzma.LZMAError, TypeError, *archives.DAMAGED) as error:  # TypeError: for a folder
        raise archives.damaged(archive, error) from error
    return streams


@dataclass(frozen=True)
class CifarFs(ImageSet):
    """CIFAR-FS: the 100 classes of CIFAR-100, 32×32, split 64/16/20 (Bertinetto et al., 2019)."""

    data_set = DataSet(
        name="cifar-fs",
        title="CIFAR-100 in a few-shot split, 100 classes of 600 photographs",
        citation="Bertinetto et al., Meta-learning with differentiable closed-form solvers, ICLR 2019",
        shape=SHAPE,
        classes={"train": 64, "validation": 16, "test": 20},
        placement=f"train, val and test, each a folder or zip files of CLASS/NAME.png, or {ARCHIVE}",
        files=_files,
        read=_read,
        remotes=(
            Remote(ARCHIVE, f"https://www.cs.toronto.edu/~kriz/{ARCHIVE}", "md5:eb9058c3a382ffc7106e4002c42a8d85"),
        ),
    )
