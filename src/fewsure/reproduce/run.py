"""The paper's experiments from one command: tune on validation tasks, train, evaluate on test tasks, write it all up.

Of the tuning trials of a method the one with the lowest validation NLL (a proper score: it rewards small errors and
honest spread) is trained in full for each seed and evaluated once on the test tasks. Validation and test tasks of
images have classes of their own. `targets.py` has the experiments.

What is finished is not done again, so a command that was interrupted, or that is run for some entries at a time, goes
on where the last one stopped.
"""

import dataclasses
import json
import shutil
import sys
import tempfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from matplotlib.figure import Figure

from fewsure.algorithms.simpa import Simpa
from fewsure.core.config import from_json, is_learned
from fewsure.core.files import write_atomically
from fewsure.core.processes import side_by_side
from fewsure.core.progress import ProgressLine
from fewsure.errors import Diverged, FewsureError
from fewsure.evaluation.calibrate import calibrated
from fewsure.evaluation.evaluate import evaluate
from fewsure.features.extract import nearest_mean_accuracy
from fewsure.pipeline import WITHOUT_EFFECT, evaluate_run, start_run, train_run
from fewsure.report.comparison import comparison_figure
from fewsure.report.drawing import figure_png
from fewsure.report.page import write_report
from fewsure.report.styles import run_styles
from fewsure.reproduce.page import results_page
from fewsure.reproduce.results import earlier_results, run_of, with_earlier, written
from fewsure.reproduce.targets import TARGETS, read_trials
from fewsure.training.experiment import GROUPS, Experiment
from fewsure.training.runs import Run

VALIDATION_TASKS = 500
NEAREST_MEAN_TASKS = 10_000
VALIDATION = "validation.json"
"""The file of a trial's folder that holds its scores."""
SCORED = ("tasks", "accuracy", "mse", "nll", "ece", "softmax_temperature", "temperature_exponent")
"""What of them is kept with the results."""


class Job(NamedTuple):
    """One training of an experiment, with its evaluation."""

    entry: str
    kind: Literal["trial", "seed"]
    number: int


