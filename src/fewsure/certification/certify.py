"""All certificates of one run, which `fewsure certify` prints and keeps.

Each statement holds on its own. The held-out certificate, Theorem 1 of a task and Theorem 2 have confidence 1 − δ, a
prediction set has probability 1 − α. They may therefore look at the same tasks; no joint confidence is claimed.
"""

import json
import math
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fewsure.certification.environment import FreshTasks, Unit, environment_of, fresh_blocks, unit_of
from fewsure.certification.freshness import Freshness, require_fresh
from fewsure.certification.predictor import (
    CertifiedPredictor,
    calibration_file,
    load_predictor,
    loss_of,
    measure,
    new_draws,
    scores,
    thresholds_without,
)
from fewsure.certification.theorem_1 import bounds_of_tasks, speaks_of
from fewsure.certification.theorem_2 import no_bound, theorem_of
from fewsure.core.config import finite, normalise_fields
from fewsure.core.devices import device_name
from fewsure.core.distributed import is_rank_zero
from fewsure.core.files import write_atomically
from fewsure.core.progress import ProgressLine
from fewsure.errors import Diverged, FewsureError, require
from fewsure.evaluation.evaluate import SAMPLES, task_facts
from fewsure.evaluation.metrics.summary import mean_over_tasks
from fewsure.theory import conformal
from fewsure.theory.concentration import Method, require_share
from fewsure.theory.conformal import Calibration
from fewsure.theory.held_out import held_out
from fewsure.training.runs import RESULT_FORMAT, Run
from fewsure.version import __version__

TASKS = 1000
"""Fresh tasks behind a certificate, where there are so many."""

Records = Mapping[str, Tensor]


@dataclass(frozen=True)
class Request:
    """The statements that are certified; choose them before you look at a result."""

    tasks: int | None = None
    """N, fresh tasks; `none` for 1,000, or for new-tasks as many as there are, if they are fewer."""
    delta: float = 0.05
    """δ: the certificate, Theorem 1 of each task, and Theorem 2, each hold with confidence 1 − δ."""
    alpha: float = 0.1
    """α: prediction sets and intervals hold the truth with probability 1 − α."""
    method: Method = "betting"
    """How the expected loss is bounded. `betting` adapts to the spread of the losses. `chernoff` is tight where a loss
    is 0 or 1. `both` takes the better of the two, each with half of δ."""
    unit: Unit | None = None
    """The kind of a new task. `tasks`: another draw from the same classes or groups. `new-tasks`: a task of new classes
    or of a new group, if they are a random sample. It has fewer tasks, since no two may share a class or a group.
    `none`: new-tasks on data of your own, and tasks elsewhere."""
    shot: tuple[int, ...] = ()
    """Numbers of support examples of a task, or of each of its classes. Each has statements of its own. By default it
    is the number of the training, or the middle of its range."""
    bound_samples: int = 200
    """Networks drawn behind Theorem 1 of each task, or draws of θ, adaptation noise and z behind Theorem 2."""
    verify: int = 0
    """Measure the loss on so many other tasks, too, and show it beside the certificate."""
    seed: int = 0
    """Chooses tasks and noise, and the one draw of θ that the statements are about."""

    def __post_init__(self) -> None:
        normalise_fields(self)
        enough = "at least 2, since one task says nothing of the next"
        require(self.tasks is None or self.tasks >= 2, "tasks", enough, self.tasks)
        require_share(self.delta, "delta")
        require_share(self.alpha, "alpha")
        require(all(shot >= 1 for shot in self.shot), "shot", "numbers of at least 1 example", self.shot)
        require(self.bound_samples >= 4, "bound_samples", "at least 4", self.bound_samples)
        require(self.verify == 0 or self.verify >= 2, "verify", "0, or at least 2 tasks", self.verify)


def certify_run(run: Run, device: torch.device, request: Request) -> dict[str, Any]:
    """Certify a run's checkpoint, keep the certificate in the run folder, and return it as JSON values.

    With several numbers of examples it is the first one's; `also` holds the others. Numbers that are not finite are
    null.
    """
    for shot in request.shot:
        run.experiment.data.with_shot(shot).tasks("test", device)  # all can be made, or nothing is written
    first, *others = (_certify_shot(run, device, request, shot) for shot in request.shot or [None])
    record = first | ({"also": others} if others else {})
    if is_rank_zero():
        write_atomically(run.folder / "certificate.json", json.dumps(record, indent=1) + "\n")
    return record


