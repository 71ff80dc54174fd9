"""A user's own data drawn: predictions for groups, errors by the number of examples, and what intervals are worth."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator
from torch import Tensor

from fewsure.core import streams
from fewsure.core.devices import device_of
from fewsure.data.pools import Pool
from fewsure.errors import FewsureError
from fewsure.evaluation.calibrate import calibrated
from fewsure.evaluation.evaluate import evaluate, score_blocks, shared_noise, with_noise
from fewsure.evaluation.metrics.density import mean, quantile
from fewsure.evaluation.scoring.predict import Predict
from fewsure.report.drawing import QUIET, Drawing, legend_below, legend_height, plain, run_handles, tidy
from fewsure.report.runs import ReportedRun
from fewsure.report.styles import GREY, RunStyle
from fewsure.selection.baselines import baselines_of, fitted
from fewsure.training.experiment import Experiment
from fewsure.training.runs import Run
from fewsure.types import Batch, Facts, Noise, Parts, Task

SHOTS = (1, 2, 3, 5, 8, 12, 20, 30)
"""Numbers of known examples that errors are drawn for, up to twice as many as in training."""
TASKS = 200
"""Tasks behind an error; few, as there are several."""
DRAWN_ROWS = 100
"""The most rows of a group that are drawn."""
BASELINE = "baseline"
"""The owner of a baseline's parts."""

Array = npt.NDArray[np.float64]


class GroupPredictions(NamedTuple):
    """A held-out group: the observed labels, and the predictions from a few of its rows."""

    place: str
    """Whether it is the best, the median or the worst of the groups."""
    group: str
    error: float
    """Its mean absolute error over all its tasks."""
    truth: Array
    mean: Array
    low: Array
    high: Array
    """The ends of the 90 % interval."""


@dataclass(frozen=True)
class ByShot:
    """A score by the number of known examples, with its interval where there is one."""

    label: str
    colour: str
    owner: str
    points: Sequence[tuple[int, float, float]]
    """(examples, score, half-width)."""


# Predictions


