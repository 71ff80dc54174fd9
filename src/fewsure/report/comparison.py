"""How runs compare: the paper's Figure 2 (regression) and Figure 3 (classification)."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from fewsure.report.drawing import PAPER, QUIET, WIDTH, Drawing, legend_below, legend_height, plain, tidy
from fewsure.report.evaluation_tables import baseline_results
from fewsure.report.reference import Result, printed_once
from fewsure.report.styles import GREY, RunStyle

EASY = 0.9
"""If every accuracy is above this, bars show errors, since bars of accuracies would look alike."""


def comparison_drawings(
    name: str, title: str, results: Sequence[Result], styles: Sequence[RunStyle]
) -> tuple[Drawing, Drawing, Drawing]:
    """Score, reliability and calibration errors of evaluations on one kind of task, each as a drawing.

    The paper's figures stand below ours, in the same colour.
    """
    classifies = "accuracy" in results[0]
    rows = _rows(results, styles)
    scores = _scores(rows, classifies)

    def drawing(panel: str, says: str, shown: Sequence[_Row], drawn: str, height: float) -> tuple[Axes, Drawing]:
        note = "The paper prints none for these tasks and methods."
        if any(row.is_paper for row in shown):
            note = f"The paper's printed values are {drawn}; where there are none, the paper has none."
        caption = f"{title}: {says}, as in the paper's Figure {3 if classifies else 2}. {note}"
        if "grouped_by" in results[0]:
            baselines = " Grey bars are baselines, which need no meta-training." if len(shown) > len(results) else ""
            caption = f"{title}: {says}.{baselines}"
        made = Drawing(f"{panel}_{name}", caption, height)
        return made.figure.add_subplot(), made

    def bars(panel: str, says: str, bars: _Bars, each: float) -> Drawing:
        shown = [row for row in rows if row.values.keys() & {kind.name for kind in bars.kinds}]
        height = 1.3 + each * max(len(shown), 2)
        axes, made = drawing(panel, f"{says} with 95 % intervals", shown, "hatched bars", height)
        _draw_bars(axes, made, shown, bars)
        return made

    reliable = [row for row in rows if row.expected]
    height = 3.7 + legend_height(len(reliable) + 1, 2)
    axes, reliability = drawing("reliability", "reliability", reliable, "dotted lines", height)
    legend_below(reliability.figure, _draw_reliability(axes, reliability, reliable, classifies), columns=2)
    measured = "accuracy" if scores is ACCURACY else "error"
    return (
        bars(measured, f"{measured} on unseen tasks", scores, 0.42),
        reliability,
        bars("calibration", "expected and maximum calibration error", CALIBRATION, 0.62),
    )


def comparison_figure(results: Sequence[Result], styles: Sequence[RunStyle]) -> Figure:
    """The same three panels side by side in one figure."""
    classifies = "accuracy" in results[0]
    rows = _rows(results, styles)
    drawing = Drawing("comparison", "", max(4.2, 0.5 * len(rows) + 2.2), WIDTH)
    scores = drawing.figure.add_subplot(1, 3, 1)
    _draw_bars(scores, drawing, rows, _scores(rows, classifies))
    errors = drawing.figure.add_subplot(1, 3, 2, sharey=scores)
    _draw_bars(errors, drawing, rows, CALIBRATION)
    errors.tick_params(labelleft=False)
    reliability = drawing.figure.add_subplot(1, 3, 3)
    legend_below(drawing.figure, _draw_reliability(reliability, drawing, rows, classifies), columns=5)
    return drawing.figure


class _Kind(NamedTuple):
    """One kind of bar in a panel."""

    name: str
    text: str
    """How its number is written."""
    offset: float = 0.0
    height: float = 0.7


class _Bars(NamedTuple):
    """A panel of bars."""

    title: str
    unit: str
    kinds: tuple[_Kind, ...]


MAE = _Bars("Error (lower is better)", "mean absolute error (unit of the target)", (_Kind("mae", "{:.3g}"),))
MSE = _Bars("Error (lower is better)", "mean squared error (unit of y, squared)", (_Kind("mse", "{:.2f}"),))
ACCURACY = _Bars("Accuracy (higher is better)", "share of query points that are right", (_Kind("accuracy", "{:.4f}"),))
WRONG = _Bars("Error (lower is better)", "share of query points that are wrong", (_Kind("error", "{:.4f}"),))
CALIBRATION = _Bars(
    "Calibration (lower is better)",
    "distance between two probabilities",
    (_Kind("ece", "ECE {:.3f}", -0.2, 0.36), _Kind("mce", "MCE {:.3f}", 0.2, 0.36)),
)


class _Value(NamedTuple):
    """A number and, if it was measured here, its interval."""

    value: float
    low: float | None = None
    high: float | None = None

    @property
    def rest(self) -> "_Value":
        """1 less the number: the error of an accuracy."""
        low, high = (None if bound is None else 1 - bound for bound in (self.high, self.low))
        return _Value(1 - self.value, low, high)


class _Row(NamedTuple):
    """One row of the bar charts and one line of the reliability diagram."""

    label: str
    colour: str
    owner: str
    is_paper: bool
    values: Mapping[str, _Value]
    expected: Sequence[float]
    """Levels, or the confidence in each bin that is not empty."""
    observed: Sequence[float]


def _rows(results: Sequence[Result], styles: Sequence[RunStyle]) -> list[_Row]:
    """Each of our rows before the paper's, and the baselines last."""
    rows = []
    for result, style, printed in zip(results, styles, printed_once(results), strict=True):
        rows.append(_row(result, style.label, style.colour, style.owner, is_paper=False))
        if printed is not None:
            owner = f"{style.owner} {PAPER}".strip()
            rows.append(_row(printed, printed["label"], style.colour, owner, is_paper=True))
    baselines = (_row(row, row["label"], GREY, "baseline", is_paper=False) for row in baseline_results(results))
    return [*rows, *baselines]


