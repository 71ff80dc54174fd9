"""Learning curves: what runs logged while they were trained."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fewsure.report.drawing import QUIET, WIDTH, legend_below, run_handles, tidy
from fewsure.report.styles import RunStyle

Metrics = Sequence[Mapping[str, Any]]
"""The logged lines of a run."""


class Panel(NamedTuple):
    """One panel: what is logged under which name, and how its line is drawn."""

    title: str
    unit: str
    scale: Literal["log", "symlog"]
    lines: Mapping[str, tuple[str, str]]
    """Logged name → (label, line style)."""


PANELS = (
    Panel("Training loss", "loss on query sets", "log", {"loss": ("loss", "-")}),
    Panel(
        "The bound and its terms (an estimate; above 1 it says nothing)",
        "bounded loss",
        "log",
        {
            "bound": ("bound", "-"),
            "R_0": ("$R_0$, across tasks", "--"),
            "R_i": ("$R_i$, within a task", "-."),
            "clipped_loss": ("clipped loss", ":"),
        },
    ),
    Panel("Estimated KL[q(w) ‖ p(w)]", "nats", "symlog", {"kl": ("in the bound", "-"), "critic": ("critic's part", ":")}),
    Panel("Meta-gradient", "norm before clipping", "log", {"gradient_norm": ("norm", "-")}),
)


def learning_curves_figure(metrics: Sequence[Metrics], styles: Sequence[RunStyle]) -> Figure:
    """Loss, terms of the bound, KL and gradient norm against updates; what no run has logged is left out."""
    logged = {name for lines in metrics for line in lines for name in line}
    panels = [panel for panel in PANELS if logged & panel.lines.keys()] or PANELS[:1]
    rows = (len(panels) + 1) // 2
    figure = Figure(figsize=(WIDTH, 3.7 * rows + 0.5), layout="constrained")
    for index, panel in enumerate(panels):
        _draw_panel(figure.add_subplot(rows, 2, index + 1), panel, metrics, styles)
    legend_below(figure, run_handles(styles), columns=5)
    return figure


def _draw_panel(axes: Axes, panel: Panel, metrics: Sequence[Metrics], styles: Sequence[RunStyle]) -> None:
    drawn = {}
    for lines, style in zip(metrics, styles, strict=True):
        for name, (label, line_style) in panel.lines.items():
            points = [(line["update"], line[name]) for line in lines if name in line]
            if points:
                marker = "." if len(points) == 1 else ""
                updates, values = zip(*points, strict=True)
                axes.plot(updates, values, line_style, color=style.colour, marker=marker, linewidth=1.5)
                drawn[label] = line_style
    axes.set_yscale(panel.scale)
    axes.set(title=panel.title, xlabel="meta-updates", ylabel=panel.unit)
    tidy(axes)
    if len(drawn) > 1:
        handles = [axes.plot([], [], line_style, color=QUIET, label=label)[0] for label, line_style in drawn.items()]
        axes.legend(handles=handles, loc="upper center", bbox_to_anchor=(0.5, -0.18), ncols=4, frameon=False)
