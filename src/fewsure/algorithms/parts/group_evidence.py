"""The evidence of whole training groups for the few numbers of a Gaussian prior, and where it is largest.

A group's labels are y ~ N(H β, V): H holds the columns of a mean that all groups share. V depends on spreads, length
scales and noise. β is the generalised least squares estimate for these: the evidence is a function of them alone.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils import _pytree as pytree

from fewsure.algorithms.parts.linear_gaussian import add_noise, cholesky
from fewsure.core.vectorise import for_each
from fewsure.types import Params, Parts

LOG_BOUNDS = (math.log(1e-4), math.log(1e4))
"""Logarithms of standard deviations and length scales stay within these, where data say nothing of them."""
JITTER = 1e-10
"""By which columns that are sums of others are told apart, relative to the mean square of all columns."""

TOLERANCE = 1e-7
"""L-BFGS ends where a step gains less, in nats per row."""


class Statistics(NamedTuple):
    """All that a linear model must know of a group's n rows: features Φ (n, P) and labels y (n, 1)."""

    moments: Tensor
    """[Φ y]ᵀ [Φ y] (P + 1, P + 1)."""
    rows: Tensor
    """n ()."""


class Whitened(NamedTuple):
    """All that the evidence of a group depends on."""

    moments: Tensor
    """[H y]ᵀ V⁻¹ [H y] (M + 1, M + 1)."""
    log_determinant: Tensor
    """ln det V ()."""
    rows: Tensor
    """n ()."""


def statistics(features: Tensor, y: Tensor) -> Statistics:
    """The statistics of one group."""
    both = torch.cat([features, y], dim=-1)
    return Statistics(both.mT @ both, torch.tensor(float(len(y))).to(both))


def whitened_statistics(group: Statistics, std: Tensor, noise_std: Tensor, means: int) -> Whitened:
    """With V = Φ diag(std²) Φᵀ + σ² I, and the first `means` columns of Φ as H."""
    spread, noise = std.unsqueeze(-1), noise_std.square()
    scaled = spread * group.moments[:-1] / noise  # diag(std) Φᵀ [Φ y] / σ²
    factor = cholesky(scaled[:, :-1] * std + torch.eye(len(std)).to(std))
    explained = scaled.mT @ torch.cholesky_solve(scaled, factor)
    moments = group.moments / noise - explained
    kept = [*range(means), len(std)]
    log_determinant = group.rows * noise.log() + 2 * factor.diagonal(dim1=-2, dim2=-1).log().sum(-1)
    return Whitened(moments[kept][:, kept], log_determinant, group.rows)


def whitened_rows(covariance: Tensor, noise_std: Tensor, columns: Tensor, y: Tensor, known: Tensor) -> Whitened:
    """With V = K + σ² I, of the rows that are `known` (n,), and H the columns (n, M)."""
    factor = cholesky(add_noise(covariance, noise_std, known))
    rows = torch.cat([columns, y], dim=-1) * known.unsqueeze(-1)
    whitened = torch.linalg.solve_triangular(factor, rows, upper=False)
    log_determinant = 2 * factor.diagonal(dim1=-2, dim2=-1).log().sum(-1)
    return Whitened(whitened.mT @ whitened, log_determinant, known.sum())


def best_mean(moments: Tensor) -> tuple[Tensor, Tensor]:
    """(β (M, 1), ln det HᵀV⁻¹H) from the moments of all groups; columns may be sums of others, or never vary."""
    gram, cross = moments[:-1, :-1], moments[:-1, -1:]
    factor = cholesky(gram + JITTER * gram.diagonal().mean() * torch.eye(len(gram)).to(gram))
    return torch.cholesky_solve(cross, factor), 2 * factor.diagonal().log().sum()


def fit_evidence(
    whiten: Callable[[Any, Parts], Whitened], groups: Any, start: Parts, *, restricted: bool
) -> tuple[Params, Parts]:
    """({"mean": β (M,)}, the logarithms) of the largest evidence of groups, which are stacked; `whiten` sees one group.

    The restricted evidence has β integrated out.
    """
    first = pytree.tree_map(torch.Tensor.detach, start)

    def total(logarithms: Parts) -> Whitened:
        return Whitened(*(value.sum(0) for value in for_each(whiten)(groups, logarithms)))

    def objective(logarithms: Parts) -> Tensor:
        whitened = total(logarithms)
        mean, log_determinant = best_mean(whitened.moments)
        # The evidence is stationary in β, so that its gradient does not pass through β.
        residual = torch.cat([-mean.detach(), torch.ones_like(mean[:1])])
        distance = (residual.mT @ whitened.moments @ residual).squeeze()
        negative: Tensor = distance + whitened.log_determinant + restricted * log_determinant
        return 0.5 * negative / whitened.rows

    found = minimise(objective, first)
    mean, _ = best_mean(total(found).moments)
    like: Any = next(iter(pytree.tree_leaves(start)))
    return {"mean": mean.squeeze(-1).to(like)}, pytree.tree_map(lambda value: value.to(like), found)


def group_distances(
    whiten: Callable[[Any, Parts], Whitened], groups: Any, mean: Tensor, logarithms: Parts
) -> tuple[Tensor, Tensor]:
    """(d² = (y − H β)ᵀ V⁻¹ (y − H β), n) (G,) of groups, which are stacked."""
    double = pytree.tree_map(torch.Tensor.double, logarithms)
    whitened = for_each(whiten)(groups, double)
    residual = torch.cat([-mean.double(), mean.new_ones(1).double()])
    return residual @ whitened.moments @ residual, whitened.rows


def minimise(loss: Callable[[Parts], Tensor], start: Parts, *, steps: int = 200) -> Parts:
    """Where a function of logarithms is smallest, by L-BFGS in double precision, within `LOG_BOUNDS`."""
    leaves, spec = pytree.tree_flatten(start)
    sizes = [leaf.numel() for leaf in leaves]

    def parts(flat: Tensor) -> Parts:
        pieces = torch.split(flat, sizes)
        shaped = [piece.reshape(leaf.shape) for piece, leaf in zip(pieces, leaves, strict=True)]
        unflattened: Parts = pytree.tree_unflatten(shaped, spec)
        return unflattened

    def value_and_gradient(numbers: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        flat = torch.from_numpy(numbers).to(leaves[0].device).requires_grad_()
        value = loss(parts(flat))
        (gradient,) = torch.autograd.grad(value, flat)
        if not bool(value.isfinite() & gradient.isfinite().all()):
            return math.inf, np.zeros_like(numbers)  # the line search turns back
        return float(value.detach()), gradient.cpu().numpy()

    from scipy.optimize import minimize  # half a second, which methods without a fit need not wait for

    flat = torch.cat([leaf.double().flatten() for leaf in leaves])
    found = minimize(
        value_and_gradient,
        flat.cpu().numpy(),
        jac=True,
        method="L-BFGS-B",
        bounds=[LOG_BOUNDS] * len(flat),
        options={"maxiter": steps, "ftol": TOLERANCE},
    )
    return parts(torch.from_numpy(found.x).to(flat.device))
