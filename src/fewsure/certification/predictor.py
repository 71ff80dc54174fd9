"""The predictor that is certified, and that predicts: a checkpoint, and one draw of every random number that it uses.

θ, the noise of adaptation and the latents of the functions are drawn once, on the CPU, from (seed, "certify", "draws").
They are the same for every task. The predictor is then one function of a task's support set and a query point, so the
scores of exchangeable tasks are exchangeable. `fewsure.Learner` computes the same function: the draws are stored with
the calibration, and predictions with coverage use `draws_of`.
"""

import hashlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from fewsure.core import streams
from fewsure.core.devices import device_of
from fewsure.core.vectorise import count, draw_per_task
from fewsure.errors import FewsureError, require
from fewsure.evaluation.calibrate import calibrated
from fewsure.evaluation.evaluate import UnseenBlock, score_blocks
from fewsure.evaluation.metrics.density import mean, std
from fewsure.evaluation.metrics.scores import class_probabilities
from fewsure.evaluation.metrics.summary import TaskMean
from fewsure.evaluation.scoring.predict import Predict
from fewsure.theory import conformal
from fewsure.theory.conformal import (
    Calibration,
    conformal_threshold,
    prediction_intervals,
    prediction_sets,
    probability_scores,
    residual_scores,
)
from fewsure.training.experiment import Experiment
from fewsure.training.runs import FITTED, Checkpoint, Run
from fewsure.types import Facts, Mixture, Model, Noise, Parts, Task


def calibration_file(run: Run, shot: int) -> Path:
    """The file of a run folder with its calibration for tasks with so many support examples (of each class)."""
    return run.folder / f"conformal-{shot}.safetensors"


def calibrated_shots(run: Run) -> dict[int, int]:
    """The numbers of examples that a run is calibrated for, in order, with the times of their files."""
    found = [path.stem.removeprefix("conformal-") for path in run.folder.glob("conformal-*.safetensors")]
    numbers = sorted(int(shot) for shot in found if shot.isascii() and shot.isdecimal())
    return {shot: calibration_file(run, shot).stat().st_mtime_ns for shot in numbers}


def calibration_of(run: Run, shot: int | None = None) -> Calibration | None:
    """The calibration that `fewsure certify` made for the run's checkpoint; None before it was run.

    It is for tasks with `shot` support examples, or so many of each class; by default as many as the run tests with. A
    calibration of another checkpoint is refused: its coverage would not hold.
    """
    path = calibration_file(run, run.experiment.data.test_shot if shot is None else shot)
    if not path.is_file():
        return None
    calibration = conformal.load(path)
    if calibration.checkpoint != checkpoint_digest(run):
        raise FewsureError(f"{path} belongs to another checkpoint; run `fewsure certify {run.folder}` again")
    return calibration


class Draws(NamedTuple):
    """The random numbers of a predictor: it uses these for every task."""

    shared: Noise
    """θ, and what else tasks share in training."""
    adapt: Noise
    """The noise of one task's adaptation."""
    predict: Noise
    """The noise of the functions that are sampled."""

    def flat(self) -> dict[str, Tensor]:
        """By names such as `adapt/z`."""
        return {f"{part}/{name}": draw for part, noise in self._asdict().items() for name, draw in noise.items()}

    def to(self, device: torch.device | str) -> "Draws":
        """The same numbers on a device."""
        moved: Draws = pytree.tree_map(lambda draw: draw.to(device), self)
        return moved


def new_draws(experiment: Experiment, seed: int, samples: int, model: Model | None = None) -> Draws:
    """The random numbers of a predictor with so many functions, on the CPU, so that every device has the same ones.

    `model` is that of tasks with another number of classes than the experiment's.
    """
    algorithm, model, data = experiment.method, model or experiment.model, experiment.data
    shared, own = algorithm.noise(model, data.support_size, data.query_size)
    specified = shared, own, algorithm.prediction_noise(model, samples, data.support_size)
    generator = streams.generator(seed, "certify", "draws")
    return Draws(*({name: draw[0] for name, draw in draw_per_task(part, 1, generator).items()} for part in specified))


