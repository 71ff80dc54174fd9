"""Scores of classification tasks, from class probabilities averaged over the sampled functions.

Where the classes are the same in every task, each has three more scores. `base_rate` is its share of the query points.
`auc` and `auprc` are the areas under the ROC and the precision-recall curve of its probability. Query sets
that the class is missing from, or that have no other, have no areas, and are left out of their means. `auc` and `auprc`
of all are means over the classes. A guess that knows nothing has AUC ½ and AUPRC base_rate.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from fewsure.evaluation.metrics.calibration import (
    BINS,
    adaptive_calibration_error,
    binned,
    binned_errors,
    confidence_cells,
)
from fewsure.evaluation.metrics.ranking import area_under_roc, average_precision
from fewsure.evaluation.metrics.scores import brier_score, class_probabilities, negative_log_likelihood
from fewsure.evaluation.metrics.summary import TaskMean, TaskMeans, TaskTotal
from fewsure.evaluation.scoring.predict import Predict, Scorer
from fewsure.evaluation.temperature import Temperature
from fewsure.types import Facts, Noise, Records, Task

SCORES = ("accuracy", "nll", "brier")
RANKING = ("base_rate", "auc", "auprc")
"""Scores of each class, where these are the same in every task."""


@dataclass(frozen=True)
class ClassificationScorer(Scorer):
    """Accuracy, likelihood and Brier score of each task; calibration pooled over the query points of all tasks."""

    temperature: Temperature = field(default_factory=Temperature)
    """The temperature that the outputs have been divided by."""
    classes: tuple[str, ...] = ()
    """The names of the classes that are the same in every task."""

    def score(self, predict: Predict, task: Task, facts: Facts, noise: Noise) -> dict[str, Tensor]:
        """`accuracy`, `nll` and `brier`; the `confidence` of each query point and whether it was `correct`.

        Where outputs are divided by a temperature, likelihood and calibration without it have records of their own.
        """
        outputs = predict.outputs(task.query.x)
        probabilities, plain = (class_probabilities(part) for part in (predict.temperature.divide(outputs), outputs))
        confidence, label = probabilities.max(-1)
        correct = label == task.query.y
        return {
            "accuracy": correct.to(confidence.dtype).mean(),
            "nll": negative_log_likelihood(probabilities, task.query.y),
            "brier": brier_score(probabilities, task.query.y),
            "confidence": confidence,
            "correct": correct,
            "reliability": binned(confidence, correct),
            **{name: fact for name, fact in facts.items() if name == "classes"},
            **({"ranking": ranking(probabilities, task.query.y)} if self.classes else {}),
            **(_untempered(plain, task.query.y) if self.tempered else {}),
        }

    @property
    def tempered(self) -> bool:
        """Whether the temperature changes anything."""
        return self.temperature != replace(self.temperature, at_even_odds=1.0, exponent=0.0)

    def summarise(self, shards: Iterable[Records]) -> dict[str, Any]:
        means, table, cells, ranked = TaskMeans(SCORES), TaskTotal(), torch.zeros(()), Ranked(self.classes)
        nll, plain = TaskMean(), TaskTotal()
        for records in shards:
            means.add(records)
            ranked.add(records)
            table.add(records["reliability"], records.get("groups"))
            cells = cells + confidence_cells(records["confidence"].flatten(), records["correct"].flatten())
            if self.tempered:
                nll.add(records["untempered_nll"], records.get("groups"))
                plain.add(records["untempered_reliability"], records.get("groups"))
        count, confidence, accuracy = table.mean().unbind(-1)
        return {
            **means.summary(),
            **ranked.summary(),
            **table.calibration(binned_errors),
            "adaptive_ece": float(adaptive_calibration_error(cells)),
            "reliability": {
                "edges": [edge / BINS for edge in range(BINS + 1)],
                "confidence": [float(c / n) if n else None for c, n in zip(confidence, count, strict=True)],
                "accuracy": [float(a / n) if n else None for a, n in zip(accuracy, count, strict=True)],
                "weight": (count / count.sum()).tolist(),
            },
            "softmax_temperature": self.temperature.at_even_odds,
            "temperature_exponent": self.temperature.exponent,
            "temperature_of": "mixture" if self.temperature.of_mixture else "networks",
            **({"untempered": {"nll": nll.summary(), **plain.calibration(binned_errors)}} if self.tempered else {}),
        }


def _untempered(probabilities: Tensor, y: Tensor) -> dict[str, Tensor]:
    """Records of the probabilities (N, C) without a temperature."""
    confidence, label = probabilities.max(-1)
    return {
        "untempered_nll": negative_log_likelihood(probabilities, y),
        "untempered_reliability": binned(confidence, label == y),
    }


def ranking(probabilities: Tensor, y: Tensor) -> Tensor:
    """`RANKING` (C, 3) of class probabilities (N, C)."""
    rows = []
    for number in range(probabilities.shape[-1]):
        member, scores = y == number, probabilities[:, number]
        found = area_under_roc(scores, member), average_precision(scores, member)
        rows.append(torch.stack([member.to(scores.dtype).mean(), *found]))
    return torch.stack(rows)


class Ranked:
    """The means of `RANKING` over the tasks that have them."""

    def __init__(self, classes: Sequence[str]) -> None:
        self._classes = classes
        self._each = {(name, score): TaskMean() for name in classes for score in RANKING}
        self._mean = {score: TaskMean() for score in RANKING[1:]}

    def add(self, records: Records) -> None:
        """More tasks."""
        if not self._classes:
            return
        found, groups = records["ranking"], records.get("groups")
        for (name, score), mean in self._each.items():
            _add_known(mean, found[:, self._classes.index(name), RANKING.index(score)], groups)
        for score, mean in self._mean.items():
            _add_known(mean, found[..., RANKING.index(score)].nanmean(1), groups)

    def summary(self) -> dict[str, Any]:
        """As JSON values; an area that no task has is left out."""

        def known(means: Mapping[str, TaskMean]) -> dict[str, Any]:
            return {score: mean.summary() for score, mean in means.items() if mean.moments.tasks}

        if not self._classes:
            return {}
        each = [known({score: self._each[name, score] for score in RANKING}) for name in self._classes]
        by_class = [{"class": name} | means for name, means in zip(self._classes, each, strict=True)]
        return known(self._mean) | {"by_class": by_class}


def _add_known(mean: TaskMean, values: Tensor, groups: Tensor | None) -> None:
    """Add the tasks whose value is a number."""
    known = ~values.isnan()
    if bool(known.any()):
        mean.add(values[known], None if groups is None else groups[known])
