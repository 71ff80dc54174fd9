"""tiered-ImageNet: 608 classes of ImageNet in 34 super-categories, none of them in two splits (Ren et al., 2018)."""

from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fewsure.data.classification import ImageSet
from fewsure.data.description import SHORT, DataSet, Item
from fewsure.data.io.images import decode
from fewsure.data.io.unpickle import as_text, load, load_fields, published_layout
from fewsure.data.pools import Split
from fewsure.errors import FewsureError

SHAPE = (3, 84, 84)
FIELDS = ("label_specific", "label_general", "label_specific_str", "label_general_str")


def _files(folder: Path, split: Split) -> list[Path]:
    files = [folder / f"{SHORT[split]}_{kind}.pkl" for kind in ("images_png", "labels")]
    return files if all(path.is_file() for path in files) else []


def _read(folder: Path, split: Split, stack: ExitStack) -> list[Item]:
    images_file, labels_file = _files(folder, split)
    with labels_file.open("rb") as stream, published_layout(labels_file):
        labels, general, names, general_names = load_fields(stream, str(labels_file), *FIELDS)
        names, general_names = _unique([as_text(name) for name in names]), [as_text(name) for name in general_names]
    with images_file.open("rb") as stream:
        images = load(stream, str(images_file))
    with published_layout(images_file):
        if not len(images) == len(labels) == len(general):
            raise FewsureError(f"expected an image in {images_file} for each label in {labels_file}")
        items = []
        for row, image in enumerate(images):
            label, group = int(labels[row]), int(general[row])
            if not (0 <= label < len(names) and 0 <= group < len(general_names)):
                raise FewsureError(
                    f"expected labels that {labels_file} has names for, but row {row} has {label}, {group}"
                )
            load_image = partial(_decode, image, f"{images_file}: image {row}")
            items.append(Item(names[label], general_names[group], f"{row:09}", load_image))
    return items


def _unique(names: list[str]) -> list[str]:
    """Names that stand for several classes, as "crane" does, get the number of their class.

    >>> _unique(["crane", "robin", "crane"])
    ['crane (0)', 'robin', 'crane (2)']
    """
    count = Counter(names)
    return [f"{name} ({label})" if count[name] > 1 else name for label, name in enumerate(names)]


def _decode(image: Any, where: str) -> NDArray[np.uint8]:
    """An array of the bytes of a PNG file, as published, or the bytes themselves."""
    return decode(image if isinstance(image, bytes) else np.asarray(image).tobytes(), where, SHAPE)


@dataclass(frozen=True)
class TieredImageNet(ImageSet):
    """tiered-ImageNet, 84×84, split by super-category (Ren et al., 2018)."""

    data_set = DataSet(
        name="tiered-imagenet",
        title="608 classes of ImageNet, super-categories apart",
        citation="Ren et al., Meta-learning for semi-supervised few-shot classification, ICLR 2018",
        shape=SHAPE,
        classes={"train": 351, "validation": 97, "test": 160},
        placement="train_images_png.pkl and train_labels.pkl, and the same for val and test",
        files=_files,
        read=_read,
    )
