"""DataFrames in memory, of any library that narwhals reads: pandas, polars, pyarrow and others."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import narwhals as nw
import numpy as np
from numpy.typing import NDArray

from fewsure.data.io.table_files import Columns, Texts
from fewsure.errors import FewsureError

WHERE = "the table given"
"""The name of a DataFrame in errors."""


@dataclass(frozen=True, eq=False)
class Frame:
    """A DataFrame. No two are equal."""

    native: Any

    @cached_property
    def columns(self) -> Columns:
        """Its rows as those of a file, with the types of its columns."""
        names = self.names
        if not names or not all(isinstance(name, str) and name for name in names):
            raise FewsureError(f"expected {WHERE} to have columns with names of text, but got {list(names)}")
        if not len(self._table):
            raise FewsureError(f"expected rows in {WHERE}, but it has none")
        kinds = self._table.schema
        typed = {name: self._numbers(name) for name, kind in kinds.items() if kind.is_numeric() or kind == nw.Boolean}
        categorical = frozenset(name for name, kind in kinds.items() if kind in (nw.Categorical, nw.Enum))
        return Columns(Texts(self.names, self.values), WHERE, typed=typed, categorical=categorical)

    def _numbers(self, name: str) -> NDArray[np.float64]:
        """A column of numbers in double precision; NaN where one is missing."""
        return self._table[name].cast(nw.Float64).to_numpy().astype(np.float64)

    @property
    def names(self) -> list[Any]:
        """The names of its columns."""
        return list(self._table.columns)

    def values(self, name: str) -> list[Any]:
        """A column as Python's values; None where one is missing."""
        column = self._table[name]
        missing = column.is_null().to_list()
        return [None if gone else value for value, gone in zip(column.to_list(), missing, strict=True)]

    def series(self, values: Sequence[Any] | np.ndarray[Any, Any]) -> Any:
        """A value for each row as a column of the same library, with the same index."""
        column = nw.new_series("", list(values), backend=self._table.implementation)
        index = nw.maybe_get_index(self._table)
        return (column if index is None else nw.maybe_set_index(column, index=index)).to_native()

    def like(self, columns: Mapping[str, Any]) -> Any:
        """A DataFrame of the same library with other columns, a value of each for each row, and the same index."""
        given = {name: list(values) if _is_object(values) else values for name, values in columns.items()}
        made: Any = nw.from_dict(given, backend=self._table.implementation).to_native()
        index = nw.maybe_get_index(self._table)
        return made if index is None else made.set_axis(index)

    def __len__(self) -> int:
        return len(self._table)

    @cached_property
    def _table(self) -> "nw.DataFrame[Any]":
        try:
            return nw.from_native(self.native, eager_only=True)
        except nw.exceptions.DuplicateError as error:
            raise FewsureError(f"expected column names of {WHERE} to differ, but one is there twice") from error


def _is_object(values: Any) -> bool:
    return isinstance(values, np.ndarray) and values.dtype == object


def is_frame(value: Any) -> bool:
    """Whether it is a DataFrame of a library that is known."""
    return nw.dependencies.is_into_dataframe(value)
