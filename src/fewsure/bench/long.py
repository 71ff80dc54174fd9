"""Long runs: training curves under each precision, an evaluation of many tasks, and flat memory."""

from typing import Any

import torch

from fewsure.bench.cases import simpa
from fewsure.bench.timing import allocated_memory, initial_meta
from fewsure.core.shards import DiscardShards
from fewsure.evaluation.evaluate import evaluate, evaluate_in_shards
from fewsure.training.experiment import Experiment
from fewsure.training.optimiser import Optimiser
from fewsure.training.update import MetaUpdate

PRECISIONS = ("float32", "tf32", "bf16")
POINTS = 20
"""The points of a curve."""
VALIDATION_TASKS = 500


def training_curve(precision: str, device: torch.device, updates: int) -> dict[str, Any]:
    """SImPa with the moment KL on sine-line, from the same seed: its loss as it goes, and what it scores in the end."""
    case = simpa("simpa", "sine-line", kl_samples=64)
    experiment = case.with_options("training", precision=precision, updates=updates).experiment
    meta = initial_meta(experiment, device)
    make_update = MetaUpdate(experiment, meta, Optimiser(meta, device), device)
    every = max(1, updates // POINTS)
    at, losses, memory = [], [], []
    for update in range(updates):
        make_update(update)
        if (update + 1) % every == 0 or update + 1 == updates:
            at.append(update + 1)
            losses.append(make_update.means()["loss"])
            memory.append(allocated_memory(device))
            make_update.forget_means()
    scores, _ = evaluate(experiment, meta, tasks=VALIDATION_TASKS, seed=0, stream="validation")
    scored = {"mse": scores["mse"]["mean"], "ece": scores["ece"], "nll": scores["nll"]["mean"]}
    curve = {"precision": precision, "updates": at, "loss": losses, "memory_gib": memory}
    return {**curve, "validation_tasks": VALIDATION_TASKS, **scored}


def evaluation_at_scale(experiment: Experiment, device: torch.device, tasks: int) -> dict[str, Any]:
    """Evaluate an untrained method on so many tasks: seconds, and the memory in use after each shard."""
    memory: list[float | None] = []

    def measure(done: int) -> None:
        memory.append(allocated_memory(device))

    store, meta = DiscardShards(measure), initial_meta(experiment, device)
    found = evaluate_in_shards(experiment, meta, tasks=tasks, seed=0, stream="test", store=store)
    return {
        "method": experiment.algorithm_name,
        "data": experiment.data_name,
        "tasks": tasks,
        "samples": found["samples"],
        "seconds": found["seconds"],
        "tasks_per_second": tasks / found["seconds"],
        "memory_gib": memory,
    }
