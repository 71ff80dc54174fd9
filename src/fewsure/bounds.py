"""The PAC-Bayes bounds of the paper, term by term. They take numbers, never models.

`form="paper"` is what the paper prints: (ln m)/ε, a true but weak bound (Markov's inequality applied after the
logarithm). `form="log"` is McAllester's own ln(m/ε), from the same proof with the logarithm taken last.

A bound is a guarantee only if its loss lies in [0, 1] and its KL is exact or an upper bound. With the estimates of
`fewsure.divergences` for an implicit posterior it is an estimate.
"""

import math
from typing import Literal, NamedTuple

from jaxtyping import Float
from torch import Tensor

from fewsure.errors import require

Form = Literal["paper", "log"]
Scalar = Float[Tensor, ""]


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

    >>> import torch
    >>> theorem_1(torch.tensor(0.0), torch.tensor(0.0), examples=50, epsilon=0.1, form="paper").total
    tensor(0.6318)
    """
    _check(epsilon, examples=examples)
    confidence = math.log(examples) / epsilon if form == "paper" else math.log(examples / epsilon)
    return Theorem1(loss, _regulariser(kl, confidence, examples))


def theorem_2(
    loss: Scalar, kl: Scalar, kl_theta: Scalar, *, examples: int, tasks: int, epsilon: float, form: Form
) -> Theorem2:
    """loss + R_i + R₀, of one task; its average over the T tasks is the theorem.

    R_i = √[(KL[q(w) ‖ p(w)] + T²/((T−1)ε) · ln m) / (2(m−1))];  log form: ln(m T²/((T−1)ε))
    R₀  = √[(KL[q(θ) ‖ p(θ)] + (T ln T)/ε) / (2(T−1))];          log form: ln(T²/ε)

    >>> import torch
    >>> zero = torch.tensor(0.0)
    >>> bound = theorem_2(zero, zero, zero, examples=50, tasks=20, epsilon=0.1, form="paper")
    >>> round(float(bound.within_task), 3), round(float(bound.across_tasks), 3)
    (2.899, 3.971)
    """
    _check(epsilon, examples=examples, tasks=tasks)
    share = tasks**2 / ((tasks - 1) * epsilon)
    if form == "paper":
        within, across = share * math.log(examples), tasks * math.log(tasks) / epsilon
    else:
        within, across = math.log(share * examples), math.log(tasks**2 / epsilon)
    return Theorem2(loss, _regulariser(kl, within, examples), _regulariser(kl_theta, across, tasks))


def _regulariser(kl: Scalar, confidence: float, count: int) -> Scalar:
    # A KL is never negative, so a negative estimate of it counts as zero.
    return ((kl.clamp(min=0) + confidence) / (2 * (count - 1))).sqrt()


def _check(epsilon: float, **counts: int) -> None:
    require(0 < epsilon <= 1, "epsilon", "a probability in (0, 1]", epsilon)
    for name, count in counts.items():
        require(count >= 2, name, "at least 2, since the bound divides by that number less one", count)
