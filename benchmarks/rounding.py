"""Whether bf16 costs accuracy: ProtoNet and MAML on Omniglot, with and without it, on the same seeds and test tasks.

    FEWSURE_DATA=FOLDER .venv/bin/python benchmarks/rounding.py    # 20 minutes; writes results/rounding.json
    make results                                                   # docs/results/speed.md from the JSON

Each training has the budget of `--preset omniglot-cpu`. A row that is done is kept.
"""

import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

import torch

import fewsure
from fewsure.core.files import write_atomically
from fewsure.report.tables import markdown_table

RESULTS = Path(__file__).resolve().parents[1] / "results" / "rounding.json"
METHODS, PRECISIONS, SEEDS, TASKS = ("protonet", "maml"), ("float32", "bf16"), (0, 1, 2), 1000

SECTION = """## What bf16 costs

{table}

Accuracy on {tasks:,} test tasks of Omniglot, 5-way 1-shot, of {seeds} seeds with the budget of `--preset omniglot-cpu`,
from `benchmarks/rounding.py`.
"""


def measured(method: str, precision: Any, seed: int) -> dict[str, Any]:
    """Train and evaluate one."""
    began = time.process_time()
    learner = fewsure.Learner(
        method, data="omniglot", preset="omniglot-cpu", precision=precision, seed=seed, device="cpu"
    )
    learner.train()
    found = learner.evaluate(tasks=TASKS)
    spent = {"threads": torch.get_num_threads(), "cpu_seconds": round(time.process_time() - began, 1)}
    return found | {"method": method, "precision": precision, "train_seed": seed} | spent


def section(rows: Sequence[Mapping[str, Any]]) -> str:
    """The section of docs/results/speed.md."""
    table = []
    for method in METHODS:
        found = [
            [row["accuracy"]["mean"] for row in rows if (row["method"], row["precision"]) == (method, precision)]
            for precision in PRECISIONS
        ]
        cells = [f"{mean(each):.4f} ({min(each):.4f} to {max(each):.4f})" for each in found]
        table.append((method, *cells, f"{mean(found[1]) - mean(found[0]):+.4f}"))
    shown = markdown_table(("method", *(f"{precision}, mean (range)" for precision in PRECISIONS), "difference"), table)
    return SECTION.format(table=shown, tasks=TASKS, seeds=len(SEEDS))


def main() -> None:
    """Add what is missing."""
    rows = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.is_file() else []
    done = {(row["method"], row["precision"], row["train_seed"]) for row in rows}
    for method in METHODS:
        for case in ((method, precision, seed) for seed in SEEDS for precision in PRECISIONS):
            if case not in done:
                rows.append(measured(*case))
                write_atomically(RESULTS, json.dumps(rows, indent=1) + "\n")
                print(*case, f"{rows[-1]['accuracy']['mean']:.4f}", f"{rows[-1]['cpu_seconds']:.0f} s", flush=True)


if __name__ == "__main__":
    main()
