"""Many groups at a time: each adapts to its known rows, and its other rows are predicted, in vectorised batches.

A batch holds groups with one number of known rows (and of classes). Their new rows are filled up to a common number
with copies, whose predictions are dropped. All random numbers are those of `adapt`, the same for every group. So what
is predicted for a group is what `adapt(known).predict(new)` gives, whatever groups are beside it, up to rounding.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fewsure.certification.predictor import with_coverage
from fewsure.core.progress import ProgressLine
from fewsure.data.encoding import read_columns
from fewsure.data.io.frames import Frame
from fewsure.data.io.table_files import Columns
from fewsure.errors import Diverged, FewsureError
from fewsure.evaluation.temperature import temperature_of
from fewsure.learner.adapted import certified_shot, fewer_examples, shot_of, warn_of_other_numbers
from fewsure.learner.inputs import read_inputs
from fewsure.learner.labels import Labels, read_labels
from fewsure.learner.prediction import ClassPrediction, Promise, ValuePrediction
from fewsure.learner.predictor import Predictor, State
from fewsure.types import Batch, Mixture, Model

Array = NDArray[Any]
Numbers = NDArray[np.int64]
BATCH_ROWS = 2048
"""Known rows, or new ones with their copies, of a batch; a group with more is a batch of its own."""


class Rows(NamedTuple):
    """Rows of many groups."""

    group: Array
    """The name of each row's group (N,)."""
    x: Tensor
    """Inputs as networks see them (N, *D)."""
    y: Array
    """The numbers of known rows in the user's unit, or their labels (N,)."""


@dataclass(frozen=True)
class Reader:
    """Reads rows of many groups from tables."""

    predictor: Predictor
    group: str
    """The column with the group of each row."""
    target: str
    """The column with what is known."""

    def known(self, table: Columns, labels: Sequence[Any] | None = None) -> Rows:
        """Rows with numbers, or with labels as a DataFrame has them; as text where none are given."""
        if self.target not in table.names:
            raise FewsureError(
                f"{table.where}: expected a column `{self.target}` with what is known, but it has "
                f"{', '.join(table.names)}; name it as `target`"
            )
        if self.predictor.experiment.model.kind == "regression":
            return self.new(table)._replace(y=table.numbers(self.target, "target"))
        y: Array = np.empty(len(table), dtype=object)
        y[:] = table.strings(self.target, "target") if labels is None else labels
        return self.new(table)._replace(y=y)

    def new(self, table: Columns) -> Rows:
        """Rows to predict."""
        scale, group = self.predictor.scale, table.strings(self.group, "group")
        names = scale.columns or [name for name in table.names if name not in (self.group, self.target)]
        return Rows(group, read_inputs(read_columns(table, names, scale.encoding), scale, "x"), np.empty(0))


class Members(NamedTuple):
    """The rows of each of G groups."""

    rows: Numbers
    """Numbers of rows, group after group."""
    starts: Numbers
    """Where each group starts among them (G,)."""
    counts: Numbers
    """How many rows each group has (G,)."""

    @classmethod
    def of_owners(cls, rows: Numbers, owners: Numbers, groups: int) -> "Members":
        """The members of groups 0, 1, …, from the owner of each row."""
        counts = np.bincount(owners, minlength=groups)
        return cls(rows[np.argsort(owners, kind="stable")], np.cumsum(counts) - counts, counts)

    def of(self, groups: Numbers, width: int) -> Numbers:
        """The rows (T, width) of groups, the last one again and again where a group has fewer."""
        offsets = np.minimum(np.arange(width), self.counts[groups, None] - 1)
        found: Numbers = self.rows[self.starts[groups, None] + offsets]
        return found

    def are_there(self, groups: Numbers, width: int) -> NDArray[np.bool_]:
        """Which of these (T, width) are no copies."""
        found: NDArray[np.bool_] = np.arange(width) < self.counts[groups, None]
        return found


