"""Timing one case: updates a second, memory, arithmetic; and the plain program that it is compared with."""

import gc
import statistics
import time
from collections.abc import Callable
from functools import cache
from typing import NamedTuple

import torch
from torch.utils.flop_counter import FlopCounterMode

from fewsure.bench.cases import Case
from fewsure.core import streams
from fewsure.core.devices import precision
from fewsure.core.vectorise import draw_noise
from fewsure.training.engine import Engine
from fewsure.training.experiment import Experiment
from fewsure.training.optimiser import Optimiser
from fewsure.training.update import MetaUpdate
from fewsure.types import Parts, Stage

WARM_UP = 6
"""Updates before the first that is timed, so that a GPU has recorded one."""
WINDOWS = 5


class Timing(NamedTuple):
    """The cost of one case."""

    seconds: float
    """Per update, the median over windows of updates."""
    memory: float | None
    """Peak memory of the device in GiB; None on a CPU."""


def time_updates(case: Case, device: torch.device, seconds: float) -> Timing:
    """Make updates as training does for about so many seconds, after a warm-up."""
    meta = initial_meta(case.experiment, device)
    _forget_memory(device)
    make_update = MetaUpdate(case.experiment, meta, Optimiser(meta, device), device)
    warm_up = WARM_UP if device.type == "cuda" else 1
    return Timing(_median_seconds(make_update, device, seconds, warm_up), _peak_memory(device))


def time_reference(case: Case, device: torch.device, seconds: float) -> Timing:
    """The straightforward program: task after task, kernel by kernel, each task with its own copy of everything."""
    experiment, meta = case.experiment, initial_meta(case.experiment, device)
    algorithm, model, tasks = experiment.algorithm, experiment.training_model, experiment.training.tasks
    if case.plain is not None:
        algorithm = case.plain(**vars(algorithm))
    engine, optimiser = Engine(algorithm, model, chunk_size=1, loop=True, fuses=False), Optimiser(meta, device)
    optimiser.set_learning_rate(experiment.training.lr)
    sizes = experiment.data.support_size, experiment.data.query_size
    spec, source = algorithm.noise(model, *sizes), experiment.data.tasks("train", device)

    @precision(experiment.training.precision)
    def make_update(update: int) -> None:
        generator = streams.generator(0, "reference", update, device=device)
        batch, _ = source.sample(tasks, generator)
        shared, noise = draw_noise(spec, tasks, generator)
        gradient, _ = engine.gradient(meta, batch, shared, noise, Stage(torch.tensor(update, device=device), tasks))
        optimiser.step(gradient, experiment.training.clip_norm)

    _forget_memory(device)
    return Timing(_median_seconds(make_update, device, seconds, warm_up=1), _peak_memory(device))


@cache
def operations_of_a_task(case: Case) -> int:
    """Floating-point operations of the matrix products and convolutions of one task of an update, counted on a CPU."""
    experiment, device = case.experiment, torch.device("cpu")
    algorithm, model = experiment.algorithm, experiment.training_model
    generator = streams.generator(0, "operations")
    batch, _ = experiment.data.tasks("train", device).sample(1, generator)
    sizes = experiment.data.support_size, experiment.data.query_size
    shared, noise = draw_noise(algorithm.noise(model, *sizes), 1, generator)
    stage = Stage(torch.tensor(0), experiment.training.tasks)
    with FlopCounterMode(display=False) as counter:
        Engine(algorithm, model, loop=True).gradient(initial_meta(experiment, device), batch, shared, noise, stage)
    return int(counter.get_total_flops())


def matrix_rate(device: torch.device, size: int | None = None) -> float:
    """Operations a second of a large matrix product at training's precision: the roof under which networks run."""
    size = size or (8192 if device.type == "cuda" else 1024)
    a, b = torch.randn(2, size, size, device=device)
    with precision("tf32"):
        return 2 * size**3 / _median_seconds(lambda _: torch.mm(a, b), device, 0.5, warm_up=3)


def initial_meta(experiment: Experiment, device: torch.device) -> Parts:
    """Meta-parameters before the first update."""
    meta = experiment.algorithm.init(experiment.training_model, streams.generator(0, "init"))
    return {part: {name: value.to(device) for name, value in params.items()} for part, params in meta.items()}


def _median_seconds(work: Callable[[int], object], device: torch.device, seconds: float, warm_up: int) -> float:
    """The median time of a call, over windows of calls that take about `seconds` together, or of a single long one."""
    calls = 0

    def window(size: int) -> float:
        nonlocal calls
        began = time.perf_counter()
        for _ in range(size):
            work(calls)
            calls += 1
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return (time.perf_counter() - began) / size

    window(warm_up)
    first = window(1)
    if first >= seconds:
        return first
    size = max(1, round(seconds / WINDOWS / first))
    return statistics.median(window(size) for _ in range(WINDOWS))


def _forget_memory(device: torch.device) -> None:
    """Free the memory of the cases before, so that the peak is that of the next."""
    if device.type == "cuda":
        gc.collect()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)


def _peak_memory(device: torch.device) -> float | None:
    return torch.cuda.max_memory_allocated(device) / 2**30 if device.type == "cuda" else None
