"""Unseen images: what a run adapts to, how probable it thinks each class is, and its most confident mistakes."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor
from torch.nn import functional

from fewsure.report.drawing import PANEL, Drawing, legend_below, run_handles, tidy
from fewsure.report.styles import RunStyle
from fewsure.report.unseen import UnseenImages

QUERIES = 6
"""Query images that are shown of a task."""
MISTAKES = 4
"""Most confident mistakes that are shown of a run."""
MOST_CLASSES = 6
"""Classes that are shown beside an image."""
SUPPORT_EACH = 2
"""Support images that are shown of a class."""
LARGEST = 56
"""Pixels of an image as it is shown; larger ones are made smaller, so that a page stays small."""


class Samples(NamedTuple):
    """What a run says of images, how it is drawn, and its number in the report."""

    images: UnseenImages
    style: RunStyle
    owner: str


class Mistake(NamedTuple):
    """A query example whose most probable class is not its own."""

    task: int
    query: int
    label: int
    confidence: float


def gallery_drawings(name: str, title: str, runs: Sequence[Samples]) -> list[Drawing]:
    """The support images of the first task, its first query images, and the most confident mistakes of each run.

    Runs that saw other tasks than the first run are shown with their mistakes alone.
    """
    images = runs[0].images
    same = [run for run in runs if run.images.query.shape == images.query.shape]
    same = [run for run in same if torch.equal(run.images.query, images.query)]
    drawings = [_support(f"support_{name}", title, images), _queries(f"queries_{name}", title, same)]
    for run in runs:
        found = confident_mistakes(run.images)
        if found:
            drawings.append(_mistakes(f"mistakes_{name}_{int(run.owner) + 1}", title, run, found))
    return drawings


def confident_mistakes(images: UnseenImages, most: int = MISTAKES) -> list[Mistake]:
    """The mistakes with the highest probabilities, the highest first."""
    confidence, label = images.probabilities.max(-1)
    wrong = label != images.labels
    order = torch.where(wrong, confidence, -torch.inf).flatten().argsort(descending=True, stable=True)
    queries = confidence.shape[1]
    places = [divmod(int(place), queries) for place in order[: min(most, int(wrong.sum()))]]
    return [Mistake(task, query, int(label[task, query]), float(confidence[task, query])) for task, query in places]


def _support(name: str, title: str, images: UnseenImages) -> Drawing:
    way = len(images.names[0])
    shot = images.support.shape[1] // way
    each, columns = min(shot, SUPPORT_EACH), min(way, 5)
    shown = f", {each} of {shot} of each class" if each < shot else ""
    caption = f"{title}: the support images of the first unseen task, which a run adapts to{shown}."
    rows = -(-way // columns)
    figure = Figure(figsize=(PANEL, rows * (0.95 * each + 0.5)), layout="constrained")
    drawing = Drawing(name, caption, figure)
    panels = figure.subplots(rows * each, columns, squeeze=False)
    for axes in panels.flatten():
        axes.set_axis_off()
    for number, label in enumerate(images.names[0]):
        for example in range(each):
            axes = panels[number // columns * each + example, number % columns]
            _show(axes, images.support[0, number * shot + example])
            if example == 0:
                axes.set_title(f"class {number + 1}", fontsize="small")
            drawing.mark(axes, 0.5, 0.5, "", f"class {number + 1}: {label}")
            drawing.record(image=example + 1, number=number + 1, name=label)
    return drawing


def _queries(name: str, title: str, runs: Sequence[Samples]) -> Drawing:
    images = runs[0].images
    way, queries = len(images.names[0]), images.query.shape[1]
    # One of each class in turn, then the second ones.
    order = sorted(range(queries), key=lambda query: (query % (queries // way), query))[:QUERIES]
    caption = (
        f"{title}: query images of the first unseen task, and the probability that each class has after adapting "
        "to the support images. The true class is marked."
    )
    drawing, rows = _picture_rows(name, caption, len(order), runs)
    for (picture, bars), query in zip(rows, order, strict=True):
        truth = int(images.labels[0, query])
        _show(picture, images.query[0, query])
        picture.set_title(f"class {truth + 1}", fontsize="small")
        _draw_probabilities(bars, drawing, runs, (0, query), truth)
    return drawing


def _mistakes(name: str, title: str, run: Samples, found: Sequence[Mistake]) -> Drawing:
    images = run.images
    caption = (
        f"{title}: the most confident mistakes of {run.style.label} on the query images of "
        f"{len(images.query)} unseen tasks: the image, a support image of the class it was taken for, and the "
        "probabilities."
    )
    drawing, rows = _picture_rows(name, caption, len(found), [run], pictures=2)
    shot = images.support.shape[1] // len(images.names[0])
    for (picture, other, bars), mistake in zip(rows, found, strict=True):
        truth = int(images.labels[mistake.task, mistake.query])
        _show(picture, images.query[mistake.task, mistake.query])
        picture.set_title(f"is class {truth + 1}", fontsize="small")
        _show(other, images.support[mistake.task, mistake.label * shot])
        other.set_title(f"taken for {mistake.label + 1}", fontsize="small")
        _draw_probabilities(bars, drawing, [run], (mistake.task, mistake.query), truth)
    return drawing


def _picture_rows(
    name: str, caption: str, count: int, runs: Sequence[Samples], pictures: int = 1
) -> tuple[Drawing, list[tuple[Axes, ...]]]:
    """A drawing of rows, each of pictures and a panel for bars."""
    height = max(1.15, 0.3 + 0.14 * MOST_CLASSES + 0.05 * MOST_CLASSES * len(runs))
    figure = Figure(figsize=(PANEL, count * height + 0.7), layout="constrained")
    panels = figure.subplots(count, pictures + 1, squeeze=False, width_ratios=[*[1.0] * pictures, 3.0 - 0.6 * pictures])
    for row in panels:
        for axes in row[:-1]:
            axes.set_axis_off()
    panels[-1, -1].set_xlabel("probability")
    if len(runs) > 1:
        legend_below(figure, run_handles(run.style for run in runs), columns=3)
    return Drawing(name, caption, figure), [tuple(row) for row in panels]


def _draw_probabilities(
    axes: Axes, drawing: Drawing, runs: Sequence[Samples], place: tuple[int, int], truth: int
) -> None:
    task, query = place
    names = runs[0].images.names[task]
    table = torch.stack([run.images.probabilities[task, query] for run in runs])
    shown = _shown_classes(table, truth)
    height = 0.8 / len(runs)
    for number, run in enumerate(runs):
        for row, label in enumerate(shown):
            probability = float(table[number, label])
            at = row + (number - (len(runs) - 1) / 2) * height
            drawing.own(run.owner, *axes.barh(at, probability, 0.9 * height, color=run.style.colour))
            text = f"{run.style.label}: class {label + 1} ({names[label]}) {probability:.4f}"
            drawing.mark(axes, probability, at, run.owner, text)
    for number, run in enumerate(runs):
        for label, probability in enumerate(table[number].tolist()):
            drawing.record(
                task=task + 1,
                query=query + 1,
                method=run.style.label,
                number=label + 1,
                name=names[label],
                is_true=label == truth,
                probability=probability,
            )
    axes.set_yticks(range(len(shown)), [f"{label + 1}{' true' if label == truth else ''}" for label in shown])
    axes.tick_params(labelsize="small")
    axes.set(xlim=(0, 1), ylim=(len(shown) - 0.5, -0.5), ylabel="class")
    axes.yaxis.label.set_fontsize("small")
    tidy(axes, grid="x")


def _shown_classes(table: Tensor, truth: int) -> list[int]:
    """The most probable classes and the true one, in the order of their numbers."""
    likely = table.max(0).values.argsort(descending=True, stable=True).tolist()
    others = [label for label in likely if label != truth]
    return sorted([truth, *others[: MOST_CLASSES - 1]])


def _show(axes: Axes, image: Tensor) -> None:
    axes.imshow(_pixels(image), interpolation="none", extent=(0, 1, 0, 1))


def _pixels(image: Tensor) -> npt.NDArray[np.uint8]:
    """(C, H, W) in [0, 1] → (H, W, 3) of bytes, no larger than `LARGEST`."""
    largest = max(image.shape[1:])
    if largest > LARGEST:
        size = [round(side * LARGEST / largest) for side in image.shape[1:]]
        image = functional.interpolate(image.unsqueeze(0), size, mode="area").squeeze(0)
    rgb = image.expand(3, -1, -1) if image.shape[0] == 1 else image[:3]
    pixels: npt.NDArray[np.uint8] = (rgb * 255).round().to(torch.uint8).permute(1, 2, 0).numpy()
    return pixels
