"""Vital signs in intensive care: from a few readings of a new patient, predict the others.

    .venv/bin/python benchmarks/vital_signs.py                       # adds what is missing to results/patients.json
    .venv/bin/python benchmarks/vital_signs.py --signs pressure --methods gp tnp --again
    make results                                                  # the tables and the figure from the JSON

| sign | column of PhysioNet 2012 | readings that a patient must have |
|---|---|---|
| heart-rate | HR | 30 |
| pressure | NISysABP, systolic, by cuff | 20 |
| temperature | Temp | 20 |

Patients are shuffled by the seed: 300 to test, 300 for validation, up to 2,700 to learn from. Readings are as they were
recorded, at irregular times, faults such as 0 °C included. A method learns once for each sign, from 3 to 10 known
readings. Of each test patient 3, 5 or 10 readings are known, the same for every method:

| question | known | asked |
|---|---|---|
| between | random readings | all others |
| ahead | the last ones before a random moment | those of the next six hours |

Scores are means over patients of means over readings; ± is a 95 % interval over patients. A row that is done is kept.
"""

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from matplotlib.figure import Figure
from scipy.stats import norm

import fewsure
from fewsure.core.devices import device_name
from fewsure.core.files import write_atomically
from fewsure.evaluation.metrics.summary import mean_over_tasks
from fewsure.report.drawing import QUIET, WIDTH, plain, tidy
from fewsure.report.styles import BLUE, VERMILLION
from fewsure.report.tables import ABSENT, interval, markdown_table
from fewsure.version import __version__

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "benchmarks"))
from own_tables import SEED, Array, Groups, Normal, Problem, read_groups, split_groups, write_csv  # noqa: E402

RESULTS = ROOT / "results" / "patients.json"
KNOWN = (3, 5, 10)
TOLD = 5
"""Known readings whose scores are kept for each patient."""
AHEAD = 6.0
"""Hours ahead."""
EDGES = (0.0, 1.0, 2.0, 4.0, 6.0, 12.0, 24.0, 48.0)
"""Hours since the last known reading, by which coverage is told apart."""
SCORES = ("mae", "nll", "crps", "coverage_90", "width_90")
LEVELS = (0.05, 0.95)


def sign(title: str, column: str, unit: str, least: int) -> Problem:
    """A vital sign."""
    return Problem(
        title,
        "tables/physionet-2012.csv.gz",
        "patient",
        column,
        unit,
        known=TOLD,
        test=300,
        validation=300,
        inputs=("hours",),
        draws=1,
        train=2700,
        query=least - max(KNOWN),
        least=least,
    )


SIGNS = {
    "heart-rate": sign("Heart rate", "HR", "beats per minute", 30),
    "pressure": sign("Systolic pressure", "NISysABP", "mmHg", 20),
    "temperature": sign("Temperature", "Temp", "°C", 20),
}


# Questions


class Question(NamedTuple):
    """Which readings are known, and which are asked for."""

    known: Array
    asked: Array


def between(hours: Array, known: int, random: np.random.Generator) -> Question:
    """Random readings are known, all others are asked for."""
    order = random.permutation(len(hours))
    return Question(np.sort(order[:known]), np.sort(order[known:]))


def ahead(hours: Array, known: int, random: np.random.Generator) -> Question | None:
    """The last readings before a random moment are known; those of the next hours are asked for, if there are any."""
    possible = [first for first in range(known, len(hours)) if hours[first] - hours[first - 1] <= AHEAD]
    if not possible:
        return None
    first = possible[random.integers(len(possible))]
    later = np.arange(first, len(hours))
    return Question(np.arange(first - known, first), later[hours[later] <= hours[first - 1] + AHEAD])


QUESTIONS: dict[str, Callable[[Array, int, np.random.Generator], Question | None]] = {
    "between": between,
    "ahead": ahead,
}


# Methods


class Scored(NamedTuple):
    """A method's predictions of readings, and what they are worth."""

    mean: Array
    low: Array
    high: Array
    log_density: Array
    crps: Array


Method = Callable[[Array, Array, Array, Array], Scored]
"""(known hours (k, 1), known readings (k,), hours asked for (n, 1), the readings there (n,)) → scores."""


