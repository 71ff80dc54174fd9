"""DataFrames in memory, of any library that narwhals reads: pandas, polars, pyarrow and others."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import narwhals as nw
import numpy as np
from numpy.typing import NDArray

from fewsure.data.io.table_files import Columns, text
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
        return Columns(_Texts(self), WHERE, typed=typed, categorical=categorical)

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

    @cached_property
    def _table(self) -> "nw.DataFrame[Any]":
        try:
            return nw.from_native(self.native, eager_only=True)
        except nw.exceptions.DuplicateError as error:
            raise FewsureError(f"expected column names of {WHERE} to differ, but one is there twice") from error


class _Texts(Mapping[str, Sequence[str]]):
    """The columns of a DataFrame as text, each made when it is asked for."""

    def __init__(self, frame: Frame) -> None:
        self._frame, self._made = frame, dict[str, Sequence[str]]()

    def __getitem__(self, name: str) -> Sequence[str]:
        if name not in self._made:
            if name not in self._frame.names:
                raise KeyError(name)
            self._made[name] = [text(value) for value in self._frame.values(name)]
        return self._made[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._frame.names)

    def __len__(self) -> int:
        return len(self._frame.names)


def is_frame(value: Any) -> bool:
    """Whether it is a DataFrame of a library that is known."""
    return nw.dependencies.is_into_dataframe(value)
