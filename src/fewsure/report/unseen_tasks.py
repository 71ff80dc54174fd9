"""Predictions of a run on the first unseen tasks of an evaluation, for drawing."""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fewsure.core import streams
from fewsure.core.devices import device_of
from fewsure.core.vectorise import take
from fewsure.evaluation.evaluate import Score, UnseenBlock, score_blocks, shared_noise, unseen_block
from fewsure.evaluation.metrics.scores import class_probabilities
from fewsure.evaluation.scoring.predict import Predict
from fewsure.training.experiment import Experiment
from fewsure.types import Facts, Noise, Parts, Task

Array = npt.NDArray[np.float32]
EXACT = 1000
"""Functions of the exact posterior that are drawn for each task."""


class UnseenTasks(NamedTuple):
    """T tasks of one variable, and what a run that saw only their m support points predicts."""

    support_x: Array
    """(T, m)"""
    support_y: Array
    """(T, m), with observation noise."""
    x: Array
    """(T, N), evenly over the data's range."""
    truth: Array
    """(T, N), without noise."""
    predictions: Array
    """(T, S, N), of S functions from each task's posterior."""
    exact: Array
    """(T, E, N), of E functions from each task's exact posterior, which knows how tasks are made."""

    @property
    def has_spread(self) -> bool:
        """Whether the predictions are more than one function for each task."""
        return len(self.predictions[0]) > 1


def predict_unseen(experiment: Experiment, meta: Parts, *, tasks: int, seed: int) -> UnseenTasks:
    """Adapt to the first tasks that `evaluate` sees with the same seed and device, and predict over the whole range."""

    def at_grid(predict: Predict, task: Task, facts: Facts, noise: Noise) -> dict[str, Tensor]:
        return {"predictions": predict(facts["grid"])}

    block = take(unseen_block(experiment, 0, seed, "test", device_of(meta)), slice(0, tasks))
    predictions = _scored(experiment, meta, seed, block, at_grid)["predictions"]
    grid, generator = block.facts["grid"], streams.generator(seed, "exact posterior", device=device_of(meta))
    exact = []
    for number in range(tasks):
        support, x = take((block.task.support, grid), number)
        exact.append(experiment.data.exact_functions(support, x, EXACT, generator))
    drawn = (*block.task.support, grid, block.facts["truth"], predictions, torch.stack(exact))
    return UnseenTasks(*(values.squeeze(-1).cpu().numpy() for values in drawn))


class UnseenImages(NamedTuple):
    """T tasks of images, and the classes that a run which saw only their support examples gives their queries."""

    support: Tensor
    """(T, way · shot, C, H, W), in [0, 1], sorted by class."""
    query: Tensor
    """(T, N, C, H, W)"""
    labels: Tensor
    """(T, N), the true classes of the query examples."""
    names: list[list[str]]
    """The classes of each task."""
    probabilities: Tensor
    """(T, N, way)"""


def predict_unseen_images(experiment: Experiment, meta: Parts, *, seed: int) -> UnseenImages:
    """Adapt to the first block of tasks that `evaluate` sees with the same seed and device, and predict its queries."""

    def probabilities(predict: Predict, task: Task, facts: Facts, noise: Noise) -> dict[str, Tensor]:
        return {"probabilities": class_probabilities(predict(task.query.x))}

    data = experiment.data
    block = unseen_block(experiment, 0, seed, "test", device_of(meta))
    classes = data.pool("test").classes
    return UnseenImages(
        block.task.support.x.cpu(),
        block.task.query.x.cpu(),
        block.task.query.y.cpu(),
        [[classes[number] for number in numbers] for numbers in block.facts["classes"].tolist()],
        _scored(experiment, meta, seed, block, probabilities)["probabilities"],
    )


def _scored(experiment: Experiment, meta: Parts, seed: int, block: UnseenBlock, score: Score) -> dict[str, Tensor]:
    shared = shared_noise(experiment, seed, "test", device_of(meta))
    return score_blocks(experiment, meta, shared, [block], score, lambda done: None)
