"""What is learned from validation tasks when training ends, and kept with the run, so that predictions are calibrated.

Of a user's own regression tasks it is the noise on labels; of classes the temperature, which outputs are divided by
before the softmax. Each is the one that makes the labels of the validation tasks most likely.
"""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from fewsure.data.classification import Classification
from fewsure.data.own_regression import OwnRegression
from fewsure.data.pools import Split
from fewsure.errors import Diverged
from fewsure.evaluation import BLOCK, score_blocks, shared_noise, unseen_block
from fewsure.experiment import Experiment
from fewsure.metrics.scores import class_probabilities, mixture_nll, negative_log_likelihood
from fewsure.scoring import Predict
from fewsure.training.distributed import any_of
from fewsure.training.runs import Run
from fewsure.types import Facts, Noise, Parts, Task

TASKS = 200
NOISE = (1e-3, 1e1)
"""The range that is searched, in standard deviations of the target."""
TEMPERATURE = (1e-2, 1e2)


def with_learned(run: Run, device: torch.device) -> Experiment:
    """The run's experiment with what is to be learned: read from the run, or learned now and kept with it."""
    experiment = run.experiment
    name = to_learn(experiment)
    if name is None:
        return experiment
    value = run.learned(name)
    if any_of(value is None):  # all processes must do the same
        value = learn(experiment, run.load(device).meta, device)
        run.save_learned(name, value)
    return _with(experiment, name, value)


def learned_by(experiment: Experiment, meta: Parts, device: torch.device) -> Experiment:
    """The experiment with what is to be learned, for these meta-parameters."""
    name = to_learn(experiment)
    return experiment if name is None else _with(experiment, name, learn(experiment, meta, device))


def to_learn(experiment: Experiment) -> str | None:
    """The option that is to be learned: `noise_std`, `softmax_temperature`, or none where it is given."""
    data = experiment.data
    if isinstance(data, OwnRegression):
        return "noise_std" if data.noise_std is None else None
    return "softmax_temperature" if isinstance(data, Classification) and data.softmax_temperature is None else None


def needed_splits(experiment: Experiment) -> tuple[Split, ...]:
    """What a run needs of its data before it is tested."""
    return ("train",) if to_learn(experiment) is None else ("train", "validation")


def learn(experiment: Experiment, meta: Parts, device: torch.device) -> float:
    """The standard deviation, in the target's unit, or the temperature, from 200 validation tasks.

    What the sampled functions miss counts as noise, too.
    """
    shared = shared_noise(experiment, 0, "validation", device)
    blocks = (unseen_block(experiment, index, 0, "validation", device) for index in range(TASKS // BLOCK))
    records = score_blocks(experiment, meta, shared, blocks, _record, lambda done: None)
    outputs, y = records["outputs"].double(), records["y"]
    if not bool(outputs.isfinite().all()):
        raise Diverged("adaptation diverged on validation tasks; train anew with a lower --lr or --inner-lr")
    # Every task has as many points, so tasks are joined point by point.
    joined, labels = outputs.movedim(0, 1).flatten(1, 2), y.flatten(0, 1)
    data = experiment.data
    if isinstance(data, OwnRegression):
        return most_likely_noise(joined, labels.double()) * data.fitted_scale.y_std
    return most_likely_temperature(joined, labels)


def most_likely_noise(outputs: Tensor, y: Tensor) -> float:
    """The σ, to 1 %, that minimises the mean of −ln 1/S Σ_s N(y; f_s(x), σ²) over points: outputs (S, N, 1), y (N, 1).

    >>> round(most_likely_noise(torch.zeros(1, 2, 1), torch.tensor([[3.0], [-3.0]])), 1)
    3.0
    """
    return _minimiser(lambda noise_std: float(mixture_nll(outputs, y, noise_std)), *NOISE)


def most_likely_temperature(outputs: Tensor, y: Tensor) -> float:
    """The temperature, to 1 %, that minimises the mean NLL of 1/S Σ_s softmax(outputs_s / temperature) over points.

    outputs (S, N, C), y (N,). Of four points that the outputs are equally sure of, three are right:

    >>> certain = torch.tensor([[[1.0, 0.0]]]).expand(1, 4, 2)
    >>> round(most_likely_temperature(certain, torch.tensor([0, 0, 0, 1])), 2), round(1 / math.log(3), 2)
    (0.91, 0.91)
    """
    return _minimiser(
        lambda temperature: float(negative_log_likelihood(class_probabilities(outputs / temperature), y)), *TEMPERATURE
    )


def _minimiser(loss: Callable[[float], float], low: float, high: float) -> float:
    """Where a function with one minimum between `low` and `high` has it, to 1 %."""
    while high / low > 1.01:
        candidates = torch.logspace(math.log10(low), math.log10(high), 9).tolist()
        losses = [loss(candidate) for candidate in candidates]
        best = losses.index(min(losses))
        low, high = candidates[max(best - 1, 0)], candidates[min(best + 1, 8)]
    return math.sqrt(low * high)


def _with(experiment: Experiment, name: str, value: Any) -> Experiment:
    data: Any = experiment.data
    return dataclasses.replace(experiment, data=dataclasses.replace(data, **{name: value}))


def _record(predict: Predict, task: Task, facts: Facts, noise: Noise) -> dict[str, Tensor]:
    return {"outputs": predict(task.query.x), "y": task.query.y}