def _row(result: Result, label: str, colour: str, owner: str, *, is_paper: bool) -> _Row:
    values = {}
    for name in {"mse", "mae", "accuracy"} & result.keys():
        mean, reach = result[name]["mean"], result[name].get("ci95")
        values[name] = _Value(mean) if reach is None else _Value(mean, mean - reach, mean + reach)
    if "accuracy" in values:
        values["error"] = values["accuracy"].rest
    for name in {"ece", "mce"} & result.keys():
        values[name] = _Value(result[name], *result.get(f"{name}_ci95", ()))
    table = result.get("reliability", {"levels": (), "observed": ()})
    columns = ("levels", "observed") if "levels" in table else ("confidence", "accuracy")
    filled = [pair for pair in zip(*(table[column] for column in columns), strict=True) if None not in pair]
    expected, observed = ([pair[side] for pair in filled] for side in (0, 1))
    return _Row(label, colour, owner, is_paper, values, expected, observed)


def _scores(rows: Sequence[_Row], classifies: bool) -> _Bars:
    if not classifies:
        return MAE if "mae" in rows[0].values else MSE
    return WRONG if all(row.values["accuracy"].value > EASY for row in rows if "accuracy" in row.values) else ACCURACY


def _draw_bars(axes: Axes, drawing: Drawing, rows: Sequence[_Row], bars: _Bars) -> None:
    for position, row in enumerate(rows):
        for kind in bars.kinds:
            if kind.name in row.values:
                _draw_bar(axes, drawing, row, kind, position + kind.offset)
    axes.set(title=bars.title, xlabel=bars.unit)
    axes.set_yticks(range(len(rows)), [plain(row.label) for row in rows])
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.set_xlim(0, 1.45 * max(axes.dataLim.x1, 1e-6))  # room for the numbers behind the bars
    axes.locator_params(axis="x", nbins=5)
    tidy(axes, grid="x")


def _draw_bar(axes: Axes, drawing: Drawing, row: _Row, kind: _Kind, position: float) -> None:
    value, low, high = row.values[kind.name]
    (drawn,) = axes.barh(position, value, kind.height, color=row.colour)
    drawing.own(row.owner, drawn)
    end, says = value, ""
    if row.is_paper:
        drawn.set(facecolor="white", edgecolor=row.colour, hatch="////", alpha=0.75)
    if low is not None and high is not None:
        # A bootstrap interval of a value that cannot be negative need not hold the value itself.
        reach = [[max(value - low, 0.0)], [max(high - value, 0.0)]]
        _, caps, lines = axes.errorbar(value, position, xerr=reach, fmt="none", ecolor="black", elinewidth=1, capsize=2)
        drawing.own(row.owner, *caps, *lines)
        end, says = max(value, high), f", 95 % interval {low:.4g} to {high:.4g}"
    number = axes.annotate(
        kind.text.format(value),
        (end, position),
        xytext=(4, 0),
        textcoords="offset points",
        verticalalignment="center",
        fontsize="small",
    )
    drawing.own(row.owner, number)
    drawing.mark(axes, value, position, row.owner, f"{row.label}: {kind.name.upper()} {value:.4g}{says}")
    source = "paper" if row.is_paper else "run"
    drawing.record(method=row.label, source=source, score=kind.name, value=value, low=low, high=high)


def _draw_reliability(axes: Axes, drawing: Drawing, rows: Sequence[_Row], classifies: bool) -> list[Line2D]:
    """Observed against expected; for classification, as in the paper, the distance of the two. Returns the legend."""
    names = ("confidence", "accuracy") if classifies else ("expected", "observed")
    perfect = Line2D([0, 1], [0, 0 if classifies else 1], color=QUIET, linestyle="--", linewidth=1)
    perfect.set_label("perfectly calibrated")
    curves, highest = [perfect], 0.05
    for row in (row for row in rows if row.expected):
        pairs = list(zip(row.expected, row.observed, strict=True))
        heights = [abs(x - y) for x, y in pairs] if classifies else row.observed
        curve = Line2D(row.expected, heights, color=row.colour, linewidth=2, marker="o", markersize=3.5)
        curve.set(linestyle=":" if row.is_paper else "-", label=plain(row.label))
        curves.append(curve)
        drawing.own(row.owner, curve)
        highest = max(highest, *heights)
        for (x, y), height in zip(pairs, heights, strict=True):
            drawing.mark(axes, x, height, row.owner, f"{row.label}: {names[0]} {x:.4f}, {names[1]} {y:.4f}")
            drawing.record(method=row.label, source="paper" if row.is_paper else "run", **{names[0]: x, names[1]: y})
    for curve in curves:
        axes.add_line(curve)
    if classifies:
        axes.set(xlim=(0, 1), ylim=(-0.02 * highest, 1.08 * highest), title="Reliability (0 is perfect)")
        axes.set(xlabel="confidence (probability)", ylabel="|confidence − accuracy| (probability)")
    else:
        axes.set(xlim=(0, 1), ylim=(0, 1), aspect="equal", title="Reliability")
        axes.set(xlabel="expected probability", ylabel="observed probability")
    tidy(axes)
    return curves
