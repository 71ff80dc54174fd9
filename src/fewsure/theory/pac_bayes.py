"""The PAC-Bayes bounds of the paper, term by term. They take numbers, never models.

| form | of Theorems 1 and 2 |
|---|---|
| `paper` | what the paper prints: (ln m)/ε, a true but weak bound (Markov's inequality applied after the logarithm) |
| `log` | McAllester's own ln(m/ε), from the same proof with the logarithm taken last |
| `kl` | Seeger and Maurer's: the kl-inverse instead of the square root, ln(2√m/ε)/m instead of ln(m/ε)/(2(m − 1)) |

`theorem_1` and `theorem_2` are functions of tensors, to train with; `theorem_1_of_draws` pays for draws from q.
`bound_one_task` and `bound_new_task` make a `Bound`, which says whether it is rigorous and why, and whether it is
vacuous. docs/guarantees.md has the proofs.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from fewsure.errors import require
from fewsure.theory.concentration import Reading, betting_limit, kl_inverse, require_share

Form = Literal["paper", "log", "kl"]
Scalar = Float[Tensor, "*K"]
"""One number, or one for each of K posteriors."""


class Theorem1(NamedTuple):
    """One task: E_q[ℓ] ≤ loss + regulariser, with probability 1 − ε over the task's m examples."""

    loss: Scalar
    regulariser: Scalar

    @property
    def total(self) -> Scalar:
        return self.loss + self.regulariser


class Theorem2(NamedTuple):
    """A new task: E[ℓ] ≤ loss + R_i + R₀, with probability 1 − ε over T tasks and their examples."""

    loss: Scalar
    within_task: Scalar
    """R_i, the price of m examples in a task."""
    across_tasks: Scalar
    """R₀, the price of T tasks."""

    @property
    def total(self) -> Scalar:
        return self.loss + self.within_task + self.across_tasks


def theorem_1(loss: Scalar, kl: Scalar, *, examples: int, epsilon: float, form: Form) -> Theorem1:
    """loss + √[(KL[q(w) ‖ p(w)] + (ln m)/ε) / (2(m−1))];  log form: ln(m/ε).

    kl form: kl⁻¹(loss, (KL[q(w) ‖ p(w)] + ln(2√m/ε)) / m), for a loss in [0, 1].

    >>> import torch
    >>> theorem_1(torch.tensor(0.0), torch.tensor(0.0), examples=50, epsilon=0.1, form="paper").total
    tensor(0.6318)
    >>> theorem_1(torch.tensor(0.0), torch.tensor(0.0), examples=50, epsilon=0.1, form="kl").total
    tensor(0.0943)
    """
    _check(epsilon, examples=examples)
    return Theorem1(loss, _price(loss, kl, examples, 1 / epsilon, form))


def theorem_1_of_draws(
    losses: Float[Tensor, "*K S"], kl: Scalar, *, examples: int, delta: float, share: float, form: Form
) -> Theorem1:
    """Theorem 1 with probability 1 − δ over the examples and S draws of w from q, each with its mean loss on them.

    The draws' error is paid. E_q of the loss is below its betting limit with probability 1 − share · δ, and the
    theorem holds with ε = (1 − share) · δ. `theorem_1` takes that limit for the loss, in which it rises.

    >>> settings = {"examples": 50, "delta": 0.1, "share": 0.05, "form": "kl"}
    >>> bound = theorem_1_of_draws(torch.zeros(2, 1000), torch.tensor([0.0, 5.0]), **settings)
    >>> bound.loss.round(decimals=4), bound.total.round(decimals=4)
    (tensor([0.0059, 0.0059], dtype=torch.float64), tensor([0.1170, 0.2041], dtype=torch.float64))
    """
    require_share(share, "share")
    limit = betting_limit(losses, share * delta)
    return theorem_1(limit, kl.double(), examples=examples, epsilon=(1 - share) * delta, form=form)


