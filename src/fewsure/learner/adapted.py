"""One task after adapting to its few examples."""

import json
import warnings
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as to_bytes
from torch import Tensor
from torch.utils import _pytree as pytree

from fewsure.certification.predictor import calibrated_shots, with_coverage
from fewsure.certification.theorem_1 import bound_of_task, require_speaks_of
from fewsure.core import streams
from fewsure.core.config import checked, from_json
from fewsure.core.files import write_atomically
from fewsure.errors import Diverged, FewsureError, require
from fewsure.evaluation.temperature import temperature_of
from fewsure.learner.inputs import frame_targets, read_given, read_inputs, read_targets, require_one_group
from fewsure.learner.labels import Labels, read_labels
from fewsure.learner.prediction import ClassPrediction, Form, Promise, ValuePrediction
from fewsure.learner.predictor import Predictor, State
from fewsure.theory.concentration import require_share
from fewsure.theory.conformal import Calibration
from fewsure.theory.pac_bayes import Bound
from fewsure.types import Batch, Mixture, Model, Noise, Parts

FORMAT = 3
SUPPORT = "support"
"""The part of a file with the task's examples."""
BATCH_SIZE = 256
"""Query points that are passed through the networks at once; predictions do not depend on it."""


@dataclass(frozen=True, repr=False)
class Adapted:
    """A task's posterior, which predicts. Any number of them live side by side, and threads may share one."""

    predictor: Predictor
    model: Model
    posterior: Parts
    labels: Labels | None
    """The task's classes; none for regression."""
    counts: tuple[int, ...]
    """Support examples of each class. Where classes are fixed or there are none, those of the whole task."""
    state: State
    """The part that it shares with the tasks beside it."""
    noise: Noise
    """The random numbers of its sampled functions."""
    support: Batch
    """Its examples as networks see them."""

    def predict(
        self, x: Any, *, coverage: float | None = None, batch_size: int = BATCH_SIZE
    ) -> ValuePrediction | ClassPrediction:
        """Predictions at x (N, …), a numpy array, a list or a tensor; or at the rows of a DataFrame.

        For a run on a table, a DataFrame has the columns of training, in any order. The numbers come back as columns
        of the same library, with the same index.

        With `coverage`, also sets of labels or intervals that hold the truth with that probability, in the sense of
        docs/guarantees.md; the run must be certified. Where it is not for this number of examples, sets are those
        of the task adapted to the nearest smaller certified number of them. The same call gives the same numbers.
        Unless the run is transductive, a prediction depends on its own x alone.
        """
        require(batch_size >= 1, "batch_size", "at least 1", batch_size)
        require_coverage(coverage)
        certified = self.certified() if coverage is not None else None
        frame, x = read_given(x, self.predictor.experiment.data)
        inputs = read_inputs(x, self.predictor.scale, "x").to(self.predictor.device)
        networks, density = self.outputs(inputs, batch_size), self.density(inputs, batch_size)
        temperature, scale = temperature_of(self.state.experiment), self.predictor.scale
        outputs = temperature.divide(networks)
        if not bool(outputs.isfinite().all()):
            raise Diverged(
                "adaptation diverged: predictions are no finite numbers; are the examples like those of training? "
                "If so, train anew with a lower lr or inner_lr"
            )
        form: Form = frame or ("tensor" if isinstance(x, torch.Tensor) else "array")
        place = x.device if isinstance(x, torch.Tensor) else torch.device("cpu")
        promise: Promise | None = None
        if certified is not None and coverage is not None:
            task, calibration = certified
            basis = (outputs, density) if task is self else task.basis(inputs, batch_size)
            number = task.counts[0]
            region: Any = with_coverage(calibration, task.state.experiment, *basis, shot=number, coverage=coverage)
            if self.labels is None:
                region = tuple(scale.values(end).to(place) for end in region)
            promise = Promise(coverage, calibration.environment, region, number)
        if self.labels is None:
            noise_std = self.state.experiment.data.noise_std or 0.0
            in_users_unit = self.predictor.in_users_unit(outputs.squeeze(-1), density, noise_std)
            samples, density = pytree.tree_map(lambda part: part if part is None else part.to(place), in_users_unit)
            return ValuePrediction(samples, density, promise=promise, form=form)
        given = (networks.double().to(place), temperature, self.labels)
        return ClassPrediction(*given, promise=promise, form=form)

    def bound(self, delta: float = 0.05, *, samples: int = 1000, seed: int = 0) -> Bound:
        """Theorem 1 for this task, of a method whose posterior has a finite KL to a prior (simpa-latent).

        Draw a network from the posterior and a new example of the task. With probability 1 − δ over the support
        examples and the draws here, the expectation of the loss is at most `total`. The loss is e/(1+e) of the squared
        error e, or for classes 1 for an error. On data of your own, e is divided by the variance of the training
        targets. It is of one drawn network, not of the mean prediction. The examples must be a random sample of the
        task that had no part in training; docs/guarantees.md has all conditions. `samples` networks are drawn, and
        their Monte-Carlo error is paid from δ.
        """
        samples, seed = checked(int, samples, "samples"), checked(int, seed, "seed")
        require_share(checked(float, delta, "delta"), "delta")
        require(samples >= 2, "samples", "at least 2", samples)
        require_speaks_of(self.predictor.experiment)

        def outputs(x: Tensor, noise: Noise) -> Tensor:
            return self.predictor.outputs(self.posterior, self.model, x, noise)

        task = (self.state.experiment, self.model, self.posterior, outputs, self.support)
        return bound_of_task(*task, delta=delta, samples=samples, seed=seed)

    def __repr__(self) -> str:
        of = "" if self.labels is None else f" of {len(self.labels.classes)} classes"
        return f"Adapted({self.predictor.experiment.algorithm_name}, {sum(self.counts)} examples{of})"

    @property
    def transductive(self) -> bool:
        """Whether a prediction depends on the other query points."""
        return self.predictor.experiment.transductive

    def outputs(self, x: Tensor, batch_size: int = BATCH_SIZE) -> Tensor:
        """Outputs (S, N, C) of the sampled functions at inputs as networks see them, at temperature 1."""
        batches = self._batches(x, batch_size)
        found = [self.predictor.outputs(self.posterior, self.model, batch, self.noise) for batch in batches]
        return torch.cat(found, dim=1)

    def density(self, x: Tensor, batch_size: int = BATCH_SIZE) -> Mixture | None:
        """The density of a label at inputs as networks see them, of a method that has one of its own."""
        if not self.predictor.experiment.own_density:
            return None
        batches = self._batches(x, batch_size)
        found = [self.predictor.density(self.posterior, self.model, batch, self.noise) for batch in batches]
        joined: Any = (None if parts[0] is None else torch.cat(parts) for parts in zip(*found, strict=True))
        return Mixture(*joined)

    def basis(self, x: Tensor, batch_size: int = BATCH_SIZE) -> tuple[Tensor, Mixture | None]:
        """The basis of sets: outputs divided by their temperature, and the density of a method that has its own."""
        outputs = temperature_of(self.state.experiment).divide(self.outputs(x, batch_size))
        return outputs, self.density(x, batch_size)

    def _batches(self, x: Tensor, batch_size: int) -> Sequence[Tensor]:
        return [x] if self.model.network.transductive else torch.split(x, batch_size)

    def certified(self) -> tuple["Adapted", Calibration]:
        """The task whose sets have coverage, and its calibration; a task for which none holds is refused.

        It is this one if its number of examples is certified. Otherwise it is adapted to the nearest smaller certified
        number of its examples (or of each class's), drawn at random.
        """
        way = None if self.labels is None else len(self.labels.classes)
        shot, state, calibration = certified_shot(self.predictor, self.counts, way)
        own = set(self.counts) == {shot}
        if own and state.digest != self.state.digest:
            raise _certified_since(self.predictor)
        return (self if own else self._with_fewer(shot, state)), calibration

    def _with_fewer(self, shot: int, state: State) -> "Adapted":
        """The task adapted to so many of its examples (of each class), drawn at random, whatever they are."""
        kept = fewer_examples(self.counts, self.support.y, shot)
        support = Batch(*(part[kept.to(part.device)] for part in self.support))
        posterior, counts = self.predictor.adapt(self.model, support, state), (shot,) * len(self.counts)
        fewer = {"posterior": posterior, "counts": counts, "support": support}
        return replace(self, state=state, noise=self.predictor.noise(self.model, state), **fewer)  # type: ignore[arg-type]

    def save(self, path: str | Path) -> None:
        """Write what the learner does not have of the task to a safetensors file, for `learner.load_adapted`."""
        classes, form = (None, None) if self.labels is None else (_plain(self.labels.classes), self.labels.form)
        facts = {
            "format": FORMAT,
            "checkpoint": self.predictor.digest,
            "classes": classes,
            "form": form,
            "counts": self.counts,
            "draws": self.state.digest,
            "posterior": [f"{part}/{name}" for part, params in self.posterior.items() for name in params],
        }
        write_atomically(Path(path), to_bytes(self._own_tensors(), metadata={"adapted": json.dumps(facts)}))

    def _own_tensors(self) -> dict[str, Tensor]:
        """The posterior without what every task starts from and this one has as it was."""
        start = self.state.start
        return {
            f"{part}/{name}": value.cpu().contiguous()
            for part, params in (self.posterior | {SUPPORT: self.support._asdict()}).items()
            for name, value in params.items()
            if value is not start.get(part, {}).get(name)
        }


