"""How runs compare: the paper's Figure 2 (regression) and Figure 3 (classification)."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from fewsure.evaluation.metrics.calibration import LEVELS
from fewsure.report.drawing import PANEL, PAPER, QUIET, WIDTH, Drawing, legend_below, legend_height, plain, tidy
from fewsure.report.reference import Printed, PrintedAccuracy, printed_once
from fewsure.report.styles import RunStyle

ERRORS = ("ece", "mce")
EASY = 0.9
"""Where every accuracy is above it, bars show what is wrong: those of what is right would look alike."""


class OwnedResult(NamedTuple):
    """An evaluation, how its run is drawn, and the run's number in the report."""

    result: Mapping[str, Any]
    style: RunStyle
    owner: str


def comparison_drawings(name: str, title: str, results: Sequence[OwnedResult]) -> list[Drawing]:
    """Score, reliability and calibration errors of evaluations on one kind of task, each as a drawing.

    The paper's figures stand below ours, in the same colour.
    """
    classifies = "accuracy" in results[0].result
    bars, score = _bars(results)
    figure_number, measured = 3 if classifies else 2, "accuracy" if score is ACCURACY else "error"
    scored = [bar for bar in bars if bar.score is not None]
    calibrated = [bar for bar in bars if bar.errors]
    reliable = [bar for bar in bars if bar.reliability[0]]

    def drawing(panel: str, says: str, shown: Sequence[_Bar], height: float) -> tuple[Drawing, Axes]:
        drawn = "dotted lines" if panel == "reliability" else "hatched bars"
        caption = f"{title}: {says}, as in the paper's Figure {figure_number}. {_paper_note(shown, drawn)}"
        made = Drawing(f"{panel}_{name}", caption, Figure(figsize=(PANEL, height), layout="constrained"))
        return made, made.figure.add_subplot()

    says, height = f"{measured} on unseen tasks with 95 % intervals", _bars_height(scored, 0.42)
    scores, axes = drawing(measured, says, scored, height)
    _draw_scores(axes, scores, scored, score)
    reliability, axes = drawing("reliability", "reliability", reliable, 3.7 + legend_height(len(reliable) + 1, 2))
    legend_below(reliability.figure, _draw_reliability(axes, reliability, reliable, classifies), columns=2)
    says = "expected and maximum calibration error with 95 % intervals"
    errors, axes = drawing("calibration", says, calibrated, _bars_height(calibrated, 0.62))
    _draw_errors(axes, errors, calibrated)
    return [scores, reliability, errors]


def comparison_figure(results: Sequence[Mapping[str, Any]], styles: Sequence[RunStyle]) -> Figure:
    """The same three panels side by side in one figure."""
    classifies = "accuracy" in results[0]
    owned = [OwnedResult(result, style, "") for result, style in zip(results, styles, strict=True)]
    bars, score = _bars(owned)
    figure = Figure(figsize=(WIDTH, max(4.2, 0.5 * len(bars) + 2.2)), layout="constrained")
    drawing = Drawing("comparison", "", figure)
    scores = figure.add_subplot(1, 3, 1)
    _draw_scores(scores, drawing, bars, score)
    errors = figure.add_subplot(1, 3, 2, sharey=scores)
    _draw_errors(errors, drawing, bars)
    errors.tick_params(labelleft=False)
    reliability = figure.add_subplot(1, 3, 3)
    legend_below(figure, _draw_reliability(reliability, drawing, bars, classifies), columns=5)
    return figure


class _Value(NamedTuple):
    """A number and, if it was measured here, its interval."""

    value: float
    low: float | None = None
    high: float | None = None


class _Score(NamedTuple):
    """What the first panel shows."""

    name: str
    title: str
    unit: str
    digits: int


MSE = _Score("mse", "Error (lower is better)", "mean squared error (unit of y, squared)", 2)
ACCURACY = _Score("accuracy", "Accuracy (higher is better)", "share of query points that are right", 4)
WRONG = _Score("error", "Error (lower is better)", "share of query points that are wrong", 4)


