"""Cross-validation over groups: every group is predicted by a learner that has not seen it.

The groups (or classes) of a user's own data are divided into folds, as scikit-learn's GroupKFold divides them. For each
fold a learner is trained on the others, some of which are its validation groups, and is scored on tasks of the fold.
The scores are then means over all groups. So they are of as many groups as there are, where one split has a fifth.

`fold-1`, `fold-2` … in the folder are runs like any others. Finished folds are not done again.

With one fold for each group, the learners together give intervals for a new group (`jackknife_intervals`). Each keeps
its scores on the group that it has not seen.
"""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fewsure.certification.certify import calibrate
from fewsure.core.config import ends
from fewsure.core.devices import device_name
from fewsure.core.files import make_folder, write_atomically
from fewsure.core.progress import ProgressLine, silenced
from fewsure.data.own.data import OwnRows
from fewsure.data.own.rows import Fold, Rows, row_parts
from fewsure.errors import FewsureError, require
from fewsure.evaluation.compare import SCORES, is_significant
from fewsure.evaluation.evaluate import task_facts
from fewsure.evaluation.metrics.paired import PairedScores
from fewsure.evaluation.scoring import scorer
from fewsure.pipeline import evaluate_run, start_run, train_run
from fewsure.selection.auto import NAME, select
from fewsure.selection.baselines import CHOICE, Baseline, baselines_of, fitted, scores_of
from fewsure.training.experiment import Experiment
from fewsure.training.runs import RESULT_FORMAT, Run
from fewsure.types import Records
from fewsure.version import __version__

FOLDS, TASKS = 5, 1000
FILE = "crossval.json"
SCORED = 20
"""Draws of known and predicted rows from a group that was left out, whose scores make intervals."""


@dataclass(frozen=True)
class Plan:
    """The trainings of each fold, and how they are scored."""

    experiments: Mapping[str, Experiment]
    """One method by its name, or the methods that `auto` chooses from, within its budget."""
    budget: float | None = None
    """Seconds of all trainings of a fold, for `auto`."""
    folds: int | None = FOLDS
    """None for as many as there are groups, or classes."""
    tasks: int = TASKS
    """Tasks of all folds together."""
    seed: int = 0
    """Chooses the tasks."""
    shot: int | None = None
    baselines: bool = True

    def __post_init__(self) -> None:
        require(self.folds is None or self.folds >= 2, "folds", "at least 2, or none for one of each group", self.folds)
        require(self.tasks >= 2, "tasks", "at least 2", self.tasks)
        for experiment in self.experiments.values():
            if not isinstance(experiment.data, OwnRows):
                raise FewsureError(
                    "expected crossval with a table or tasks of your own, whose groups make folds, but got "
                    f"{experiment.data_name}; make a table of features"
                )

    @property
    def all_folds(self) -> list[Fold]:
        """The folds. Of one group each, those whose group has rows enough for a task; the others are learned from."""
        data = self._any
        rows = data.rows()
        count = len(np.unique(rows.held_out)) if self.folds is None else self.folds
        found: list[Fold] = [(number, count) for number in range(count)]
        if self.folds is not None or data.unit != "tasks":
            return found
        needed = ends(data.shot)[0] + data.query_size
        return [fold for fold in found if _tested(rows, data, fold).sum() >= needed]

    @property
    def _any(self) -> OwnRows:
        data = next(iter(self.experiments.values())).data
        assert isinstance(data, OwnRows)
        return data


def _tested(rows: Rows, data: OwnRows, fold: Fold) -> NDArray[np.bool_]:
    return row_parts(rows, data.shares, rows.held_out_name, fold)["test"]


def cross_validate(folder: Path, plan: Plan, device: torch.device, *, resume: bool = False) -> dict[str, Any]:
    """Train and score all folds; the object that `fewsure crossval --json` prints. It is kept in the folder."""
    _require_free(folder, resume)
    folds = plan.all_folds
    runs = []
    for done, fold in enumerate(folds):
        with ProgressLine("crossval") as line:
            line.show(done, len(folds), "folds")
        runs.append(_trained(folder / f"fold-{fold[0] + 1}", plan, fold, device))
    shot = plan.shot or min(run.experiment.data.test_shot for run in runs)
    _evaluate(runs, plan, shot, device)
    summary = _joined(runs)
    summary |= {"folds": len(runs), "shot": shot, "seed": plan.seed, "by_fold": [_of_fold(run) for run in runs]}
    if plan.folds is None and summary["grouped_by"] is not None and runs[0].experiment.model.kind == "regression":
        for run in runs:
            calibrate(run, device, tasks=SCORED, shot=shot, seed=plan.seed)
        summary["jackknife"] = {"learners": [run.folder.name for run in runs], "shot": shot}
    if plan.baselines:
        summary |= _with_baselines(runs, plan, shot, device)
    with ProgressLine("crossval") as line:
        line.show(len(runs), len(runs), "folds")
    summary |= {"version": __version__, "device": device_name(device)}
    write_atomically(folder / FILE, json.dumps(summary, indent=1) + "\n")
    return summary


def _require_free(folder: Path, resume: bool) -> None:
    if folder.exists() and (not folder.is_dir() or (any(folder.iterdir()) and not resume)):
        raise FewsureError(
            f"expected --out to be a new or empty folder, but {folder} is not; choose another, or --resume"
        )
    if (folder / "config.json").exists():
        raise FewsureError(f"{folder} holds a run of one split; choose another --out")
    make_folder(folder)


