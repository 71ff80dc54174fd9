"""Training and evaluating a run with progress on standard error: what commands are made of."""

import dataclasses
import hashlib
import signal
import threading
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

import torch

from fewsure.algorithms.platipus import Platipus
from fewsure.data import prepared
from fewsure.data.pools import Split
from fewsure.errors import FewsureError
from fewsure.evaluation import evaluate
from fewsure.experiment import GROUPS, Experiment
from fewsure.noise import with_noise_level
from fewsure.progress import ProgressLine
from fewsure.training.loop import Progress, train
from fewsure.training.runs import Checkpoint, Run
from fewsure.types import Parts

WITHOUT_EFFECT = ("chunk_size", "cuda_graph")
"""Options on which a result does not depend: a resumed run may have others."""


class Stopped(Exception):
    """Training was asked to stop by a signal and left a checkpoint behind."""

    def __init__(self, folder: Path, number: int) -> None:
        super().__init__(
            f"stopped; {folder} holds a checkpoint, run the command again to go on (train, features: with --resume)"
        )
        self.exit_code = 128 + number


def start_run(folder: Path, experiment: Experiment, *, resume: bool, meta: Parts | None = None) -> Run:
    """A new run, or the one that is there if `resume` allows it and its options are the same.

    A new run starts at the meta-parameters `meta`, if they are given.
    """
    if not (resume and (folder / "config.json").exists()):
        run = Run.create(folder, experiment)
        if meta is not None:
            run.save(Checkpoint(0, meta, {}))
        return run
    run = Run.open(folder)
    experiment = dataclasses.replace(experiment, data=prepared(experiment.data))
    there, asked = run.experiment.record(), experiment.record()
    options = [(name, value, asked[group].get(name)) for group in GROUPS for name, value in there[group].items()]
    options += [("start", there["start"], asked["start"])] if meta is not None else []
    for name, value, given in options:
        if given != value and name == "scale":
            raise FewsureError(f"the training data of {folder} has changed since the run began; choose another --out")
        if given != value and name not in WITHOUT_EFFECT:
            raise FewsureError(
                f"a resumed run keeps its options: `{name}` is {value!r} in {folder}, but got {given!r}; "
                "leave the option out, or choose another --out"
            )
    kept = dataclasses.replace(run.experiment, training=experiment.training, data=experiment.data)
    return Run(folder, kept, run.version)


def start_at_maml(experiment: Experiment, folder: Path) -> tuple[Experiment, Parts]:
    """The experiment and its meta-parameters, starting at the weights that the MAML run in a folder has learned."""
    maml = Run.open(folder)
    weights = maml.load(torch.device("cpu")).meta.get("weights", {})
    if not isinstance(experiment.algorithm, Platipus):
        raise FewsureError(
            f"expected --from-maml with platipus alone, but got {experiment.algorithm_name}; leave it out"
        )
    shapes = {name: tuple(value.shape) for name, value in weights.items()}
    if maml.experiment.algorithm_name != "maml" or shapes != experiment.model.network.shapes:
        raise FewsureError(f"expected --from-maml to be a MAML run of the same network, but {folder} is not")
    digest = hashlib.sha256((folder / "checkpoint.safetensors").read_bytes()).hexdigest()
    return dataclasses.replace(experiment, start=f"maml {digest[:16]}"), experiment.algorithm.from_maml(weights)


def train_run(run: Run, device: torch.device, *, quiet: bool = False, checkpoint_every: int = 1000) -> dict[str, Any]:
    """Train to the end, or until SIGINT or SIGTERM; the last logged line."""
    with ProgressLine(f"training {run.experiment.algorithm_name}", quiet=quiet) as line, StopSignal() as stop:

        def show(progress: Progress) -> None:
            terms = "  ".join(f"{name} {value:.4g}" for name, value in progress.means.items())
            line.show(progress.update, progress.updates, f"{progress.tasks_per_second:,.0f} tasks/s  {terms}")

        train(run, device, checkpoint_every=checkpoint_every, show=show, stop=stop)
    with_noise_level(run, device)
    if stop.received and run.load(device).update < run.experiment.training.updates:
        raise Stopped(run.folder, stop.received)
    lines = run.metrics()
    if not lines:
        raise FewsureError(f"{run.folder} is trained, but its metrics.jsonl is missing or damaged; train the run anew")
    return lines[-1]


def evaluate_run(
    run: Run, device: torch.device, *, tasks: int, seed: int, stream: Split = "test", quiet: bool = False
) -> dict[str, Any]:
    """Evaluate on unseen tasks, and keep the result in the run folder."""
    experiment = with_noise_level(run, device)
    meta = run.load(device).meta
    with ProgressLine(f"evaluating {run.experiment.algorithm_name}", quiet=quiet) as line:
        summary, records = evaluate(
            experiment,
            meta,
            tasks=tasks,
            seed=seed,
            stream=stream,
            progress=lambda done: line.show(done, tasks, "tasks"),
        )
    run.save_evaluation(summary, records)
    return summary


class StopSignal:
    """Turns the first SIGINT or SIGTERM into a flag, so that the update in hand is finished; a second one kills.

    Only a program's main thread hears signals; in another one, nothing changes.
    """

    SIGNALS = (signal.SIGINT, signal.SIGTERM)
    received: int = 0

    def __call__(self) -> bool:
        return self.received > 0

    def __enter__(self) -> "StopSignal":
        heard = self.SIGNALS if threading.current_thread() is threading.main_thread() else ()
        self._before = {number: signal.signal(number, self._receive) for number in heard}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._restore()

    def _receive(self, number: int, frame: FrameType | None) -> None:
        self.received = number
        self._restore()

    def _restore(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
