"""A posterior over finitely many classifiers: heads that were fixed before, and the ways to number their cells.

prior:      p(j, π) = 1/(M · C!) for head j of M and a numbering π, which names a cell of the head for each of C classes
posterior:  q(j, π) ∝ p(j, π) exp(−λ m L(j, π)),   L(j, π) = share of errors on the m support examples
            KL[q ‖ p] = Σ q ln q + ln(M · C!)

Everything is exact: there are no draws, and no errors of draws. C! grows fast, so this is for a few classes.
"""

import math
from itertools import permutations
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional


class Gibbs(NamedTuple):
    """The Gibbs posterior of one task."""

    weights: Float[Tensor, "M P"]
    """q(j, π)."""
    kl: Float[Tensor, ""]

    def mean(self, losses: Float[Tensor, "M P"]) -> Float[Tensor, ""]:
        """E_q of a loss of each classifier."""
        return (self.weights * losses).sum()


def numberings(classes: int) -> Int[Tensor, "P C"]:
    """All C! ways to name a cell for each class.

    >>> numberings(2)
    tensor([[0, 1],
            [1, 0]])
    """
    return torch.tensor(list(permutations(range(classes))))


def numbered_errors(cells: Int[Tensor, "M N"], y: Int[Tensor, " N"], classes: int) -> Float[Tensor, "M P"]:
    """The share of errors of each head under each numbering; `cells` are those into which the heads put N examples.

    The classes must have equally many examples.

    >>> numbered_errors(torch.tensor([[0, 0, 1, 1], [1, 1, 1, 0]]), torch.tensor([0, 0, 1, 1]), 2)
    tensor([[0.0000, 1.0000],
            [0.7500, 0.2500]])
    """
    of_class = functional.one_hot(y, classes).to(torch.get_default_dtype())
    in_cell = functional.one_hot(cells, classes).to(of_class.dtype)
    shares = torch.einsum("nc,mnk->mck", of_class, in_cell) / len(y)
    named = functional.one_hot(numberings(classes), classes).to(of_class)
    return 1 - shares.flatten(1) @ named.flatten(1).T


def gibbs_posterior(losses: Float[Tensor, "M P"], strength: float) -> Gibbs:
    """The posterior that weighs losses with λ m = `strength`.

    >>> found = gibbs_posterior(torch.tensor([[0.0, 1.0]]), 0.0)
    >>> found.weights, found.kl
    (tensor([[0.5000, 0.5000]]), tensor(0.))
    """
    log_weights = (-strength * losses).flatten().log_softmax(0).view_as(losses)
    weights = log_weights.exp()
    return Gibbs(weights, (weights * log_weights).sum() + math.log(losses.numel()))
