"""Evaluations, comparisons and trainings as tables, and the columns that the page shows."""

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from typing import Any, NamedTuple

from fewsure.evaluation.compare import SIGNIFICANT, Compared, is_significant
from fewsure.evaluation.metrics.paired import PairedTest
from fewsure.evaluation.metrics.summary import NORMAL_BELOW
from fewsure.report.reference import Result, printed_once
from fewsure.report.styles import setting
from fewsure.report.tables import ABSENT, Table, interval

WORST = 5
"""Groups that are named for their errors."""


class Column(NamedTuple):
    """One column of a table of evaluations."""

    header: str
    key: str
    """The name of its value in an evaluation."""
    show: Callable[[Result], str]
    """Padded so that decimal points stand below each other."""
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


def columns_of(result: Result) -> tuple[Column, ...]:
    """The columns for an evaluation's kind of task; the first names its row."""
    if "fixed_classes" in result:
        return _FIXED_CLASSES
    return _CLASSIFICATION if "accuracy" in result else _OWN_REGRESSION if "mae" in result else _REGRESSION


def evaluation_tables(results: Sequence[Result]) -> list[Table]:
    """A table for each kind of task, in the order in which they come first.

    The `label` of a result, if it has one, names its row; else its algorithm does.
    """
    settings = list(dict.fromkeys(setting(result) for result in results))
    ordered = sorted(results, key=lambda result: settings.index(setting(result)))
    return [_table(title, list(group)) for title, group in groupby(ordered, key=setting)]


def _table(title: str, results: Sequence[Result]) -> Table:
    columns = columns_of(results[0])
    rows: list[Result] = []
    headlines = set()
    for result, printed in zip(results, printed_once(results), strict=True):
        named = {"label": result["algorithm"], **result}
        headlines.add(len(rows))
        rows += [named, *noise_results(named), *([printed] if printed else [])]
    rows += baseline_results(results)
    return Table(
        title,
        tuple(column.header for column in columns),
        [[column.text(row) for column in columns] for row in rows],
        right=frozenset(number for number, column in enumerate(columns) if column.is_count),
        aside=frozenset(range(len(rows))) - headlines,
        notes=list(dict.fromkeys(note for result in results for note in notes_of(result))),
    )


def noise_results(result: Result) -> list[Result]:
    """Calibration with noise added, unlike in the headline protocol, as an evaluation with that alone and a label."""
    if "with_noise" not in result:
        return []
    return [{**result["with_noise"], "label": f"{result['label']} + noise", "tasks": result["tasks"]}]


def notes_of(result: Mapping[str, Any]) -> list[str]:
    """The lines below a table of evaluations that a result gives."""
    return [*group_notes(result), *kl_notes(result), *temperature_notes(result), *baseline_notes(result)]


def group_notes(result: Mapping[str, Any]) -> list[str]:
    """The groups that intervals on a user's own data are over, and the assumption of few groups.

    >>> group_notes({"groups": 4, "grouped_by": "person"})
    ['intervals: over 4 groups (person); so few hold 95 % where the scores of groups are normal']
    """
    if "groups" not in result:
        return []
    groups, over = result["groups"], groups_of(result)
    if groups <= (result["way"] if result["grouped_by"] == "classes" else 1):
        return [f"no intervals: {over} say{'s' * (groups == 1)} nothing of others"]
    few = "; so few hold 95 % where the scores of groups are normal" if groups < NORMAL_BELOW else ""
    return [f"intervals: over {over}{few}"]


def kl_notes(result: Mapping[str, Any]) -> list[str]:
    """The nats of a method whose posteriors have a finite KL.

    >>> kl_notes({"algorithm": "simpa-latent", "kl": {"mean": 20.31, "ci95": 0.1}, "kl_weight": 0.01})
    ['simpa-latent at the weight 0.01 of the KL: KL[q ‖ p] 20.3 nats, the mean over tasks']
    """
    if "kl" not in result:
        return []
    weight = f" at the weight {result['kl_weight']:g} of the KL" if "kl_weight" in result else ""
    name = result.get("label", result["algorithm"])
    return [f"{name}{weight}: KL[q ‖ p] {result['kl']['mean']:.1f} nats, the mean over tasks"]


def temperature_notes(result: Mapping[str, Any]) -> list[str]:
    """What a temperature changes, of a result whose outputs it divides.

    >>> plain = {"nll": {"mean": 1.3}, "ece": 0.0512}
    >>> temperature_notes({"algorithm": "maml", "softmax_temperature": 1.42, "untempered": plain})
    ['maml without its temperature of 1.42: NLL 1.300, ECE 0.0512']
    """
    if "untempered" not in result:
        return []
    plain, temperature = result["untempered"], result["softmax_temperature"]
    scores = f"NLL {plain['nll']['mean']:.3f}, ECE {plain['ece']:.4f}"
    name = result.get("label", result["algorithm"])
    return [f"{name} without its temperature of {temperature:.2f}: {scores}"]


