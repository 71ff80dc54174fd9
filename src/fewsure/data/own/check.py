"""`fewsure data check PATH` for own images or an own table: what is in it, what is unusable, which tasks it makes."""

from collections import Counter
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from fewsure.core.progress import ProgressLine
from fewsure.data.io.table_files import Columns, is_number
from fewsure.data.own.findings import Result, counted
from fewsure.data.own.images import PLACEMENT, Found, find_images, image_splits, load_image
from fewsure.data.own.rows import SHARES, Rows, row_splits
from fewsure.data.own.tables import Table, TableClasses, open_table
from fewsure.data.pools import SPLITS
from fewsure.errors import FewsureError


@dataclass(frozen=True)
class Roles:
    """What the columns of a table are for, as far as the user has said it."""

    task_column: str | None = None
    """Of a table: the column that says which task a row belongs to."""
    target: str | None = None
    """Of a table: the column with the number to predict."""
    label: str | None = None
    """Of a table: the column with the class of a row."""
    features: tuple[str, ...] = ()
    """Of a table: the columns to predict from; all others if none is named."""
    split_column: str | None = None
    """Of a table: the column that says train, validation or test."""


def check_images(folder: Path) -> Result:
    """Decode every image of a folder of class folders."""
    images, others = find_images(folder)
    if not images:
        raise FewsureError(f"expected {PLACEMENT}, but {folder} has none; supported are PNG and JPEG files")
    usable: list[Found] = []
    unusable = [{"file": str(path), "why": "no PNG or JPEG file in a class folder"} for path in others]
    sizes: Counter[tuple[int, int]] = Counter()
    with ProgressLine(f"reading {folder.name}") as line:
        for done, found in enumerate(images, start=1):
            try:
                load_image(found.path, (3, 16, 16))
                with Image.open(BytesIO(found.path.read_bytes())) as image:
                    sizes[image.size] += 1
                usable.append(found)
            except FewsureError as error:
                unusable.append({"file": str(found.path), "why": str(error)})
            line.show(done, len(images), "images")
    if not usable:
        raise FewsureError(
            f"expected images in {folder}, but none of {len(images)} can be decoded: {unusable[0]['why']}"
        )
    by_split = image_splits(usable, SHARES, str(folder))
    return {
        "data": "images",
        "path": str(folder),
        "what": "images in class folders",
        "unit": "classes",
        "unusable": unusable,
        "sizes": [{"width": width, "height": height, "images": n} for (width, height), n in sizes.most_common()],
        "splits": {split: counted(Counter(found.label for found in by_split[split])) for split in SPLITS},
    }


def check_table(path: Path, roles: Roles) -> Result:
    """Read a table; with the roles of its columns, say which tasks it can make."""
    table = open_table(str(path))
    what = f"a table of {len(table):,} rows"
    result: Result = {"path": str(path), "what": what, "rows": len(table), "columns": _columns(table), "splits": {}}
    if roles.target is None and roles.label is None:
        return {"data": None} | result
    given = {"file": str(path), "features": roles.features, "split_column": roles.split_column}
    if roles.label is not None:
        classes = TableClasses(**given, label=roles.label, task_column=roles.task_column)  # type: ignore[arg-type]
        rows, units, name = classes.rows(), classes.rows().y, "table-classes"
        units = units if rows.task is None else np.char.add(np.char.add(rows.task, "/"), units)
    else:
        regression = Table(**given, target=roles.target, task_column=roles.task_column or "")  # type: ignore[arg-type]
        rows, name = regression.rows(), "table"
        assert rows.task is not None
        units = rows.task
    held_out = rows.y if rows.task is None else rows.task
    splits = row_splits(rows, held_out, SHARES, "classes" if rows.task is None else "tasks")
    ways = _ways(rows, splits) if name == "table-classes" else {}
    facts = {split: counted(Counter(units[splits == split].tolist())) for split in SPLITS}
    unit = "tasks" if name == "table" else "classes"
    return (
        {"data": name, "unit": unit} | result | {"inputs": list(rows.columns), "splits": facts} | ways | _target(rows)
    )


def _columns(table: Columns) -> dict[str, str]:
    found = {}
    for name, values in table.text.items():
        distinct, empty = len(set(values)), sum(not value for value in values)
        kind = "numbers" if all(is_number(value) for value in values if value) else "text"
        found[name] = f"{kind}, {distinct:,} different" + (f", {empty:,} empty" if empty else "")
    return found


def _ways(rows: Rows, splits: NDArray[np.str_]) -> Result:
    """How many classes meet in the largest task of each split, where rows belong to tasks."""
    if rows.task is None:
        return {}
    meet = dict.fromkeys(zip(splits.tolist(), rows.task.tolist(), strict=True), 0)
    for split, task, _ in set(zip(splits.tolist(), rows.task.tolist(), rows.y.tolist(), strict=True)):
        meet[split, task] += 1
    return {"classes_of_a_task": min(max(n for (of, _), n in meet.items() if of == split) for split in SPLITS)}


def _target(rows: Rows) -> Result:
    if rows.y.dtype.kind != "f":
        return {}
    return {"target": {"mean": float(rows.y.mean()), "std": float(rows.y.std())}}
