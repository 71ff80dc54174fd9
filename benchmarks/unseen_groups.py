"""Do 90 % intervals hold 90 % of what new groups have? Over random splits of the groups of four real tables.

    .venv/bin/python benchmarks/unseen_groups.py                  # adds what is missing to results/coverage.json
    .venv/bin/python benchmarks/unseen_groups.py --tables school --methods gp --again
    make results                                                  # the tables on the pages, from the JSON

Each split shuffles the groups of a table of `own_tables.py` anew: a fifth are new, three tenths calibrate, two
validate, and the rest are learned from. Known rows of a new group are drawn at random, and all its others predicted.

| intervals | come from | promise |
|---|---|---|
| own | the 5 % and the 95 % quantile of the predicted density | none |
| conformal | `learner.certify()` on the K calibration groups, then `predict(x, coverage=0.9)` | at least 90 % |
| about | the same with `coverage=0.9 * K / (K + 1)`, as if no group could be stranger than all K | at least so much |

MAPIE's conformal intervals around gradient boosting are for rows, and know nothing of groups. They too have the
calibration groups. Coverage and width are means over new groups, then over splits; ± is one standard error over splits.
"""

import argparse
import json
import re
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

import fewsure
from fewsure.core.devices import device_name
from fewsure.core.files import write_atomically
from fewsure.report.drawing import QUIET, WIDTH, tidy
from fewsure.report.styles import BLUE, GREEN, ORANGE
from fewsure.report.tables import ABSENT, markdown_table
from fewsure.version import __version__

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "benchmarks"))
from own_tables import PROBLEMS, Array, Groups, Problem, Rows, Splits, mapie, read_groups, write_csv  # noqa: E402

RESULTS = ROOT / "results" / "coverage.json"
SPLITS, COVERAGE = 20, 0.9
NEW, CALIBRATION, VALIDATION = 0.2, 0.3, 2
"""Shares of the groups, and a number of them."""
MOST = 600
"""Groups of a table, drawn anew for each split."""

Intervals = tuple[Array, Array]
Predict = Callable[[Rows, Array], dict[str, Intervals]]
"""(known rows, inputs) → intervals by their kind."""


def of_library(name: str) -> Callable[[Splits], Predict]:
    """A method's own intervals, and those that calibration groups certify."""

    def learn(splits: Splits) -> Predict:
        data = fewsure.Table(
            file=str(splits.file),
            task_column="group",
            target="target",
            split_column="split",
            shot=splits.known,
            query=splits.query,
        )
        learner = fewsure.Learner(name, data, device="cpu")
        learner.train(quiet=True)
        groups = learner.certify(quiet=True)["conformal"]["tasks"]
        asked = {"conformal": COVERAGE, "about": COVERAGE * groups / (groups + 1)}

        def predict(known: Rows, x: Array) -> dict[str, Intervals]:
            adapted = learner.adapt(*known)
            found = {kind: adapted.predict(x, coverage=coverage) for kind, coverage in asked.items()}
            low, high = (found["about"].quantile((1 + sign * COVERAGE) / 2) for sign in (-1, 1))
            return {"own": (low, high)} | {kind: (p.lower, p.upper) for kind, p in found.items()}

        return predict

    return learn


def rowwise(splits: Splits) -> Predict:
    """MAPIE on gradient boosting."""
    learned = mapie(splits).method

    def predict(known: Rows, x: Array) -> dict[str, Intervals]:
        p = learned(known, x)
        low, high = ((1 + sign * COVERAGE) / 2 for sign in (-1, 1))
        return {"conformal": (p.quantile(low), p.quantile(high))}

    return predict


METHODS: dict[str, Callable[[Splits], Predict]] = {
    **{name: of_library(name) for name in ("gp", "mixed", "ridge")},
    "MAPIE on gradient boosting": rowwise,
}


def parts(groups: Groups, split: int) -> dict[str, Groups]:
    """The groups of a random split, by their part."""
    names = sorted(groups)
    np.random.default_rng(split).shuffle(names)
    names = names[:MOST]
    new, calibration = (round(share * len(names)) for share in (NEW, CALIBRATION))
    ends = np.cumsum([0, new, calibration, VALIDATION, len(names) - new - calibration - VALIDATION])
    order = ("new", "test", "validation", "train")
    return {part: {name: groups[name] for name in names[ends[n] : ends[n + 1]]} for n, part in enumerate(order)}


