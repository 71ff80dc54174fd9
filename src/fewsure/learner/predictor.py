"""A trained run, ready to adapt to tasks. Nothing changes it, so that threads may share it."""

import hashlib
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fewsure.certification.predictor import (
    Draws,
    calibrated_shots,
    calibration_of,
    draws_of,
    load_predictor,
    new_draws,
)
from fewsure.core.devices import find_device, precision, precision_on_cpu
from fewsure.core.vectorise import better_looped, for_each
from fewsure.data.scaling import Scale
from fewsure.errors import FewsureError
from fewsure.evaluation.calibrate import fits_of, with_fits
from fewsure.evaluation.evaluate import SAMPLES
from fewsure.evaluation.metrics.density import around_functions
from fewsure.kernels.fused import fused_kernels
from fewsure.learner.packing import Packed, pack, unpack
from fewsure.theory.conformal import Calibration
from fewsure.training.experiment import Experiment
from fewsure.training.runs import Fits, Run
from fewsure.types import Batch, Mixture, Model, Noise, Parts

REFERENCE = "reference"
"""The part of a posterior with the support inputs, where the network normalises by their statistics."""
SEED = 0
"""The seed of the random numbers of a run that is not certified; also the default of `fewsure certify`."""


class State(NamedTuple):
    """The part that tasks with one number of examples share until the run is certified anew."""

    experiment: Experiment
    """The run's, for tasks with so many examples."""
    calibration: Calibration | None
    """The calibration by `fewsure certify`, if there is one."""
    draws: Draws
    """All random numbers. A guarantee holds for the certified ones alone, so they are used where there are any."""
    digest: str
    """SHA-256 of the draws."""
    start: Parts
    """Where every task starts, θ of SImPa or the meta-parameters, of which a task changes a part."""


