"""Functions drawn from a Gaussian process: random sines, moved so that they agree with the labels.

prior, with frequencies ω_r from the kernel's spectrum (Rahimi and Recht, 2007) and a_r, b_r ~ N(0, 1):
    f(x) = s/√R Σ_r a_r cos(ω_r·x) + b_r sin(ω_r·x)
posterior, by Matheron's rule (Wilson and others, 2020, "Efficiently sampling functions from GP posteriors"):
    f(x) + k(x, X) C⁻¹ (y − m(X) − f(X) − ε),   ε ~ N(0, σ² I)

Each function has frequencies of its own. So the mean and the covariance over functions are exact for any R. A function
is known at every x before the questions are. So questions may come in any number of batches.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from fewsure.algorithms.parts.linear_gaussian import Conditioned
from fewsure.types import Draw, Noise, Params

SINES = 32
"""R."""
DEGREES = {"exponential": 1, "matern32": 3, "matern52": 5}
"""The spectrum of a Matérn kernel is Student's t, with 2ν degrees of freedom."""


def function_draws(names: Sequence[str], width: int, samples: int, support: int) -> dict[str, Draw]:
    """The random numbers of functions of `width` inputs, given so many labels."""
    draws = {"labels": Draw((samples, support))}
    for name in names:
        if name in ("constant", "linear"):
            draws[f"{name}.weights"] = Draw((samples, width if name == "linear" else 1))
            continue
        draws[f"{name}.weights"] = Draw((samples, 2, SINES))
        draws[f"{name}.frequency"] = Draw((samples, SINES, 2 * width if name == "periodic" else width))
        if name in DEGREES:
            draws[f"{name}.spread"] = Draw((samples, SINES, DEGREES[name]))
    return draws


def prior_functions(names: Sequence[str], params: Params, x: Tensor, noise: Noise) -> Tensor:
    """(S, N), functions of the sum of kernels with mean 0, at inputs (N, D) in double precision."""
    logs = {name: value.to(x) for name, value in params.items()}
    total = x.new_zeros(())
    for name in names:
        std, weights = logs[f"{name}.log_std"].exp(), noise[f"{name}.weights"].to(x)
        if name == "constant":
            total = total + std * weights.expand(-1, x.shape[0])
        elif name == "linear":
            total = total + weights @ (std * x).mT
        else:
            angle = _frequencies(name, noise, x) @ _seen(name, logs, x).mT
            cosines, sines = weights.unsqueeze(2).unbind(1)
            total = total + std / math.sqrt(SINES) * (cosines @ angle.cos() + sines @ angle.sin()).squeeze(1)
    return total


def posterior_functions(conditioned: Conditioned, cross: Tensor, prior: Tensor, labels: Tensor) -> Tensor:
    """(S, N), less m(x), from k(x, X) (N, n), and f(x) (S, N) and f(X) + ε (S, n) of prior functions."""
    imagined = labels @ conditioned.root.mT @ conditioned.root
    return prior + (conditioned.weights.mT - imagined) @ cross.mT


def _seen(name: str, logs: Params, x: Tensor) -> Tensor:
    """The inputs in lengths. A periodic kernel is the rbf kernel of a point on a circle."""
    length = logs[f"{name}.log_length"].exp()
    if name != "periodic":
        return x / length
    angle = 2 * math.pi * x / logs["periodic.log_period"].exp()
    return torch.cat([angle.cos() / length, angle.sin() / length], dim=-1)


def _frequencies(name: str, noise: Noise, like: Tensor) -> Tensor:
    """ω (S, R, D)."""
    frequency = noise[f"{name}.frequency"].to(like)
    if name not in DEGREES:
        return frequency
    chi_square = noise[f"{name}.spread"].to(like).square().sum(-1, keepdim=True)
    return frequency * (DEGREES[name] / chi_square).sqrt()
