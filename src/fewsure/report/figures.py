"""What runs predict on unseen tasks (the paper's Figure 1), and how they compare (its Figure 2)."""

import math
from collections.abc import Mapping, Sequence
from statistics import mean, stdev
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from fewsure.metrics.calibration import LEVELS
from fewsure.report.drawing import QUIET, WIDTH, legend_below, plain, run_handles, tidy
from fewsure.report.reference import Printed, printed_once
from fewsure.report.styles import VERMILLION, RunStyle
from fewsure.report.unseen import UnseenTasks

STUDENT_97_5 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)
"""The 97.5 % quantile of Student's distribution with 1, 2, … degrees of freedom; the last one for more."""
BAND = 3
"""Standard deviations on each side of the mean."""


def predictions_figure(predictions: Sequence[UnseenTasks], styles: Sequence[RunStyle]) -> Figure:
    """Unseen tasks side by side: truth, support points, and each run's line, or its mean with a band of ±3 std.

    A row of panels holds one run with a band, and every run without one that saw the same support points.
    """
    rows = _prediction_rows(predictions)
    tasks = len(predictions[0].x)
    figure = Figure(figsize=(WIDTH, 3.0 * len(rows) + 0.5), layout="constrained")
    panels = figure.subplots(len(rows), tasks, sharex=True, squeeze=False)
    for row, runs in enumerate(rows):
        for task in range(tasks):
            axes = panels[row, task]
            _draw_truth(axes, predictions[runs[0]], task)
            for run in runs:
                _draw_prediction(axes, predictions[run], task, styles[run].colour)
            axes.set_title(f"unseen task {task + 1}", fontsize="medium")
            tidy(axes)
        panels[row, 0].set_ylabel("y")
    for axes in panels[-1]:
        axes.set_xlabel("x")
    endings = [f", mean ± {BAND} std" if _has_spread(run) else "" for run in predictions]
    shared = [
        Line2D([], [], color="black", linestyle="--", label="truth"),
        Line2D([], [], color="black", linestyle="", marker="o", markersize=5, label="support points"),
    ]
    legend_below(figure, shared + run_handles(styles, endings))
    return figure


def comparison_figure(results: Sequence[Mapping[str, Any]], styles: Sequence[RunStyle]) -> Figure:
    """Error or accuracy, ECE and MCE, and reliability of evaluations on one kind of task.

    The paper's figures stand below ours, in the same colour.
    """
    classifies = "accuracy" in results[0]
    bars = _bars(results, styles, "accuracy" if classifies else "mse")
    figure = Figure(figsize=(WIDTH, max(4.2, 0.5 * len(bars) + 2.2)), layout="constrained")
    score = figure.add_subplot(1, 3, 1)
    calibration = figure.add_subplot(1, 3, 2, sharey=score)
    reliability = figure.add_subplot(1, 3, 3)

    for position, bar in enumerate(bars):
        _draw_bar(score, bar, position, 0.7, bar.score, "{:.4f}" if classifies else "{:.2f}")
        for offset, name, error in ((-0.2, "ECE", bar.ece), (0.2, "MCE", bar.mce)):
            if error is not None:
                _draw_bar(calibration, bar, position + offset, 0.36, error, name + " {:.3f}")
    score.set_yticks(range(len(bars)), [plain(bar.label) for bar in bars])
    score.invert_yaxis()
    calibration.tick_params(labelleft=False)
    for axes in (score, calibration):
        axes.set_xlim(0, 1.4 * axes.dataLim.x1)  # room for the numbers behind the bars
        tidy(axes, grid="x")
    if classifies:
        score.set(title="Accuracy (higher is better)", xlabel="share of query points")
    else:
        score.set(title="Error (lower is better)", xlabel="mean squared error")
    calibration.set(title="Calibration (lower is better)", xlabel="calibration error")

    curves = [Line2D([0, 1], [0, 1], color=QUIET, linestyle="--", linewidth=1, label="perfectly calibrated")]
    for bar in bars:
        curve = Line2D(*bar.reliability, color=bar.colour, linewidth=2, label=plain(bar.label))
        curve.set(linestyle=":" if bar.is_paper else "-", marker="o" if classifies else "", markersize=4)
        curves.append(curve)
    for curve in curves:
        reliability.add_line(curve)
    reliability.set(xlim=(0, 1), ylim=(0, 1), aspect="equal", title="Reliability")
    reliability.set_xlabel("confidence" if classifies else "expected probability")
    reliability.set_ylabel("accuracy" if classifies else "observed probability")
    tidy(reliability)
    legend_below(figure, [curve for curve in curves if len(curve.get_xdata()) > 0], columns=5)  # type: ignore[arg-type]
    return figure


