"""How runs compare: the paper's Figure 2 (regression) and Figure 3 (classification)."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from fewsure.report.drawing import PAPER, QUIET, WIDTH, Drawing, legend_below, legend_height, plain, tidy
from fewsure.report.reference import Printed, printed_once
from fewsure.report.styles import RunStyle

Result = Mapping[str, Any]
ERRORS = ("ece", "mce")
EASY = 0.9
"""Where every accuracy is above it, bars show what is wrong: those of what is right would look alike."""


def comparison_drawings(
    name: str, title: str, results: Sequence[Result], styles: Sequence[RunStyle]
) -> tuple[Drawing, Drawing, Drawing]:
    """Score, reliability and calibration errors of evaluations on one kind of task, each as a drawing.

    The paper's figures stand below ours, in the same colour.
    """
    classifies = "accuracy" in results[0]
    bars, score = _bars(results, styles)
    figure_number, measured = 3 if classifies else 2, "accuracy" if score is ACCURACY else "error"
    scored = [bar for bar in bars if bar.score is not None]
    calibrated = [bar for bar in bars if bar.errors]
    reliable = [bar for bar in bars if bar.expected]

    def drawing(panel: str, says: str, shown: Sequence[_Bar], drawn: str, height: float) -> tuple[Drawing, Axes]:
        note = "The paper prints none for these tasks and methods."
        if any(bar.is_paper for bar in shown):
            note = f"The paper's printed values are {drawn}; where there are none, the paper has none."
        caption = f"{title}: {says}, as in the paper's Figure {figure_number}. {note}"
        made = Drawing(f"{panel}_{name}", caption, height)
        return made, made.figure.add_subplot()

    says, height = f"{measured} on unseen tasks with 95 % intervals", 1.3 + 0.42 * max(len(scored), 2)
    scores, axes = drawing(measured, says, scored, "hatched bars", height)
    _draw_scores(axes, scores, scored, score)
    height = 3.7 + legend_height(len(reliable) + 1, 2)
    reliability, axes = drawing("reliability", "reliability", reliable, "dotted lines", height)
    legend_below(reliability.figure, _draw_reliability(axes, reliability, reliable, classifies), columns=2)
    says, height = "expected and maximum calibration error with 95 % intervals", 1.3 + 0.62 * max(len(calibrated), 2)
    errors, axes = drawing("calibration", says, calibrated, "hatched bars", height)
    _draw_errors(axes, errors, calibrated)
    return scores, reliability, errors


def comparison_figure(results: Sequence[Result], styles: Sequence[RunStyle]) -> Figure:
    """The same three panels side by side in one figure."""
    bars, score = _bars(results, styles)
    drawing = Drawing("comparison", "", max(4.2, 0.5 * len(bars) + 2.2), WIDTH)
    scores = drawing.figure.add_subplot(1, 3, 1)
    _draw_scores(scores, drawing, bars, score)
    errors = drawing.figure.add_subplot(1, 3, 2, sharey=scores)
    _draw_errors(errors, drawing, bars)
    errors.tick_params(labelleft=False)
    reliability = drawing.figure.add_subplot(1, 3, 3)
    legend_below(drawing.figure, _draw_reliability(reliability, drawing, bars, "accuracy" in results[0]), columns=5)
    return drawing.figure


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


class _Score(NamedTuple):
    """The score of the first panel."""

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
    expected: Sequence[float]
    """Levels, or the confidence in each bin that is not empty."""
    observed: Sequence[float]


def _bars(results: Sequence[Result], styles: Sequence[RunStyle]) -> tuple[list[_Bar], _Score]:
    """The rows, ours each before the paper's, and their score."""
    score = ACCURACY if "accuracy" in results[0] else MSE
    bars = []
    for result, style, printed in zip(results, styles, printed_once(results), strict=True):
        bars.append(_run_bar(result, style, score.name))
        if printed is not None:
            bars.append(_paper_bar(printed, style, score.name))
    if score is MSE or min(bar.score.value for bar in bars if bar.score) <= EASY:
        return bars, score
    return [bar._replace(score=bar.score and bar.score.rest) for bar in bars], WRONG


def _run_bar(result: Result, style: RunStyle, score: str) -> _Bar:
    mean, reach, table = result[score]["mean"], result[score]["ci95"], result["reliability"]
    errors = {name: _Value(result[name], *result[f"{name}_ci95"]) for name in ERRORS}
    columns = ("levels", "observed") if "levels" in table else ("confidence", "accuracy")
    pairs = zip(*(table[column] for column in columns), strict=True)
    filled = [pair for pair in pairs if None not in pair]
    expected, observed = ([pair[side] for pair in filled] for side in (0, 1))
    value = _Value(mean, mean - reach, mean + reach)
    return _Bar(style.label, style.colour, style.owner, False, value, errors, expected, observed)


def _paper_bar(printed: Printed, style: RunStyle, score: str) -> _Bar:
    known = {name: _Value(getattr(printed, name)) for name in (score, *ERRORS) if getattr(printed, name) is not None}
    value, label, owner = known.pop(score, None), f"paper: {printed.name}", f"{style.owner} {PAPER}".strip()
    return _Bar(label, style.colour, owner, True, value, known, printed.expected, printed.observed)


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
    low, high = ("" if bound is None else bound for bound in (value.low, value.high))
    source = "paper" if bar.is_paper else "run"
    drawing.record(method=bar.label, source=source, score=name, value=value.value, low=low, high=high)


def _draw_reliability(axes: Axes, drawing: Drawing, bars: Sequence[_Bar], classifies: bool) -> list[Line2D]:
    """Observed against expected; for classification, as in the paper, the distance of the two. Returns the legend."""
    names = ("confidence", "accuracy") if classifies else ("expected", "observed")
    perfect = Line2D([0, 1], [0, 0 if classifies else 1], color=QUIET, linestyle="--", linewidth=1)
    perfect.set_label("perfectly calibrated")
    curves, highest = [perfect], 0.05
    for bar in bars:
        if not bar.expected:
            continue
        pairs = list(zip(bar.expected, bar.observed, strict=True))
        heights = [abs(x - y) for x, y in pairs] if classifies else bar.observed
        curve = Line2D(bar.expected, heights, color=bar.colour, linewidth=2, marker="o", markersize=3.5)
        curve.set(linestyle=":" if bar.is_paper else "-", label=plain(bar.label))
        curves.append(curve)
        drawing.own(bar.owner, curve)
        highest = max(highest, *heights)
        for (x, y), height in zip(pairs, heights, strict=True):
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
