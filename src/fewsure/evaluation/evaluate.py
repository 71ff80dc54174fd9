"""Evaluation: adapt to unseen tasks, predict, and score; one record per task, then one object for all.

An evaluation proceeds in shards of 2,000 tasks, whose records are kept as they come (`fewsure.core.shards`) and summed
up on the way. So memory does not grow with the number of tasks, and an interrupted evaluation goes on where it was. A
shard is made of blocks of 20 tasks, each with a random stream of its own. On a GPU a block becomes one CUDA graph.
"""

import hashlib
import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fewsure.core import streams
from fewsure.core.devices import device_name, device_of, precision
from fewsure.core.distributed import any_process, map_in_turn, world_size
from fewsure.core.recording import recording
from fewsure.core.shards import SHARD, InMemory, Shard, Store, concat_shards
from fewsure.core.vectorise import better_looped, count, draw_noise, draw_per_task, for_each, take
from fewsure.data import Tasks
from fewsure.data.pools import Split
from fewsure.errors import Diverged
from fewsure.evaluation.metrics.summary import TaskMeans
from fewsure.evaluation.scoring import scorer
from fewsure.evaluation.scoring.predict import Predict
from fewsure.evaluation.source import task_source
from fewsure.evaluation.temperature import temperature_of
from fewsure.kernels.fused import fused_kernels
from fewsure.training.experiment import Experiment
from fewsure.training.runs import RESULT_FORMAT
from fewsure.types import Draw, Facts, Mixture, Model, Noise, Parts, Records, Task
from fewsure.version import __version__

SAMPLES = 32
"""Functions drawn from a task's posterior."""
BLOCK = 20
"""Tasks that share a random stream: the first n tasks of a seed are the same in an evaluation of any size."""

Score = Callable[[Predict, Task, Facts, Noise], dict[str, Tensor]]
"""Makes the records of one task, as `Scorer.score`."""


