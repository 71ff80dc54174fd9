"""Evaluation: adapt to unseen tasks, predict, and score; one record per task, then one object for all.

The headline protocol: quantiles of exactly 32 sampled function values (a method with fewer, such as a point estimate,
gives what it has), no observation noise, no temperature or other scaling after training; squared error of the mean
prediction against noisy query labels.
"""

import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from fewsure import streams
from fewsure.experiment import Experiment
from fewsure.metrics.calibration import LEVELS, calibration_errors, quantile_reliability
from fewsure.metrics.scores import mean_squared_error, mixture_nll
from fewsure.metrics.summary import calibration_intervals, mean_over_tasks
from fewsure.types import Batch, Noise, Parts, Task
from fewsure.vectorise import draw_noise, draw_per_task, for_each_task, take
from fewsure.version import __version__

SAMPLES = 32
"""Functions drawn from a task's posterior."""
GRID = 101
"""Inputs, evenly over the data's range, at which reliability is measured."""
BLOCK = 20
"""Tasks that share a random stream: the first n tasks of a seed are the same in an evaluation of any size."""


def evaluate(
    experiment: Experiment,
    meta: Parts,
    *,
    tasks: int,
    seed: int,
    stream: str = "test",
    progress: Callable[[int], None] = lambda done: None,
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """(the object that `evaluate --json` prints, the records of the single tasks) on unseen tasks."""
    start = time.perf_counter()
    records = task_records(experiment, meta, tasks=tasks, seed=seed, stream=stream, progress=progress)
    observed = records["reliability"].double().mean(0)
    ece, mce = calibration_errors(observed)
    ece_interval, mce_interval = calibration_intervals(records["reliability"])
    summary = {
        "algorithm": experiment.algorithm_name,
        "data": experiment.data_name,
        "shot": experiment.data.shot,
        "tasks": tasks,
        "samples": int(records["samples"][0]),
        "mse": mean_over_tasks(records["mse"]),
        "nll": mean_over_tasks(records["nll"]),
        "ece": float(ece),
        "ece_ci95": ece_interval,
        "mce": float(mce),
        "mce_ci95": mce_interval,
        "reliability": {"levels": list(LEVELS), "observed": observed.tolist()},
        "seed": seed,
        "version": __version__,
        "device": device_name(next(iter(next(iter(meta.values())).values())).device),
        "seconds": round(time.perf_counter() - start, 3),
    }
    return summary, records


def task_records(
    experiment: Experiment,
    meta: Parts,
    *,
    tasks: int,
    seed: int,
    stream: str,
    progress: Callable[[int], None],
) -> dict[str, Tensor]:
    """`mse`, `nll`, `reliability` (11 levels) and the number of `samples`, each with a leading dimension of tasks."""
    algorithm, model, data = experiment.algorithm, experiment.model, experiment.data
    device = next(iter(next(iter(meta.values())).values())).device
    # What tasks share (θ) is drawn once for the whole evaluation.
    shared, _ = draw_noise(algorithm.noise(model), 0, streams.generator(seed, stream, "shared", device=device))

    def one_task(parts: tuple[Task, Batch, Noise, Noise], meta: Parts) -> dict[str, Tensor]:
        task, truth, noise, prediction_noise = parts
        posterior = algorithm.adapt(meta, model, task.support, shared | noise)
        at_query = algorithm.predict(posterior, model, task.query.x, prediction_noise)
        at_grid = algorithm.predict(posterior, model, truth.x, prediction_noise)
        return {
            "mse": mean_squared_error(at_query, task.query.y),
            "nll": mixture_nll(at_query, task.query.y, data.noise_std),
            "reliability": quantile_reliability(at_grid.squeeze(-1), truth.y.squeeze(-1), data.noise_std),
            "samples": torch.tensor(at_query.shape[0], device=device),
        }

    every_task = for_each_task(one_task)
    blocks = []
    with torch.no_grad():
        for first in range(0, tasks, BLOCK):
            generator = streams.generator(seed, stream, first // BLOCK, device=device)
            task, truth = data.sample_with_truth(BLOCK, generator, GRID)
            _, noise = draw_noise(algorithm.noise(model), BLOCK, generator)
            prediction_noise = draw_per_task(algorithm.prediction_noise(model, SAMPLES), BLOCK, generator)
            kept = take((task, truth, noise, prediction_noise), slice(0, min(BLOCK, tasks - first)))
            blocks.append({name: value.cpu() for name, value in every_task(kept, meta).items()})
            progress(min(first + BLOCK, tasks))
    return {name: torch.cat([block[name] for block in blocks]) for name in blocks[0]}


def device_name(device: torch.device) -> str:
    """`cpu`, or the GPU's own name."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
