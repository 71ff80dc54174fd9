"""The noise on labels of a user's own regression tasks: learned from validation tasks, and kept with the run."""

import dataclasses
import math

import torch
from torch import Tensor

from fewsure.data.own_regression import OwnRegression
from fewsure.errors import Diverged
from fewsure.evaluation import BLOCK, score_blocks, shared_noise, unseen_block
from fewsure.experiment import Experiment
from fewsure.metrics.scores import mixture_nll
from fewsure.scoring import Predict
from fewsure.training.distributed import any_of
from fewsure.training.runs import Run
from fewsure.types import Facts, Noise, Parts, Task

TASKS = 200
SMALLEST, LARGEST = 1e-3, 1e1
"""The range that is searched, in standard deviations of the target."""


def with_noise_level(run: Run, device: torch.device) -> Experiment:
    """The run's experiment with a known level of noise: given, learned and kept with the run, or learned now."""
    experiment = run.experiment
    data = experiment.data
    if not isinstance(data, OwnRegression) or data.noise_std is not None:
        return experiment
    noise_std = run.noise_std()
    if any_of(noise_std is None):  # all processes must do the same
        noise_std = learn_noise(experiment, run.load(device).meta, device)
        run.save_noise_std(noise_std)
    return dataclasses.replace(experiment, data=dataclasses.replace(data, noise_std=noise_std))


def with_learned_noise(experiment: Experiment, meta: Parts, device: torch.device) -> Experiment:
    """The experiment with the level of noise that these meta-parameters leave, where it is not given."""
    data = experiment.data
    if not isinstance(data, OwnRegression) or data.noise_std is not None:
        return experiment
    return dataclasses.replace(
        experiment, data=dataclasses.replace(data, noise_std=learn_noise(experiment, meta, device))
    )


def learn_noise(experiment: Experiment, meta: Parts, device: torch.device) -> float:
    """The standard deviation, in the target's unit, that makes the labels of 200 validation tasks most likely.

    What the sampled functions miss counts as noise, too.
    """
    shared = shared_noise(experiment, 0, "validation", device)
    blocks = (unseen_block(experiment, index, 0, "validation", device) for index in range(TASKS // BLOCK))
    records = score_blocks(experiment, meta, shared, blocks, _record, lambda done: None)
    outputs, y = (records[name].double() for name in ("outputs", "y"))
    if not bool(outputs.isfinite().all()):
        raise Diverged("adaptation diverged on validation tasks; train anew with a lower --lr or --inner-lr")
    # Every task has as many points, so tasks are joined point by point.
    joined, labels = outputs.movedim(0, 1).flatten(1, 2), y.flatten(0, 1)
    data = experiment.data
    assert isinstance(data, OwnRegression)
    return most_likely_noise(joined, labels) * data.fitted_scale.y_std


def most_likely_noise(outputs: Tensor, y: Tensor) -> float:
    """The σ, to 1 %, that minimises the mean of −ln 1/S Σ_s N(y; f_s(x), σ²) over points: outputs (S, N, 1), y (N, 1).

    >>> round(most_likely_noise(torch.zeros(1, 2, 1), torch.tensor([[3.0], [-3.0]])), 1)
    3.0
    """
    low, high = SMALLEST, LARGEST
    while high / low > 1.01:
        candidates = torch.logspace(math.log10(low), math.log10(high), 9).tolist()
        losses = [float(mixture_nll(outputs, y, candidate)) for candidate in candidates]
        best = losses.index(min(losses))
        low, high = candidates[max(best - 1, 0)], candidates[min(best + 1, 8)]
    return math.sqrt(low * high)


def _record(predict: Predict, task: Task, facts: Facts, noise: Noise) -> dict[str, Tensor]:
    return {"outputs": predict(task.query.x), "y": task.query.y}
