"""Models: a base network with the loss of its kind of task, and that loss's smooth stand-in with values in [0, 1]."""

import math

import torch
from torch import Tensor

from fewsure.errors import require
from fewsure.types import Model, Network

SMALLEST_PROBABILITY = 1e-3
"""p_min of the bounded cross-entropy: class probabilities are mixed with the uniform so that none is below it."""


def regression(network: Network, outputs: int = 1) -> Model:
    """Squared error e, and e/(1+e)."""
    return Model(network, squared_error, bounded_squared_error, "regression", outputs)


def classification(network: Network, way: int) -> Model:
    """Cross-entropy −ln p, and −ln max(p, p_min)/ln(1/p_min) with p mixed with the uniform."""
    return Model(network, cross_entropy, bounded_cross_entropy, "classification", way)


def squared_error(output: Tensor, y: Tensor) -> Tensor:
    """Σ (output − y)² over the output's dimensions, one value per example.

    >>> squared_error(torch.tensor([[1.0], [2.0]]), torch.tensor([[1.0], [5.0]]))
    tensor([0., 9.])
    """
    return (output - y).square().sum(-1)


def bounded_squared_error(output: Tensor, y: Tensor) -> Tensor:
    """e/(1+e) for a squared error e: in [0, 1), and with a gradient wherever e > 0.

    >>> bounded_squared_error(torch.tensor([[1.0], [2.0]]), torch.tensor([[1.0], [5.0]]))
    tensor([0.0000, 0.9000])
    """
    error = squared_error(output, y)
    return error / (1 + error)


def gaussian_log_likelihood(mean: Tensor, std: Tensor, y: Tensor) -> Tensor:
    """ln N(y; mean, std²) of S functions (S, N, 1) at N examples: (S, N)."""
    return (-0.5 * ((y - mean) / std).square() - std.log() - 0.5 * math.log(2 * math.pi)).squeeze(-1)


def cross_entropy(output: Tensor, y: Tensor) -> Tensor:
    """−ln p(y) of the softmax of `output`, one value per example."""
    return -output.log_softmax(-1).gather(-1, y.unsqueeze(-1)).squeeze(-1)


def bounded_cross_entropy(output: Tensor, y: Tensor) -> Tensor:
    """−ln p̃(y) / ln(1/p_min), p̃ = (1 − C·p_min)·p + p_min for C classes: in [0, 1] and smooth.

    >>> bounded_cross_entropy(torch.tensor([[0.0, -200.0]]), torch.tensor([1]))
    tensor([1.])
    """
    classes = output.shape[-1]
    require(classes * SMALLEST_PROBABILITY < 1, "classes", f"fewer than {1 / SMALLEST_PROBABILITY:.0f}", classes)
    probability = torch.exp(-cross_entropy(output, y))
    mixed = (1 - classes * SMALLEST_PROBABILITY) * probability + SMALLEST_PROBABILITY
    return mixed.log() / math.log(SMALLEST_PROBABILITY)
