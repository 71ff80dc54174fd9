"""Vital signs of a new patient: the next six hours of a heart rate from its last five readings.

    FEWSURE_DATA=data python examples/patients.py

It reads `tables/physionet-2012.csv.gz` below the data root: readings of the PhysioNet Challenge 2012 with the columns
patient, hours and HR, at irregular times, and empty where another sign was read. A task is a patient. The script trains
on some hundred patients, certifies intervals with others, and predicts patients that took part in neither.
"""

import argparse
import csv
import gzip
import os
from pathlib import Path

import numpy as np

import fewsure

KNOWN, HOURS, COVERAGE = 5, 6.0, 0.9
NEW = 100
"""Patients that neither train nor certify."""


def read_rows(source: Path, patients: int) -> dict[str, list[list[str]]]:
    """Patient → rows of hours and heart rate, in the order of time; a rate may be empty."""
    if not source.is_file():
        raise SystemExit(f"expected {source}, the vital signs, but it is not there: set FEWSURE_DATA to the data root")
    rows: dict[str, list[list[str]]] = {}
    with gzip.open(source, "rt", encoding="utf-8") as lines:
        for row in csv.DictReader(lines):
            rows.setdefault(row["patient"], []).append([row["hours"], row["HR"]])
            if len(rows) > patients + NEW:
                break
    return dict(list(rows.items())[: patients + NEW])


def forecast(learner: fewsure.Learner, rows: list[list[str]]) -> tuple[np.ndarray, ...] | None:
    """Hours, rates, means and ends of intervals of the six hours after a patient's first day, if there are readings."""
    readings = np.array([[float(cell) for cell in row] for row in rows if all(row)])
    hours, rates = readings[:, :1], readings[:, 1]
    known = np.flatnonzero(hours[:, 0] <= 24)[-KNOWN:]
    asked = (hours[:, 0] > 24) & (hours[:, 0] <= 24 + HOURS)
    if len(known) < KNOWN or not asked.any():
        return None
    p = learner.adapt(hours[known], rates[known]).predict(hours[asked], coverage=COVERAGE)
    return hours[asked, 0], rates[asked], p.mean, p.lower, p.upper


def main() -> None:
    """Train, certify, and predict the patients that are left."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--out", type=Path, default=Path("runs/patients"), help="a new folder for the table and the run"
    )
    parser.add_argument("--patients", type=int, default=900, help="patients to train and to certify with")
    parser.add_argument("--updates", type=int, default=600, help="meta-updates; more is better")
    options = parser.parse_args()
    rows = read_rows(
        Path(os.environ.get("FEWSURE_DATA", "data")) / "tables" / "physionet-2012.csv.gz", options.patients
    )
    new = {patient: rows.pop(patient) for patient in list(rows)[-NEW:]}
    options.out.mkdir(parents=True)
    file = options.out / "heart-rates.csv"
    with file.open("w", encoding="utf-8", newline="") as target:
        table = csv.writer(target)
        table.writerow(["patient", "hours", "HR"])
        table.writerows([patient, *row] for patient, readings in rows.items() for row in readings)

    data = fewsure.Table(
        file=str(file),
        task_column="patient",
        target="HR",
        missing="impute",  # rows without a heart rate are left out
        shot=KNOWN,
        query=8,
        forecast=1.0,  # known readings follow one another, and the next ones are asked for
    )
    learner = fewsure.Learner("tnp", data, out=options.out / "run", device="cpu").train(updates=options.updates)
    learner.certify(alpha=1 - COVERAGE)

    found = {patient: forecast(learner, readings) for patient, readings in new.items()}
    predicted = {patient: values for patient, values in found.items() if values is not None}
    patient, (hours, rates, means, lower, upper) = next(iter(predicted.items()))
    print(f"\nPatient {patient}, six hours ahead of {KNOWN} readings:\n")
    print("hour   true  predicted   90 % interval")
    for row in zip(hours, rates, means, lower, upper, strict=True):
        print("{:5.1f}  {:4.0f}     {:5.1f}    {:5.1f} to {:5.1f}".format(*row))
    inside = [np.mean((low <= true) & (true <= high)) for _, true, _, low, high in predicted.values()]
    error = [np.mean(np.abs(mean - true)) for _, true, mean, _, _ in predicted.values()]
    print(
        f"\n{len(predicted)} new patients: {np.mean(error):.1f} beats per minute off on average, and "
        f"{np.mean(inside):.0%} of the readings lie in their interval. The run is in {learner.folder}."
    )


if __name__ == "__main__":
    main()
