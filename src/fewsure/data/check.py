"""`fewsure data check`: the contents of data, their unusable files, and the tasks that they make."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from fewsure.core.progress import ProgressLine
from fewsure.data import DATA_SETS
from fewsure.data.encoding import Missing, unseen
from fewsure.data.io.cache import load
from fewsure.data.io.checksums import verify
from fewsure.data.io.feature_files import feature_splits, features_file, load_features
from fewsure.data.io.images import KINDS
from fewsure.data.io.table_files import Columns
from fewsure.data.own.doubts import doubts_about_rows, doubts_about_splits
from fewsure.data.own.image_folders import PLACEMENT, Found, find_images, image_splits
from fewsure.data.own.images import load_image
from fewsure.data.own.rows import SHARES, Rows, row_splits
from fewsure.data.own.tables import Table, TableClasses, open_table
from fewsure.data.pools import SPLITS, Pool, Split
from fewsure.errors import FewsureError

Result = dict[str, Any]


@dataclass(frozen=True)
class Roles:
    """The roles of a table's columns, as far as the user has named them."""

    task_column: str | None = None
    """The column of a table that says which task a row belongs to."""
    target: str | None = None
    """The column of a table with the number to predict."""
    label: str | None = None
    """The column of a table with the class of a row."""
    features: tuple[str, ...] = ()
    """The columns of a table to predict from; all others by default."""
    split_column: str | None = None
    """The column of a table that says train, validation or test."""
    categories: tuple[str, ...] = ()
    """Columns of numbers that name categories."""
    missing: Missing = "refuse"
    """`impute` takes the mean of the training rows where a cell is empty."""


def check(name: str, roles: Roles) -> Result:
    """Read all splits of a data set, or the data at a path, and describe them."""
    path = Path(name).expanduser()
    if name not in DATA_SETS and path.is_file():
        return _check_table(path, roles)
    for role in fields(Roles):
        if getattr(roles, role.name) != role.default:
            option = f"--{role.name.replace('_', '-')}"
            raise FewsureError(f"expected {option} with a table, but {name} is another kind of data; leave it out")
    if name in DATA_SETS:
        return _check_published(name)
    if splits := feature_splits(path):
        pools = {split: load_features(path, split) for split in splits}
        compared = verify([features_file(path, split) for split in splits], path)
        return {"data": name, "path": str(path), "what": "features"} | _pool_facts(pools, compared)
    if path.is_dir():
        return _check_images(path)
    raise FewsureError(
        f"expected `name` to be one of {', '.join(DATA_SETS)}, a folder of features or of images, or a table, but "
        f"there is no {name!r}"
    )


def _check_published(name: str) -> Result:
    data = DATA_SETS[name]
    compared = verify(dict.fromkeys(path for split in SPLITS for path in data.found(split)), data.folder)
    result: Result = {"data": name, "path": str(data.folder), "what": data.title}
    result |= _pool_facts({split: load(data, split) for split in SPLITS}, compared)
    found = {split: facts["units"] for split, facts in result["splits"].items()}
    result["warnings"] += [
        f"expected {data.classes[split]} classes in {split}, as published, but got {found[split]}"
        for split in SPLITS
        if found[split] != data.classes[split]
    ]
    return result


def _pool_facts(pools: Mapping[Any, Pool], compared: Mapping[str, bool]) -> Result:
    shared = _shared(pool.classes for pool in pools.values())
    warning = f"expected every class in one split, but {len(shared)} are in two: {', '.join(shared[:5])}"
    return {
        "unit": "classes",
        "files": len(compared),
        "files_compared": sum(compared.values()),
        "splits": {
            split: counted(dict(zip(pool.classes, pool.counts.tolist(), strict=True)))
            | {
                "shape": list(pool.examples.shape[1:]),
                "dtype": str(pool.examples.dtype).removeprefix("torch."),
                "groups": len(set(pool.groups) - {""}),
                "checksum": pool.checksum,
            }
            for split, pool in pools.items()
        },
        "groups_in_two_splits": _shared(pool.groups for pool in pools.values()),
        "warnings": [warning] if shared else [],
    }


def _shared(names: Iterable[Sequence[str]]) -> list[str]:
    """Names, other than "", that occur in two splits."""
    return sorted({name for first, second in combinations(names, 2) for name in set(first) & set(second)} - {""})


