"""The Learner: the first thing a user meets."""

import dataclasses
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, Unpack, get_args

from fewsure.algorithms import ALGORITHMS
from fewsure.certification.certify import Request, certify_run
from fewsure.certification.environment import Unit
from fewsure.core.config import checked, field_types
from fewsure.core.devices import find_device
from fewsure.core.files import copy_folder
from fewsure.core.progress import silenced
from fewsure.core.signals import Stopped
from fewsure.data import DATA
from fewsure.data.io.frames import is_frame
from fewsure.data.own.arrays import GivenClasses, GivenRegression, own_tasks
from fewsure.data.own.tables import Table, TableClasses
from fewsure.errors import FewsureError, require, require_known
from fewsure.learner.adapted import Adapted, adapt, load_adapted, require_coverage
from fewsure.learner.group_files import GroupFiles, predict_files
from fewsure.learner.group_ray import predict_on_ray
from fewsure.learner.groups import Reader, predict_frames
from fewsure.learner.inputs import USUAL_TARGETS
from fewsure.learner.options import Method, Options
from fewsure.learner.packing import pack, temporary_folder, unpack
from fewsure.learner.predictor import Predictor
from fewsure.pipeline import evaluate_run, start_run, train_run
from fewsure.selection import auto
from fewsure.selection.baselines import with_baselines
from fewsure.selection.crossval import FOLDS, TASKS, Plan, cross_validate
from fewsure.training.experiment import DEFAULT_PRESET, GROUPS, Experiment, default_data, load_preset
from fewsure.training.runs import Run
from fewsure.types import Algorithm

Engine = Literal["local", "ray"]
"""Where many groups are predicted."""
INDUCTIVE_DEFAULTS = {"norm": "instance", "centred": False, "temperature_exponent": 0.0}
"""These replace values of a preset: a prediction never depends on the other queries, unless asked for."""


