"""What runs predict on unseen tasks of one variable (the paper's Figure 1)."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from fewsure.report.drawing import PANEL, Drawing, legend_below, legend_height, run_handles, tidy
from fewsure.report.styles import RunStyle
from fewsure.report.unseen import UnseenTasks

BAND = 3
"""Standard deviations on each side of the mean."""
COLUMNS = 2
EVERY = 5
"""Points of the grid between two that say their values."""


class Predicted(NamedTuple):
    """What a run predicts, how it is drawn, and its number in the report."""

    tasks: UnseenTasks
    style: RunStyle
    owner: str

    @property
    def has_spread(self) -> bool:
        return len(self.tasks.predictions[0]) > 1


def predictions_drawings(name: str, title: str, runs: Sequence[Predicted]) -> list[Drawing]:
    """Unseen tasks: truth, support points, and each run's line, or its mean with a band of ±3 standard deviations.

    A drawing holds one run with a band, and every run without one that saw the same support points.
    """
    return [_drawing(f"predictions_{name}_{number + 1}", title, row) for number, row in enumerate(_rows(runs))]


def _rows(runs: Sequence[Predicted]) -> list[list[Predicted]]:
    """Which runs share a drawing: bands would cover each other, lines do not."""
    rows = [[run] for run in runs if run.has_spread]
    for run in runs:
        if not run.has_spread:
            homes = [row for row in rows if np.array_equal(row[0].tasks.support_y, run.tasks.support_y)]
            for row in homes:
                row.append(run)
            rows += [] if homes else [[run]]
    return rows


def _drawing(name: str, title: str, runs: Sequence[Predicted]) -> Drawing:
    names = " and ".join(run.style.label for run in runs)
    tasks = len(runs[0].tasks.x)
    caption = (
        f"{title}: predictions of {names} on {tasks} unseen tasks after adapting to the support points, as in the "
        "paper's Figure 1."
    )
    rows = -(-tasks // COLUMNS)
    drawing = Drawing(
        name, caption, Figure(figsize=(PANEL, 2.1 * rows + 0.2 + legend_height(len(runs) + 2, 2)), layout="constrained")
    )
    panels = drawing.figure.subplots(rows, COLUMNS, sharex=True, squeeze=False).flatten()
    for task, axes in enumerate(panels):
        axes.set_visible(task < tasks)
        if task < tasks:
            _draw_truth(axes, drawing, runs[0].tasks, task)
            for run in runs:
                _draw_prediction(axes, drawing, run, task)
            axes.set_title(f"unseen task {task + 1}", fontsize="medium")
            axes.locator_params(nbins=4)
            tidy(axes)
    for row in range(rows):
        panels[COLUMNS * row].set_ylabel("y (no unit)")
    for axes in panels[-COLUMNS:]:
        axes.set_xlabel("x (no unit)")
    shared = [
        Line2D([], [], color="black", linestyle="--", label="truth"),
        Line2D([], [], color="black", linestyle="", marker="o", markersize=5, label="support points"),
    ]
    bands = [run.style for run in runs if run.has_spread]
    lines = [run.style for run in runs if not run.has_spread]
    legend_below(drawing.figure, shared + run_handles(bands, f", mean ± {BAND} std") + run_handles(lines), columns=2)
    return drawing


def _draw_truth(axes: Axes, drawing: Drawing, tasks: UnseenTasks, task: int) -> None:
    axes.plot(tasks.x[task], tasks.truth[task], "--", color="black", linewidth=1.2, zorder=3)
    axes.plot(tasks.support_x[task], tasks.support_y[task], "o", color="black", markersize=5, zorder=4)
    for x, y in zip(tasks.support_x[task].tolist(), tasks.support_y[task].tolist(), strict=True):
        drawing.mark(axes, x, y, "", f"support point: x = {x:.3g}, y = {y:.3g}")
        drawing.record(task=task + 1, series="support points", x=x, y=y)
    for x, y in zip(tasks.x[task].tolist(), tasks.truth[task].tolist(), strict=True):
        drawing.record(task=task + 1, series="truth", x=x, y=y)


def _draw_prediction(axes: Axes, drawing: Drawing, run: Predicted, task: int) -> None:
    grid, predictions = run.tasks.x[task], run.tasks.predictions[task]
    mean, std = predictions.mean(0), predictions.std(0)
    drawing.own(run.owner, *axes.plot(grid, mean, color=run.style.colour, linewidth=1.8))
    if run.has_spread:
        reach = BAND * std
        band = axes.fill_between(grid, mean - reach, mean + reach, color=run.style.colour, alpha=0.22, linewidth=0)
        drawing.own(run.owner, band)
    for number, (x, y, spread) in enumerate(zip(grid.tolist(), mean.tolist(), std.tolist(), strict=True)):
        around = f" (std {spread:.3g})" if run.has_spread else ""
        drawing.record(task=task + 1, series=run.style.label, x=x, y=y, std=spread if run.has_spread else "")
        if number % EVERY == 0:
            drawing.mark(axes, x, y, run.owner, f"{run.style.label}: x = {x:.3g}, y = {y:.3g}{around}")
