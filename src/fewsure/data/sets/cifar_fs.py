"""CIFAR-FS: the 100 classes of CIFAR-100, split for few-shot learning (Bertinetto et al., 2019).

It is read from images in class folders, or from the official CIFAR-100 archive; both give the same pools.
"""

import lzma
import tarfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from fewsure.data.description import DataSet, Item, Remote
from fewsure.data.io import archives, folders
from fewsure.data.io.unpickle import as_text, load_fields, published_layout
from fewsure.data.pools import SPLITS, Split
from fewsure.errors import FewsureError

SHAPE = (3, 32, 32)
STEMS: dict[Split, str] = {"train": "train", "validation": "val", "test": "test"}
ARCHIVE, UNPACKED = "cifar-100-python.tar.gz", "cifar-100-python"

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
    if found := archives.files(folder, STEMS[split]):
        return found
    if (folder / ARCHIVE).is_file():
        return [folder / ARCHIVE]
    unpacked = [folder / UNPACKED / name for name in ("meta", "train", "test")]
    return unpacked if all(path.is_file() for path in unpacked) else []


@contextmanager
def _read(folder: Path, split: Split) -> Iterator[list[Item]]:
    if archives.find(folder, STEMS[split]):
        with folders.read(folder, STEMS[split], SHAPE, lambda label: SPLIT_CLASSES[split].get(label, "")) as items:
            yield items
    else:
        with published_layout(folder / UNPACKED):
            items = _of_cifar_100(folder, SPLIT_CLASSES[split])
        yield items


def _of_cifar_100(folder: Path, groups: dict[str, str]) -> list[Item]:
    with ExitStack() as stack:
        streams = _streams(folder, stack)
        (names,) = load_fields(*streams["meta"], "fine_label_names")
        items = []
        for part in ("train", "test"):
            stream, where = streams[part]
            data, labels, filenames = load_fields(stream, where, "data", "fine_labels", "filenames")
            images = _images(data, where, rows=len(labels))
            for row, (label, filename) in enumerate(zip(labels, filenames, strict=True)):
                name = as_text(names[label])
                if name in groups:
                    items.append(
                        Item(name, groups[name], f"{part}_{as_text(filename)}", partial(images.__getitem__, row))
                    )
    return items


def _streams(folder: Path, stack: ExitStack) -> dict[str, tuple[IO[bytes], str]]:
    """The three files of CIFAR-100, each with a name for people."""
    streams = {}
    try:
        archive = folder / ARCHIVE
        tar = stack.enter_context(tarfile.TarFile.open(archive)) if archive.is_file() else None
        for name in ("meta", "train", "test"):
            path = folder / UNPACKED / name
            if tar:
                size = tar.getmember(f"{UNPACKED}/{name}").size
                archives.require_size(f"{archive}: {name}", size, archives.MAX_STREAM)
            stream: Any = tar.extractfile(f"{UNPACKED}/{name}") if tar else path.open("rb")
            streams[name] = (stack.enter_context(stream), f"{archive}: {name}" if tar else str(path))
    except (tarfile.TarError, lzma.LZMAError, TypeError, *archives.DAMAGED) as error:  # TypeError: for a folder
        raise archives.damaged(folder / ARCHIVE, error) from error
    return streams


def _images(data: Any, where: str, rows: int) -> NDArray[np.uint8]:
    """(N, 3072) as published, all red values first, then green, then blue, to (N, 3, 32, 32)."""
    images = np.asarray(data)
    if images.dtype != np.uint8 or images.shape != (rows, np.prod(SHAPE)):
        raise FewsureError(f"expected `data` of {where} to be uint8 ({rows}, 3072), but got {images.shape}")
    return images.reshape(rows, *SHAPE)


CIFAR_FS = DataSet(
    name="cifar-fs",
    title="CIFAR-100 in a few-shot split, 100 classes of 600 photographs",
    citation="Bertinetto et al., Meta-learning with differentiable closed-form solvers, ICLR 2019",
    licence="research use",
    shape=SHAPE,
    classes={"train": 64, "validation": 16, "test": 20},
    placement=f"train, val and test, each a folder or zip files of CLASS/NAME.png, or {ARCHIVE}",
    files=_files,
    read=_read,
    remotes=(Remote(ARCHIVE, f"https://www.cs.toronto.edu/~kriz/{ARCHIVE}", "md5:eb9058c3a382ffc7106e4002c42a8d85"),),
)