class Learner:
    """Learns from many tasks how to learn a new one from a few examples.

        learner = fewsure.Learner(data=my_tasks)
        learner.train()
        adapted = learner.adapt(x_support, y_support)
        p = adapted.predict(x)

    `data` is the name of a data set ("sine-line", "omniglot"), `fewsure.Table(…)`, or `fewsure.Images(…)`. It may also
    be a list or a generator of tasks (x, y), examples by class ({class: examples}), or a pair of examples and labels.
    Any option of the method, the data, the network or the training may be named, as `fewsure train METHOD --help` lists
    them. With `out`, the run lives in that folder from the start, and goes on there after an interruption, in another
    process too.

    By default `auto` fits and trains the methods that suit the data, and validation groups select one of them. Its
    options are `budget` (`"5m"`), `methods`, `seed` and those of the data.

    A method may also be an object of `fewsure.algorithms`. It has the values that it was made with, where a name has
    those of the preset.

        learner = fewsure.Learner(Simpa(inner_steps=10), data=my_tasks)
    """

    def __init__(
        self,
        algorithm: Method | str | Algorithm = "auto",
        data: Any = "sine-line",
        *,
        preset: str = DEFAULT_PRESET,
        out: str | Path | None = None,
        device: str = "auto",
        **options: Unpack[Options],
    ) -> None:
        self._device = find_device(str(device))
        self._experiment: Experiment | None = None
        self._auto: _Auto | None = None
        if algorithm == auto.NAME:
            self._auto = _auto(data, preset, options)
        else:
            self._experiment = _experiment(algorithm, data, preset, options)
        self._folder = Path(out) if out is not None else temporary_folder(self)
        self._predictor: Predictor | None = None

    @property
    def folder(self) -> Path:
        """Where the run lives; a temporary folder until it is saved."""
        return self._folder

    @property
    def experiment(self) -> Experiment:
        """All options; with `auto`, those of the method that training has selected."""
        if self._experiment is None:
            raise FewsureError("auto has selected no method yet: call train() first")
        return self._experiment

    def train(self, updates: int | None = None, *, quiet: bool = False, checkpoint_every: int = 500) -> "Learner":
        """Train to the end, with progress on standard error; go on from the last checkpoint, if there is one.

        An interruption (Ctrl-C) finishes the update in hand and leaves a checkpoint; the same call goes on from there,
        and ends in the same numbers. `auto` has a budget in place of `updates`.
        """
        if self._auto is not None:
            return self._select(self._auto, updates, quiet)
        checkpoint_every = checked(int, checkpoint_every, "checkpoint_every")
        require(checkpoint_every >= 1, "checkpoint_every", "at least 1", checkpoint_every)
        training = self.experiment.training
        if updates is not None:
            training = dataclasses.replace(training, updates=checked(int, updates, "updates"))
        if self._predictor is not None and training.updates != self.experiment.training.updates:
            raise FewsureError(
                f"this learner was trained with {self.experiment.training.updates:,} updates, over which its learning "
                f"rate has run down, but got {training.updates:,}; train a new Learner"
            )
        experiment = dataclasses.replace(self.experiment, training=training)
        with silenced(quiet):
            run = start_run(self._folder, experiment, resume=True)
            try:
                train_run(run, self._device, checkpoint_every=checkpoint_every)
            except Stopped as stopped:
                raise KeyboardInterrupt(f"stopped; {self._folder} holds a checkpoint, and train() goes on") from stopped
        self._open(run)
        return self

    def _select(self, plan: "_Auto", updates: int | None, quiet: bool) -> "Learner":
        if updates is not None:
            raise FewsureError(
                f"auto trains by `budget`, an option of Learner(…), but got {updates} updates; leave them out"
            )
        with silenced(quiet):
            try:
                run, _ = auto.select(self._folder, plan.experiments, self._device, budget=plan.budget, resume=True)
            except Stopped as stopped:
                raise KeyboardInterrupt(f"stopped; {self._folder} holds what is done, and train() goes on") from stopped
        self._open(run)
        return self

    @property
    def selection(self) -> dict[str, Any] | None:
        """The table of `auto`: every method with its scores on validation tasks, and the one that is selected."""
        return auto.kept(self._folder)

    def adapt(self, x: Any, y: Any = None) -> Adapted:
        """Adapt to a task's few examples: x (N, …) as numpy, list or tensor, and y (N,), numbers or labels of any kind.

        For a run on a table, x may be a DataFrame with the columns of training, and with the target's in place of y.

        The learner does not change. The same examples in any order give the same task, up to rounding.
        """
        return adapt(self._trained(), x, y)

    def predict_groups(
        self,
        known: Any,
        new: Any,
        *,
        group: str | None = None,
        target: str | None = None,
        coverage: float | None = None,
        out: str | Path | None = None,
        engine: Engine = "local",
        quiet: bool = False,
    ) -> Any:
        """Adapt to the known rows of many groups and predict their new rows, in vectorised batches.

        `known` and `new` are DataFrames with the columns of training, and a column `group`, by default the task column.
        `known` also has the `target`. Groups may be of any sizes. The numbers are those of `adapt` and `predict`, group
        by group: mean and spreads with an interval, or labels. They come back as a DataFrame of the same library, with
        the group and the index of `new`. `coverage` is that of `adapted.predict`.

        Or both are CSV or Parquet files. Then predictions go to the file `out`, memory does not grow with the files,
        and the same call goes on after an interruption. The engine `ray` runs on a cluster of Ray, from Parquet files
        to a folder of Parquet files. The call gives back how many rows were predicted.
        """
        require_coverage(coverage)
        require_known("engine", engine, [*get_args(Engine)])
        predictor = self._trained()
        data = predictor.experiment.data
        group = checked(str | None, group, "group") or getattr(data, "task_column", None)
        if not group:
            raise FewsureError("expected `group`, the column with the group of each row, since the run names none")
        target = checked(str | None, target, "target") or data.target_column or USUAL_TARGETS[data.kind]
        reader = Reader(predictor, group, target)
        with silenced(quiet):
            if out is None and engine == "local" and is_frame(known) and is_frame(new):
                return predict_frames(reader, known, new, coverage)
            if out is None or not all(isinstance(one, (str, Path)) for one in (known, new)):
                raise FewsureError("expected `known` and `new` to be two DataFrames, or two files and `out` a third")
            files, where = GroupFiles(reader, Path(known), Path(new), coverage), Path(out)
            return predict_files(files, where) if engine == "local" else predict_on_ray(files, where)

    def evaluate(
        self,
        *,
        tasks: int = 1000,
        seed: int = 0,
        shot: int | None = None,
        baselines: bool = True,
        quiet: bool = False,
    ) -> dict[str, Any]:
        """Scores on unseen tasks, as `fewsure evaluate --json` prints them; `shot` support examples in each.

        On data of one's own with the `baselines` that need no meta-training.
        """
        tasks, seed = checked(int, tasks, "tasks"), checked(int, seed, "seed")
        shot = checked(int | None, shot, "shot")
        require(tasks >= 2, "tasks", "at least 2", tasks)
        with silenced(quiet):
            run = self._trained().run
            summary = evaluate_run(run, self._device, tasks=tasks, seed=seed, shot=shot)
            return with_baselines(run, summary, self._device) if baselines else summary

    def crossval(
        self,
        *,
        folds: int | None = FOLDS,
        tasks: int = TASKS,
        seed: int = 0,
        shot: int | None = None,
        baselines: bool = True,
        out: str | Path | None = None,
        quiet: bool = False,
    ) -> dict[str, Any]:
        """Scores over all groups, each predicted by a learner that has not seen it: those of `fewsure crossval --json`.

        This learner need not be trained, and does not change. `folds=None` has one fold for each group. With `out`, the
        runs of the folds stay in that folder, and the same call goes on there.
        """
        experiments, budget = {self._experiment.algorithm_name: self._experiment} if self._experiment else {}, None
        if self._auto is not None:
            experiments, budget = dict(self._auto.experiments), self._auto.budget
        plan = Plan(
            experiments,
            budget=budget,
            folds=checked(int | None, folds, "folds"),
            tasks=checked(int, tasks, "tasks"),
            seed=checked(int, seed, "seed"),
            shot=checked(int | None, shot, "shot"),
            baselines=baselines,
        )
        with tempfile.TemporaryDirectory(prefix="fewsure-") as folder, silenced(quiet):
            try:
                return cross_validate(Path(folder if out is None else out), plan, self._device, resume=True)
            except Stopped as stopped:
                raise KeyboardInterrupt("stopped; with `out`, the same call goes on there") from stopped

    def certify(
        self,
        *,
        tasks: int | None = None,
        delta: float = 0.05,
        alpha: float = 0.1,
        unit: Unit | None = None,
        shot: int | Sequence[int] = (),
        seed: int = 0,
        quiet: bool = False,
    ) -> dict[str, Any]:
        """The guarantees on new tasks, as `fewsure certify --json` prints them; its `--help` explains the options.

        The calibration is kept with the run: from now on there is `adapted.predict(x, coverage=0.9)`, for tasks with
        each number of examples in `shot`, or with more.
        """
        shots = (shot,) if isinstance(shot, int) else tuple(shot)
        request = Request(tasks=tasks, delta=delta, alpha=alpha, unit=unit, shot=shots, seed=seed)
        with silenced(quiet):
            return certify_run(self._trained().run, self._device, request)

    def save(self, folder: str | Path) -> None:
        """Copy the run to a new folder, where it lives from now on. It is whole or not there."""
        target, run = Path(folder), self._trained().run
        if target.resolve() == run.folder.resolve():
            return
        if target.exists() and (not target.is_dir() or any(target.iterdir())):
            raise FewsureError(f"expected `folder` to be new or empty, but {target} is not; choose another")
        target.parent.mkdir(parents=True, exist_ok=True)
        copy_folder(run.folder, target)
        self._folder = target
        self._open(Run(target, run.experiment, run.version))

    def load_adapted(self, path: str | Path) -> Adapted:
        """A task that `adapted.save(path)` has written."""
        return load_adapted(self._trained(), path)

    def __repr__(self) -> str:
        if self._experiment is None:
            return "Learner(auto, not trained yet)"
        trained = "trained" if self._predictor is not None else "not trained yet"
        return f"Learner({self._experiment.algorithm_name} on {self._experiment.data_name}, {trained})"

    def __getstate__(self) -> dict[str, Any]:
        """All that it is, with the files of its run; a copy lives in a temporary folder until it is saved."""
        state = {name: value for name, value in vars(self).items() if name != "_folder"}
        return state | {"_files": pack(self._folder) if self._predictor is None else {}}

    def __setstate__(self, state: dict[str, Any]) -> None:
        files = state.pop("_files")
        vars(self).update(state)
        self._folder = unpack(files, self) if self._predictor is None else self._predictor.run.folder

    def _open(self, run: Run) -> None:
        self._experiment = run.experiment
        self._predictor = Predictor.of_run(run, self._device)

    def _trained(self) -> Predictor:
        if self._predictor is None:
            raise FewsureError("this learner is not trained yet: call train() first, or fewsure.load(folder)")
        return self._predictor


