"""The training loop: update, log, show, checkpoint."""

import math
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from statistics import mean
from typing import Any, NamedTuple

import torch

from fewsure.core import streams
from fewsure.core.devices import device_name
from fewsure.core.distributed import all_gather, any_process, rank_zero_first
from fewsure.errors import Diverged, FewsureError
from fewsure.training.experiment import RANDOM_START
from fewsure.training.runs import Checkpoint, Run
from fewsure.training.update import MetaUpdate, Trouble, new_optimiser
from fewsure.training.watch import (
    AHEAD,
    EACH,
    SCORE,
    Score,
    best_of,
    explosion,
    is_ahead,
    scores_of,
    since_best,
    stalled,
    start_of,
)
from fewsure.types import Params, Parts

SHOW_EVERY = 0.5
"""Seconds between two looks at the numbers, each of which waits for the device."""


class Progress(NamedTuple):
    """The figures to show while training goes on."""

    update: int
    updates: int
    seconds: float
    """Seconds of training, with those before an interruption."""
    tasks_per_second: float
    device: str
    means: Mapping[str, float]
    """Means of the loss and each of its terms since the last logged line."""
    best: Score | None
    """The best score so far."""


def train(
    run: Run,
    device: torch.device,
    *,
    checkpoint_every: int = 1000,
    keep_last: int = 1,
    log_every: int = 50,
    max_skipped: int = 20,
    score: Callable[[Parts], Sequence[float]] | None = None,
    show: Callable[[Progress], None] = lambda progress: None,
    log: Callable[[Mapping[str, Any]], None] | None = None,
    stop: Callable[[], bool] = lambda: False,
) -> Parts:
    """Train a run to its end, from its last checkpoint if it has one. Returns the meta-parameters.

    Each update draws its tasks and noise from (seed, update) alone, so an interrupted run ends in the same numbers as
    an undisturbed one. A new run begins with the method's `fit` on the training groups. When `stop()` turns
    true, the update in hand is finished and checkpointed.

    Every `keep_best` updates of the options, `score` gives the NLL of each group of validation tasks, infinite where
    meta-parameters are of no use. The checkpoint with the best mean is kept too, and training stops when `patience`
    runs out. The result of `fit` is the best until updates are ahead of it by more than chance.
    After `max_skipped` updates in a row whose numbers are not finite, training stops with the last checkpoint.
    Processes that `torchrun` has started share the tasks.
    """
    updates = run.experiment.training.updates
    start = rank_zero_first(lambda: _begun(run, device), lambda: _begun(run, device, fits=False))
    if len(set(all_gather(start.update))) > 1:
        raise FewsureError(f"{run.folder} is not the same folder for all processes; put it where all machines see it")
    meta = {part: _on(device, params) for part, params in start.meta.items()}
    options = run.experiment.training
    if updates and not any(meta.values()):
        name = run.experiment.algorithm_name
        raise FewsureError(f"{name} has nothing to learn: expected `updates` to be 0, but got {updates}")
    optimiser = new_optimiser(meta, options, device)
    optimiser.load(start.optimiser)

    if updates == 0:
        if not run.metrics():
            run.append_metrics(_first_line(device, 0.0))
        if not run.has_checkpoint:
            run.save(Checkpoint(0, meta, {}))
        return meta

    def prepare() -> MetaUpdate:
        return MetaUpdate(run.experiment, meta, optimiser, device)

    make_update = rank_zero_first(prepare, prepare)  # the first decodes the data, if need be, and the others find it
    clock = _Clock(run.forget_metrics_after(start.update), run.experiment.training.tasks, device_name(device))
    run.forget_older(keep_last)  # it may have been killed before it came to that

    update, lines = start.update, run.metrics()
    scores, warned = scores_of(lines), False
    if score is not None and not scores and _is_fitted(run, start):
        lines.append(_score_start(run, meta, score, _first_line(device, clock.seconds)))
        scores = scores_of(lines)
    if update < updates and not stalled(scores, options.patience):
        run.forget_evaluation()
    stopping = False
    while update < updates and not stopping and not stalled(scores, options.patience):
        make_update(update)
        update += 1
        stopping = any_process(stop())
        planned = update % checkpoint_every == 0 or update == updates
        checkpoint = planned or stopping
        validated = score is not None and (update % options.keep_best == 0 or update == updates)
        logged = checkpoint or validated or update % log_every == 0
        if logged or clock.is_due:
            _require_finite(run, make_update.trouble(), update, min(max_skipped, updates))
            progress = clock.progress(update, updates, make_update, best_of(scores))
            show(progress)
        if logged:
            each: Sequence[float] = score(meta) if score is not None and validated else [math.inf]
            nll, scored = mean(each), {}
            if math.isfinite(nll):
                beginning = start_of(lines)
                scores.append(Score(update, nll, is_ahead(each, beginning)))
                scored = {} if beginning is None else {AHEAD: float(scores[-1].ahead)}
                scored |= {SCORE: nll, "since_best": since_best(scores)}
                show(progress._replace(best=best_of(scores)))
            lines.append(_log(run, progress, scored))
            if log is not None:
                log(lines[-1])
            exploded = None if warned else explosion(lines)
            if exploded is not None:
                warned = True
                warnings.warn(f"training explodes at update {update:,}: {exploded}", stacklevel=2)
            make_update.forget_means()
            clock.restart()
            if math.isfinite(nll) and scores[-1].ahead:
                run.save_best(Checkpoint(update, meta, optimiser.state()), nll)
        if checkpoint or stalled(scores, options.patience):
            run.save(Checkpoint(update, meta, optimiser.state()), keep_last=keep_last if planned else 1)
    if update > start.update:
        run.forget_evaluation()  # of a checkpoint on the way, should somebody have looked at one
    return meta


