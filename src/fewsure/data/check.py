"""`fewsure data check`: what is in a data set or in data of a user's own, what is unusable, which tasks it makes."""

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
from fewsure.data.io.cache import load
from fewsure.data.io.checksums import verify
from fewsure.data.io.feature_files import feature_splits, features_file, load_features
from fewsure.data.io.table_files import is_number
from fewsure.data.own.images import PLACEMENT, Found, find_images, image_splits, load_image
from fewsure.data.own.rows import SHARES, Rows, row_splits
from fewsure.data.own.tables import Table, TableClasses, open_table
from fewsure.data.pools import SPLITS, Pool, Split
from fewsure.errors import FewsureError

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


def check_data(name: str, roles: Roles) -> Result:
    """Read all splits of a data set, or what lies at a path, and say what is in them."""
    path = Path(name).expanduser()
    if name not in DATA_SETS and path.is_file():
        return _check_table(path, roles)
    for role in fields(Roles):
        if getattr(roles, role.name):
            option = f"--{role.name.replace('_', '-')}"
            raise FewsureError(f"expected {option} with a table, but {name} is none; leave it out")
    if name in DATA_SETS:
        data = DATA_SETS[name]
        compared = verify(dict.fromkeys(path for split in SPLITS for path in data.found(split)), data.folder)
        pools = {split: load(data, split) for split in SPLITS}
        return _pools_result(name, data.folder, data.title, data.classes, compared, pools)
    if splits := feature_splits(path):
        pools = {split: load_features(path, split) for split in splits}
        compared = verify([features_file(path, split) for split in splits], path)
        return _pools_result(name, path, "features", {}, compared, pools)
    if path.is_dir():
        return _check_images(path)
    raise FewsureError(
        f"expected `name` to be one of {', '.join(DATA_SETS)}, a folder of features or of images, or a table, but "
        f"there is no {name!r}"
    )


def _pools_result(
    name: str,
    path: Path,
    what: str,
    published: Mapping[Split, int],
    compared: Mapping[str, bool],
    pools: Mapping[Split, Pool],
) -> Result:
    warnings = [
        f"expected {published[split]} classes in {split}, as published, but got {len(pool.classes)}"
        for split, pool in pools.items()
        if len(pool.classes) != published.get(split, len(pool.classes))
    ]
    shared = _shared(pool.classes for pool in pools.values())
    if shared:
        warnings.append(f"expected every class in one split, but {len(shared)} are in two: {', '.join(shared[:5])}")
    return {
        "data": name,
        "path": str(path),
        "what": what,
        "unit": "classes",
        "files": len(compared),
        "files_compared": sum(compared.values()),
        "splits": {split: _pool_facts(pool) for split, pool in pools.items()},
        "groups_in_two_splits": _shared(pool.groups for pool in pools.values()),
        "warnings": warnings,
    }


def _pool_facts(pool: Pool) -> Result:
    return counted(dict(zip(pool.classes, pool.counts.tolist(), strict=True))) | {
        "shape": list(pool.examples.shape[1:]),
        "dtype": str(pool.examples.dtype).removeprefix("torch."),
        "groups": len({group for group in pool.groups if group}),
        "checksum": pool.checksum,
    }


def _shared(names: Iterable[Sequence[str]]) -> list[str]:
    """Names, other than "", that occur in two splits."""
    return sorted({name for first, second in combinations(names, 2) for name in set(first) & set(second)} - {""})


def _check_images(folder: Path) -> Result:
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
    columns = {name: _column_facts(values) for name, values in table.text.items()}
    result: Result = {"data": None, "path": str(path), "what": f"a table of {len(table):,} rows", "rows": len(table)}
    result |= {"columns": columns, "splits": {}}
    common = {"file": str(path), "features": roles.features, "split_column": roles.split_column}
    data: Table | TableClasses
    if roles.label is not None:
        data = TableClasses(**common, label=roles.label, task_column=roles.task_column)  # type: ignore[arg-type]
    elif roles.target is not None:
        data = Table(**common, target=roles.target, task_column=roles.task_column or "")  # type: ignore[arg-type]
    else:
        return result
    rows = data.rows()
    splits = row_splits(rows, SHARES, "classes" if rows.task is None else "tasks")
    result |= {"data": "table" if data.unit == "tasks" else data.name, "unit": data.unit, "inputs": list(rows.columns)}
    result["splits"] = {split: counted(Counter(rows.unit[splits == split].tolist())) for split in SPLITS}
    if data.unit == "tasks":
        return result | {"target": {"mean": float(rows.y.mean()), "std": float(rows.y.std())}}
    return result | ({} if rows.task is None else {"classes_of_a_task": _largest_way(rows, splits)})


