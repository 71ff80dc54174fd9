"""What all figures share. They are matplotlib's Figure objects alone: no window system, no global state.

A `Drawing` is a figure with what the page and the files beside it need: whose each part is, the value at each point,
and the data behind it.
"""

import csv
import io
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, NamedTuple
from xml.etree import ElementTree

import matplotlib
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from fewsure.report.styles import RunStyle

WIDTH = 12.0
"""Of a figure with several panels side by side, in inches."""
PANEL = 4.8
"""Width of a figure with one panel, which can be read on a phone, in inches."""
DOTS_PER_INCH = 150
QUIET = "#666666"
"""The colour of what is no run's."""
LONGEST_LABEL = 24
SVG, LINK = "http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"
OWNED = "of:"
"""What the identifier of a part begins with that belongs to a run."""
PAPER = "paper"
"""The owner of what is the paper's, beside the run that it stands below."""


class Point(NamedTuple):
    """A place in the drawing, in the units of its SVG file, and what is said of it."""

    x: float
    y: float
    owner: str
    text: str


class Drawing:
    """A figure, whose its parts are, what is said at its points, and the rows of its CSV file."""

    def __init__(self, name: str, caption: str, figure: Figure) -> None:
        self.name = name
        """Of its files, without an ending."""
        self.caption = caption
        self.figure = figure
        self.rows: list[dict[str, object]] = []
        self._marks: list[tuple[Axes, float, float, str, str]] = []

    def own(self, owner: str, *artists: Artist) -> None:
        """Say whose these parts are, so that the page can hide them."""
        for artist in artists:
            artist.set_gid(OWNED + owner)

    def mark(self, axes: Axes, x: float, y: float, owner: str, text: str) -> None:
        """Say something at a point of a panel."""
        self._marks.append((axes, x, y, owner, text))

    def record(self, **values: object) -> None:
        """Add a row to the data behind the figure."""
        self.rows.append(values)

    def png(self) -> bytes:
        """As a PNG file."""
        return figure_png(self.figure)

    def csv(self) -> str:
        """The data behind the figure, one row for each point; numbers as they are, not rounded."""
        columns = list(dict.fromkeys(name for row in self.rows for name in row))
        text = io.StringIO()
        writer = csv.DictWriter(text, columns, restval="", lineterminator="\n")
        writer.writeheader()
        writer.writerows(self.rows)
        return text.getvalue()

    def svg(self) -> tuple[ElementTree.Element, list[Point]]:
        """The figure as an SVG element, whose parts say whose they are (`data-of`), and its points."""
        element = _svg_element(self.figure)
        _, _, width, height = (float(number) for number in element.attrib["viewBox"].split())
        points = []
        for axes, x, y, owner, text in self._marks:
            # After drawing, the panels are where the layout has put them.
            at = self.figure.transFigure.inverted().transform(axes.transData.transform((x, y)))
            points.append(Point(round(at[0] * width, 1), round((1 - at[1]) * height, 1), owner, text))
        return element, points


def figure_png(figure: Figure) -> bytes:
    """The figure as a PNG file; it names no software version, so the same numbers give the same bytes."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=DOTS_PER_INCH, metadata={"Software": None})
    return buffer.getvalue()


def svg_file(element: ElementTree.Element) -> bytes:
    """An SVG element as a file of its own."""
    ElementTree.register_namespace("", SVG)
    ElementTree.register_namespace("xlink", LINK)
    return bytes(ElementTree.tostring(element, encoding="utf-8", xml_declaration=True))


def svg_inside_page(element: ElementTree.Element, name: str, colours: Mapping[str, str]) -> str:
    """An SVG element as HTML holds it: its identifiers begin with `name`, and `colours` are exchanged in its styles."""
    copy = ElementTree.fromstring(ElementTree.tostring(element))

    def exchanged(style: str) -> str:
        return re.sub(r"#[0-9a-f]{6}\b", lambda found: colours.get(found[0], found[0]), style)

    for part in copy.iter():
        part.tag = part.tag.rpartition("}")[2]
        for attribute, value in list(part.attrib.items()):
            del part.attrib[attribute]
            value = re.sub(r"url\(#", f"url(#{name}-", value)
            if attribute == "id":
                value = f"{name}-{value}"
            elif attribute == f"{{{LINK}}}href":
                attribute, value = "href", f"#{name}-{value[1:]}" if value.startswith("#") else value
            elif attribute in ("style", "fill", "stroke"):
                value = exchanged(value)
            part.attrib[attribute] = value
    for size in ("width", "height"):
        copy.attrib.pop(size, None)
    return ElementTree.tostring(copy, encoding="unicode")


def _svg_element(figure: Figure) -> ElementTree.Element:
    buffer = io.BytesIO()
    nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "fewsure"}):
        figure.savefig(buffer, format="svg", metadata=nothing)
    root = ElementTree.fromstring(buffer.getvalue())
    for metadata in root.findall(f"{{{SVG}}}metadata"):
        root.remove(metadata)
    text = buffer.getvalue().decode()
    referred = set(re.findall(r"url\(#([^)]+)\)", text)) | set(re.findall(r'href="#([^"]+)"', text))
    for part in root.iter():
        name = part.attrib.get("id", "")
        if name.startswith(OWNED):
            part.attrib["data-of"] = name.removeprefix(OWNED)
        if name not in referred:
            part.attrib.pop("id", None)
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
    """Of a legend below a figure, in inches."""
    return 0.2 * -(-entries // columns)


def legend_below(figure: Figure, handles: Sequence[Line2D], columns: int = 4) -> None:
    """One legend for the whole figure, below its panels."""
    columns = min(len(handles), columns)
    figure.legend(handles=list(handles), loc="outside lower center", ncols=columns, frameon=False, fontsize="small")
