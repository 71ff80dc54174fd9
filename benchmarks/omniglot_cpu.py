"""Omniglot 5-way 1-shot on one CPU core: heads on conv4, on the first test tasks of the record.

    FEWSURE_DATA=FOLDER .venv/bin/python benchmarks/omniglot_cpu.py METHOD …
    make results                            # docs/results/omniglot.md from the JSON

Trains each method with a part of the updates of `--preset omniglot-cpu`, in one thread, and evaluates it. Its row in
the results takes the place of an older one. A row is the object of `fewsure evaluate --json` with processor seconds.
"""

import argparse
import json
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

import fewsure
from fewsure.cli.main import main as command
from fewsure.core.files import write_atomically
from fewsure.report.styles import display_name
from fewsure.report.tables import interval, markdown_table
from fewsure.reproduce.targets import TARGETS
from fewsure.training.experiment import load_preset

RESULTS = Path(__file__).resolve().parents[1] / "results" / "omniglot-cpu.json"
PRESET, UPDATES, TASKS = "omniglot-cpu", 300, 1000

SECTION = """## Heads on one CPU core

{updates} updates of `--preset omniglot-cpu` take a minute or less of one core. They show how heads differ on the same
`conv4`, not what they can reach. SimpleShot is fitted to pixels and has no network.

{table}

1. The first {tasks:,} test tasks of the record above (seed {seed}). ± is a 95 % interval over tasks.
2. One training of seed 0. Learning rates are those of ProtoNet; they were not tuned for each head.
3. Training is in processor seconds of one thread of a shared machine, with decoding the images.
4. No temperature is fitted. `ridge` starts with a small scale, which these updates do not move far enough.
5. Normalisation sees the query set, as in the record above.
6. MetaOptNet was scored twice on these tasks. Its scale then started at 1 and has started at 10 since, as in R2-D2.

    .venv/bin/python benchmarks/omniglot_cpu.py METHOD …
"""


def measured(method: str, run: Path) -> dict[str, Any]:
    """Train and evaluate one method."""
    updates = str(min(UPDATES, load_preset(PRESET, method, "omniglot").training.updates))
    began = time.process_time()
    options = ["--data", "omniglot", "--preset", PRESET, "--updates", updates, "--device", "cpu", "--out", str(run)]
    if code := command(["train", method, *options]):
        raise SystemExit(code)
    spent, learner = time.process_time() - began, fewsure.load(run, device="cpu")
    found, training = learner.evaluate(tasks=TASKS, seed=TARGETS["omniglot"].test_seed), learner.experiment.training
    facts = {"preset": PRESET, "updates": training.updates, "training_tasks": training.tasks}
    return found | facts | {"threads": torch.get_num_threads(), "train_cpu_seconds": round(spent, 1)}


def section(rows: Sequence[Mapping[str, Any]]) -> str:
    """The section of docs/results/omniglot.md."""
    table = [
        (
            display_name(row["algorithm"]),
            *(interval(row[key]) for key in ("accuracy", "nll", "brier")),
            f"{row['ece']:.4f}",
            f"{row['updates']:,}",
            f"{row['train_cpu_seconds']:,.0f} s",
        )
        for row in sorted(rows, key=lambda row: row["nll"]["mean"])
    ]
    headers = ("method", "accuracy", "NLL", "Brier", "ECE", "updates", "training")
    return SECTION.format(**rows[0] | {"updates": UPDATES}, table=markdown_table(headers, table))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("methods", nargs="+")
    parser.add_argument("--results", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    for method in arguments.methods:
        with tempfile.TemporaryDirectory() as folder:
            row = measured(method, Path(folder) / "run")
        there = json.loads(arguments.results.read_text(encoding="utf-8")) if arguments.results.is_file() else []
        rows = [other for other in there if other["algorithm"] != method]
        write_atomically(arguments.results, json.dumps([*rows, row], indent=1) + "\n")
        scores = {name: row[name]["mean"] for name in ("accuracy", "nll")} | {"ece": row["ece"]}
        print(f"{method:<12}" + "  ".join(f"{name} {score:.4f}" for name, score in scores.items()), flush=True)


if __name__ == "__main__":
    main()
