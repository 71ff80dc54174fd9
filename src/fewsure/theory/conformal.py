"""Prediction sets and intervals with coverage, by hierarchical conformal prediction (Lee, Barber and Willett, 2023).

K calibration tasks, task k with N_k scored query points. A new task, exchangeable with them, asks about one of its
query points. With the threshold

    q̂ = quantile of level 1 − α of   Σ_k Σ_i δ(score_ki) / ((K + 1) N_k)  +  δ(+∞) / (K + 1)

the set {y : score(x, y) ≤ q̂} contains the true label with probability at least 1 − α. Each task weighs the same,
however many points it has. The probability is over the calibration tasks, the new task and its point. It is marginal:
it holds for one point, not for all points of a task at once. If no two scores are equal, it is at most

    1 − α + 1/(K + 1)                       for tasks with equally many points,
    1 − α + (1 + max_k 1/N_k)/(K + 1)       for any tasks.

q̂ is infinite, and the set holds every label, if K < 1/α − 1: so few tasks cannot support that coverage.

Sets and intervals err outwards. Scores are in double precision, but networks compute in single precision. Their sums
depend on the number of queries, so one point's score at calibration and at prediction differ by that rounding.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import accumulate
from pathlib import Path
from typing import Literal

import torch
from jaxtyping import Bool, Float, Int
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as to_bytes
from torch import Tensor

from fewsure.core.config import UNRECORDED, checked, field_types, from_json, to_record
from fewsure.core.files import write_atomically
from fewsure.errors import FewsureError, require
from fewsure.theory.concentration import require_share

FORMAT = 4
DRAWS = "draws/"
"""How the names of the predictor's random numbers begin in a file."""
ROUNDING = 2.0**-20
"""The relative rounding of a network's output: eight times that of a single-precision number."""
SET_ROUNDING = 2.0**-13
"""The relative rounding of 1 − p: twice that of outputs, times the largest output, taken as 64."""

Score = Literal["probability", "scaled residual", "residual"]
"""How badly a label fits. It must be chosen before calibration."""


def label_scores(probabilities: Float[Tensor, "*T N C"]) -> Float[Tensor, "*T N C"]:
    """1 − p of each label, as the sum of the other probabilities: where p is nearly 1, the difference has no digits.

    >>> label_scores(torch.tensor([[1.0, 1e-30]], dtype=torch.float64))
    tensor([[1.0000e-30, 1.0000e+00]], dtype=torch.float64)
    """
    others = 1 - torch.eye(probabilities.shape[-1], dtype=torch.float64, device=probabilities.device)
    return probabilities.double() @ others


def probability_scores(probabilities: Float[Tensor, "*T N C"], y: Int[Tensor, "*T N"]) -> Float[Tensor, "*T N"]:
    """1 − p(y), in double precision: the score of classification.

    It makes the smallest sets on average where the probabilities are right. (Cumulative scores, "adaptive prediction
    sets", spread the coverage more evenly over easy and hard points. Their sets are larger, and a few-shot task with
    five classes has little to gain.) A set may be empty: no label fits as well as a share 1 − α of the true ones did.

    >>> probability_scores(torch.tensor([[0.75, 0.25]]), torch.tensor([0]))
    tensor([0.2500], dtype=torch.float64)
    """
    return label_scores(probabilities).gather(-1, y.long().unsqueeze(-1)).squeeze(-1)


def residual_scores(
    mean: Float[Tensor, "*T N"], y: Float[Tensor, "*T N"], spread: Float[Tensor, "*T N"]
) -> Float[Tensor, "*T N"]:
    """|y − mean| / spread, in double precision: the score of regression.

    `spread`, above 0, makes intervals wide where the sampled functions disagree. Add the standard deviation of the
    observation noise to it, so that no interval collapses where they all agree. A spread of 1 leaves the residual.

    >>> residual_scores(torch.tensor([1.0]), torch.tensor([3.0]), torch.tensor([0.5]))
    tensor([4.], dtype=torch.float64)
    """
    return (y.double() - mean.double()).abs() / _positive(spread)


