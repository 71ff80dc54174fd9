"""Upper limits on a mean of values in [0, 1] from a finite sample, and the worth of a number as an upper bound.

| function | upper limit on the mean from | holds with probability 1 − δ because of |
|---|---|---|
| `chernoff_limit` | the sample mean | Chernoff's inequality for [0, 1] variables (Hoeffding, 1963, Theorem 1) |
| `betting_limit` | every value, in an order drawn by a seed | Ville's inequality (Waudby-Smith and Ramdas, 2024) |

Both hold for every N, and need independent values with one mean. The first is tight for values that are 0 or 1; the
second adapts to their variance. Certificates and the Monte-Carlo error inside PAC-Bayes bounds are paid with them.
"""

import math
from typing import Any, Literal, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from fewsure.core import streams
from fewsure.errors import FewsureError, require, require_known

Worth = Literal["exact", "upper bound", "estimate", "lower estimate"]
"""How a number compares with the quantity it stands for. An `estimate` may err on either side; a `lower estimate`
estimates a quantity that is at most the one in question."""
Method = Literal["betting", "chernoff", "both"]
METHODS: tuple[Method, ...] = ("betting", "chernoff", "both")
"""How the mean of values in [0, 1] is bounded. `both` gives each half of δ and takes the smaller limit."""

LARGEST_BET = 0.9
"""Share of the capital that a bet may lose at most."""
NEWTON_STEPS = 24
SMALL = 1e-12
"""Distance from 0 at which gradients of the kl-inverse are taken where their limit is infinite."""


class Reading(NamedTuple):
    """A number with what it is worth."""

    value: float
    worth: Worth
    failure: float = 0.0
    """Probability, over the Monte-Carlo draws behind it, with which an upper bound fails."""
    ceiling: float | None = None
    """ln(m_φ), beyond which m_φ samples cannot hold a lower estimate of a KL with high confidence."""

    @property
    def is_upper(self) -> bool:
        """Whether a guarantee may rest on it."""
        return self.worth in ("exact", "upper bound")

    @property
    def reliable(self) -> bool:
        """False for a reading above its ceiling: it is noise."""
        return self.ceiling is None or self.value <= self.ceiling

    def record(self) -> dict[str, Any]:
        """As JSON values."""
        ceiling = {} if self.ceiling is None else {"ceiling": self.ceiling, "reliable": self.reliable}
        return {"value": self.value, "worth": self.worth, "failure": self.failure, **ceiling}


def bernoulli_kl(q: Float[Tensor, "*B"], p: Float[Tensor, "*B"]) -> Float[Tensor, "*B"]:
    """kl(q ‖ p) = q ln(q/p) + (1 − q) ln((1 − q)/(1 − p)), exact; infinite where p is 0 or 1 and q is not.

    >>> bernoulli_kl(torch.tensor([0.0, 0.5]), torch.tensor([0.5, 0.5]))
    tensor([0.6931, 0.0000])
    """
    return sum((torch.where(a == 0, 0, a * (a / b).log()) for a, b in ((q, p), (1 - q, 1 - p))), torch.zeros(()))


