"""Exam scores of a school that is new: from eight pupils that are known, predict the others, and the school's level.

    FEWSURE_DATA=data python examples/schools.py

It reads `tables/school.csv.gz` below the data root: 15,362 pupils of 139 London schools (ILEA, 1985 to 1987), with
their score and columns on the pupil, the school and the year. A task is a school. The script cross-validates a mixed
model over most schools and certifies its intervals. Then it looks at 20 schools that took no part.
"""

import argparse
import csv
import gzip
import os
from pathlib import Path

import numpy as np

import fewsure

KNOWN, COVERAGE = 8, 0.9
NEW = 20
"""Schools that neither train nor certify."""

Pupils = tuple[np.ndarray, np.ndarray]


def read_schools(source: Path) -> dict[str, Pupils]:
    """School → columns (n, D) and scores (n,) of its pupils."""
    if not source.is_file():
        raise SystemExit(f"expected {source}, the exam scores, but it is not there: set FEWSURE_DATA to the data root")
    rows: dict[str, list[list[float]]] = {}
    with gzip.open(source, "rt", encoding="utf-8") as lines:
        for row in csv.DictReader(lines):
            rows.setdefault(row.pop("school"), []).append([float(value) for value in row.values()])
    return {school: (np.array(values)[:, :-1], np.array(values)[:, -1]) for school, values in rows.items()}


def main() -> None:
    """Score the method, certify it, and look at the schools that are left."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/schools"), help="a new folder for the run")
    options = parser.parse_args()
    schools = read_schools(Path(os.environ.get("FEWSURE_DATA", "data")) / "tables" / "school.csv.gz")
    names = sorted(schools)
    np.random.default_rng(0).shuffle(names)
    data = fewsure.regression_tasks([schools[name] for name in names[NEW:]], shot=KNOWN, query=12)
    learner = fewsure.Learner("mixed", data, out=options.out, device="cpu")

    scores = learner.crossval(tasks=300, baselines=False)
    print(
        f"{scores['groups']} schools, each predicted by a learner of others: {scores['mae']['mean']:.1f} points off on "
        f"average, and {scores['coverage_90']['mean']:.0%} of the scores lie in their 90 % interval."
    )
    learner.train()
    learner.certify(alpha=1 - COVERAGE)

    random, inside = np.random.default_rng(0), []
    print(f"\nschool  pupils  mean score  expected before any result  after {KNOWN} results")
    for name in sorted(names[:NEW], key=int):
        x, y = schools[name]
        order = random.permutation(len(y))
        known, asked = order[:KNOWN], order[KNOWN:]
        before = learner.adapt(x[:0], y[:0]).predict(x[asked]).mean.mean()
        p = learner.adapt(x[known], y[known]).predict(x[asked], coverage=COVERAGE)
        inside.append(np.mean((p.lower <= y[asked]) & (y[asked] <= p.upper)))
        print(f"{name:>6}  {len(asked):6}  {y[asked].mean():10.1f}  {before:26.1f}  {p.mean.mean():15.1f}")
    print(f"\n{np.mean(inside):.0%} of the scores of {NEW} new schools lie in their certified interval.", end=" ")
    print(f"The run is in {learner.folder}.")


if __name__ == "__main__":
    main()
