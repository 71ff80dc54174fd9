"""Evaluations as tables: plain text for a terminal or a pipe, and the rows that the page shows."""

from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from typing import Any, NamedTuple

from fewsure.evaluation.compare import SIGNIFICANT, Compared
from fewsure.evaluation.metrics.paired import PairedTest
from fewsure.report.reference import PRINTED_TASKS, Printed, PrintedAccuracy, printed_once

Result = Mapping[str, Any]
"""An object as `evaluate` returns it. Its `label`, if it has one, names its row; else its algorithm does."""

ABSENT = "–"
NOISE_PARTS = {"with_noise": "+", "without_noise": "−"}
"""Calibration that is not the headline protocol's → what was done with the noise on labels."""


class Column(NamedTuple):
    """What a column shows of an evaluation."""

    header: str
    text: Callable[[Result], str]
    """Padded so that decimal points stand below each other."""
    score: str = ""
    """The name of the score that it shows; empty if it shows none."""
    is_count: bool = False
    paper: str = "{}"
    """How the paper's figure is written."""

    def value(self, result: Result) -> float | None:
        """What is shown, as a number."""
        shown = result.get(self.score or self.header)
        shown = shown["mean"] if isinstance(shown, Mapping) else shown
        return float(shown) if isinstance(shown, (int, float)) else None

    def printed(self, printed: Printed | PrintedAccuracy | None) -> float | None:
        """The paper's figure, if it prints one."""
        return getattr(printed, self.score, None) if self.score else None


class Table(NamedTuple):
    """Lines in columns, as a terminal or a pipe shows them."""

    title: str
    headers: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    counts: frozenset[int] = frozenset()
    """The columns of whole numbers."""
    aside: frozenset[int] = frozenset()
    """The rows that are not the headline: the paper's, or with observation noise added or left out."""
    bold: frozenset[tuple[int, int]] = frozenset()
    """(row, column) of the cells that matter most."""

    def text(self) -> str:
        """In columns of plain text."""
        return in_columns([self.headers, *self.rows], right=lambda column: column in self.counts)


def columns_of(result: Result) -> tuple[Column, ...]:
    """The columns for an evaluation's kind of task."""
    return _CLASSIFICATION if "accuracy" in result else _REGRESSION


def evaluation_tables(results: Sequence[Result]) -> list[Table]:
    """A table for each kind of task, in the order in which they come first."""
    settings = list(dict.fromkeys(setting(result) for result in results))
    ordered = sorted(results, key=lambda result: settings.index(setting(result)))
    return [_table(title, list(group)) for title, group in groupby(ordered, key=setting)]


def comparison_table(compared: Compared) -> Table:
    """Each score of two runs on the same tasks, and whether the difference is more than chance."""
    first, second = (str(run.folder) for run in (compared.first, compared.second))
    headers = ("score", first, second, "difference ± 95 %", "t", "p", "")
    rows, bold = [], set()
    for number, (score, test) in enumerate(compared.tests.items()):
        means = (f"{mean['mean']:.4f}" for mean in (test["first"], test["second"]))
        difference = f"{test['difference']['mean']:+.4f} ± {test['difference']['ci95']:.4f}"
        better = _better(score, test)
        verdict = f"the {('first', 'second')[better]} is better" if better is not None else "no significant difference"
        rows.append((score, *means, difference, f"{test['t']:.2f}", f"{test['p_value']:.2g}", verdict))
        bold |= {(number, column) for column in (1, 2) if better in (None, column - 1)}
    one, two = compared.transductive
    unlike = f"; only the {'first' if one else 'second'} predicts a query set as a whole (transductive)"
    title = f"{compared.tasks:,} tasks, paired{unlike if one != two else ''}"
    return Table(title, headers, tuple(rows), bold=frozenset(bold))


def _better(score: str, test: PairedTest) -> int | None:
    """Which of the two is better; none if the difference is not significant."""
    if test["p_value"] >= SIGNIFICANT:
        return None
    return 0 if (test["difference"]["mean"] > 0) == (score == "accuracy") else 1


