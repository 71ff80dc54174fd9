"""Scores of regression tasks whose truth nobody knows: against the labels that were observed, in their unit.

The predictive distribution of a label at x is a mixture of Gaussians: the method's own, or N(f_s(x), noise_std²) of the
S sampled functions. The noise's standard deviation is given by the user or learned from validation
tasks (`fewsure.evaluation.calibrate`); it belongs to the predictor. Over the query points of a task, with the label y:

    mse, mae, rmse    the mean of (y − m)² and of |y − m|, with the mean m of the distribution; rmse is √mse
    nll               the mean of −ln p(y)
    crps              the mean of E|Y − y| − ½ E|Y − Y′|, with Y and Y′ from the distribution
    coverage, width   of the intervals between the quantiles at .25 and .75 (50 %) and at .05 and .95 (90 %)
    reliability       at each level the share of labels at or below that quantile

A calibrated predictor has reliability = level. All are means over groups, and are given for each group, too.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from fewsure.evaluation.metrics.calibration import levels_like
from fewsure.evaluation.metrics.density import coverage, crps, log_density, mean, mean_width, share_below
from fewsure.evaluation.metrics.summary import Mean, TaskMeans, TaskTotal
from fewsure.evaluation.scoring.predict import Predict, Scorer
from fewsure.evaluation.scoring.regression import calibration
from fewsure.types import Facts, Noise, Records, Task

SHARES = {"50": 0.5, "90": 0.9}
"""Intervals by the percentage of labels that they should hold."""
SCORES = ("mse", "mae", "nll", "crps", *(f"{score}_{name}" for score in ("coverage", "width") for name in SHARES))


@dataclass(frozen=True)
class ObservedScorer(Scorer):
    """Error, likelihood, intervals and reliability on the query set, in the unit of the target."""

    noise_std: float | None
    """In the unit that networks see; None where the method has a density of its own, or the noise is not known yet."""
    unit: float
    """The target's unit, in which errors are reported: its standard deviation over the training rows."""

    def score(self, predict: Predict, task: Task, facts: Facts, noise: Noise) -> dict[str, Tensor]:
        """`SCORES`, and a row of 11 `reliability` levels."""
        x, y = task.query.x, task.query.y.squeeze(-1)
        density = predict.density(x, self.noise_std, functions=predict(x))
        error, below = (mean(density) - y) * self.unit, share_below(density, y)
        return {
            "mse": error.square().mean(),
            "mae": error.abs().mean(),
            "nll": -log_density(density, y).mean() + math.log(self.unit),
            "crps": crps(density, y).mean() * self.unit,
            **{f"coverage_{name}": coverage(density, y, share) for name, share in SHARES.items()},
            **{f"width_{name}": mean_width(density, share) * self.unit for name, share in SHARES.items()},
            "reliability": (below <= levels_like(below).unsqueeze(-1)).to(y.dtype).mean(-1),
        }

    def summarise(self, shards: Iterable[Records]) -> dict[str, Any]:
        means, reliability = TaskMeans(SCORES), TaskTotal()
        for records in shards:
            means.add(records)
            reliability.add(records["reliability"], records.get("groups"))
        summary, noise = means.summary(), {} if self.noise_std is None else {"noise_std": self.noise_std * self.unit}
        groups = sorted(means.by_group(), key=lambda group: -group["mae"])
        by_group = [group | {"rmse": group["mse"] ** 0.5} for group in groups]
        return {**summary, "rmse": root(summary["mse"]), **calibration(reliability), **noise, "by_group": by_group}


def root(mean: Mean) -> Mean:
    """The square root of a mean, whose interval is as wide as the mean's is where it crosses the root's tangent.

    >>> root({"mean": 4.0, "ci95": 0.4})
    {'mean': 2.0, 'ci95': 0.1}
    """
    found: Mean = {"mean": mean["mean"] ** 0.5}
    if "ci95" in mean:
        found["ci95"] = mean["ci95"] / (2 * found["mean"]) if found["mean"] else 0.0
    return found
