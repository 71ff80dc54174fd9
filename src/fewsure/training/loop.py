"""The training loop: update, log, show, checkpoint."""

import math
import time
from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch

from fewsure.devices import device_name
from fewsure.errors import Diverged
from fewsure.experiment import RANDOM_START
from fewsure.training.optimiser import Optimiser
from fewsure.training.runs import Checkpoint, Run
from fewsure.training.update import MetaUpdate
from fewsure.types import Parts

SHOW_EVERY = 0.5
"""Seconds between two looks at the numbers, each of which waits for the device."""


class Progress(NamedTuple):
    """What a person wants to see while training goes on."""

    update: int
    updates: int
    seconds: float
    """Of training, those before an interruption included."""
    tasks_per_second: float
    device: str
    means: Mapping[str, float]
    """Of the loss and each of its terms, since the last logged line."""


def train(
    run: Run,
    device: torch.device,
    *,
    checkpoint_every: int = 1000,
    log_every: int = 50,
    show: Callable[[Progress], None] = lambda progress: None,
    stop: Callable[[], bool] = lambda: False,
) -> Parts:
    """Train a run to its end, from its last checkpoint if it has one. Returns the meta-parameters.

    Each update draws its tasks and noise from (seed, update) alone, so a run that was interrupted and continued ends
    in the same numbers as one that was not. When `stop()` turns true, the update in hand is finished and checkpointed.
    """
    updates = run.experiment.training.updates
    from_seed = run.experiment.start == RANDOM_START and not run.has_checkpoint
    start = run.initial() if from_seed else run.load(device)
    meta = {part: {name: value.to(device) for name, value in params.items()} for part, params in start.meta.items()}
    optimiser = Optimiser(meta)
    optimiser.load(start.optimiser)
    make_update = MetaUpdate(run.experiment, meta, optimiser, device)
    clock = _Clock(run.forget_metrics_after(start.update), run.experiment.training.tasks, device_name(device))

    update = start.update
    if update < updates:
        run.forget_evaluation()
    stopping = False
    while update < updates and not stopping:
        make_update(update)
        update += 1
        stopping = stop()
        checkpoint = update % checkpoint_every == 0 or update == updates or stopping
        logged = checkpoint or update % log_every == 0
        if logged or clock.is_due:
            progress = clock.progress(update, updates, make_update)
            if logged:
                _log(run, progress)
                make_update.forget_means()
                clock.restart()
            show(progress)
        if checkpoint:
            run.save(Checkpoint(update, meta, optimiser.state()))
    return meta


def _log(run: Run, progress: Progress) -> None:
    bad = next((name for name, value in progress.means.items() if not math.isfinite(value)), None)
    if bad is not None:
        last = f"its last good checkpoint is in {run.folder}" if run.has_checkpoint else "no checkpoint was made"
        raise Diverged(
            f"training diverged before update {progress.update}: `{bad}` is not finite; {last}; "
            "try a lower --lr or --inner-lr"
        )
    line = {
        "update": progress.update,
        "device": progress.device,
        "seconds": round(progress.seconds, 3),
        "tasks_per_second": round(progress.tasks_per_second, 1),
    }
    run.append_metrics(line | dict(progress.means))


class _Clock:
    """Times training and the window of updates since the last logged line."""

    def __init__(self, seconds_before: float, tasks: int, device: str) -> None:
        self._began = time.perf_counter() - seconds_before
        self._tasks = tasks
        self._device = device
        self.restart()

    def restart(self) -> None:
        self._opened = self._shown = time.perf_counter()

    @property
    def is_due(self) -> bool:
        return time.perf_counter() - self._shown > SHOW_EVERY

    def progress(self, update: int, updates: int, made: MetaUpdate) -> Progress:
        means = made.means()
        now = self._shown = time.perf_counter()
        rate = made.count * self._tasks / max(now - self._opened, 1e-9)
        return Progress(update, updates, now - self._began, rate, self._device, means)