def _column_facts(values: Sequence[str]) -> str:
    empty = sum(not value for value in values)
    kind = "numbers" if all(is_number(value) for value in values if value) else "text"
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
    ends = {
        "smallest": min(examples, key=lambda name: (examples[name], name)),
        "largest": max(examples, key=lambda name: examples[name]),
    }
    return {
        "units": len(examples),
        "examples": sum(examples.values()),
        **{end: {"name": name, "examples": examples[name]} for end, name in ends.items()},
        "median": int(np.median(list(examples.values()))),
    }


def check_text(result: Result) -> str:
    """For people."""
    unusable = result.get("unusable", [])
    lines = [f"{result['path']}: {result['what']}" + (f", {len(unusable)} unusable files" if unusable else "")]
    lines += [f"  {name}: {what}" for name, what in result.get("columns", {}).items()]
    if sizes := result.get("sizes"):
        first, *more = sizes
        lines.append(
            f"{first['images']} images of {first['width']}×{first['height']} pixels"
            + (f", and {len(more)} other sizes; all are resized to --image-size" if more else "")
        )
    if splits := result["splits"]:
        lines += [_splits_text(splits, result["unit"]), _possible(result)]
    else:
        lines.append(
            "name what to predict: --target COLUMN --task-column COLUMN for numbers, or --label COLUMN for classes"
        )
    if "files" in result:
        lines.append(f"{result['files_compared']} of {result['files']} files listed in SHA256SUMS, and as it says")
        has_groups = any(facts["groups"] for facts in splits.values())
        lines.append(f"groups in two splits: {len(result['groups_in_two_splits'])}" if has_groups else "no groups")
    lines += [f"warning: {warning}" for warning in result.get("warnings", [])]
    lines += [f"unusable: {item['file']}: {item['why']}" for item in unusable[:SHOWN]]
    hidden = len(unusable) - SHOWN
    return "\n".join([*lines, *([f"and {hidden} more; --json names them all"] if hidden > 0 else [])])


def _splits_text(splits: Mapping[str, Result], unit: str) -> str:
    rows = [["split", unit, "examples", "smallest", "largest"]]
    for split, facts in splits.items():
        ends = [f"{facts[end]['examples']} ({facts[end]['name']})" for end in ("smallest", "largest")]
        rows.append([split, f"{facts['units']:,}", f"{facts['examples']:,}", *ends])
        if "shape" in facts:
            size = "×".join(map(str, facts["shape"]))
            rows[-1] += [f"{size} {facts['dtype']}", str(facts["groups"] or "–"), facts["checksum"][:12]]
    if len(rows[0]) < len(rows[-1]):
        rows[0] += ["example", "groups", "checksum"]
    return in_columns(rows)


def _possible(result: Result) -> str:
    splits = result["splits"].values()
    most, typical = min(facts["smallest"]["examples"] for facts in splits), min(facts["median"] for facts in splits)
    one = "task" if result["unit"] == "tasks" else "class"
    sizes = f"shot and query together up to {most} for every {one}"
    if typical > most and "files" not in result:  # the classes of a published data set are all drawn from
        sizes += f", up to {typical} for half of them (smaller ones are left out)"
    way = result.get("classes_of_a_task") or min(facts["units"] for facts in splits)
    return f"possible: {sizes}" if one == "task" else f"possible: up to {way} classes a task (way); {sizes}"


def in_columns(rows: Sequence[Sequence[str]]) -> str:
    """Rows of cells, in columns.

    >>> print(in_columns([["name", "size"], ["omniglot", "28"]]))
    name      size
    omniglot  28
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)