def predict_groups(run: ReportedRun, seed: int) -> list[GroupPredictions]:
    """The groups with the smallest, the median and the largest error."""
    worst_first = run.result["by_group"]
    places = {"best": -1, "median": len(worst_first) // 2, "worst": 0}
    chosen = {worst_first[index]["group"]: (place, worst_first[index]["mae"]) for place, index in places.items()}
    meta = run.checkpoint.meta
    experiment = calibrated(run.run, device_of(meta)).with_shot(run.result["shot"])
    pool = experiment.data.pool("test").to(device_of(meta))
    return [_predicted(experiment, meta, pool, place, group, error, seed) for group, (place, error) in chosen.items()]


def _predicted(
    experiment: Experiment, meta: Parts, pool: Pool, place: str, group: str, error: float, seed: int
) -> GroupPredictions:
    data, device = experiment.data, device_of(meta)
    number = pool.classes.index(group)
    generator = streams.generator(seed, "report", number, device=device)
    rows = pool.examples[int(pool.starts[number]) : int(pool.starts[number + 1])]
    rows = rows[torch.randperm(len(rows), generator=generator, device=device)].to(torch.get_default_dtype())
    known, asked = rows[: data.test_shot], rows[data.test_shot :][:DRAWN_ROWS]
    support, query = (Batch(part[None, :, :-1], part[None, :, -1:]) for part in (known, asked))
    facts = {"groups": torch.full((1, 1), number, device=device)}
    block = with_noise(experiment, (Task(support, query), facts), {}, generator)

    def ends(predict: Predict, task: Task, facts: Facts, noise: Noise) -> dict[str, Tensor]:
        x = task.query.x
        density = predict.density(x, data.scaled_noise_std, functions=predict(x))
        return {"mean": mean(density), "low": quantile(density, 0.05), "high": quantile(density, 0.95)}

    shared = shared_noise(experiment, seed, "test", device)
    found = score_blocks(experiment, meta, shared, [block], ends, lambda done: None)
    scale = data.fitted_scale
    values = [scale.values(found[name][0]).cpu().numpy() for name in ("mean", "low", "high")]
    return GroupPredictions(place, group, error, scale.values(asked[:, -1]).cpu().numpy(), *values)


def groups_drawing(name: str, title: str, run: ReportedRun, groups: Sequence[GroupPredictions]) -> Drawing:
    """Observed against predicted values, a panel for each group."""
    target, by = run.run.experiment.data.target_column or "target", run.result["grouped_by"]
    caption = (
        f"{title}: {run.style.label} on held-out groups after {run.result['shot']} known rows, with 90 % intervals. On "
        "the dashed line a prediction is right."
    )
    drawing = Drawing(f"groups_{name}_{run.style.owner}", caption, 2.9 * len(groups))
    panels = drawing.figure.subplots(len(groups), 1, squeeze=False)[:, 0]
    for axes, found in zip(panels, groups, strict=True):
        ends = [min(found.truth.min(), found.low.min()), max(found.truth.max(), found.high.max())]
        axes.plot(ends, ends, "--", color=QUIET, linewidth=1)
        reach = [np.maximum(found.mean - found.low, 0), np.maximum(found.high - found.mean, 0)]
        axes.errorbar(
            found.truth, found.mean, yerr=reach, fmt="o", markersize=3, linewidth=0.6, color=run.style.colour, alpha=0.7
        )
        margin = 0.05 * float(np.ptp(found.truth)) or 1.0
        axes.set_xlim(found.truth.min() - margin, found.truth.max() + margin)
        axes.set_title(plain(f"{found.place}: {by} {found.group}") + f", MAE {found.error:.3g}", fontsize="medium")
        axes.set_ylabel("predicted")
        tidy(axes)
        for truth, value, low, high in zip(found.truth, found.mean, found.low, found.high, strict=True):
            says = f"{found.group}: observed {truth:.4g}, predicted {value:.4g} ({low:.4g} to {high:.4g})"
            drawing.mark(axes, float(truth), float(value), run.style.owner, says)
            drawing.record(group=found.group, place=found.place, observed=truth, predicted=value, low=low, high=high)
    panels[-1].set_xlabel(f"observed {plain(target)}")
    return drawing


# Errors by the number of examples


def by_shot(run: ReportedRun, seed: int) -> list[ByShot]:
    """The run's score at several numbers of known examples, and that of its best baseline."""
    lines = [ByShot(run.style.label, run.style.colour, run.style.owner, _scores(run.run, run.result, seed))]
    for baseline in baselines_of(run.run):
        if str(baseline) == run.result.get("best_baseline"):
            found = fitted(run.run, baseline, device_of(run.checkpoint.meta))
            lines.append(ByShot(f"{baseline} (baseline)", GREY, BASELINE, _scores(found, run.result, seed)))
    return lines


def _scores(run: Run, result: Mapping[str, Any], seed: int) -> list[tuple[int, float, float]]:
    device = torch.device("cpu")
    meta, experiment = run.load(device).meta, calibrated(run, device)
    score, most = score_of(result), max(2 * experiment.data.training_shots[1], result["shot"])
    found = []
    for shot in sorted({*(shot for shot in SHOTS if shot <= most), result["shot"]}):
        if shot < experiment.algorithm.min_support:
            continue
        try:
            summary, _ = evaluate(experiment.with_shot(shot), meta, tasks=TASKS, seed=seed)
        except FewsureError:  # no group is large enough, or the method takes no such number
            continue
        found.append((shot, summary[score]["mean"], summary[score].get("ci95", 0.0)))
    return found


def score_of(result: Mapping[str, Any]) -> str:
    """The score that is drawn: the absolute error of numbers, the accuracy of classes."""
    return "mae" if "mae" in result else "accuracy"


def by_shot_drawing(name: str, title: str, result: Mapping[str, Any], lines: Sequence[ByShot]) -> Drawing:
    """The score by the number of known examples."""
    score = "mean absolute error" if score_of(result) == "mae" else "accuracy"
    caption = f"{title}: {score} by the number of known examples, on {TASKS} unseen tasks each, with 95 % intervals."
    drawing = Drawing(f"shots_{name}", caption, 3.2 + legend_height(len(lines), 2))
    axes = drawing.figure.add_subplot()
    for line in lines:
        shots, values, reach = (list(part) for part in zip(*line.points, strict=True))
        style = "--" if line.owner == BASELINE else "-"
        drawn = axes.errorbar(shots, values, yerr=reach, color=line.colour, linestyle=style, marker="o", markersize=4)
        drawing.own(line.owner, drawn.lines[0], *drawn.lines[1], *drawn.lines[2])
        for shot, value, half in line.points:
            drawing.mark(axes, shot, value, line.owner, f"{line.label}: {shot} known, {value:.4g} ± {half:.2g}")
            drawing.record(method=line.label, examples=shot, score=value, ci95=half)
    each = "" if "mae" in result or "fixed_classes" in result else " of each class"
    unit = " (unit of the target)" if "mae" in result else ""
    axes.set(title=f"{TASKS} unseen tasks each", xlabel=f"known examples{each}", ylabel=f"{score}{unit}")
    axes.set_ylim(bottom=0)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    tidy(axes)
    handles = [
        Line2D([], [], color=line.colour, linestyle="--" if line.owner == BASELINE else "-", label=plain(line.label))
        for line in lines
    ]
    legend_below(drawing.figure, handles, columns=2)
    return drawing


# What the intervals are worth


def coverage_drawing(name: str, title: str, runs: Sequence[tuple[RunStyle, Mapping[str, Any]]]) -> Drawing:
    """The share of each group's values that the 90 % intervals hold."""
    caption = (
        f"{title}: the share of observed values in the 90 % intervals, one point for each held-out group. Right ones "
        "hold 90 % on average over groups, and may hold fewer in one group than in another."
    )
    drawing = Drawing(f"coverage_{name}", caption, 3.0 + legend_height(len(runs), 2))
    axes = drawing.figure.add_subplot()
    axes.axhline(0.9, color=QUIET, linestyle="--", linewidth=1)
    for style, result in runs:
        groups = sorted(result["by_group"], key=lambda group: group["coverage_90"])
        places = np.arange(1, len(groups) + 1)
        drawn = axes.plot(places, [group["coverage_90"] for group in groups], "o", markersize=4, color=style.colour)
        drawing.own(style.owner, *drawn)
        for place, group in zip(places.tolist(), groups, strict=True):
            says = (
                f"{style.label}, {group['group']}: {group['coverage_90']:.3f} in intervals of {group['width_90']:.4g}"
            )
            drawing.mark(axes, place, group["coverage_90"], style.owner, says)
            drawing.record(method=style.label, **group)
    axes.set(xlabel="held-out groups, by their coverage", ylabel="share in the 90 % interval", ylim=(-0.03, 1.03))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    tidy(axes)
    legend_below(drawing.figure, run_handles(style for style, _ in runs), columns=2)
    return drawing
