"""Intervals for a new group from the learners of a cross-validation, each of which left out one group.

Where there are too few groups to hold some out for a certificate, all of them take part: jackknife+ over groups.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from torch import Tensor

from fewsure.certification.predictor import summarise
from fewsure.core.config import from_json
from fewsure.errors import FewsureError
from fewsure.learner.adapted import Adapted, adapt
from fewsure.learner.files import Files, Record
from fewsure.learner.inputs import read_inputs
from fewsure.learner.predictor import Predictor
from fewsure.selection.crossval import FILE
from fewsure.theory.conformal import jackknife_intervals, prediction_intervals
from fewsure.training.runs import Run


def left_out_runs(folder: Path) -> list[Run]:
    """The runs of a cross-validation that left out one group each; none in the folder of another kind."""
    if not (folder / FILE).is_file():
        return []
    record = from_json((folder / FILE).read_text(encoding="utf-8"))
    if "jackknife" not in record:
        raise FewsureError(
            f"{folder} has {record['folds']} folds of groups; for intervals leave out one group at a time: `fewsure "
            "crossval … --folds none`"
        )
    return [Run.open(folder / name) for name in record["jackknife"]["learners"]]


def required_coverage(runs: Sequence[Run], coverage: float | None) -> float:
    """The coverage that was asked for: without one, the learners have nothing to say together."""
    if coverage is None:
        raise FewsureError(
            f"{runs[0].folder.parent} holds {len(runs)} learners, which make intervals together: choose --coverage "
            f"0.9; or predict with one of them, such as {runs[0].folder}"
        )
    return coverage


def promise_left_out(runs: Sequence[Run], coverage: float) -> str:
    """The sense in which their intervals hold the truth."""
    endless = "; so few groups make intervals without ends" if coverage > len(runs) / (len(runs) + 1) else ""
    return (
        f"jackknife+ over {len(runs)} groups, each left out by one learner: intervals hold the truth for a new group "
        f"like these with probability {max(0.0, 2 * coverage - 1):g} at least, and as a rule with {coverage:g}{endless}"
    )


def predictions_left_out(
    runs: Sequence[Run],
    device: torch.device,
    target: str | None,
    support: Path,
    query: Path,
    coverage: float,
    batch_size: int,
) -> Iterator[Record]:
    """A record of each query point: the mean of the learners' predictions, and the interval that they make together."""
    tasks: list[Adapted] = []
    points = []
    for run in runs:  # each has its own scale, and its own categories
        predictor = Predictor.of_run(run, device)
        files = Files(predictor.experiment, target)
        tasks.append(adapt(predictor, *files.support(support)))
        points.append(files.query(query, batch_size))
    for batches in zip(*points, strict=True):
        found = [_ends(task, batch.x) for task, batch in zip(tasks, batches, strict=True)]
        means, lower, upper = (torch.stack(parts) for parts in zip(*found, strict=True))
        columns = means.mean(0), *jackknife_intervals(lower, upper, round(1 - coverage, 12))
        for name, *values in zip(batches[0].names, *(column.tolist() for column in columns), strict=True):
            yield {"row": name} | dict(zip(("mean", "lower", "upper"), values, strict=True))


def _ends(task: Adapted, x: object) -> tuple[Tensor, Tensor, Tensor]:
    """A learner's mean (N,), and the ends (P, N) that each of its scores gives, in the target's unit."""
    certified, calibration = task.certified()
    scale = task.predictor.scale
    inputs = read_inputs(x, scale, "x").to(task.predictor.device)
    found = summarise(certified.state.experiment, *certified.basis(inputs))
    scores = calibration.scores.to(found["mean"].device).unsqueeze(-1)
    mean, spread = (found[name].expand(len(scores), -1) for name in ("mean", "spread"))
    lower, upper = prediction_intervals(mean, scores, spread)
    return scale.values(mean[0]).cpu(), scale.values(lower).cpu(), scale.values(upper).cpu()
