"""Covariance functions of numbers, with a length scale for each input (ARD) or for all, as functions of logarithms.

with d² = Σ ((x − x′) / ℓ)²
    constant       s²                                linear     Σ s_i² x_i x′_i
    rbf            s² exp(−d²/2)                     periodic   s² exp(−2 Σ sin²(π (x − x′)/p) / ℓ²)
    exponential    s² exp(−d)                        matern32   s² (1 + √3 d) exp(−√3 d)
    matern52       s² (1 + √5 d + 5 d²/3) exp(−√5 d)
"""

import math
from collections.abc import Callable, Sequence
from typing import Literal

import torch
from torch import Tensor

from fewsure.types import Params

Kernel = Literal["constant", "linear", "rbf", "exponential", "matern32", "matern52", "periodic"]
LEAST = 1e-20
"""The least d², whose root has a slope."""

STATIONARY: dict[str, Callable[[Tensor], Tensor]] = {
    "rbf": lambda square: torch.exp(-0.5 * square),
    "exponential": lambda square: torch.exp(-_root(square)),
    "matern32": lambda square: _matern(_root(3 * square), 1.0, 0.0),
    "matern52": lambda square: _matern(_root(5 * square), 1.0, 1 / 3),
}
"""k / s² as a function of d²."""


def init_kernels(names: Sequence[str], width: int, *, ard: bool = True) -> Params:
    """The logarithms of a sum of kernels on `width` inputs of unit spread: a wide length scale for each, or for all."""
    params: Params = {}
    scales = width if ard else 1
    for name in names:
        params[f"{name}.log_std"] = torch.zeros(scales) if name == "linear" else torch.zeros(())
        if name in STATIONARY or name == "periodic":
            params[f"{name}.log_length"] = torch.full((scales,), math.log(2 * math.sqrt(width)))
        if name == "periodic":
            params["periodic.log_period"] = torch.zeros(scales)
    return params


def covariance(names: Sequence[str], params: Params, a: Tensor, b: Tensor | None = None) -> Tensor:
    """k(a, b) (N, n) of the sum of kernels at inputs (N, D) and (n, D); k(a, a) without b."""
    logs = {name: value.double() for name, value in params.items()}
    a = a.double()
    other = a if b is None else b.double()
    total = a.new_zeros(a.shape[0], other.shape[0])  # no len(): an exported program knows shapes alone
    for name in names:
        variance = (2 * logs[f"{name}.log_std"]).exp()
        if name == "constant":
            total = total + variance
        elif name == "linear":
            total = total + (a * variance) @ other.mT
        elif name == "periodic":
            total = total + variance * torch.exp(-2 * _periodic_square(logs, a, other))
        else:
            scale = logs[f"{name}.log_length"].exp()
            square = _squared_distances(a / scale, None if b is None else other / scale)
            total = total + variance * STATIONARY[name](square)
    return total


def variances(names: Sequence[str], params: Params, x: Tensor) -> Tensor:
    """k(x, x) (N,) at each input (N, D)."""
    total = x.double().new_zeros(x.shape[0])
    for name in names:
        variance = (2 * params[f"{name}.log_std"].double()).exp()
        total = total + ((x.double().square() * variance).sum(-1) if name == "linear" else variance)
    return total


def _squared_distances(a: Tensor, b: Tensor | None) -> Tensor:
    """(N, n), by a matrix product: inputs of many columns are never subtracted pair by pair."""
    other = a if b is None else b
    square = a.square().sum(-1, keepdim=True) + other.square().sum(-1) - 2 * a @ other.mT
    if b is None:
        square = square * (1 - torch.eye(len(a)).to(a))
    return square.clamp(min=0)


def _periodic_square(logs: Params, a: Tensor, b: Tensor) -> Tensor:
    """Σ sin²(π (x − x′)/p) / ℓ², (N, n)."""
    angle = math.pi * (a.unsqueeze(1) - b) / logs["periodic.log_period"].exp()
    return (angle.sin() / logs["periodic.log_length"].exp()).square().sum(-1)


def _matern(distance: Tensor, first: float, second: float) -> Tensor:
    return (1 + first * distance + second * distance.square()) * torch.exp(-distance)


def _root(square: Tensor) -> Tensor:
    return square.clamp(min=LEAST).sqrt()
