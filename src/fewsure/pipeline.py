"""Train and evaluate a run, with progress on standard error; commands and the Learner are made of this."""

import dataclasses
import hashlib
import signal
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from statistics import mean
from typing import Any, NamedTuple

import torch

from fewsure.certification.freshness import Record, data_record, record_data
from fewsure.core.distributed import any_process, is_rank_zero, rank_zero_first
from fewsure.core.progress import ProgressLine, note, silenced
from fewsure.core.signals import Stopped, StopSignal
from fewsure.core.vectorise import stack_components
from fewsure.data.pools import Split
from fewsure.errors import Diverged, FewsureError
from fewsure.evaluation.calibrate import calibrated, calibrated_at, needed_splits
from fewsure.evaluation.evaluate import evaluate, evaluate_in_shards, identity
from fewsure.evaluation.metrics.summary import means_of_each
from fewsure.training.experiment import GROUPS, RANDOM_START, Experiment
from fewsure.training.loop import Progress, train
from fewsure.training.runs import LAST, Checkpoint, Run
from fewsure.training.tensorboard import event_writer
from fewsure.training.watch import SCORE, best_of, scores_of, stalled
from fewsure.types import Parts

WITHOUT_EFFECT = ("chunk_size", "cuda_graph")
"""Options on which a result does not depend: a resumed run may have others."""
MEMBERS = "members"
"""The folder of the runs of an ensemble's members."""
VALIDATION_TASKS = 200
"""Tasks behind the score of a checkpoint. A temperature is fitted on other ones."""


class Start(NamedTuple):
    """Where a run starts that starts at another one."""

    meta: Parts
    data: Record
    """The other run's record of the data that it has used."""


def start_run(folder: Path, experiment: Experiment, *, resume: bool, start: Start | None = None) -> Run:
    """A new run, or the one that is there if `resume` allows it and its options are the same."""
    return rank_zero_first(
        lambda: _start_run(folder, experiment, resume, start), lambda: _start_run(folder, experiment, True, start)
    )


def _start_run(folder: Path, experiment: Experiment, resume: bool, start: Start | None) -> Run:
    if not (resume and (folder / "config.json").exists()):
        experiment = dataclasses.replace(experiment, data=experiment.data.prepared())
        for split in needed_splits(experiment):  # what cannot be trained on leaves nothing behind
            shots = experiment.data.training_shots if split == "train" else (experiment.data.test_shot,)
            experiment.data.tasks(split, torch.device("cpu")).with_shot(shots[-1])
        for doubt in experiment.data.doubts():
            note(doubt)
        return _begun(Run.create(folder, experiment.at_known_precision()), start)
    run = Run.open(folder)
    experiment = dataclasses.replace(experiment, data=experiment.data.prepared())
    experiment = experiment.at_known_precision(run.experiment.training.precision)
    there, asked = run.experiment.record(), experiment.record()
    options = [(name, value, asked[group].get(name)) for group in GROUPS for name, value in there[group].items()]
    options += [("start", there["start"], asked["start"])] if start is not None else []
    for name, value, given in options:
        if given != value and name == "scale":
            raise FewsureError(f"the training data of {folder} has changed since the run began; choose another --out")
        if given != value and name not in WITHOUT_EFFECT:
            raise FewsureError(
                f"a resumed run keeps its options: `{name}` is {value!r} in {folder}, but got {given!r}; "
                "leave the option out, or choose another --out"
            )
    kept = dataclasses.replace(run.experiment, training=experiment.training, data=experiment.data)
    run = Run(folder, kept, run.version)
    return run if run.has_checkpoint else _begun(run, start)  # it may have been killed before all of it was there


def _begun(run: Run, start: Start | None) -> Run:
    if start is None and run.experiment.start != RANDOM_START:
        raise FewsureError(f"{run.folder} starts at another run, but has no checkpoint of it yet; give --from again")
    record_data(run, start.data if start else None)
    if start is not None:
        run.save(Checkpoint(0, start.meta, {}))
    return run


def start_at_maml(experiment: Experiment, folder: Path) -> tuple[Experiment, Start]:
    """The experiment that starts at the weights that the MAML run in a folder has learned."""
    maml = Run.open(folder)
    weights = maml.load(torch.device("cpu"), maml.chosen).meta.get("weights", {})
    meta = experiment.algorithm.from_weights(weights)
    shapes = {name: tuple(value.shape) for name, value in weights.items()}
    if maml.experiment.algorithm_name != "maml" or shapes != experiment.model.network.shapes:
        raise FewsureError(f"expected --from to be a MAML run of the same network, but {folder} is not")
    digest = hashlib.sha256(maml.checkpoint_file(maml.chosen).read_bytes()).hexdigest()
    return dataclasses.replace(experiment, start=f"maml {digest[:16]}"), Start(meta, data_record(maml))


