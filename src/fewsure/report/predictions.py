"""Predictions of runs on unseen tasks of one variable (the paper's Figure 1)."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from fewsure.report.drawing import QUIET, Drawing, legend_below, legend_height, run_handles, tidy
from fewsure.report.styles import RunStyle
from fewsure.report.unseen_tasks import UnseenTasks

BAND = 3
"""Standard deviations on each side of the mean."""
COLUMNS = 2
EVERY = 5
"""Points of the grid between two that say their values."""
EDGE: dict[str, Any] = {"color": QUIET, "linestyle": ":", "linewidth": 1.2}
"""The edges of the exact posterior's band."""

Predicted = tuple[RunStyle, UnseenTasks]


def predictions_drawings(name: str, title: str, runs: Sequence[Predicted]) -> list[Drawing]:
    """Unseen tasks: truth, support points, and each run's line, or its mean with a band of ±3 standard deviations.

    The exact posterior's band is beside each band.

    A drawing holds one run with a band, and every run without one that saw the same support points.
    """
    drawn = [[run] for run in runs if run[1].has_spread]  # bands would cover each other, lines do not
    for run in runs:
        if not run[1].has_spread:
            beside = [group for group in drawn if np.array_equal(group[0][1].support_y, run[1].support_y)]
            for group in beside:
                group.append(run)
            drawn += [] if beside else [[run]]
    return [_drawing(f"predictions_{name}_{number}", title, group) for number, group in enumerate(drawn, start=1)]


def _drawing(name: str, title: str, runs: Sequence[Predicted]) -> Drawing:
    names = " and ".join(style.label for style, _ in runs)
    shown = runs[0][1]
    tasks = len(shown.x)
    caption = (
        f"{title}: predictions of {names} on {tasks} unseen tasks after adapting to the support points, as in the "
        "paper's Figure 1."
    )
    rows = -(-tasks // COLUMNS)
    drawing = Drawing(name, caption, 2.1 * rows + 0.2 + legend_height(len(runs) + 3, 2))
    panels = drawing.figure.subplots(rows, COLUMNS, sharex=True, squeeze=False)
    for axes in panels.flatten()[tasks:]:
        axes.set_visible(False)
    for task, axes in enumerate(panels.flatten()[:tasks]):
        _draw_truth(axes, drawing, shown, task)
        for style, predicted in runs:
            _draw_prediction(axes, drawing, style, predicted, task)
        if shown.has_spread:
            _draw_exact(axes, drawing, shown, task)
        axes.set_title(f"unseen task {task + 1}", fontsize="medium")
        axes.locator_params(nbins=4)
        tidy(axes)
    for axes in panels[:, 0]:
        axes.set_ylabel("y (no unit)")
    for axes in panels[-1]:
        axes.set_xlabel("x (no unit)")
    shared = [
        Line2D([], [], color="black", linestyle="--", label="truth"),
        Line2D([], [], color="black", linestyle="", marker="o", markersize=5, label="support points"),
    ]
    bands = run_handles((style for style, predicted in runs if predicted.has_spread), f", mean ± {BAND} std")
    lines = run_handles(style for style, predicted in runs if not predicted.has_spread)
    exact = [Line2D([], [], label=f"exact posterior, mean ± {BAND} std", **EDGE)] if shown.has_spread else []
    legend_below(drawing.figure, [*shared, *bands, *exact, *lines], columns=2)
    return drawing


def _draw_truth(axes: Axes, drawing: Drawing, tasks: UnseenTasks, task: int) -> None:
    axes.plot(tasks.x[task], tasks.truth[task], "--", color="black", linewidth=1.2, zorder=3)
    axes.plot(tasks.support_x[task], tasks.support_y[task], "o", color="black", markersize=5, zorder=4)
    for x, y in zip(tasks.support_x[task].tolist(), tasks.support_y[task].tolist(), strict=True):
        drawing.mark(axes, x, y, "", f"support point: x = {x:.3g}, y = {y:.3g}")
        drawing.record(task=task + 1, series="support points", x=x, y=y)
    for x, y in zip(tasks.x[task].tolist(), tasks.truth[task].tolist(), strict=True):
        drawing.record(task=task + 1, series="truth", x=x, y=y)


def _draw_exact(axes: Axes, drawing: Drawing, tasks: UnseenTasks, task: int) -> None:
    """The edges of the band that the exact posterior has."""
    grid, functions = tasks.x[task], tasks.exact[task]
    mean, std = functions.mean(0), functions.std(0)
    for edge in (mean - BAND * std, mean + BAND * std):
        axes.plot(grid, edge, **EDGE)
    for x, y, spread in zip(grid.tolist(), mean.tolist(), std.tolist(), strict=True):
        drawing.record(task=task + 1, series="exact posterior", x=x, y=y, std=spread)


def _draw_prediction(axes: Axes, drawing: Drawing, style: RunStyle, predicted: UnseenTasks, task: int) -> None:
    grid, functions = predicted.x[task], predicted.predictions[task]
    mean, std = functions.mean(0), functions.std(0)
    drawing.own(style.owner, *axes.plot(grid, mean, color=style.colour, linewidth=1.8))
    if predicted.has_spread:
        reach = BAND * std
        band = axes.fill_between(grid, mean - reach, mean + reach, color=style.colour, alpha=0.22, linewidth=0)
        drawing.own(style.owner, band)
    for number, (x, y, spread) in enumerate(zip(grid.tolist(), mean.tolist(), std.tolist(), strict=True)):
        around = f" (std {spread:.3g})" if predicted.has_spread else ""
        drawing.record(task=task + 1, series=style.label, x=x, y=y, std=spread if predicted.has_spread else "")
        if number % EVERY == 0:
            drawing.mark(axes, x, y, style.owner, f"{style.label}: x = {x:.3g}, y = {y:.3g}{around}")
