"""`fewsure predict`: support and query from files, predictions as a stream of records."""

import csv
import json
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fewsure.core.config import finite
from fewsure.core.files import writing
from fewsure.data.encoding import read_columns
from fewsure.data.io.images import KINDS, is_image
from fewsure.data.io.table_files import Columns, read_blocks, read_table
from fewsure.data.own.image_features import ImageFeatures
from fewsure.data.own.images import load_image
from fewsure.data.scaling import Scale
from fewsure.errors import FewsureError
from fewsure.learner.adapted import Adapted
from fewsure.learner.inputs import USUAL_TARGETS, require_one_group
from fewsure.learner.prediction import ClassPrediction, ValuePrediction
from fewsure.training.experiment import Experiment

Array = NDArray[Any]
Record = dict[str, Any]
_TARGETS = {"regression": "numbers", "classification": "labels"}


class Points(NamedTuple):
    """Query points: their names in the output, and their inputs."""

    names: list[Any]
    x: Array


class Files:
    """Reads support and query files as a run's data wants them: tables, or images."""

    def __init__(self, experiment: Experiment, target: str | None) -> None:
        self._data = data = experiment.data
        self._scale: Scale = data.fitted_scale
        self._kind = experiment.model.kind
        self._inverted = data.inverted
        self._target = target or data.target_column or USUAL_TARGETS[self._kind]
        self._columns: Sequence[str] = self._scale.columns
        self._task_column: str = getattr(data, "task_column", None) or ""
        self._group: str | None = None

    @property
    def point(self) -> str:
        """The column of the output with the names of query points."""
        return "file" if self._reads_images else "row"

    def support(self, path: Path) -> tuple[Array, list[Any]]:
        """The examples of a support file, or of a folder of class folders, and their labels."""
        if self._reads_images:
            return self._support_images(path)
        table = read_table(self._required_file(path, "support"))
        if self._target not in table.names:
            raise FewsureError(
                f"{table.where}: expected a column `{self._target}` with the support set's {_TARGETS[self._kind]}, but "
                f"it has {', '.join(table.names)}; name it with --target"
            )
        y: Array = (
            table.numbers(self._target, "target")
            if self._kind == "regression"
            else table.strings(self._target, "target")
        )
        if not self._columns:
            self._columns = [name for name in table.names if name != self._target]
        if self._task_column in table.names:
            self._group = require_one_group(table, self._task_column, None)
        return self._inputs(table), y.tolist()

    def query(self, path: Path, size: int) -> Iterator[Points]:
        """The query points in batches."""
        if not self._reads_images:
            blocks = read_blocks(self._required_file(path, "query"), size)
            first = next(blocks, None)
            if first is None:
                raise FewsureError(f"expected rows to predict in {path}, but it has none")
            for block in chain([first], blocks):
                if self._task_column in block.names and self._group is not None:
                    require_one_group(block, self._task_column, self._group)
                yield Points(list(range(block.first, block.first + len(block))), self._inputs(block))
            return
        files = iter(_query_images(path))
        while batch := list(islice(files, size)):
            names = [file.name if file == path else file.relative_to(path).as_posix() for file in batch]
            yield Points(names, self._images(batch))

    @property
    def _reads_images(self) -> bool:
        return len(self._scale.shape) == 3 or isinstance(self._data, ImageFeatures)

    def _required_file(self, path: Path, what: str) -> Path:
        if path.is_dir():
            raise FewsureError(f"expected --{what} to be a CSV or Parquet file for this run, but {path} is a folder")
        return path

    def _inputs(self, table: Columns) -> Array:
        return read_columns(table, self._columns, self._scale.encoding)

    def _support_images(self, path: Path) -> tuple[Array, list[Any]]:
        folders = sorted(folder for folder in path.iterdir() if folder.is_dir()) if path.is_dir() else []
        files = {folder.name: [file for file in sorted(folder.iterdir()) if is_image(file.name)] for folder in folders}
        files = {label: members for label, members in files.items() if members}
        if not files:
            raise FewsureError(
                f"expected --support to be a folder with a folder of {KINDS} images for each class, but {path} has none"
            )
        labels = [label for label, members in files.items() for _ in members]
        return self._images([file for members in files.values() for file in members]), labels

    def _images(self, files: Sequence[Path]) -> Array:
        if isinstance(self._data, ImageFeatures):
            return self._data.features_of(files)
        channels, height, width = self._scale.shape
        pixels = np.stack([load_image(file, (channels, height, width)) for file in files])
        return 255 - pixels if self._inverted else pixels