def measure(problem: Problem, groups: Groups, split: int, names: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Coverage and mean width of each kind of interval of each method, over the new groups of a split."""
    some, found = parts(groups, split), {}
    new = some.pop("new")
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of other packages
        file = Path(folder) / "table.csv"
        write_csv(file, tuple(f"x{n}" for n in range(next(iter(new.values()))[0].shape[1])), some)
        for name in names:
            # Peers calibrate with the groups that certify ours.
            predict = METHODS[name](Splits(some["train"], some["test"], problem.known, problem.query, file))
            found[name] = counted(predict, new, problem.known, split)
    return found


def counted(predict: Predict, groups: Groups, known: int, split: int) -> dict[str, Any]:
    """Means over groups of the share of rows that an interval holds, and of its width."""
    rows: dict[str, list[tuple[float, float]]] = {}
    for number, (x, y) in enumerate(groups.values()):
        order = np.random.default_rng((split, number)).permutation(len(y))  # the same for every method
        chosen, asked = order[:known], order[known:]
        for kind, (low, high) in predict((x[chosen], y[chosen]), x[asked]).items():
            inside = (low <= y[asked]) & (y[asked] <= high)
            rows.setdefault(kind, []).append((float(inside.mean()), float((high - low).mean())))
    return {
        kind: dict(zip(("coverage", "width"), np.mean(values, 0).tolist(), strict=True))
        for kind, values in rows.items()
    }


def summary(found: Sequence[dict[str, dict[str, Any]]], name: str) -> dict[str, Any]:
    """Means over splits, with one standard error."""
    kinds = found[0][name]
    return {
        kind: {
            key: {"mean": mean(values), "error": stdev(values) / len(values) ** 0.5}
            for key in ("coverage", "width")
            for values in [[one[name][kind][key] for one in found]]
        }
        for kind in kinds
    }


def run(results: Path, tables: Sequence[str], names: Sequence[str], splits: int, *, again: bool) -> None:
    """Measure the methods that are missing on each table, and keep a table's as soon as they are done."""
    for table in tables:
        there = {row["method"] for row in _read(results) if row["table"] == table}
        wanted = [name for name in names if again or name not in there]
        if not wanted:
            continue
        began, problem = time.process_time(), PROBLEMS[table]
        problem = replace(problem, query=problem.least - problem.known)
        _, groups = read_groups(problem)
        found = []
        for split in range(splits):
            found.append(measure(problem, groups, split, wanted))
            print(table, split, {name: one["conformal"] for name, one in found[-1].items()}, flush=True)
        facts = {
            "known": problem.known,
            "splits": splits,
            "groups": {part: len(some) for part, some in parts(groups, 0).items()},
            "seconds": round(time.process_time() - began, 1),  # of the whole table
            "seed": 0,  # of the first split; the others follow
            "version": __version__,
            "mapie": version("mapie"),
            "device": device_name(torch.device("cpu")),
        }
        kept = [row for row in _read(results) if row["table"] != table or row["method"] not in wanted]
        kept += [{"table": table, "method": name, **summary(found, name), **facts} for name in wanted]
        order = [(table, name) for table in PROBLEMS for name in METHODS]
        kept.sort(key=lambda row: order.index((row["table"], row["method"])))
        write_atomically(results, "[\n" + ",\n".join(json.dumps(one) for one in kept) + "\n]\n")


def _read(results: Path) -> list[dict[str, Any]]:
    return json.loads(results.read_text(encoding="utf-8")) if results.is_file() else []


KINDS = {"own": "its own density", "conformal": "certified, at least 90 %", "about": "certified, about 90 %"}


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Coverage ± two standard errors over splits, and the mean width, of each kind of interval."""
    headers = ["table", "method", *(part for kind in KINDS.values() for part in (kind, "width"))]
    lines = []
    for row in rows:
        cells = [short(PROBLEMS[row["table"]]), row["method"]]
        for kind in KINDS:
            found = row.get(kind)
            cells += [_share(found["coverage"]), f"{found['width']['mean']:.3g}"] if found else [ABSENT, ABSENT]
        lines.append(cells)
    return markdown_table(headers, lines)


def short(problem: Problem) -> str:
    """The first words of a table's title."""
    return re.split("[:,]", problem.title)[0]


def _share(found: Mapping[str, float]) -> str:
    """With two standard errors."""
    return f"{found['mean']:.3f} ± {2 * found['error']:.3f}"


COLOURS = {"gp": BLUE, "mixed": GREEN, "ridge": ORANGE, "MAPIE on gradient boosting": QUIET}
SHAPES = {"own": "o", "conformal": "s", "about": "D"}


def figure(rows: Sequence[Mapping[str, Any]]) -> Figure:
    """Coverage and width of each kind of interval, in a panel for each table."""
    tables = list(dict.fromkeys(row["table"] for row in rows))
    drawn = Figure(figsize=(WIDTH, 3.6), layout="constrained")
    for axes, name in zip(drawn.subplots(1, len(tables), squeeze=False)[0], tables, strict=True):
        for row in (row for row in rows if row["table"] == name):
            for kind in (kind for kind in KINDS if kind in row):
                share, width = row[kind]["coverage"], row[kind]["width"]["mean"]
                style = {"color": COLOURS[row["method"]], "fmt": SHAPES[kind], "capsize": 2}
                axes.errorbar(share["mean"], width, xerr=2 * share["error"], **style)
        axes.axvline(COVERAGE, color=QUIET, linewidth=1, linestyle="--")
        problem = PROBLEMS[name]
        axes.set(yscale="log", xlabel="coverage on new groups", title=short(problem))
        axes.set_ylabel(f"width, {problem.unit}")
        tidy(axes)
    handles = [Line2D([], [], color=colour, linewidth=3, label=name) for name, colour in COLOURS.items()]
    handles += [Line2D([], [], color=QUIET, marker=SHAPES[kind], linestyle="", label=KINDS[kind]) for kind in KINDS]
    drawn.legend(handles=handles, loc="outside lower center", ncols=len(handles), frameon=False, fontsize="small")
    return drawn


def main() -> None:
    """Measure what is missing."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tables", nargs="+", choices=list(PROBLEMS), default=list(PROBLEMS))
    parser.add_argument("--methods", nargs="+", choices=list(METHODS), default=list(METHODS))
    parser.add_argument("--splits", type=int, default=SPLITS)
    parser.add_argument("--again", action="store_true", help="measure methods anew that are there")
    parser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    run(options.results, options.tables, options.methods, options.splits, again=options.again)


if __name__ == "__main__":
    main()
