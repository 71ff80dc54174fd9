"""Evaluation: adapt to unseen tasks, predict, and score; one record per task, then one object for all.

The headline protocol: quantiles of exactly 32 sampled function values (a method with fewer, such as a point estimate,
gives what it has), no observation noise, no temperature or other scaling after training; squared error of the mean
prediction against noisy query labels.

The metric is easily gamed: adding N(0, noise_std²) to the sampled values makes any model look calibrated. That variant
is measured too, under `with_noise`, and shown as a row of its own.
"""

import time
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fewsure import streams
from fewsure.devices import device_name, device_of
from fewsure.errors import Diverged
from fewsure.experiment import Experiment
from fewsure.metrics.calibration import LEVELS, calibration_errors, quantile_reliability
from fewsure.metrics.scores import mean_squared_error, mixture_nll
from fewsure.metrics.summary import calibration_intervals, mean_over_tasks
from fewsure.types import Batch, Draw, Noise, Parts, Task
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
    broken = int((~records["mse"].isfinite()).sum())
    if broken:
        raise Diverged(
            f"adaptation diverged on {broken} of {tasks} tasks, whose predictions are no finite numbers; "
            "train anew with a lower --lr or --inner-lr"
        )
    summary = {
        "algorithm": experiment.algorithm_name,
        "data": experiment.data_name,
        "shot": experiment.data.shot,
        "tasks": tasks,
        "samples": int(records["samples"][0]),
        "mse": mean_over_tasks(records["mse"]),
        "nll": mean_over_tasks(records["nll"]),
        **_calibration(records["reliability"]),
        "with_noise": _calibration(records["reliability_with_noise"]),
        "stream": stream,
        "seed": seed,
        "version": __version__,
        "device": device_name(device_of(meta)),
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
    """`mse`, `nll`, two `reliability` rows of 11 levels and the number of `samples`, with a leading task dimension."""
    algorithm, model, data = experiment.algorithm, experiment.model, experiment.data
    device = device_of(meta)
    shared = shared_noise(experiment, seed, stream, device)

    def one_task(block: UnseenBlock, meta: Parts) -> dict[str, Tensor]:
        def reliability(predictions: Tensor) -> Tensor:
            return quantile_reliability(predictions, block.truth.y.squeeze(-1), data.noise_std)

        query = block.task.query
        posterior = algorithm.adapt(meta, model, block.task.support, shared | block.noise)
        at_query = algorithm.predict(posterior, model, query.x, block.prediction_noise)
        at_grid = algorithm.predict(posterior, model, block.truth.x, block.prediction_noise).squeeze(-1)
        noisy = at_grid[torch.arange(SAMPLES) % len(at_grid)] + data.noise_std * block.prediction_noise["observation"]
        return {
            "mse": mean_squared_error(at_query, query.y),
            "nll": mixture_nll(at_query, query.y, data.noise_std),
            "reliability": reliability(at_grid),
            "reliability_with_noise": reliability(noisy),
            "samples": torch.tensor(at_query.shape[0], device=device),
        }

    every_task = for_each_task(one_task)
    scored = []
    with torch.no_grad():
        for first in range(0, tasks, BLOCK):
            block = unseen_block(experiment, first // BLOCK, seed, stream, device)
            kept = take(block, slice(0, min(BLOCK, tasks - first)))
            scored.append({name: value.cpu() for name, value in every_task(kept, meta).items()})
            progress(min(first + BLOCK, tasks))
    return {name: torch.cat([records[name] for records in scored]) for name in scored[0]}


class UnseenBlock(NamedTuple):
    """Tasks that share a random stream, with all the random numbers that they are evaluated with."""

    task: Task
    truth: Batch
    """The noise-free functions at `GRID` inputs."""
    noise: Noise
    prediction_noise: Noise


def unseen_block(experiment: Experiment, index: int, seed: int, stream: str, device: torch.device) -> UnseenBlock:
    """Block number `index` of a stream."""
    algorithm, model = experiment.algorithm, experiment.model
    generator = streams.generator(seed, stream, index, device=device)
    task, truth = experiment.data.sample_with_truth(BLOCK, generator, GRID)
    _, noise = draw_noise(algorithm.noise(model), BLOCK, generator)
    draws = {**algorithm.prediction_noise(model, SAMPLES), "observation": Draw((SAMPLES, GRID))}
    return UnseenBlock(task, truth, noise, draw_per_task(draws, BLOCK, generator))


def shared_noise(experiment: Experiment, seed: int, stream: str, device: torch.device) -> Noise:
    """What all tasks of an evaluation share (θ)."""
    generator = streams.generator(seed, stream, "shared", device=device)
    return draw_noise(experiment.algorithm.noise(experiment.model), 0, generator)[0]


def _calibration(reliability: Tensor) -> dict[str, Any]:
    observed = reliability.double().mean(0)
    ece, mce = calibration_errors(observed)
    ece_interval, mce_interval = calibration_intervals(reliability)
    return {
        "ece": float(ece),
        "ece_ci95": ece_interval,
        "mce": float(mce),
        "mce_ci95": mce_interval,
        "reliability": {"levels": list(LEVELS), "observed": observed.tolist()},
    }