@dataclasses.dataclass(frozen=True)
class Reproduction:
    """One experiment in a folder: a sub-folder for each entry (a method), in it a run for each seed."""

    target: str
    folder: Path
    device: torch.device
    budget: float
    """Multiplies the number of updates of every training."""
    seeds: int
    tasks: int
    """Tasks of the final evaluation."""
    quiet: bool = False

    def stages(self, entry: str) -> list[list[Job]]:
        """What an entry takes: tuning trials, and when they are all done a training for each seed."""
        trials = len(TARGETS[self.target].trials(entry))
        stages: list[list[Job]] = [
            [Job(entry, "trial", number) for number in range(trials)],
            [Job(entry, "seed", seed) for seed in range(self.seeds)],
        ]
        return stages

    def run(self, entries: Sequence[str], jobs: int) -> None:
        """Do everything of these entries that is not finished yet, so many trainings at a time."""
        chains = [self.stages(entry) for entry in entries]
        if jobs == 1:
            for job in (job for stages in chains for stage in stages for job in stage):
                self.do(job)
            return
        count, finished = sum(len(stage) for stages in chains for stage in stages), 0
        with ProgressLine(f"{jobs} trainings at a time") as line:

            def show(job: Job) -> None:
                nonlocal finished
                finished += 1
                line.show(finished, count, f"{job.entry}, {job.kind} {job.number} is done")

            side_by_side(self.do, chains, jobs, show)

    def do(self, job: Job) -> None:
        """Train and score a trial on validation tasks, or the best trial's settings with a seed on the final ones."""
        target, folder = TARGETS[self.target], self.folder / job.entry / f"{job.kind}-{job.number}"
        if job.kind == "trial":
            with _divergence_reported(folder):
                self._validate(self._train(folder, target.trials(job.entry)[job.number], target.trial_share, seed=0))
            return
        with _divergence_reported(folder):
            best = self._best_trial(job.entry)
            experiment, trial = target.trials(job.entry)[best], folder.parent / f"trial-{best}"
            if target.joins_validation:
                experiment = self._joined(experiment, Run.open(trial))
            run = self._train(folder, experiment, 1.0, job.number, trial)
            found = run.evaluation() or {}
            asked: dict[str, Any] = {"tasks": self.tasks, "seed": self._seed, "stream": "test"}
            if any(found.get(name) != value for name, value in asked.items()):
                evaluate_run(run, self.device, **asked, quiet=self.quiet)

    def _joined(self, experiment: Experiment, trial: Run) -> Experiment:
        """With validation classes among the training classes; what is learned from them is as the trial found it."""
        settled: Any = calibrated(trial, self.device, quiet=self.quiet).data
        return dataclasses.replace(experiment, data=dataclasses.replace(settled, train_on_validation=True))

    def _best_trial(self, method: str) -> int:
        """The number of the trial with the lowest validation NLL, of those that did not diverge."""
        scores = []
        for number in range(len(TARGETS[self.target].trials(method))):
            folder = self.folder / method / f"trial-{number}"
            if (folder / VALIDATION).is_file():
                scores.append((self._validate(Run.open(folder))["nll"]["mean"], number))
        if not scores:
            raise Diverged(f"every tuning trial of {method} diverged; see {self.folder / method}")
        return min(scores)[1]

    def rows(self) -> list[dict[str, Any]]:
        """One object per entry and seed that is finished: the evaluation, with what it took."""
        finished = self._finished()
        beside = _nearest_means(finished[0].experiment) if finished else {}
        return [
            (run.evaluation() or {}) | self._facts(run) | beside | {"train_seconds": run.metrics()[-1]["seconds"]}
            for run in finished
        ]

    def earlier(self, file: Path) -> list[dict[str, Any]]:
        """The rows of earlier results of this experiment."""
        return earlier_results(file, self.target, TARGETS[self.target].test_seed)

    def check(self, results: Path, earlier: Sequence[dict[str, Any]], entries: Sequence[str]) -> None:
        """Refuse a file that `write` would refuse once these entries are run, before they are."""
        kept = {run_of(row) for row in earlier} | {run_of(self._facts(run)) for run in self._finished()}
        self._require_nothing_lost(results, kept | {(entry, seed) for entry in entries for seed in range(self.seeds)})

    def _require_nothing_lost(self, results: Path, kept: Collection[tuple[str, int]]) -> None:
        """Refuse to write over results other than these."""
        lost = [f"{label}, seed {seed}" for label, seed in written(results, self.target) if (label, seed) not in kept]
        if lost:
            raise FewsureError(
                f"{results} has results of {'; '.join(lost)}, of which {self.folder} has no finished run: `--beside "
                f"{results}` keeps them (with --collect, if all is run); or move the file away"
            )

    def write(self, results: Path, page: Path, earlier: Sequence[dict[str, Any]] = ()) -> list[dict[str, Any]]:
        """Write the list of result objects, the Markdown page with its figure, and the report of the first seeds.

        Earlier results are written up too, where there is no finished run of the same entry and seed here.
        """
        rows = with_earlier(self.rows(), earlier)
        if not rows:
            raise FewsureError(f"{self.folder} holds no finished run of this experiment; run it without --collect")
        finished = {run_of(row) for row in rows}
        self._require_nothing_lost(results, finished)  # others may have written to it since it was looked at
        unfinished = [
            facts | {"update": run.metrics()[-1]["update"] if run.metrics() else 0}
            for run in self._runs()
            if run_of(facts := self._facts(run)) not in finished
        ]
        try:
            figure = figure_png(_methods_figure(rows))
            text = results_page(rows, unfinished, self.target)
        except (KeyError, TypeError, IndexError) as error:
            if not earlier:
                raise
            raise FewsureError(f"expected earlier results as this version writes them, but {error!r}") from error
        picture = page.parent / "figures" / f"{self.target}.png"
        for path in (results, picture):
            path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(results, json.dumps(rows, indent=1) + "\n")
        write_atomically(picture, figure)
        write_atomically(page, text)
        drawn = [run for run in self._finished() if run.experiment.training.seed == 0]
        if drawn and all(run.has_checkpoint for run in drawn):  # records may have come from elsewhere without them
            folders = [run.folder for run in drawn]
            write_report(
                folders, self.folder / "report.html", self.device, tasks=self.tasks, seed=self._seed, quiet=self.quiet
            )
        return rows

    def _trials(self, entry: str) -> list[dict[str, Any]]:
        """What each trial of an entry found on validation tasks."""
        target, trials = TARGETS[self.target], []
        listed, today = read_trials(target.listed)[entry], target.trials(entry)
        for file in sorted((self.folder / entry).glob(f"trial-*/{VALIDATION}")):
            run, number = Run.open(file.parent), int(file.parent.name.removeprefix("trial-"))
            if number >= len(today):
                raise FewsureError(f"{file.parent} is none of the {len(today)} trials of {entry}; move the folder away")
            options, scores = _options(run.experiment, listed[number], today[number]), self._validate(run)
            trials.append({"trial": number, "options": options} | {key: scores[key] for key in SCORED if key in scores})
        return trials

    def _runs(self) -> list[Run]:
        return [Run.open(file.parent) for file in sorted(self.folder.glob("*/seed-*/config.json"))]

    def _finished(self) -> list[Run]:
        return [run for run in self._runs() if run.evaluation() is not None]

    def _facts(self, run: Run) -> dict[str, Any]:
        """What a row says of a run beside its scores."""
        target, training, data = TARGETS[self.target], run.experiment.training, run.experiment.data
        entry = run.folder.parent.name
        if entry not in target.entries:
            known = ", ".join(target.entries)
            raise FewsureError(f"{run.folder} is of no entry of {self.target} ({known}); move the folder away")
        planned = target.trials(entry)[0].training.updates
        facts = {
            "target": self.target,
            "algorithm": run.experiment.algorithm_name,
            "label": entry,
            "train_seed": training.seed,
            "updates": training.updates,
            "budget": float(f"{training.updates / planned:.6g}"),
            "preset": run.experiment.preset,
            "train_on_validation": data.train_on_validation,
        }
        if isinstance(run.experiment.algorithm, Simpa):
            facts["components"] = run.experiment.algorithm.components
        return facts | {"trials": self._trials(entry)}

    @property
    def _seed(self) -> int:
        return TARGETS[self.target].test_seed

    def _train(self, folder: Path, experiment: Experiment, share: float, seed: int, trial: Path | None = None) -> Run:
        """A trained run; where a trial of the same options was trained as long, with the same seed, a copy of it."""
        updates = max(1, round(experiment.training.updates * share * self.budget))
        training = dataclasses.replace(experiment.training, updates=updates, seed=seed)
        experiment = dataclasses.replace(experiment, training=training)
        if trial is not None and not folder.exists() and _is_of(Run.open(trial), experiment):
            _copy_run(trial, folder)
        run = start_run(folder, experiment, resume=True)
        train_run(run, self.device, quiet=self.quiet)
        return run

    def _validate(self, run: Run) -> dict[str, Any]:
        file = run.folder / VALIDATION
        if not file.is_file():
            experiment, meta = calibrated(run, self.device, quiet=self.quiet), run.load(self.device).meta
            summary, _ = evaluate(experiment, meta, tasks=VALIDATION_TASKS, seed=0, stream="validation")
            write_atomically(file, json.dumps(summary, indent=1) + "\n")
        try:
            found: dict[str, Any] = from_json(file.read_text(encoding="utf-8"))
        except ValueError as error:
            raise FewsureError(f"{file}: expected JSON, but {error}; delete the file, and it is made again") from None
        return found


