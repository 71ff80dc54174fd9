"""Scores of regression tasks whose truth nobody knows: against the labels that were observed.

The predictive distribution of a label at x is a mixture of Gaussians: the method's own, or N(f_s(x), noise_std²) of the
S sampled functions. The noise's standard deviation is given by the user or learned from validation
tasks (`fewsure.evaluation.calibrate`); it belongs to the predictor. Each query point with the label y gives:

    squared error     (mean of f_s(x) − y)²
    NLL               −ln 1/S Σ_s N(y; f_s(x), noise_std²)
    reliability       at each level the share of labels at or below that quantile of the predictive distribution, which
                      is the share of points with 1/S Σ_s Φ((y − f_s(x)) / noise_std) ≤ level

A calibrated predictor has reliability = level. `without_noise` is the same reliability for the quantiles of the S
function values alone, as in the headline protocol of sine-line. Functions know nothing of the noise on labels, so even
the right ones look over-confident there.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from fewsure.evaluation.metrics.calibration import levels_like, quantiles
from fewsure.evaluation.metrics.density import share_below
from fewsure.evaluation.scoring.predict import Predict, Scorer
from fewsure.evaluation.scoring.regression import label_scores, summarise
from fewsure.types import Facts, Noise, Records, Task


@dataclass(frozen=True)
class ObservedScorer(Scorer):
    """Squared error, likelihood and reliability on the query set, in the unit of the target."""

    noise_std: float | None
    """In the unit that networks see; None where the method has a density of its own, or the noise is not known yet."""
    unit: float
    """The target's unit, in which errors are reported: its standard deviation over the training rows."""

    def score(self, predict: Predict, task: Task, facts: Facts, noise: Noise) -> dict[str, Tensor]:
        """`label_scores` and two rows of 11 `reliability` levels."""
        outputs, labels = predict(task.query.x), task.query.y.squeeze(-1)
        density, values = predict.density(task.query.x, self.noise_std, outputs), outputs.squeeze(-1)
        below = share_below(density, labels)
        levels = levels_like(below).unsqueeze(-1)
        return label_scores(density, labels, self.unit) | {
            "reliability": (below <= levels).to(values.dtype).mean(-1),
            "reliability_without_noise": (labels <= quantiles(values)).to(values.dtype).mean(-1),
        }

    def summarise(self, shards: Iterable[Records]) -> dict[str, Any]:
        noise = {} if self.noise_std is None else {"noise_std": self.noise_std * self.unit}
        return summarise(shards, "without_noise") | noise
