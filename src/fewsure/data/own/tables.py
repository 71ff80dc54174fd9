"""A user's own table: groups of rows as regression tasks, or rows with labels as classes."""

from collections.abc import Sequence
from dataclasses import InitVar, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fewsure.core.config import UNRECORDED
from fewsure.data.encoding import Column, Missing, encode, input_names, learn_columns, unseen
from fewsure.data.io.frames import Frame
from fewsure.data.io.table_files import Columns, read_table
from fewsure.data.own.data import OwnClassification, OwnRegression, OwnRows
from fewsure.data.own.rows import SHARES, Fold, Rows, Shares, row_parts
from fewsure.errors import FewsureError

CHOICE = ", or name the columns to be used with --features"
GAPS = ", or all such rows with --missing impute"


@dataclass(frozen=True)
class _Tabular(OwnRows):
    """The options of rows that come from a CSV or Parquet file, or in Python from a DataFrame as `data`."""

    file: str = ""
    """The file; its first line names the columns."""
    features: tuple[str, ...] = ()
    """The columns to predict from; all others if none is named."""
    categories: tuple[str, ...] = ()
    """Columns of numbers that name categories; those of text do in any case."""
    missing: Missing = "refuse"
    """`impute` takes the mean of the training rows where an input is empty, and adds an input that says so. It leaves
    out rows without a number to predict."""
    source: Frame | None = field(default=None, metadata=UNRECORDED, repr=False)
    """The DataFrame that was given."""
    data: InitVar[Any] = None
    """A DataFrame of pandas, polars or pyarrow, in place of a file."""

    def __post_init__(self, data: Any) -> None:
        super().__post_init__()
        if data is not None:
            object.__setattr__(self, "source", Frame(data))

    @property
    def table(self) -> Columns:
        """All rows, as they were given."""
        return open_table(self.file) if self.source is None else self.source.columns

    def doubts(self) -> list[str]:
        return super().doubts() + unseen(self.table, self.fitted_scale.encoding)

    def rows_of(self, y: NDArray[np.generic], task: NDArray[np.str_] | None, roles: Sequence[str | None]) -> Rows:
        """The rows with labels y (N,); each of the `roles` is a column that says something else of a row."""
        table, split_column = self.table, roles[-1]
        split = None if split_column is None else table.strings(split_column, "split_column")
        names = _inputs(table, self.features, roles)
        rows = Rows(np.empty((len(y), 0)), y, task, split, (), table.where)
        if self.scale and self.scale.encoding:
            return _encoded(rows, table, self.scale.encoding)
        return with_inputs(rows, table, names, self.shares, self.missing, self.categories, self.fold)


@dataclass(frozen=True)
class Table(_Tabular, OwnRegression):  # type: ignore[misc] # (an InitVar more than its bases)
    """A table with a number to predict and a column that says which task a row belongs to.

    It is a CSV or Parquet file, or in Python a DataFrame as `data`.
    """

    task_column: str = ""
    """The column that says which task a row belongs to: a person, a place, an experiment …"""
    target: str = ""
    """The column to predict."""
    split_column: str | None = None
    """A column that says train, validation or test; `none` for a rule that goes by the names of the tasks."""

    @property
    def target_column(self) -> str:
        return self.target

    @property
    def grouped_by(self) -> str:
        return self.task_column

    def rows(self) -> Rows:
        task = self.table.strings(self.task_column, "task_column")
        imputes = self.missing == "impute"
        y = self.table.numbers(self.target, "target", "" if imputes else GAPS, gaps=imputes)
        return self.rows_of(y, task, [self.task_column, self.target, self.split_column])


@dataclass(frozen=True)
class TableClasses(_Tabular, OwnClassification):  # type: ignore[misc]
    """A table with a column that says which class a row belongs to.

    It is a CSV or Parquet file, or in Python a DataFrame as `data`.
    """

    label: str = ""
    """The column with the class of a row."""
    task_column: str | None = None
    """A column that says which task a row belongs to, if classes of different tasks must not meet; `none` for tasks of
    any classes."""
    split_column: str | None = None
    """A column that says train, validation or test; `none` for a rule that goes by the names of the classes."""

    name = "table-classes"

    @property
    def target_column(self) -> str:
        return self.label

    @property
    def grouped_by(self) -> str:
        return self.task_column or "classes"

    def rows(self) -> Rows:
        y = self.table.strings(self.label, "label")
        task = None if self.task_column is None else self.table.strings(self.task_column, "task_column")
        return self.rows_of(y, task, [self.task_column, self.label, self.split_column])


def with_inputs(
    rows: Rows,
    table: Columns,
    names: Sequence[str],
    shares: Shares = SHARES,
    missing: Missing = "refuse",
    categories: Sequence[str] = (),
    fold: Fold = (),
) -> Rows:
    """Rows with the inputs that the columns called `names` make, as the training rows have them."""
    train, there = np.zeros(len(rows.y), dtype=bool), _labelled(rows)
    train[there] = row_parts(rows.take(there), shares, rows.held_out_name, fold)["train"]
    return _encoded(rows, table, learn_columns(table, names, train, missing, categories, CHOICE))


def _encoded(rows: Rows, table: Columns, encoding: tuple[Column, ...]) -> Rows:
    found = replace(rows, x=encode(table, encoding, CHOICE), columns=input_names(encoding), encoding=encoding)
    return found.take(_labelled(rows))


def _labelled(rows: Rows) -> NDArray[np.bool_]:
    """Which rows (N,) have a number to predict, or a class."""
    return np.isfinite(rows.y) if rows.y.dtype.kind == "f" else np.ones(len(rows.y), dtype=bool)


def open_table(file: str) -> Columns:
    """The table that an option names."""
    if not file:
        raise FewsureError(
            "expected `file` to be a CSV or Parquet file, but got none; name it with --file, or in Python give a "
            "DataFrame as `data`"
        )
    return read_table(Path(file).expanduser())


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
    index = [name for name in names if name.startswith("Unnamed: ")]
    if index and not named:
        raise FewsureError(
            f"{table.where}: expected columns with names, but `{index[0]}` is the index of a table that was saved; "
            f"read it with index_col=0, or leave it out{CHOICE}"
        )
    if not names:
        raise FewsureError(f"{table.where}: expected columns to predict from, but there are none left")
    return names