def load(folder: str | Path, *, data: Any = None, device: str = "auto") -> Learner:
    """The learner of a run folder, as `learner.save` or `fewsure train` has written it. Nothing in it is executed.

    The training data need not be there. Tasks that were given in Python can be given again, to evaluate or to train
    on.
    """
    run = Run.open(Path(folder))
    if data is not None:
        run = Run(run.folder, _with_source(run.experiment, data), run.version)
    learner = Learner.__new__(Learner)
    learner._device, learner._folder, learner._auto = find_device(device), run.folder, None
    learner._open(run)
    return learner


def _with_source(experiment: Experiment, data: Any) -> Experiment:
    """The experiment with the tasks that it was trained on, given again."""
    there: Any = experiment.data
    if is_frame(data):
        given: Any = type(there)(data=data) if isinstance(there, (Table, TableClasses)) else None
    else:
        given = data if _is_data(data) else own_tasks(data)
    if not hasattr(there, "source") or type(given) is not type(there):
        raise FewsureError(f"expected `data` as the run was trained on ({experiment.data_name}); leave it out")
    return dataclasses.replace(experiment, data=dataclasses.replace(there, source=given.source))


class _Auto(NamedTuple):
    """The experiments that `auto` tries, and for how long."""

    experiments: Mapping[str, Experiment]
    budget: float


