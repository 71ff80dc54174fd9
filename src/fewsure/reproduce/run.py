"""The paper's experiments from one command: tune on validation tasks, train, evaluate on test tasks, write it all up.

A method's best tuning trial has the lowest validation NLL, a proper score that rewards small errors and honest spread.
Its settings are trained in full for each seed and evaluated once on the test tasks. Validation and test tasks of
images have classes of their own. `targets.py` has the experiments.

Finished work is not done again. A command that was interrupted, or that runs some methods at a time, goes on where the
last one stopped.
"""

import dataclasses
import json
import sys
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from matplotlib.figure import Figure

from fewsure.core.config import from_json, is_learned
from fewsure.core.files import copy_folder, write_atomically
from fewsure.core.processes import side_by_side
from fewsure.core.progress import ProgressLine
from fewsure.data import DATA_SETS
from fewsure.data.io.cache import load
from fewsure.data.pools import SPLITS
from fewsure.errors import Diverged, FewsureError
from fewsure.evaluation.calibrate import calibrated
from fewsure.evaluation.evaluate import evaluate
from fewsure.features.classifier import recipe_of
from fewsure.features.extract import nearest_mean_accuracy
from fewsure.features.start import start_at_features
from fewsure.features.workflow import make_features
from fewsure.pipeline import WITHOUT_EFFECT, evaluate_run, start_run, train_run
from fewsure.report.comparison import comparison_figure
from fewsure.report.drawing import figure_png
from fewsure.report.evaluation_tables import evaluation_tables
from fewsure.report.page import write_report
from fewsure.report.styles import run_styles
from fewsure.report.tables import Table
from fewsure.reproduce.page import results_page
from fewsure.reproduce.results import Row, kept_results, merge, run_of
from fewsure.reproduce.targets import TARGETS, Target, read_trials
from fewsure.training.experiment import GROUPS, Experiment
from fewsure.training.runs import Run

VALIDATION_TASKS = 500
NEAREST_MEAN_TASKS = 10_000
VALIDATION = "validation.json"
"""The file of a trial's folder that holds its scores."""
SCORED = ("tasks", "accuracy", "mse", "nll", "ece", "softmax_temperature", "temperature_exponent")
"""The values that results keep of each trial."""


class Job(NamedTuple):
    """One training of an experiment, with its evaluation."""

    method: str
    kind: Literal["trial", "seed"]
    number: int


