"""Files with the rows of many groups: memory grows neither with the number of rows nor with that of groups.

1. Rows of both files go to buckets by a hash of the name of their group, block by block.
2. The groups of each bucket are predicted by themselves, and the result is a file of its own.
3. The results are written in the order of the rows of the second file.

All is done in a folder beside the output, `OUT.partial`. The same call goes on there after an interruption. A bucket
depends on the two files alone, so that every engine predicts the same groups side by side.
"""

import json
import shutil
import zlib
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from fewsure.certification.predictor import calibrated_shots
from fewsure.core.config import from_json
from fewsure.core.files import write_atomically, writing
from fewsure.core.progress import ProgressLine, note
from fewsure.data.io.table_files import PARQUET, read_blocks
from fewsure.errors import FewsureError
from fewsure.learner.files import Record, require_place, write_records
from fewsure.learner.groups import Array, Reader, Rows, nothing, predict_rows

FORMAT = 1
BUCKET_BYTES = 2**24
"""Bytes of the two files for each bucket, about."""
BLOCK_ROWS = 2**16
"""Rows that are read, and results that are written, at once."""
PLAN, SPLIT = "plan.json", "split.json"
Role = Literal["known", "new"]
NO_ROWS = Rows(np.empty(0, dtype=str), torch.empty(0, 0), np.empty(0))


class Piece(NamedTuple):
    """Some rows of a file, with their numbers."""

    row: NDArray[np.int64]
    rows: Rows


@dataclass(frozen=True)
class GroupFiles:
    """Two files, and how their groups are predicted."""

    reader: Reader
    known: Path
    new: Path
    coverage: float | None

    @property
    def buckets(self) -> int:
        """How many there are."""
        return 1 + sum(path.stat().st_size for path in (self.known, self.new)) // BUCKET_BYTES

    def pieces(self, role: Role) -> Iterator[Piece]:
        """The rows of one of the files in blocks."""
        for block in read_blocks(self.known if role == "known" else self.new, BLOCK_ROWS):
            yield Piece(np.arange(block.first, block.first + len(block)), self.rows(role, block))

    def rows(self, role: Role, block: Any) -> Rows:
        """A block of one of the files as rows."""
        return self.reader.known(block) if role == "known" else self.reader.new(block)

    def bucket_of(self, rows: Rows) -> NDArray[np.int64]:
        """The bucket of each row (N,)."""
        return np.array([zlib.crc32(name.encode()) % self.buckets for name in rows.group.tolist()], dtype=np.int64)

    def predict(self, known: list[Piece], new: list[Piece]) -> Array:
        """The predictions for the rows of a bucket: records in the order of rows."""
        predictor, coverage = self.reader.predictor, self.coverage
        row, rows = _joined(new) if new else Piece(np.empty(0, dtype=np.int64), NO_ROWS)
        support = _joined(known).rows if known else Rows(rows.group[:0], rows.x[:0], np.empty(0))
        columns = predict_rows(predictor, support, rows, coverage) if new else nothing(predictor, coverage)
        named = {"row": row, self.reader.group: rows.group} | {name: _plain(values) for name, values in columns.items()}
        found: Array = np.empty(len(row), dtype=[(name, values.dtype) for name, values in named.items()])
        for name, values in named.items():
            found[name] = values
        return found

    def plan(self) -> dict[str, Any]:
        """All that decides the result."""
        files = [[str(path.resolve()), path.stat().st_size, path.stat().st_mtime_ns] for path in (self.known, self.new)]
        predictor = self.reader.predictor
        certified = [] if self.coverage is None else [[*pair] for pair in calibrated_shots(predictor.run).items()]
        asked = {"group": self.reader.group, "target": self.reader.target, "coverage": self.coverage}
        return {"format": FORMAT, "checkpoint": predictor.digest, "certified": certified, "files": files, **asked}


def predict_files(files: GroupFiles, out: Path) -> int:
    """Predict all new rows into a CSV, JSON or Parquet file, which is whole or not there; how many there are."""
    require_place(out)
    if out.suffix.lower() in PARQUET and find_spec("pyarrow") is None:
        raise FewsureError(f"writing {out} needs pyarrow: run `pip install pyarrow`, or name a file that ends in .csv")
    work = out.with_name(f"{out.name}.partial")
    _start(work, files.plan())
    if not (work / SPLIT).is_file():
        _split(files, work)
    split = from_json((work / SPLIT).read_text())
    with ProgressLine("predicting buckets of groups") as line:
        for done, bucket in enumerate(split["buckets"]):
            line.show(done, len(split["buckets"]))
            _predict(files, work, bucket, split["rows"])
        line.show(len(split["buckets"]), len(split["buckets"]))
    windows = _merged([work / f"{bucket}.npy" for bucket in split["buckets"]], split["rows"])
    write_windows(windows, out)
    shutil.rmtree(work)
    return int(split["rows"])