def groups_of(result: Mapping[str, Any]) -> str:
    """How many independent groups or classes a result on a user's own data is from.

    >>> groups_of({"groups": 1, "grouped_by": "person"}), groups_of({"groups": 20, "grouped_by": "classes"})
    ('1 group (person)', '20 classes')
    """
    groups, by = result["groups"], result["grouped_by"]
    return f"{groups:,} classes" if by == "classes" else f"{groups:,} group{'s' * (groups != 1)} ({by})"


def worst_groups(result: Mapping[str, Any]) -> list[Table]:
    """The groups with the largest error, of a result on a user's own rows."""
    groups = result.get("by_group", [])
    if len(groups) < 2:
        return []
    scores = ("mae", "rmse", "nll", "coverage_90", "width_90")
    headers = (result["grouped_by"], "tasks", "MAE", "RMSE", "NLL", "in 90 %", "width of 90 %")
    rows = [
        (group["group"], f"{group['tasks']:,}", *(unit_cell({"mean": group[score]}) for score in scores))
        for group in groups[:WORST]
    ]
    return [Table(f"the worst of {len(groups):,} groups", headers, rows, right=frozenset({1}))]


def class_table(result: Mapping[str, Any]) -> list[Table]:
    """How well each class is ranked before the others, where the classes are the same in every task."""
    if "by_class" not in result:
        return []
    rows = [
        (row["class"], *(unit_cell(row[score]) if score in row else ABSENT for score in ("base_rate", "auc", "auprc")))
        for row in result["by_class"]
    ]
    return [Table("", ("class", "share", "AUC ± 95 %", "AUPRC ± 95 %"), rows)]


def baseline_results(results: Sequence[Mapping[str, Any]]) -> list[Result]:
    """The baselines on the tasks of evaluations, each once, as evaluations with a label."""
    found: dict[str, Result] = {}
    for result in results:
        for row in result.get("baselines", []):
            if "reason" not in row:
                facts = {"label": f"{row['name']} (baseline)", "tasks": result["tasks"], "transductive": False}
                found.setdefault(row["name"], {**facts, **row})
    return list(found.values())


def baseline_notes(result: Mapping[str, Any]) -> list[str]:
    """Whether a run beats the best baseline on its tasks, and if not, what to try; and which have no scores."""
    reasons = [f"no {row['name']}: {row['reason']}" for row in result.get("baselines", []) if "reason" in row]
    if "best_baseline" not in result:
        return reasons
    best, against = result["best_baseline"], result["against_best"]
    shown = [name for name in ("nll", "mae", "accuracy") if name in against]
    differences = ", ".join(f"{name.upper()} {_signed(against[name]['difference'])}" for name in shown)
    run = result.get("label", result["algorithm"])
    if against["beats"]:
        return [f"{run} beats the best baseline, {best}: {differences}", *reasons]
    worse = against["nll"]["p_value"] is not None and against["nll"]["p_value"] < SIGNIFICANT
    verdict = "is worse than" if worse else "does not beat"
    advice = f"try `fewsure train {best}` on this data, more groups to train on, or inputs that {best} cannot use"
    return [f"{run} {verdict} the best baseline, {best}: {differences}; {advice}", *reasons]


def _signed(difference: Mapping[str, float]) -> str:
    return f"{'+' * (difference['mean'] >= 0)}{unit_cell(difference)}"


def selection_table(table: Mapping[str, Any]) -> Table:
    """The methods that `auto` has tried, with their scores on the validation tasks that select."""
    scored = [row for row in table["methods"] if "reason" not in row]
    error = next((name for name in ("mae", "accuracy", "mse") if all(name in row for row in scored)), table["score"])
    rows = [
        (
            row["name"],
            unit_cell(row[table["score"]]),
            unit_cell(row[error]),
            f"{row['updates']:,}",
            f"{row['seconds']:.0f}",
        )
        for row in sorted(scored, key=lambda row: row[table["score"]]["mean"])
    ]
    return Table(
        f"methods on {table['tasks']:,} validation tasks",
        ("method", table["score"].upper(), error.upper() if len(error) == 3 else error, "updates", "seconds"),
        rows,
        right=frozenset({3, 4}),
        aside=frozenset(range(1, len(rows))),
        notes=[f"no {row['name']}: {row['reason']}" for row in table["methods"] if "reason" in row],
    )