def of_library(name: str, problem: Problem, file: Path, folder: Path | None, options: Mapping[str, Any]) -> Method:
    """A method of fewsure, with the settings that it recommends; half of the training tasks are forecasts."""
    data = fewsure.Table(
        file=str(file),
        task_column="group",
        target="target",
        split_column="split",
        shot=(min(KNOWN), max(KNOWN)),
        query=problem.query,
        forecast=0.5,
    )
    learner = fewsure.Learner(name, data, device="cpu", seed=SEED, out=folder, **options)
    learner.train(quiet=not sys.stderr.isatty())

    def scored(known: Array, values: Array, hours: Array, truth: Array) -> Scored:
        p = learner.adapt(known, values).predict(hours)
        low, high = (p.quantile(level) for level in LEVELS)
        return Scored(p.mean, low, high, p.log_density(truth), p.crps(truth))

    return scored


GAPS = (0.0, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, np.inf)
"""Hours between two readings, by which the spread of carried readings is told apart."""


def carried(train: Groups) -> Method:
    """The last known reading before each moment, or else the next one; its spread by the hours between.

    The spread is the root mean square difference of all pairs of readings of training patients.
    """
    sums, counts = np.zeros(len(GAPS) - 1), np.zeros(len(GAPS) - 1)
    for x, y in train.values():
        first, second = np.triu_indices(len(y), 1)
        gap = np.abs(x[first, 0] - x[second, 0])
        of = np.digitize(gap, GAPS) - 1
        np.add.at(sums, of, (y[first] - y[second]) ** 2)
        np.add.at(counts, of, 1)
    spread = np.sqrt(sums / np.maximum(counts, 1))

    def scored(known: Array, values: Array, hours: Array, truth: Array) -> Scored:
        last = np.maximum(np.searchsorted(known[:, 0], hours[:, 0], side="right") - 1, 0)
        std = spread[np.digitize(np.abs(hours[:, 0] - known[last, 0]), GAPS) - 1]
        p = Normal(values[last], std)
        z = (truth - p.mean) / std
        crps = std * (z * (2 * norm.cdf(z) - 1) + 2 * norm.pdf(z) - 1 / np.sqrt(np.pi))
        low, high = (p.quantile(level) for level in LEVELS)
        return Scored(p.mean, low, high, p.log_density(truth), crps)

    return scored


LAST = "last value"
ROUGH = ("constant", "exponential", "rbf")
"""Kernels for curves without a slope. On validation patients they are ahead of the recommended ones."""
METHODS: dict[str, dict[str, Any]] = {
    LAST: {},
    "mean": {},
    "mixed": {},
    "gp": {"kernels": ROUGH},
    "simpa-latent": {"kernels": ROUGH, "updates": 2000, "lr_warm_up": 300},
    "tnp": {"kernels": ROUGH, "updates": 3000, "tasks": 64},
}
"""Method → options that differ from those it recommends."""


# Scores


def scores_of(found: Scored, truth: Array) -> Array:
    """`SCORES` of each reading, (n, scores)."""
    inside = (found.low <= truth) & (truth <= found.high)
    return np.column_stack(
        [np.abs(found.mean - truth), -found.log_density, found.crps, inside, found.high - found.low]
    ).astype(np.float64)


def hours_since(known: Array, hours: Array) -> Array:
    """Hours since the last known reading before each moment; infinity before the first."""
    last = np.searchsorted(known, hours, side="right") - 1
    return np.where(last < 0, np.inf, hours - known[np.maximum(last, 0)])


def measured(method: Method, groups: Groups, question: str, known: int) -> dict[str, Any]:
    """Scores over patients, and by the hours since the last known reading."""
    each, since, of_readings = [], [], []
    for number, (x, y) in enumerate(groups.values()):
        order = np.argsort(x[:, 0], kind="stable")
        x, y = x[order], y[order]
        asked = QUESTIONS[question](x[:, 0], known, np.random.default_rng((SEED, number, known)))
        if asked is None:
            continue
        scores = scores_of(method(x[asked.known], y[asked.known], x[asked.asked], y[asked.asked]), y[asked.asked])
        each.append(scores.mean(0))
        of_readings.append(scores)
        since.append(hours_since(x[asked.known, 0], x[asked.asked, 0]))
    table = torch.from_numpy(np.stack(each))
    found: dict[str, Any] = {"question": question, "known": known, "patients": len(each)}
    found |= {name: mean_over_tasks(table[:, column]) for column, name in enumerate(SCORES)}
    return found | {"by_hours": by_hours(of_readings, since)} | _kept(table, known)


