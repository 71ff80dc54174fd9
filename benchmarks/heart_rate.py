"""Heart rates of patients in intensive care: five readings are known, the others are predicted.

    .venv/bin/python benchmarks/heart_rate.py --only tnp        # minutes on one core; adds to results/heart-rate.json

The table is PhysioNet 2012's, `tables/physionet-2012.csv.gz` in the data root: a task is a patient, the input is the
time. Each method is trained on a CSV file by `fewsure train METHOD --data table`, with the settings that it recommends
for a user's own regression, or with the options that follow. Of each patient that it is scored on, five random readings
are known. Errors are means over patients.
"""

import argparse
import csv
import gzip
import json
import math
import resource
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import torch

import fewsure
from fewsure.cli.main import main as command
from fewsure.core.devices import device_name
from fewsure.core.files import write_atomically
from fewsure.core.places import data_root
from fewsure.version import __version__

RESULTS = Path(__file__).resolve().parents[1] / "results" / "heart-rate.json"
TABLE = Path("tables") / "physionet-2012.csv.gz"
LEAST, KNOWN, QUERY = 30, 5, 25
"""Readings that a patient has at least; those that are known; queries of a training task."""
SIZES = {"test": 300, "validation": 300, "train": 2700}
"""Patients of each split."""
SEED = 0

Patients = dict[str, np.ndarray]
"""Readings (n, 2) of each patient: hours since admission, and beats a minute."""


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
        splits[split] = {name: np.array(readings[name]) for name, _ in zip(left, range(size), strict=False)}
    return splits


def write_table(splits: dict[str, Patients], file: Path) -> None:
    """What a user would have: one line for each reading."""
    with file.open("w", newline="", encoding="utf-8") as out:
        writer = csv.writer(out)
        writer.writerow(["patient", "hours", "rate", "split"])
        for split, patients in splits.items():
            for name, rows in patients.items():
                writer.writerows([name, hours, rate, split] for hours, rate in rows)


def scores(learner: fewsure.Learner, patients: Patients) -> dict[str, Any]:
    """Mean absolute error of the mean and NLL of a reading, in beats a minute, and the coverage of 90 % intervals."""
    generator = np.random.default_rng(SEED)
    found = []
    for rows in patients.values():
        order = generator.permutation(len(rows))
        (x, y), (at, true) = (
            (rows[part, :1], rows[part, 1]) for part in (np.sort(order[:KNOWN]), np.sort(order[KNOWN:]))
        )
        p = learner.adapt(x, y).predict(at)
        inside = (p.quantile(0.05) < true) & (true < p.quantile(0.95))
        found.append((np.abs(p.mean - true).mean(), -p.log_density(true).mean(), inside.mean()))
    values = np.array(found)
    margins = 1.96 * values.std(0, ddof=1) / math.sqrt(len(values))
    names = ("mae", "nll", "coverage_90")
    return {
        name: {"mean": float(mean), "ci95": float(margin)}
        for name, mean, margin in zip(names, values.mean(0), margins, strict=True)
    }


def seconds() -> float:
    """Processor seconds of this process so far."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def measure(method: str, options: list[str], splits: dict[str, Patients], split: str) -> dict[str, Any]:
    """Train as from the command line, then score."""
    with tempfile.TemporaryDirectory() as folder:
        file, run = Path(folder) / "heart-rate.csv", Path(folder) / "run"
        write_table(splits, file)
        columns = ["--task-column", "patient", "--target", "rate", "--split-column", "split", "--query", str(QUERY)]
        asked = ["train", method, "--data", "table", "--file", str(file), *columns, *options]
        before = seconds()
        if code := command([*asked, "--seed", str(SEED), "--device", "cpu", "--out", str(run)]):
            raise SystemExit(code)
        trained = seconds() - before
        learner = fewsure.load(run, device="cpu")
        row = {"method": method, "options": options, "updates": learner.experiment.training.updates}
        row |= {"split": split} | scores(learner, splits[split])
    facts = {"seed": SEED, "version": __version__, "device": device_name(torch.device("cpu"))}
    cost = {"train_cpu_seconds": round(trained, 1), "threads": torch.get_num_threads()}
    return row | cost | facts | {"patients": {split: len(patients) for split, patients in splits.items()}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", required=True, help="the method to measure; options of `fewsure train` may follow")
    parser.add_argument("--results", type=Path, default=RESULTS, help="where the rows go")
    parser.add_argument("--split", choices=list(SIZES), default="test", help="the patients that scores are of")
    known, options = parser.parse_known_args()
    row = measure(known.only, options, read_patients(data_root() / TABLE), known.split)
    rows = json.loads(known.results.read_text()) if known.results.is_file() else []
    rows = [other for other in rows if any(other[name] != row[name] for name in ("method", "options", "split"))]
    write_atomically(known.results, json.dumps([*rows, row], indent=1) + "\n")
    print(json.dumps(row, indent=1))


if __name__ == "__main__":
    main()