class _Bar(NamedTuple):
    """One row of the bar charts and one line of the reliability diagram."""

    label: str
    colour: str
    owner: str
    is_paper: bool
    score: _Value | None
    errors: Mapping[str, _Value]
    """Of `ece` and `mce`, those that are known."""
    reliability: tuple[Sequence[float], Sequence[float]]
    """What was expected, and what was observed."""


def _bars(results: Sequence[OwnedResult]) -> tuple[list[_Bar], _Score]:
    """The rows, ours each before what the paper prints, and what their score is."""
    bars = []
    printed_figures = printed_once([result for result, _, _ in results])
    for (result, style, owner), printed in zip(results, printed_figures, strict=True):
        score = result["accuracy" if "accuracy" in result else "mse"]
        value = _Value(score["mean"], score["mean"] - score["ci95"], score["mean"] + score["ci95"])
        errors = {name: _Value(result[name], *result[f"{name}_ci95"]) for name in ERRORS}
        bars.append(_Bar(style.label, style.colour, owner, False, value, errors, _reliability(result["reliability"])))
        if printed is not None:
            bars.append(_paper_bar(printed, style.colour, f"{owner} {PAPER}".strip()))
    if "accuracy" not in results[0].result:
        return bars, MSE
    if min(bar.score.value for bar in bars if bar.score is not None) <= EASY:
        return bars, ACCURACY
    return [bar if bar.score is None else bar._replace(score=_wrong(bar.score)) for bar in bars], WRONG


def _wrong(right: _Value) -> _Value:
    """What is left of an accuracy."""
    if right.low is None or right.high is None:
        return _Value(1 - right.value)
    return _Value(1 - right.value, 1 - right.high, 1 - right.low)


def _paper_bar(printed: Printed | PrintedAccuracy, colour: str, owner: str) -> _Bar:
    score: _Value | None
    reliability: tuple[Sequence[float], Sequence[float]]
    if isinstance(printed, Printed):
        score, reliability = _Value(printed.mse), (LEVELS, printed.reliability)
    else:
        score = None if printed.accuracy is None else _Value(printed.accuracy)
        reliability = (printed.bins.confidence, printed.bins.accuracy) if printed.bins else ((), ())
    known = {name: getattr(printed, name) for name in ERRORS if getattr(printed, name) is not None}
    errors = {name: _Value(value) for name, value in known.items()}
    return _Bar(f"paper: {printed.name}", colour, owner, True, score, errors, reliability)


def _reliability(table: Mapping[str, Sequence[float | None]]) -> tuple[Sequence[float], Sequence[float]]:
    """What was expected and what was observed, at each level or in each bin that is not empty."""
    expected, observed = ("levels", "observed") if "levels" in table else ("confidence", "accuracy")
    pairs = zip(table[expected], table[observed], strict=True)
    filled = [(x, y) for x, y in pairs if x is not None and y is not None]
    return [x for x, _ in filled], [y for _, y in filled]


def _paper_note(bars: Sequence[_Bar], drawn: str) -> str:
    if not any(bar.is_paper for bar in bars):
        return "The paper prints none for these tasks and methods."
    return f"The paper's printed values are {drawn}; where there are none, the paper has none."


def _bars_height(bars: Sequence[_Bar], each: float) -> float:
    return 1.3 + each * max(len(bars), 2)


def _draw_scores(axes: Axes, drawing: Drawing, bars: Sequence[_Bar], score: _Score) -> None:
    for position, bar in enumerate(bars):
        if bar.score is not None:
            _draw_bar(axes, drawing, bar, score.name, (position, 0.7), bar.score, f"{{:.{score.digits}f}}")
    axes.set(title=score.title, xlabel=score.unit)
    _finish_bars(axes, bars)