class Classes(NamedTuple):
    """The classes of each of G groups, in sorted order."""

    labels: Array
    """The labels of the groups' classes, group after group."""
    starts: Numbers
    """Where each group starts among them (G,)."""
    counts: Numbers
    """How many classes each group has (G,)."""
    least: Numbers
    """Rows of the class with the fewest (G,)."""

    @classmethod
    def of_rows(
        cls, labels: Labels, numbers: Numbers, owners: Numbers, groups: int, *, fixed: bool
    ) -> tuple["Classes", Numbers]:
        """The classes, and the number of each row's class in its group; `fixed` ones are those of every group."""
        way, names = len(labels.classes), _objects(labels.classes)
        if fixed:
            each, rows = np.full(groups, way), np.bincount(owners, minlength=groups)
            return cls(np.tile(names, groups), np.arange(groups) * way, each, rows), numbers
        both, member, sizes = np.unique(owners * way + numbers, return_inverse=True, return_counts=True)
        owner, number = np.divmod(both, way)
        counts = np.bincount(owner, minlength=groups)
        starts, least = np.cumsum(counts) - counts, np.full(groups, len(numbers))
        np.minimum.at(least, owner, sizes)
        return cls(names[number], starts, counts, least), member - starts[owners]


class Shape(NamedTuple):
    """The sizes that the groups of a batch have in common."""

    known: int
    """Known rows."""
    classes: int
    """Classes; 0 of numbers."""
    least: int
    """Known rows, or those of the class with the fewest."""
    new: int
    """New rows, with copies."""


