"""Scores of classification tasks, from class probabilities averaged over the sampled functions."""

from collections.abc import Iterable
from dataclasses import dataclass, field
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
from fewsure.evaluation.metrics.scores import brier_score, class_probabilities, negative_log_likelihood
from fewsure.evaluation.metrics.summary import TaskMeans, TaskTotal
from fewsure.evaluation.scoring.predict import Predict, Scorer
from fewsure.evaluation.temperature import Temperature
from fewsure.types import Facts, Noise, Records, Task

SCORES = ("accuracy", "nll", "brier")


@dataclass(frozen=True)
class ClassificationScorer(Scorer):
    """Accuracy, likelihood and Brier score of each task; calibration pooled over the query points of all tasks."""

    temperature: Temperature = field(default_factory=Temperature)
    """The temperature that the outputs have been divided by."""

    def score(self, predict: Predict, task: Task, facts: Facts, noise: Noise) -> dict[str, Tensor]:
        """`accuracy`, `nll` and `brier`; the `confidence` of each query point and whether it was `correct`."""
        probabilities = class_probabilities(predict(task.query.x))
        confidence, label = probabilities.max(-1)
        correct = label == task.query.y
        return {
            "accuracy": correct.to(confidence.dtype).mean(),
            "nll": negative_log_likelihood(probabilities, task.query.y),
            "brier": brier_score(probabilities, task.query.y),
            "confidence": confidence,
            "correct": correct,
            "reliability": binned(confidence, correct),
            "classes": facts["classes"],
        }

    def summarise(self, shards: Iterable[Records]) -> dict[str, Any]:
        means, table, cells = TaskMeans(SCORES), TaskTotal(), torch.zeros(())
        for records in shards:
            means.add(records)
            table.add(records["reliability"], records.get("groups"))
            cells = cells + confidence_cells(records["confidence"].flatten(), records["correct"].flatten())
        count, confidence, accuracy = table.mean().unbind(-1)
        return {
            **means.summary(),
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
        }