def _auto(data: Any, preset: str, options: Mapping[str, Any]) -> _Auto:
    if preset != DEFAULT_PRESET:
        raise FewsureError(f"auto takes the preset {DEFAULT_PRESET} of each method, but got {preset!r}; leave it out")
    own = dict(options)
    budget, methods, seed = own.pop("budget", auto.BUDGET), own.pop("methods", ()), own.pop("seed", 0)
    name, given = _data(data, own)
    given = default_data(name) if given is None else given
    for option in own:
        require_known("option of auto", option, [*field_types(type(given)), "budget", "methods", "seed"])
    inductive = {option: value for option, value in INDUCTIVE_DEFAULTS.items() if option not in own}
    found = auto.candidates(
        name,
        _changed(given, own),
        methods=checked(tuple[str, ...], methods, "methods"),
        seed=checked(int, seed, "seed"),
    )
    return _Auto({method: _known_options(one, inductive) for method, one in found.items()}, auto.read_budget(budget))


def _experiment(method: str | Algorithm, data: Any, preset: str, options: Mapping[str, Any]) -> Experiment:
    algorithm, preset = _method_name(method), checked(str, preset, "preset")
    name, given = _data(data, options)
    base = _known_options(load_preset(preset, algorithm, name), INDUCTIVE_DEFAULTS)
    if given is not None:
        base = dataclasses.replace(base, data=given)
    if not isinstance(method, str):
        base = dataclasses.replace(base, algorithm=_changed(method, vars(method)))
    return _with_options(base, options)


def _data(data: Any, options: Mapping[str, Any]) -> tuple[str, Any]:
    """The name of a data set, and the data as they were given; None where they are the data set of that name."""
    if not isinstance(data, (str, Path)):
        own = data if _is_data(data) else _own_data(data, options)
        return next(name for name, kind in DATA.items() if type(own) is kind.data), own
    name = str(data)
    if name not in DATA and Path(name).exists():
        hint = "fewsure.Images(folder=…)" if Path(name).is_dir() else "fewsure.Table(file=…, task_column=…, target=…)"
        raise FewsureError(f"expected `data` to be the name of a data set, but {name} is a path; give {hint}")
    require_known("data", name, [known for known in DATA if not known.startswith("given-")])
    return name, None


def _method_name(method: Any) -> str:
    """The name of a method, or of the method that an object is."""
    for name, kind in ALGORITHMS.items():
        if type(method) is kind:
            return name
        if method is kind:
            raise FewsureError(f"expected `algorithm` to be a method, but got its class; write {kind.__name__}()")
    require_known("algorithm", checked(str, method, "algorithm"), list(ALGORITHMS))
    return str(method)


def _known_options(experiment: Experiment, values: Mapping[str, Any]) -> Experiment:
    """The experiment with those of the values that its network and its data know."""
    known = field_types(type(experiment.network)) | field_types(type(experiment.data))
    return _with_options(experiment, {name: value for name, value in values.items() if name in known})


def _is_data(data: Any) -> bool:
    return any(type(data) is kind.data for kind in DATA.values())


def _own_data(data: Any, options: Mapping[str, Any]) -> Any:
    """A DataFrame, or tasks given in Python, with the options that are theirs."""
    if is_frame(data):
        kind: Any = TableClasses if "label" in options else Table
        return _changed(kind(data=data), options)
    known = field_types(GivenRegression) | field_types(GivenClasses)
    return own_tasks(data, **{name: value for name, value in options.items() if name in known})


def _with_options(experiment: Experiment, options: Mapping[str, Any]) -> Experiment:
    """The experiment with single options set, wherever they belong."""
    kinds = {group: field_types(type(getattr(experiment, group))) for group in GROUPS}
    known = [name for fields in kinds.values() for name in fields if name != "scale"]
    for name in options:
        require_known("option", name, known)
    groups: dict[str, Any] = {group: _changed(getattr(experiment, group), options) for group in GROUPS}
    return dataclasses.replace(experiment, **groups)


def _changed(options: Any, values: Mapping[str, Any]) -> Any:
    """A dataclass of options with those of the values that are its own, checked."""
    own = {
        name: checked(kind, values[name], name) for name, kind in field_types(type(options)).items() if name in values
    }
    return dataclasses.replace(options, **own)