def training_table(lines: Sequence[Mapping[str, Any]]) -> Table:
    """The first and the last logged line of a training: where it began, and where it ended."""
    shown = [lines[0], lines[-1]] if len(lines) > 1 else list(lines)
    names = [name for name in shown[-1] if name not in ("update", "device", "seconds", "tasks_per_second")]
    rows = [
        (f"{line['update']:,}", f"{line['seconds']:,.0f}", *(_logged(line.get(name)) for name in names))
        for line in shown
    ]
    return Table("", ("update", "seconds", *names), tuple(rows), counts=frozenset({0, 1}))


def _logged(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, (int, float)) else ABSENT


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


def noise_results(result: Result) -> list[Result]:
    """Calibration with other noise than the headline protocol's, as evaluations with that alone and a label."""
    return [
        {**result[part], "label": f"{_name(result)} {sign} noise", "tasks": result["tasks"]}
        for part, sign in NOISE_PARTS.items()
        if part in result
    ]


def _table(title: str, results: Sequence[Result]) -> Table:
    columns = columns_of(results[0])
    rows: list[tuple[str, ...]] = []
    headlines = set()
    for result, printed in zip(results, printed_once(results), strict=True):
        headlines.add(len(rows))
        rows.append(tuple(column.text(result) for column in columns))
        rows += [tuple(cell_text(column, noisy) for column in columns) for noisy in noise_results(result)]
        if printed is not None:
            rows.append(_paper_row(printed, columns))
    return Table(
        title,
        tuple(column.header for column in columns),
        tuple(rows),
        counts=frozenset(number for number, column in enumerate(columns) if column.is_count),
        aside=frozenset(range(len(rows))) - headlines,
    )


def cell_text(column: Column, result: Result) -> str:
    """What a column shows of an evaluation that may lack it."""
    known = column.header == "method" or column.value(result) is not None
    return column.text(result) if known else ABSENT if column.is_count else f"{ABSENT:>3}"


def _name(result: Result) -> str:
    return str(result["label"] if "label" in result else result["algorithm"])


def _count(name: str) -> Column:
    return Column(name, lambda result: f"{result[name]:,}", is_count=True)


def _fraction(mean: Mapping[str, float]) -> str:
    return f"{mean['mean']:.4f} ± {mean['ci95']:.4f}"


def _mean(header: str, score: str, text: Callable[[Mapping[str, float]], str], paper: str) -> Column:
    return Column(f"{header} ± 95 %", lambda result: text(result[score]), score, paper=paper)


def _error(score: str) -> Column:
    def text(result: Result) -> str:
        low, high = result[f"{score}_ci95"]
        return f"{result[score]:.4f} [{low:.4f}, {high:.4f}]"

    return Column(f"{score.upper()} [95 %]", text, score, paper="{:.4f}")


_SIZES = (Column("method", _name), _count("tasks"), _count("samples"))
_ERRORS = (_error("ece"), _error("mce"))
_REGRESSION = (*_SIZES, _mean("MSE", "mse", mean_cell, "{:6.2f}"), _mean("NLL", "nll", mean_cell, "{}"), *_ERRORS)
_CLASSIFICATION = (
    *_SIZES,
    *(_mean(header, header.lower(), _fraction, "{:.4f}") for header in ("accuracy", "NLL", "Brier")),
    *_ERRORS,
    Column("transductive", lambda result: "yes" if result["transductive"] else "no"),
)


def _paper_row(printed: Printed | PrintedAccuracy, columns: Sequence[Column]) -> tuple[str, ...]:
    tasks = f"{PRINTED_TASKS:,}" if isinstance(printed, Printed) else ABSENT
    cells = [f"paper: {printed.name}", tasks, ABSENT]
    for column in columns[len(cells) :]:
        value = column.printed(printed)
        if value is None:
            cells.append(f"{ABSENT:>3}" if column.score in ("mse", "nll") else ABSENT)
        elif isinstance(printed, PrintedAccuracy) and column.score == "accuracy":
            cells.append(_fraction({"mean": value, "ci95": printed.ci95 or 0.0}))
        else:
            cells.append(column.paper.format(value))
    return tuple(cells)