def adapt(predictor: Predictor, x: Any, y: Any = None) -> Adapted:
    """Adapt to a few examples: x (N, …), and y (N,) numbers or labels of any kind; or the rows of a DataFrame."""
    frame, x = read_given(x, predictor.experiment.data)
    column = getattr(predictor.experiment.data, "task_column", None)
    if frame is not None and column in frame.columns.names:
        require_one_group(frame.columns, column, None)
    if y is None:
        y = frame_targets(frame, predictor.experiment.data.target_column)
    experiment = predictor.experiment
    inputs = read_inputs(x, predictor.scale, "x", least=min(1, experiment.algorithm.min_support))
    labels: Labels | None = None
    if experiment.model.kind == "regression":
        targets = predictor.scale.targets(read_targets(y, len(inputs))).unsqueeze(-1)
        counts = (len(inputs),)
        least = experiment.algorithm.min_support
        if len(inputs) < least:
            name = experiment.algorithm_name
            raise FewsureError(f"expected {least} examples or more for {name}, but got {len(inputs)}")
    else:
        labels, targets = read_labels(y, experiment.data.known_classes)
        if len(targets) != len(inputs):
            raise FewsureError(
                f"expected a label for each of {len(inputs)} examples of x, but got {len(targets)} labels"
            )
        if len(labels.classes) < 2:
            raise FewsureError(
                f"expected examples of 2 classes or more, but all have the label {labels.classes[0]!r}; there is "
                "nothing to tell apart"
            )
        counts = (len(targets),) if experiment.data.fixed_classes else tuple(torch.bincount(targets).tolist())
    warn_of_other_numbers(predictor, counts, of_classes=len(counts) > 1)
    model = predictor.model(1 if labels is None else len(labels.classes))
    state = predictor.state(shot_of(counts))
    support = Batch(inputs.to(predictor.device), targets.to(predictor.device))
    posterior, noise = predictor.adapt(model, support, state), predictor.noise(model, state)
    return Adapted(predictor, model, posterior, labels, counts, state, noise, support)


