"""Temperature and noise, fitted on validation tasks when training ends and kept with the run.

Regression on a user's own data has the noise on labels. Classes have the temperature, which outputs are divided by
before the softmax, and its exponent, by which it depends on the task. The fit makes the labels most likely. Over a
range of shots it is made at several numbers of examples, so that noise and temperature depend on how many there are.
"""

import dataclasses
import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
import torch
from scipy.optimize import minimize_scalar
from torch import Tensor

from fewsure.core.config import ends
from fewsure.core.distributed import any_process
from fewsure.core.progress import ProgressLine
from fewsure.data.pools import Split
from fewsure.errors import Diverged
from fewsure.evaluation.evaluate import BLOCK, score_blocks, shared_noise, unseen_block
from fewsure.evaluation.metrics.density import around_functions, log_density
from fewsure.evaluation.metrics.scores import class_probabilities, negative_log_likelihood
from fewsure.evaluation.scoring.predict import Predict
from fewsure.evaluation.source import task_source
from fewsure.evaluation.temperature import Temperature, log_odds
from fewsure.training.experiment import Experiment
from fewsure.training.runs import FITTED_LIMITS, Fits, Run
from fewsure.types import Facts, Noise, Parts, Task

TASKS = 1000
"""Validation tasks behind a fit: the fewer, the more is left to chance."""
OWN_TASKS = 400
"""The same for data of a user's own, whose few groups more tasks would only repeat."""
POINTS = 75_000
"""The most query points of all these tasks together, so that large tasks fit into memory."""
NOISE = (1e-3, 1e1)
"""The range that is searched, in standard deviations of the target."""
TEMPERATURE = (1e-2, 1e2)
EXPONENT = (-1.0, 1.0)
EXPONENT_PENALTY = 1e-6
"""An exponent must gain this in NLL, times its square: where tasks are equally sure, it is 0."""
PRECISION = 0.01
"""The precision of an exponent, and of the logarithm of the others: 1 %."""
CANDIDATES = 9
"""Places at which a loss is looked at first, since it may be flat far from its minimum."""


def calibrated(run: Run, device: torch.device, shot: int | None = None) -> Experiment:
    """The run's experiment for tasks with so many support examples, with its fitted options (`with_fits`)."""
    return with_fits(run.experiment, fits_of(run, device), shot)


def fits_of(run: Run, device: torch.device) -> Fits:
    """The fitted options of a run's chosen checkpoint: read from the run, or fitted now and kept with it."""
    experiment = run.experiment
    names = uncalibrated(experiment)
    if not names:
        return {}
    fits = run.fitted(names)
    if any_process(fits is None):  # all processes must do the same
        meta, shots = run.load(device, run.chosen).meta, fitted_shots(experiment)
        each = (OWN_TASKS if experiment.data.own else TASKS) // len(shots)
        fits = {shot: calibrate(experiment.with_shot(shot), meta, device, tasks=each) for shot in shots}
        run.save_fitted(fits)
    return fits or {}


def fitted_shots(experiment: Experiment) -> list[int]:
    """The numbers of support examples at which options are fitted: up to 5, evenly over the logarithm of the range."""
    least, most = ends(experiment.data.shot)
    return sorted({round(least * (most / least) ** (step / 4)) for step in range(5)})


def with_fits(experiment: Experiment, fits: Fits, shot: int | None = None) -> Experiment:
    """The experiment for tasks with so many support examples, by default as many as its data test with.

    They were fitted at some numbers. In between, the logarithms of noise and temperature, and the exponent, are linear
    in the logarithm of the number of examples. Beyond the first and the last they stay.
    """
    experiment = experiment.with_shot(shot)
    if not fits:
        return experiment
    at, shots = math.log(experiment.data.test_shot), sorted(fits)
    places = [math.log(one) for one in shots]

    def between(name: str) -> float:
        values = [fits[one][name] for one in shots]
        if name == "temperature_exponent" or len(values) == 1:
            return float(np.interp(at, places, values))
        return math.exp(np.interp(at, places, [math.log(value) for value in values]))

    return _with(experiment, {name: between(name) for name in fits[shots[0]]})


def calibrated_at(
    experiment: Experiment, meta: Parts, device: torch.device, shot: int | None = None, *, tasks: int = TASKS
) -> Experiment:
    """The experiment for tasks with so many support examples, with options fitted for these meta-parameters."""
    experiment = experiment.with_shot(shot)
    needed = uncalibrated(experiment)
    return _with(experiment, calibrate(experiment, meta, device, tasks=tasks)) if needed else experiment


def uncalibrated(experiment: Experiment) -> tuple[str, ...]:
    """The options of the data that are to be fitted: they are None in the experiment."""
    known = {"noise_std"} if experiment.own_density else set()
    return tuple(name for name in FITTED_LIMITS if name not in known and getattr(experiment.data, name) is None)


def needed_splits(experiment: Experiment) -> tuple[Split, ...]:
    """The splits that a run needs before it is tested."""
    return ("train", "validation") if uncalibrated(experiment) else ("train",)