def _certify_shot(run: Run, device: torch.device, request: Request, shot: int | None) -> dict[str, Any]:
    """The certificate for tasks with so many support examples, whose calibration is kept. All of it worked, or none."""
    start = time.perf_counter()
    digest, experiment, checkpoint = load_predictor(run, device, shot)
    freshness = require_fresh(run, experiment)
    unit = unit_of(experiment.data, request.unit)
    environment = environment_of(experiment, unit, request.seed, device)
    predictor = CertifiedPredictor(experiment, checkpoint.meta, new_draws(experiment, request.seed, SAMPLES))

    def records(fresh: FreshTasks, part: str, tasks: int) -> Records:
        blocks = fresh_blocks(fresh, part, tasks, request.seed, device)
        with ProgressLine(f"certifying {experiment.algorithm_name}, {part}") as line:
            return predictor.records(blocks, lambda done: line.show(done, tasks, "tasks"))

    certified = environment.certified
    unseen = {name: fresh for name, fresh in environment.unseen.items() if _at_most(2, fresh) == 2}
    if request.verify and not unseen:
        raise FewsureError(
            "expected `verify` to be 0, since there are no tasks beside the certified ones; leave it out"
        )
    tasks, scale = request.tasks or _at_most(TASKS, certified), experiment.data.fitted_scale.y_std
    found = records(certified, "held-out", tasks)
    facts = {"environment": certified.description, "seed": request.seed, "checkpoint": digest}
    calibration = _calibration(predictor, found, **facts)
    if calibration is None:
        sets: dict[str, Any] = {"reason": f"no sets: adaptation diverged on {_diverged(found)} of {tasks} tasks"}
    else:
        measured = {name: records(fresh, name, _at_most(tasks, fresh)) for name, fresh in unseen.items()}
        sets = _coverage(calibration, request.alpha, found, measured, scale)
    record: dict[str, Any] = {
        "format": RESULT_FORMAT,
        **task_facts(experiment),
        "preset": experiment.preset,
        "updates": checkpoint.update,
        "planned_updates": experiment.training.updates,
        "train_seed": experiment.training.seed,
        "environment": certified.description,
        "unit": unit,
        "assumed": environment.assumed,
        "fresh": freshness.record(),
        "loss": loss_of(experiment),
        "held_out": _held_out(found, scale**2, request),
        "conformal": sets,
        **({"theorem_1": _theorem_1(predictor, request, certified, tasks, freshness)} if speaks_of(experiment) else {}),
        "theorem_2": _theorem_2(predictor, request),
        "samples": int(found["samples"][0]),
        "seed": request.seed,
        "version": __version__,
        "device": device_name(device),
        "checkpoint": digest,
        "data_checksum": environment.checksum,
    }
    if request.verify:
        name, fresh = next(iter(unseen.items()))
        others = records(fresh, "verify", _at_most(request.verify, fresh))
        mean = mean_over_tasks(scale**2 * others["loss"], others.get("groups"))
        record["measured"] = {**mean, "tasks": len(others["loss"]), "on": name}
    record = finite(record | {"seconds": round(time.perf_counter() - start, 3)})
    if is_rank_zero():
        path = calibration_file(run, experiment.data.test_shot)
        if calibration is None:
            path.unlink(missing_ok=True)
        else:
            conformal.save(path, calibration)
    return record


def calibrate(run: Run, device: torch.device, *, tasks: int, shot: int, seed: int) -> None:
    """Keep the scores of so many draws of tasks from the groups that a run has not seen, for their number of examples.

    They speak of these groups. Those of many runs, each of which left out one group, speak of a new one.
    """
    digest, experiment, checkpoint = load_predictor(run, device, shot)
    require_fresh(run, experiment)
    fresh = environment_of(experiment, "tasks", seed, device).certified
    predictor = CertifiedPredictor(experiment, checkpoint.meta, new_draws(experiment, seed, SAMPLES))
    blocks = fresh_blocks(fresh, "left out", tasks, seed, device)
    found = predictor.records(blocks, lambda done: None)
    calibration = _calibration(predictor, found, environment=fresh.description, seed=seed, checkpoint=digest)
    if calibration is None:
        raise FewsureError(f"{run.folder}: adaptation diverged on {_diverged(found)} of {tasks} tasks; lower inner_lr")
    if is_rank_zero():
        conformal.save(calibration_file(run, shot), calibration)