def evaluate(
    experiment: Experiment, meta: Parts, *, tasks: int, seed: int, stream: Split = "test"
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """(the object that `evaluate --json` prints, the records of the single tasks) on unseen tasks of a split.

    All records are in memory; `evaluate_in_shards` is for many tasks.
    """
    store = InMemory()
    summary = evaluate_in_shards(experiment, meta, tasks=tasks, seed=seed, stream=stream, store=store)
    return summary, concat_shards(shard.records for shard in store.values())


def evaluate_in_shards(
    experiment: Experiment,
    meta: Parts,
    *,
    tasks: int,
    seed: int,
    stream: Split,
    store: Store,
    progress: Callable[[int], None] = lambda done: None,
) -> dict[str, Any]:
    """The object that `evaluate --json` prints; the records of the single tasks are in the store, shard by shard.

    Shards that the store has are not computed again. Their time counts in `seconds`, and nothing else in the object
    tells where an evaluation was interrupted. `progress` hears how many tasks are done.
    """
    start = time.perf_counter()
    sizes = {first: min(SHARD, tasks - first) for first in range(0, tasks, SHARD)}
    blocks = UnseenBlocks(experiment, meta, seed, stream, tasks)
    earlier, samples, of_posteriors = 0.0, 0, TaskMeans(["kl"])

    def shards() -> Iterator[Records]:
        nonlocal earlier, samples
        for first, size in sizes.items():
            shard = store.read(first, size)
            missing = any_process(shard is None)  # all processes must do the same
            if shard is None or missing:
                records = _computed(blocks, first, size, store, progress)
            else:
                records = shard.records
                earlier += shard.seconds
                progress(first + size)
            samples = int(records["samples"][0])
            if "kl" in records:
                of_posteriors.add(records)
            yield records

    figures = scorer(experiment).summarise(shards())
    if experiment.method.theorem == "Theorem 1":
        figures |= of_posteriors.summary()
    if "by_group" in figures:
        names = experiment.data.pool(stream).classes
        figures["by_group"] = [row | {"group": names[row["group"]]} for row in figures["by_group"]]
    return {
        "format": RESULT_FORMAT,
        **task_facts(experiment),
        "tasks": tasks,
        "samples": samples,
        "transductive": experiment.transductive,
        **figures,
        "stream": stream,
        "seed": seed,
        "version": __version__,
        "device": device_name(device_of(meta)),
        "data_checksum": experiment.data.checksum(stream),
        "seconds": round(earlier + time.perf_counter() - start, 3),
    }


def task_facts(experiment: Experiment) -> dict[str, Any]:
    """The method, and the kind of its tasks, as JSON values."""
    data, model = experiment.data, experiment.model
    way: dict[str, Any] = {"way": model.outputs} if model.kind == "classification" else {}
    way |= {"fixed_classes": list(data.known_classes)} if data.fixed_classes else {}
    grouped = {} if data.grouped_by is None else {"grouped_by": data.grouped_by}
    facts = {"algorithm": experiment.algorithm_name, "data": experiment.data_name, **way, "shot": data.test_shot}
    return facts | grouped


def _computed(
    blocks: "UnseenBlocks", first: int, tasks: int, store: Store, progress: Callable[[int], None]
) -> dict[str, Tensor]:
    start = time.perf_counter()
    records = blocks.records(first, tasks, lambda done: progress(first + done))
    broken = int((~records["nll"].isfinite()).sum())
    if broken:
        raise Diverged(
            f"adaptation diverged on {broken} of {tasks} tasks, whose predictions are no finite numbers; "
            "train anew with a lower --lr or --inner-lr"
        )
    store.write(first, Shard(records, time.perf_counter() - start))
    return records


def identity(experiment: Experiment, meta: Parts, *, seed: int, stream: Split) -> str:
    """16 hexadecimal digits that two evaluations share only if a task has the same record in both.

    They depend on the experiment, the meta-parameters, the data, the seed, the device, torch and the code, and not on
    the number of tasks.
    """
    device = device_of(meta)
    decides = {
        "experiment": experiment.record(),
        "scorer": repr(scorer(experiment)),  # with the noise on labels, which may have been learned
        "samples": SAMPLES,
        "seed": seed,
        "stream": stream,
        "data": experiment.data.checksum(stream),
        "device": device_name(device),
        "torch": torch.__version__,
        "code": _code_checksum(),
    }
    digest = hashlib.sha256(json.dumps(decides, sort_keys=True).encode())
    for part, params in sorted(meta.items()):
        for name, value in sorted(params.items()):
            digest.update(f"{part}/{name}/{tuple(value.shape)}".encode())
            digest.update(value.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()[:16]


@cache
def _code_checksum() -> str:
    """SHA-256 of this package's sources: records of other code are never reused."""
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parents[1].rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()


class UnseenBlocks:
    """Scores the blocks of a split, each of which is drawn, adapted to and predicted on the device."""

    def __init__(self, experiment: Experiment, meta: Parts, seed: int, stream: Split, tasks: int) -> None:
        """`tasks` are planned in all."""
        self._experiment = experiment
        self._device = device_of(meta)
        self._seed, self._stream = seed, stream
        self._source = task_source(experiment, meta, stream, tasks)
        shared = shared_noise(experiment, seed, stream, self._device)
        self._every_task = _every_task(experiment, self._source.model, meta, shared, scorer(experiment).score)
        self._generator = torch.Generator(self._device)
        on_gpu = self._device.type == "cuda"
        fits = experiment.training.cuda_graph if on_gpu else not better_looped(self._source.model.network, self._device)
        self._recorded = recording(self._generator, name="a block of tasks", records=fits and world_size() == 1)

    def records(self, first: int, tasks: int, progress: Callable[[int], None]) -> dict[str, Tensor]:
        """The records of tasks `first` … `first + tasks` − 1, on the CPU; `first` begins a block.

        Processes that `torchrun` has started score a block each in turn, and all have the whole result.
        """
        starts = range(first, first + tasks, BLOCK)

        def size(start: int) -> int:
            return min(BLOCK, first + tasks - start)

        with as_evaluated(self._experiment):
            found = map_in_turn(starts, size, lambda start: self._block(start // BLOCK, size(start)), progress)
        return {name: value.cpu() for name, value in found.items()}  # on a GPU, the one time that the host waits

    def _block(self, index: int, tasks: int) -> dict[str, Tensor]:
        """The records of the first tasks of a block."""
        self._generator.manual_seed(streams.number(self._seed, self._stream, index))
        drawn = tasks if self._device.type == "cpu" else BLOCK  # a GPU has nothing but its recording of a whole block

        def work() -> dict[str, Tensor]:
            block = _draw_block(self._experiment, self._source.tasks, self._generator)
            return self._every_task(take(block, slice(0, drawn)))

        found = self._recorded(work) if drawn == BLOCK else work()
        return {name: value[:tasks].clone() for name, value in found.items()}


def score_blocks(
    experiment: Experiment,
    meta: Parts,
    shared: Noise,
    blocks: Iterable["UnseenBlock"],
    score: Score,
    progress: Callable[[int], None],
    model: Model | None = None,
) -> dict[str, Tensor]:
    """The records that `score` makes of each task of the blocks, the number of `samples` and a `fingerprint`.

    `shared` is what all tasks share (θ); `progress` hears how many are done. `model` sees the inputs of the blocks, by
    default the experiment's. Processes that `torchrun` has started
    score a block each in turn, and all have the whole result.
    """
    every_task = _every_task(experiment, model or experiment.model, meta, shared, score)

    def records_of(block: UnseenBlock) -> dict[str, Tensor]:
        return {name: value.cpu() for name, value in every_task(block).items()}

    with as_evaluated(experiment):
        return map_in_turn(blocks, count, records_of, progress)


@contextmanager
def as_evaluated(experiment: Experiment) -> Iterator[None]:
    """The arithmetic of an evaluation."""
    with torch.no_grad(), precision(experiment.training.precision), fused_kernels(allowed=True):
        yield  # adapting differentiates once, so that fused kernels may


def _every_task(
    experiment: Experiment, model: Model, meta: Parts, shared: Noise, score: Score
) -> Callable[["UnseenBlock"], dict[str, Tensor]]:
    """Makes the records of a block, with a leading task dimension."""
    algorithm, device = experiment.method, device_of(meta)

    def one_task(block: UnseenBlock, meta: Parts) -> dict[str, Tensor]:
        own = model.given(block.task.support)
        posterior = algorithm.adapt(meta, own, block.task.support, shared | block.noise)
        samples = []

        def outputs(x: Tensor) -> Tensor:
            found = algorithm.predict(posterior, own, x, block.prediction_noise)
            samples.append(len(found))
            return found

        def density(x: Tensor) -> Mixture:
            return algorithm.predictive(posterior, own, x, block.prediction_noise)

        kl = algorithm.posterior_kl(posterior) if algorithm.theorem == "Theorem 1" else None
        own_density = density if experiment.own_density else None
        predict = Predict(outputs, own_density, kl, temperature_of(experiment))
        records = score(predict, block.task, block.facts, block.prediction_noise)
        sampled = torch.full((), samples[0], device=device)
        groups = {} if experiment.data.grouped_by is None else {"groups": block.facts["groups"]}
        records = records if kl is None else {"kl": kl, **records}
        return records | groups | {"samples": sampled, "fingerprint": _fingerprint(block)}

    loop = better_looped(model.network, device)
    every_task = for_each(one_task, loop=loop, threads=loop)
    return lambda block: every_task(block, meta)


class UnseenBlock(NamedTuple):
    """Tasks that share a random stream, with all the random numbers that they are evaluated with."""

    task: Task
    facts: Facts
    noise: Noise
    prediction_noise: Noise
    """The noise of predictions and of their scores."""


def unseen_block(
    experiment: Experiment, index: int, seed: int, stream: Split, device: torch.device, tasks: Tasks | None = None
) -> UnseenBlock:
    """Block number `index` of a split, or of these tasks of it."""
    generator = streams.generator(seed, stream, index, device=device)
    return _draw_block(experiment, tasks or experiment.data.tasks(stream, device), generator)


def _draw_block(experiment: Experiment, tasks: Tasks, generator: torch.Generator) -> UnseenBlock:
    return with_noise(experiment, tasks.sample(BLOCK, generator), scorer(experiment).draws, generator)


def with_noise(
    experiment: Experiment, drawn: tuple[Task, Facts], draws: Mapping[str, Draw], generator: torch.Generator
) -> UnseenBlock:
    """Tasks with the random numbers of their adaptation, of SAMPLES functions each, and of their scores (`draws`)."""
    algorithm, model = experiment.method, experiment.model
    task = drawn[0]
    tasks, support, query = count(task), task.support.x.shape[1], task.query.x.shape[1]
    _, noise = draw_noise(algorithm.noise(model, support, query), tasks, generator)
    prediction = {**algorithm.prediction_noise(model, SAMPLES, support), **draws}
    return UnseenBlock(*drawn, noise, draw_per_task(prediction, tasks, generator))


def shared_noise(experiment: Experiment, seed: int, stream: Split, device: torch.device) -> Noise:
    """The noise that all tasks of an evaluation share (θ)."""
    generator = streams.generator(seed, stream, "shared", device=device)
    data = experiment.data
    spec = experiment.method.noise(experiment.model, data.support_size, data.query_size)
    return draw_noise(spec, 0, generator)[0]


def _fingerprint(block: UnseenBlock) -> Tensor:
    """A number that two tasks share only if they have the same examples in the same order."""
    rows = block.facts.get("rows")
    x = (torch.cat([block.task.support.x, block.task.query.x]) if rows is None else rows).double().flatten()
    return x @ torch.linspace(1, 2, len(x), dtype=x.dtype, device=x.device)