def shot_of(counts: Sequence[int]) -> int:
    """The number of examples, or of each class, whose random numbers and fitted options a task takes."""
    return max(1, min(counts))


def certified_shot(predictor: Predictor, counts: Sequence[int], way: int | None) -> tuple[int, State, Calibration]:
    """The nearest certified number of examples (of each class) that a task has, its state and its calibration."""
    run, least = predictor.run.folder, min(counts)
    shots = calibrated_shots(predictor.run)
    if not shots:
        raise FewsureError(
            f"coverage needs a certified run: run `fewsure certify {run}` once, or learner.certify() in Python"
        )
    smaller = [shot for shot in shots if shot <= least]
    if not smaller:
        each = "" if len(counts) == 1 else " of each class"
        raise FewsureError(
            f"{run} is certified for {' and '.join(map(str, shots))} examples{each}, but got {least}; run `fewsure "
            f"certify {run} --shot {least}`, or give more"
        )
    state = predictor.state(smaller[-1])
    calibration = state.calibration
    if calibration is None or calibration.checkpoint != predictor.digest:
        raise _certified_since(predictor)
    # How many query points there are is seen to when there are some.
    calibration.require_like(way=way, shot=smaller[-1], points=calibration.query)
    return smaller[-1], state, calibration


def _certified_since(predictor: Predictor) -> FewsureError:
    run = predictor.run.folder
    return FewsureError(f"{run} was trained or certified after this task was adapted; load it and adapt again")


