"""The paper's experiments from one command: tune on validation tasks, train, evaluate on test tasks, write it all up.

Most compare methods. Each gets the same number of updates and the same number of tuning trials, which differ in the
options that a file of `trials/` lists. The trial with the lowest validation NLL (a proper score: it rewards small
errors and honest spread) is trained in full for each seed and evaluated once on the test tasks. Validation and test
tasks of images have classes of their own.

`ablation` compares variants of SImPa that differ in one part of its recipe (`trials/ablation.toml`), without tuning, on
validation tasks.

What is finished is not done again, so a command that was interrupted, or that is run for some entries at a time, goes
on where the last one stopped.
"""

import dataclasses
import json
import shutil
import sys
import tempfile
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from importlib import resources
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from matplotlib.figure import Figure

from fewsure.algorithms.simpa import Simpa
from fewsure.data import prepared
from fewsure.data.classification import FeatureSet
from fewsure.data.pools import Split
from fewsure.errors import Diverged, FewsureError
from fewsure.evaluation import evaluate
from fewsure.experiment import GROUPS, Experiment, load_preset
from fewsure.features.extract import nearest_mean_accuracy
from fewsure.files import write_atomically
from fewsure.learned import with_learned
from fewsure.records import from_json, from_record, to_record
from fewsure.report.drawing import figure_png
from fewsure.report.figures import comparison_figure, variants_figure
from fewsure.report.page import write_report
from fewsure.report.results_page import results_page
from fewsure.report.styles import run_styles
from fewsure.results import with_earlier
from fewsure.training.runs import Run
from fewsure.workflow import evaluate_run, start_run, train_run

VALIDATION_TASKS = 500
NEAREST_MEAN_TASKS = 10_000
VALIDATION = "validation.json"
"""The file of a trial's folder that holds its scores."""
SCORED = ("tasks", "accuracy", "mse", "nll", "ece", "softmax_temperature", "temperature_exponent")
"""What of them is kept with the results."""


@dataclasses.dataclass(frozen=True)
class Target:
    """An experiment: which methods, or variants of SImPa, on which tasks."""

    data: str
    listed: str
    """The file of `trials/` that lists its entries."""
    preset: str = "recommended"
    folder: str | None = None
    """For `--data features`: where the features are."""
    joins_validation: bool = False
    """Whether the validation classes join the training classes once the options are chosen, as in the paper's split."""
    trial_share: float = 0.2
    """Updates of a tuning trial, as a share of the full training's."""
    test_seed: int = 1
    """Of the final evaluation's tasks. A new round of results has its own: the last have been looked at."""

    @property
    def stream(self) -> Split:
        """The tasks of the final evaluation: those of an ablation may be chosen from."""
        return "test" if self.tunes else "validation"

    @property
    def tunes(self) -> bool:
        """Whether its entries are methods, each tuned by trials; else they are variants, without tuning."""
        return self.listed != "ablation.toml"

    @property
    def entries(self) -> list[str]:
        """Methods, or variants."""
        return [name for name in _read(self.listed) if name != "every-variant"]

    def trials(self, method: str) -> list[Experiment]:
        """The settings among which a method is tuned: its preset with the options of each trial on top."""
        listed = _read(self.listed)[method]
        return [changed(self._base(method), options, f"trial {number}") for number, options in enumerate(listed)]

    def variants(self) -> dict[str, Experiment]:
        """The variants of SImPa: the preset with the options of all variants, and then its own, on top."""
        tables = _read(self.listed)
        base = changed(self._base("simpa"), tables.pop("every-variant"), "ablation")
        return {name: changed(base, options, name) for name, options in tables.items()}

    def _base(self, method: str) -> Experiment:
        base = load_preset(self.preset, method, self.data)
        if self.folder is None:
            return base
        return dataclasses.replace(base, data=dataclasses.replace(base.data, folder=self.folder))  # type: ignore[type-var]


class Job(NamedTuple):
    """One training of an experiment, with its evaluation."""

    entry: str
    kind: Literal["trial", "seed"]
    number: int


