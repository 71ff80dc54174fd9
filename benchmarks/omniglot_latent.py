"""SImPa-latent on Omniglot 5-way 1-shot with one thread: one training, and its accuracy at several weights of the KL.

    FEWSURE_DATA=FOLDER .venv/bin/python benchmarks/omniglot_latent.py RUN [--tasks N] [--results FILE]

Trains `simpa-latent` with its recommended settings in the folder RUN, or goes on there. Then evaluates it on test tasks
at each weight. `--results` writes the objects of `fewsure evaluate --json` with the CPU seconds of the training.
"""

import argparse
import json
import time
from pathlib import Path

import torch

from fewsure.pipeline import evaluate_run, start_run, train_run
from fewsure.training.experiment import load_preset
from fewsure.training.runs import Run

KL_WEIGHTS = (3.5e-4, 5e-4, 1e-3, 2e-3, 5e-3, 1e-2, 1.9e-2)
DEVICE = torch.device("cpu")
CLOCK = "cpu_seconds.json"
"""Where a run folder keeps the CPU seconds that its training has taken so far."""


def trained(folder: Path) -> tuple[Run, float]:
    """The run, and the CPU seconds of its whole training, an interrupted one included."""
    run = start_run(folder, load_preset("recommended", "simpa-latent", "omniglot"), resume=True)
    clock = folder / CLOCK
    before = json.loads(clock.read_text()) if clock.exists() else 0.0
    began = time.process_time()
    try:
        train_run(run, DEVICE, checkpoint_every=500)
    finally:
        clock.write_text(json.dumps(before + time.process_time() - began))
    return run, json.loads(clock.read_text())


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("run", type=Path)
    parser.add_argument("--tasks", type=int, default=2000)
    parser.add_argument("--results", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    run, seconds = trained(arguments.run)
    results = []
    for kl_weight in KL_WEIGHTS:
        summary = evaluate_run(run, DEVICE, tasks=arguments.tasks, seed=0, kl_weight=kl_weight)
        results.append(summary | {"preset": "recommended", "cores": 1, "train_cpu_seconds": round(seconds, 1)})
        accuracy, nll, kl = (summary[name]["mean"] for name in ("accuracy", "nll", "kl"))
        print(f"{kl_weight:<8g} accuracy {accuracy:.4f}  NLL {nll:.4f}  ECE {summary['ece']:.4f}  KL {kl:.1f} nats")
    if arguments.results is not None:
        arguments.results.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
