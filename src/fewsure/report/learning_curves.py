"""Learning curves: the numbers that runs logged while they were trained."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter, StrMethodFormatter

from fewsure.report.drawing import QUIET, Drawing, legend_below, legend_height, run_handles, tidy
from fewsure.report.styles import RunStyle

SCALED = ("loss", "bound", "gradient")
"""Panels whose numbers depend on the unit of the target."""
MOST_POINTS = 300
"""The points of a drawn curve; its CSV file has all points that were logged."""

VERY_UNEQUAL = 30.0
"""Curves whose largest values differ by more than this factor are drawn on a logarithmic scale."""

Logged = Sequence[Mapping[str, Any]]
"""The logged lines of a run."""


class Curve(NamedTuple):
    """How a logged number is drawn."""

    label: str
    line: Literal["-", "--", "-.", ":"] = "-"
    width: float = 1.5
    opacity: float = 1.0


class Panel(NamedTuple):
    """Numbers of one kind."""

    name: str
    title: str
    unit: str
    scale: Literal["log", "linear"]
    curves: Mapping[str, Curve]
    """By the name they are logged under."""
    note: str = ""
    """Added to the caption where an estimated bound is among the runs."""

    def points(self, lines: Logged, name: str) -> list[tuple[int, float]]:
        """(update, value) of the logged lines that have a number which the panel can show."""
        found = [(int(line["update"]), float(line[name])) for line in lines if name in line]
        return [point for point in found if self.scale == "linear" or point[1] > 0]


PANELS = (
    Panel("loss", "training loss", "loss on query sets", "log", {"loss": Curve("loss")}),
    Panel(
        "bound",
        "bound (an estimate) and its terms",
        "bounded loss (above 1: vacuous)",
        "log",
        {
            # The sum is often close to its largest term, which is then drawn over it.
            "bound": Curve("bound", width=5, opacity=0.35),
            "R_0": Curve("R₀, across tasks", "--"),
            "R_i": Curve("Rᵢ, within a task", "-."),
            "clipped_loss": Curve("clipped loss", ":"),
        },
        " The bound is the sum of the other three.",
    ),
    Panel(
        "kl",
        "KL divergence in the objective",
        "KL divergence (nats)",
        "linear",
        {"kl": Curve("KL"), "critic": Curve("critic's part", ":")},
        " SImPa's KL is an estimate.",
    ),
    Panel(
        "validation",
        "score on validation tasks",
        "NLL (nats per query point)",
        "linear",
        {"validation_nll": Curve("NLL")},
    ),
    Panel("gradient", "meta-gradient", "norm before clipping", "log", {"gradient_norm": Curve("norm")}),
)


def learning_curves_drawings(
    name: str, title: str, runs: Sequence[tuple[RunStyle, Logged]], *, scaled: bool = False
) -> list[Drawing]:
    """Loss, terms of the bound, KL and gradient norm against updates; a panel that no run has logged is left out.

    `scaled` says that training sees the targets at a spread of 1.
    """
    drawings = []
    estimated = any("bound" in line for _, lines in runs for line in lines)
    for panel in PANELS:
        logged = [(style, lines) for style, lines in runs if any(panel.points(lines, name) for name in panel.curves)]
        if logged:
            unit = " Training sees targets at a spread of 1." if scaled and panel.name in SCALED else ""
            caption = (
                f"{title}: {panel.title} over training, as logged; each point is a mean over the updates since the "
                f"last one.{panel.note if estimated else ''}{unit}"
            )
            height = 3.4 + legend_height(len(logged) + len(panel.curves), 3)
            drawing = Drawing(f"training_{panel.name}_{name}", caption, height)
            kinds = _draw_panel(drawing.figure.add_subplot(), drawing, panel, logged)
            legend_below(drawing.figure, [*run_handles(style for style, _ in logged), *kinds], columns=3)
            drawings.append(drawing)
    return drawings


def thinned(values: Sequence[float], most: int = MOST_POINTS) -> list[int]:
    """The positions of at most `most` of the values: the ends, and the lowest and highest of each stretch between.

    Every drawn value was logged, and no spike is lost.

    >>> thinned([0.0, 5.0, 1.0, 2.0, 9.0, 3.0, 0.0], most=6)
    [0, 1, 2, 3, 4, 6]
    """
    inner = range(1, len(values) - 1)
    stretches = (most - 2) // 2
    if len(values) <= most:
        return list(range(len(values)))
    kept = {0, len(values) - 1}
    for number in range(stretches):
        stretch = inner[number * len(inner) // stretches : (number + 1) * len(inner) // stretches]
        kept |= {min(stretch, key=values.__getitem__), max(stretch, key=values.__getitem__)}
    return sorted(kept)


def _draw_panel(axes: Axes, drawing: Drawing, panel: Panel, runs: Sequence[tuple[RunStyle, Logged]]) -> list[Line2D]:
    """Draw the curves. Returns the legend's entries for kinds of lines, where there are several."""
    kinds, largest = [], []
    for name, curve in panel.curves.items():
        drawn = [(style, points) for style, lines in runs if (points := panel.points(lines, name))]
        for style, points in drawn:
            largest.append(max(abs(value) for _, value in points))
            for update, value in points:
                drawing.record(method=style.label, quantity=name, update=update, value=value)
            _draw_curve(axes, drawing, style, curve, points)
        if drawn:
            kind = Line2D([], [], color=QUIET, linestyle=curve.line, linewidth=curve.width, label=curve.label)
            kind.set_alpha(curve.opacity)
            kinds.append(kind)
    if panel.scale == "log":
        axes.set_yscale("log")
        _plain_log_ticks(axes)
    elif max(largest) > VERY_UNEQUAL * min(largest):
        axes.set_yscale("symlog", linthresh=1.0)  # linear between −1 and 1
        axes.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axes.set(title=panel.title[0].upper() + panel.title[1:], xlabel="meta-updates (number)", ylabel=panel.unit)
    axes.set_xlim(left=0)
    axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
    axes.xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    tidy(axes)
    return kinds if len(kinds) > 1 else []


def _draw_curve(
    axes: Axes, drawing: Drawing, style: RunStyle, curve: Curve, points: Sequence[tuple[int, float]]
) -> None:
    shown = [points[position] for position in thinned([value for _, value in points])]
    updates, values = zip(*shown, strict=True)
    lines = axes.plot(
        updates,
        values,
        curve.line,
        color=style.colour,
        linewidth=curve.width,
        alpha=curve.opacity,
        marker="o" if len(points) == 1 else "",  # a line needs two points to be seen
    )
    drawing.own(style.owner, *lines)
    for update, value in shown:
        drawing.mark(axes, update, value, style.owner, f"{style.label}: {curve.label} {value:.4g} at {update:,}")


def _plain_log_ticks(axes: Axes) -> None:
    """Ticks such as 1, 2, 5, 10 instead of powers of ten, which a narrow range may not hold."""
    low, high = axes.get_ylim()
    steps = (1.0, 2.0, 5.0) if math.log10(high / low) < 4 else (1.0,)
    axes.yaxis.set_major_locator(LogLocator(subs=steps))
    axes.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axes.yaxis.set_minor_formatter(NullFormatter())
