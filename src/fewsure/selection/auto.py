"""`auto`: fit and train the methods that suit a user's data, and let the validation groups select one of them.

1. The closed-form methods are fitted, in seconds.
2. The others are trained in turn. Each gets an equal part of what is left of the budget, and as many updates as fit.
3. Every one is scored on the same validation tasks. The least mean negative log-likelihood is selected.

The run folder is the selected method's, like any other run. Inside it, `baselines` holds all of them, and `auto.json`
the whole table. A method that is there already is not trained or scored again.
"""

import json
import math
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from fewsure.algorithms import ALGORITHMS
from fewsure.core import streams
from fewsure.core.config import from_json
from fewsure.core.devices import device_name
from fewsure.core.files import write_atomically
from fewsure.core.progress import ProgressLine, silenced
from fewsure.core.signals import Stopped
from fewsure.data import Data
from fewsure.errors import FewsureError, require, require_known
from fewsure.evaluation.calibrate import calibrated
from fewsure.evaluation.evaluate import evaluate
from fewsure.pipeline import start_run, train_run, validation_score
from fewsure.selection.baselines import FOLDER, scores_of
from fewsure.training.experiment import DEFAULT_PRESET, Experiment, has_preset, load_preset
from fewsure.training.runs import Run
from fewsure.training.update import MetaUpdate, new_optimiser
from fewsure.types import Kind
from fewsure.version import __version__

NAME = "auto"
TABLE = "auto.json"
TRAINED: dict[Kind, tuple[str, ...]] = {
    "regression": ("tnp", "simpa-latent", "maml"),
    "classification": ("protonet", "simpa-latent", "maml"),
}
"""The methods that are trained by updates, in the order in which a budget is spent."""
BUDGET = "5m"
"""The time of all trainings together."""
SCORE = "nll"
TASKS, SEED = 500, 2
"""The validation tasks that select. Other seeds have the tasks that stop a training, or fit its noise."""
UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0}
LEAST_UPDATES = 100
WARM_UP, TIMED = 2, 10
"""Updates that are not timed, and then the updates that are."""

Row = dict[str, Any]
"""A method's scores on validation tasks, updates and seconds; or its name and the `reason` why it has no scores."""
Table = dict[str, Any]
"""The content of auto.json: the selected method, how it was selected, and the row of each method."""


def read_budget(text: str | float) -> float:
    """Seconds, from a number or from a text such as `90s`, `5m` or `1h`.

    >>> read_budget("5m"), read_budget(90)
    (300.0, 90.0)
    """
    value = str(text).strip()
    unit = UNITS.get(value[-1:], 1.0)
    try:
        seconds = float(value.rstrip("".join(UNITS)) if value[-1:] in UNITS else value) * unit
    except ValueError:
        seconds = math.nan
    require(0 < seconds < math.inf, "budget", "a time above 0, such as 90s, 5m or 1h", text)
    return seconds


def candidates(data_name: str, data: Data, *, methods: Sequence[str] = (), seed: int = 0) -> dict[str, Experiment]:
    """The recommended experiments of methods on this data: the closed-form ones first, then the trained ones.

    `methods` names the wanted ones, in any order; by default all that suit the data.
    """
    closed = [name for name, kind in ALGORITHMS.items() if kind.baseline and data.kind in kind.kinds]
    known = [*closed, *(name for name in TRAINED[data.kind] if name not in closed)]
    for name in methods:
        require_known("method", name, known)
    found = {}
    for name in known:
        if (not methods or name in methods) and has_preset(DEFAULT_PRESET, name, data_name):
            preset = load_preset(DEFAULT_PRESET, name, data_name)
            found[name] = replace(preset, data=data, training=replace(preset.training, seed=seed))
    return found


def select(
    folder: Path, experiments: Mapping[str, Experiment], device: torch.device, *, budget: float, resume: bool = False
) -> tuple[Run, Table]:
    """Fit and train experiments, by their methods, within a budget of seconds; the run of the best, and the table."""
    _require_free(folder, resume)
    table = kept(folder)
    if table is None:
        rows = _tried(folder, experiments, device, budget)
        scored = [row for row in rows if "reason" not in row]
        if not scored:
            reasons = "; ".join(f"{row['name']}: {row['reason']}" for row in rows)
            raise FewsureError(f"expected a method that can learn from this data, but none can ({reasons})")
        best = min(scored, key=lambda row: row[SCORE]["mean"])["name"]
        table = {"selected": best, "score": SCORE, "stream": "validation", "tasks": TASKS, "seed": SEED}
        table |= {"budget": budget, "version": __version__, "device": device_name(device), "methods": rows}
        _keep(folder, best, table)
    best = table["selected"]
    if best not in experiments:
        raise FewsureError(f"{folder} has selected {best}, which is not among the methods now; choose another --out")
    there = _there(folder / FOLDER / best, experiments[best])  # it has the tasks that were given in Python, too
    return Run(folder, there.experiment, there.version), table


