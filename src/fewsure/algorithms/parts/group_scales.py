"""Groups that differ in how far their labels stray: a scale s for each group, one of a grid.

y ~ N(H β, s² V),   s anew for each group with the shares π_s, which come from the training groups

Given n labels whose squared distance from Hβ is d² = (y − Hβ)ᵀ V⁻¹ (y − Hβ), s has the weights

    π_s s⁻ⁿ exp(−d² / 2s²),   normalised

and the predictive density is the mixture of Gaussians whose standard deviations are s times those for s = 1. The mean
does not depend on s. As d² is all that is needed, a group costs no second Cholesky factor.
"""

import torch
from torch import Tensor

from fewsure.types import Mixture

SCALES = tuple(2.0 ** (power / 2) for power in range(-8, 9))
"""From 1/16 to 16, by factors of √2."""
ROUNDS = 200
LEAST = 1e-6
"""The least share of a scale: no group is impossible."""


def scales_like(values: Tensor) -> Tensor:
    """The grid (J,)."""
    return torch.tensor(SCALES, dtype=torch.float64, device=values.device)


def log_weights(log_shares: Tensor, distance: Tensor, rows: Tensor | int) -> Tensor:
    """ln of the weights (…, J) of scales given n rows (…,) at a squared distance d² (…,), not normalised.

    Their sum is the evidence of the rows relative to that for s = 1, times exp(−d²/2).
    """
    scales, count = scales_like(distance), torch.as_tensor(rows).to(distance).unsqueeze(-1)
    return log_shares.double() - count * scales.log() - 0.5 * distance.unsqueeze(-1) / scales.square()


def fit_shares(distances: Tensor, rows: Tensor) -> Tensor:
    """ln π (J,) of the largest likelihood of groups, by expectation and maximisation: d² (G,) and n (G,)."""
    log_shares = torch.zeros(len(SCALES), dtype=torch.float64, device=distances.device).log_softmax(-1)
    for _ in range(ROUNDS):
        shares = log_weights(log_shares, distances, rows).softmax(-1).mean(0)
        log_shares = (shares + LEAST).log().log_softmax(-1)
    return log_shares


def drawn_scales(weights: Tensor, uniform: Tensor) -> Tensor:
    """(S,): a scale for each of S uniform numbers, by the normalised weights (J,)."""
    scales, above = scales_like(weights), uniform.unsqueeze(-1) > weights.cumsum(-1)[:-1]
    return scales[0] + (above * scales.diff()).sum(-1)


def scaled_density(density: Mixture, weights: Tensor) -> Mixture:
    """The mixture over scales, by their normalised weights (J,), of a Gaussian for s = 1."""
    means, stds, function_stds = density.means, density.stds, density.function_stds
    scales = scales_like(means).to(means.dtype)
    own = None if function_stds is None else function_stds * scales
    return Mixture(
        weights.to(means.dtype).expand(means.shape[0], -1), means.expand(-1, len(SCALES)), stds * scales, own
    )