def write_windows(windows: Iterable[Array], out: Path) -> None:
    """Write records to a file of the kind that its name says."""
    if out.suffix.lower() in PARQUET:
        _write_parquet(windows, out)
        return
    with writing(out) as file:
        write_records(_records(windows), file, as_json=out.suffix.lower() == ".json")


def _start(work: Path, plan: dict[str, Any]) -> None:
    """The folder of this plan, new or interrupted."""
    if work.exists():
        there = from_json((work / PLAN).read_text()) if (work / PLAN).is_file() else None
        if there != plan:
            raise FewsureError(
                f"{work} holds the beginning of another prediction; remove it, or choose another file for the output"
            )
        note(f"going on in {work}")
        return
    work.mkdir()
    write_atomically(work / PLAN, json.dumps(plan))


def _split(files: GroupFiles, work: Path) -> None:
    """Write the rows of each bucket, in pieces."""
    for folder in work.glob("bucket-*"):
        shutil.rmtree(folder)
    rows, used = 0, set[str]()
    roles: tuple[Role, Role] = ("known", "new")
    for role in roles:
        note(f"reading {role} rows")
        for number, piece in enumerate(files.pieces(role)):
            buckets = files.bucket_of(piece.rows)
            for bucket in np.unique(buckets).tolist():
                folder = work / f"bucket-{bucket:05}"
                folder.mkdir(exist_ok=True)
                _save(folder / f"{role}-{number:06}.npz", piece, buckets == bucket)
                if role == "new":
                    used.add(folder.name)
            rows += len(piece.row) if role == "new" else 0
    if not rows:
        raise FewsureError(f"expected rows to predict in {files.new}, but it has none")
    write_atomically(work / SPLIT, json.dumps({"rows": rows, "buckets": sorted(used)}))


def _save(path: Path, piece: Piece, chosen: NDArray[np.bool_]) -> None:
    group, x, y = piece.rows
    y = _plain(y[chosen]) if len(y) else y
    np.savez(path, row=piece.row[chosen], group=group[chosen], x=x.numpy()[chosen], y=y)


def _load(path: Path) -> Piece:
    with np.load(path, allow_pickle=False) as file:
        return Piece(file["row"], Rows(file["group"], torch.from_numpy(file["x"]), file["y"]))


def _plain(values: Array) -> Array:
    """Labels as text, which a file can hold."""
    return values.astype(str) if values.dtype == object else values


def _joined(pieces: list[Piece]) -> Piece:
    """Pieces as one, in the order of rows."""
    row = np.concatenate([piece.row for piece in pieces])
    order = np.argsort(row)
    group, y = (np.concatenate([getattr(piece.rows, name) for piece in pieces]) for name in ("group", "y"))
    x = torch.cat([piece.rows.x for piece in pieces])[order]
    return Piece(row[order], Rows(group[order], x, y[order] if len(y) else y))


def _predict(files: GroupFiles, work: Path, bucket: str, rows: int) -> None:
    """The result of a bucket: one array for each window of rows."""
    path = work / f"{bucket}.npy"
    if path.is_file():
        return
    known, new = (
        [_load(piece) for piece in sorted((work / bucket).glob(f"{role}-*.npz"))] for role in ("known", "new")
    )
    found = files.predict(known, new)
    ends = np.searchsorted(found["row"], np.arange(BLOCK_ROWS, rows + BLOCK_ROWS, BLOCK_ROWS), side="right")
    beside = path.with_suffix(".writing")
    with beside.open("wb") as file:
        for start, end in zip([0, *ends[:-1]], ends, strict=True):
            np.save(file, found[start:end], allow_pickle=False)
    beside.replace(path)


def _merged(paths: list[Path], rows: int) -> Iterator[Array]:
    """The records of all buckets, window by window in the order of rows."""
    with ExitStack() as stack:
        parts = [stack.enter_context(path.open("rb")) for path in paths]
        for _ in range(0, rows, BLOCK_ROWS):
            window = np.concatenate([np.load(part, allow_pickle=False) for part in parts])
            yield window[np.argsort(window["row"])]


def _records(windows: Iterable[Array]) -> Iterator[Record]:
    for window in windows:
        names = window.dtype.names or ()
        for row in window.tolist():
            yield dict(zip(names, row, strict=True))


def _write_parquet(windows: Iterable[Array], out: Path) -> None:
    import pyarrow
    from pyarrow import parquet

    beside = out.with_name(f".{out.name}.partial")
    with ExitStack() as stack:
        writer: Any = None
        for window in windows:
            table = pyarrow.table({name: window[name] for name in window.dtype.names or ()})
            writer = writer or stack.enter_context(parquet.ParquetWriter(beside, table.schema))
            writer.write_table(table)
    beside.replace(out)
