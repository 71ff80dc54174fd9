"""Gradient steps inside a task, first or second order."""

from collections.abc import Callable

import torch
from torch import Tensor

from fewsure.errors import require
from fewsure.types import Params

Objective = Callable[[Params], Tensor]


def descend(
    objective: Objective, params: Params, lr: float, *, first_order: bool, clip_norm: float | None = None
) -> Params:
    """One step of gradient descent, params − lr · ∇objective(params), with the gradient that `gradient_of` returns."""
    gradient = gradient_of(objective, params, first_order=first_order, clip_norm=clip_norm)
    return take_step(params, gradient, lr)


def take_step(params: Params, gradient: Params, lr: float) -> Params:
    """params − lr · gradient, where there is a gradient."""
    return params | {name: torch.add(params[name], value, alpha=-lr) for name, value in gradient.items()}


def gradient_of(objective: Objective, params: Params, *, first_order: bool, clip_norm: float | None = None) -> Params:
    """∇objective(params), scaled down to a norm of `clip_norm` where it is longer.

    First order takes the gradient as a constant. A step along it then differentiates as the identity, and nothing of
    the step is recorded. The meta-gradient is the query gradient at the adapted weights.
    """
    once = first_order and torch._C._functorch.peek_interpreter_stack() is None  # no `vmap` or `grad` is around it
    gradient = _gradient_once(objective, params) if once else _gradient(objective, params, first_order)
    return gradient if clip_norm is None else clip(gradient, clip_norm)


def _gradient(objective: Objective, params: Params, first_order: bool) -> Params:
    gradient: Params = torch.func.grad(objective)(detach(params) if first_order else params)
    return gradient


def _gradient_once(objective: Objective, params: Params) -> Params:
    """The gradient as a constant. `torch.func.grad` would prepare a second derivative, which takes longer."""
    leaves = {name: value.detach().requires_grad_() for name, value in params.items()}
    with torch.enable_grad():
        found = objective(leaves)
    return dict(zip(leaves, torch.autograd.grad(found, list(leaves.values()), materialize_grads=True), strict=True))


def clip(gradient: Params, norm: float, dims: int = 0) -> Params:
    """A gradient, scaled down to `norm` where it is longer; one for each index of `dims` leading dimensions.

    A step can then not run away, however wrong the prediction is that it starts from.

    >>> clip({"w": torch.tensor([3.0, 4.0])}, 1.0)
    {'w': tensor([0.6000, 0.8000])}
    """
    return scale(gradient, clip_scale(squared_norm(gradient, dims), norm))


def squared_norm(gradient: Params, dims: int = 0) -> Tensor:
    """‖gradient‖², one for each index of `dims` leading dimensions."""
    squared: Tensor = sum(value.square().flatten(dims).sum(-1) for value in gradient.values())  # type: ignore[assignment]
    return squared


def clip_scale(squared: Tensor, norm: float) -> Tensor:
    """The factor that takes a gradient of this squared norm down to `norm`: 1 up to there, differentiable at 0."""
    return norm * squared.clamp(min=norm**2).rsqrt()


def scale(gradient: Params, factor: Tensor) -> Params:
    """factor · gradient, in the gradient's types, with a factor for each index of its leading dimensions."""
    return {
        name: (factor.reshape(*factor.shape, *[1] * (value.dim() - factor.dim())) * value).to(value.dtype)
        for name, value in gradient.items()
    }


def require_clip_norm(norm: float | None) -> None:
    """Refuse a limit on the norm of gradients in a task that is not above 0."""
    require(norm is None or norm > 0, "inner_clip_norm", "a number above 0, or none", norm)


def detach(params: Params) -> Params:
    """The same numbers, through which no gradient flows."""
    return {name: value.detach() for name, value in params.items()}
