"""Unseen images: the support images of a task, the probability of each class, and the most confident mistakes."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from matplotlib.axes import Axes
from torch import Tensor
from torch.nn import functional

from fewsure.report.drawing import Drawing, legend_below, run_handles, tidy
from fewsure.report.styles import RunStyle
from fewsure.report.unseen_tasks import UnseenImages

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

Classified = tuple[RunStyle, UnseenImages]


class Mistake(NamedTuple):
    """A query example whose most probable class is not its own."""

    task: int
    query: int
    label: int
    confidence: float


def gallery_drawings(name: str, title: str, runs: Sequence[Classified]) -> list[Drawing]:
    """The support images of the first task, its first query images, and the most confident mistakes of each run.

    Runs that saw other tasks than the first run are shown with their mistakes alone.
    """
    images = runs[0][1]
    same = [run for run in runs if torch.equal(run[1].query, images.query)]
    drawings = [_support(f"support_{name}", title, images), _queries(f"queries_{name}", title, same)]
    for run in runs:
        if found := confident_mistakes(run[1]):
            drawings.append(_mistakes(f"mistakes_{name}_{int(run[0].owner) + 1}", title, run, found))
    return drawings


def confident_mistakes(images: UnseenImages) -> list[Mistake]:
    """The mistakes with the highest probabilities, the highest first."""
    confidence, label = images.probabilities.max(-1)
    wrong = label != images.labels
    order = torch.where(wrong, confidence, -torch.inf).flatten().argsort(descending=True, stable=True)
    places = [divmod(int(place), confidence.shape[1]) for place in order[: min(MISTAKES, int(wrong.sum()))]]
    return [Mistake(task, query, int(label[task, query]), float(confidence[task, query])) for task, query in places]


def _support(name: str, title: str, images: UnseenImages) -> Drawing:
    way = len(images.names[0])
    shot = images.support.shape[1] // way
    each, columns = min(shot, SUPPORT_EACH), min(way, 5)
    shown = f", {each} of {shot} of each class" if each < shot else ""
    caption = f"{title}: the support images of the first unseen task, which a run adapts to{shown}."
    rows = -(-way // columns)
    drawing = Drawing(name, caption, rows * (0.95 * each + 0.5))
    panels = drawing.figure.subplots(rows * each, columns, squeeze=False)
    for axes in panels.flatten():
        axes.set_axis_off()
    for number, label in enumerate(images.names[0]):
        for example in range(each):
            axes = panels[number // columns * each + example, number % columns]
            _show(axes, images.support[0, number * shot + example], f"class {number + 1}" if example == 0 else "")
            drawing.mark(axes, 0.5, 0.5, "", f"class {number + 1}: {label}")
            drawing.record(image=example + 1, number=number + 1, name=label)
    return drawing


def _queries(name: str, title: str, runs: Sequence[Classified]) -> Drawing:
    images = runs[0][1]
    way, queries = len(images.names[0]), images.query.shape[1]
    # One of each class in turn, then the second ones.
    order = sorted(range(queries), key=lambda query: (query % (queries // way), query))[:QUERIES]
    caption = (
        f"{title}: query images of the first unseen task, and the probability that each class has after adapting "
        "to the support images. The true class is marked."
    )
    drawing, rows = _picture_rows(name, caption, len(order), runs, pictures=1)
    for (picture, bars), query in zip(rows, order, strict=True):
        _show(picture, images.query[0, query], f"class {int(images.labels[0, query]) + 1}")
        _draw_probabilities(bars, drawing, runs, 0, query)
    return drawing


def _mistakes(name: str, title: str, run: Classified, found: Sequence[Mistake]) -> Drawing:
    style, images = run
    caption = (
        f"{title}: the most confident mistakes of {style.label} on the query images of {len(images.query)} unseen "
        "tasks: the image, a support image of the class it was taken for, and the probabilities."
    )
    drawing, rows = _picture_rows(name, caption, len(found), [run], pictures=2)
    shot = images.support.shape[1] // len(images.names[0])
    for (picture, other, bars), (task, query, label, _) in zip(rows, found, strict=True):
        _show(picture, images.query[task, query], f"is class {int(images.labels[task, query]) + 1}")
        _show(other, images.support[task, label * shot], f"taken for {label + 1}")
        _draw_probabilities(bars, drawing, [run], task, query)
    return drawing


def _picture_rows(
    name: str, caption: str, count: int, runs: Sequence[Classified], *, pictures: int
) -> tuple[Drawing, list[tuple[Axes, ...]]]:
    """A drawing of rows, each of pictures and a panel for bars."""
    height = max(1.15, 0.3 + 0.14 * MOST_CLASSES + 0.05 * MOST_CLASSES * len(runs))
    drawing = Drawing(name, caption, count * height + 0.7)
    ratios = [*[1.0] * pictures, 3.0 - 0.6 * pictures]
    panels = drawing.figure.subplots(count, pictures + 1, squeeze=False, width_ratios=ratios)
    for axes in panels[:, :-1].flatten():
        axes.set_axis_off()
    panels[-1, -1].set_xlabel("probability")
    if len(runs) > 1:
        legend_below(drawing.figure, run_handles(style for style, _ in runs), columns=3)
    return drawing, [tuple(row) for row in panels]


def _draw_probabilities(axes: Axes, drawing: Drawing, runs: Sequence[Classified], task: int, query: int) -> None:
    names, truth = runs[0][1].names[task], int(runs[0][1].labels[task, query])
    table = torch.stack([images.probabilities[task, query] for _, images in runs])
    shown = _shown_classes(table, truth)
    height = 0.8 / len(runs)
    for number, ((style, _), probabilities) in enumerate(zip(runs, table.tolist(), strict=True)):
        for row, label in enumerate(shown):
            at = row + (number - (len(runs) - 1) / 2) * height
            drawing.own(style.owner, *axes.barh(at, probabilities[label], 0.9 * height, color=style.colour))
            text = f"{style.label}: class {label + 1} ({names[label]}) {probabilities[label]:.4f}"
            drawing.mark(axes, probabilities[label], at, style.owner, text)
        for label, probability in enumerate(probabilities):
            drawing.record(
                task=task + 1,
                query=query + 1,
                method=style.label,
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


def _show(axes: Axes, image: Tensor, title: str) -> None:
    axes.imshow(_pixels(image), interpolation="none", extent=(0, 1, 0, 1))
    axes.set_title(title, fontsize="small")


def _pixels(image: Tensor) -> npt.NDArray[np.uint8]:
    """(C, H, W) in [0, 1] → (H, W, 3) of bytes, no larger than `LARGEST`."""
    largest = max(image.shape[1:])
    if largest > LARGEST:
        size = [round(side * LARGEST / largest) for side in image.shape[1:]]
        image = functional.interpolate(image.unsqueeze(0), size, mode="area").squeeze(0)
    rgb = image.expand(3, -1, -1) if image.shape[0] == 1 else image[:3]
    pixels: npt.NDArray[np.uint8] = (rgb * 255).round().to(torch.uint8).permute(1, 2, 0).numpy()
    return pixels
