"""The first thing to run: SImPa-latent and MAML on sine-line, compared on the same unseen tasks."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import torch

from fewsure.core.files import write_atomically
from fewsure.pipeline import evaluate_run, start_run, train_run
from fewsure.report.page import write_report
from fewsure.training.experiment import load_preset


def quickstart(out: Path, device: torch.device, *, tasks: int, seed: int) -> list[dict[str, Any]]:
    """Train and evaluate both, write `results.json` and the report; the evaluations."""
    runs = []
    for algorithm in ("simpa-latent", "maml"):
        preset = load_preset("quickstart", algorithm, "sine-line")
        experiment = dataclasses.replace(preset, training=dataclasses.replace(preset.training, seed=seed))
        run = start_run(out / algorithm, experiment, resume=True)
        train_run(run, device)
        runs.append(run)
    results = [evaluate_run(run, device, tasks=tasks, seed=seed) for run in runs]
    write_atomically(out / "results.json", json.dumps(results, indent=1) + "\n")
    write_report([run.folder for run in runs], out / "report.html", device, tasks=tasks, seed=seed)
    return results
