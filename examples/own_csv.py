"""A table of your own: fertility by country and year, as tasks of one country each.

    python examples/own_csv.py

The World Bank's births per woman, 1960–2011, come with statsmodels. A task is a country: from five years that are
known, predict the others. Whole countries are held out, so the predicted one was never seen in training. The script
writes the table, checks it, trains, and predicts a country that was held out, with 90 % intervals.
"""

import argparse
import csv
from importlib.util import find_spec
from pathlib import Path

import numpy as np

import fewsure

AGGREGATES = ("CAA", "LCN", "OED", "OSS", "PSS")
"""Rows of the source that are averages of countries: they would tell of those that are held out."""
KNOWN_YEARS = (1962, 1975, 1984, 1996, 2008)


def write_table(file: Path) -> Path:
    """Write country, year, fertility: one row for each year of a country that the source knows."""
    found = find_spec("statsmodels")
    if found is None or not found.submodule_search_locations:
        raise SystemExit("expected statsmodels, whose table this is, but it is not installed: pip install statsmodels")
    source = Path(found.submodule_search_locations[0]) / "datasets" / "fertility" / "fertility.csv"
    with source.open(encoding="utf-8", newline="") as rows, file.open("w", encoding="utf-8", newline="") as target:
        table = csv.writer(target)
        table.writerow(["country", "year", "fertility"])
        for row in csv.DictReader(rows):
            if row["Country Code"] not in AGGREGATES:
                values = [(year, value) for year, value in row.items() if year.isdigit() and value]
                table.writerows([row["Country Name"], year, value] for year, value in values)
    return file


def read_table(file: Path) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Country → years (n, 1) and fertility (n,)."""
    rows: dict[str, list[tuple[float, float]]] = {}
    with file.open(encoding="utf-8", newline="") as lines:
        for row in csv.DictReader(lines):
            rows.setdefault(row["country"], []).append((float(row["year"]), float(row["fertility"])))
    return {name: (np.array(values)[:, :1], np.array(values)[:, 1]) for name, values in rows.items()}


def main() -> None:
    """Write the table, train, and predict a country that was held out."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/own-csv"), help="a new folder for the table and the run")
    parser.add_argument("--updates", type=int, default=600, help="meta-updates; more is better")
    options = parser.parse_args()
    options.out.mkdir(parents=True)
    file = write_table(options.out / "fertility.csv")
    data = fewsure.Table(file=str(file), task_column="country", target="fertility")

    learner = fewsure.Learner("bmaml", data, out=options.out / "run", device="cpu")
    learner.train(updates=options.updates)

    countries = read_table(file)
    country = data.pool("test").classes[0]
    years, fertility = countries[country]
    known = np.isin(years[:, 0], KNOWN_YEARS)
    adapted = learner.adapt(years[known], fertility[known])
    p = adapted.predict(years[~known])
    low, high = p.quantile(0.05), p.quantile(0.95)
    print(f"{country}, from {int(known.sum())} years that are known:\n")
    print("year   true  predicted   90 % interval")
    for index in range(0, len(low), 6):
        print(
            f"{years[~known][index, 0]:.0f}  {fertility[~known][index]:5.2f}      {p.mean[index]:5.2f}   "
            f"{low[index]:5.2f} to {high[index]:5.2f}"
        )
    inside = np.mean((low <= fertility[~known]) & (fertility[~known] <= high))
    print(f"\n{inside:.0%} of the other {len(low)} years lie in their interval. The run is in {learner.folder}.")


if __name__ == "__main__":
    main()