def prediction_sets(probabilities: Float[Tensor, "*N C"], threshold: float | Tensor) -> Bool[Tensor, "*N C"]:
    """Which labels belong to each set: those with 1 − p ≤ threshold, a number or a tensor that broadcasts.

    >>> prediction_sets(torch.tensor([[0.7, 0.2, 0.1]]), threshold=0.85)
    tensor([[ True,  True, False]])
    """
    return label_scores(probabilities) <= threshold * (1 + SET_ROUNDING)


def prediction_intervals(
    mean: Float[Tensor, "*N"], threshold: float | Tensor, spread: Float[Tensor, "*N"]
) -> tuple[Float[Tensor, "*N"], Float[Tensor, "*N"]]:
    """(lower, upper) = mean ∓ threshold · spread, rounded outwards, in double precision; a threshold may broadcast.

    >>> lower, upper = prediction_intervals(torch.tensor([1.0]), threshold=4.0, spread=torch.tensor([0.5]))
    >>> round(float(lower), 5), round(float(upper), 5)
    (-1.0, 3.0)
    """
    mean, half = mean.double(), threshold * _positive(spread)
    half = half + ROUNDING * (mean.abs() + half)
    return mean - half, mean + half


def jackknife_intervals(
    lower: Float[Tensor, "K P N"], upper: Float[Tensor, "K P N"], alpha: float
) -> tuple[Float[Tensor, "N"], Float[Tensor, "N"]]:
    """Jackknife+ (Barber and others, 2021) over K groups (Lee, Barber and Willett, 2023), at N points of a new group.

    Learner k has not seen group k, on which it has P scores. [lower_kpn, upper_kpn] is its set of labels at point n
    whose score is at most the p-th. The interval takes the quantile of level (1 − α)(K + 1)/K of all upper ends, each
    group weighing the same; likewise of the lower ends. Assumed is that groups are exchangeable and that training
    treats them alike. Then the interval holds the truth at one point of a new group with probability at least 1 − 2α.
    As a rule it is about 1 − α. Where all learners are the same one, it is split conformal prediction. It has no ends
    if K < 1/α − 1.

    >>> ends = torch.arange(9.0).reshape(9, 1, 1)
    >>> jackknife_intervals(-ends, ends, alpha=0.1), jackknife_intervals(-ends, ends, alpha=0.2)
    ((tensor([-8.]), tensor([8.])), (tensor([-7.]), tensor([7.])))
    """
    require_share(alpha, "alpha")
    groups, scores, points = lower.shape
    needed = math.ceil((1 - Fraction(repr(float(alpha)))) * (groups + 1) * scores)
    if needed > groups * scores:
        endless = torch.full((points,), math.inf, dtype=lower.dtype)
        return -endless, endless

    def smallest(ends: Tensor) -> Tensor:
        return ends.flatten(0, 1).kthvalue(needed, dim=0).values

    return -smallest(-lower), smallest(upper)


@dataclass(frozen=True)
class Calibration:
    """The scores of K calibration tasks, and what a task must have in common with them for the coverage to hold."""

    scores: Float[Tensor, " P"] = field(metadata=UNRECORDED)
    """The scores of all points, task after task."""
    sizes: Int[Tensor, " K"] = field(metadata=UNRECORDED)
    """N_k, the number of points of each task."""
    draws: Mapping[str, Tensor] = field(metadata=UNRECORDED)
    """The random numbers of the predictor, the same for every task, by name. They are stored, since another device or
    version may draw other numbers from the seed."""
    score: Score
    way: int | None
    """Classes of a task; None for regression."""
    shot: int
    """Labelled examples per class; per task, where classes are fixed or there are none."""
    query: int
    """Query points that are predicted together: a transductive run sees them all."""
    transductive: bool
    environment: str
    """Where the tasks came from, in words."""
    seed: int
    """The seed of the calibration stream."""
    samples: int
    """Functions that were asked for from each task's posterior; the scores depend on their number."""
    checkpoint: str
    """SHA-256 (hex) of the checkpoint that was calibrated."""

    def __post_init__(self) -> None:
        require(self.scores.ndim == 1 and self.sizes.ndim == 1, "scores", "flat, with a size for each task", self.sizes)
        require(len(self.sizes) >= 2, "tasks", "at least 2", len(self.sizes))
        require(bool((self.sizes >= 1).all()), "sizes", "at least 1 each", int(self.sizes.min()))
        total = int(self.sizes.sum())
        require(len(self.scores) == total, "scores", f"as many as the tasks have points, {total}", len(self.scores))
        broken = self.scores[~self.scores.isfinite()]
        require(not len(broken), "scores", "finite numbers", broken.tolist()[:3])

    @property
    def tasks(self) -> int:
        """K."""
        return len(self.sizes)

    def threshold(self, alpha: float) -> float:
        """q̂ for coverage 1 − α, or infinity if there are too few tasks for it."""
        return conformal_threshold(self.scores, self.sizes, alpha)

    def require_like(self, *, way: int | None, shot: int, points: int) -> None:
        """Refuse a task for which the coverage would not hold; `points` is the number of query points in all."""
        require(way == self.way, "way", f"{self.way}, as in the calibration tasks", way)
        require(shot == self.shot, "shot", f"{self.shot}, as in the calibration tasks", shot)
        if self.transductive:
            reason = f"{self.query} query points, as in the calibration tasks, since they are predicted together"
            require(points == self.query, "x", reason, points)


