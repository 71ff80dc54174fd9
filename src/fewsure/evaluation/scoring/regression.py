"""Scores of regression tasks.

The headline protocol takes quantiles of exactly 32 sampled function values, or fewer where a method has fewer. There is
no observation noise, no temperature and no other scaling after training. The squared error is that of the mean
prediction against noisy query labels.

The metric is easily gamed: adding N(0, noise_std²) to the sampled values makes any model look calibrated. That variant
is measured too, under `with_noise`, and shown as a row of its own.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fewsure.data.sets.sine_line import GRID
from fewsure.evaluation.metrics.calibration import LEVELS, calibration_errors, quantile_reliability
from fewsure.evaluation.metrics.density import coverage, crps, log_density, mean
from fewsure.evaluation.metrics.summary import TaskMeans, TaskTotal
from fewsure.evaluation.scoring.predict import Predict, Scorer
from fewsure.types import Draw, Facts, Noise, Records, Task

SAMPLES_WITH_NOISE = 32
SCORES = ("mse", "nll", "crps", "coverage_90")


@dataclass(frozen=True)
class RegressionScorer(Scorer):
    """Squared error and likelihood on the query set, reliability over the whole range, where the truth is known."""

    noise_std: float

    @property
    def draws(self) -> Mapping[str, Draw]:
        return {"observation": Draw((SAMPLES_WITH_NOISE, GRID))}

    def score(self, predict: Predict, task: Task, facts: Facts, noise: Noise) -> dict[str, Tensor]:
        """The scores of the query labels, and two rows of 11 `reliability` levels."""

        def reliability(predictions: Tensor) -> Tensor:
            return quantile_reliability(predictions, facts["truth"].squeeze(-1), self.noise_std)

        density, y = predict.density(task.query.x, self.noise_std), task.query.y.squeeze(-1)
        at_grid = predict(facts["grid"]).squeeze(-1)
        repeated = at_grid[torch.arange(SAMPLES_WITH_NOISE, device=at_grid.device) % len(at_grid)]
        noisy = repeated + self.noise_std * noise["observation"]
        return {
            "mse": (mean(density) - y).square().mean(),
            "nll": -log_density(density, y).mean(),
            "crps": crps(density, y).mean(),
            "coverage_90": coverage(density, y, 0.9),
            "reliability": reliability(at_grid),
            "reliability_with_noise": reliability(noisy),
        }

    def summarise(self, shards: Iterable[Records]) -> dict[str, Any]:
        means, headline, noisy = TaskMeans(SCORES), TaskTotal(), TaskTotal()
        for records in shards:
            means.add(records)
            headline.add(records["reliability"])
            noisy.add(records["reliability_with_noise"])
        return {**means.summary(), **calibration(headline), "with_noise": calibration(noisy)}


def calibration(reliability: TaskTotal) -> dict[str, Any]:
    """ECE and MCE with their intervals, and the diagram, from a row of observed shares for each task."""
    diagram = {"levels": list(LEVELS), "observed": reliability.mean().tolist()}
    return {**reliability.calibration(calibration_errors), "reliability": diagram}
