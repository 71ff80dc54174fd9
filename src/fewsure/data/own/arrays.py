"""Tasks that a user has in Python: arrays with labels, a list of tasks, or a generator of them."""

import reprlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fewsure.core.config import UNRECORDED, Range, checked, ends, field_types, read_range
from fewsure.data.io.frames import Frame, is_frame
from fewsure.data.own.data import OwnClassification, OwnRegression, OwnRows
from fewsure.data.own.rows import SHARES, Rows, Shares, row_parts
from fewsure.data.scaling import require_pixels
from fewsure.errors import FewsureError, require_known

LIMIT = 1000
"""Tasks that are taken from a generator, which may have no end."""
Array = NDArray[Any]


@dataclass(frozen=True)
class Given(OwnRows):
    """Tasks that were given in Python."""

    source: Rows | None = field(default=None, metadata=UNRECORDED, repr=False)

    given = True

    def rows(self) -> Rows:
        if self.source is None:
            raise FewsureError(
                "these tasks were given in Python, and a run does not hold them: in Python, use "
                "fewsure.Learner(…, data=tasks) or fewsure.load(folder, data=tasks); on the command line, name a file "
                "with --data table, table-classes or images"
            )
        return self.source


@dataclass(frozen=True)
class GivenRegression(Given, OwnRegression):
    """Regression tasks that were given in Python."""


@dataclass(frozen=True)
class GivenClasses(Given, OwnClassification):
    """Classification tasks on vectors that were given in Python."""

    name = "given-classes"

    @property
    def grouped_by(self) -> str:
        return "classes" if self.rows().task is None else "tasks"


@dataclass(frozen=True)
class GivenImages(GivenClasses):
    """Classification tasks on arrays of pixels that were given in Python."""

    name = "given-images"
    pictures = True


def regression_tasks(tasks: Iterable[tuple[Any, Any]], *, limit: int = LIMIT, **options: Any) -> GivenRegression:
    """Regression data from an iterable of tasks, each a pair of x (n, D) or (n,) and y (n,), n differing at will.

    A generator may go on for ever: the first `limit` tasks are kept. Where `shot` and `query` are not among the
    options, they are as large as most tasks allow, up to 1-10 and 10.

    >>> regression_tasks([(np.arange(20.0), a * np.arange(20.0)) for a in range(9)]).shot
    (1, 10)
    """
    options = _checked(GivenRegression, options)
    gathered, columns = _gather(tasks, limit)
    rows = _rows(gathered, [_targets(y, number) for number, (_, y) in enumerate(gathered)], columns)
    if rows.x.ndim != 2:
        raise FewsureError(f"expected regression inputs of shape (N, D), but got {rows.x.shape}")
    return data_of_rows(rows, options)  # type: ignore[return-value]


def classification_tasks(tasks: Iterable[tuple[Any, Any]], *, limit: int = LIMIT, **options: Any) -> GivenClasses:
    """Classification data from an iterable of tasks, each a pair of examples x (n, D) or (n, C, H, W) and labels (n,).

    Labels mean something within their task alone, unless there is `fixed_classes=True`. Where they are not among the
    options, every task has enough classes for `way`. Every class has enough examples for `shot` and `query`, up to 1-10
    and 15; most tasks have, where classes are fixed.
    """
    options = _checked(GivenClasses, options)
    gathered, columns = _gather(tasks, limit)
    labels = [_names(y, f"labels of task {number}") for number, (_, y) in enumerate(gathered)]
    return data_of_rows(_rows(gathered, labels, columns), options)  # type: ignore[return-value]


def labelled_examples(x: Any, labels: Any, **options: Any) -> GivenClasses:
    """Classification data from examples x (N, D) or (N, C, H, W) and their labels (N,): any classes may meet in a task.

    Where they are not among the options, each split has enough classes for `way`, up to 5. Every class has enough
    examples for `shot` and `query`, up to 1-10 and 15.
    """
    options = _checked(GivenClasses, options)
    examples, names = _examples(x, "x"), _names(labels, "labels")
    _require_same(len(examples), len(names), "x and its labels")
    return data_of_rows(Rows(examples, names, None, None, (), "the examples given"), options)  # type: ignore[return-value]