def theorem_2(
    loss: Scalar, kl: Scalar, kl_theta: Scalar, *, examples: int, tasks: int, epsilon: float, form: Form
) -> Theorem2:
    """loss + R_i + R₀, with ε₀ = ε/T of ε for the step to new tasks and ε_i = (T−1)ε/T² for each task.

    R_i = √[(KL[q(w) ‖ p(w)] + T²/((T−1)ε) · ln m) / (2(m−1))];  log form: ln(m T²/((T−1)ε))
    R₀  = √[(KL[q(θ) ‖ p(θ)] + (T ln T)/ε) / (2(T−1))];          log form: ln(T²/ε)
    kl form: R_i = U − loss, U = kl⁻¹(loss, (KL[q(w) ‖ p(w)] + ln(2√m T²/((T−1)ε))) / m),
             R₀ = kl⁻¹(U, (KL[q(θ) ‖ p(θ)] + ln(2√T · T/ε)) / T) − U.

    The theorem holds with the loss and the KL averaged over the T tasks: the root and the kl-inverse are concave. All
    tasks have equally many examples. The average of each task's own R_i is smaller and holds too. The kl form's R₀
    must come from averages.

    >>> import torch
    >>> zero = torch.tensor(0.0)
    >>> bound = theorem_2(zero, zero, zero, examples=50, tasks=20, epsilon=0.1, form="paper")
    >>> round(float(bound.within_task), 3), round(float(bound.across_tasks), 3)
    (2.899, 3.971)
    """
    _check(epsilon, examples=examples, tasks=tasks)
    within = _price(loss, kl, examples, tasks**2 / ((tasks - 1) * epsilon), form)
    return Theorem2(loss, within, _price(loss + within, kl_theta, tasks, tasks / epsilon, form))


def _price(loss: Scalar, kl: Scalar, count: int, odds: float, form: Form) -> Scalar:
    """The regulariser of `count` independent examples, or tasks, that fails with probability 1 / `odds`."""
    kl = kl.clamp(min=0)  # a KL is never negative, so a negative estimate of it counts as zero
    if form == "kl":
        return kl_inverse(loss, (kl + math.log(odds * 2 * math.sqrt(count))) / count) - loss
    confidence = odds * math.log(count) if form == "paper" else math.log(odds * count)
    return ((kl + confidence) / (2 * (count - 1))).sqrt()


@dataclass(frozen=True)
class Bound:
    """A PAC-Bayes bound on an expected loss in [0, 1], with what it is worth."""

    theorem: Literal["Theorem 1", "Theorem 2"]
    form: Form
    readings: Mapping[str, Reading]
    """The empirical loss and the KLs, by name."""
    terms: Mapping[str, float]
    """The summands of the total, by name: `loss`, `R_i` and, for a new task, `R_0`."""
    examples: int
    """m, in a task."""
    tasks: int | None
    """T, where the bound is for a new task."""
    delta: float
    """The probability with which the whole statement may fail: ε of the theorem and every reading's own."""
    caveats: tuple[str, ...]
    """Assumptions of the theorem that do not hold here."""

    @property
    def total(self) -> float:
        return sum(self.terms.values())

    @property
    def vacuous(self) -> bool:
        """Whether it says no more than that a loss in [0, 1] is at most 1."""
        return not self.total < 1

    @property
    def epsilon(self) -> float:
        """The part of δ that is left for the theorem itself."""
        return self.delta - sum(reading.failure for reading in self.readings.values())

    @property
    def faults(self) -> tuple[str, ...]:
        """Why it is not rigorous."""
        weak = [(name, reading.worth) for name, reading in self.readings.items() if not reading.is_upper]
        return *(f"{name} is {_article(worth)}, not an upper bound" for name, worth in weak), *self.caveats

    @property
    def rigorous(self) -> bool:
        return not self.faults

    @property
    def reason(self) -> str:
        """Why it is rigorous, or all that is in the way."""
        return "; ".join(self.faults) or "every term is exact or an upper bound, and Monte-Carlo error is paid from δ"

    def record(self) -> dict[str, Any]:
        """As JSON values, but for infinities."""
        derived = ("total", "epsilon", "rigorous", "vacuous", "reason")
        stored = ("theorem", "form", "examples", "tasks", "delta")
        return {
            "terms": dict(self.terms),
            "readings": {name: reading.record() for name, reading in self.readings.items()},
            **{name: getattr(self, name) for name in (*stored, *derived)},
        }


