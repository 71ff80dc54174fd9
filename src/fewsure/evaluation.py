"""Evaluation: adapt to unseen tasks, predict, and score; one record per task, then one object for all."""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fewsure import streams
from fewsure.data.pools import Split
from fewsure.devices import device_name, device_of, precision
from fewsure.errors import Diverged
from fewsure.experiment import Experiment
from fewsure.kernels.fused import fused_kernels
from fewsure.scoring import Predict, scorer
from fewsure.training.distributed import share_out
from fewsure.training.runs import RESULT_FORMAT
from fewsure.types import Draw, Facts, Noise, Parts, Task
from fewsure.vectorise import better_looped, count, draw_noise, draw_per_task, for_each, take
from fewsure.version import __version__

SAMPLES = 32
"""Functions drawn from a task's posterior."""
BLOCK = 20
"""Tasks that share a random stream: the first n tasks of a seed are the same in an evaluation of any size."""

Score = Callable[[Predict, Task, Facts, Noise], dict[str, Tensor]]
"""What is recorded of one task, as `Scorer.score`."""


def evaluate(
    experiment: Experiment,
    meta: Parts,
    *,
    tasks: int,
    seed: int,
    stream: Split = "test",
    progress: Callable[[int], None] = lambda done: None,
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """(the object that `evaluate --json` prints, the records of the single tasks) on unseen tasks of a split."""
    start = time.perf_counter()
    records = task_records(experiment, meta, tasks=tasks, seed=seed, stream=stream, progress=progress)
    broken = int((~records["nll"].isfinite()).sum())
    if broken:
        raise Diverged(
            f"adaptation diverged on {broken} of {tasks} tasks, whose predictions are no finite numbers; "
            "train anew with a lower --lr or --inner-lr"
        )
    data, model = experiment.data, experiment.model
    summary = {
        "format": RESULT_FORMAT,
        "algorithm": experiment.algorithm_name,
        "data": experiment.data_name,
        **({"way": model.outputs} if model.kind == "classification" else {}),
        "shot": data.shot,
        "tasks": tasks,
        "samples": int(records["samples"][0]),
        "transductive": model.network.transductive,
        **scorer(experiment).summarise(records),
        "stream": stream,
        "seed": seed,
        "version": __version__,
        "device": device_name(device_of(meta)),
        "data_checksum": data.checksum(stream),
        "seconds": round(time.perf_counter() - start, 3),
    }
    return summary, records


def task_records(
    experiment: Experiment,
    meta: Parts,
    *,
    tasks: int,
    seed: int,
    stream: Split,
    progress: Callable[[int], None],
) -> dict[str, Tensor]:
    """What the scorer records, the number of `samples` and a `fingerprint`, with a leading task dimension."""
    device = device_of(meta)
    shared = shared_noise(experiment, seed, stream, device)

    def blocks() -> Iterator[UnseenBlock]:
        for first in range(0, tasks, BLOCK):
            block = unseen_block(experiment, first // BLOCK, seed, stream, device)
            yield take(block, slice(0, min(BLOCK, tasks - first)))

    return score_blocks(experiment, meta, shared, blocks(), scorer(experiment).score, progress)


def score_blocks(
    experiment: Experiment,
    meta: Parts,
    shared: Noise,
    blocks: Iterable["UnseenBlock"],
    score: Score,
    progress: Callable[[int], None],
) -> dict[str, Tensor]:
    """What `score` records of each task of the blocks, the number of `samples` and a `fingerprint`.

    `shared` is what all tasks share (θ); `progress` hears how many are done. Processes that `torchrun` has started
    score a block each in turn, and all have the whole result.
    """
    algorithm, model = experiment.algorithm, experiment.model
    device = device_of(meta)

    def one_task(block: UnseenBlock, meta: Parts) -> dict[str, Tensor]:
        posterior = algorithm.adapt(meta, model, block.task.support, shared | block.noise)
        samples = []

        def predict(x: Tensor) -> Tensor:
            outputs = algorithm.predict(posterior, model, x, block.prediction_noise)
            samples.append(outputs.shape[0])
            return outputs

        records = score(predict, block.task, block.facts, block.prediction_noise)
        functions = torch.tensor(samples[0], device=device)
        return records | {"samples": functions, "fingerprint": _fingerprint(block.task)}

    every_task = for_each(one_task, loop=better_looped(model.network, device))

    def records_of(block: UnseenBlock) -> dict[str, Tensor]:
        return {name: value.cpu() for name, value in every_task(block, meta).items()}

    exactly = precision(experiment.training.precision)
    with torch.no_grad(), exactly, fused_kernels(allowed=True):  # adapting differentiates once
        return share_out(blocks, count, records_of, progress)


class UnseenBlock(NamedTuple):
    """Tasks that share a random stream, with all the random numbers that they are evaluated with."""

    task: Task
    facts: Facts
    noise: Noise
    prediction_noise: Noise
    """What predictions and their scores use."""


def unseen_block(experiment: Experiment, index: int, seed: int, stream: Split, device: torch.device) -> UnseenBlock:
    """Block number `index` of a split."""
    generator = streams.generator(seed, stream, index, device=device)
    drawn = experiment.data.tasks(stream, device).sample(BLOCK, generator)
    return with_noise(experiment, drawn, scorer(experiment).draws, generator)


def with_noise(
    experiment: Experiment, drawn: tuple[Task, Facts], draws: Mapping[str, Draw], generator: torch.Generator
) -> UnseenBlock:
    """Tasks with the random numbers of their adaptation, of SAMPLES functions each, and of their scores (`draws`)."""
    algorithm, model = experiment.algorithm, experiment.model
    tasks = count(drawn[0])
    _, noise = draw_noise(algorithm.noise(model), tasks, generator)
    prediction = {**algorithm.prediction_noise(model, SAMPLES), **draws}
    return UnseenBlock(*drawn, noise, draw_per_task(prediction, tasks, generator))


def shared_noise(experiment: Experiment, seed: int, stream: Split, device: torch.device) -> Noise:
    """What all tasks of an evaluation share (θ)."""
    generator = streams.generator(seed, stream, "shared", device=device)
    return draw_noise(experiment.algorithm.noise(experiment.model), 0, generator)[0]


def _fingerprint(task: Task) -> Tensor:
    """A number that two tasks share only if they have the same examples in the same order."""
    x = torch.cat([task.support.x, task.query.x]).double().flatten()
    return x @ torch.linspace(1, 2, len(x), dtype=x.dtype, device=x.device)
