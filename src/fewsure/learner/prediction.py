"""Predictions and their uncertainty, split into a part that more examples would remove and a part that remains."""

from collections.abc import Hashable
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from fewsure.core.config import checked
from fewsure.data.io.frames import Frame
from fewsure.errors import FewsureError, require
from fewsure.evaluation.metrics import density
from fewsure.evaluation.metrics.scores import class_probabilities
from fewsure.evaluation.temperature import Temperature
from fewsure.learner.inputs import read_targets
from fewsure.learner.labels import Labels
from fewsure.types import Mixture

Array = Any
"""A tensor where x was one, a column of the same library where x was a DataFrame, else a numpy array."""
Form = Literal["tensor", "array"] | Frame
"""The container of what is given back."""
LOW, HIGH = 0.05, 0.95
"""The quantiles that files have where no coverage was asked for."""


class Promise(NamedTuple):
    """A region that holds the truth with a probability, on a new task of an environment."""

    coverage: float
    environment: str
    region: Any
    """Prediction sets (N, C) of true and false, or the ends (lower (N,), upper (N,)) of intervals."""
    examples: int
    """Support examples (of each class) behind the region."""


class Prediction:
    """The part that both kinds of prediction share."""

    def __init__(self, form: Form, promise: Promise | None) -> None:
        self._form, self._promise = form, promise

    @property
    def coverage(self) -> float | None:
        """The probability that was asked for, if one was."""
        return self._promise and self._promise.coverage

    @property
    def environment(self) -> str | None:
        """The tasks that were calibrated with, in words: the coverage is that of a new task like them."""
        return self._promise and self._promise.environment

    @property
    def certified_examples(self) -> int | None:
        """Support examples (of each class) behind the sets or intervals; the task may have more."""
        return self._promise and self._promise.examples

    def _give(self, values: Tensor) -> Array:
        if self._form == "tensor":
            return values
        array = values.cpu().numpy()
        return self._form.series(array) if isinstance(self._form, Frame) and array.ndim == 1 else array

    def _region(self, name: str) -> Any:
        if self._promise is None:
            raise FewsureError(f"{name} need a coverage: ask for them with predict(x, coverage=0.9)")
        return self._promise.region


class ValuePrediction(Prediction):
    """Numbers predicted at N points, as mixtures of Gaussians: around each of S sampled functions, or the method's own.

        std² = function_std² + noise_std²

    More examples of the task would remove `function_std`; they would not remove `noise_std`.
    """

    def __init__(
        self,
        samples: Tensor,
        density: Mixture,
        *,
        promise: Promise | None = None,
        form: Form = "tensor",
    ) -> None:
        super().__init__(form, promise)
        self._samples, self._density = samples, density

    @property
    def samples(self) -> Array:
        """Values (S, N) of the sampled functions."""
        return self._give(self._samples)

    @property
    def mean(self) -> Array:
        """(N,)"""
        return self._give(density.mean(self._density))

    @property
    def function_std(self) -> Array:
        """(N,): how far the sampled functions disagree, or the components of a density of the method's own."""
        return self._give(density.function_std(self._density))

    @property
    def noise_std(self) -> Array:
        """(N,): the noise on labels: given with the data, learned from validation tasks, or the method's own."""
        return self._give(density.noise_std(self._density))

    @property
    def std(self) -> Array:
        """(N,), of a label: functions and noise together."""
        return self._give(density.std(self._density))

    def __repr__(self) -> str:
        return f"ValuePrediction({self._samples.shape[1]} points)"

    def quantile(self, level: float) -> Array:
        """(N,): the value below which a label lies with probability `level`."""
        level = checked(float, level, "level")
        require(0 < level < 1, "level", "a probability in (0, 1)", level)
        return self._give(density.quantile(self._density, level))

    def log_density(self, y: Any) -> Array:
        """(N,): ln of the density of labels y (N,): the higher, the less they surprise."""
        labels = read_targets(y, self._samples.shape[1]).to(self._samples)
        return self._give(density.log_density(self._density, labels))

    def crps(self, y: Any) -> Array:
        """(N,): the continuous ranked probability score of labels y (N,), in their unit: the lower, the better."""
        labels = read_targets(y, self._samples.shape[1]).to(self._samples)
        return self._give(density.crps(self._density, labels))

    @property
    def lower(self) -> Array:
        """(N,): lower ends of the intervals with the coverage that was asked for."""
        return self._give(self._region("intervals")[0])

    @property
    def upper(self) -> Array:
        """(N,): upper ends."""
        return self._give(self._region("intervals")[1])

    def columns(self) -> dict[str, Array]:
        """The columns that a file has: mean and spreads, and an interval."""
        if self.coverage is None:
            ends = {"quantile_05": self.quantile(LOW), "quantile_95": self.quantile(HIGH)}
        else:
            ends = {"lower": self.lower, "upper": self.upper}
        return {"mean": self.mean, "std": self.std, "function_std": self.function_std} | ends


