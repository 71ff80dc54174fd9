"""Learning curves: what runs logged while they were trained."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

from fewsure.report.drawing import QUIET, WIDTH, legend_below, run_handles, tidy
from fewsure.report.styles import RunStyle

Metrics = Sequence[Mapping[str, Any]]
"""The logged lines of a run."""


class Curve(NamedTuple):
    """How a logged number is drawn."""

    label: str
    line: str = "-"
    width: float = 1.5
    opacity: float = 1.0


class Panel(NamedTuple):
    """Numbers of one kind."""

    title: str
    unit: str
    scale: Literal["log", "linear"]
    curves: Mapping[str, Curve]
    """By the name they are logged under."""


PANELS = (
    Panel("Training loss", "loss on query sets", "log", {"loss": Curve("loss")}),
    Panel(
        "Bound (an estimate) and its terms",
        "bounded loss; above 1 it says nothing",
        "log",
        {
            # The sum is often close to its largest term, which is then drawn over it.
            "bound": Curve("bound", width=5, opacity=0.35),
            "R_0": Curve("$R_0$, across tasks", "--"),
            "R_i": Curve("$R_i$, within a task", "-."),
            "clipped_loss": Curve("clipped loss", ":"),
        },
    ),
    Panel(
        "Estimated KL[q(w) ‖ p(w)]",
        "nats",
        "linear",
        {"kl": Curve("in the bound"), "critic": Curve("critic's part", ":")},
    ),
    Panel("Meta-gradient", "norm before clipping", "log", {"gradient_norm": Curve("norm")}),
)


def learning_curves_figure(metrics: Sequence[Metrics], styles: Sequence[RunStyle]) -> Figure:
    """Loss, terms of the bound, KL and gradient norm against updates; what no run has logged is left out."""
    logged = {name for lines in metrics for line in lines for name in line}
    panels = [panel for panel in PANELS if logged & panel.curves.keys()] or PANELS[:1]
    rows = (len(panels) + 1) // 2
    figure = Figure(figsize=(WIDTH, 3.7 * rows + 0.5))
    figure.set_layout_engine("constrained", hspace=0.08)
    for index, panel in enumerate(panels):
        _draw_panel(figure.add_subplot(rows, 2, index + 1), panel, metrics, styles)
    legend_below(figure, run_handles(styles), columns=5)
    return figure


def _draw_panel(axes: Axes, panel: Panel, metrics: Sequence[Metrics], styles: Sequence[RunStyle]) -> None:
    drawn = set()
    for lines, style in zip(metrics, styles, strict=True):
        for name, curve in panel.curves.items():
            points = [(line["update"], line[name]) for line in lines if name in line]
            if points:
                updates, values = zip(*points, strict=True)
                marker = "o" if len(points) == 1 else ""  # a line needs two points to be seen
                _draw_curve(axes, curve, style.colour, updates, values, marker=marker)
                drawn.add(curve)
    axes.set_yscale(panel.scale)
    if panel.scale == "log":
        _plain_log_ticks(axes)
    axes.set(title=panel.title, xlabel="meta-updates", ylabel=panel.unit)
    tidy(axes)
    if len(drawn) > 1:
        for curve in panel.curves.values():
            if curve in drawn:
                _draw_curve(axes, curve, QUIET, label=curve.label)
        axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.18), ncols=4, frameon=False, fontsize="small")


def _draw_curve(
    axes: Axes,
    curve: Curve,
    colour: str,
    updates: Sequence[float] = (),
    values: Sequence[float] = (),
    *,
    marker: str = "",
    label: str = "_",
) -> None:
    """Draw a curve; with a label and no values, an entry of the legend."""
    axes.plot(
        updates,
        values,
        curve.line,
        color=colour,
        linewidth=curve.width,
        alpha=curve.opacity,
        marker=marker,
        label=label,
    )


def _plain_log_ticks(axes: Axes) -> None:
    """Ticks such as 1, 2, 5, 10 instead of powers of ten, which a narrow range may not hold."""
    low, high = axes.get_ylim()
    steps = (1.0, 2.0, 5.0) if math.log10(high / low) < 4 else (1.0,)
    axes.yaxis.set_major_locator(LogLocator(subs=steps))
    axes.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axes.yaxis.set_minor_formatter(NullFormatter())
