"""`fewsure data check PATH` for own images or an own table: what is in it, what is unusable, which tasks it makes."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from fewsure.data.own_images import PLACEMENT, Found, find_images, image_splits, load_image
from fewsure.data.own_rows import SHARES, Rows, row_splits
from fewsure.data.own_tables import Table, TableClasses, open_table
from fewsure.data.pools import SPLITS
from fewsure.data.table_files import Columns
from fewsure.errors import FewsureError
from fewsure.progress import ProgressLine

SHOWN = 10
"""Unusable files that are named in the text; --json has them all."""
Result = dict[str, Any]


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


def check_images(folder: Path, *, quiet: bool) -> Result:
    """Decode every image of a folder of class folders."""
    images, others = find_images(folder)
    if not images:
        raise FewsureError(f"expected {PLACEMENT}, but {folder} has none; supported are PNG and JPEG files")
    usable: list[Found] = []
    unusable = [{"file": str(path), "why": "no PNG or JPEG file in a class folder"} for path in others]
    sizes: Counter[tuple[int, int]] = Counter()
    with ProgressLine(f"reading {folder.name}", quiet=quiet) as line:
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
        "unusable": unusable,
        "sizes": [{"width": width, "height": height, "images": n} for (width, height), n in sizes.most_common()],
        "splits": {split: _facts([found.label for found in by_split[split]]) for split in SPLITS},
    }


def check_table(path: Path, roles: Roles) -> Result:
    """Read a table; with the roles of its columns, say which tasks it can make."""
    table = open_table(str(path))
    result: Result = {"path": str(path), "rows": len(table), "columns": _columns(table), "splits": {}}
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
    ways = _ways(rows) if name == "table-classes" else {}
    splits = row_splits(rows, held_out, SHARES, "classes" if rows.task is None else "tasks")
    facts = {split: _facts(units[splits == split].tolist()) for split in SPLITS}
    return {"data": name} | result | {"inputs": list(rows.columns), "splits": facts} | ways | _target(rows)


def check_text(result: Result) -> str:
    """For people."""
    lines = [f"{result['path']}: {_what(result)}"]
    if "columns" in result:
        lines += [f"  {name}: {what}" for name, what in result["columns"].items()]
    if "sizes" in result:
        first, *more = result["sizes"]
        lines.append(
            f"{first['images']} images of {first['width']}×{first['height']} pixels"
            + (f", and {len(more)} other sizes; all are resized to --image-size" if more else "")
        )
    names = {"table": "tasks", None: ""}.get(result["data"], "classes")
    for split, facts in result["splits"].items():
        lines.append(
            f"{split}: {facts['units']} {names}, {facts['examples']} examples; the smallest has "
            f"{facts['smallest']['examples']} ({facts['smallest']['name']}), the largest {facts['largest']['examples']}"
        )
    lines += _possible(result)
    lines += [f"unusable: {item['file']}: {item['why']}" for item in result.get("unusable", [])[:SHOWN]]
    hidden = len(result.get("unusable", [])) - SHOWN
    return "\n".join([*lines, *([f"and {hidden} more; --json names them all"] if hidden > 0 else [])])


def _what(result: Result) -> str:
    if result["data"] == "images":
        unusable = len(result["unusable"])
        return f"images in class folders, {unusable} unusable files" if unusable else "images in class folders"
    return f"a table of {result['rows']:,} rows"


def _possible(result: Result) -> list[str]:
    if result["data"] is None:
        return ["name what to predict: --target COLUMN --task-column COLUMN for numbers, or --label COLUMN for classes"]
    splits: Mapping[str, Any] = result["splits"]
    most = min(facts["smallest"]["examples"] for facts in splits.values())
    if result["data"] == "table":
        typical = min(facts["median"] for facts in splits.values())
        return [
            f"possible: shot and query together up to {most} for every task, up to {typical} for half of them "
            "(smaller tasks are left out)"
        ]
    way = result.get("classes_of_a_task") or min(facts["units"] for facts in splits.values())
    return [f"possible: up to {way} classes a task (way), and {most} examples a class (shot and query together)"]


def _facts(units: Sequence[str]) -> Result:
    """How many examples each class or task has."""
    counts = Counter(units)
    if not counts:
        raise FewsureError("expected examples for training, validation and testing, but one of them has none")
    (largest, most), (smallest, least) = counts.most_common()[0], min(counts.items(), key=lambda item: item[::-1])
    return {
        "units": len(counts),
        "examples": len(units),
        "smallest": {"name": smallest, "examples": least},
        "largest": {"name": largest, "examples": most},
        "median": int(np.median(list(counts.values()))),
    }


def _columns(table: Columns) -> dict[str, str]:
    found = {}
    for name, values in table.text.items():
        distinct, empty = len(set(values)), sum(not value for value in values)
        kind = "numbers" if all(_is_number(value) for value in values if value) else "text"
        found[name] = f"{kind}, {distinct:,} different" + (f", {empty:,} empty" if empty else "")
    return found


def _is_number(value: str) -> bool:
    try:
        return bool(np.isfinite(float(value)))
    except ValueError:
        return False


def _ways(rows: Rows) -> Result:
    """How many classes meet in a task, where rows belong to tasks."""
    if rows.task is None:
        return {}
    return {"classes_of_a_task": min(len(set(rows.y[rows.task == task].tolist())) for task in np.unique(rows.task))}


def _target(rows: Rows) -> Result:
    if rows.y.dtype.kind != "f":
        return {}
    return {"target": {"mean": float(rows.y.mean()), "std": float(rows.y.std())}}
