"""The command that trains a run again."""

import dataclasses
import shlex
from pathlib import Path
from typing import Any

from fewsure.core.config import is_learned
from fewsure.errors import FewsureError
from fewsure.training.experiment import DEFAULT_PRESET, GROUPS, RANDOM_START, Experiment, load_preset


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
