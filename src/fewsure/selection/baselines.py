"""Baselines without meta-training, on the same unseen tasks of a user's own data: does a run beat them?

Each baseline is a method of fewsure that is fitted to the whole training groups, in seconds. It is a run of its own, in
the folder `baselines` of the other run. The same scorer scores both. Finished work is not done again.
"""

import shutil
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch

from fewsure.algorithms import ALGORITHMS
from fewsure.core.distributed import rank_zero_first
from fewsure.core.progress import ProgressLine, silenced
from fewsure.core.shards import EvaluatedTasks
from fewsure.data import DATA
from fewsure.data.own.colours import colour_histograms
from fewsure.errors import FewsureError
from fewsure.evaluation.compare import SCORES, is_significant
from fewsure.evaluation.metrics.paired import PairedScores
from fewsure.pipeline import evaluate_run, start_run, train_run
from fewsure.training.experiment import DEFAULT_PRESET, load_preset
from fewsure.training.runs import LAST, Run

FOLDER, COLOURS = "baselines", "colours"
CHOICE = "nll"
"""The score by which the best baseline is chosen, and a run judged: it weighs error and sureness together."""
CALIBRATION = ("ece", "ece_ci95", "mce", "mce_ci95")


class Baseline(NamedTuple):
    """A method, and what it sees of an example."""

    method: str
    view: str = ""
    """The pixels of images, or histograms of their colours; empty for all other data."""

    def __str__(self) -> str:
        return f"{self.method} on {self.view}" if self.view else self.method


def baselines_of(run: Run) -> list[Baseline]:
    """The baselines for a run's kind of task; none where tasks are no user's own."""
    data = run.experiment.data
    if data.grouped_by is None:
        return []
    methods = [name for name, kind in ALGORITHMS.items() if kind.baseline and data.kind in kind.kinds]
    views = ("pixels", COLOURS) if data.pictures else ("",)
    found = [Baseline(method, view) for method in methods for view in views]
    return [baseline for baseline in found if baseline.method != run.experiment.algorithm_name or data.pictures]


def with_baselines(run: Run, summary: Mapping[str, Any], device: torch.device) -> dict[str, Any]:
    """The evaluation of a run with its `baselines`, the `best_baseline`, and the run `against_best` on the same tasks.

    It is kept in the run folder. A baseline that cannot be fitted says why, and is not scored.
    """
    rows: list[dict[str, Any]] = []
    runs: dict[str, Run] = {}
    baselines = baselines_of(run)
    if not baselines:
        return dict(summary)
    with ProgressLine("baselines") as line:
        for done, baseline in enumerate(baselines):
            name = str(baseline)
            line.show(done, len(baselines), name)
            began = time.perf_counter()
            try:
                with silenced():
                    found = fitted(run, baseline, device)
                    result = evaluate_run(
                        found, device, **{key: summary[key] for key in ("tasks", "seed", "stream", "shot")}
                    )
            except FewsureError as error:
                rows.append({"name": name, "reason": str(error)})
                continue
            runs[name] = found
            rows.append({"name": name, **scores_of(result), "seconds": round(time.perf_counter() - began, 3)})
        line.show(len(baselines), len(baselines))
    summary = {**summary, "baselines": rows}
    if runs:
        best = min((row for row in rows if row["name"] in runs), key=lambda row: row[CHOICE]["mean"])["name"]
        summary |= {"best_baseline": best, "against_best": _against(run, summary, runs[best])}
    run.save_evaluation(summary, summary.get("checkpoint", LAST))
    return summary


def scores_of(result: Mapping[str, Any]) -> dict[str, Any]:
    """The scores of an evaluation, without what it says of its tasks."""
    means = {name: value for name, value in result.items() if isinstance(value, Mapping) and "mean" in value}
    return means | {name: result[name] for name in CALIBRATION if name in result}


def fitted(run: Run, baseline: Baseline, device: torch.device) -> Run:
    """The run of a baseline on the same data, which is fitted if it is not there or has other options."""
    ours = run.experiment
    data: Any = colour_histograms(ours.data) if baseline.view == COLOURS else ours.data
    kind = next(name for name, kind in DATA.items() if type(data) is kind.data)
    base = load_preset(DEFAULT_PRESET, baseline.method, kind)
    experiment = replace(base, data=data, training=replace(base.training, seed=ours.training.seed))
    folder = run.folder / FOLDER / str(baseline).replace(" ", "-")

    def begun() -> Run:
        try:
            return start_run(folder, experiment, resume=True)
        except FewsureError:
            rank_zero_first(lambda: _remove(folder), lambda: None)
            return start_run(folder, experiment, resume=True)

    found = begun()
    train_run(found, device)
    return found


def _remove(folder: Path) -> None:
    if folder.is_dir():
        shutil.rmtree(folder)


def _against(run: Run, summary: Mapping[str, Any], baseline: Run) -> dict[str, Any]:
    """The run's scores less the baseline's, task by task, and whether it `beats` the baseline by more than chance."""
    pairs = {name: PairedScores() for name in SCORES if name in summary}
    shards = run.evaluation_shards(summary["records"], summary.get("checkpoint", LAST))
    for ours, theirs in zip(EvaluatedTasks(shards, summary["tasks"]), baseline.evaluated_tasks(), strict=True):
        for name, pair in pairs.items():
            pair.add(ours[name], theirs[name], ours.get("groups"))
    tests = {name: pair.test() for name, pair in pairs.items()}
    judged = tests[CHOICE]
    return {
        **{name: {"difference": test["difference"], "p_value": test["p_value"]} for name, test in tests.items()},
        "beats": is_significant(judged) and judged["difference"]["mean"] < 0,
    }
