"""The paper's experiments from one command: tune on validation tasks, train, evaluate on test tasks, write it all up.

Every method gets the same number of updates and the same number of tuning trials, which differ in the options that
`presets/DATA/trials.toml` lists. The trial with the lowest validation NLL (a proper score: it rewards both small errors
and honest spread) is trained in full for each seed and evaluated once on the test tasks. What is done is not done
again, so a command that was interrupted, or that is run for some methods at a time, goes on where the last one stopped.
"""

import dataclasses
import json
import tomllib
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import Any

import torch

from fewsure.errors import FewsureError
from fewsure.evaluation import evaluate
from fewsure.experiment import GROUPS, Experiment, load_preset
from fewsure.files import write_atomically
from fewsure.training.runs import Run
from fewsure.workflow import evaluate_run, start_run, train_run

TRIAL_SHARE = 0.2
"""Updates of a tuning trial, as a share of the full training's."""
VALIDATION_TASKS = 500


@dataclasses.dataclass(frozen=True)
class Reproduction:
    """One experiment of the paper for several methods, in a folder."""

    data: str
    folder: Path
    device: torch.device
    budget: float
    """Multiplies the number of updates of every training."""
    tasks: int
    """Test tasks."""
    quiet: bool = False

    def run(self, method: str, seeds: int) -> None:
        """Tune, train and evaluate a method."""
        best = self.tuned(method)
        for seed in range(seeds):
            run = self._train(self.folder / method / f"seed-{seed}", self._budgeted(best, 1.0, seed))
            if run.evaluation() is None:
                evaluate_run(run, self.device, tasks=self.tasks, seed=0, quiet=self.quiet)

    def tuned(self, method: str) -> Experiment:
        """The trial of a method that does best on validation tasks."""
        scores = []
        for number, experiment in enumerate(trials(method, self.data)):
            run = self._train(self.folder / method / f"trial-{number}", self._budgeted(experiment, TRIAL_SHARE, seed=0))
            scores.append((self._validate(run)["nll"]["mean"], number, experiment))
        return min(scores, key=lambda score: score[:2])[2]

    def rows(self) -> list[dict[str, Any]]:
        """One object per method and seed that is finished: the evaluation, with what it took."""
        rows = []
        for run in self.finished():
            evaluation = run.evaluation()
            assert evaluation is not None
            training = run.experiment.training
            rows.append(
                evaluation
                | {
                    "train_seed": training.seed,
                    "updates": training.updates,
                    "train_seconds": run.metrics()[-1]["seconds"],
                    "preset": run.experiment.preset,
                }
            )
        return rows

    def finished(self) -> list[Run]:
        """The runs that have been evaluated on test tasks, in the order of methods and seeds."""
        evaluated = sorted(self.folder.glob("*/seed-*/evaluation.json"))
        return [Run.open(file.parent) for file in evaluated]

    def _train(self, folder: Path, experiment: Experiment) -> Run:
        run = start_run(folder, experiment, resume=True)
        train_run(run, self.device, quiet=self.quiet)
        return run

    def _budgeted(self, experiment: Experiment, share: float, seed: int) -> Experiment:
        updates = max(1, round(experiment.training.updates * share * self.budget))
        return dataclasses.replace(
            experiment, training=dataclasses.replace(experiment.training, updates=updates, seed=seed)
        )

    def _validate(self, run: Run) -> dict[str, Any]:
        file = run.folder / "validation.json"
        if not file.is_file():
            meta = run.load(self.device).meta
            summary, _ = evaluate(run.experiment, meta, tasks=VALIDATION_TASKS, seed=0, stream="validation")
            write_atomically(file, json.dumps(summary, indent=1) + "\n")
        found: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        return found


def trials(method: str, data: str) -> list[Experiment]:
    """The settings among which a method is tuned: the recommended preset with the options of each trial on top."""
    file = resources.files("fewsure") / "presets" / data / "trials.toml"
    table = tomllib.loads(file.read_text(encoding="utf-8"))
    if method not in table:
        raise FewsureError(f"expected a method of {', '.join(table)}, but got {method!r}")
    base = load_preset("recommended", method, data)
    return [_changed(base, options, f"trial {number}") for number, options in enumerate(table[method])]


def _changed(base: Experiment, options: dict[str, dict[str, Any]], name: str) -> Experiment:
    groups = {group: dataclasses.replace(getattr(base, group), **options.get(group, {})) for group in GROUPS}
    return Experiment(**groups, preset=f"{base.preset}, {name}")


def write_results(rows: Sequence[dict[str, Any]], path: Path) -> None:
    """Write the list of result objects."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, json.dumps(list(rows), indent=1) + "\n")