def _kept(table: torch.Tensor, known: int) -> dict[str, Any]:
    """The NLL of each patient, for differences between methods."""
    nll = table[:, SCORES.index("nll")].tolist()
    return {"nll_of_each": [float(f"{value:.5g}") for value in nll]} if known == TOLD else {}


def by_hours(scores: Sequence[Array], since: Sequence[Array]) -> list[dict[str, Any]]:
    """Scores between each two `EDGES`, and before the first known reading (hours: null), over patients with any."""
    rows = []
    for low, high in [*pairwise(EDGES), (np.inf, np.inf)]:
        chosen = [(low <= hours) & ((hours < high) | (hours == low)) for hours in since]
        means = [values[some].mean(0) for values, some in zip(scores, chosen, strict=True) if some.any()]
        if len(means) < 2:
            continue
        table = torch.from_numpy(np.stack(means))
        rows.append(
            {
                "hours": None if np.isinf(low) else [low, high],
                "patients": len(means),
                "readings": int(sum(some.sum() for some in chosen)),
                **{name: mean_over_tasks(table[:, column]) for column, name in enumerate(SCORES)},
            }
        )
    return rows


def measure(name: str, method: str, runs: Path | None) -> dict[str, Any]:
    """One row: a method on a vital sign."""
    problem = SIGNS[name]
    inputs, groups = read_groups(problem)
    splits = split_groups(problem, groups)
    with tempfile.TemporaryDirectory() as temporary:
        folder = None if runs is None else runs / f"{name}-{method}"
        file = (runs or Path(temporary)) / f"{name}.csv"
        file.parent.mkdir(parents=True, exist_ok=True)
        write_csv(file, inputs, {split: _sorted(part) for split, part in splits.items()})
        began = time.process_time()
        if method == LAST:
            predict = carried(splits["train"])
        else:
            predict = of_library(method, problem, file, folder, METHODS[method])
        trained = time.process_time() - began
    scores = [measured(predict, splits["test"], question, known) for question in QUESTIONS for known in KNOWN]
    return {
        "sign": name,
        "method": method,
        "train_patients": len(splits["train"]),
        "validation_patients": len(splits["validation"]),
        "options": METHODS[method],
        "scores": scores,
        "train_cpu_seconds": round(trained, 1),
        "seconds": round(time.process_time() - began, 1),
        "seed": SEED,
        "version": __version__,
        "device": device_name(torch.device("cpu")),
    }


def _sorted(groups: Groups) -> Groups:
    """Readings in the order of time, as forecasts need them."""
    return {
        name: (x[order], y[order]) for name, (x, y) in groups.items() for order in [np.argsort(x[:, 0], kind="stable")]
    }


def run(results: Path, signs: Sequence[str], methods: Sequence[str], runs: Path | None, *, again: bool) -> None:
    """Measure what is missing, and keep each row as soon as it is done."""
    for name in signs:
        for method in methods:
            rows = json.loads(results.read_text(encoding="utf-8")) if results.is_file() else []
            others = [row for row in rows if (row["sign"], row["method"]) != (name, method)]
            if len(others) < len(rows) and not again:
                continue
            row = measure(name, method, runs)
            for found in row["scores"]:
                print(name, method, *(f"{found[key]}" for key in ("question", "known")), end="  ")
                print(*(f"{key} {found[key]['mean']:.3f}" for key in SCORES), flush=True)
            write_atomically(results, "[\n" + ",\n".join(json.dumps(one) for one in [*others, row]) + "\n]\n")


# The page


