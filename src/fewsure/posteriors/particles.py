"""The particle posterior: M weight vectors that Stein variational gradient descent moves towards a density.

Liu and Wang, 2016, "Stein variational gradient descent: a general purpose Bayesian inference algorithm":

    φ(w_i) = 1/M Σ_j [ k(w_j, w_i) ∇ ln p(w_j) + ∇_{w_j} k(w_j, w_i) ],      k(w, w′) = exp(−‖w − w′‖² / h)

The first term pulls all particles to high density, the second pushes them apart.
"""

import math

import torch
from jaxtyping import Float
from torch import Tensor

BANDWIDTH_FLOOR = 1e-10
"""The smallest h, so that particles which coincide have a finite kernel."""


def stein_direction(particles: Float[Tensor, "M n"], scores: Float[Tensor, "M n"]) -> Float[Tensor, "M n"]:
    """φ of each particle, from the scores ∇ ln p(w_j); one particle gets its own score.

    ∇_{w_j} k(w_j, w_i) = 2/h · k(w_j, w_i) (w_i − w_j), so both sums over j are products with the kernel matrix.

    >>> stein_direction(torch.ones(1, 2), torch.tensor([[3.0, 4.0]]))
    tensor([[3., 4.]])
    """
    distances = squared_distances(particles)
    h = bandwidth(distances)
    kernel = torch.exp(-distances / h)
    apart = 2 / h * (kernel.sum(1, keepdim=True) * particles - kernel @ particles)
    return (kernel @ scores + apart) / len(particles)


def squared_distances(particles: Float[Tensor, "M n"]) -> Float[Tensor, "M M"]:
    """‖w_i − w_j‖² of all pairs, written as products, which differentiate twice (`torch.cdist` does not).

    Distances do not change with the origin; the particles' mean is one at which little cancels.
    """
    centred = particles - particles.mean(0)
    products = centred @ centred.T
    norms = products.diagonal()
    return (norms.unsqueeze(1) + norms - 2 * products).clamp(min=0)


def bandwidth(distances: Float[Tensor, "M M"]) -> Float[Tensor, ""]:
    """The median heuristic, h = median of the squared distances of distinct particles / ln(M + 1).

    The median pair then has k = 1/(M + 1), so that a particle's neighbours weigh about as much as itself. One particle
    has no pair, and any h gives it the same direction.

    >>> bandwidth(torch.tensor([[0.0, 4.0], [4.0, 0.0]])) * math.log(3)
    tensor(4.)
    """
    count = len(distances)
    if count == 1:
        return distances.new_ones(())
    rows, columns = torch.triu_indices(count, count, offset=1, device=distances.device)
    return (distances[rows, columns].median() / math.log(count + 1)).clamp(min=BANDWIDTH_FLOOR)
