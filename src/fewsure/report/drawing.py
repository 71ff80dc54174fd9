"""The base of all figures: matplotlib's Figure objects alone, with no window system and no global state.

A `Drawing` is a figure with the owner of each part, a text at each point, and the data behind it.
"""

import copy
import csv
import io
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Literal
from xml.etree import ElementTree

import matplotlib
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from fewsure.report.styles import RunStyle

WIDTH = 12.0
"""Inches of a figure with several panels side by side."""
PANEL = 4.8
"""Inches of a figure with one panel, which can be read on a phone."""
DOTS_PER_INCH = 150
QUIET = "#666666"
"""The colour of parts that belong to no run."""
LONGEST_LABEL = 24
SVG, LINK = "http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"
OWNED = "of:"
"""The beginning of the identifier of a part that belongs to a run."""
PAPER = "paper"
"""The owner of the paper's parts, beside the run that they stand below."""

ElementTree.register_namespace("", SVG)
ElementTree.register_namespace("xlink", LINK)


class Drawing:
    """A figure, the owners of its parts, the texts at its points, and the rows of its CSV file."""

    def __init__(self, name: str, caption: str, height: float, width: float = PANEL) -> None:
        self.name = name
        """The name of its files, without an ending."""
        self.caption = caption
        self.figure = Figure(figsize=(width, height), layout="constrained")
        self.rows: list[dict[str, object]] = []
        self._marks: list[tuple[Axes, float, float, str, str]] = []

    def own(self, owner: str, *artists: Artist) -> None:
        """Give these parts to an owner, so that the page can hide them."""
        for artist in artists:
            artist.set_gid(OWNED + owner)

    def mark(self, axes: Axes, x: float, y: float, owner: str, text: str) -> None:
        """Put a text at a point of a panel."""
        self._marks.append((axes, x, y, owner, text))

    def record(self, **values: object) -> None:
        """Add a row to the data behind the figure."""
        self.rows.append(values)

    @cached_property
    def svg(self) -> ElementTree.Element:
        """The figure as an SVG element, whose parts name their owner (`data-of`); the layout stays as it is there."""
        element = _svg_element(self.figure, self.name)
        self.figure.set_layout_engine("none")
        return element

    def points(self) -> list[tuple[float, float, str, str]]:
        """(x, y, owner, text) of each point, in the units of the SVG element."""
        _, _, width, height = (float(number) for number in self.svg.attrib["viewBox"].split())
        points = []
        for axes, x, y, owner, text in self._marks:
            at = self.figure.transFigure.inverted().transform(axes.transData.transform((x, y)))
            points.append((round(at[0] * width, 1), round((1 - at[1]) * height, 1), owner, text))
        return points

    def csv(self) -> str:
        """The data behind the figure, one row for each point; numbers are not rounded."""
        columns = list(dict.fromkeys(name for row in self.rows for name in row))
        text = io.StringIO()
        writer = csv.DictWriter(text, columns, restval="", lineterminator="\n")
        writer.writeheader()
        writer.writerows(self.rows)
        return text.getvalue()


def figure_png(figure: Figure) -> bytes:
    """The figure as a PNG file; it names no software version, so the same numbers give the same bytes."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=DOTS_PER_INCH, metadata={"Software": None})
    return buffer.getvalue()


def svg_file(element: ElementTree.Element) -> bytes:
    """An SVG element as a file of its own."""
    return bytes(ElementTree.tostring(element, encoding="utf-8", xml_declaration=True))


def svg_inside_page(element: ElementTree.Element, colours: Mapping[str, str]) -> str:
    """An SVG element as HTML holds it, with `colours` exchanged in its styles."""

    def exchanged(colour: re.Match[str]) -> str:
        return colours.get(colour[0], colour[0])

    inside = copy.deepcopy(element)
    for part in inside.iter():
        part.tag = part.tag.rpartition("}")[2]
        for name in part.attrib.keys() & {"style", "fill", "stroke"}:
            part.attrib[name] = re.sub(r"#[0-9a-f]{6}\b", exchanged, part.attrib[name])
        if (link := part.attrib.pop(f"{{{LINK}}}href", None)) is not None:
            part.attrib["href"] = link
    for size in ("width", "height"):
        del inside.attrib[size]
    return ElementTree.tostring(inside, encoding="unicode")


def _svg_element(figure: Figure, name: str) -> ElementTree.Element:
    """The figure as SVG, without what nothing refers to; its identifiers begin with `name`."""
    buffer = io.BytesIO()
    nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "fewsure"}):
        figure.savefig(buffer, format="svg", metadata=nothing)
    text = buffer.getvalue().decode()
    referred = set(re.findall(r'(?:url\(|href=")#([^)"]+)', text))
    root = ElementTree.fromstring(text)
    for metadata in root.findall(f"{{{SVG}}}metadata"):
        root.remove(metadata)
    for part in root.iter():
        identifier = part.attrib.pop("id", "")
        if identifier.startswith(OWNED):
            part.attrib["data-of"] = identifier.removeprefix(OWNED)
        for attribute, value in part.attrib.items():
            if attribute == f"{{{LINK}}}href" and value.startswith("#"):
                part.attrib[attribute] = f"#{name}-{value[1:]}"
            elif "url(#" in value:
                part.attrib[attribute] = value.replace("url(#", f"url(#{name}-")
        if identifier in referred:
            part.attrib["id"] = f"{name}-{identifier}"
    return root


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


def run_handles(styles: Iterable[RunStyle], ending: str = "") -> list[Line2D]:
    """Legend entries of runs; `ending` follows their labels."""
    return [Line2D([], [], color=style.colour, linewidth=2, label=plain(style.label) + ending) for style in styles]


def legend_height(entries: int, columns: int) -> float:
    """Inches of a legend below a figure."""
    return 0.2 * -(-entries // columns)


def legend_below(figure: Figure, handles: Sequence[Line2D], columns: int = 4) -> None:
    """One legend for the whole figure, below its panels."""
    columns = min(len(handles), columns)
    figure.legend(handles=list(handles), loc="outside lower center", ncols=columns, frameon=False, fontsize="small")