def own_tasks(data: Any, **options: Any) -> GivenRegression | GivenClasses:
    """The data that a user has in Python; `options` are those of the data.

    By its form it is {class: examples}, (x, labels), a list or generator of tasks (x, y), or a function that makes one.
    Tasks whose y are numbers are regression; those of text or of true and false are classification.
    """
    if callable(data):
        data = data()
    if isinstance(data, Mapping):
        if not data:
            raise FewsureError("expected examples of classes, {class: examples}, but the data given has none")
        x = [_examples(examples, f"class {label!r}") for label, examples in data.items()]
        labels = [label for label, examples in zip(data, x, strict=True) for _ in examples]
        return labelled_examples(_concatenate(x), labels, **options)
    if isinstance(data, tuple) and len(data) == 2:
        return labelled_examples(*data, **options)
    if not isinstance(data, Iterable) or isinstance(data, (str, bytes)):
        raise FewsureError(
            "expected `data` to be the name of a data set, fewsure.Table(…), fewsure.Images(…), a list or generator of "
            f"tasks (x, y), or {{class: examples}}, but got {type(data).__name__}"
        )
    tasks = list(islice(data, LIMIT))
    if tasks and _is_pair(tasks[0]) and _array(tasks[0][1], "y of task 0").dtype.kind in "fiu":
        return regression_tasks(tasks, **options)  # whole numbers are numbers, too
    return classification_tasks(tasks, **options)


def data_of_rows(rows: Rows, options: Mapping[str, Any]) -> GivenRegression | GivenClasses:
    """The data of rows, whose `shot`, `query` and `way` are those of the options, or else as large as rows allow."""
    fixed = bool(options.get("fixed_classes", False))
    counts = np.unique(rows.held_out if fixed else rows.unit, return_counts=True)[1]
    if rows.y.dtype.kind == "f":
        typical = int(np.quantile(counts, 0.25))
        shot = options.get("shot", _shots_of(typical))
        return GivenRegression(
            **({"shot": shot, "query": min(10, max(1, typical - ends(shot)[1]))} | dict(options)), source=rows
        )
    if rows.x.ndim not in (2, 4):
        raise FewsureError(f"expected examples of shape (N, D) or (N, C, H, W), but got {rows.x.shape}")
    enough = int(np.quantile(counts, 0.25)) if fixed else int(counts.min())
    shot = options.get("shot", _shots_of(enough))
    sizes: dict[str, Any] = {"shot": shot, "query": min(15, max(1, enough - ends(shot)[1]))}
    sizes |= {} if fixed else {"way": _way(rows, options.get("shares", SHARES))}
    kind = GivenImages if rows.x.ndim == 4 else GivenClasses
    return kind(**(sizes | dict(options)), source=rows)


def _way(rows: Rows, shares: Shares) -> int:
    """Classes that every task can have; up to 5 where any classes may meet."""
    if rows.task is not None:
        return min(len(np.unique(rows.y[rows.task == task])) for task in np.unique(rows.task))
    parts = row_parts(rows, shares, rows.held_out_name)
    return max(2, min(5, *(len(np.unique(rows.y[part])) for part in parts.values())))