def variants_figure(results: Sequence[Mapping[str, Any]]) -> Figure:
    """MSE and ECE of variants: every seed as a ring, their mean as a dot with its 95 % interval over seeds.

    The interval is Student's, of the logarithm for the MSE, whose values differ by orders of magnitude.
    """
    labels = sorted({result["label"] for result in results}, key=lambda label: mean(_eces(results, label)))
    figure = Figure(figsize=(WIDTH, 0.32 * len(labels) + 1.8), layout="constrained")
    error, calibration = figure.subplots(1, 2, sharey=True)
    for position, label in enumerate(labels):
        colour = VERMILLION if label == "base" else QUIET
        errors = [math.log10(result["mse"]["mean"]) for result in results if result["label"] == label]
        for axes, values in ((error, errors), (calibration, _eces(results, label))):
            reach = _student_95(values)
            axes.errorbar(mean(values), position, xerr=reach, fmt="o", color=colour, elinewidth=1.5, capsize=3)
            axes.plot(values, [position] * len(values), "o", markerfacecolor="none", color=colour, markersize=4)
    ticks = range(-1, 5)
    error.set_xticks(ticks, [f"{10.0**tick:g}" for tick in ticks])
    error.set(xlim=(-0.5, 4), title="Error (lower is better)", xlabel="mean squared error")
    error.set_yticks(range(len(labels)), [plain(label) for label in labels])
    error.invert_yaxis()
    calibration.set(xlim=(0.1, 0.55), title="Calibration (lower is better)", xlabel="ECE")
    for axes in (error, calibration):
        tidy(axes)
    return figure


def _eces(results: Sequence[Mapping[str, Any]], label: str) -> list[float]:
    return [float(result["ece"]) for result in results if result["label"] == label]


def _student_95(values: Sequence[float]) -> float:
    """Half the width of the 95 % interval of a mean over a few seeds; 0 for a single one, which has none."""
    if len(values) < 2:
        return 0.0
    quantile = STUDENT_97_5[min(len(values) - 1, len(STUDENT_97_5)) - 1]
    return quantile * stdev(values) / math.sqrt(len(values))


class _Value(NamedTuple):
    """A number and, if it was measured here, how far its interval reaches below and above it."""

    value: float
    below: float = 0.0
    above: float = 0.0


class _Bar(NamedTuple):
    """One row of the bar charts and one line of the reliability diagram."""

    label: str
    colour: str
    is_paper: bool
    score: _Value
    ece: _Value | None
    mce: _Value | None
    reliability: tuple[Sequence[float], Sequence[float]]


def _bars(results: Sequence[Mapping[str, Any]], styles: Sequence[RunStyle], score: str) -> list[_Bar]:
    bars = []
    for result, printed, style in zip(results, printed_once(results), styles, strict=True):
        value = _Value(result[score]["mean"], result[score]["ci95"], result[score]["ci95"])
        ece, mce = (_with_interval(result[name], result[f"{name}_ci95"]) for name in ("ece", "mce"))
        bars.append(_Bar(style.label, style.colour, False, value, ece, mce, _reliability(result["reliability"])))
        if printed is not None:
            printed_ece, printed_mce = (None if e is None else _Value(e) for e in (printed.ece, printed.mce))
            rows = (LEVELS, printed.reliability) if isinstance(printed, Printed) else ((), ())
            own = _Value(getattr(printed, score))
            bars.append(_Bar(f"paper: {printed.name}", style.colour, True, own, printed_ece, printed_mce, rows))
    return bars


def _reliability(table: Mapping[str, Sequence[float | None]]) -> tuple[Sequence[float], Sequence[float]]:
    """What was expected and what was observed, at each level or in each bin that is not empty."""
    expected, observed = ("levels", "observed") if "levels" in table else ("confidence", "accuracy")
    pairs = zip(table[expected], table[observed], strict=True)
    filled = [(x, y) for x, y in pairs if x is not None and y is not None]
    return [x for x, _ in filled], [y for _, y in filled]


def _with_interval(value: float, interval: Sequence[float]) -> _Value:
    # A bootstrap interval of a value that cannot be negative need not hold the value itself.
    return _Value(value, max(value - interval[0], 0.0), max(interval[1] - value, 0.0))


def _draw_bar(axes: Axes, bar: _Bar, position: float, height: float, value: _Value, text: str) -> None:
    (drawn,) = axes.barh(position, value.value, height, color=bar.colour)
    if bar.is_paper:
        drawn.set(facecolor="white", edgecolor=bar.colour, hatch="////", alpha=0.75)
    else:
        errors = [[value.below], [value.above]]
        axes.errorbar(value.value, position, xerr=errors, fmt="none", ecolor="black", elinewidth=1, capsize=2)
    axes.annotate(
        text.format(value.value),
        (value.value + value.above, position),
        xytext=(4, 0),
        textcoords="offset points",
        verticalalignment="center",
        fontsize="small",
    )


def _prediction_rows(predictions: Sequence[UnseenTasks]) -> list[list[int]]:
    """Which runs share a row of panels: bands would cover each other, lines do not."""
    rows = [[index] for index, run in enumerate(predictions) if _has_spread(run)]
    for index, run in enumerate(predictions):
        if not _has_spread(run):
            homes = [row for row in rows if np.array_equal(predictions[row[0]].support_y, run.support_y)]
            for row in homes:
                row.append(index)
            rows += [] if homes else [[index]]
    return rows


def _has_spread(run: UnseenTasks) -> bool:
    return len(run.predictions[0]) > 1


def _draw_truth(axes: Axes, run: UnseenTasks, task: int) -> None:
    axes.plot(run.x[task], run.truth[task], "--", color="black", linewidth=1.2, zorder=3)
    axes.plot(run.support_x[task], run.support_y[task], "o", color="black", markersize=5, zorder=4)


def _draw_prediction(axes: Axes, run: UnseenTasks, task: int, colour: str) -> None:
    mean, std = run.predictions[task].mean(0), run.predictions[task].std(0)
    axes.plot(run.x[task], mean, color=colour, linewidth=1.8)
    if _has_spread(run):
        axes.fill_between(run.x[task], mean - BAND * std, mean + BAND * std, color=colour, alpha=0.22, linewidth=0)
