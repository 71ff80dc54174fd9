"""tiny-tiered: the classes of tiered-ImageNet, and its split, that also occur in Tiny-ImageNet."""

import csv
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fewsure.data.description import DataSet, Item
from fewsure.data.io import archives, folders
from fewsure.data.io.unpickle import published_layout
from fewsure.data.pools import Split
from fewsure.errors import FewsureError

SHAPE = (3, 64, 64)
STEMS: dict[Split, str] = {"train": "train", "validation": "val", "test": "test"}
TABLE = "classes.csv"


def _files(folder: Path, split: Split) -> list[Path]:
    images = archives.files(folder, STEMS[split])
    table = folder / TABLE
    return [table, *images] if images and table.is_file() else []


@contextmanager
def _read(folder: Path, split: Split) -> Iterator[list[Item]]:
    groups = _super_categories(folder / TABLE, STEMS[split])

    def group(label: str) -> str:
        if label not in groups:
            raise FewsureError(f"expected a class of {split} that {folder / TABLE} lists, but got {label}")
        return groups[label]

    with folders.read(folder, STEMS[split], SHAPE, group) as items:
        yield items


def _super_categories(table: Path, split: str) -> dict[str, str]:
    with published_layout(table), table.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    try:
        return {row["wnid"]: row["superclass"] for row in rows if row["split"] == split}
    except KeyError as error:
        raise FewsureError(
            f"expected the columns split, wnid and superclass in {table}, but {error} is missing"
        ) from error


TINY_TIERED = DataSet(
    name="tiny-tiered",
    title="123 classes of tiered-ImageNet, 300 photographs each",
    citation="Ren et al., Meta-learning for semi-supervised few-shot classification, ICLR 2018 (the split)",
    licence="research use",
    shape=SHAPE,
    classes={"train": 61, "validation": 17, "test": 45},
    placement=f"train, val and test, each a folder or zip files of WNID/NAME.JPEG, and {TABLE}",
    files=_files,
    read=_read,
)
