"""Evaluations as tables: plain text for a terminal or a pipe, and the rows that the page shows."""

from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from typing import Any, NamedTuple

from fewsure.comparison import SIGNIFICANT, Compared
from fewsure.metrics.paired import PairedTest
from fewsure.report.reference import PRINTED_TASKS, Printed, PrintedAccuracy, printed_once

Result = Mapping[str, Any]
"""An object as `evaluate` returns it. Its `label`, if it has one, names its row; else its algorithm does."""

ABSENT = "–"
NOISE_PARTS = {"with_noise": "+", "without_noise": "−"}
"""Calibration that is not the headline protocol's → what was done with the noise on labels."""


class Row(NamedTuple):
    """The cells of a row, padded so that decimal points stand below each other."""

    cells: tuple[str, ...]
    is_headline: bool = False
    """Measured here by the headline protocol; else it is the paper's, or has observation noise added or left out."""


class Table(NamedTuple):
    """Evaluations on one kind of task, and below each the paper's figures, if it prints any."""

    title: str
    headers: tuple[str, ...]
    rows: tuple[Row, ...]

    def is_count(self, column: int) -> bool:
        """Whether a column holds whole numbers."""
        return self.headers[column] in ("tasks", "samples")

    def text(self) -> str:
        """In columns."""
        return in_columns([self.headers, *(row.cells for row in self.rows)], right=self.is_count)


def evaluation_tables(results: Sequence[Result]) -> list[Table]:
    """A table for each kind of task, in the order in which they come first."""
    settings = list(dict.fromkeys(setting(result) for result in results))
    ordered = sorted(results, key=lambda result: settings.index(setting(result)))
    return [_table(title, list(group)) for title, group in groupby(ordered, key=setting)]


def evaluation_table(results: Sequence[Result]) -> str:
    """The tables as text, with their titles where there are several."""
    tables = evaluation_tables(results)
    titled = (f"{table.title}\n{table.text()}" if len(tables) > 1 else table.text() for table in tables)
    return "\n\n".join(titled)


def comparison_table(compared: Compared) -> str:
    """Each score of two runs on the same tasks, and whether the difference is more than chance."""
    first, second = (str(run.folder) for run in (compared.first, compared.second))
    lines: list[tuple[str, ...]] = [("score", first, second, "difference ± 95 %", "t", "p", "")]
    for score, test in compared.tests.items():
        means = (f"{mean['mean']:.4f}" for mean in (test["first"], test["second"]))
        difference = f"{test['difference']['mean']:+.4f} ± {test['difference']['ci95']:.4f}"
        verdict = _verdict(score, test)
        lines.append((score, *means, difference, f"{test['t']:.2f}", f"{test['p_value']:.2g}", verdict))
    return f"{compared.tasks:,} tasks, paired\n{in_columns(lines)}"


def _verdict(score: str, test: PairedTest) -> str:
    if test["p_value"] >= SIGNIFICANT:
        return "no significant difference"
    first_is_better = (test["difference"]["mean"] > 0) == (score == "accuracy")
    return f"the {'first' if first_is_better else 'second'} is better"


def in_columns(lines: Sequence[Sequence[str]], right: Callable[[int], bool] = lambda column: False) -> str:
    """Cells padded to the width of their columns; to the right in the columns that `right` says."""
    widths = [max(len(cell) for cell in column) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if right(column) else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )


def setting(result: Result) -> str:
    """The kind of task that an evaluation is of.

    >>> setting({"data": "omniglot", "way": 5, "shot": 1}), setting({"data": "sine-line", "shot": 5})
    ('omniglot, 5-way 1-shot', 'sine-line, 5-shot')
    """
    way = f"{result['way']}-way " if "way" in result else ""
    return f"{result['data']}, {way}{result['shot']}-shot"


def mean_cell(mean: Mapping[str, float]) -> str:
    """A mean over tasks and the half-width of its interval.

    >>> mean_cell({"mean": 2.0, "ci95": 0.1})
    '  2.000 ± 0.100'
    """
    return f"{mean['mean']:7.3f} ± {mean['ci95']:.3f}"


def _table(title: str, results: Sequence[Result]) -> Table:
    columns = _CLASSIFICATION if "accuracy" in results[0] else _REGRESSION
    rows = []
    for result, printed in zip(results, printed_once(results), strict=True):
        rows.append(Row(tuple(cell(result) for cell in columns.values()), is_headline=True))
        rows += [_noise_row(result, part, sign) for part, sign in NOISE_PARTS.items() if part in result]
        if printed is not None:
            rows.append(_paper_row(printed))
    return Table(title, tuple(columns), tuple(rows))


def _name(result: Result) -> str:
    return str(result.get("label", result["algorithm"]))


def _mean(score: str) -> Callable[[Result], str]:
    return lambda result: mean_cell(result[score])


def _fraction(mean: Mapping[str, float]) -> str:
    return f"{mean['mean']:.4f} ± {mean['ci95']:.4f}"


def _error(score: str) -> Callable[[Result], str]:
    return lambda result: _interval(result[score], result[f"{score}_ci95"])


def _interval(value: float, interval: Sequence[float]) -> str:
    low, high = interval
    return f"{value:.4f} [{low:.4f}, {high:.4f}]"


Columns = Mapping[str, Callable[[Result], str]]
_SIZES: Columns = {
    "method": _name,
    "tasks": lambda result: f"{result['tasks']:,}",
    "samples": lambda result: f"{result['samples']:,}",
}
_ERRORS: Columns = {"ECE [95 %]": _error("ece"), "MCE [95 %]": _error("mce")}
_REGRESSION: Columns = {**_SIZES, "MSE ± 95 %": _mean("mse"), "NLL ± 95 %": _mean("nll"), **_ERRORS}
_CLASSIFICATION: Columns = {
    **_SIZES,
    "accuracy ± 95 %": lambda result: _fraction(result["accuracy"]),
    "NLL ± 95 %": lambda result: _fraction(result["nll"]),
    "Brier ± 95 %": lambda result: _fraction(result["brier"]),
    **_ERRORS,
    "transductive": lambda result: "yes" if result["transductive"] else "no",
}


def _noise_row(result: Result, part: str, sign: str) -> Row:
    noisy = result[part]
    errors = (_interval(noisy[name], noisy[f"{name}_ci95"]) for name in ("ece", "mce"))
    absent = f"{ABSENT:>3}"
    return Row((f"{_name(result)} {sign} noise", f"{result['tasks']:,}", ABSENT, absent, absent, *errors))


def _paper_row(printed: Printed | PrintedAccuracy) -> Row:
    name = f"paper: {printed.name}"
    ece, mce = (ABSENT if error is None else f"{error:.4f}" for error in (printed.ece, printed.mce))
    if isinstance(printed, PrintedAccuracy):
        accuracy = _fraction({"mean": printed.accuracy, "ci95": printed.ci95})
        return Row((name, ABSENT, ABSENT, accuracy, ABSENT, ABSENT, ece, mce, ABSENT))
    return Row((name, f"{PRINTED_TASKS:,}", ABSENT, f"{printed.mse:6.2f}", f"{ABSENT:>3}", ece, mce))
