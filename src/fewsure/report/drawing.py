"""What all figures share. They are matplotlib's Figure objects alone: no window system, no global state."""

import io
from collections.abc import Sequence
from typing import Literal

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from fewsure.report.styles import RunStyle

WIDTH = 12.0
"""Of every figure, in inches."""
DOTS_PER_INCH = 150
QUIET = "#666666"
"""The colour of what is no run's."""
LONGEST_LABEL = 24


def figure_png(figure: Figure) -> bytes:
    """The figure as a PNG file; it names no software version, so the same numbers give the same bytes."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=DOTS_PER_INCH, metadata={"Software": None})
    return buffer.getvalue()


def plain(label: str) -> str:
    r"""A label that matplotlib shows as it is: it takes $ for mathematics and hides what begins with _.

    A long one loses its middle.

    >>> plain("_cost in $")
    ' _cost in \\$'
    >>> plain("a-run-with-quite-a-long-name-and-seed-17")
    'a-run-with-…-and-seed-17'
    """
    if len(label) > LONGEST_LABEL:
        half = LONGEST_LABEL // 2
        label = f"{label[: half - 1]}…{label[-half:]}"
    return (" " if label.startswith("_") else "") + label.replace("$", r"\$")


def tidy(axes: Axes, grid: Literal["x", "y", "both"] = "both") -> None:
    """No frame on the top and the right, and a faint grid behind the data."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis=grid, color="#DDDDDD", linewidth=0.6)
    axes.set_axisbelow(True)


def run_handles(styles: Sequence[RunStyle], endings: Sequence[str] | None = None) -> list[Line2D]:
    """Legend entries of runs; `endings` follow their labels."""
    return [
        Line2D([], [], color=style.colour, linewidth=2, label=plain(style.label) + ending)
        for style, ending in zip(styles, endings or [""] * len(styles), strict=True)
    ]


def legend_below(figure: Figure, handles: Sequence[Line2D], columns: int = 4) -> None:
    """One legend for the whole figure, below its panels."""
    columns = min(len(handles), columns)
    figure.legend(handles=list(handles), loc="outside lower center", ncols=columns, frameon=False)
