"""Timing one case: updates a second, memory, arithmetic; and the plain program that it is compared with."""

import gc
import math
import statistics
import time
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import NamedTuple

import torch
from torch.utils.flop_counter import FlopCounterMode

from fewsure.bench.cases import Case
from fewsure.core import streams
from fewsure.core.cores import on_cores
from fewsure.core.devices import fastest_precision, precision
from fewsure.core.vectorise import draw_noise
from fewsure.training.engine import Engine
from fewsure.training.experiment import Experiment
from fewsure.training.optimiser import Optimiser
from fewsure.training.update import MetaUpdate
from fewsure.types import Parts, Stage

WARM_UP = 4
"""Updates before the first that is timed, so that one has been recorded."""
WINDOWS = 5


class Timing(NamedTuple):
    """The cost of one case."""

    seconds: float
    """Per update, the median over windows of updates."""
    memory: float
    """Peak memory in GiB: the device's on a GPU, what the process took on top on a CPU."""


def time_updates(case: Case, device: torch.device, seconds: float) -> Timing:
    """Make updates as training does for about so many seconds, after a warm-up."""
    before = _forget_memory(device)
    make_update = updates(case, device)
    return Timing(_median_seconds(make_update, device, seconds, WARM_UP), _peak_memory(device) - before)


def updates(case: Case, device: torch.device) -> Callable[[int], None]:
    """Makes updates as training does."""
    meta = initial_meta(case.experiment, device)
    return MetaUpdate(case.experiment, meta, Optimiser(meta, device), device)


def time_reference(case: Case, device: torch.device, seconds: float) -> Timing:
    """The time of the plain program's updates."""
    before = _forget_memory(device)
    return Timing(
        _median_seconds(plain_updates(case, device), device, seconds, warm_up=1), _peak_memory(device) - before
    )


def plain_updates(case: Case, device: torch.device) -> Callable[[int], None]:
    """The straightforward program: task after task, kernel by kernel, each task with its own copy of everything.

    Small networks have one core of a CPU, which is two to ten times faster for them than two.
    """
    experiment, meta = case.experiment, initial_meta(case.experiment, device)
    algorithm, model, tasks = experiment.algorithm, experiment.training_model, experiment.training.tasks
    if case.plain is not None:
        algorithm = case.plain(**vars(algorithm))
    engine, optimiser = Engine(algorithm, model, chunk_size=1, loop=True, fuses=False), Optimiser(meta, device)
    optimiser.set_learning_rate(experiment.training.lr)
    sizes = experiment.data.support_size, experiment.data.query_size
    spec, source = algorithm.noise(model, *sizes), experiment.data.tasks("train", device)
    cores = 1 if model.network.maps is None else torch.get_num_threads()

    @precision(experiment.training.precision)
    @on_cores(cores)
    def make_update(update: int) -> None:
        generator = streams.generator(0, "reference", update, device=device)
        batch, _ = source.sample(tasks, generator)
        shared, noise = draw_noise(spec, tasks, generator)
        gradient, _ = engine.gradient(meta, batch, shared, noise, Stage(torch.tensor(update, device=device), tasks))
        optimiser.step(gradient, experiment.training.clip_norm)

    return make_update


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


def convolution_rate(device: torch.device) -> float:
    """Operations a second of 32 filters over 32 large maps, forward, in the fastest precision of the device."""
    dtype = torch.bfloat16 if fastest_precision(convolves=True) == "bf16" else torch.float32
    maps, weight = (torch.randn(*shape, device=device, dtype=dtype) for shape in ((64, 32, 64, 64), (32, 32, 3, 3)))
    maps, weight = (value.contiguous(memory_format=torch.channels_last) for value in (maps, weight))
    operations = 2 * maps.numel() * weight[0].numel()
    return operations / _median_seconds(lambda _: torch.conv2d(maps, weight, padding=1), device, 0.5, warm_up=3)


def initial_meta(experiment: Experiment, device: torch.device) -> Parts:
    """Meta-parameters before the first update."""
    meta = experiment.algorithm.init(experiment.training_model, streams.generator(0, "init"))
    return {part: {name: value.to(device) for name, value in params.items()} for part, params in meta.items()}


def _median_seconds(work: Callable[[int], object], device: torch.device, seconds: float, warm_up: int) -> float:
    """The median time of a call, over windows of calls that take about `seconds` together; or the second long one."""
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

    if device.type == "cpu" and window(1) >= seconds:  # a GPU may take as long to load its kernels
        return window(1)
    window(warm_up)
    first = window(1)
    size = max(1, round(seconds / WINDOWS / first))
    return statistics.median(window(size) for _ in range(WINDOWS))


def _forget_memory(device: torch.device) -> float:
    """Free the memory of the cases before, so that the peak is that of the next; GiB that the process has on a CPU."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
        return 0.0
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")  # of Linux: forget the peak
    return _peak_memory(device)


def _peak_memory(device: torch.device) -> float:
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 2**30
    lines = Path("/proc/self/status").read_text().splitlines() if Path("/proc/self/status").is_file() else []
    return next((int(line.split()[1]) / 2**20 for line in lines if line.startswith("VmHWM")), math.nan)
