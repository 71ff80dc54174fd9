"""Gradient steps inside a task, first or second order."""

from collections.abc import Callable

import torch
from torch import Tensor

from fewsure.types import Params


def descend(objective: Callable[[Params], Tensor], params: Params, lr: float, *, first_order: bool) -> Params:
    """One step of gradient descent, params − lr · ∇objective(params).

    First order takes the gradient as a constant: the step then differentiates as the identity, so that the
    meta-gradient is the query gradient at the adapted weights, and nothing of the step itself is recorded.
    """
    at = detach(params) if first_order else params
    gradient = torch.func.grad(objective)(at)
    return {name: value - lr * gradient[name] for name, value in params.items()}


def detach(params: Params) -> Params:
    """The same numbers, through which no gradient flows."""
    return {name: value.detach() for name, value in params.items()}
