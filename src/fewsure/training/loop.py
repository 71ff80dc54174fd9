"""The training loop: sample tasks, step, log, checkpoint."""

import math
import time
from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch

from fewsure import streams
from fewsure.errors import FewsureError
from fewsure.training.engine import Engine
from fewsure.training.optimiser import Optimiser
from fewsure.training.runs import Checkpoint, Run
from fewsure.training.schedule import learning_rate
from fewsure.types import Info, Parts, Stage
from fewsure.vectorise import draw_noise

SHOW_EVERY = 0.5
"""Seconds between two looks at the numbers, each of which waits for the device."""


class Progress(NamedTuple):
    """What a person wants to see while training goes on."""

    update: int
    updates: int
    seconds: float
    """Of training, those before an interruption included."""
    tasks_per_second: float
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
    experiment = run.experiment
    algorithm, model, options = experiment.algorithm, experiment.model, experiment.training
    engine = Engine(algorithm, model, chunk_size=options.chunk_size)
    noise_spec = algorithm.noise(model)

    start = run.load(device) if run.has_checkpoint else run.initial()
    meta = {part: {name: value.to(device) for name, value in params.items()} for part, params in start.meta.items()}
    optimiser = Optimiser(meta)
    optimiser.load(start.optimiser)
    update = start.update
    window = _Window(update, seconds_before=run.forget_metrics_after(update), tasks=options.tasks)

    def log() -> None:
        progress = window.progress(update, options.updates)
        bad = next((name for name, value in progress.means.items() if not math.isfinite(value)), None)
        if bad is not None:
            last = f"its last good checkpoint is in {run.folder}" if run.has_checkpoint else "no checkpoint was made"
            raise FewsureError(f"training diverged before update {update}: `{bad}` is not finite; {last}; lower --lr")
        run.append_metrics(
            {
                "update": update,
                "seconds": round(progress.seconds, 3),
                "tasks_per_second": round(progress.tasks_per_second, 1),
            }
            | dict(progress.means)
        )
        window.restart(update)
        show(progress)

    stopping = False
    while update < options.updates and not stopping:
        generator = streams.generator(options.seed, "train", update, device=device)
        tasks = experiment.data.sample(options.tasks, generator)
        shared, noise = draw_noise(noise_spec, options.tasks, generator)
        stage = Stage(torch.tensor(update, device=device), options.tasks)
        gradient, info = engine.gradient(meta, tasks, shared, noise, stage)
        lr = learning_rate(
            update, options.updates, peak=options.lr, schedule=options.schedule, warm_up=options.lr_warm_up
        )
        info["gradient_norm"] = optimiser.step(gradient, lr, options.clip_norm)
        update += 1
        window.add(info)

        stopping = stop()
        checkpoint = update % checkpoint_every == 0 or update == options.updates or stopping
        if checkpoint or update % log_every == 0:
            log()
        elif window.is_due:
            show(window.progress(update, options.updates))
        if checkpoint:
            run.save(Checkpoint(update, meta, optimiser.state()))
    return meta


class _Window:
    """Sums of the info since the last logged line, kept on the device, and the clock."""

    def __init__(self, update: int, seconds_before: float, tasks: int) -> None:
        self._began = time.perf_counter() - seconds_before
        self._tasks = tasks
        self.restart(update)

    def restart(self, update: int) -> None:
        self._first = update
        self._sums: Info = {}
        self._opened = self._shown = time.perf_counter()

    @property
    def is_due(self) -> bool:
        return time.perf_counter() - self._shown > SHOW_EVERY

    def add(self, info: Info) -> None:
        self._sums = {name: self._sums[name] + value if self._sums else value for name, value in info.items()}

    def progress(self, update: int, updates: int) -> Progress:
        count = update - self._first
        means = {name: float(value) / count for name, value in self._sums.items()}
        now = self._shown = time.perf_counter()
        rate = count * self._tasks / max(now - self._opened, 1e-9)
        return Progress(update, updates, now - self._began, rate, means)