def comparison_table(compared: Compared) -> Table:
    """Each score of two runs on the same tasks, and whether the difference is significant."""
    first, second = (str(run.folder) for run in (compared.first, compared.second))
    headers = ("score", first, second, "difference ± 95 %", "t", "p", "")
    rows, bold = [], set()
    for number, (score, test) in enumerate(compared.tests.items()):
        means = [_plain(test[name], compared.groups) for name in ("first", "second")]
        found, better = test["difference"], _better(score, test)
        reach = f" ± {_plain({'mean': found['ci95']}, compared.groups)}" if "ci95" in found else ""
        difference = f"{'+' * (found['mean'] >= 0)}{_plain(found, compared.groups)}{reach}"
        t, p = (
            ABSENT if value is None else f"{value:{form}}"
            for value, form in ((test["t"], ".2f"), (test["p_value"], ".2g"))
        )
        verdict = f"the {('first', 'second')[better]} is better" if better is not None else "no significant difference"
        rows.append((score, *means, difference, t, p, verdict))
        bold |= {(number, column) for column in (1, 2) if better in (None, column - 1)}
    one, two = compared.transductive
    unlike = f"; only the {'first' if one else 'second'} predicts a query set as a whole (transductive)"
    title = f"{compared.tasks:,} tasks, paired{unlike if one != two else ''}"
    return Table(title, headers, rows, bold=frozenset(bold), notes=group_notes(compared.groups))


def _plain(mean: Mapping[str, Any], own: Mapping[str, Any]) -> str:
    """A mean alone: to four digits in a user's unit, else to four decimals."""
    return unit_cell({"mean": mean["mean"]}) if own else f"{mean['mean']:.4f}"


def _better(score: str, test: PairedTest) -> int | None:
    """Which of the two is better; None if the difference is not significant."""
    if not is_significant(test):
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


def mean_cell(mean: Mapping[str, float]) -> str:
    """A mean over tasks and the half-width of its interval, if there is one.

    >>> mean_cell({"mean": 2.0, "ci95": 0.1}), mean_cell({"mean": 2.0})
    ('  2.000 ± 0.100', '  2.00')
    """
    return f"{mean['mean']:7.3f} ± {mean['ci95']:.3f}" if "ci95" in mean else f"{mean['mean']:6.2f}"


def _mean(name: str) -> Column:
    return Column(f"{name.upper()} ± 95 %", name, lambda result: mean_cell(result[name]), absent=f"{ABSENT:>3}")


def _share(header: str) -> Column:
    return Column(f"{header} ± 95 %", header.lower(), lambda result: interval(result[header.lower()]))


def unit_cell(mean: Mapping[str, float]) -> str:
    """A mean in a user's unit: to two digits of its interval, or to four of its own.

    >>> unit_cell({"mean": 1234.567, "ci95": 12.3}), unit_cell({"mean": 2.4, "ci95": 0.55})
    ('1235 ± 12', '2.40 ± 0.55')
    >>> unit_cell({"mean": 0.0012345}), unit_cell({"mean": 3.0, "ci95": 1e-7})
    ('0.001234', '3.000 ± 0.000')
    """
    value, reach = mean["mean"], mean.get("ci95", 0.0)
    size = max(abs(value), reach)
    decimals = 3 - math.floor(math.log10(size)) if size else 0
    if reach:
        decimals = min(decimals, 1 - math.floor(math.log10(reach)))
    shown = [f"{number:.{max(decimals, 0)}f}" for number in (value, reach)]
    return " ± ".join(shown if "ci95" in mean else shown[:1])


def _unit(header: str, key: str) -> Column:
    return Column(header, key, lambda result: unit_cell(result[key]))


def _error(name: str) -> Column:
    def show(result: Result) -> str:
        interval = ", ".join(f"{bound:.4f}" for bound in result.get(f"{name}_ci95", ()))
        return f"{result[name]:.4f}" + (f" [{interval}]" if interval else "")

    return Column(f"{name.upper()} [95 %, biased up]", name, show)


def _count(name: str) -> Column:
    return Column(name, name, lambda result: f"{result[name]:,}", is_count=True)


_SIZES = (Column("method", "label", lambda result: str(result["label"])), _count("tasks"), _count("samples"))
_ERRORS = (_error("ece"), _error("mce"))
_REGRESSION = (*_SIZES, _mean("mse"), _mean("nll"), *_ERRORS)
_OWN_REGRESSION = (
    *(_SIZES[:2]),
    *(_unit(f"{name.upper()} ± 95 %", name) for name in ("mae", "rmse", "nll", "crps")),
    *(_unit(f"in {share} %", f"coverage_{share}") for share in (50, 90)),
    *(_unit(f"width of {share} %", f"width_{share}") for share in (50, 90)),
    _error("ece"),
)
_CLASSIFICATION = (
    *_SIZES,
    *(_share(header) for header in ("accuracy", "NLL", "Brier")),
    *_ERRORS,
    Column("transductive", "transductive", lambda result: "yes" if result["transductive"] else "no"),
)
_FIXED_CLASSES = (*_SIZES, *(_share(header) for header in ("accuracy", "NLL", "Brier", "AUC", "AUPRC")), *_ERRORS)
