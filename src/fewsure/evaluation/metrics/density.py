"""Predictive densities of a label: mixtures of K Gaussians at each of N points.

A method that has no density of its own predicts with S functions and one noise for all points. Its density is the
mixture of S Gaussians N(f_s(x), noise_std²), each of weight 1/S.
"""

import math

import torch
from jaxtyping import Float
from torch import Tensor
from torch.special import ndtr, ndtri

from fewsure.types import Mixture

BISECTIONS = 60


def around_functions(values: Float[Tensor, "S N"], noise_std: float) -> Mixture:
    """The mixture of Gaussians around the values of S functions.

    >>> around_functions(torch.zeros(2, 1), noise_std=3.0).stds
    tensor([[3., 3.]])
    """
    means = values.T
    return Mixture(torch.full_like(means, 1 / len(values)), means, torch.full_like(means, noise_std))


def mean(density: Mixture) -> Float[Tensor, " N"]:
    """Σ_k w_k m_k."""
    return (density.weights * density.means).sum(-1)


def function_std(density: Mixture) -> Float[Tensor, " N"]:
    """The part of the standard deviation that more examples would remove: between the components, and in each."""
    deviations = (density.means - mean(density).unsqueeze(-1)).square()
    if density.function_stds is not None:
        deviations = deviations + density.function_stds.square()
    return (density.weights * deviations).sum(-1).sqrt()


def noise_std(density: Mixture) -> Float[Tensor, " N"]:
    """The part that they would not remove: the noise on labels."""
    variances = density.stds.square()
    if density.function_stds is not None:
        variances = (variances - density.function_stds.square()).clamp(min=0)
    return (density.weights * variances).sum(-1).sqrt()


def std(density: Mixture) -> Float[Tensor, " N"]:
    """Both parts.

    >>> std(Mixture(torch.tensor([[0.5, 0.5]]), torch.tensor([[-4.0, 4.0]]), torch.tensor([[3.0, 3.0]])))
    tensor([5.])
    """
    return (function_std(density).square() + noise_std(density).square()).sqrt()


def log_density(density: Mixture, y: Float[Tensor, " N"]) -> Float[Tensor, " N"]:
    """ln Σ_k w_k N(y; m_k, s_k²).

    >>> log_density(around_functions(torch.zeros(4, 1), 1.0), torch.zeros(1))
    tensor([-0.9189])
    """
    standardised = (y.unsqueeze(-1) - density.means) / density.stds
    of_components = -0.5 * standardised.square() - density.stds.log() - 0.5 * math.log(2 * math.pi)
    return (density.weights.log() + of_components).logsumexp(-1)


def share_below(density: Mixture, y: Float[Tensor, " N"]) -> Float[Tensor, " N"]:
    """P(label ≤ y) = Σ_k w_k Φ((y − m_k) / s_k)."""
    below: Tensor = ndtr((y.unsqueeze(-1) - density.means) / density.stds)
    return (density.weights * below).sum(-1)


def coverage(density: Mixture, y: Float[Tensor, " N"], share: float) -> Float[Tensor, ""]:
    """The share of labels between the quantiles at (1 − share) / 2 and (1 + share) / 2.

    >>> coverage(around_functions(torch.zeros(1, 2), 1.0), torch.tensor([0.6, 0.7]), 0.5)
    tensor(0.5000)
    """
    below = share_below(density, y)
    return ((below - 0.5).abs() < share / 2).to(y.dtype).mean()


def mean_width(density: Mixture, share: float) -> Float[Tensor, ""]:
    """The mean distance of the same two quantiles.

    >>> mean_width(around_functions(torch.zeros(1, 1), 1.0), 0.9)
    tensor(3.2897)
    """
    return (quantile(density, (1 + share) / 2) - quantile(density, (1 - share) / 2)).mean()


def quantile(density: Mixture, level: float) -> Float[Tensor, " N"]:
    """The value below which a label lies with probability `level`, by bisection where there are components.

    >>> float(quantile(around_functions(torch.zeros(1, 1, dtype=torch.float64), 1.0), 0.975).round(decimals=4))
    1.96
    """
    # No component has less, or more, than `level` beyond these ends.
    reach: Tensor = ndtri(torch.tensor(level, dtype=density.means.dtype))
    ends = density.means + density.stds * reach
    if ends.shape[-1] == 1:
        return ends.squeeze(-1)
    low, high = ends.amin(-1), ends.amax(-1)
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        below = share_below(density, middle) < level
        low, high = torch.where(below, middle, low), torch.where(below, high, middle)
    return (low + high) / 2


def crps(density: Mixture, y: Float[Tensor, " N"]) -> Float[Tensor, " N"]:
    """The continuous ranked probability score E|X − y| − ½ E|X − X′|, in the unit of y; X and X′ from the density.

    >>> crps(around_functions(torch.zeros(1, 1), 1.0), torch.zeros(1))
    tensor([0.2337])
    """
    weights, means, variances = density.weights, density.means, density.stds.square()
    to_label = _mean_distance(means - y.unsqueeze(-1), variances)
    between = _mean_distance(
        means.unsqueeze(-1) - means.unsqueeze(-2), variances.unsqueeze(-1) + variances.unsqueeze(-2)
    )
    pairs = weights.unsqueeze(-1) * weights.unsqueeze(-2)
    return (weights * to_label).sum(-1) - 0.5 * (pairs * between).sum((-1, -2))


def _mean_distance(mean: Tensor, variance: Tensor) -> Tensor:
    """E|X| of X ~ N(mean, variance)."""
    std = variance.sqrt()
    ratio = mean / std
    below: Tensor = ndtr(ratio)
    return mean * (2 * below - 1) + 2 * std * torch.exp(-0.5 * ratio.square()) / math.sqrt(2 * math.pi)
