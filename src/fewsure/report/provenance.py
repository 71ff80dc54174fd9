"""How a run was made: the command that makes it again, and what it took."""

import dataclasses
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fewsure.core.config import is_learned
from fewsure.errors import FewsureError
from fewsure.training.experiment import DEFAULT_PRESET, GROUPS, RANDOM_START, Experiment, load_preset
from fewsure.training.runs import Run


def provenance(run: Run, update: int, result: Mapping[str, Any], last: Mapping[str, Any]) -> dict[str, str]:
    """Name → text: command, seed, version, device, seconds, data checksum, and the bound's last estimate.

    `update` is the checkpoint's, `result` the evaluation, `last` the last logged line, if there is one.
    """
    training = run.experiment.training
    evaluate = ["fewsure", "evaluate", str(run.folder), "--tasks", str(result["tasks"]), "--seed", str(result["seed"])]
    took = f"{last['seconds']:,.0f} s on {last.get('device', '–')}, fewsure {run.version}" if last else "not logged"
    facts = {
        "command": train_command(run.experiment, run.folder) or "none: it was started from Python or from another run",
        "evaluated by": shlex.join(evaluate),
        "run folder": str(run.folder),
        "preset": run.experiment.preset,
        "updates": f"{update:,} of {training.updates:,}",
        "seed": f"{training.seed} in training, {result['seed']} in evaluation",
        "training": took,
        **evaluation_provenance(result),
    }
    if {"bound", "clipped_loss", "R_i", "R_0"} <= last.keys():
        verdict = "vacuous, since above 1" if last["bound"] >= 1 else "below 1"
        terms = f"{last['clipped_loss']:.3g} (clipped loss) + {last['R_i']:.3g} (R_i) + {last['R_0']:.3g} (R_0)"
        facts["estimated bound"] = f"{last['bound']:.3g} = {terms}; {verdict}; mean over the last logged updates"
    for group, values in run.experiment.record().items():
        if isinstance(values, Mapping):
            options = [f"{name} = {value}" for name, value in values.items() if not isinstance(value, Mapping)]
            facts[f"{group} options"] = ", ".join(options)
    return facts


def evaluation_provenance(result: Mapping[str, Any]) -> dict[str, str]:
    """Name → text of an evaluation."""
    took = f"{result['tasks']:,} tasks in {result['seconds']:,.1f} s on {result['device']}"
    return {
        "evaluation": f"{took}, fewsure {result['version']}",
        "data checksum": str(result.get("data_checksum") or "none: the tasks are generated from the seed"),
    }


def train_command(experiment: Experiment, out: Path) -> str | None:
    """A command that starts the same experiment; None if it started from data in Python or from another run.

    >>> from fewsure.training.experiment import load_preset
    >>> train_command(load_preset("paper", "maml", "sine-line"), Path("runs/a b"))
    "fewsure train maml --preset paper --out 'runs/a b'"
    """
    algorithm, data = experiment.algorithm_name, experiment.data_name
    if data.startswith("given-") or experiment.start != RANDOM_START:
        return None
    try:
        base = load_preset(experiment.preset.split(",")[0], algorithm, data)  # a tuned one is named after its preset
    except FewsureError:
        return None
    words = ["fewsure", "train", algorithm]
    words += [] if data == "sine-line" else ["--data", data]
    words += [] if base.preset == DEFAULT_PRESET else ["--preset", base.preset]
    for group in GROUPS:
        ours, theirs = getattr(experiment, group), getattr(base, group)
        for field in dataclasses.fields(ours):
            value = getattr(ours, field.name)
            if not is_learned(field) and value != getattr(theirs, field.name):
                words += _option(field.name, value)
    return shlex.join([*words, "--out", str(out)])


def _option(name: str, value: Any) -> list[str]:
    flag = name.replace("_", "-")
    if isinstance(value, bool):
        return [f"--{flag}" if value else f"--no-{flag}"]
    if isinstance(value, tuple):
        return [f"--{flag}", *map(str, value)]
    return [f"--{flag}", "none" if value is None else str(value)]