def _calibration(predictor: CertifiedPredictor, records: Records, **facts: Any) -> Calibration | None:
    """The scores of recorded tasks; None if one of them diverged, since its scores are no numbers."""
    if _diverged(records):
        return None
    experiment, (score, values) = predictor.experiment, scores(records)
    way = experiment.model.outputs if experiment.model.kind == "classification" else None
    return Calibration(
        scores=values.flatten(),
        sizes=torch.full((len(values),), values.shape[1]),
        draws=predictor.draws.flat(),
        score=score,
        way=way,
        shot=experiment.data.test_shot,
        query=values.shape[1],
        transductive=experiment.transductive,
        samples=SAMPLES,
        **facts,
    )


def _held_out(found: Records, most: float, request: Request) -> dict[str, Any]:
    """The certificate of the recorded losses, each of which is at `most` so large in the target's unit."""
    record = held_out(found["loss"], request.delta, request.method).record() | {"diverged": _diverged(found)}
    return record | {name: most * record[name] for name in ("limit", "mean")}


def _coverage(
    calibration: Calibration, alpha: float, found: Records, measured: Mapping[str, Records], scale: float
) -> dict[str, Any]:
    """The coverage that sets promise, and their coverage on tasks that calibration has not seen.

    Lengths are in the target's unit; `scale` is the spread of the target there.

    Where there are no others, each calibration task in turn is left out, and measured with the threshold of the rest.
    """
    threshold = calibration.threshold(alpha)
    length = scale if calibration.score == "residual" else 1.0
    seen = {name: measure(records, threshold) for name, records in measured.items()}
    if not seen:
        seen = {"each left out": measure(found, thresholds_without(calibration, alpha))}
    coverage: dict[str, Any] = {
        "score": calibration.score,
        "alpha": alpha,
        "tasks": calibration.tasks,
        "threshold": threshold * length,
        "vacuous": math.isinf(threshold),
        "measured": [one | {"size": scale * one["size"], "on": name} for name, one in seen.items()],
    }
    if math.isinf(threshold):
        everything = "every set holds every label" if calibration.score == "probability" else "intervals have no ends"
        coverage["reason"] = (
            f"too few tasks for this α: it needs {math.ceil(1 / alpha) - 1} that are independent of each other, so "
            f"{everything}; hold out more, or choose a larger α"
        )
    return coverage


def _theorem_1(
    predictor: CertifiedPredictor, request: Request, fresh: FreshTasks, tasks: int, freshness: Freshness
) -> dict[str, Any]:
    """Theorem 1 of each fresh task."""
    with ProgressLine(f"certifying {predictor.experiment.algorithm_name}, theorem 1") as line:
        return bounds_of_tasks(
            predictor.experiment,
            predictor.meta,
            fresh,
            tasks=tasks,
            delta=request.delta,
            samples=request.bound_samples,
            seed=request.seed,
            doubts=freshness.doubts,
            progress=lambda done: line.show(done, tasks, "tasks"),
        )


def _theorem_2(predictor: CertifiedPredictor, request: Request) -> dict[str, Any]:
    """Theorem 2 in its three forms, or the reason that it says nothing."""
    experiment, samples = predictor.experiment, request.bound_samples
    reason = no_bound(experiment)
    if reason is not None:
        return {"reason": reason}
    try:
        with ProgressLine(f"certifying {experiment.algorithm_name}, theorem 2") as line:
            bounds, critic = theorem_of(
                experiment,
                predictor.meta,
                delta=request.delta,
                samples=samples,
                seed=request.seed,
                progress=lambda done: line.show(done, samples, "draws"),
            )
    except Diverged as error:
        return {"reason": f"no bound: {error}"}
    augmentation = experiment.data.augmentation
    augmented = f", their examples {augmentation}" if augmentation else ""
    return {
        "environment": f"{experiment.data_name}, new tasks of the training sampler{augmented}",
        "samples": samples,
        "bounds": [bound.record() for bound in bounds],
        **({"critic": critic.record()} if critic else {}),
    }


def _diverged(records: Records) -> int:
    return int(records["diverged"].sum())


def _at_most(tasks: int, fresh: FreshTasks) -> int:
    return tasks if fresh.available is None else min(tasks, fresh.available)
