"""Columns of a table → inputs: numbers and dates as they are, a 0 or 1 for each category that training saw."""

import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from fewsure.data.io.table_files import Columns, is_missing
from fewsure.errors import FewsureError

Missing = Literal["refuse", "impute"]
MOST_CATEGORIES = 100
"""A column of text with more of them is refused: it is a name or a note."""
NAMED = 3
"""Categories that a message names."""


@dataclass(frozen=True)
class Column:
    """A column of a table as the training rows have it."""

    name: str
    kind: Literal["number", "date", "category"] = "number"
    categories: tuple[str, ...] = ()
    """The categories of the training rows, in sorted order."""
    missing: Missing = "refuse"
    fill: float = 0.0
    """Where missing values are imputed: the mean of the training rows."""
    indicator: bool = False
    """Whether an input says where a value is missing; it does if one was missing in training."""

    @property
    def inputs(self) -> list[str]:
        """The names of its inputs.

        >>> Column("colour", "category", ("blue", "red"), indicator=True).inputs
        ['colour=blue', 'colour=red', 'colour is missing']
        """
        of_values = [self.name] if self.kind != "category" else [f"{self.name}={value}" for value in self.categories]
        return of_values + [f"{self.name} is missing"] * self.indicator


def learn_columns(
    table: Columns,
    names: Sequence[str],
    train: NDArray[np.bool_],
    missing: Missing,
    categories: Sequence[str],
    advice: str,
) -> tuple[Column, ...]:
    """The columns as the rows (N,) where `train` is true have them; `categories` are so also where they are numbers."""
    for name in categories:
        if name not in names:
            raise FewsureError(f"expected `categories` to be among the inputs {', '.join(names)}, but got {name!r}")
    rows = np.flatnonzero(train)
    forced = {*categories, *table.categorical}
    return tuple(_learn_column(table, name, rows, missing, name in forced, advice) for name in names)


def _learn_column(
    table: Columns, name: str, rows: NDArray[np.int64], missing: Missing, is_category: bool, advice: str
) -> Column:
    if name in table.typed and not is_category:
        values = table.typed[name][rows]
        return _with_fill(Column(name, "number", missing=missing), values)
    cells = table.cells(name, "features")
    known = [cell for cell in (cells[row] for row in rows) if cell and not (missing == "impute" and is_missing(cell))]
    if is_category or (known and not any(table.reads_as_number(cell) for cell in known)):
        if not is_category and not any(np.isnan([table.date(cell) for cell in known])):
            return _with_fill(Column(name, "date", missing=missing), np.array([table.date(cells[row]) for row in rows]))
        found = tuple(sorted(set(known)))
        if len(found) > MOST_CATEGORIES:
            raise FewsureError(
                f"{table.where}: expected up to {MOST_CATEGORIES} categories in column `{name}`, but it has "
                f"{len(found):,}, for instance {found[0]!r}; write dates as 2026-01-31, group categories{advice}"
            )
        return Column(name, "category", found, missing, indicator=missing == "impute" and len(known) < len(rows))
    return _with_fill(Column(name, "number", missing=missing), np.array([table.number(cells[row]) for row in rows]))


def _with_fill(column: Column, values: NDArray[np.float64]) -> Column:
    """The column with what stands for its missing values, from those of the training rows."""
    gone = np.isnan(values)
    if column.missing == "refuse" or not gone.any():
        mean = float(values.mean()) if column.missing == "impute" else 0.0
        return Column(column.name, column.kind, missing=column.missing, fill=mean)
    fill = 0.0 if gone.all() else float(values[~gone].mean())
    return Column(column.name, column.kind, missing=column.missing, fill=fill, indicator=True)


def input_names(columns: Iterable[Column]) -> tuple[str, ...]:
    """The names of all inputs."""
    return tuple(name for column in columns for name in column.inputs)


def encode(table: Columns, columns: Sequence[Column], advice: str = "") -> NDArray[np.float64]:
    """The inputs (N, D) of a table; a category that training never saw counts as no category."""
    return np.concatenate([_encoded(table, column, advice) for column in columns], axis=1)


def _encoded(table: Columns, column: Column, advice: str) -> NDArray[np.float64]:
    imputes = column.missing == "impute"
    if column.kind == "category":
        cells = np.array(table.cells(column.name, "features") if imputes else table.strings(column.name, "features"))
        gone = np.array([is_missing(cell) for cell in cells]) if imputes else np.zeros(len(cells), dtype=bool)
        values = (cells[:, None] == np.array(column.categories, dtype=str)).astype(np.float64)
    else:
        found = table.numbers(column.name, "features", advice, gaps=imputes, dates=column.kind == "date")
        gone = np.isnan(found)
        values = np.where(gone, column.fill, found)[:, None]
    return np.column_stack([values, gone]) if column.indicator else values


def unseen(table: Columns, columns: Iterable[Column]) -> list[str]:
    """A line for each column with categories that training never saw."""
    lines = []
    for column in columns:
        if column.kind == "category":
            new = sorted({cell for cell in table.text[column.name] if not is_missing(cell)} - set(column.categories))
            if new:
                more = f" and {len(new) - NAMED} more" if len(new) > NAMED else ""
                has = f"{table.where}: column `{column.name}` has {', '.join(map(repr, new[:NAMED]))}{more}"
                lines.append(f"{has}, which training never saw; such rows count as of no category there")
    return lines


def read_columns(table: Columns, names: Sequence[str], columns: Sequence[Column]) -> NDArray[np.float64]:
    """The inputs (N, D) of a new table: the columns of training, wherever they are.

    Warns of categories that training never saw. Without `columns`, those called `names` are numbers.
    """
    wanted = [column.name for column in columns] or list(names)
    missing = [name for name in wanted if name not in table.names]
    if missing:
        raise FewsureError(
            f"{table.where}: expected the columns {', '.join(wanted)}, as in training, but `{missing[0]}` is missing"
        )
    for line in unseen(table, columns):
        warnings.warn(line, stacklevel=5)
    return encode(table, columns or [Column(name) for name in wanted])