def bound_one_task(
    loss: Reading, kl: Reading, *, examples: int, delta: float, form: Form, caveats: Sequence[str]
) -> Bound:
    """Theorem 1 from readings. The theorem's ε is the part of δ that the readings have not used up.

    `loss` is E_q[ℓ] on the m examples, in [0, 1]. A mean over finitely many w is an `estimate` of it, and
    `fewsure.theory.concentration.mean_reading` an upper bound. `caveats` names the assumptions that do not hold.

    >>> exact = Reading(0.1, "exact")
    >>> bound = bound_one_task(exact, Reading(2.0, "exact"), examples=500, delta=0.05, form="kl", caveats=())
    >>> round(bound.total, 3), bound.rigorous, bound.vacuous
    (0.165, True, False)
    """
    readings = {"loss": loss, "KL[q(w) ‖ p(w)]": kl}
    numbers, epsilon = _numbers(readings, delta)
    result = theorem_1(*numbers, examples=examples, epsilon=epsilon, form=form)
    terms = {"loss": loss.value, "R_i": float(result.regulariser)}
    return Bound("Theorem 1", form, readings, terms, examples, None, delta, tuple(caveats))


def bound_new_task(
    loss: Reading,
    kl: Reading,
    kl_theta: Reading,
    *,
    examples: int,
    tasks: int,
    delta: float,
    form: Form,
    caveats: Sequence[str],
) -> Bound:
    """Theorem 2 from readings; the loss and KL[q(w) ‖ p(w)] are means over θ ~ q(θ) and over the T tasks.

    >>> loss, kl, kl_theta = Reading(0.1, "exact"), Reading(3.0, "lower estimate"), Reading(0.0, "exact")
    >>> settings = {"examples": 500, "tasks": 1000, "delta": 0.05, "form": "log"}
    >>> bound = bound_new_task(loss, kl, kl_theta, **settings, caveats=())
    >>> bound.rigorous, bound.reason
    (False, 'KL[q(w) ‖ p(w)] is a lower estimate, not an upper bound')
    """
    readings = {"loss": loss, "KL[q(w) ‖ p(w)]": kl, "KL[q(θ) ‖ p(θ)]": kl_theta}
    numbers, epsilon = _numbers(readings, delta)
    result = theorem_2(*numbers, examples=examples, tasks=tasks, epsilon=epsilon, form=form)
    terms = {"loss": loss.value, "R_i": float(result.within_task), "R_0": float(result.across_tasks)}
    return Bound("Theorem 2", form, readings, terms, examples, tasks, delta, tuple(caveats))


def _numbers(readings: Mapping[str, Reading], delta: float) -> tuple[list[Scalar], float]:
    """(The readings' values in double precision, the theorem's ε)."""
    require_share(delta, "delta")
    loss, paid = readings["loss"].value, sum(reading.failure for reading in readings.values())
    require(0 <= loss <= 1, "loss", "in [0, 1]", loss)
    for name, reading in readings.items():
        require(not math.isnan(reading.value), name, "a number", reading.value)
    require(paid < delta, "delta", f"above {paid}, which is spent on Monte-Carlo error", delta)
    return [torch.tensor(reading.value, dtype=torch.float64) for reading in readings.values()], delta - paid


def _article(worth: str) -> str:
    return f"an {worth}" if worth[0] in "aeiou" else f"a {worth}"


def _check(epsilon: float, **counts: int) -> None:
    require(0 < epsilon <= 1, "epsilon", "a probability in (0, 1]", epsilon)
    for name, count in counts.items():
        require(count >= 2, name, "at least 2, since the bound divides by that number less one", count)
