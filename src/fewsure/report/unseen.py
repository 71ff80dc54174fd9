"""What a run predicts on the first unseen tasks of an evaluation, for drawing."""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fewsure.devices import device_of
from fewsure.evaluation import UnseenBlock, shared_noise, unseen_block
from fewsure.experiment import Experiment
from fewsure.types import Parts
from fewsure.vectorise import for_each, take

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
        posterior = algorithm.adapt(meta, model, block.task.support, shared | block.noise)
        return algorithm.predict(posterior, model, block.facts["grid"], block.prediction_noise)

    block = take(unseen_block(experiment, 0, seed, "test", device), slice(0, tasks))
    with torch.no_grad():
        predictions = for_each(one_task)(block, meta)
    drawn = (*block.task.support, block.facts["grid"], block.facts["truth"], predictions)
    return UnseenTasks(*(values.squeeze(-1).cpu().numpy() for values in drawn))