def kl_inverse(q: Float[Tensor, "..."], c: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
    """The largest p in [q, 1] with kl(q ‖ p) ≤ c, for q in [0, 1] and c ≥ 0; shapes broadcast. Concave in (q, c).

    Newton's method in double precision from above: kl(q ‖ ·) is convex there, so every iterate is at least the root.
    All rounding goes up. Its gradient, by implicit differentiation,

        ∂p/∂c = p(1 − p)/(p − q),    ∂p/∂q = ∂p/∂c · ln[p(1 − q) / (q(1 − p))],

    works under `torch.func`; where a limit is infinite (q = 0; c = 0) it is taken a distance of 1e-12 away.

    >>> kl_inverse(torch.tensor([0.0, 0.1, 1.0]), torch.tensor([0.5, 0.0, 2.0]))
    tensor([0.3935, 0.1000, 1.0000])
    """
    q, c = torch.broadcast_tensors(q, c)  # type: ignore[no-untyped-call]
    inverse: Tensor = _KlInverse.apply(q, c)  # type: ignore[no-untyped-call]
    return inverse


class _KlInverse(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(q: Tensor, c: Tensor) -> Tensor:
        exact = _solve(q.double().clamp(0, 1), c.double().clamp(min=0))
        nearest = exact.to(torch.promote_types(q.dtype, c.dtype))
        return torch.where(nearest < exact, nearest.nextafter(torch.ones_like(nearest)), nearest)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs, output)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        q, c, p = ctx.saved_tensors
        gap, rest = (p - q).clamp(min=SMALL), (1 - p).clamp(min=torch.finfo(p.dtype).tiny)
        by_c = gradient * p * (1 - p) / gap
        by_q = by_c * (torch.log1p(gap / q.clamp(min=SMALL)) + torch.log1p(gap / rest))
        return by_q.to(q.dtype), by_c.to(c.dtype)


def _solve(q: Tensor, c: Tensor) -> Tensor:
    rest, tiny = 1 - q, 1e-300
    entropy = -(torch.xlogy(q, q) + torch.xlogy(rest, rest))
    # Two limits above the root: Pinsker's inequality, and kl(q ‖ p) ≥ −entropy − (1 − q) ln(1 − p).
    p = torch.minimum(q + (c / 2).sqrt(), -torch.expm1(-(c + entropy) / rest.clamp(min=tiny)))
    for _ in range(NEWTON_STEPS):
        gap = p - q
        # The logarithms of ratios near 1 cancel each other; written so, they do not lose the digits of a small gap.
        kl = -q * torch.log1p(gap / q.clamp(min=tiny)) - rest * torch.log1p(-gap / rest.clamp(min=tiny))
        step = (kl - c) * p * (1 - p) / gap
        p = torch.where((gap > 0) & (p < 1), p - step.clamp(min=0), p)
    return torch.minimum(torch.maximum(p, q) * (1 + 8 * torch.finfo(p.dtype).eps), torch.ones_like(p))


def chernoff_limit(values: Float[Tensor, "*B N"], delta: float) -> Float[Tensor, "*B"]:
    """U = kl⁻¹(mean, ln(1/δ)/N): Pr(E[X] ≤ U) ≥ 1 − δ for N independent values in [0, 1].

    >>> chernoff_limit(torch.zeros(1000), 0.05)
    tensor(0.0030, dtype=torch.float64)
    """
    _check(values, delta)
    mean = values.double().mean(-1)
    return kl_inverse(mean, torch.full_like(mean, math.log(1 / delta) / values.shape[-1]))


def betting_limit(values: Float[Tensor, "*B N"], delta: float, seed: int = 0) -> Float[Tensor, "*B"]:
    """U, an upper limit on the mean by betting against every larger mean: Pr(E[X] ≤ U) ≥ 1 − δ.

    Who doubts that the mean is m bets λ_t (m − X_t), with λ_t from the values before t:

        capital_t(m) = Π_{i ≤ t} (1 + λ_i(m) (m − X_i)),   λ_i(m) = min(√(2 ln(1/δ) / (N v_{i−1})), 0.9/(1 − m)),

    v the running variance, regularised by ¼. If the mean is m or more, the capital is a non-negative supermartingale
    and reaches 1/δ with probability at most δ (Ville). The bets depend on m through their cap alone, so every factor
    rises with m. The means that are not rejected form an interval [0, U), and bisection returns its outer end.

    The order of the values must not depend on them; it is drawn from the seed, which must be chosen before looking. A
    limit below the sample's own mean, which luck early in the order can give, is raised to it.

    >>> float(betting_limit(torch.full((1000,), 0.2), 0.05)) < 0.21
    True
    """
    _check(values, delta)
    order = torch.randperm(values.shape[-1], generator=streams.generator(seed, "betting"))
    values = values.double()[..., order.to(values.device)]
    count, wanted = values.shape[-1], math.log(1 / delta)
    position = torch.arange(2, count + 2, dtype=values.dtype, device=values.device)
    mean = (0.5 + values.cumsum(-1)) / position
    variance = (0.25 + (values - mean).square().cumsum(-1)) / position
    before = torch.cat([torch.full_like(variance[..., :1], 0.25), variance[..., :-1]], -1)
    bets = (2 * wanted / (count * before)).sqrt()

    accepted, rejected = torch.zeros_like(values[..., 0]), torch.ones_like(values[..., 0])
    for _ in range(40):
        middle = ((accepted + rejected) / 2).unsqueeze(-1)
        stakes = torch.minimum(bets, LARGEST_BET / (1 - middle))
        capital = torch.log1p(stakes * (middle - values)).cumsum(-1).amax(-1)
        enough = capital >= wanted + 1e-9  # more than sums of so many logarithms can err
        accepted = torch.where(enough, accepted, middle.squeeze(-1))
        rejected = torch.where(enough, middle.squeeze(-1), rejected)
    return torch.maximum(rejected, values.mean(-1))


def upper_limit(values: Float[Tensor, "*B N"], delta: float, method: Method = "betting") -> Float[Tensor, "*B"]:
    """Pr(E[X] ≤ U) ≥ 1 − δ by a method that was chosen before looking at the values.

    >>> upper_limit(torch.zeros(1000), 0.05, "both")
    tensor(0.0037, dtype=torch.float64)
    """
    require_known("method", method, METHODS)
    if method == "both":
        _check(values, delta)
        return torch.minimum(betting_limit(values, delta / 2), chernoff_limit(values, delta / 2))
    return chernoff_limit(values, delta) if method == "chernoff" else betting_limit(values, delta)


def mean_reading(values: Float[Tensor, " N"], delta: float, method: Method = "betting") -> Reading:
    """The upper limit on a mean as a reading, for instance of E_q[ℓ] from N draws of q."""
    return Reading(float(upper_limit(values, delta, method)), "upper bound", failure=delta)


def require_share(value: float, name: str) -> None:
    """Refuse a probability outside (0, 1)."""
    require(0 < value < 1, name, "a probability in (0, 1)", value)


def _check(values: Tensor, delta: float) -> None:
    require_share(delta, "delta")
    require(values.shape[-1] >= 2, "values", "at least 2, since one value says nothing of a mean", values.shape[-1])
    outside = values[~((values >= 0) & (values <= 1))]  # a NaN is not inside
    if outside.numel():
        count = f"{outside.numel()} of {values.numel()}"
        raise FewsureError(f"expected values in [0, 1], but {count} are not, for instance {float(outside[0])}")