def conformal_threshold(scores: Float[Tensor, " P"], sizes: Int[Tensor, " K"], alpha: float) -> float:
    """The smallest score q with Σ_k #{i : score_ki ≤ q} / N_k ≥ (1 − α)(K + 1); infinity if there is none.

    Weights are added as whole numbers and α is taken as the decimal that it is written as, so that no rounding moves
    the quantile.

    >>> conformal_threshold(torch.arange(9.0), torch.ones(9, dtype=torch.int64), alpha=0.1)
    8.0
    >>> conformal_threshold(torch.arange(8.0), torch.ones(8, dtype=torch.int64), alpha=0.1)
    inf
    """
    require_share(alpha, "alpha")
    counts = sizes.tolist()
    unit = math.lcm(*counts)
    needed = (1 - Fraction(repr(float(alpha)))) * (len(counts) + 1) * unit
    ordered, order = scores.cpu().sort()
    task = torch.arange(len(counts)).repeat_interleave(sizes.cpu())[order].tolist()
    reached = zip(ordered.tolist(), accumulate(unit // counts[number] for number in task), strict=True)
    return next((score for score, total in reached if total >= needed), math.inf)


def save(path: Path, calibration: Calibration) -> None:
    """Write a calibration."""
    tensors = {
        "scores": calibration.scores.double().cpu().contiguous(),
        "sizes": calibration.sizes.long().cpu().contiguous(),
        **{f"{DRAWS}{name}": draw.cpu().contiguous() for name, draw in calibration.draws.items()},
    }
    record = {"format": FORMAT} | to_record(calibration)
    write_atomically(path, to_bytes(tensors, metadata={"calibration": json.dumps(record)}))


def load(path: Path) -> Calibration:
    """Read a calibration, checking all that it says."""
    if not path.is_file():
        raise FewsureError(f"{path} is not there; make it with `fewsure certify`")
    try:
        with safe_open(path, framework="pt") as file:
            record = from_json((file.metadata() or {})["calibration"])
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (it is no mapping)
        if record.pop("format") != FORMAT:
            raise ValueError("of another format")
        facts = {name: checked(kind, record[name], name) for name, kind in field_types(Calibration).items()}
        scores, sizes = tensors.pop("scores"), tensors.pop("sizes")
        if (scores.dtype, sizes.dtype) != (torch.float64, torch.int64):
            raise ValueError("with numbers of another type")
        draws = {name.removeprefix(DRAWS): draw for name, draw in tensors.items()}
        return Calibration(scores, sizes, draws, **facts)
    except (SafetensorError, OSError, ValueError, KeyError, TypeError, AttributeError, FewsureError) as error:
        raise FewsureError(f"{path} cannot be read ({error}); make it anew with `fewsure certify`") from error


def _positive(spread: Tensor) -> Tensor:
    wrong = spread[spread <= 0]
    require(not len(wrong), "spread", "above 0 everywhere", wrong.tolist()[:3])
    return spread.double()