def fewer_examples(counts: Sequence[int], y: Tensor, shot: int) -> Tensor:
    """The numbers of `shot` examples (of each class) among all of a task, drawn at random, whatever they are."""
    order = torch.randperm(sum(counts), generator=streams.generator(shot, "certify", "examples"))
    classes = torch.zeros(len(order)) if len(counts) == 1 else y.cpu()
    return torch.cat([order[classes[order] == label][:shot] for label in range(len(counts))]).sort().values


def warn_of_other_numbers(predictor: Predictor, counts: Sequence[int], *, of_classes: bool) -> None:
    """Warn of numbers of examples that a run over a range of them has never met."""
    if not predictor.run.experiment.training.updates:
        return  # what is fitted to whole groups takes any number
    least, most = predictor.run.experiment.data.training_shots
    if least < most and not least <= min(counts) <= max(counts) <= most:
        each = " of each class" if of_classes else ""
        came = min(counts) if min(counts) < least else max(counts)
        warnings.warn(
            f"the run was trained with {least} to {most} examples{each}, but got {came}; compare "
            f"`fewsure evaluate {predictor.run.folder} --shot {came}` before you rely on it",
            stacklevel=4,
        )


def load_adapted(predictor: Predictor, path: str | Path) -> Adapted:
    """A task that `Adapted.save` has written, by a learner with the same checkpoint."""
    if not Path(path).is_file():
        raise FewsureError(f"expected a file that adapted.save(…) has written, but {path} is not there")
    try:
        with safe_open(path, framework="pt", device=str(predictor.device)) as file:
            facts = from_json((file.metadata() or {})["adapted"])
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (it is no mapping)
        if facts["format"] != FORMAT:
            raise ValueError("of another format")
        classes, form, counts = facts["classes"], facts["form"], tuple(int(count) for count in facts["counts"])
        labels, shot = None if classes is None else Labels(tuple(classes), str(form)), shot_of(counts)
        draws, checkpoint, names = str(facts["draws"]), facts["checkpoint"], [*map(str, facts["posterior"])]
        support = Batch(*(tensors[f"{SUPPORT}/{name}"] for name in Batch._fields))
    except (SafetensorError, OSError, ValueError, KeyError, TypeError, OverflowError) as error:
        raise FewsureError(f"{path} cannot be read as an adapted task ({error}); save it again") from error
    if checkpoint != predictor.digest:
        raise FewsureError(
            f"{path} was adapted from another checkpoint than that of {predictor.run.folder}; adapt again"
        )
    state = predictor.state(shot)
    if draws != state.digest:
        raise FewsureError(
            f"{path} was adapted with other random numbers than those that {predictor.run.folder} is certified with; "
            "adapt again"
        )
    model = predictor.model(1 if labels is None else len(labels.classes))
    posterior: Parts = {}
    for key in names:  # in the order in which a flat weight vector holds them, which safetensors does not keep
        part, _, name = key.partition("/")
        value = tensors.get(key, state.start.get(part, {}).get(name))
        if value is None:
            raise FewsureError(f"{path} cannot be read as an adapted task ({key} is missing); save it again")
        posterior.setdefault(part, {})[name] = value
    return Adapted(predictor, model, posterior, labels, counts, state, predictor.noise(model, state), support)


def require_coverage(coverage: float | None) -> None:
    """Refuse a coverage that is no probability."""
    coverage = checked(float | None, coverage, "coverage")
    require(coverage is None or 0 < coverage < 1, "coverage", "a probability in (0, 1)", coverage)


def _plain(labels: tuple[Hashable, ...]) -> list[Any]:
    """Labels as JSON has them."""
    plain = [label.item() if isinstance(label, np.generic) else label for label in labels]
    for label in plain:
        if not isinstance(label, (str, int, float)):
            raise FewsureError(f"expected labels to be text or numbers to be stored, but got {label!r}")
    return plain
