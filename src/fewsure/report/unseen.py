"""What a run predicts on the first unseen tasks of an evaluation, for drawing."""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fewsure.core.devices import device_of
from fewsure.core.vectorise import for_each, take
from fewsure.evaluation.evaluate import UnseenBlock, score_blocks, shared_noise, unseen_block
from fewsure.evaluation.metrics.scores import class_probabilities
from fewsure.evaluation.scoring import Predict
from fewsure.training.experiment import Experiment
from fewsure.types import Facts, Noise, Parts, Task

Array = npt.NDArray[np.float32]


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


def predict_unseen(experiment: Experiment, meta: Parts, *, tasks: int, seed: int) -> UnseenTasks:
    """Adapt to the first tasks that `evaluate` sees with the same seed and device, and predict over the whole range."""
    algorithm, model = experiment.algorithm, experiment.model
    device = device_of(meta)
    shared = shared_noise(experiment, seed, "test", device)

    def one_task(block: UnseenBlock, meta: Parts) -> Tensor:
        own = model.given(block.task.support)
        posterior = algorithm.adapt(meta, own, block.task.support, shared | block.noise)
        return algorithm.predict(posterior, own, block.facts["grid"], block.prediction_noise)

    block = take(unseen_block(experiment, 0, seed, "test", device), slice(0, tasks))
    with torch.no_grad():
        predictions = for_each(one_task)(block, meta)
    drawn = (*block.task.support, block.facts["grid"], block.facts["truth"], predictions)
    return UnseenTasks(*(values.squeeze(-1).cpu().numpy() for values in drawn))


class UnseenImages(NamedTuple):
    """T tasks of images, and what a run that saw only their support examples says of their query examples."""

    support: Tensor
    """(T, way · shot, C, H, W), in [0, 1], sorted by class."""
    query: Tensor
    """(T, N, C, H, W)"""
    labels: Tensor
    """(T, N), the true classes of the query examples."""
    names: list[list[str]]
    """Of each task's classes."""
    probabilities: Tensor
    """(T, N, way)"""


def predict_unseen_images(experiment: Experiment, meta: Parts, *, seed: int) -> UnseenImages:
    """Adapt to the first block of tasks that `evaluate` sees with the same seed and device, and predict its queries."""
    data, device = experiment.data, device_of(meta)
    block = unseen_block(experiment, 0, seed, "test", device)

    def probabilities(predict: Predict, task: Task, facts: Facts, noise: Noise) -> dict[str, Tensor]:
        return {"probabilities": class_probabilities(predict(task.query.x))}

    shared = shared_noise(experiment, seed, "test", device)
    found = score_blocks(experiment, meta, shared, [block], probabilities, lambda done: None)
    classes = data.pool("test").classes
    return UnseenImages(
        block.task.support.x.cpu(),
        block.task.query.x.cpu(),
        block.task.query.y.cpu(),
        [[classes[number] for number in numbers] for numbers in block.facts["classes"].tolist()],
        found["probabilities"],
    )
