"""What a run predicts on the first unseen tasks of an evaluation, for drawing."""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fewsure import streams
from fewsure.evaluation import BLOCK, GRID, SAMPLES
from fewsure.experiment import Experiment
from fewsure.types import Batch, Noise, Parts, Task
from fewsure.vectorise import draw_noise, draw_per_task, for_each_task, take

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
    device = next(iter(next(iter(meta.values())).values())).device
    shared, _ = draw_noise(algorithm.noise(model), 0, streams.generator(seed, "test", "shared", device=device))
    generator = streams.generator(seed, "test", 0, device=device)
    # A whole block is drawn, since the numbers of its first tasks depend on the size of the block.
    task, truth = experiment.data.sample_with_truth(BLOCK, generator, GRID)
    _, noise = draw_noise(algorithm.noise(model), BLOCK, generator)
    prediction_noise = draw_per_task(algorithm.prediction_noise(model, SAMPLES), BLOCK, generator)

    def one_task(parts: tuple[Task, Batch, Noise, Noise], meta: Parts) -> Tensor:
        task, truth, noise, prediction_noise = parts
        posterior = algorithm.adapt(meta, model, task.support, shared | noise)
        return algorithm.predict(posterior, model, truth.x, prediction_noise)

    kept = take((task, truth, noise, prediction_noise), slice(0, tasks))
    with torch.no_grad():
        predictions = for_each_task(one_task)(kept, meta)
    drawn = (*kept[0].support, *kept[1], predictions)
    return UnseenTasks(*(values.squeeze(-1).cpu().numpy() for values in drawn))
