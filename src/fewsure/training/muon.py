"""Muon (Jordan et al., 2024): momentum whose matrix is made orthogonal before it is taken off.

    M ← m M + G,    W ← W − η (0.2 √max(rows, columns) · orthogonal(G + m M) + d W)

The factor gives a step the size that Adam's has (Liu et al., 2025), so that both take one learning rate.
"""

import math

import torch
from torch import Tensor

MOMENTUM = 0.95
COEFFICIENTS = (3.4445, -4.7750, 2.0315)
"""Coefficients of the odd polynomial that drives singular values to about 1."""
ITERATIONS = 5
LIKE_ADAM = 0.2
LEAST_SIDE, MOST_UNEQUAL = 16, 8


def fits(value: Tensor) -> bool:
    """Whether it is a matrix between hidden layers: neither narrow nor far from square."""
    return value.dim() == 2 and min(value.shape) >= LEAST_SIDE and max(value.shape) <= MOST_UNEQUAL * min(value.shape)


def orthogonal(matrix: Tensor) -> Tensor:
    """U Vᵀ of the matrix U S Vᵀ, roughly: singular values from 0.7 to 1.2 (Newton–Schulz iteration).

    >>> values = torch.linalg.svdvals(orthogonal(torch.diag(torch.tensor([1.0, 0.5, 0.1]))))
    >>> bool(values.min() > 0.6), bool(values.max() < 1.3)
    (True, True)
    """
    a, b, c = COEFFICIENTS
    x = matrix if matrix.shape[0] <= matrix.shape[1] else matrix.T
    x = x / (torch.linalg.matrix_norm(x) + 1e-7)
    for _ in range(ITERATIONS):
        gram = x @ x.T
        x = a * x + (b * gram + c * gram @ gram) @ x
    found: Tensor = x if matrix.shape[0] <= matrix.shape[1] else x.T
    return found


class Muon:
    """The optimiser of hidden matrices, with the interface that `Optimiser` uses of torch's."""

    def __init__(self, leaves: list[Tensor], lr: Tensor, weight_decay: float) -> None:
        self._leaves, self._lr, self._decay = leaves, lr, weight_decay
        self.state: dict[Tensor, dict[str, Tensor]] = {leaf: {} for leaf in leaves}
        self.grad_scale = self.found_inf = torch.zeros(())

    @torch.no_grad()
    def step(self) -> None:
        """One step, divided by `grad_scale`; nothing where `found_inf`."""
        sound = self.found_inf == 0
        for leaf in self._leaves:
            assert leaf.grad is not None
            state = self.state[leaf]
            before = state.setdefault("momentum_buffer", torch.zeros_like(leaf))
            gradient = torch.where(sound, leaf.grad / self.grad_scale, 0)
            momentum = MOMENTUM * before + gradient
            size = LIKE_ADAM * math.sqrt(max(leaf.shape))
            step = size * orthogonal(gradient + MOMENTUM * momentum) + self._decay * leaf
            leaf.sub_(torch.where(sound, self._lr * step, 0))
            before.copy_(torch.where(sound, momentum, before))