@dataclass(frozen=True, eq=False)
class Predictor:
    """Meta-parameters with all that belongs to them."""

    run: Run
    experiment: Experiment
    """For tasks with as many examples as its data test with."""
    fits: Fits
    """Temperature or noise, fitted on validation tasks."""
    meta: Parts
    device: torch.device
    digest: str
    """SHA-256 of the checkpoint, to which all that this predictor makes belongs."""
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)
    _states: dict[tuple[int, int | None], State] = field(default_factory=dict, repr=False)
    """By the number of examples, and the time of its calibration's file."""

    @classmethod
    def of_run(cls, run: Run, device: torch.device) -> "Predictor":
        """The predictor of a run's chosen checkpoint."""
        digest, experiment, checkpoint = load_predictor(run, device)
        return cls(run, experiment, fits_of(run, device), checkpoint.meta, device, digest)

    def __reduce__(self) -> tuple[Any, ...]:
        return _unpickled, (pack(self.run.folder), self.run.experiment, self.run.version, self.device.type)

    @property
    def scale(self) -> Scale:
        return self.experiment.data.fitted_scale

    def state(self, shot: int) -> State:
        """The state that tasks with so many examples, or so many of each class, are adapted with from now on."""
        changed = calibrated_shots(self.run).get(shot)
        with self._lock:
            if (shot, changed) not in self._states:
                state = self._new_state(shot)
                for known in [known for known in self._states if known[0] == shot]:
                    del self._states[known]
                self._states[shot, changed] = state
            return self._states[shot, changed]

    def _new_state(self, shot: int) -> State:
        experiment, calibration = with_fits(self.run.experiment, self.fits, shot), calibration_of(self.run, shot)
        draws = new_draws(experiment, SEED, SAMPLES) if calibration is None else draws_of(calibration, experiment)
        digest = draws_digest(draws)
        for known in self._states.values():
            if known.digest == digest:  # whatever the number of examples
                return known._replace(experiment=experiment, calibration=calibration)
        here, algorithm = draws.to(self.device), experiment.method
        with self._as_evaluated():
            start = algorithm.start(self.meta, experiment.model, here.shared)
        return State(experiment, calibration, here, digest, start)

    def model(self, way: int) -> Model:
        """The model of a task with so many classes, or of a regression task."""
        model = self.experiment.model
        if model.kind == "regression" or way == model.outputs:
            return model
        if self.experiment.algorithm.any_way:
            return model._replace(outputs=way)  # it ends before the layer with an output per class
        raise FewsureError(
            f"{self.experiment.algorithm_name} ends in one output per class and was trained for {model.outputs} "
            f"classes, but the support set has {way}; give {model.outputs} classes, train with way={way}, or use "
            "protonet, which takes any number"
        )

    def noise(self, model: Model, state: State) -> Noise:
        """The random numbers of the functions that a task is predicted with."""
        if model.outputs == self.experiment.model.outputs:
            return state.draws.predict
        return new_draws(self.experiment, SEED, SAMPLES, model).to(self.device).predict  # of as many classes

    def adapt(self, model: Model, support: Batch, state: State) -> Parts:
        """The part of a task's posterior that predictions need. Tensors that adapting left alone are the state's."""
        algorithm, (shared, own, _) = self.experiment.method, state.draws
        given = model.given(support)
        with self._as_evaluated():
            posterior = algorithm.essentials(algorithm.adapt(self.meta, given, support, shared | own))
        if given.network is not model.network:
            posterior = posterior | {REFERENCE: {"x": support.x}}
        return {
            part: {name: _shared(value.detach(), state.start, part, name) for name, value in params.items()}
            for part, params in posterior.items()
        }

    def outputs(self, posterior: Parts, model: Model, x: Tensor, noise: Noise) -> Tensor:
        """Outputs (S, N, C) of the sampled functions of a task, before they are divided by a temperature."""
        with self._as_evaluated():
            return self.experiment.method.predict(*_given_reference(posterior, model), x, noise)

    def density(self, posterior: Parts, model: Model, x: Tensor, noise: Noise) -> Mixture:
        """The density of a label in the unit that networks see, of a method that has one of its own."""
        with self._as_evaluated():
            return self.experiment.method.predictive(*_given_reference(posterior, model), x, noise)

    def of_many(
        self, model: Model, state: State, noise: Noise, tasks: tuple[Batch, Tensor]
    ) -> tuple[Tensor | None, Mixture | None]:
        """Outputs (T, S, N, C) of the functions of T tasks at x (T, N, …), before they are divided by a temperature.

        The density (T, N, K) in their place, of a method that has one of its own.
        """
        algorithm, (shared, own, _) = self.experiment.method, state.draws
        own_density = self.experiment.own_density

        def one_task(task: tuple[Batch, Tensor], meta: Parts) -> Tensor | Mixture:
            support, x = task
            given = model.given(support)
            posterior = algorithm.adapt(meta, given, support, shared | own)
            if not own_density:
                return algorithm.predict(posterior, given, x, noise)
            found = algorithm.predictive(posterior, given, x, noise)
            return found if found.function_stds is not None else found._replace(function_stds=0 * found.stds)

        loop = better_looped(model.network, self.device)
        with self._as_evaluated():
            found: Any = for_each(one_task, loop=loop, threads=loop)(tasks, self.meta)
        return (None, found) if own_density else (found, None)

    def in_users_unit(self, values: Tensor, density: Mixture | None, noise_std: float) -> tuple[Tensor, Mixture]:
        """The values (S, N) of functions and the density of a label: the method's own, or around these functions."""
        scale, values = self.scale, self.scale.values(values)
        if density is None:
            return values, around_functions(values, noise_std)
        of_functions = density.function_stds
        own = Mixture(
            density.weights.double(),
            scale.values(density.means),
            density.stds.double() * scale.y_std,
            None if of_functions is None else of_functions.double() * scale.y_std,
        )
        return values, own

    @contextmanager
    def _as_evaluated(self) -> Iterator[None]:
        """The arithmetic of `evaluate` and `certify`."""
        with torch.no_grad(), fused_kernels(allowed=True):
            wanted = self.experiment.training.precision
            if self.device.type == "cpu":
                with precision_on_cpu(wanted):
                    yield
                return
            with _PRECISION, precision(wanted):  # a switch of the whole process
                yield


def _unpickled(files: Packed, experiment: Experiment, version: str, device: str) -> Predictor:
    """The predictor of a packed run, in a temporary folder; on a GPU if it was on one and there is one here."""
    run = Run(Path(), experiment, version)
    run.folder = unpack(files, run)
    return Predictor.of_run(run, find_device(device if device == "cpu" else "auto"))


def _given_reference(posterior: Parts, model: Model) -> tuple[Parts, Model]:
    """The posterior without the support inputs, and the model that normalises by them."""
    if REFERENCE not in posterior:
        return posterior, model
    own = {part: params for part, params in posterior.items() if part != REFERENCE}
    return own, model._replace(network=model.network.given(posterior[REFERENCE]["x"]))


_PRECISION = threading.RLock()


def draws_digest(draws: Draws) -> str:
    """SHA-256 of random numbers, in the order of their names."""
    digest = hashlib.sha256()
    for name, draw in sorted(draws.flat().items()):
        digest.update(name.encode() + draw.cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()


def _shared(value: Tensor, start: Parts, part: str, name: str) -> Tensor:
    """The tensor that tasks start from, where it has the same numbers."""
    other = start.get(part, {}).get(name)
    same = other is not None and other.shape == value.shape and torch.equal(value, other)
    return other if same and other is not None else value
