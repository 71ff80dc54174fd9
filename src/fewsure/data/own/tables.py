"""A user's own table: groups of rows as regression tasks, or rows with labels as classes."""

from collections.abc import Sequence
from dataclasses import InitVar, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fewsure.core.config import UNRECORDED
from fewsure.data.io.frames import Frame
from fewsure.data.io.table_files import Columns, read_table
from fewsure.data.own.data import OwnClassification, OwnRegression
from fewsure.data.own.rows import Rows
from fewsure.errors import FewsureError

CHOICE = ", or name the columns to be used with --features"


@dataclass(frozen=True)
class Table(OwnRegression):
    """A table with a number to predict and a column that says which task a row belongs to.

    It is a CSV or Parquet file, or in Python a DataFrame as `data`.
    """

    file: str = ""
    """The file; its first line names the columns."""
    task_column: str = ""
    """The column that says which task a row belongs to: a person, a place, an experiment …"""
    target: str = ""
    """The column to predict."""
    features: tuple[str, ...] = ()
    """The columns to predict from; all others if none is named."""
    split_column: str | None = None
    """A column that says train, validation or test; `none` for a rule that goes by the names of the tasks."""
    source: Frame | None = field(default=None, metadata=UNRECORDED, repr=False)
    """The DataFrame that was given."""
    data: InitVar[Any] = None
    """A DataFrame of pandas, polars or pyarrow, in place of a file."""

    def __post_init__(self, data: Any) -> None:
        super().__post_init__()
        _set_source(self, data)

    @property
    def target_column(self) -> str:
        return self.target

    @property
    def grouped_by(self) -> str:
        return self.task_column

    def rows(self) -> Rows:
        table = _open(self)
        task, y = table.strings(self.task_column, "task_column"), table.numbers(self.target, "target")
        return _rows(table, self, y, task)


@dataclass(frozen=True)
class TableClasses(OwnClassification):
    """A table of numbers with a column that says which class a row belongs to.

    It is a CSV or Parquet file, or in Python a DataFrame as `data`.
    """

    file: str = ""
    """The file; its first line names the columns."""
    label: str = ""
    """The column with the class of a row."""
    task_column: str | None = None
    """A column that says which task a row belongs to, if classes of different tasks must not meet; `none` for tasks of
    any classes."""
    features: tuple[str, ...] = ()
    """The columns to predict from; all others if none is named."""
    split_column: str | None = None
    """A column that says train, validation or test; `none` for a rule that goes by the names of the classes."""
    source: Frame | None = field(default=None, metadata=UNRECORDED, repr=False)
    """The DataFrame that was given."""
    data: InitVar[Any] = None
    """A DataFrame of pandas, polars or pyarrow, in place of a file."""

    name = "table-classes"

    def __post_init__(self, data: Any) -> None:
        super().__post_init__()
        _set_source(self, data)

    @property
    def target_column(self) -> str:
        return self.label

    @property
    def grouped_by(self) -> str:
        return self.task_column or "classes"

    def rows(self) -> Rows:
        table = _open(self)
        y = table.strings(self.label, "label")
        task = None if self.task_column is None else table.strings(self.task_column, "task_column")
        return _rows(table, self, y, task)


def open_table(file: str) -> Columns:
    """The table that an option names."""
    if not file:
        raise FewsureError(
            "expected `file` to be a CSV or Parquet file, but got none; name it with --file, or in Python give a "
            "DataFrame as `data`"
        )
    return read_table(Path(file).expanduser())


def _set_source(table: Table | TableClasses, data: Any) -> None:
    if data is not None:
        object.__setattr__(table, "source", Frame(data))


def _open(table: Table | TableClasses) -> Columns:
    return open_table(table.file) if table.source is None else table.source.columns


def _rows(table: Columns, data: Table | TableClasses, y: NDArray[np.generic], task: NDArray[np.str_] | None) -> Rows:
    split = None if data.split_column is None else table.strings(data.split_column, "split_column")
    names = _inputs(table, data.features, [data.task_column, data.target_column, data.split_column])
    return Rows(table.matrix(names, CHOICE), y, task, split, tuple(names), table.where)


def _inputs(table: Columns, named: Sequence[str], roles: Sequence[str | None]) -> list[str]:
    """The columns to predict from; each of the `roles` says something else of a row."""
    twice = [name for name in roles if name is not None and roles.count(name) > 1]
    if twice:
        raise FewsureError(
            f"{table.where}: expected a column for each thing that is said of a row, but `{twice[0]}` is named for two "
            "of them; name another for one"
        )
    for name in named:
        if name in roles:
            raise FewsureError(f"expected `features` to be columns to predict from, but `{name}` is no input")
    names = list(named) or [name for name in table.names if name not in roles]
    if not names:
        raise FewsureError(f"{table.where}: expected columns to predict from, but there are none left")
    return names
