r"""Which method is first on few groups? Every group of three real tables is predicted by a learner of other groups.

    .venv/bin/python benchmarks/folds.py                    # adds what is missing to results/folds.json
    make results                                            # the tables on the pages, from the JSON

It is `fewsure crossval auto` on School, Parkinson and births, with the roles that `own_tables.py` gives to columns:

    fewsure crossval auto --data table --file school.csv --task-column school --target score \
        --shot 8 --budget 30s --methods mean ridge mixed gp boosting tnp --out runs/school

In each fold `auto` trains within its budget, and validation groups of the other folds select a method. Baselines are
fitted on the same folds and scored on the same tasks. Scores are means over all groups; ± is a 95 % interval over them.
"""

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.stats import rankdata

import fewsure
from fewsure.core.devices import device_name
from fewsure.core.files import write_atomically
from fewsure.report.tables import interval, markdown_table
from fewsure.version import __version__

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "benchmarks"))
from own_tables import PROBLEMS, SEED, read_groups, write_csv  # noqa: E402
from unseen_groups import short  # noqa: E402

RESULTS = ROOT / "results" / "folds.json"
TABLES = ("births", "parkinson", "school")
FOLDS, TASKS = 5, 1000
BUDGET = "30s"
METHODS = ("mean", "ridge", "mixed", "gp", "boosting", "tnp")
SCORES = ("nll", "mae", "crps", "coverage_90", "width_90")


def measure(table: str, budget: str) -> dict[str, Any]:
    """The scores of `auto` and of the baselines over all groups of a table."""
    problem, began, wall = PROBLEMS[table], time.process_time(), time.perf_counter()
    inputs, groups = read_groups(problem)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "table.csv"
        write_csv(file, inputs, {"any": groups})
        data = fewsure.Table(
            file=str(file),
            task_column="group",
            target="target",
            features=inputs,
            shot=problem.known,
            query=problem.query,
        )
        learner = fewsure.Learner("auto", data, device="cpu", budget=budget, methods=METHODS, seed=SEED)
        found = learner.crossval(folds=FOLDS, tasks=TASKS, quiet=not sys.stderr.isatty())
    rows = {"auto": found} | {row["name"]: row for row in found["baselines"]}
    selected = {fold["algorithm"] for fold in found["by_fold"]}
    rows |= dict.fromkeys(selected, found) if len(selected) == 1 else {}
    return {
        "table": table,
        "groups": len(groups),
        "known": problem.known,
        "folds": FOLDS,
        "tasks": found["tasks"],
        "budget": budget,
        "selected": [fold["algorithm"] for fold in found["by_fold"]],
        "methods": {name: {score: row[score] for score in SCORES} for name, row in rows.items()},
        "best_baseline": found["best_baseline"],
        "against_best": found["against_best"],
        "cpu_seconds": round(time.process_time() - began, 1),
        "seconds": round(time.perf_counter() - wall, 1),
        "seed": SEED,
        "version": __version__,
        "device": device_name(torch.device("cpu")),
    }


def ranks(record: Sequence[Mapping[str, Any]], score: str = "nll") -> dict[str, float]:
    """The mean rank over tables of each method that all of them have, 1 for the lowest; the best first."""
    names = [name for name in record[0]["methods"] if all(name in row["methods"] for row in record)]
    places = [rankdata([row["methods"][name][score]["mean"] for name in names]) for row in record]
    means = dict(zip(names, np.mean(places, 0).tolist(), strict=True))
    return dict(sorted(means.items(), key=lambda entry: entry[1]))


def table(record: Sequence[Mapping[str, Any]]) -> str:
    """The NLL of each method over all groups of each table, and its mean rank."""
    headers = ("method", *(f"{short(PROBLEMS[row['table']])}, {row['groups']} groups" for row in record))
    lines = [
        (f"`{name}`", *(interval(row["methods"][name]["nll"], 3) for row in record), f"{place:.3g}")
        for name, place in ranks(record).items()
    ]
    return markdown_table((*headers, "mean rank"), lines)


def main() -> None:
    """Measure what is missing."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tables", nargs="+", choices=TABLES, default=list(TABLES))
    parser.add_argument("--budget", default=BUDGET, help="the time of all trainings of a fold")
    parser.add_argument("--again", action="store_true", help="measure tables anew that are there")
    parser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    for table in options.tables:
        rows = json.loads(options.results.read_text(encoding="utf-8")) if options.results.is_file() else []
        others = [row for row in rows if row["table"] != table]
        if len(others) < len(rows) and not options.again:
            continue
        row = measure(table, options.budget)
        print(table, row["selected"], {name: round(one["nll"]["mean"], 4) for name, one in row["methods"].items()})
        write_atomically(options.results, "[\n" + ",\n".join(json.dumps(one) for one in [*others, row]) + "\n]\n")


if __name__ == "__main__":
    main()
