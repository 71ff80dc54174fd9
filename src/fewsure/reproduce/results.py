"""The results of an experiment grow as its entries are run: rows that an earlier command wrote, beside new ones."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fewsure.core.config import from_json
from fewsure.errors import FewsureError

Row = dict[str, Any]
NEEDED = {"target": str, "label": str, "train_seed": int, "stream": str, "seed": int, "tasks": int, "updates": int}
"""What tells a row from others, and the tasks that it was found on."""


def read_results(file: Path) -> list[Row]:
    """The rows of a file that `fewsure reproduce` has written."""
    wanted = f"{file}: expected results of `fewsure reproduce`"
    otherwise = "give a file that it has written, or none"
    try:
        rows = from_json(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise FewsureError(f"{wanted}, but {error.strerror}; {otherwise}") from None
    except ValueError as error:
        raise FewsureError(f"{wanted}, but {error}; {otherwise}") from None
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise FewsureError(f"{wanted}, a list of objects, but it is none; {otherwise}")
    for row in rows:
        for name, kind in NEEDED.items():
            if not isinstance(row.get(name), kind):
                raise FewsureError(
                    f"{file}: expected `{name}` in every row, but {_name(row)} has {row.get(name)!r}; was it written "
                    "by another version?"
                )
    return rows


def earlier_results(file: Path, target: str, seed: int) -> list[Row]:
    """The rows of earlier results, if they are of one experiment and of the tasks that it is evaluated on now."""
    rows = read_results(file)
    expected = {"target": target, "stream": "test", "seed": seed}
    for row in rows:
        for name, value in expected.items():
            if row[name] != value:
                raise FewsureError(
                    f"{file}: expected results of {name} {value}, but {_name(row)} is of {row[name]}; give a file of "
                    "this experiment and round, or leave --beside out"
                )
    if len({run_of(row) for row in rows}) < len(rows):
        raise FewsureError(
            f"{file}: expected one row for each entry and seed, but some are there twice; delete one of them"
        )
    return rows


def with_earlier(rows: Sequence[Row], earlier: Sequence[Row]) -> list[Row]:
    """The rows and, of entries and seeds that they are not of, the earlier ones; all of one set of data."""
    here = {run_of(row): row for row in rows}
    for row in earlier:
        new = here.get(run_of(row))
        if new is not None and (new["updates"], new["tasks"]) != (row["updates"], row["tasks"]):
            print(
                f"{_name(row)}: a run of {new['updates']:,} updates and {new['tasks']:,} tasks takes the place of the "
                f"earlier result of {row['updates']:,} and {row['tasks']:,}",
                file=sys.stderr,
            )
    every = [*rows, *(row for row in earlier if run_of(row) not in here)]
    if len({row.get("data_checksum") for row in every}) > 1:
        raise FewsureError(
            "expected results of --beside on the same data as the runs in --out, but their checksums differ; leave "
            "--beside out, or run them on the same data"
        )
    return sorted(every, key=run_of)


def written(file: Path, target: str) -> list[tuple[str, int]]:
    """The entries and seeds of the results of an experiment in a file; none, if it is not there."""
    if not file.exists():
        return []
    try:
        rows = read_results(file)
        others = sorted({row["target"] for row in rows} - {target})
        if others:
            raise FewsureError(f"it has results of {', '.join(others)}")
    except FewsureError as error:
        raise FewsureError(
            f"{file} is in the way of the results: move it away, or choose another --results ({error})"
        ) from None
    return [run_of(row) for row in rows]


def run_of(row: Row) -> tuple[str, int]:
    """Entry and seed: what a row is of."""
    return row["label"], row["train_seed"]


def _name(row: Row) -> str:
    return f"{row.get('label')}, seed {row.get('train_seed')}"