@dataclass(frozen=True, eq=False)
class Groups:
    """Groups with known and new rows."""

    predictor: Predictor
    names: tuple[str, ...]
    known: Batch
    new: Tensor
    known_of: Members
    new_of: Members
    classes: Classes | None
    """None where numbers are predicted."""

    @classmethod
    def of_rows(cls, predictor: Predictor, known: Rows, new: Rows) -> "Groups":
        """The groups that have new rows."""
        names: dict[str, int] = {}
        owners = np.array([names.setdefault(name, len(names)) for name in new.group.tolist()])
        of_known = np.array([names.get(name, -1) for name in known.group.tolist()], dtype=np.int64)
        rows = np.flatnonzero(of_known >= 0)
        x, y, of_known, groups, classes = known.x[rows], known.y[rows], of_known[rows], len(names), None
        if predictor.experiment.model.kind == "regression":
            targets = predictor.scale.targets(torch.from_numpy(y)).unsqueeze(-1)
        else:
            fixed = predictor.experiment.data.known_classes
            labels, numbers = read_labels(y.tolist(), fixed)
            classes, member = Classes.of_rows(labels, numbers.numpy(), of_known, groups, fixed=bool(fixed))
            targets = torch.from_numpy(member)
        known_of = Members.of_owners(np.arange(len(rows)), of_known, groups)
        new_of = Members.of_owners(np.arange(len(owners)), owners, groups)
        found = cls(predictor, tuple(names), Batch(x, targets), new.x, known_of, new_of, classes)
        found._require_enough()
        return found

    @property
    def least(self) -> Numbers:
        """Known rows of each group, or those of its class with the fewest (G,)."""
        return self.known_of.counts if self.classes is None else self.classes.least

    def _require_enough(self) -> None:
        algorithm, has = self.predictor.experiment.algorithm, self.known_of.counts
        fewest = algorithm.min_support if self.classes is None else 1
        for group in np.flatnonzero(has < fewest)[:1]:
            raise FewsureError(
                f"expected {fewest} known rows or more of each group for {self.predictor.experiment.algorithm_name}, "
                f"but group {self.names[group]!r} has {has[group]}; give some, or leave out its new rows"
            )
        for group in [] if self.classes is None else np.flatnonzero(self.classes.counts < 2)[:1]:
            raise FewsureError(
                f"expected known rows of 2 classes or more of each group, but all of group {self.names[group]!r} have "
                "one label; give others, or leave out its new rows"
            )
        numbers = [int(self.least.min()), int(self.least.max())]
        warn_of_other_numbers(self.predictor, numbers, of_classes=self.classes is not None)

    def batches(self) -> Iterator[tuple[Shape, Numbers]]:
        """Every group once, in batches of one shape."""
        together, counts = self.predictor.experiment.transductive, self.new_of.counts
        width = counts if together else 2 ** np.ceil(np.log2(counts)).astype(np.int64)
        classes = np.zeros_like(counts) if self.classes is None else self.classes.counts
        shapes = np.stack([self.known_of.counts, classes, self.least, width])
        order = np.lexsort(shapes[::-1])
        changes = np.flatnonzero((np.diff(shapes[:, order]) != 0).any(0)) + 1
        for same in np.split(order, changes):
            shape = Shape(*shapes[:, same[0]].tolist())
            most = 1 if together else max(1, BATCH_ROWS // max(shape.known, shape.new))
            for start in range(0, len(same), most):
                yield shape, same[start : start + most]

    def predict(self, shape: Shape, groups: Numbers, coverage: float | None) -> tuple[Numbers, dict[str, Array]]:
        """The new rows of a batch, and what is predicted for them by column."""
        predictor, model = self.predictor, self.predictor.model(shape.classes or 1)
        chosen, there = self.known_of.of(groups, shape.known), self.new_of.are_there(groups, shape.new)
        rows = self.new_of.of(groups, shape.new)
        tasks = _Tasks(predictor, model, Batch(*(part[chosen] for part in self.known)), self.new[rows])
        state = predictor.state(shot_of([shape.least]))
        promise = None if coverage is None else self._promise(tasks, shape, coverage)
        outputs, density = tasks.predict(state)
        finite = (outputs if density is None else density.means + density.stds).isfinite()
        if not bool(finite.all()):
            raise Diverged(
                "adaptation diverged: predictions are no finite numbers; are the examples like those of training? "
                "If so, train anew with a lower lr or inner_lr"
            )
        start = None if self.classes is None else np.repeat(self.classes.starts[groups], shape.new)
        columns = (
            self._numbers(state, outputs, density, promise)
            if start is None
            else self._labels(state, outputs, start, promise)
        )
        return rows[there], {name: column[there.flatten()] for name, column in columns.items()}

    def _numbers(
        self, state: State, outputs: Tensor, density: Mixture | None, promise: Promise | None
    ) -> dict[str, Array]:
        noise_std = state.experiment.data.noise_std or 0.0
        in_users_unit = self.predictor.in_users_unit(outputs.squeeze(-1), density, noise_std)
        return ValuePrediction(*in_users_unit, promise=promise, form="array").columns()

    def _labels(self, state: State, outputs: Tensor, start: Numbers, promise: Promise | None) -> dict[str, Array]:
        """`start` (N,) is the place of each row's first class among the labels of all groups."""
        assert self.classes is not None
        names, places = self.classes.labels, Labels(tuple(range(outputs.shape[-1])), "list")
        temperature = temperature_of(state.experiment)
        found = ClassPrediction(outputs.double(), temperature, places, promise=promise, form="array")
        columns = {"label": names[start + np.array(found.label)], **found.columns()}
        for number, name in enumerate(self.predictor.experiment.data.known_classes):
            columns[f"p({name})"] = found.probabilities[:, number]
        if promise is not None:
            own = zip(start.tolist(), found.sets, strict=True)
            columns["set"] = _objects(
                ["|".join(str(names[first + place]) for place in chosen) for first, chosen in own]
            )
        return columns

    def _promise(self, tasks: "_Tasks", shape: Shape, coverage: float) -> Promise:
        """Sets or intervals of groups, adapted to the nearest certified number of their examples."""
        predictor, scale, known = self.predictor, self.predictor.scale, tasks.known
        by_class = self.classes is not None and not predictor.experiment.data.fixed_classes
        counts = [torch.bincount(y).tolist() if by_class else [shape.known] for y in known.y]
        way = shape.classes or None
        shot, state, calibration = certified_shot(predictor, [shape.least] * len(counts[0]), way)
        if any(set(one) != {shot} for one in counts):
            kept = [fewer_examples(one, y, shot) for one, y in zip(counts, known.y, strict=True)]
            tasks = tasks.with_known(torch.stack(kept))
        outputs, density = tasks.predict(state)
        outputs = temperature_of(state.experiment).divide(outputs)
        region: Any = with_coverage(calibration, state.experiment, outputs, density, shot=shot, coverage=coverage)
        region = region if self.classes else tuple(scale.values(end) for end in region)
        return Promise(coverage, calibration.environment, region, shot)


@dataclass(frozen=True, eq=False)
class _Tasks:
    """The groups of a batch as tasks."""

    predictor: Predictor
    model: Model
    known: Batch
    """(T, m, …)."""
    x: Tensor
    """(T, n, …)."""

    def with_known(self, rows: Tensor) -> "_Tasks":
        """The tasks with some of their known rows (T, k)."""
        each = torch.arange(len(rows)).unsqueeze(1)
        return replace(self, known=Batch(*(part[each, rows] for part in self.known)))

    def predict(self, state: State) -> tuple[Tensor, Mixture | None]:
        """Outputs (S, T · n, C) at temperature 1; none, S = 0, of a method with a density (T · n, K) of its own."""
        predictor, device = self.predictor, self.predictor.device
        tasks = Batch(*(part.to(device) for part in self.known)), self.x.to(device)
        outputs, density = predictor.of_many(self.model, state, predictor.noise(self.model, state), tasks)
        if density is not None:
            flat: Any = (part if part is None else part.flatten(0, 1).cpu() for part in density)
            return self.x.new_empty(0, self.x.shape[0] * self.x.shape[1], 1), Mixture(*flat)
        assert outputs is not None
        return outputs.transpose(0, 1).flatten(1, 2).cpu(), None


def predict_rows(
    predictor: Predictor,
    known: Rows,
    new: Rows,
    coverage: float | None,
    show: Callable[[int, int], None] = lambda done, total: None,
) -> dict[str, Array]:
    """The predictions for each new row, by column; `show` is told how many groups are done."""
    groups = Groups.of_rows(predictor, known, new)
    columns: dict[str, Array] = {}
    done = 0
    for shape, members in groups.batches():
        rows, found = groups.predict(shape, members, coverage)
        for name, values in found.items():
            columns.setdefault(name, np.empty(len(new.group), dtype=values.dtype))[rows] = values
        done += len(members)
        show(done, len(groups.names))
    return columns


def predict_frames(reader: Reader, known: Any, new: Any, coverage: float | None) -> Any:
    """A DataFrame of the library of `new`, with its index: the group, and what is predicted for each row."""
    of_new, of_known, predictor = Frame(new), Frame(known), reader.predictor
    if not len(of_new):
        return of_new.like({reader.group: [], **nothing(predictor, coverage)})
    rows = reader.new(of_new.columns)
    support = Rows(rows.group[:0], rows.x[:0], np.empty(0))
    if len(of_known):
        is_class = predictor.experiment.model.kind == "classification"
        labels = of_known.values(reader.target) if is_class and reader.target in of_known.names else None
        support = reader.known(of_known.columns, labels)
    with ProgressLine("predicting groups") as line:
        found = predict_rows(predictor, support, rows, coverage, line.show)
    return of_new.like({reader.group: of_new.values(reader.group), **found})


def nothing(predictor: Predictor, coverage: float | None) -> dict[str, Array]:
    """The columns that are predicted, without rows."""
    numbers, text = ["confidence", "entropy", "expected_entropy", "mutual_information"], ["label"]
    numbers += [f"p({name})" for name in predictor.experiment.data.known_classes]
    text += [] if coverage is None else ["set"]
    if predictor.experiment.model.kind == "regression":
        ends = ["quantile_05", "quantile_95"] if coverage is None else ["lower", "upper"]
        numbers, text = ["mean", "std", "function_std", *ends], []
    return {name: np.empty(0, dtype=object if name in text else float) for name in text[:1] + numbers + text[1:]}


def _objects(values: Sequence[Any]) -> Array:
    found: Array = np.empty(len(values), dtype=object)
    found[:] = list(values)
    return found