def _tried(folder: Path, experiments: Mapping[str, Experiment], device: torch.device, budget: float) -> list[Row]:
    """Each experiment's scores and seconds, or the reason why it has no scores."""
    rows: list[Row] = []
    waiting, left = sum(experiment.training.updates > 0 for experiment in experiments.values()), budget
    for done, (name, experiment) in enumerate(experiments.items()):
        with ProgressLine(NAME) as line:
            line.show(done, len(experiments), f"{name}  {_best_so_far(rows)}")
        is_trained = experiment.training.updates > 0
        try:
            with silenced(done > 0):  # doubts about the data are the same for all
                run = _started(folder / FOLDER / name, experiment, device, left / max(1, waiting))
            with silenced(not is_trained):
                last = train_run(run, device)
            rows.append({"name": name, **_scores(run, device), "updates": last["update"], "seconds": last["seconds"]})
            left -= last["seconds"] if is_trained else 0.0
        except Stopped as stopped:
            raise Stopped(folder, stopped.exit_code - 128) from stopped
        except FewsureError as error:
            rows.append({"name": name, "reason": str(error)})
        waiting -= is_trained
    with ProgressLine(NAME) as line:
        line.show(len(experiments), len(experiments), _best_so_far(rows))
    return rows


def _started(folder: Path, experiment: Experiment, device: torch.device, seconds: float) -> Run:
    """The run of an experiment with as many updates as fit into so many seconds, or the one that is there."""
    if (folder / "config.json").is_file():
        return _there(folder, experiment)
    planned = experiment.training.updates
    if planned:
        affordable = int(seconds / _seconds_per_update(experiment, device))
        if affordable < LEAST_UPDATES:
            raise FewsureError(f"{max(0, affordable)} updates fit into what is left of the budget; raise --budget")
        experiment = replace(experiment, training=replace(experiment.training, updates=min(planned, affordable)))
    return start_run(folder, experiment, resume=False)


def _there(folder: Path, experiment: Experiment) -> Run:
    """The run of an experiment that has begun, with the updates that it was given then."""
    updates = Run.open(folder).experiment.training.updates
    return start_run(folder, replace(experiment, training=replace(experiment.training, updates=updates)), resume=True)


def _seconds_per_update(experiment: Experiment, device: torch.device) -> float:
    """Measured on first meta-parameters, with its share of the scores on validation tasks."""
    experiment = replace(experiment, data=experiment.data.prepared())
    generator = streams.generator(experiment.training.seed, "init")
    meta = experiment.algorithm.init(experiment.model, generator)
    meta = {part: {name: value.to(device) for name, value in params.items()} for part, params in meta.items()}
    update = MetaUpdate(experiment, meta, new_optimiser(meta, experiment.training, device), device)

    def seconds(times: int) -> float:
        began = time.perf_counter()
        for number in range(times):
            update(number)
        update.means()  # waits for the device
        return (time.perf_counter() - began) / times

    seconds(WARM_UP)
    of_update = seconds(TIMED)
    every = experiment.training.keep_best
    if not every:
        return of_update
    began = time.perf_counter()
    with silenced():
        validation_score(experiment, device)(meta)
    return of_update + (time.perf_counter() - began) / every


def _scores(run: Run, device: torch.device) -> dict[str, Any]:
    """A trained run's scores on the validation tasks that select."""
    meta = run.load(device, run.chosen).meta
    summary, _ = evaluate(calibrated(run, device), meta, tasks=TASKS, seed=SEED, stream="validation")
    return scores_of(summary)


def _best_so_far(rows: Sequence[Row]) -> str:
    scored = [row for row in rows if "reason" not in row]
    best = min(scored, key=lambda row: row[SCORE]["mean"], default=None)
    return "" if best is None else f"best so far: {best['name']}, validation {SCORE.upper()} {best[SCORE]['mean']:.4g}"


def _require_free(folder: Path, resume: bool) -> None:
    """Refuse a folder that holds something else than a selection to go on with."""
    if folder.exists() and not folder.is_dir():
        raise FewsureError(f"expected --out to be a folder, but {folder} is a file; choose another")
    there = {path.name for path in folder.iterdir()} if folder.is_dir() else set()
    if there and not resume:
        raise FewsureError(
            f"expected --out to be a new or empty folder, but {folder} is not; choose another, or --resume"
        )
    if "config.json" in there and TABLE not in there:
        raise FewsureError(f"{folder} holds a run of one method; choose another --out")


def kept(folder: Path) -> Table | None:
    """The table of a selection that has ended; None of a run of one method."""
    if not all((folder / name).is_file() for name in ("config.json", TABLE)):
        return None
    try:
        table = from_json((folder / TABLE).read_text(encoding="utf-8"))
    except ValueError as error:
        raise FewsureError(f"{folder / TABLE} is damaged ({error}); choose another --out") from error
    return dict(table)


def _keep(folder: Path, best: str, table: Table) -> None:
    """Make the folder the run of the best: its options come last, so that it is whole or no run."""
    chosen = folder / FOLDER / best
    for path in sorted(chosen.iterdir()):
        if path.is_dir():
            shutil.copytree(path, folder / path.name, dirs_exist_ok=True)
        elif path.name != "config.json":
            write_atomically(folder / path.name, path.read_bytes())
    write_atomically(folder / TABLE, json.dumps(table, indent=1) + "\n")
    write_atomically(folder / "config.json", (chosen / "config.json").read_bytes())