def _check_images(folder: Path) -> Result:
    """Decode every image of a folder of class folders."""
    images, others = find_images(folder)
    if not images:
        raise FewsureError(f"expected {PLACEMENT}, but {folder} has none; supported are {KINDS} files")
    usable: list[Found] = []
    unusable = [{"file": str(path), "why": f"no {KINDS} file in a class folder"} for path in others]
    sizes: Counter[tuple[int, int]] = Counter()
    with ProgressLine(f"reading {folder.name}") as line:
        for done, found in enumerate(images, start=1):
            try:
                load_image(found.path, (3, 16, 16))
                with Image.open(found.path) as image:
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


def _check_table(path: Path, roles: Roles) -> Result:
    """Read a table; with the roles of its columns, say which tasks it can make."""
    table = open_table(str(path))
    columns = {name: _column_facts(table, name) for name in table.names}
    result: Result = {"data": None, "path": str(path), "what": f"a table of {len(table):,} rows", "rows": len(table)}
    result |= {"columns": columns, "splits": {}}
    common = {"file": str(path), "features": roles.features, "split_column": roles.split_column}
    common |= {"categories": roles.categories, "missing": roles.missing}
    data: Table | TableClasses
    if roles.label is not None:
        data = TableClasses(**common, label=roles.label, task_column=roles.task_column)  # type: ignore[arg-type]
    elif roles.target is not None:
        data = Table(**common, target=roles.target, task_column=roles.task_column or "")  # type: ignore[arg-type]
    else:
        return result
    rows = data.rows()
    splits = row_splits(rows, SHARES, rows.held_out_name)
    result["warnings"] = doubts_about_rows(rows) + doubts_about_splits(*_units(rows, splits, data))
    result["warnings"] += unseen(table, rows.encoding)
    result |= {"data": "table" if data.unit == "tasks" else data.name, "unit": data.unit, "inputs": list(rows.columns)}
    result["splits"] = {split: counted(Counter(rows.unit[splits == split].tolist())) for split in SPLITS}
    if data.unit == "tasks":
        result["target"] = {"mean": float(rows.y.mean()), "std": float(rows.y.std())}
    elif rows.task is not None:
        result["classes_of_a_task"] = _largest_way(rows, splits)
    return result


def _units(
    rows: Rows, splits: NDArray[np.str_], data: Table | TableClasses
) -> tuple[dict[Split, int], str, int | None]:
    """Groups or classes of each split, what they are, and how many independent tasks there are to test on."""
    sizes = {split: len(set(rows.held_out[splits == split].tolist())) for split in SPLITS}
    if data.unit == "tasks":
        return sizes, "tasks", sizes["test"]
    return sizes, "classes" if rows.task is None else "groups", None if rows.task is None else sizes["test"] // 2


def _column_facts(table: Columns, name: str) -> str:
    values = table.text[name]
    empty, filled = sum(not value for value in values), [value for value in values if value]
    is_number = all(math.isfinite(table.number(value)) for value in filled)
    kind = "numbers" if is_number else "text" if any(math.isnan(table.date(value)) for value in filled) else "dates"
    return f"{kind}, {len(set(values)):,} different" + (f", {empty:,} empty" if empty else "")


def _largest_way(rows: Rows, splits: NDArray[np.str_]) -> int:
    """How many classes meet in the largest task of every split."""
    classes = set(zip(splits.tolist(), rows.held_out.tolist(), rows.unit.tolist(), strict=True))
    meet = Counter((split, task) for split, task, _ in classes)
    return min(max(n for (found, _), n in meet.items() if found == split) for split in SPLITS)


def counted(examples: Mapping[str, int]) -> Result:
    """How many classes or tasks (units) a split has, and how many examples each of them.

    >>> counted({"oak": 7, "elm": 5})["smallest"]
    {'name': 'elm', 'examples': 5}
    """
    if not examples:
        raise FewsureError("expected examples for training, validation and testing, but one of them has none")
    least, most = min(examples, key=lambda name: (examples[name], name)), max(examples, key=lambda name: examples[name])
    return {
        "units": len(examples),
        "examples": sum(examples.values()),
        "smallest": {"name": least, "examples": examples[least]},
        "largest": {"name": most, "examples": examples[most]},
        "median": int(np.median(list(examples.values()))),
    }
