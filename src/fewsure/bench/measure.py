"""The measurements of `fewsure bench`, one case after another, and the record that it keeps."""

import json
import platform
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from fewsure.bench.cases import KINDS, TASKS, Case, headline_cases
from fewsure.bench.long import PRECISIONS, evaluation_at_scale, training_curve
from fewsure.bench.scaling import growth, sweeps
from fewsure.bench.timing import matrix_rate, operations_of_a_task, time_reference, time_updates
from fewsure.core.config import from_json
from fewsure.core.devices import device_name
from fewsure.core.files import write_atomically
from fewsure.core.progress import ProgressLine
from fewsure.errors import FewsureError, require, require_known
from fewsure.version import __version__

SECTIONS = {
    "cases": ("method", "tasks", "precision", "T", "chunk_size"),
    "scaling": ("method", "varied"),
    "curves": ("precision",),
    "evaluations": ("method", "data"),
}
"""Section of the record → the names that tell its rows apart."""


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
    precisions: tuple[str, ...] = ("tf32",)
    """Precisions to time the methods under: `float32`, `tf32`, `bf16`."""
    curve_updates: int = 0
    """Updates of training curves under each precision; 0 for none."""
    evaluated_tasks: int = 0
    """Tasks of a long evaluation of SImPa and MAML on the first kind of task; 0 for none."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "kinds", tuple(kind.replace("x", "×") for kind in self.kinds))
        for kind in self.kinds:
            require_known("kinds", kind, list(KINDS))
        for precision in self.precisions:
            require_known("precisions", precision, list(PRECISIONS))
        require(min(self.tasks) >= 2, "tasks", "at least 2", min(self.tasks))
        require(self.seconds > 0, "seconds", "a number above 0", self.seconds)
        require(self.curve_updates >= 0, "curve_updates", "at least 1, or 0 for none", self.curve_updates)
        enough = self.evaluated_tasks == 0 or self.evaluated_tasks >= 2
        require(enough, "evaluated_tasks", "at least 2, or 0", self.evaluated_tasks)


def measure(plan: Plan, device: torch.device, results: Path | None) -> dict[str, Any]:
    """The record of all measurements. Each is written to `results` at once, in case the command is stopped."""
    began = time.perf_counter()
    facts = {
        "device": device_name(device),
        "version": __version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "threads": torch.get_num_threads(),
    }
    record = _earlier(results, facts) | facts | {"matrix_rate": matrix_rate(device)}
    spent = record["seconds"]
    work = _work(plan, device, record["matrix_rate"])
    with ProgressLine("timing") as line:
        for number, (section, name, one) in enumerate(work):
            line.show(number, len(work), name)
            _put(record[section], one(), SECTIONS[section])
            record["seconds"] = round(spent + time.perf_counter() - began, 1)
            if results is not None:
                write_atomically(results, json.dumps(record, indent=1) + "\n")
    return record


def _earlier(results: Path | None, facts: Mapping[str, Any]) -> dict[str, Any]:
    """The measurements of other commands on this machine, from the file."""
    nothing: dict[str, Any] = {"seconds": 0.0} | {section: [] for section in SECTIONS}
    if results is None or not results.is_file():
        return nothing
    try:
        found: dict[str, Any] = nothing | from_json(results.read_text(encoding="utf-8"))
    except (ValueError, TypeError):
        raise FewsureError(f"expected measurements of `fewsure bench` in {results}, but it holds others") from None
    for name in ("device", "version", "torch", "threads"):
        if found.get(name) != facts[name]:
            raise FewsureError(
                f"{results} holds measurements of {name} {found.get(name)}, and this is {facts[name]}; "
                "name another file with --results"
            )
    return found


def _put(rows: list[dict[str, Any]], row: dict[str, Any], names: tuple[str, ...]) -> None:
    """Add a row, or replace the one with the same names. Values that were not measured now stay."""
    places = [place for place, old in enumerate(rows) if all(old.get(name) == row.get(name) for name in names)]
    place = places[0] if places else len(rows)
    before = rows[place] if places else {}
    rows[place : place + 1] = [row | {name: value for name, value in before.items() if row.get(name) is None}]


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
    if plan.evaluated_tasks:
        for case in headline_cases(plan.kinds[:1]):
            if case.method in ("maml", "simpa, no KL"):
                evaluation = partial(evaluation_at_scale, case.experiment, device, plan.evaluated_tasks)
                work.append(("evaluations", f"evaluation of {case.method}", evaluation))
    if plan.curve_updates:
        for precision in PRECISIONS:
            curve = partial(training_curve, precision, device, plan.curve_updates)
            work.append(("curves", f"training under {precision}", curve))
    if plan.scaling:
        for sweep in sweeps():
            name = f"{sweep.case.method} over {sweep.varied}"
            work.append(("scaling", name, partial(growth, sweep, device, plan.seconds / 2)))
    return work


def _measured(
    case: Case, asked: Case, device: torch.device, plan: Plan, roof: float, references: dict[Case, float]
) -> dict[str, Any]:
    """A row. The plain program is timed once for what was `asked`, whatever the precision."""
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
