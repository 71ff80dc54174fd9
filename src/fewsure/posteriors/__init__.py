"""Families of task-specific posteriors q(w; λ): how to draw a base network's weights from the parameters λ."""

from torch import Tensor

from fewsure.core.vectorise import better_looped, for_each
from fewsure.types import Network, Params


def outputs(network: Network, weights: Params, x: Tensor) -> Tensor:
    """Outputs (S, N, C) of S networks, whose weights are stacked in `weights`, at the same inputs."""
    loop = better_looped(network, x.device)
    stacked: Tensor = for_each(lambda sample, x: network(sample, x), loop=loop)(weights, x)
    return stacked


def stack_one(weights: Params) -> Params:
    """A point estimate as a stack of one sample."""
    return {name: value.unsqueeze(0) for name, value in weights.items()}