class ClassPrediction(Prediction):
    """Classes predicted at N points, from the class probabilities p_s of S sampled networks; entropies H in nats.

        entropy H(mean of p_s) = expected_entropy (mean of H(p_s)) + mutual_information

    More examples of the task would remove the mutual information; they would not remove the expected entropy. With a
    temperature of the mixture (`temperature_of`) the sum holds at temperature 1, and `entropy` is that of the
    probabilities, which have it.
    """

    def __init__(
        self,
        outputs: Tensor,
        temperature: Temperature,
        labels: Labels,
        *,
        promise: Promise | None = None,
        form: Form = "tensor",
    ) -> None:
        super().__init__(form, promise)
        self._samples = temperature.of_networks(outputs).softmax(-1)
        self._mean = class_probabilities(temperature.divide(outputs))
        self._labels = labels

    def __repr__(self) -> str:
        return f"ClassPrediction({self._samples.shape[1]} points, {len(self.classes)} classes)"

    @property
    def samples(self) -> Array:
        """Class probabilities (S, N, C) of the sampled networks."""
        return self._give(self._samples)

    @property
    def classes(self) -> tuple[Hashable, ...]:
        """The labels of the columns of `probabilities`."""
        return self._labels.classes

    @property
    def probabilities(self) -> Array:
        """(N, C), averaged over the sampled networks."""
        return self._give(self._mean)

    @property
    def label(self) -> Any:
        """The most probable label of each point, as labels were given: a list, a numpy array, a tensor or a column."""
        labels = self._labels.take(self._mean.argmax(-1))
        return self._form.series(labels) if isinstance(self._form, Frame) else labels

    @property
    def confidence(self) -> Array:
        """(N,): the probability of that label."""
        return self._give(self._mean.amax(-1))

    @property
    def entropy(self) -> Array:
        """(N,): all uncertainty."""
        return self._give(_entropy(self._mean))

    @property
    def expected_entropy(self) -> Array:
        """(N,): the part that more examples would not remove."""
        return self._give(_entropy(self._samples).mean(0))

    @property
    def mutual_information(self) -> Array:
        """(N,): the part that more examples would remove; 0 for a point estimate."""
        return self._give((_entropy(self._samples.mean(0)) - _entropy(self._samples).mean(0)).clamp(min=0))

    @property
    def sets(self) -> list[list[Hashable]]:
        """The labels of each point's prediction set, with the coverage that was asked for."""
        return self._labels.chosen(self._region("sets"))

    def columns(self) -> dict[str, Array]:
        """The columns that a file has beside labels and probabilities: how sure the prediction is."""
        names = ("confidence", "entropy", "expected_entropy", "mutual_information")
        return {name: getattr(self, name) for name in names}


def _entropy(probabilities: Tensor) -> Tensor:
    terms: Tensor = torch.special.xlogy(probabilities, probabilities)
    return -terms.sum(-1)
