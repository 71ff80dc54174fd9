"""Kullback-Leibler divergences, each with what it is worth.

| tensor, to train with | of | reading, to report | worth |
|---|---|---|---|
| `gaussian_kl`, `isotropic_kl` | two Gaussians with diagonal covariance | `gaussian_reading` | exact |
| `semi_implicit_kl` | q of w = G(z) + s·noise, to N(0, σ²I) | `semi_implicit_reading` | upper bound |
| `moment_kl` | samples of any q, to N(0, σ²I) | `moment_reading` | lower estimate (unbiased for a Gaussian q) |
| `donsker_varadhan` | samples of q and p under a critic φ | `critic_reading` | lower estimate, up to ln(m_φ) |

A PAC-Bayes bound made from a lower estimate is itself an estimate, never a guarantee. `fewsure.theory.pac_bayes` takes
readings, and calls a bound rigorous only if each of them is exact or an upper bound.
"""

import math
from functools import cache

import torch
from jaxtyping import Float
from torch import Tensor

from fewsure.core.devices import in_full
from fewsure.errors import require
from fewsure.kernels.fused import fused_kernels_fit
from fewsure.kernels.fused import moment_kl as fused_moment_kl
from fewsure.theory.concentration import Reading, require_share, upper_limit

VARIANCE_FLOOR = 1e-10
"""Added to sample variances, so that a weight that the generator holds constant has a finite logarithm."""


def gaussian_kl(
    mean: Float[Tensor, "*n"],
    variance: Float[Tensor, "*n"] | float,
    prior_mean: Float[Tensor, "*n"] | float,
    prior_variance: Float[Tensor, "*n"] | float,
) -> Float[Tensor, ""]:
    """KL[N(mean, diag variance) ‖ N(prior_mean, diag prior_variance)], exact.

    ½ Σ [ v/v₀ + (m − m₀)²/v₀ − 1 − ln(v/v₀) ]

    >>> gaussian_kl(torch.zeros(3), 1.0, 0.0, 1.0)
    tensor(0.)
    """
    ratio = torch.as_tensor(variance / prior_variance)
    return 0.5 * (ratio + (mean - prior_mean).square() / prior_variance - 1 - ratio.log()).sum()


def isotropic_kl(
    squared_norm: Float[Tensor, "*K"], count: int, variance: float, prior_variance: float
) -> Float[Tensor, "*K"]:
    """KL[N(mean, v I) ‖ N(0, v₀ I)] in n dimensions, exact, from ‖mean‖² and n = `count`.

    ½ [ n (v/v₀ − 1 − ln(v/v₀)) + ‖mean‖²/v₀ ]

    >>> float(isotropic_kl(torch.ones(2).square().sum(), 2, 1.0, 1.0))
    1.0
    """
    ratio = variance / prior_variance
    return 0.5 * (count * (ratio - 1 - math.log(ratio)) + squared_norm / prior_variance)


def gaussian_reading(mean: Float[Tensor, "*n"], variance: float, prior_variance: float) -> Reading:
    """KL[N(mean, v I) ‖ N(0, v₀ I)] in double precision: exact."""
    return Reading(float(isotropic_kl(mean.double().square().sum(), mean.numel(), variance, prior_variance)), "exact")


def semi_implicit_kl(means: Float[Tensor, "*K S n"], std: float, prior_std: float) -> Float[Tensor, "*K"]:
    """E_z KL[N(G(z), s²I) ‖ N(0, σ²I)] ≥ KL[q ‖ N(0, σ²I)], from samples G(z) of the means.

    q is the mixture over z of N(G(z), s²I), and the KL is convex in q, so the mean over z of the closed form

        ½ [ n (s²/σ² − 1 − ln(s²/σ²)) + ‖G(z)‖²/σ² ]

    is at least the KL of the mixture; the difference is the mutual information of w and z. The mean over finitely many
    z is an unbiased estimate of that upper bound. `semi_implicit_reading` pays for its error.

    >>> semi_implicit_kl(torch.zeros(4, 3), std=1.0, prior_std=1.0)
    tensor(0.)
    """
    squares = in_full(means).square()
    return isotropic_kl(squares.sum((-2, -1)) / means.shape[-2], means.shape[-1], std**2, prior_std**2)