@dataclasses.dataclass(frozen=True)
class Reproduction:
    """One experiment in a folder: a sub-folder for each entry (a method or a variant), in it a run for each seed."""

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
        """What an entry takes: tuning trials if it is a method, and when they are all done a training for each seed."""
        target = TARGETS[self.target]
        trials = len(target.trials(entry)) if target.tunes else 0
        stages: list[list[Job]] = [
            [Job(entry, "trial", number) for number in range(trials)],
            [Job(entry, "seed", seed) for seed in range(self.seeds)],
        ]
        return stages

    def do(self, job: Job) -> None:
        """Train and score a trial on validation tasks, or the best trial's settings with a seed on the final ones."""
        target, folder = TARGETS[self.target], self.folder / job.entry / f"{job.kind}-{job.number}"
        if job.kind == "trial":
            with _divergence_reported(folder):
                self._validate(self._train(folder, target.trials(job.entry)[job.number], target.trial_share, seed=0))
            return
        trial = None
        if target.tunes:
            best = self._best_trial(job.entry)
            experiment, trial = target.trials(job.entry)[best], folder.parent / f"trial-{best}"
        else:
            experiment = target.variants()[job.entry]
        if target.joins_validation:
            experiment = changed(experiment, {"data": {"train_on_validation": True}}, None)
        with _divergence_reported(folder):
            run = self._train(folder, experiment, 1.0, job.number, trial)
            found = run.evaluation() or {}
            asked: dict[str, Any] = {"tasks": self.tasks, "seed": self._seed, "stream": target.stream}
            if any(found.get(name) != value for name, value in asked.items()):
                evaluate_run(run, self.device, **asked, quiet=self.quiet)

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
        finished = [run for run in self._runs() if run.evaluation() is not None]
        beside = _nearest_means(finished[0].experiment) if finished else {}
        return [
            (run.evaluation() or {}) | self._facts(run) | beside | {"train_seconds": run.metrics()[-1]["seconds"]}
            for run in finished
        ]

    def write(self, results: Path, page: Path, beside: Path | None = None) -> list[dict[str, Any]]:
        """Write the list of result objects, the Markdown page with its figure, and the report of the first seeds.

        Earlier results `beside` them are written up with them, where there is no finished run of the same entry and
        seed here.
        """
        rows, target = self.rows(), TARGETS[self.target]
        if beside is not None:
            rows = with_earlier(rows, beside, target.entries, {"stream": target.stream, "seed": target.test_seed})
        if not rows:
            raise FewsureError(f"{self.folder} holds no finished run of this experiment; run it without --collect")
        unfinished = [
            self._facts(run) | {"update": run.metrics()[-1]["update"] if run.metrics() else 0}
            for run in self._runs()
            if run.evaluation() is None
        ]
        for path in (results, page):
            path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(results, json.dumps(rows, indent=1) + "\n")
        picture = page.parent / "figures" / f"{self.target}.png"
        picture.parent.mkdir(exist_ok=True)
        draw = _methods_figure if target.tunes else variants_figure
        write_atomically(picture, figure_png(draw(rows)))
        write_atomically(page, results_page(rows, unfinished, self.target))
        drawn = [run for run in self._runs() if run.experiment.training.seed == 0 and run.evaluation() is not None]
        if drawn and all(run.has_checkpoint for run in drawn):  # records may have come from elsewhere without them
            folders = [run.folder for run in drawn]
            write_report(
                folders, self.folder / "report.html", self.device, tasks=self.tasks, seed=self._seed, quiet=self.quiet
            )
        return rows

    def _trials(self, entry: str) -> list[dict[str, Any]]:
        """What each trial of an entry found on validation tasks."""
        trials = []
        for file in sorted((self.folder / entry).glob(f"trial-*/{VALIDATION}")):
            run, number = Run.open(file.parent), int(file.parent.name.removeprefix("trial-"))
            record, scores = run.experiment.record(), self._validate(run)
            listed = _read(TARGETS[self.target].listed)[entry][number]
            options = {group: {name: record[group][name] for name in names} for group, names in listed.items()}
            trials.append({"trial": number, "options": options} | {key: scores[key] for key in SCORED if key in scores})
        return trials

    def _runs(self) -> list[Run]:
        return [Run.open(file.parent) for file in sorted(self.folder.glob("*/seed-*/config.json"))]

    def _facts(self, run: Run) -> dict[str, Any]:
        """What a row says of a run beside its scores."""
        target, training, data = TARGETS[self.target], run.experiment.training, run.experiment.data
        entry = run.folder.parent.name
        if entry not in target.entries:
            known = ", ".join(target.entries)
            raise FewsureError(f"{run.folder} is of no entry of {self.target} ({known}); move the folder away")
        planned = (target.trials(entry)[0] if target.tunes else target.variants()[entry]).training.updates
        facts = {
            "algorithm": run.experiment.algorithm_name,
            "label": entry,
            "train_seed": training.seed,
            "updates": training.updates,
            "budget": float(f"{training.updates / planned:.6g}"),
            "preset": run.experiment.preset,
            "train_on_validation": getattr(data, "train_on_validation", False),
        }
        if isinstance(run.experiment.algorithm, Simpa):
            facts["components"] = run.experiment.algorithm.components
        return facts | {"trials": self._trials(entry)} if target.tunes else facts

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
            experiment, meta = with_learned(run, self.device, quiet=self.quiet), run.load(self.device).meta
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
    if not isinstance(data, FeatureSet):
        return {}
    try:
        pool = data.stored("test")
    except FewsureError as error:  # records may have been brought from elsewhere without the data
        print(f"the nearest class mean is left out: {error}", file=sys.stderr)
        return {}
    reached = partial(nearest_mean_accuracy, pool, shot=data.shot, tasks=NEAREST_MEAN_TASKS)
    found = {"nearest_mean": reached()}
    return found | {"nearest_mean_centred": reached(centred=True)} if experiment.network.centred else found