def table(rows: Sequence[Mapping[str, Any]], name: str) -> str:
    """The scores of all methods on a sign, from five readings; differences are paired over patients."""
    of_sign = {row["method"]: row for row in rows if row["sign"] == name}
    headers = ("asked", "method", "MAE", "NLL", "NLL less GP's", "CRPS", "in 90 %", "width")
    lines = []
    for question in QUESTIONS:
        gp = torch.tensor(_scores(of_sign["gp"], question, TOLD)["nll_of_each"])
        for method in (method for method in METHODS if method in of_sign):
            found = _scores(of_sign[method], question, TOLD)
            less = mean_over_tasks(torch.tensor(found["nll_of_each"]) - gp)
            line = [question, method if method == LAST else f"`{method}`"]
            line += [interval(found["mae"], 2), interval(found["nll"], 3)]
            line += [ABSENT if method == "gp" else interval(less, 3)]
            line += [f"{found[key]['mean']:.{digits}f}" for key, digits in (("crps", 2), ("coverage_90", 3))]
            lines.append([*line, f"{found['width_90']['mean']:.1f}"])
    return markdown_table(headers, lines)


def _scores(row: Mapping[str, Any], question: str, known: int) -> Mapping[str, Any]:
    found: Mapping[str, Any] = next(
        one for one in row["scores"] if (one["question"], one["known"]) == (question, known)
    )
    return found


HOURS = (0.5, 1, 2, 4, 8, 16, 32)
"""Ticks of the figure."""
DRAWN = {LAST: QUIET, "gp": BLUE, "tnp": VERMILLION}
"""Methods of the figure, and their colours."""


def figure(rows: Sequence[Mapping[str, Any]]) -> Figure:
    """Coverage by the hours since the last reading, and CRPS of forecasts by the number of known readings."""
    drawn = Figure(figsize=(WIDTH, 6.0), layout="constrained")
    axes = drawn.subplots(2, len(SIGNS), squeeze=False)
    for column, (name, problem) in enumerate(SIGNS.items()):
        upper, lower = axes[:, column]
        for row in (row for row in rows if row["sign"] == name and row["method"] in DRAWN):
            style = {"color": DRAWN[row["method"]], "label": plain(row["method"]), "capsize": 2, "fmt": "o-", "ms": 4}
            bins = [one for one in _scores(row, "between", TOLD)["by_hours"] if one["hours"]]
            apart = 1 + 0.06 * (list(DRAWN).index(row["method"]) - 1)  # so that no bar hides another
            middle = [apart * sum(one["hours"]) / 2 for one in bins]
            upper.errorbar(middle, *_drawn([one["coverage_90"] for one in bins]), **style)
            forecasts = [_scores(row, "ahead", known)["crps"] for known in KNOWN]
            lower.errorbar([apart * known for known in KNOWN], *_drawn(forecasts), **style)
        upper.axhline(0.9, color=QUIET, linewidth=1, linestyle="--")
        upper.set(xlabel="hours since the last known reading", title=problem.title, ylim=(0.7, 1.005))
        lower.set(xlabel="known readings", ylabel=f"CRPS, {problem.unit}", ylim=(0, None))
        for one, ticks in ((upper, HOURS), (lower, KNOWN)):
            one.set_xscale("log")
            one.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
            one.minorticks_off()
            tidy(one)
    axes[0, 0].set_ylabel("coverage of 90 % intervals")
    axes[1, 0].legend(frameon=False)
    return drawn


def _drawn(means: Sequence[Mapping[str, float]]) -> tuple[list[float], list[float]]:
    return [one["mean"] for one in means], [one.get("ci95", 0.0) for one in means]


def main() -> None:
    """Measure what is missing."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--signs", nargs="+", choices=list(SIGNS), default=list(SIGNS))
    parser.add_argument("--methods", nargs="+", choices=list(METHODS), default=list(METHODS))
    parser.add_argument("--again", action="store_true", help="measure rows anew that are there")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--runs", type=Path, help="a folder to keep the trained runs in, where they go on")
    options = parser.parse_args()
    torch.set_num_threads(1)
    run(options.results, options.signs, options.methods, options.runs, again=options.again)


if __name__ == "__main__":
    main()
