"""The results of an experiment grow as its entries are run: rows that an earlier command wrote, beside new ones."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fewsure.errors import FewsureError
from fewsure.records import from_json

NEEDED = ("label", "train_seed", "stream", "seed", "tasks")
"""What tells a row from others, and the tasks that it was found on."""


def read_results(file: Path) -> list[dict[str, Any]]:
    """The rows of a file that `fewsure reproduce` has written."""
    try:
        rows = from_json(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise FewsureError(f"{file}: expected results of `fewsure reproduce`, but {error.strerror}") from None
    except ValueError as error:
        raise FewsureError(f"{file}: expected results of `fewsure reproduce`, but {error}") from None
    if not isinstance(rows, list) or not all(isinstance(row, dict) and {*NEEDED} <= {*row} for row in rows):
        raise FewsureError(
            f"{file}: expected a list of objects with {', '.join(NEEDED)}; was it written by another tool?"
        )
    return rows


def with_earlier(
    rows: Sequence[dict[str, Any]], file: Path, entries: Sequence[str], drawn: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """The rows and, of entries and seeds that they are not of, those of earlier results.

    All must be on the same tasks: those that are `drawn` with a stream and a seed, of the same data.
    """
    here = {(row["label"], row["train_seed"]) for row in rows}
    earlier = [row for row in read_results(file) if (row["label"], row["train_seed"]) not in here]
    for row in earlier:
        if row["label"] not in entries:
            raise FewsureError(f"{file}: expected entries of this experiment, but {row['label']} is none of them")
        for name, expected in drawn.items():
            if row[name] != expected:
                raise FewsureError(
                    f"{file}: expected {row['label']} on tasks of {name} {expected}, but it was evaluated on those of "
                    f"{row[name]}; leave --beside out, or evaluate its run again"
                )
        if any(row.get("data_checksum") != other.get("data_checksum") for other in rows):
            raise FewsureError(
                f"{file}: expected {row['label']} on the data of the other rows, but it is on other data"
            )
    return sorted([*rows, *earlier], key=lambda row: (row["label"], row["train_seed"]))