@dataclasses.dataclass(frozen=True)
class Reproduction:
    """One experiment in a folder: a sub-folder for each method, in it one for each trial and for each seed."""

    name: str
    """The target's."""
    folder: Path
    device: torch.device
    budget: float
    """Multiplies the number of updates of every training."""
    seeds: int
    tasks: int
    """Tasks of the final evaluation."""

    @property
    def target(self) -> Target:
        """The experiment."""
        return TARGETS[self.name]

    @property
    def methods(self) -> list[str]:
        """The methods of the experiment."""
        return self.target.methods

    def run(self, methods: Sequence[str], jobs: int) -> None:
        """Do everything of these methods that is not finished yet, so many trainings at a time."""
        if any(map(self.target.starts_at_body, methods)):
            self._make_body()
        chains = [self.stages(method) for method in methods]
        if jobs == 1:
            for job in (job for stages in chains for stage in stages for job in stage):
                self.do(job)
            return
        count, finished = sum(len(stage) for stages in chains for stage in stages), 0
        with ProgressLine(f"{jobs} trainings at a time") as line:

            def show(job: Job) -> None:
                nonlocal finished
                finished += 1
                line.show(finished, count, f"{job.method}, {job.kind} {job.number} is done")

            side_by_side(self.do, chains, jobs, show)

    def stages(self, method: str) -> list[list[Job]]:
        """The stages of a method: its tuning trials, if it has several, then a training for each seed."""
        trials = [Job(method, "trial", number) for number in range(len(self.target.trials(method)))]
        return [trials if len(trials) > 1 else [], [Job(method, "seed", seed) for seed in range(self.seeds)]]

    def do(self, job: Job) -> None:
        """Train and score a trial on validation tasks, or the best trial's settings with a seed on test tasks.

        A run that diverges is reported, and does not end the experiment; the page lists it as unfinished.
        """
        folder = self._folder(job)
        try:
            if job.kind == "trial":
                trial = self.target.trials(job.method)[job.number]
                self._validate(self._train(job, trial, self.target.trial_share, seed=0))
            else:
                self._evaluate(self._train_in_full(job))
        except Diverged as error:
            print(f"{folder}: {error}", file=sys.stderr)

    def _folder(self, job: Job) -> Path:
        return self.folder / job.method / f"{job.kind}-{job.number}"

    @property
    def body_folder(self) -> Path:
        """The features whose body trainings start at; experiments on the same data share them."""
        return self.folder.parent / f"{self.target.data}-{self.target.body}"

    def _make_body(self) -> None:
        """Train the body on the training classes, unless it is there."""
        data, recipe = self.target.data, recipe_of(str(self.target.body))
        pools = {split: load(DATA_SETS[data], split) for split in SPLITS}
        make_features(self.body_folder, data, pools, recipe, self.device, resume=True)

    def _train_in_full(self, job: Job) -> Run:
        """With the options of the best trial; where that was trained as long with the same seed, a copy of it."""
        if not self.stages(job.method)[0]:
            return self._train(job, self.target.trials(job.method)[0], 1.0, job.number)
        best = self._best_trial(job.method)
        folder, trial = self._folder(job), Run.open(self._folder(Job(job.method, "trial", best)))
        experiment = self.target.trials(job.method)[best]
        if self.target.joins_validation:  # temperatures are as the trial, which did not see these classes, found them
            data: Any = calibrated(trial, self.device).data
            experiment = dataclasses.replace(experiment, data=dataclasses.replace(data, train_on_validation=True))
        asked = self._planned(experiment, 1.0, job.number).at_known_precision(trial.experiment.training.precision)
        same = trial.experiment == dataclasses.replace(asked, data=asked.data.prepared())
        if same and trial.has_checkpoint and not folder.exists():
            copy_folder(trial.folder, folder, VALIDATION)
        return self._train(job, experiment, 1.0, job.number)

    def _best_trial(self, method: str) -> int:
        """The number of the trial with the lowest validation NLL. Trials that diverged do not count."""
        scores = []
        for job in self.stages(method)[0]:
            if (self._folder(job) / VALIDATION).is_file():
                scores.append((self._validate(Run.open(self._folder(job)))["nll"]["mean"], job.number))
        if not scores:
            raise Diverged(f"every tuning trial of {method} diverged; see {self.folder / method}")
        return int(min(scores)[1])

    def _planned(self, experiment: Experiment, share: float, seed: int) -> Experiment:
        updates = max(1, round(experiment.training.updates * share * self.budget))
        return dataclasses.replace(
            experiment, training=dataclasses.replace(experiment.training, updates=updates, seed=seed)
        )

    def _train(self, job: Job, experiment: Experiment, share: float, seed: int) -> Run:
        planned, start = self._planned(experiment, share, seed), None
        if self.target.starts_at_body(job.method):
            planned, start = start_at_features(planned, self.body_folder)
        run = start_run(self._folder(job), planned, resume=True, start=start)
        train_run(run, self.device)
        return run

    def _validate(self, run: Run) -> Row:
        file = run.folder / VALIDATION
        if not file.is_file():
            experiment, meta = calibrated(run, self.device), run.load(self.device, run.chosen).meta
            summary, _ = evaluate(experiment, meta, tasks=VALIDATION_TASKS, seed=0, stream="validation")
            write_atomically(file, json.dumps(summary, indent=1) + "\n")
        try:
            found: Row = from_json(file.read_text(encoding="utf-8"))
        except ValueError as error:
            raise FewsureError(f"{file}: expected JSON, but {error}; delete the file, and it is made again") from None
        return found

    def _evaluate(self, run: Run) -> None:
        asked: dict[str, Any] = {"tasks": self.tasks, "seed": self.target.test_seed, "stream": "test"}
        found = run.evaluation() or {}
        if any(found.get(name) != value for name, value in asked.items()):
            evaluate_run(run, self.device, **asked)

    def kept(self, results: Path) -> list[Row]:
        """The rows of results that are there; a file that `write` would refuse is refused."""
        return kept_results(results, self.name, self.target.test_seed)

    def write(self, results: Path, page: Path) -> list[Row]:
        """Write the list of result objects, the Markdown page with its figure, and the report of the first seeds.

        Rows that the list has of methods and seeds with no finished run here are kept.
        """
        finished, kept = [run for run in self._runs() if run.evaluation() is not None], self.kept(results)
        rows = merge(self._rows(finished), kept)
        if not rows:
            raise FewsureError(f"{self.folder} holds no finished run of this experiment; run it without --collect")
        written = {run_of(row) for row in rows}
        unfinished = [
            facts | {"update": run.metrics()[-1]["update"] if run.metrics() else 0}
            for run in self._runs()
            if run_of(facts := self._facts(run)) not in written
        ]
        try:
            figure, text = figure_png(results_figure(rows)), results_page(rows, unfinished, self.name)
        except (KeyError, TypeError, IndexError) as error:
            if not kept:
                raise
            raise FewsureError(
                f"{results}: expected rows as this version writes them, but {error!r}; choose another --results"
            ) from error
        picture = page.parent / "figures" / f"{self.name}.png"
        for path in (results, picture):
            path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(results, json.dumps(rows, indent=1) + "\n")
        write_atomically(picture, figure)
        write_atomically(page, text)
        drawn = [run for run in finished if run.experiment.training.seed == 0]
        if drawn and all(run.has_checkpoint for run in drawn):  # records may have come from elsewhere without them
            folders, report = [run.folder for run in drawn], self.folder / "report.html"
            write_report(folders, report, self.device, tasks=self.tasks, seed=self.target.test_seed)
        return rows

    def tables(self, rows: Sequence[Row]) -> list[Table]:
        """The rows as they are printed."""
        return evaluation_tables(rows)

    def _rows(self, finished: Sequence[Run]) -> list[Row]:
        """One object per method and seed that is finished: the evaluation, with what it took."""
        beside = _nearest_means(finished[0].experiment) if finished else {}
        return [
            (run.evaluation() or {}) | self._facts(run) | beside | {"train_seconds": run.metrics()[-1]["seconds"]}
            for run in finished
        ]

    def _runs(self) -> list[Run]:
        return [Run.open(file.parent) for file in sorted(self.folder.glob("*/seed-*/config.json"))]

    def _facts(self, run: Run) -> Row:
        """The fields of a run's row beside its scores."""
        training, data, algorithm = run.experiment.training, run.experiment.data, run.experiment.record()["algorithm"]
        method = run.folder.parent.name
        if method not in self.target.methods:
            known = ", ".join(self.target.methods)
            raise FewsureError(f"{run.folder} is of no method of {self.name} ({known}); move the folder away")
        planned = self.target.trials(method)[0].training.updates
        return {
            "target": self.name,
            "algorithm": run.experiment.algorithm_name,
            "label": method,
            "train_seed": training.seed,
            "updates": training.updates,
            "budget": float(f"{training.updates / planned:.6g}"),
            "preset": run.experiment.preset,
            "start": run.experiment.start,
            "train_on_validation": data.train_on_validation,
            **{name: value for name, value in algorithm.items() if name == "components"},
            "trials": self._trials(method),
        }

    def _trials(self, method: str) -> list[Row]:
        """The scores of each trial of a method on validation tasks."""
        trials = []
        listed, today = read_trials(self.target.listed)[method], self.target.trials(method)
        for file in sorted((self.folder / method).glob(f"trial-*/{VALIDATION}")):
            run, number = Run.open(file.parent), int(file.parent.name.removeprefix("trial-"))
            if number >= len(today):
                raise FewsureError(f"{file.parent} is none of the {len(today)} trials of {method}; move it away")
            options, scores = _options(run.experiment, listed[number], today[number]), self._validate(run)
            trials.append({"trial": number, "options": options} | {key: scores[key] for key in SCORED if key in scores})
        return trials