def draws_of(calibration: Calibration, experiment: Experiment) -> Draws:
    """The random numbers with which a task must be adapted and predicted for the calibration to hold, on the CPU."""
    like = new_draws(experiment, calibration.seed, calibration.samples)
    expected, found = (_shapes(draws) for draws in (like.flat(), calibration.draws))
    require(found == expected, "calibration", f"of this experiment, whose random numbers are {expected}", found)
    parts = like._asdict().items()
    return Draws(*({name: calibration.draws[f"{part}/{name}"] for name in noise} for part, noise in parts))


def _shapes(draws: Mapping[str, Tensor]) -> dict[str, tuple[int, ...]]:
    return {name: tuple(draw.shape) for name, draw in draws.items()}


def with_coverage(
    calibration: Calibration,
    experiment: Experiment,
    outputs: Tensor,
    density: Mixture | None = None,
    *,
    shot: int,
    coverage: float,
) -> Tensor | tuple[Tensor, Tensor]:
    """Prediction sets (N, C) of true and false, or intervals (lower (N,), upper (N,)), that hold the truth.

    `outputs` (S, N, C) come from `calibration.samples` functions at the N query points of one task. The task has `shot`
    support examples (of each class, or in all for regression). A task that differs from the calibration tasks is
    refused. `coverage` is marginal: the probability for one point of a new task of `calibration.environment`. With too
    few calibration tasks for it, every label belongs to a set, and an interval is the whole line.
    """
    require(0 < coverage < 1, "coverage", "a probability in (0, 1)", coverage)
    way = experiment.model.outputs if experiment.model.kind == "classification" else None
    calibration.require_like(way=way, shot=shot, points=outputs.shape[1])
    threshold = calibration.threshold(round(1 - coverage, 12))  # 1 − 0.9 is not 0.1 in floating point
    summary = summarise(experiment, outputs, density)
    if way is not None:
        return prediction_sets(summary["probabilities"], threshold)
    return prediction_intervals(summary["mean"], threshold, summary["spread"])


def load_predictor(run: Run, device: torch.device, shot: int | None = None) -> tuple[str, Experiment, Checkpoint]:
    """(the digest that names it, the experiment with what was learned for so many examples, the chosen checkpoint).

    The digest comes first: if training replaces the checkpoint meanwhile, what is made with it is refused.
    """
    calibrated(run, device)  # what is learned is part of what the digest is of
    digest = checkpoint_digest(run)
    return digest, calibrated(run, device, shot), run.load(device, run.chosen)


def checkpoint_digest(run: Run) -> str:
    """SHA-256 of the chosen checkpoint, and of the temperature or noise fitted for it: it names the predictor."""
    fitted = run.folder / FITTED
    if not run.has_checkpoint:
        return ""
    path = run.checkpoint_file(run.chosen)
    return hashlib.sha256(path.read_bytes() + (fitted.read_bytes() if fitted.is_file() else b"")).hexdigest()


def loss_of(experiment: Experiment) -> str:
    """The loss of a task in words. Bounds are on this loss divided by its clipping point, in [0, 1]."""
    if experiment.model.kind == "classification":
        return "share of errors of the averaged prediction"
    limit, own = experiment.data.fitted_scale.y_std**2, experiment.data.own
    variance = ", the variance of the training targets," if own else ""
    return f"squared error of the mean prediction, clipped at {limit:.4g}{variance} for each query point"


def summarise(experiment: Experiment, outputs: Tensor, density: Mixture | None = None) -> dict[str, Tensor]:
    """The basis of sets and intervals in double precision: `probabilities` (N, C), or `mean` and `spread` (N,).

    The spread is the standard deviation over the S functions plus that of the observation noise; 1 for one function.
    A method with a `density` of its own has that density's mean and standard deviation.
    """
    if experiment.model.kind == "classification":
        return {"probabilities": class_probabilities(outputs)}
    if density is not None:
        return {"mean": mean(density).double(), "spread": std(density).double()}
    values, noise_std = outputs.squeeze(-1).double(), experiment.data.scaled_noise_std or 0.0
    spread = values.std(0) + noise_std if len(values) > 1 else torch.ones_like(values[0])
    return {"mean": values.mean(0), "spread": spread}


