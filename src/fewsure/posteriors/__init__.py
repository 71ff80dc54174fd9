"""Families of task-specific posteriors q(w; λ): how to draw a base network's weights from the parameters λ."""

import torch
from torch import Tensor

from fewsure.types import Network, Params


def outputs(network: Network, weights: Params, x: Tensor) -> Tensor:
    """Outputs (S, N, C) of S networks, whose weights are stacked in `weights`, at the same inputs."""
    return torch.func.vmap(network, in_dims=(0, None))(weights, x)


def stack_one(weights: Params) -> Params:
    """A point estimate as a stack of one sample."""
    return {name: value.unsqueeze(0) for name, value in weights.items()}