def _nearest_means(experiment: Experiment) -> dict[str, Any]:
    """On features: what the nearest class mean reaches on test tasks, alone and, if the head is, with sets centred."""
    data = experiment.data
    try:
        pool = data.stored_features("test")
    except FewsureError as error:  # records may have been brought from elsewhere without the data
        print(f"the nearest class mean is left out: {error}", file=sys.stderr)
        return {}
    if pool is None:
        return {}
    reached = partial(nearest_mean_accuracy, pool, shot=data.shot, tasks=NEAREST_MEAN_TASKS)
    found = {"nearest_mean": reached()}
    return found | {"nearest_mean_centred": reached(centred=True)} if experiment.network.centred else found


def _options(tried: Experiment, listed: Mapping[str, Collection[str]], today: Experiment) -> dict[str, Any]:
    """The options of a trial that its list names, and those that are others than it would have today."""
    there, asked = tried.record(), today.record()
    options: dict[str, dict[str, Any]] = {}
    for group in GROUPS:
        learned = [field.name for field in dataclasses.fields(getattr(tried, group)) if is_learned(field)]
        free = ("updates", "seed", *WITHOUT_EFFECT, *learned)
        for name, value in there[group].items():
            if name in listed.get(group, ()) or (value != asked[group].get(name) and name not in free):
                options.setdefault(group, {})[name] = value
    return options


def _is_of(run: Run, experiment: Experiment) -> bool:
    """Whether a run is trained, and of this experiment."""
    return run.has_checkpoint and run.experiment == dataclasses.replace(experiment, data=experiment.data.prepared())


def _copy_run(trial: Path, folder: Path) -> None:
    """The run of a trial, without its score; whole or not there."""
    with tempfile.TemporaryDirectory(prefix=f".{folder.name}-", dir=folder.parent) as making:
        copied = Path(making) / "run"
        shutil.copytree(trial, copied, ignore=shutil.ignore_patterns(VALIDATION))
        copied.replace(folder)


@contextmanager
def _divergence_reported(folder: Path) -> Iterator[Path]:
    """Let an experiment go on past a run that diverges, which the page lists as unfinished."""
    try:
        yield folder
    except Diverged as error:
        print(f"{folder}: {error}", file=sys.stderr)


def _methods_figure(rows: Sequence[Mapping[str, Any]]) -> Figure:
    """The first seed of each method beside the paper's figures."""
    first = list({row["label"]: row for row in sorted(rows, key=lambda row: -row["train_seed"])}.values())
    first.sort(key=lambda row: str(row["label"]))
    return comparison_figure(
        first, run_styles([row["algorithm"] for row in first], [Path(row["label"]) for row in first])
    )
