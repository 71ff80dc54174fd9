"""SImPa-latent on Omniglot 5-way 1-shot with one thread: one training, and its accuracy at several weights of the KL.

    FEWSURE_DATA=FOLDER .venv/bin/python benchmarks/omniglot_latent.py RUN [--tasks N] [--results FILE]
    make results                            # docs/results/omniglot.md from the JSON

Trains `simpa-latent` with its recommended settings in the folder RUN, or goes on there. Then evaluates it on test tasks
at each weight. The results are the objects of `fewsure evaluate --json` with the CPU seconds of the training.
"""

import argparse
import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from matplotlib.figure import Figure

from fewsure.core.files import write_atomically
from fewsure.pipeline import evaluate_run, start_run, train_run
from fewsure.report.drawing import PANEL, tidy
from fewsure.report.styles import VERMILLION
from fewsure.report.tables import interval, markdown_table
from fewsure.training.experiment import load_preset
from fewsure.training.runs import Run

RESULTS = Path(__file__).resolve().parents[1] / "results" / "omniglot-latent.json"
KL_WEIGHTS = (3.5e-4, 5e-4, 1e-3, 2e-3, 5e-3, 1e-2, 1.9e-2)
DEVICE = torch.device("cpu")
CLOCK = "cpu_seconds.json"
"""Where a run folder keeps the CPU seconds that its training has taken so far."""

SECTION = """## Accuracy against nats

SImPa-latent with one training of {minutes:.0f} minutes on one core. Its encoder is told the weight of the KL, so an
evaluation chooses how many nats a task may cost. Predictions are inductive, and no temperature is fitted.

{table}

{tasks:,} unseen test tasks of seed {seed}, the same in all rows. ± is a 95 % interval over tasks. The KL is the mean
over tasks, an upper bound on that of the networks. A large weight makes predictions less sure than they are right.

![accuracy against the KL](figures/omniglot-latent.png)

    .venv/bin/python benchmarks/omniglot_latent.py runs/omniglot     # minutes on one core
    fewsure evaluate runs/omniglot --kl-weight 0.01
"""


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


def section(rows: Sequence[Mapping[str, Any]]) -> str:
    """The section of docs/results/omniglot.md."""
    headers = ("`--kl-weight`", "KL, nats", "accuracy", "NLL", "ECE")
    table = [
        (
            f"{row['kl_weight']:g}",
            f"{row['kl']['mean']:.1f}",
            *(interval(row[key]) for key in ("accuracy", "nll")),
            f"{row['ece']:.4f}",
        )
        for row in rows
    ]
    return SECTION.format(**rows[0], minutes=rows[0]["train_cpu_seconds"] / 60, table=markdown_table(headers, table))


def frontier_figure(rows: Sequence[Mapping[str, Any]]) -> Figure:
    """Accuracy and its interval over tasks, against the mean KL."""
    figure = Figure(figsize=(PANEL, 3.2), layout="constrained")
    axes = figure.subplots()
    nats = [row["kl"]["mean"] for row in rows]
    mean, width = ([100 * row["accuracy"][part] for row in rows] for part in ("mean", "ci95"))
    axes.errorbar(nats, mean, width, fmt="o-", color=VERMILLION, capsize=2)
    axes.set(xlabel="KL of a task, nats", ylabel="accuracy, %", title="Omniglot, 5-way 1-shot, inductive")
    tidy(axes)
    return figure


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("run", type=Path)
    parser.add_argument("--tasks", type=int, default=2000)
    parser.add_argument("--results", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    run, seconds = trained(arguments.run)
    results = []
    for kl_weight in KL_WEIGHTS:
        summary = evaluate_run(run, DEVICE, tasks=arguments.tasks, seed=0, kl_weight=kl_weight)
        results.append(summary | {"preset": "recommended", "cores": 1, "train_cpu_seconds": round(seconds, 1)})
        accuracy, nll, kl = (summary[name]["mean"] for name in ("accuracy", "nll", "kl"))
        print(f"{kl_weight:<8g} accuracy {accuracy:.4f}  NLL {nll:.4f}  ECE {summary['ece']:.4f}  KL {kl:.1f} nats")
    write_atomically(arguments.results, json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