def _shots_of(size: int) -> Range:
    """The range of shots for groups or classes with so many examples, half of which at most are known."""
    return read_range((1, min(10, max(1, size // 2))))


def _checked(kind: type, options: Mapping[str, Any]) -> dict[str, Any]:
    """The options of data, by its kind."""
    known = field_types(kind)
    for name in options:
        require_known("option", name, list(known))
    return {name: checked(known[name], value, name) for name, value in options.items()}


def _gather(tasks: Iterable[tuple[Any, Any]], limit: int) -> tuple[list[tuple[Array, Array]], tuple[str, ...]]:
    """Arrays x and y of each task, and the names of the columns of x where tasks are data frames."""
    gathered: list[tuple[Array, Array]] = []
    columns: tuple[str, ...] = ()
    for number, task in enumerate(islice(tasks, limit)):
        if not _is_pair(task):
            raise FewsureError(f"expected task {number} to be a pair (x, y) of arrays, but got {type(task).__name__}")
        if is_frame(task[0]):
            columns = columns or tuple(Frame(task[0]).columns.names)
        x, y = _examples(task[0], f"x of task {number}", columns), _array(task[1], f"y of task {number}")
        y = y[:, 0] if y.ndim == 2 and y.shape[1] == 1 else y
        _require_same(len(x), len(y) if y.ndim else 0, f"x and y of task {number}")
        gathered.append((x, y))
    if not gathered:
        raise FewsureError("expected tasks (x, y), but the data given has none")
    return gathered, columns


def _rows(gathered: list[tuple[Array, Array]], y: list[Array], columns: tuple[str, ...]) -> Rows:
    task = np.repeat([f"task {number}" for number in range(len(gathered))], list(map(len, y)))
    return Rows(_concatenate([x for x, _ in gathered]), np.concatenate(y), task, None, columns, "the tasks given")


def _is_pair(task: Any) -> bool:
    return isinstance(task, (tuple, list)) and len(task) == 2


def _array(values: Any, what: str) -> Array:
    if isinstance(values, torch.Tensor):
        values = values.detach().cpu().numpy()
    try:
        return np.asarray(values)
    except ValueError as error:
        raise FewsureError(f"expected {what} to be an array, but its rows differ in length") from error


def _examples(values: Any, what: str, columns: Sequence[str] = ()) -> Array:
    """Inputs (N, *D): bytes as they are, other numbers in double precision; `columns` of a data frame, by name."""
    if is_frame(values):
        frame = Frame(values).columns
        missing = [name for name in columns if name not in frame.names]
        if missing:
            raise FewsureError(f"expected {what} to have the columns of the first task, but `{missing[0]}` is missing")
        values = frame.matrix(columns or frame.names)
    x = _array(values, what)
    x = x[:, None] if x.ndim == 1 else x
    if x.dtype.kind not in "fiub" or x.ndim < 2 or 0 in x.shape:
        raise FewsureError(f"expected {what} to be numbers of shape (N, D), but got {x.dtype} of shape {x.shape}")
    _require_finite(x, what)
    if x.ndim == 4:
        require_pixels(x, what)
    return x if x.ndim > 2 and x.dtype == np.uint8 else x.astype(np.float64)


def _targets(values: Array, number: int) -> NDArray[np.float64]:
    what = f"y of task {number}"
    if values.dtype.kind not in "fiub" or values.ndim != 1:
        raise FewsureError(
            f"expected {what} to be numbers of shape (n,), but got {values.dtype} of shape {values.shape}; for "
            "classes, use fewsure.classification_tasks"
        )
    _require_finite(values, what)
    return values.astype(np.float64)


def _names(values: Any, what: str) -> NDArray[np.str_]:
    """Labels as names, one for one."""
    given = values.tolist() if hasattr(values, "tolist") else values
    try:
        labels, different = list(given), set(given)
    except TypeError:  # it is no list, or one of lists
        raise FewsureError(
            f"expected {what} of shape (N,), one for each example, but got {reprlib.repr(given)}"
        ) from None
    names = [str(label) for label in labels]
    if any(label is None or label != label for label in labels):
        raise FewsureError(f"expected {what} for all examples, but some are None or NaN; leave those examples out")
    if len(set(names)) != len(different):
        raise FewsureError(f"expected {what} that read differently, but two different ones read the same")
    return np.array(names)


def _concatenate(arrays: list[Array]) -> Array:
    shapes = sorted({array.shape[1:] for array in arrays})
    if len(shapes) > 1:
        raise FewsureError(f"expected examples of one shape, but got {shapes[0]} and {shapes[1]}")
    return np.concatenate(arrays)


def _require_same(examples: int, labels: int, what: str) -> None:
    if examples != labels:
        raise FewsureError(f"expected {what} to have the same length, but got {examples} and {labels}")


def _require_finite(values: Array, what: str) -> None:
    wrong = np.argwhere(~np.isfinite(values))
    if len(wrong):
        raise FewsureError(f"expected finite numbers in {what}, but row {wrong[0][0]} has NaN or infinity")
