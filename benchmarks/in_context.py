"""Methods that read the known examples, on sine-line and on heart rates of patients in intensive care.

    .venv/bin/python benchmarks/in_context.py sine-line tnp      # adds to results/in-context.json
    .venv/bin/python benchmarks/in_context.py heart-rate tnp     # minutes on one core
    make results                                                 # docs/results/in-context.md from the JSON

Any method will do, with its recommended settings or with the options of `fewsure train` that follow.

Sine-line: the 1,000 test tasks of the record of `fewsure reproduce regression`.

Heart rates: PhysioNet 2012, `tables/physionet-2012.csv.gz` in the data root. A task is a patient, the input the time.
The method is trained on a CSV file by `fewsure train METHOD --data table`. Of each patient that it is scored on, five
random readings are known and all others are predicted. Errors are means over patients.
"""

import argparse
import csv
import gzip
import json
import math
import resource
import tempfile
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

import fewsure
from fewsure.cli.main import main as command
from fewsure.core.files import write_atomically
from fewsure.core.places import data_root
from fewsure.reproduce.targets import TARGETS
from fewsure.version import __version__

RESULTS = Path(__file__).resolve().parents[1] / "results" / "in-context.json"
TABLE = Path("tables") / "physionet-2012.csv.gz"
LEAST, KNOWN, QUERY = 30, 5, 25
"""Readings that a patient has at least; those that are known; queries of a training task."""
SIZES = {"test": 300, "validation": 300, "train": 2700}
"""Patients of each split."""
SEED, TASKS = 0, 1000

Patients = dict[str, np.ndarray]
"""Readings (n, 2) of each patient: hours since admission, and beats a minute."""


def sine_line(method: str, options: list[str], split: str, run: Path) -> dict[str, Any]:
    """Scores on unseen tasks of five examples."""
    if split != "test":
        raise SystemExit("sine-line is scored on its test tasks; leave --split out")
    cost, seed = train([method, *options], run), TARGETS["regression"].test_seed
    found = fewsure.load(run, device="cpu").evaluate(tasks=TASKS, seed=seed)
    names = ("tasks", "shot", "mse", "nll", "crps", "coverage_90", "ece", "seconds")
    return cost | {name: found[name] for name in names} | {"test_seed": seed}


def heart_rate(method: str, options: list[str], split: str, run: Path) -> dict[str, Any]:
    """Scores on the patients of a split, in beats a minute."""
    splits, file = read_patients(data_root() / TABLE), run.with_suffix(".csv")
    write_table(splits, file)
    columns = ["--task-column", "patient", "--target", "rate", "--split-column", "split", "--query", str(QUERY)]
    cost = train([method, "--data", "table", "--file", str(file), *columns, *options], run)
    sizes = {name: len(patients) for name, patients in splits.items()}
    return cost | scores(fewsure.load(run, device="cpu"), splits[split]) | {"known": KNOWN, "patients": sizes}


PROBLEMS: dict[str, Callable[..., dict[str, Any]]] = {"sine-line": sine_line, "heart-rate": heart_rate}


def train(arguments: list[str], run: Path) -> dict[str, Any]:
    """Train as from the command line; what it took."""
    before = processor_seconds()
    if code := command(["train", *arguments, "--seed", str(SEED), "--device", "cpu", "--out", str(run)]):
        raise SystemExit(code)
    training = fewsure.load(run, device="cpu").experiment.training
    spent = {"train_cpu_seconds": round(processor_seconds() - before, 1), "threads": torch.get_num_threads()}
    return {"updates": training.updates, "training_tasks": training.tasks} | spent


def read_patients(file: Path) -> dict[str, Patients]:
    """The patients of each split: those with enough readings, shuffled by the seed."""
    readings = defaultdict(list)
    with gzip.open(file, "rt", encoding="utf-8") as lines:
        for row in csv.DictReader(lines):
            if row["HR"]:
                readings[row["patient"]].append((float(row["hours"]), float(row["HR"])))
    names = sorted(name for name, rows in readings.items() if len(rows) >= LEAST)
    np.random.default_rng(SEED).shuffle(names)
    splits, left = {}, iter(names)
    for split, size in SIZES.items():
        splits[split] = {name: np.array(readings[name]) for _, name in zip(range(size), left, strict=False)}
    return splits


def write_table(splits: dict[str, Patients], file: Path) -> None:
    """A user's table: one line for each reading."""
    with file.open("w", newline="", encoding="utf-8") as out:
        writer = csv.writer(out)
        writer.writerow(["patient", "hours", "rate", "split"])
        for split, patients in splits.items():
            for name, rows in patients.items():
                writer.writerows([name, hours, rate, split] for hours, rate in rows)


def scores(learner: fewsure.Learner, patients: Patients) -> dict[str, Any]:
    """Mean absolute error of the mean, NLL of a reading, and the coverage of 90 % intervals."""
    generator, found = np.random.default_rng(SEED), []
    for rows in patients.values():
        order = generator.permutation(len(rows))
        known, asked = (rows[np.sort(part)] for part in (order[:KNOWN], order[KNOWN:]))
        p, true = learner.adapt(known[:, :1], known[:, 1]).predict(asked[:, :1]), asked[:, 1]
        inside = (p.quantile(0.05) < true) & (true < p.quantile(0.95))
        found.append((np.abs(p.mean - true).mean(), -p.log_density(true).mean(), inside.mean()))
    values = np.array(found)
    margins = 1.96 * values.std(0, ddof=1) / math.sqrt(len(values))
    pairs = zip(("mae", "nll", "coverage_90"), values.mean(0).tolist(), margins.tolist(), strict=True)
    return {name: {"mean": mean, "ci95": margin} for name, mean, margin in pairs}


def processor_seconds() -> float:
    """Of this process so far."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def main() -> None:
    """Measure one method on one problem, and put its row in the place of an older one."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("problem", choices=list(PROBLEMS))
    parser.add_argument("method", help="options of `fewsure train` may follow")
    parser.add_argument("--split", choices=("test", "validation"), default="test", help="the patients of the scores")
    parser.add_argument("--results", type=Path, default=RESULTS, help="where the row goes")
    given, options = parser.parse_known_args()
    key = {"problem": given.problem, "method": given.method, "options": options, "split": given.split}
    with tempfile.TemporaryDirectory() as folder:
        found = PROBLEMS[given.problem](given.method, options, given.split, Path(folder) / "run")
    row = key | found | {"seed": SEED, "version": __version__, "device": "cpu"}
    rows = json.loads(given.results.read_text(encoding="utf-8")) if given.results.is_file() else []
    rows = [other for other in rows if any(other[name] != value for name, value in key.items())]
    write_atomically(given.results, json.dumps([*rows, row], indent=1) + "\n")
    print(json.dumps(row, indent=1))


if __name__ == "__main__":
    main()
