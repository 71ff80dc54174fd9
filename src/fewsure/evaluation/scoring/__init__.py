"""Scores of a task and their summary over tasks, for each kind of task."""

from fewsure.evaluation.scoring.classification import ClassificationScorer
from fewsure.evaluation.scoring.observed import ObservedScorer
from fewsure.evaluation.scoring.predict import Scorer
from fewsure.evaluation.scoring.regression import RegressionScorer
from fewsure.evaluation.temperature import temperature_of
from fewsure.training.experiment import Experiment


def scorer(experiment: Experiment) -> Scorer:
    """The one for an experiment's kind of task."""
    data = experiment.data
    if data.kind == "classification":
        return ClassificationScorer(temperature_of(experiment), data.known_classes)
    if data.truth_known:
        return RegressionScorer(data.noise_std or 0.0)
    return ObservedScorer(data.scaled_noise_std, data.fitted_scale.y_std)