def _begun(run: Run, device: torch.device, *, fits: bool = True) -> Checkpoint:
    """The last checkpoint, or the first: the initial meta-parameters, fitted to the training groups and then kept."""
    experiment, began = run.experiment, time.perf_counter()
    starts_elsewhere = experiment.start != RANDOM_START  # and has a checkpoint of it, which may not be fitted yet
    first = run.load(device) if run.has_checkpoint or starts_elsewhere else run.initial()
    if first.update > 0 or (run.has_checkpoint and not starts_elsewhere):
        return first
    meta = {part: _on(device, params) for part, params in first.meta.items()}
    if not fits:
        return Checkpoint(0, meta, {})
    generator = streams.generator(experiment.training.seed, "fit", device=device)
    groups = experiment.data.groups(device, generator)
    fitted = experiment.algorithm.fit(meta, experiment.training_model, groups, generator)
    if fitted is not meta:
        run.forget_metrics_after(-1)
        run.append_metrics(_first_line(device, time.perf_counter() - began))
        run.save(Checkpoint(0, fitted, {}))
    return Checkpoint(0, fitted, {})


def _is_fitted(run: Run, start: Checkpoint) -> bool:
    """Whether a training stands where `fit` has left it."""
    return start.update == 0 and run.has_checkpoint and run.experiment.start == RANDOM_START


def _score_start(
    run: Run, meta: Parts, score: Callable[[Parts], Sequence[float]], line: dict[str, Any]
) -> dict[str, Any]:
    """The line of the log of what `fit` has given, which is the best so far."""
    each = score(meta)
    if math.isfinite(mean(each)):
        line |= {SCORE: mean(each), EACH: list(each), "since_best": 0}
        run.save_best(Checkpoint(0, meta, {}), mean(each))
    run.append_metrics(line)
    return line


def _on(device: torch.device, params: Params) -> Params:
    return {name: value.to(device) for name, value in params.items()}


def _first_line(device: torch.device, seconds: float) -> dict[str, Any]:
    """The line of the log before the first update."""
    return {"update": 0, "device": device_name(device), "seconds": round(seconds, 3), "tasks_per_second": 0.0}


def _require_finite(run: Run, trouble: Trouble, update: int, limit: int) -> None:
    if trouble.updates >= limit:
        last = f"its last good checkpoint is in {run.folder}" if run.has_checkpoint else "no checkpoint was made"
        # A term that is not finite makes those that it is part of so, and all gradients.
        terms = [term for term in trouble.terms if "gradient" not in term] or trouble.terms[:1]
        broken = f"{', '.join(terms)} {'is' if len(terms) == 1 else 'are'} not finite"
        raise Diverged(
            f"training diverged before update {update}: {broken}, and {trouble.updates} updates in a row were skipped; "
            f"{last}; try a lower --lr or --inner-lr"
        )


def _log(run: Run, progress: Progress, more: Mapping[str, float]) -> dict[str, Any]:
    line: dict[str, Any] = {
        "update": progress.update,
        "device": progress.device,
        "seconds": round(progress.seconds, 3),
        "tasks_per_second": round(progress.tasks_per_second, 1),
    }
    line |= dict(progress.means) | dict(more)
    run.append_metrics(line)
    return line


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
    def seconds(self) -> float:
        """The time that training has taken so far."""
        return time.perf_counter() - self._began

    @property
    def is_due(self) -> bool:
        return time.perf_counter() - self._shown > SHOW_EVERY

    def progress(self, update: int, updates: int, made: MetaUpdate, best: Score | None) -> Progress:
        means = made.means()
        now = self._shown = time.perf_counter()
        rate = made.count * self._tasks / max(now - self._opened, 1e-9)
        return Progress(update, updates, self.seconds, rate, self._device, means, best)