def _is_of(run: Run, experiment: Experiment) -> bool:
    """Whether a run is trained, and of this experiment."""
    return run.has_checkpoint and run.experiment == dataclasses.replace(experiment, data=prepared(experiment.data))


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


def changed(base: Experiment, options: dict[str, dict[str, Any]], name: str | None) -> Experiment:
    """The experiment with other options, and their name behind that of its preset."""
    groups: dict[str, Any] = {}
    for group in GROUPS:
        before = getattr(base, group)
        groups[group] = from_record(type(before), to_record(before) | options.get(group, {}), source=f"{name}, {group}")
    return Experiment(**groups, preset=base.preset if name is None else f"{base.preset}, {name}")


def _read(name: str) -> dict[str, Any]:
    return tomllib.loads((resources.files("fewsure") / "trials" / name).read_text(encoding="utf-8"))


def _methods_figure(rows: Sequence[Mapping[str, Any]]) -> Figure:
    """The first seed of each method beside the paper's figures."""
    first = [row for row in rows if row["train_seed"] == 0]
    return comparison_figure(
        first, run_styles([row["algorithm"] for row in first], [Path(row["label"]) for row in first])
    )


def _shots(data: str) -> tuple[Target, Target]:
    """1-shot and 5-shot on photographs."""
    presets = ("recommended", "recommended-5-shot")
    one, five = (
        Target(data, "photographs.toml", preset, test_seed=seed) for preset, seed in zip(presets, (5, 4), strict=True)
    )
    return one, five


def _feature_shots(data: str, folder: str | None = None, test_seeds: Sequence[int] = (1, 3)) -> tuple[Target, Target]:
    """1-shot and 5-shot on features, where trainings are short enough to be tried in full."""
    one, five = (
        Target(data, f"features{shot}.toml", f"recommended{shot}", folder, trial_share=1.0, test_seed=seed)
        for shot, seed in zip(("", "-5-shot"), test_seeds, strict=True)
    )
    return one, five


TARGETS: dict[str, Target] = {
    "regression": Target("sine-line", "sine-line.toml"),
    "ablation": Target("sine-line", "ablation.toml", test_seed=0),
    "omniglot": Target("omniglot", "omniglot.toml", joins_validation=True),
}
"""Name on the command line → the experiment."""
SEVERAL: dict[str, tuple[str, ...]] = {}
"""Name on the command line → the names of the experiments that it stands for."""
for _name, _both in {
    "cifar-fs": _shots("cifar-fs"),
    "mini-imagenet": _shots("mini-imagenet"),
    "tiered-imagenet": _feature_shots("tiered-imagenet-leo"),
    "mini-imagenet-features": _feature_shots("mini-imagenet-leo"),
    "features-cifar-fs": _feature_shots("features", "features/cifar-fs", test_seeds=(5, 5)),
    "features-tiny-tiered": _feature_shots("features", "features/tiny-tiered", test_seeds=(5, 5)),
}.items():
    SEVERAL[_name] = (f"{_name}-1shot", f"{_name}-5shot")
    TARGETS |= dict(zip(SEVERAL[_name], _both, strict=True))
SEVERAL["features"] = SEVERAL["features-cifar-fs"] + SEVERAL["features-tiny-tiered"]
