"""Tables: CSV files, and Parquet files where pyarrow is installed, as columns of text or of numbers."""

import csv
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fewsure.errors import FewsureError, require_known

DELIMITERS = (",", ";", "\t")
DECIMAL_COMMA = re.compile(r"[+-]?\d*,\d+(?:[eE][+-]?\d+)?")
"""A number such as 3,14, which a file may hold whose columns are not separated by commas."""
PARQUET = (".parquet", ".pq")
MISSING = {"", "nan", "na", "n/a", "null"}
"""Cells, in small letters, that say that a value is missing, where missing values are asked for."""
BLOCK = 4096
"""Rows that are held in memory at once where a table is read in blocks."""


class Columns(NamedTuple):
    """Rows of a table, column by column, as text."""

    text: Mapping[str, Sequence[str]]
    where: str
    """The name of the table in errors."""
    first: int = 1
    """The number of the first row, for errors; the line with the names is not counted."""
    decimal_comma: bool = False
    """Whether 3,14 is a number, too."""
    typed: Mapping[str, NDArray[np.float64]] = {}
    """Columns that hold numbers by their type, NaN where one is missing."""
    categorical: frozenset[str] = frozenset()
    """Columns that hold categories by their type."""

    @property
    def names(self) -> list[str]:
        return list(self.text)

    def __len__(self) -> int:
        some: Mapping[str, Any] = self.typed or self.text
        return len(next(iter(some.values())))

    def strings(self, name: str, option: str) -> NDArray[np.str_]:
        """A column as text; `option` is what the user named it with."""
        values = self.cells(name, option)
        if "" in values:
            row = self.first + values.index("")
            raise FewsureError(f"{self.where}: expected a name in column `{name}`, but row {row} is empty")
        return np.array(values)

    def numbers(
        self, name: str, option: str, advice: str = "", *, gaps: bool = False, dates: bool = False
    ) -> NDArray[np.float64]:
        """A column as finite numbers; `advice` ends the error for a cell that holds another value.

        With `gaps` a missing one is NaN. With `dates` they are the days since 1970.
        """
        read = self.date if dates else self.number
        typed = self.typed.get(name)
        found = np.array([read(value) for value in self.cells(name, option)]) if typed is None else typed
        wrong = np.flatnonzero(~np.isfinite(found))
        if typed is not None and not len(wrong):
            return found  # which saves making text of it
        values = self.cells(name, option)
        if gaps:
            wrong = np.array([row for row in wrong.tolist() if not is_missing(values[row])], dtype=int)
        if len(wrong) and dates:
            row, expected = wrong[0], f"{self.where}: expected dates such as 2026-01-31 in column `{name}`"
            raise FewsureError(f"{expected}, but row {self.first + row} has {values[row] or 'nothing'!r}")
        if len(wrong):
            value, expected = values[wrong[0]], f"{self.where}: expected numbers in column `{name}`, but"
            if len(wrong) == len(found) > 1 and value:
                raise FewsureError(f"{expected} it has text, for instance {value!r}; encode it as numbers{advice}")
            came = f"row {self.first + wrong[0]} " + (f"has {value!r}" if value else "is empty")
            raise FewsureError(f"{expected} {came}; fill it in, or leave the row out{advice}")
        if self.decimal_comma and not dates:
            self._require_one_decimal_sign(name, values)
        return found

    def number(self, value: str) -> float:
        """A cell as a number, 1 and 0 for true and false; NaN if it holds another value."""
        if self.decimal_comma and DECIMAL_COMMA.fullmatch(value):
            value = value.replace(",", ".")
        try:
            return float(value)
        except ValueError:
            return {"true": 1.0, "false": 0.0}.get(value.lower(), math.nan)

    def reads_as_number(self, value: str) -> bool:
        """Whether a cell is written as a number, be it NaN or infinity."""
        return not math.isnan(self.number(value)) or value.lower() in MISSING

    def date(self, value: str) -> float:
        """A date or a time of ISO 8601 as days since 1970, in UTC; NaN if it holds another value.

        >>> Columns({}, "").date("1970-01-02T12:00")
        1.5
        """
        try:
            when = datetime.fromisoformat(value)
        except ValueError:
            return math.nan
        return (when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp() / 86400

    def _require_one_decimal_sign(self, name: str, values: Sequence[str]) -> None:
        """1,234 beside 5.6 may have a comma between thousands."""
        first = [next((row for row, value in enumerate(values) if sign in value), None) for sign in ",."]
        comma, point = (f"row {self.first + row} has {values[row]!r}" if row is not None else "" for row in first)
        if comma and point:
            raise FewsureError(
                f"{self.where}: expected one decimal sign in column `{name}`, but {comma} and {point}; write all "
                "numbers with one sign, and thousands without any"
            )

    def matrix(self, names: Sequence[str]) -> NDArray[np.float64]:
        """Columns of numbers, (N, D)."""
        return np.stack([self.numbers(name, "features") for name in names], axis=-1)

    def cells(self, name: str, option: str) -> Sequence[str]:
        """A column as text, with empty cells."""
        if not name:
            raise FewsureError(f"expected `{option}` to name a column of {self.where}, one of {', '.join(self.names)}")
        require_known(option, name, self.names)
        return self.text[name]


class Texts(Mapping[str, Sequence[str]]):
    """Columns as text, each made from its values when it is asked for."""

    def __init__(self, names: Sequence[str], values: Callable[[str], Sequence[Any]]) -> None:
        self._names, self._values, self._made = names, values, dict[str, Sequence[str]]()

    def __getitem__(self, name: str) -> Sequence[str]:
        if name not in self._made:
            if name not in self._names:
                raise KeyError(name)
            self._made[name] = [text(value) for value in self._values(name)]
        return self._made[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def read_table(path: Path) -> Columns:
    """The whole of a table."""
    status = path.stat() if path.is_file() else None
    return _read(path, status and (status.st_mtime_ns, status.st_size))


@lru_cache(maxsize=2)
def _read(path: Path, changed: object) -> Columns:
    blocks = list(read_blocks(path, size=2**62))
    if not blocks:
        raise FewsureError(f"expected rows in {path}, but it has none below the line with the column names")
    return blocks[0]


def read_blocks(path: Path, size: int = BLOCK) -> Iterator[Columns]:
    """A table in blocks of rows; a file is never held in memory as a whole."""
    if not path.is_file():
        raise FewsureError(f"expected a CSV or Parquet file, but {path} is not there")
    first = 1
    for block in (_parquet_blocks if path.suffix.lower() in PARQUET else _csv_blocks)(path, size):
        yield Columns(block.text, block.where, first, block.decimal_comma, block.typed)
        first += len(block)


def _csv_blocks(path: Path, size: int) -> Iterator[Columns]:
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            header = file.readline()
            delimiter = max(DELIMITERS, key=header.count)
            names = [name.strip() for name in next(csv.reader([header], delimiter=delimiter), [])]
            _require_names(names, path)
            rows = enumerate((row for row in csv.reader(file, delimiter=delimiter) if row), start=1)
            while block := list(islice(rows, size)):
                for number, row in block:
                    if len(row) != len(names):
                        expected = f"{path}: expected {len(names)} columns, as in its first line"
                        raise FewsureError(f"{expected}, but row {number} has {len(row)}")
                columns = {name: [row[index].strip() for _, row in block] for index, name in enumerate(names)}
                yield Columns(columns, str(path), decimal_comma=delimiter != ",")
    except (UnicodeDecodeError, csv.Error) as error:
        raise FewsureError(f"{path} cannot be read as CSV ({error}); save it as UTF-8 text with commas") from error


def _parquet_blocks(path: Path, size: int) -> Iterator[Columns]:
    try:
        from pyarrow import ArrowException, parquet
    except ImportError as error:
        needs = f"reading {path} needs pyarrow: run `pip install pyarrow`"
        raise FewsureError(f"{needs}, or save the table as CSV") from error
    try:
        # Without buffers for what comes later, which would end as the whole file.
        for batch in parquet.ParquetFile(path, pre_buffer=False).iter_batches(batch_size=min(size, 2**31 - 1)):
            yield arrow_columns(batch, str(path))
    except (ArrowException, OSError) as error:
        raise FewsureError(f"{path} cannot be read as Parquet ({error}); write it again") from error


def arrow_columns(batch: Any, where: str) -> Columns:
    """The rows of a batch of pyarrow, with the types of its columns."""
    from pyarrow import float64, types

    names = batch.schema.names
    _require_names(names, Path(where))
    numbers = [types.is_integer, types.is_floating, types.is_decimal, types.is_boolean]
    typed = {
        name: batch[name].cast(float64()).to_numpy(zero_copy_only=False).astype(np.float64)
        for name in names
        if any(is_kind(batch.schema.field(name).type) for is_kind in numbers)
    }
    return Columns(Texts(names, lambda name: batch[name].to_pylist()), where, typed=typed)


def text(value: Any) -> str:
    """A value as a CSV file has it; nothing for a missing one."""
    return "" if value is None else str(int(value)) if isinstance(value, bool) else str(value)


def is_missing(value: str) -> bool:
    """Whether a cell says that its value is missing."""
    return value.lower() in MISSING


def _require_names(names: Sequence[str], path: Path) -> None:
    if not names or not all(names):
        raise FewsureError(
            f"expected the first line of {path} to name every column, but got {list(names)}; pandas leaves an index "
            "without a name out with to_csv(…, index=False)"
        )
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise FewsureError(f"expected column names of {path} to differ, but `{twice[0]}` is there twice")