def _query_images(path: Path) -> list[Path]:
    if path.is_file():
        return [path]
    files = sorted(file for file in path.rglob("*") if file.is_file() and is_image(file.name))
    if not files:
        raise FewsureError(f"expected --query to be an image, or a folder of {KINDS} images, but {path} has none")
    return files


def predictions(
    adapted: Adapted, files: Files, query: Path, *, coverage: float | None, batch_size: int
) -> Iterator[Record]:
    """A record of each query point. A transductive run sees all of them at once."""
    if coverage is not None:
        adapted.certified()
    size = 2**31 if adapted.transductive else batch_size
    for points in files.query(query, size):
        predicted = adapted.predict(points.x, coverage=coverage, batch_size=batch_size)
        described = _values(predicted) if isinstance(predicted, ValuePrediction) else _classes(predicted)
        for name, record in zip(points.names, described, strict=True):
            yield {files.point: name} | record


def _values(predicted: ValuePrediction) -> Iterator[Record]:
    columns = predicted.columns()
    for row in zip(*(values.tolist() for values in columns.values()), strict=True):
        yield dict(zip(columns, row, strict=True))


def _classes(predicted: ClassPrediction) -> Iterator[Record]:
    columns = predicted.columns()
    scores = zip(*(values.tolist() for values in columns.values()), strict=True)
    sets = [None] * len(predicted.label) if predicted.coverage is None else predicted.sets
    for label, row, probabilities, chosen in zip(
        predicted.label, scores, predicted.probabilities.tolist(), sets, strict=True
    ):
        record = {"label": label, **dict(zip(columns, row, strict=True))}
        record["probabilities"] = dict(zip(predicted.classes, probabilities, strict=True))
        yield record if chosen is None else record | {"set": chosen}


def write_records(records: Iterable[Record], file: IO[str], *, as_json: bool) -> int:
    """Write records one by one, as CSV or as one JSON list; how many there were."""
    count = 0
    writer: Any = None
    for record in records:
        if as_json:
            file.write(("[" if count == 0 else ",\n ") + json.dumps(finite(record)))
        else:
            flat = _flat(record)
            if writer is None:
                writer = csv.DictWriter(file, list(flat), lineterminator="\n")
                writer.writeheader()
            writer.writerow(flat)
        count += 1
    if as_json:
        file.write("]\n" if count else "[]\n")
    return count


def write_file(records: Iterable[Record], path: Path, *, as_json: bool) -> int:
    """The same into a file, which is whole or not there."""
    require_place(path)
    with writing(path) as file:
        return write_records(records, file, as_json=as_json)


def require_place(path: Path) -> None:
    """Refuse a path that no file can be written to."""
    if not path.parent.is_dir():
        raise FewsureError(f"expected --out to be a file in a folder that is there, but {path.parent} is not; make it")
    if path.is_dir():
        raise FewsureError(f"expected --out to be a file such as predicted.csv, but {path} is a folder")


def _flat(record: Record) -> Record:
    flat = {name: value for name, value in record.items() if name not in ("probabilities", "set")}
    flat |= {f"p({label})": value for label, value in record.get("probabilities", {}).items()}
    return flat | ({"set": "|".join(map(str, record["set"]))} if "set" in record else {})
