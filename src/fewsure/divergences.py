"""Kullback-Leibler divergences, each with what it is worth: exact, or a lower estimate.

| function | of | worth |
|---|---|---|
| `gaussian_kl` | two Gaussians with diagonal covariance | exact |
| `moment_kl` | samples of any q, to N(0, σ²I) | lower bound in the population; unbiased for a Gaussian q |
| `donsker_varadhan` | samples of q and p under a critic φ | lower bound in the population, if φ saw other samples |

A PAC-Bayes bound made from a lower estimate is itself an estimate, never a guarantee.
"""

import math

import torch
from jaxtyping import Float
from torch import Tensor

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


def moments(samples: Float[Tensor, "S n"]) -> tuple[Float[Tensor, " n"], Float[Tensor, " n"]]:
    """Mean and (unbiased) variance of each weight over the samples."""
    mean = samples.mean(0)
    return mean, (samples - mean).square().sum(0) / (len(samples) - 1) + VARIANCE_FLOOR  # torch.var is slow on a CPU


def moment_kl(samples: Float[Tensor, "S n"], prior_std: float) -> Float[Tensor, ""]:
    """KL[r ‖ N(0, σ²I)] of the Gaussian r with q's means and variances, corrected for the number of samples.

    For a q with a density KL[q ‖ p] = KL[r ‖ p] + KL[q ‖ r], since ln r/p is a sum of quadratics in single weights and
    r matches q's moments; so this is a lower bound on the KL in the population. The plug-in value from S samples is
    biased up, for a Gaussian q by exactly

        n/2 · [ln((S−1)/2) − digamma((S−1)/2)]  +  Σ v/(2Sσ²),

    which is taken off.
    """
    count, weights = samples.shape
    half = (count - 1) / 2
    log_bias = 0.5 * weights * (math.log(half) - float(torch.tensor(half, dtype=torch.float64).digamma()))
    # gaussian_kl(mean, v, 0, σ²) − Σ v/(2Sσ²) in few operations, since every step of a task differentiates it twice:
    # v + mean² − v/S is the mean of the squares, and the S−1 that v is divided by goes into the constant.
    squares = samples.square().sum() / (2 * count * prior_std**2)
    scatter = (samples - samples.mean(0)).square().sum(0) + (count - 1) * VARIANCE_FLOOR
    constant = 0.5 * weights * (math.log((count - 1) * prior_std**2) - 1) - log_bias
    return squares - 0.5 * scatter.log().sum() + constant


def standardise(samples: Float[Tensor, "S n"]) -> Float[Tensor, "S n"]:
    """Samples with their own means and variances taken out: what is left of q is compared with N(0, I)."""
    mean, variance = moments(samples)
    return (samples - mean) / variance.sqrt()


def donsker_varadhan(on_posterior: Float[Tensor, " S"], on_prior: Float[Tensor, " R"]) -> Float[Tensor, ""]:
    """E_q[φ] − ln E_p[e^φ] ≤ KL[q ‖ p], from the critic's values on samples of each (Lemma 1 and Eq. (12)).

    A lower bound in the population only. On samples that φ was trained on it is biased up, and no lower bound above
    ln(number of samples) can be had with high confidence.

    >>> donsker_varadhan(torch.zeros(4), torch.zeros(4))
    tensor(0.)
    """
    return on_posterior.mean() - (on_prior.logsumexp(0) - math.log(on_prior.shape[0]))
