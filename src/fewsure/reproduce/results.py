"""The file of an experiment's results. It grows as methods are run: rows of methods and seeds not run here are kept."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fewsure.core.config import from_json
from fewsure.errors import FewsureError

Row = dict[str, Any]
NEEDED = {"target": str, "label": str, "train_seed": int, "stream": str, "seed": int, "tasks": int, "updates": int}
"""The fields that tell a row from others, and name the tasks that it was measured on."""


def read_results(file: Path) -> list[Row]:
    """The rows of a file that `fewsure reproduce` has written."""
    wanted = f"{file}: expected results of `fewsure reproduce`"
    try:
        rows = from_json(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise FewsureError(f"{wanted}, but {error.strerror}") from None
    except ValueError as error:
        raise FewsureError(f"{wanted}, but {error}") from None
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise FewsureError(f"{wanted}, a list of objects")
    for row in rows:
        for name, kind in NEEDED.items():
            if not isinstance(row.get(name), kind):
                raise FewsureError(f"{wanted} with `{name}` in every row, but {_name(row)} has {row.get(name)!r}")
    return rows


def kept_results(file: Path, target: str, seed: int) -> list[Row]:
    """The rows that a file has, if they are of one experiment and of its test tasks; none if there is no file."""
    if not file.exists():
        return []
    try:
        rows = read_results(file)
        for row in rows:
            for name, value in {"target": target, "stream": "test", "seed": seed}.items():
                if row[name] != value:
                    raise FewsureError(f"expected results of {name} {value}, but {_name(row)} is of {row[name]}")
        if len({run_of(row) for row in rows}) < len(rows):
            raise FewsureError("expected one row for each method and seed, but some are there twice")
    except FewsureError as error:
        raise FewsureError(
            f"{file} is in the way of the results: move it away, or choose another --results ({error})"
        ) from None
    return rows


def merge(rows: Sequence[Row], kept: Sequence[Row]) -> list[Row]:
    """The rows and, of methods and seeds that they are not of, the kept ones; all of one set of data."""
    here = {run_of(row): row for row in rows}
    for row in kept:
        new = here.setdefault(run_of(row), row)
        if (new["updates"], new["tasks"]) != (row["updates"], row["tasks"]):
            print(
                f"{_name(row)}: a run of {new['updates']:,} updates and {new['tasks']:,} tasks takes the place of the "
                f"earlier result of {row['updates']:,} and {row['tasks']:,}",
                file=sys.stderr,
            )
    if len({row.get("data_checksum") for row in here.values()}) > 1:
        raise FewsureError(
            "expected --results of the same data as the runs in --out, but their checksums differ; choose another "
            "--results, or run them on the same data"
        )
    return sorted(here.values(), key=run_of)


def run_of(row: Row) -> tuple[str, int, int]:
    """The method and seed of a row, and the support size where a target has several."""
    return row["label"], row["train_seed"], row.get("support", 0)


def _name(row: Row) -> str:
    return f"{row.get('label')}, seed {row.get('train_seed')}"
