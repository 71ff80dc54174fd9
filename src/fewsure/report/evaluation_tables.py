"""Evaluations, comparisons and trainings as tables, and the columns that the page shows."""

from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from typing import Any, NamedTuple

from fewsure.evaluation.compare import SIGNIFICANT, Compared
from fewsure.evaluation.metrics.paired import PairedTest
from fewsure.report.reference import Printed, printed_once
from fewsure.report.tables import ABSENT, Table

Result = Mapping[str, Any]
"""An object as `evaluate` returns it. Its `label`, if it has one, names its row; else its algorithm does."""

NOISE_PARTS = {"with_noise": "+", "without_noise": "−"}
"""Calibration under another protocol than the headline's → whether noise on labels is added or left out."""


class Column(NamedTuple):
    """One column of a table of evaluations."""

    header: str
    key: str
    """The name of its value in an evaluation and among the paper's figures."""
    show: Callable[[Result], str]
    """Padded so that decimal points stand below each other."""
    show_printed: Callable[[Printed], str] = str
    is_count: bool = False
    absent: str = ABSENT

    def text(self, result: Result) -> str:
        """The cell of an evaluation, which may lack the value."""
        return self.show(result) if self.key in result else self.absent

    def value(self, result: Result) -> float | None:
        """The value as a number."""
        shown = result.get(self.key)
        shown = shown["mean"] if isinstance(shown, Mapping) else shown
        return float(shown) if isinstance(shown, (int, float)) else None

    def printed(self, printed: Printed | None) -> float | None:
        """The paper's figure, if it prints one."""
        value: float | None = getattr(printed, self.key, None)
        return value

    def printed_text(self, printed: Printed) -> str:
        """The cell of the paper's figures."""
        return self.absent if self.printed(printed) is None else self.show_printed(printed)


def columns_of(result: Result) -> tuple[Column, ...]:
    """The columns for an evaluation's kind of task; the first names its row."""
    return _CLASSIFICATION if "accuracy" in result else _REGRESSION


def evaluation_tables(results: Sequence[Result]) -> list[Table]:
    """A table for each kind of task, in the order in which they come first."""
    settings = list(dict.fromkeys(setting(result) for result in results))
    ordered = sorted(results, key=lambda result: settings.index(setting(result)))
    return [_table(title, list(group)) for title, group in groupby(ordered, key=setting)]


def comparison_table(compared: Compared) -> Table:
    """Each score of two runs on the same tasks, and whether the difference is significant."""
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
    return Table(title, headers, rows, bold=frozenset(bold))


def _better(score: str, test: PairedTest) -> int | None:
    """Which of the two is better; None if the difference is not significant."""
    if test["p_value"] >= SIGNIFICANT:
        return None
    return 0 if (test["difference"]["mean"] > 0) == (score == "accuracy") else 1


def training_table(lines: Sequence[Mapping[str, Any]]) -> Table:
    """The first and the last logged line of a training."""
    shown = [lines[0], lines[-1]] if len(lines) > 1 else list(lines)
    names = [name for name in shown[-1] if name not in ("update", "device", "seconds", "tasks_per_second")]

    def logged(value: Any) -> str:
        return f"{value:.4g}" if isinstance(value, (int, float)) else ABSENT

    rows = [
        (f"{line['update']:,}", f"{line['seconds']:,.0f}", *(logged(line.get(name)) for name in names))
        for line in shown
    ]
    return Table("", ("update", "seconds", *names), rows, right=frozenset({0, 1}))


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
        for shown in (result, *noise_results(result)):
            rows.append((_name(shown), *(column.text(shown) for column in columns[1:])))
        if printed is not None:
            rows.append((f"paper: {printed.name}", *(column.printed_text(printed) for column in columns[1:])))
    return Table(
        title,
        tuple(column.header for column in columns),
        rows,
        right=frozenset(number for number, column in enumerate(columns) if column.is_count),
        aside=frozenset(range(len(rows))) - headlines,
    )


def _name(result: Result) -> str:
    return str(result["label"] if "label" in result else result["algorithm"])


def _count(name: str) -> Column:
    return Column(name, name, lambda result: f"{result[name]:,}", lambda printed: f"{printed.tasks:,}", is_count=True)


def _fraction(mean: Mapping[str, float]) -> str:
    return f"{mean['mean']:.4f} ± {mean['ci95']:.4f}"


def _share(header: str) -> Column:
    def printed_accuracy(printed: Printed) -> str:
        return f"{printed.accuracy:.4f} ± {printed.ci95 or 0.0:.4f}"

    name = header.lower()
    return Column(f"{header} ± 95 %", name, lambda result: _fraction(result[name]), printed_accuracy)


def _mean(name: str) -> Column:
    def show(result: Result) -> str:
        return mean_cell(result[name])

    return Column(f"{name.upper()} ± 95 %", name, show, lambda printed: f"{printed.mse:6.2f}", absent=f"{ABSENT:>3}")


def _error(name: str) -> Column:
    def show(result: Result) -> str:
        low, high = result[f"{name}_ci95"]
        return f"{result[name]:.4f} [{low:.4f}, {high:.4f}]"

    return Column(f"{name.upper()} [95 %]", name, show, lambda printed: f"{getattr(printed, name):.4f}")


_SIZES = (Column("method", "label", _name), _count("tasks"), _count("samples"))
_ERRORS = (_error("ece"), _error("mce"))
_REGRESSION = (*_SIZES, _mean("mse"), _mean("nll"), *_ERRORS)
_CLASSIFICATION = (
    *_SIZES,
    *(_share(header) for header in ("accuracy", "NLL", "Brier")),
    *_ERRORS,
    Column("transductive", "transductive", lambda result: "yes" if result["transductive"] else "no"),
)
