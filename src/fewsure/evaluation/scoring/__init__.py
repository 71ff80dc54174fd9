"""What is measured on a task and how it is summed up over tasks, for each kind of task."""

from collections.abc import Iterable, Mapping
from typing import Any, Protocol

from torch import Tensor

from fewsure.evaluation.scoring.classification import ClassificationScorer
from fewsure.evaluation.scoring.observed import ObservedScorer
from fewsure.evaluation.scoring.predict import Predict
from fewsure.evaluation.scoring.regression import RegressionScorer
from fewsure.evaluation.temperature import temperature_of
from fewsure.training.experiment import Experiment
from fewsure.types import Draw, Facts, Noise, Records, Task


class Scorer(Protocol):
    """Scores of one task, and their summary."""

    @property
    def draws(self) -> Mapping[str, Draw]:
        """Random numbers of a task that its scores use, beside those that predictions use."""

    def score(self, predict: Predict, task: Task, facts: Facts, noise: Noise) -> dict[str, Tensor]:
        """What is recorded of one task."""

    def summarise(self, shards: Iterable[Records]) -> dict[str, Any]:
        """The figures over all tasks, whose records come shard by shard, as JSON values."""


def scorer(experiment: Experiment) -> Scorer:
    """The one for an experiment's kind of task."""
    data = experiment.data
    if data.kind == "classification":
        return ClassificationScorer(temperature_of(experiment))
    if data.truth_known:
        return RegressionScorer(data.noise_std or 0.0)
    return ObservedScorer(data.scaled_noise_std, data.fitted_scale.y_std)