@dataclass(frozen=True)
class CertifiedPredictor:
    """All that a certificate is about."""

    experiment: Experiment
    meta: Parts
    draws: Draws
    """On the CPU."""

    def records(self, blocks: Iterable[tuple[Task, Facts]], progress: Callable[[int], None]) -> dict[str, Tensor]:
        """The `loss` of each task in [0, 1], whether it `diverged`, `y`, and the values of `summarise`."""
        draws = self.draws.to(device_of(self.meta))

        def with_draws(task: Task, facts: Facts) -> UnseenBlock:
            tasks = count(task)
            functions = {name: draw.expand(tasks, *draw.shape) for name, draw in draws.predict.items()}
            return UnseenBlock(task, facts, {}, functions)

        noisy = (with_draws(*block) for block in blocks)
        return score_blocks(self.experiment, self.meta, draws.shared | draws.adapt, noisy, self._record, progress)

    def _record(self, predict: Predict, task: Task, facts: Facts, noise: Noise) -> dict[str, Tensor]:
        """Predictions that are no finite numbers are a loss of 1: a task that diverged is not left out."""
        x, y = task.query.x, task.query.y
        density = None if predict.own_density is None else predict.own_density(x)
        summary = summarise(self.experiment, predict(x), density)
        if "probabilities" in summary:
            losses = (summary["probabilities"].argmax(-1) != y).double()
        else:
            y = y.squeeze(-1)
            losses = (summary["mean"] - y).square().clamp(max=1)
        finite = torch.stack([values.view(len(y), -1).isfinite().all(-1) for values in summary.values()]).all(0)
        groups = {} if self.experiment.data.grouped_by is None else {"groups": facts["groups"]}
        return {"loss": losses.where(finite, 1.0).mean(), "diverged": ~finite.all(), "y": y, **summary, **groups}


def scores(records: Mapping[str, Tensor]) -> tuple[conformal.Score, Tensor]:
    """The name of the score and its values (T, N) on the query points of recorded tasks."""
    if "probabilities" in records:
        return "probability", probability_scores(records["probabilities"], records["y"])
    name: conformal.Score = "residual" if bool((records["spread"] == 1).all()) else "scaled residual"
    return name, residual_scores(records["mean"], records["y"], records["spread"])


def measure(records: Mapping[str, Tensor], threshold: float | Tensor) -> dict[str, float]:
    """The coverage and mean `size` of sets or intervals on recorded tasks, with one threshold, or one (T,) per task.

    Each is a mean over tasks of means over points. `error` is the standard error of the coverage, if one is known: over
    the groups of the tasks where these are not independent. Calibration must not have seen the tasks, nor that of a
    task's own threshold the task.
    """
    y, each = records["y"], torch.as_tensor(threshold, dtype=torch.float64).reshape(-1, 1)
    require(len(y) >= 2, "tasks", "at least 2", len(y))
    if "probabilities" in records:
        sets = prediction_sets(records["probabilities"], each.unsqueeze(-1))
        covered, size = sets.gather(-1, y.unsqueeze(-1)).squeeze(-1), sets.sum(-1)
    else:
        lower, upper = prediction_intervals(records["mean"], each, records["spread"])
        covered, size = (lower <= y) & (y <= upper), upper - lower
    shares = TaskMean()
    shares.add(covered.double().mean(-1), records.get("groups"))
    error = {"error": shares.error()} if shares.moments.degrees > 0 else {}
    return {"coverage": shares.mean(), "size": float(size.double().mean()), "tasks": len(y), **error}


def thresholds_without(calibration: Calibration, alpha: float) -> Tensor:
    """(K,): the threshold for each calibration task that the other ones give, as if it were a new one."""
    everyone = torch.arange(calibration.tasks)
    task = everyone.repeat_interleave(calibration.sizes)
    found = [
        conformal_threshold(calibration.scores[task != one], calibration.sizes[everyone != one], alpha)
        for one in everyone
    ]
    return torch.tensor(found, dtype=torch.float64)
