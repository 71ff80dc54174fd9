"""The measurements of `fewsure bench`, one case after another, and the record that it keeps."""

import json
import platform
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from fewsure.bench.cases import KINDS, TASKS, Case, headline_cases
from fewsure.bench.peers import Peer, compare, peers
from fewsure.bench.scaling import growth, sweeps
from fewsure.bench.timing import (
    convolution_rate,
    matrix_rate,
    operations_of_a_task,
    time_reference,
    time_updates,
)
from fewsure.core.devices import device_name
from fewsure.core.files import write_atomically
from fewsure.core.progress import ProgressLine
from fewsure.errors import require, require_known
from fewsure.version import __version__

PRECISIONS = ("auto", "float32", "tf32", "bf16")


@dataclass(frozen=True)
class Plan:
    """The cases to time, and for how long."""

    kinds: tuple[str, ...] = tuple(KINDS)
    """Kinds of task: `sine-line`, `conv4 28×28`, `conv4 84×84`; × may be typed as x."""
    tasks: tuple[int, ...] = (TASKS,)
    """T, tasks per update; several are timed one after another."""
    seconds: float = 1.0
    """About how long each case is timed."""
    reference: bool = True
    """Time the straightforward program too."""
    scaling: bool = False
    """Measure how the cost grows with T, inner steps, samples and the base network."""
    chunk_size: int | None = None
    """Tasks held in memory at once; `none` for all."""
    precisions: tuple[str, ...] = ("auto",)
    """Precisions to time the methods under: `float32`, `tf32`, `bf16`, or `auto`, the one that training takes."""
    peers: bool = False
    """On a CPU, do the same work with plain programs, easyfsl and gpytorch, as far as they are installed."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "kinds", tuple(kind.replace("x", "×") for kind in self.kinds))
        for kind in self.kinds:
            require_known("kinds", kind, list(KINDS))
        for precision in self.precisions:
            require_known("precisions", precision, list(PRECISIONS))
        require(min(self.tasks) >= 2, "tasks", "at least 2", min(self.tasks))
        require(self.seconds > 0, "seconds", "a number above 0", self.seconds)


def measure(plan: Plan, device: torch.device, results: Path | None) -> dict[str, Any]:
    """The record of all measurements. Each is written to `results` at once, in case the command is stopped."""
    began = time.perf_counter()
    record: dict[str, Any] = {
        "seconds": 0.0,
        "cases": [],
        "scaling": [],
        "peers": [],
        "device": device_name(device),
        "version": __version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "threads": torch.get_num_threads(),
        "matrix_rate": matrix_rate(device),
        "convolution_rate": convolution_rate(device),
    }
    work = _work(plan, device, record["matrix_rate"])
    with ProgressLine("timing") as line:
        for number, (section, name, one) in enumerate(work):
            line.show(number, len(work), name)
            record[section].append(one())
            record["seconds"] = round(time.perf_counter() - began, 1)
            if results is not None:
                write_atomically(results, json.dumps(record, indent=1) + "\n")
    return record


def _work(plan: Plan, device: torch.device, roof: float) -> list[tuple[str, str, Callable[[], dict[str, Any]]]]:
    """(section of the record, what to call it, what measures it) of everything that is asked for."""
    references: dict[Case, float] = {}
    work: list[tuple[str, str, Callable[[], dict[str, Any]]]] = []
    for case in headline_cases(plan.kinds):
        for tasks in plan.tasks:
            asked = case.with_options("training", tasks=tasks, chunk_size=plan.chunk_size)
            for precision in plan.precisions:
                if precision != "bf16" or case.experiment.algorithm.rounds:  # it changes no other method
                    at = asked.with_options("training", precision=precision)
                    measure = partial(_measured, at, asked, device, plan, roof, references)
                    work.append(("cases", f"{case.method}, {case.tasks}, T = {tasks}, {precision}", measure))
    if plan.scaling:
        for sweep in sweeps():
            name = f"{sweep.case.method} over {sweep.varied}"
            work.append(("scaling", name, partial(growth, sweep, device, plan.seconds / 2)))
    if plan.peers:
        require(device.type == "cpu", "peers", "a CPU as --device", device.type)
        for name, peer in peers():
            work.append(("peers", name, partial(_beside, peer, plan.seconds)))
    return work


def _beside(peer: Callable[[], Peer], seconds: float) -> dict[str, Any]:
    return compare(peer(), seconds)


def _measured(
    case: Case, asked: Case, device: torch.device, plan: Plan, roof: float, references: dict[Case, float]
) -> dict[str, Any]:
    """A row. The plain program is timed once for what was `asked`, whatever the precision."""
    case = case._replace(experiment=case.experiment.at_known_precision())
    training = case.experiment.training
    timing = time_updates(case, device, plan.seconds)
    work = training.tasks * operations_of_a_task(asked)
    if plan.reference and asked not in references:
        references[asked] = time_reference(asked, device, plan.seconds).seconds
    reference = references.get(asked)
    return {
        "method": case.method,
        "tasks": case.tasks,
        "precision": training.precision,
        "T": training.tasks,
        "chunk_size": training.chunk_size,
        "updates_per_second": 1 / timing.seconds,
        "tasks_per_second": training.tasks / timing.seconds,
        "memory_gib": timing.memory,
        "operations": work,
        "operations_per_second": work / timing.seconds,
        "reference_updates_per_second": 1 / reference if reference else None,
        "speed_up": reference / timing.seconds if reference else None,
    }