def _nearest_means(experiment: Experiment) -> Row:
    """On features: scores of the nearest class mean on test tasks, alone and, if the head is, with sets centred."""
    data = experiment.data
    try:
        pool = data.stored_features("test")
    except FewsureError as error:  # records may have been brought from elsewhere without the data
        print(f"the nearest class mean is left out: {error}", file=sys.stderr)
        return {}
    if pool is None:
        return {}
    reached = partial(nearest_mean_accuracy, pool, shot=data.test_shot, tasks=NEAREST_MEAN_TASKS)
    found = {"nearest_mean": reached()}
    return found | {"nearest_mean_centred": reached(centred=True)} if experiment.network.centred else found


def _options(tried: Experiment, listed: Mapping[str, Collection[str]], today: Experiment) -> dict[str, Row]:
    """The options of a trial that its list names, and the options whose present values differ."""
    there, asked = tried.record(), today.at_known_precision(tried.training.precision).record()
    options: dict[str, Row] = {}
    for group in GROUPS:
        learned = [field.name for field in dataclasses.fields(getattr(tried, group)) if is_learned(field)]
        free = ("updates", "seed", *WITHOUT_EFFECT, *learned)
        for name, value in there[group].items():
            if name in listed.get(group, ()) or (value != asked[group].get(name) and name not in free):
                options.setdefault(group, {})[name] = value
    return options


def results_figure(rows: Sequence[Row]) -> Figure:
    """The first seed of each method beside the paper's figures."""
    first = list({row["label"]: row for row in sorted(rows, key=lambda row: -row["train_seed"])}.values())
    first.sort(key=lambda row: str(row["label"]))
    return comparison_figure(
        first, run_styles([row["algorithm"] for row in first], [Path(row["label"]) for row in first])
    )