def train_run(
    run: Run,
    device: torch.device,
    *,
    checkpoint_every: int = 1000,
    keep_last: int = 1,
    max_skipped: int = 20,
    tensorboard: bool = False,
) -> dict[str, Any]:
    """Train to the end, or until SIGINT or SIGTERM; the last logged line."""
    options = run.experiment.training
    if options.members > 1:
        how = {"checkpoint_every": checkpoint_every, "keep_last": keep_last, "max_skipped": max_skipped}
        return _train_members(run, device, tensorboard=tensorboard, **how)
    score = validation_score(run.experiment, device) if 0 < options.keep_best < options.updates else None
    with (
        event_writer(run.folder, _updates_made(run, device))
        if tensorboard and is_rank_zero()
        else nullcontext() as log,
        ProgressLine(f"training {run.experiment.algorithm_name}") as line,
        StopSignal() as stop,
    ):

        def show(progress: Progress) -> None:
            shown = {name: value for name, value in progress.means.items() if "." not in name}  # parts of others
            terms = "  ".join(f"{name} {value:.4g}" for name, value in shown.items())
            best = f"  best {SCORE} {progress.best.nll:.4g} at {progress.best.update:,}" if progress.best else ""
            line.show(progress.update, progress.updates, f"{progress.tasks_per_second:,.0f} tasks/s  {terms}{best}")

        train(
            run,
            device,
            checkpoint_every=checkpoint_every,
            keep_last=keep_last,
            max_skipped=max_skipped,
            score=score,
            show=show,
            log=log,
            stop=stop,
        )
    scores = scores_of(run.metrics())
    unfinished = _updates_made(run, device) < options.updates and not stalled(scores, options.patience)
    if any_process(stop()) and unfinished:
        raise Stopped(run.folder, stop.received or signal.SIGTERM)
    calibrated(run, device)
    lines = run.metrics()
    if not lines:
        raise FewsureError(f"{run.folder} is trained, but its metrics.jsonl is missing or damaged; train the run anew")
    best = best_of(scores)
    return lines[-1] if best is None else lines[-1] | {"best_update": best.update, f"best_{SCORE}": best.nll}


def _train_members(run: Run, device: torch.device, **how: Any) -> dict[str, Any]:
    """Train the members of an ensemble in folders of their own, and put their meta-parameters together."""
    count, members = run.experiment.training.members, []
    for number in range(count):
        note(f"member {number + 1} of {count}")
        with silenced():
            member = start_run(run.folder / MEMBERS / str(number + 1), run.experiment.member(number), resume=True)
        members.append(member)
        try:
            train_run(member, device, **how)
        except Stopped as stopped:
            raise Stopped(run.folder, stopped.exit_code - 128) from stopped
    if not run.has_checkpoint:
        last = [member.metrics()[-1] for member in members]
        shared = [name for name in last[0] if name != "device" and all(name in line for line in last)]
        means = {name: mean(line[name] for line in last) for name in shared}
        ends = {"update": max(line["update"] for line in last), "device": last[0]["device"]}
        run.append_metrics(means | ends | {"seconds": sum(line["seconds"] for line in last)})
        metas = [member.load(device, member.chosen).meta for member in members]
        run.save(Checkpoint(ends["update"], stack_components(metas), {}))
    calibrated(run, device)
    return run.metrics()[-1]


def _updates_made(run: Run, device: torch.device) -> int:
    return run.load(device).update if run.has_checkpoint else 0


def validation_score(experiment: Experiment, device: torch.device) -> Callable[[Parts], list[float]]:
    """The mean NLL of each group of validation tasks, or of each task where they have no groups."""
    data = experiment.data
    if data.train_on_validation:
        raise FewsureError(
            "expected --keep-best 0 beside --train-on-validation, which leaves no tasks to choose by, but got "
            f"{experiment.training.keep_best}; leave one of them out"
        )
    data.tasks("validation", device)  # what is not there is missed now, not after hours

    def score(meta: Parts) -> list[float]:
        try:
            with silenced():
                ready = calibrated_at(experiment, meta, device, tasks=VALIDATION_TASKS)
            _, records = evaluate(ready, meta, tasks=VALIDATION_TASKS, seed=1, stream="validation")
        except Diverged:
            return [float("inf")]
        return means_of_each(records["nll"], records.get("groups")).tolist()

    return score


def evaluate_run(
    run: Run,
    device: torch.device,
    *,
    tasks: int,
    seed: int,
    stream: Split = "test",
    checkpoint: str | None = None,
    shot: int | None = None,
    kl_weight: float | None = None,
) -> dict[str, Any]:
    """Evaluate a checkpoint on unseen tasks, and keep the result in the run folder.

    The checkpoint is the run's chosen one, unless another is named. Tasks have `shot` support examples, or so many of
    each class; by default as many as the run's data test with. A method that was trained for several weights of the KL
    takes the run's, or `kl_weight`. Shards that an interrupted evaluation has finished are taken up.
    """
    found = run.load(device, checkpoint or run.chosen)
    meta, chosen = found.meta, checkpoint in (None, run.chosen)
    experiment = calibrated(run, device, shot) if chosen else calibrated_at(run.experiment, meta, device, shot)
    experiment = experiment if kl_weight is None else experiment.at_kl_weight(kl_weight)
    records = identity(experiment, meta, seed=seed, stream=stream)
    with ProgressLine(f"evaluating {run.experiment.algorithm_name}") as line:
        summary = evaluate_in_shards(
            experiment,
            meta,
            tasks=tasks,
            seed=seed,
            stream=stream,
            store=run.evaluation_shards(records, checkpoint),
            progress=lambda done: line.show(done, tasks, "tasks"),
        )
    summary |= {"records": records} | ({} if kl_weight is None else {"kl_weight": kl_weight})
    if not chosen or run.chosen != LAST:
        summary |= {"checkpoint": checkpoint or run.chosen, "update": found.update}
    run.save_evaluation(summary, checkpoint)
    return summary