def calibrate(experiment: Experiment, meta: Parts, device: torch.device, *, tasks: int = TASKS) -> dict[str, float]:
    """The options that are to be fitted, from validation tasks; noise is in the target's unit.

    Errors of the sampled functions count as noise, too.
    """
    data = experiment.data
    experiment = dataclasses.replace(experiment, data=data.at_temperature_1)
    shared = shared_noise(experiment, 0, "validation", device)
    count = max(1, min(tasks, POINTS // (data.outputs * data.query)) // BLOCK)
    source = task_source(experiment, meta, "validation", count * BLOCK)
    blocks = (unseen_block(experiment, index, 0, "validation", device, source.tasks) for index in range(count))
    with ProgressLine("learning from validation tasks") as line:

        def show(done: int) -> None:
            line.show(done, count * BLOCK)

        records = score_blocks(experiment, meta, shared, blocks, _record, show, source.model)
    outputs, y = records["outputs"].to(device), records["y"].to(device)
    if not bool(outputs.isfinite().all()):
        raise Diverged("adaptation diverged on validation tasks; train anew with a lower --lr or --inner-lr")
    if data.kind == "regression":
        return {"noise_std": most_likely_noise(_joined(outputs), y.flatten(0, 1).double()) * data.fitted_scale.y_std}
    found = most_likely_temperature(outputs, y, data.temperature_exponent)
    learned = {"softmax_temperature": found.at_even_odds}
    return learned if data.temperature_exponent is not None else learned | {"temperature_exponent": found.exponent}


def most_likely_noise(outputs: Tensor, y: Tensor) -> float:
    """The σ, to 1 %, that minimises the mean of −ln 1/S Σ_s N(y; f_s(x), σ²) over points: outputs (S, N, 1), y (N, 1).

    >>> round(most_likely_noise(torch.zeros(1, 2, 1), torch.tensor([[3.0], [-3.0]])), 1)
    3.0
    """
    values, labels = outputs.squeeze(-1), y.squeeze(-1)

    def nll(noise_std: float) -> float:
        return -float(log_density(around_functions(values, noise_std), labels).mean())

    return _positive_minimiser(nll, NOISE)


def most_likely_temperature(outputs: Tensor, y: Tensor, exponent: float | None) -> Temperature:
    """The temperature that minimises the mean NLL of 1/S Σ_s softmax(outputs_s / temperature) over the points of tasks.

    outputs (T, S, N, C), y (T, N); an `exponent` of None is fitted too. Three of four equally sure points are right:

    >>> certain = torch.tensor([1.0, 0.0]).expand(1, 1, 4, 2)
    >>> found = most_likely_temperature(certain, torch.tensor([[0, 0, 0, 1]]), exponent=0.0)
    >>> round(found.at_even_odds, 2), round(1 / math.log(3), 2)
    (0.91, 0.91)
    """
    sureness = torch.func.vmap(log_odds)(outputs)
    centre = float(sureness.mean())

    def through(at_centre: float, exponent: float) -> Temperature:
        """The one that a task of average sureness has `at_centre` with."""
        return Temperature(at_centre * math.exp(exponent * centre), exponent)

    def loss(at_centre: float, exponent: float) -> float:
        temperatures = through(at_centre, exponent).of(sureness)
        probabilities = class_probabilities(_joined(outputs / temperatures.view(-1, 1, 1, 1)))
        return float(negative_log_likelihood(probabilities, y.flatten())) + EXPONENT_PENALTY * exponent**2

    slope = exponent or 0.0
    at_centre = _positive_minimiser(partial(loss, exponent=slope), TEMPERATURE)
    for _ in range(2 if exponent is None else 0):  # of a task of average sureness, it hardly depends on the exponent
        slope = _minimiser(partial(loss, at_centre), *EXPONENT)
        slope = slope if abs(slope) > PRECISION else 0.0
        at_centre = _positive_minimiser(partial(loss, exponent=slope), (at_centre / 2, at_centre * 2))
    return through(at_centre, slope)


def _positive_minimiser(loss: Callable[[float], float], between: tuple[float, float]) -> float:
    """Where a function with one minimum between two positive numbers has it, to 1 %."""
    return math.exp(_minimiser(lambda logarithm: loss(math.exp(logarithm)), *map(math.log, between)))


def _minimiser(loss: Callable[[float], float], low: float, high: float) -> float:
    """Where a function with one minimum between `low` and `high` has it."""
    places = torch.linspace(low, high, CANDIDATES, dtype=torch.float64).tolist()
    best = min(range(CANDIDATES), key=lambda index: loss(places[index]))
    bounds = places[max(best - 1, 0)], places[min(best + 1, CANDIDATES - 1)]
    return float(minimize_scalar(loss, bounds=bounds, options={"xatol": PRECISION / 2}).x)


def _joined(outputs: Tensor) -> Tensor:
    """The points of all tasks as one: (T, S, N, C) → (S, T · N, C)."""
    return outputs.movedim(0, 1).flatten(1, 2)


def _with(experiment: Experiment, values: Mapping[str, float]) -> Experiment:
    data: Any = experiment.data
    return dataclasses.replace(experiment, data=dataclasses.replace(data, **values))


def _record(predict: Predict, task: Task, facts: Facts, noise: Noise) -> dict[str, Tensor]:
    return {"outputs": predict(task.query.x), "y": task.query.y}
