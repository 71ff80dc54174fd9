"""Linear-Gaussian models in closed form, for one task: y = f(x) + noise with a Gaussian prior on f, or on its weights.

function space, f ~ GP(m, k), K = k(X, X), C = K + σ² I = L Lᵀ:
    posterior mean         m(x) + k(x, X) C⁻¹ (y − m(X))
    posterior covariance   k(x, x′) − k(x, X) C⁻¹ k(X, x′)
    evidence               ln N(y; m(X), C)
weight space, f(x) = φ(x)·w, w ~ N(μ, diag s²), B = Φ diag(s) / σ, I + Bᵀ B = R Rᵀ:
    posterior mean         μ + diag(s) (R Rᵀ)⁻¹ Bᵀ (y − Φ μ) / σ
    posterior covariance   diag(s) (R Rᵀ)⁻¹ diag(s)

Numbers are in double precision, whatever the precision of training. A matrix that is not positive definite gives NaN,
and nothing waits for the device. No formula divides by s, so a weight with s = 0 keeps its mean.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from fewsure.types import Mixture


class Conditioned(NamedTuple):
    """A Gaussian process given n labels."""

    weights: Tensor
    """(n, 1), or (n, C) of C functions: C⁻¹ (y − m(X))."""
    root: Tensor
    """(n, n): L⁻¹."""


class Weights(NamedTuple):
    """N(mean, root rootᵀ), a Gaussian on P weights."""

    mean: Tensor
    """(P, 1)."""
    root: Tensor
    """(P, P)."""


def cholesky(matrix: Tensor) -> Tensor:
    """L with L Lᵀ = matrix; NaN if there is none."""
    factor, failed = torch.linalg.cholesky_ex(matrix)
    return torch.where(failed.unsqueeze(-1).unsqueeze(-1) == 0, factor, torch.nan)


def add_noise(covariance: Tensor, noise_std: Tensor, known: Tensor | None = None) -> Tensor:
    """C = K + σ² I. Where `known` (n,) is false, a row and its label are left out: the row of C is that of I."""
    identity = torch.eye(len(covariance), dtype=covariance.dtype, device=covariance.device)
    if known is None:
        return covariance + noise_std.square() * identity
    both = known.unsqueeze(-1) * known
    return covariance * both + torch.where(known, noise_std.square(), 1.0).unsqueeze(-1) * identity


def condition(covariance: Tensor, residual: Tensor, noise_std: Tensor) -> Conditioned:
    """Given labels whose residuals y − m(X) are (n, C), of C functions, with K (n, n) at their inputs."""
    factor = cholesky(add_noise(covariance, noise_std))
    root = torch.linalg.solve_triangular(factor, torch.eye(len(factor)).to(factor), upper=False)
    return Conditioned(root.mT @ (root @ residual), root)


def left_out(conditioned: Conditioned) -> tuple[Tensor, Tensor]:
    """How far each label is from its mean given the others, and its variance given them, noise included: (n, 1) each.

    With C⁻¹ these are [C⁻¹ (y − m)]_i / [C⁻¹]_ii and 1 / [C⁻¹]_ii.
    """
    variance = 1 / conditioned.root.square().sum(0).unsqueeze(-1)
    return conditioned.weights * variance, variance


def posterior_mean(conditioned: Conditioned, cross: Tensor) -> Tensor:
    """(N, 1), or (N, C), less m(x), from k(x, X) (N, n)."""
    return cross @ conditioned.weights


def posterior_variance(conditioned: Conditioned, cross: Tensor, prior: Tensor) -> Tensor:
    """(N, 1) of f at each x, from k(x, X) (N, n) and k(x, x) (N,)."""
    explained = (cross @ conditioned.root.mT).square().sum(-1)
    return (prior - explained).clamp(min=0).unsqueeze(-1)


def posterior_covariance(conditioned: Conditioned, cross: Tensor, prior: Tensor) -> Tensor:
    """(N, N) of f, from k(x, X) (N, n) and k(x, x′) (N, N)."""
    explained = cross @ conditioned.root.mT
    return prior - explained @ explained.mT


def log_evidence(covariance: Tensor, residual: Tensor, noise_std: Tensor, known: Tensor | None = None) -> Tensor:
    """ln N(y; m(X), K + σ² I) from the residuals y − m(X) (n, C), of all labels or of the `known` ones (n,).

    For C functions with one kernel it is the sum of their evidences.
    """
    factor = cholesky(add_noise(covariance, noise_std, known))
    residual = residual if known is None else residual * known.unsqueeze(-1)
    whitened = torch.linalg.solve_triangular(factor, residual, upper=False)
    count = len(residual) if known is None else known.sum()
    constant = count * math.log(2 * math.pi)
    log_root = factor.diagonal(dim1=-2, dim2=-1).log().sum(-1)
    evidence: Tensor = -0.5 * whitened.square().sum() - residual.shape[1] * (0.5 * constant + log_root)
    return evidence


def condition_weights(features: Tensor, y: Tensor, mean: Tensor, std: Tensor, noise_std: Tensor) -> Weights:
    """The posterior of weights with prior N(mean (P, 1), diag std²), from Φ (n, P) and y (n, 1)."""
    scaled = features * std / noise_std
    factor = cholesky(scaled.mT @ scaled + torch.eye(len(std)).to(scaled))
    root = torch.linalg.solve_triangular(factor.mT, torch.diag(std), upper=True, left=False)
    # diag(s) R⁻ᵀ: its product with its transpose is the covariance.
    explained = scaled.mT @ (y - features @ mean) / noise_std
    gain = torch.cholesky_solve(explained, factor)
    return Weights(mean + std.unsqueeze(-1) * gain, root)


def leave_one_out(covariance: Tensor, residual: Tensor, noise_std: Tensor) -> Tensor:
    """The prediction of each residual y − m(X) from the n − 1 others: (n, C) from K (n, n) and residuals (n, C).

    r − C⁻¹ r / diag C⁻¹ (Rasmussen and Williams, 2006, Eq. 5.12): one factor for all.
    """
    inverse = torch.cholesky_inverse(cholesky(add_noise(covariance, noise_std)))
    return residual - inverse @ residual / inverse.diagonal(dim1=-2, dim2=-1).unsqueeze(-1)


def label_density(mean: Tensor, variance: Tensor, log_noise_std: Tensor, dtype: torch.dtype) -> Mixture:
    """N(mean, variance + σ²) at N points, from the mean and variance (N, 1) of a function."""
    std = (variance + (2 * log_noise_std.double()).exp()).sqrt()
    return Mixture(*(value.to(dtype) for value in (torch.ones_like(mean), mean, std, variance.sqrt())))