def semi_implicit_reading(means: Float[Tensor, "S *T n"], std: float, prior_std: float, delta: float) -> Reading:
    """An upper bound on the (mean over tasks of the) KL that fails with probability δ over the S draws.

    `means` are S independent draws of G(z), of one task or each of the same T tasks. θ and the noise of adaptation may
    be drawn anew with each z, since the convexity of the KL covers them too. G ends in tanh, so ‖G(z)‖²/n lies in
    [0, 1], and its expectation is below the betting limit with probability 1 − δ. Weights outside [−1, 1] are refused.

    >>> reading = semi_implicit_reading(torch.full((500, 3), 0.1), std=1.0, prior_std=1.0, delta=0.01)
    >>> reading.worth, round(reading.value, 3)
    ('upper bound', 0.03)
    """
    require(0 < std < math.inf, "std", "a number above 0, since without noise the KL is infinite", std)
    require_share(delta, "delta")
    largest = float(means.abs().max())
    require(largest <= 1, "means", "in [−1, 1], as a generator that ends in tanh makes them", largest)
    weights = means.shape[-1]
    limit = upper_limit(means.double().square().flatten(1).mean(1).clamp(max=1), delta)
    return Reading(float(isotropic_kl(weights * limit, weights, std**2, prior_std**2)), "upper bound", failure=delta)


def moment_kl(samples: Float[Tensor, "*K S n"], prior_std: float) -> Float[Tensor, "*K"]:
    """KL[r ‖ N(0, σ²I)] of the Gaussian r with q's means and variances, corrected for the number of samples.

    For a q with a density KL[q ‖ p] = KL[r ‖ p] + KL[q ‖ r]. Here ln r/p is a sum of quadratics in single weights,
    and r matches q's moments. So this is a lower bound on the KL in the population. The plug-in value from S samples is
    biased up, for a Gaussian q by exactly

        n/2 · [ln((S−1)/2) − digamma((S−1)/2)]  +  Σ v/(2Sσ²),

    which is taken off.
    """
    samples = in_full(samples)
    *_, count, weights = samples.shape
    log_bias = moment_log_bias(count, weights)
    if fused_kernels_fit(samples):
        return fused_moment_kl(samples, prior_std, VARIANCE_FLOOR) - log_bias
    # gaussian_kl(mean, v, 0, σ²) − Σ v/(2Sσ²) in few operations, since every step of a task differentiates it twice:
    # v + mean² − v/S is the mean of the squares, and the S−1 that v is divided by goes into the constant.
    squares = samples.square().sum((-2, -1)) / (2 * count * prior_std**2)
    scatter = (samples - samples.mean(-2, keepdim=True)).square().sum(-2) + (count - 1) * VARIANCE_FLOOR
    constant = 0.5 * weights * (math.log((count - 1) * prior_std**2) - 1) - log_bias
    return squares - 0.5 * scatter.log().sum(-1) + constant


@cache
def moment_log_bias(samples: int, weights: int) -> float:
    """n/2 · [ln((S−1)/2) − digamma((S−1)/2)], by which the logarithm of n variances of S samples is biased."""
    half = (samples - 1) / 2
    return 0.5 * weights * (math.log(half) - float(torch.tensor(half, dtype=torch.float64).digamma()))


def moment_reading(samples: Float[Tensor, "S n"], prior_std: float) -> Reading:
    """`moment_kl` as what it is: a lower estimate."""
    return Reading(float(moment_kl(samples.double(), prior_std)), "lower estimate")


def standardise(samples: Float[Tensor, "*K S n"]) -> Float[Tensor, "*K S n"]:
    """Samples with their own means and (unbiased) variances taken out: the rest of q is compared with N(0, I)."""
    samples = in_full(samples)
    centred = samples - samples.mean(-2, keepdim=True)
    variance = centred.square().sum(-2, keepdim=True) / (samples.shape[-2] - 1)  # torch.var is slow on a CPU
    return centred / (variance + VARIANCE_FLOOR).sqrt()


def donsker_varadhan(on_posterior: Float[Tensor, "*K S"], on_prior: Float[Tensor, "*K R"]) -> Float[Tensor, "*K"]:
    """E_q[φ] − ln E_p[e^φ] ≤ KL[q ‖ p], from the critic's values on samples of each (Lemma 1 and Eq. (12)).

    A lower bound in the population only. On samples that φ was trained on it is biased up. No lower bound above
    ln(number of samples) can be had with high confidence (McAllester and Stratos, 2020).

    >>> donsker_varadhan(torch.zeros(4), torch.zeros(4))
    tensor(0.)
    """
    on_posterior, on_prior = in_full(on_posterior), in_full(on_prior)
    return on_posterior.mean(-1) - (on_prior.logsumexp(-1) - math.log(on_prior.shape[-1]))


def critic_reading(on_posterior: Float[Tensor, " S"], on_prior: Float[Tensor, " R"]) -> Reading:
    """`donsker_varadhan` as what it is: a lower estimate, noise where it exceeds ln(m_φ), m_φ the fewer of S and R.

    The critic must not have been trained on these samples: draw them afresh.

    >>> reading = critic_reading(torch.full((512,), 100.0), torch.zeros(512))
    >>> reading.worth, reading.value, round(reading.ceiling, 2), reading.reliable
    ('lower estimate', 100.0, 6.24, False)
    """
    value = float(donsker_varadhan(on_posterior.double(), on_prior.double()))
    return Reading(value, "lower estimate", ceiling=math.log(min(len(on_posterior), len(on_prior))))