def _trained(folder: Path, plan: Plan, fold: Fold, device: torch.device) -> Run:
    """The run of a fold, which is trained unless it is."""
    experiments = {name: _of_data(experiment, fold) for name, experiment in plan.experiments.items()}
    if plan.budget is not None:
        return select(folder, experiments, device, budget=plan.budget, resume=True)[0]
    (experiment,) = experiments.values()
    with silenced(fold[0] > 0):  # doubts about the data are said once
        run = start_run(folder, experiment, resume=True)
    train_run(run, device)
    return run


def _of_data(experiment: Experiment, fold: Fold) -> Experiment:
    data: Any = experiment.data
    return replace(experiment, data=replace(data, fold=fold))


def _evaluate(runs: Sequence[Run], plan: Plan, shot: int, device: torch.device) -> None:
    """Evaluate each on its share of the tasks."""
    tasks = max(2, math.ceil(plan.tasks / len(runs)))
    for run in runs:
        evaluate_run(run, device, tasks=tasks, seed=plan.seed, shot=shot)


def _of_fold(run: Run) -> dict[str, Any]:
    """A fold's scores."""
    result = run.evaluation() or {}
    return {"run": run.folder.name, "algorithm": run.experiment.algorithm_name, **scores_of(result)}


def _joined(runs: Sequence[Run]) -> dict[str, Any]:
    """The evaluations of all folds as one, over the groups of all."""
    names = _group_names(runs)
    numbers = {name: number for number, name in enumerate(names)}
    experiment = runs[0].experiment
    figures = scorer(experiment).summarise(records for run in runs for records in _renumbered(run, numbers))
    if "by_group" in figures:
        figures["by_group"] = [row | {"group": names[row["group"]]} for row in figures["by_group"]]
    for name in ("noise_std", "softmax_temperature", "temperature_exponent", "temperature_of"):
        figures.pop(name, None)  # each fold has its own
    algorithms = {run.experiment.algorithm_name for run in runs}
    facts = task_facts(experiment) | {"algorithm": algorithms.pop() if len(algorithms) == 1 else NAME}
    found = [run.evaluation() or {} for run in runs]
    facts |= {"tasks": sum(one["tasks"] for one in found), "samples": found[0]["samples"]}
    transductive = any(run.experiment.transductive for run in runs)
    return {"format": RESULT_FORMAT, **facts, "transductive": transductive, **figures}


def _group_names(runs: Sequence[Run]) -> list[str]:
    """The groups, or classes, of all folds."""
    return sorted({name for run in runs for name in _of_records(run)})


def _of_records(run: Run) -> tuple[str, ...]:
    """The names that the numbers of a run's records stand for."""
    data = run.experiment.data
    pool = data.pool("test")
    return tuple(sorted(set(pool.groups))) if data.draws_within_group else pool.classes


def _renumbered(run: Run, numbers: Mapping[str, int]) -> Iterator[Records]:
    """The records of a run, whose groups have the numbers that they have among all."""
    place = torch.tensor([numbers[name] for name in _of_records(run)])
    for records in run.evaluated_tasks():
        groups: Tensor = records["groups"]
        yield {**records, "groups": place[groups]}


# Baselines


def _with_baselines(runs: Sequence[Run], plan: Plan, shot: int, device: torch.device) -> dict[str, Any]:
    """The baselines on the same tasks, fold by fold, and whether the runs beat the best of them."""
    rows: list[dict[str, Any]] = []
    found: dict[str, list[Run]] = {}
    wanted = dict.fromkeys(baseline for run in runs for baseline in baselines_of(run))
    with ProgressLine("baselines") as line:
        for done, baseline in enumerate(wanted):
            line.show(done, len(wanted), str(baseline))
            try:
                with silenced():
                    fits = [_fitted(run, baseline, device) for run in runs]
                    _evaluate(fits, plan, shot, device)
            except FewsureError as error:
                rows.append({"name": str(baseline), "reason": str(error)})
                continue
            found[str(baseline)] = fits
            rows.append({"name": str(baseline), **scores_of(_joined(fits))})
    if not found:
        return {"baselines": rows}
    best = min((row for row in rows if row["name"] in found), key=lambda row: row[CHOICE]["mean"])["name"]
    return {"baselines": rows, "best_baseline": best, "against_best": _against(runs, found[best])}


def _fitted(run: Run, baseline: Baseline, device: torch.device) -> Run:
    """The run of a baseline on a fold; the fold's own, where `auto` has selected that method."""
    return run if str(baseline) == run.experiment.algorithm_name else fitted(run, baseline, device)


def _against(runs: Sequence[Run], baseline: Sequence[Run]) -> dict[str, Any]:
    """The runs' scores less the baseline's, task by task, and whether they `beat` it by more than chance."""
    numbers = {name: number for number, name in enumerate(_group_names(runs))}
    pairs: dict[str, PairedScores] = {}
    for ours, theirs in zip(runs, baseline, strict=True):
        for one, two in zip(_renumbered(ours, numbers), _renumbered(theirs, numbers), strict=True):
            for name in SCORES:
                if name in one and name in two:
                    pairs.setdefault(name, PairedScores()).add(one[name], two[name], one["groups"])
    tests = {name: pair.test() for name, pair in pairs.items()}
    found: dict[str, Any] = {
        name: {"difference": test["difference"], "p_value": test["p_value"]} for name, test in tests.items()
    }
    judged = tests[CHOICE]
    return found | {"beats": is_significant(judged) and judged["difference"]["mean"] < 0}
