"""Draws the rooms of the package and the way of the data: `python tests/rooms.py docs/figures/rooms.svg`.

The rooms and their layers are those of the import contract in pyproject.toml. Time goes from left to right.
"""

import sys
import tomllib
from collections.abc import Iterator
from html import escape
from itertools import pairwise
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CAPTIONS = {
    "cli": "one file a command; options are dataclasses",
    "reproduce": "the paper's experiments",
    "bench": "timings",
    "report": "figures, tables and one page of runs",
    "sklearn": "estimators of scikit-learn's kind",
    "learner": "the Python interface",
    "features": "a pretrained ResNet",
    "selection": "baselines beside a run; one of several methods; folds",
    "pipeline": "train, calibrate and evaluate a run, with progress",
    "certification": "certificates and thresholds of a trained run",
    "evaluation": "scores of unseen tasks, metrics, temperature, noise",
    "training": "experiment, presets, meta-gradient, loop, run folder",
    "algorithms": "one paper, one file",
    "data": "task samplers",
    "posteriors": "families q(w; λ): from parameters to sampled weights",
    "theory": "bounds, divergences, conformal sets; numbers, no models",
    "networks": "functions of their weights; losses",
    "kernels": "fused functions for a GPU, each equal to a plain path",
    "core": "vectorise, random streams, gradients, files, devices",
    "types": "Batch, Task, Network, Algorithm: the shared language",
    "errors": "one exception",
    "version": "one number",
}
WAY = (
    ("data", "tasks"),
    ("algorithms", "adapt"),
    ("posteriors", "posterior"),
    ("algorithms", "predict"),
    ("evaluation", "score"),
    ("certification", "certify"),
    ("report", "report"),
)
"""(room, step): what happens to a task, from left to right."""
LOOP = ("training", "loss", 1)
"""(room, step, column): the upper level, which changes the parameters that a task adapts."""
LEFT, NAMES, COLUMN, LANE, TOP = 34, 344, 78, 44, 34
CHIP = (66, 26)


def layers() -> list[list[str]]:
    """The rooms of each layer, from top to bottom."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"][
        "contracts"
    ]
    (listed,) = (contract["layers"] for contract in contracts if contract["type"] == "layers")
    return [[room.strip() for room in layer.split("|")] for layer in listed]


def picture() -> str:
    """The picture as SVG."""
    rows = layers()
    width, height = LEFT + NAMES + COLUMN * len(WAY) + 12, TOP + LANE * len(rows) + 8
    style = "font: 13px sans-serif; fill: #1d2b30"
    body = [*lanes(rows, width), *frame(height), *arrows(rows), *chips(rows)]
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
            f'role="img" aria-label="The rooms of the package from top to bottom, and the way of a task through them">',
            '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" orient="auto">'
            '<path d="M0 0 8 4 0 8z" fill="#00695c"/></marker></defs>',
            f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
            f'<g style="{style}">',
            *body,
            "</g>",
            "</svg>",
            "",
        ]
    )


def lanes(rows: list[list[str]], width: int) -> Iterator[str]:
    """A lane for each layer, with the names of its rooms."""
    for number, rooms in enumerate(rows):
        y = TOP + number * LANE
        fill = "#eef4f3" if number % 2 == 0 else "#f8fbfa"
        yield f'<rect x="{LEFT}" y="{y}" width="{width - LEFT - 8}" height="{LANE}" fill="{fill}"/>'
        for place, room in enumerate(rooms):
            x = LEFT + 10 + place * NAMES // len(rooms)
            yield f'<text x="{x}" y="{y + 18}" font-weight="bold">{escape(room)}</text>'
            yield f'<text x="{x}" y="{y + 35}" font-size="12">{escape(CAPTIONS[room])}</text>'


def frame(height: int) -> Iterator[str]:
    """The two directions, in words."""
    x = LEFT + NAMES
    yield f'<text x="{x + 8}" y="21">the way of a task</text>'
    yield line(x + 120, 17, x + 250, 17)
    yield f'<text transform="translate(12 {TOP + 104}) rotate(90)" text-anchor="middle">imports go down</text>'
    yield line(16, TOP + 170, 16, height - 20)


def arrows(rows: list[list[str]]) -> Iterator[str]:
    """From each step to the next."""
    steps = [centre(rows, room, column) for column, (room, _) in enumerate(WAY)]
    half, rise = CHIP[0] / 2, CHIP[1] / 2
    for (x, y), (to_x, to_y) in pairwise(steps):
        if y == to_y:
            yield line(x + half, y, to_x - half, to_y)
        else:
            end = to_y - rise if to_y > y else to_y + rise
            yield line(x + half, y, to_x, end, bends=True)
    x, y = centre(rows, LOOP[0], LOOP[2])
    _, below = steps[LOOP[2]]
    yield line(x - 8, below - rise, x - 8, y + rise)
    yield line(x + 8, y + rise, x + 8, below - rise)


def chips(rows: list[list[str]]) -> Iterator[str]:
    """The steps."""
    steps = [(*step, column) for column, step in enumerate(WAY)]
    for room, step, column in [*steps, LOOP]:
        x, y = centre(rows, room, column)
        fill = "#ef6c00" if (room, step, column) == LOOP else "#00796b"
        left, top = x - CHIP[0] / 2, y - CHIP[1] / 2
        yield f'<rect x="{left:g}" y="{top:g}" width="{CHIP[0]}" height="{CHIP[1]}" rx="6" fill="{fill}"/>'
        yield f'<text x="{x:g}" y="{y + 5:g}" text-anchor="middle" style="fill: #ffffff">{escape(step)}</text>'


def centre(rows: list[list[str]], room: str, column: int) -> tuple[float, float]:
    """Where a step of a room lies."""
    (row,) = (number for number, rooms in enumerate(rows) if room in rooms)
    return LEFT + NAMES + COLUMN * (column + 0.5), TOP + LANE * (row + 0.5)


def line(x: float, y: float, to_x: float, to_y: float, *, bends: bool = False) -> str:
    """An arrow, straight or first to the side."""
    way = f"H{to_x:g}V{to_y:g}" if bends else f"L{to_x:g} {to_y:g}"
    return f'<path d="M{x:g} {y:g}{way}" fill="none" stroke="#00695c" marker-end="url(#tip)"/>'


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(picture(), encoding="utf-8")