def _draw_errors(axes: Axes, drawing: Drawing, bars: Sequence[_Bar]) -> None:
    for position, bar in enumerate(bars):
        for offset, name in ((-0.2, "ece"), (0.2, "mce")):
            if name in bar.errors:
                text = f"{name.upper()} {{:.3f}}"
                _draw_bar(axes, drawing, bar, name, (position + offset, 0.36), bar.errors[name], text)
    axes.set(title="Calibration (lower is better)", xlabel="distance between two probabilities")
    _finish_bars(axes, bars)


def _finish_bars(axes: Axes, bars: Sequence[_Bar]) -> None:
    axes.set_yticks(range(len(bars)), [plain(bar.label) for bar in bars])
    axes.set_ylim(len(bars) - 0.4, -0.6)
    axes.set_xlim(0, 1.45 * max(axes.dataLim.x1, 1e-6))  # room for the numbers behind the bars
    axes.locator_params(axis="x", nbins=5)
    tidy(axes, grid="x")


def _draw_bar(
    axes: Axes, drawing: Drawing, bar: _Bar, name: str, place: tuple[float, float], value: _Value, text: str
) -> None:
    position, height = place
    (drawn,) = axes.barh(position, value.value, height, color=bar.colour)
    drawing.own(bar.owner, drawn)
    end, says = value.value, ""
    if bar.is_paper:
        drawn.set(facecolor="white", edgecolor=bar.colour, hatch="////", alpha=0.75)
    if value.low is not None and value.high is not None:
        # A bootstrap interval of a value that cannot be negative need not hold the value itself.
        reach = [[max(value.value - value.low, 0.0)], [max(value.high - value.value, 0.0)]]
        _, caps, lines = axes.errorbar(
            value.value, position, xerr=reach, fmt="none", ecolor="black", elinewidth=1, capsize=2
        )
        drawing.own(bar.owner, *caps, *lines)
        end, says = max(value.value, value.high), f", 95 % interval {value.low:.4g} to {value.high:.4g}"
    number = axes.annotate(
        text.format(value.value),
        (end, position),
        xytext=(4, 0),
        textcoords="offset points",
        verticalalignment="center",
        fontsize="small",
    )
    drawing.own(bar.owner, number)
    drawing.mark(axes, value.value, position, bar.owner, f"{bar.label}: {name.upper()} {value.value:.4g}{says}")
    drawing.record(
        method=bar.label,
        source="paper" if bar.is_paper else "run",
        score=name,
        value=value.value,
        low="" if value.low is None else value.low,
        high="" if value.high is None else value.high,
    )


def _draw_reliability(axes: Axes, drawing: Drawing, bars: Sequence[_Bar], classifies: bool) -> list[Line2D]:
    """Observed against expected; for classification, as in the paper, the distance of the two. Returns the legend."""
    perfect = Line2D([0, 1], [0, 0 if classifies else 1], color=QUIET, linestyle="--", linewidth=1)
    perfect.set_label("perfectly calibrated")
    curves = [perfect]
    highest = 0.05
    for bar in bars:
        expected, observed = bar.reliability
        if not expected:
            continue
        heights = [abs(x - y) for x, y in zip(expected, observed, strict=True)] if classifies else observed
        curve = Line2D(expected, heights, color=bar.colour, linewidth=2, marker="o", markersize=3.5)
        curve.set(linestyle=":" if bar.is_paper else "-", label=plain(bar.label))
        curves.append(curve)
        drawing.own(bar.owner, curve)
        highest = max(highest, *heights)
        for x, y, height in zip(expected, observed, heights, strict=True):
            names = ("confidence", "accuracy") if classifies else ("expected", "observed")
            drawing.mark(axes, x, height, bar.owner, f"{bar.label}: {names[0]} {x:.4f}, {names[1]} {y:.4f}")
            drawing.record(method=bar.label, source="paper" if bar.is_paper else "run", **{names[0]: x, names[1]: y})
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
