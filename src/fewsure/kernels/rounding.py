"""Steps of large matrices whose gradients were rounded to bfloat16: one pass writes the matrix and its rounded copy."""

from fewsure.core.gradient import take_step
from fewsure.kernels.fused import fused_kernels_fit
from fewsure.kernels.fused import step as fused_step
from fewsure.types import Params

ROUNDED = " rounded"
"""Behind the name of a parameter: the same, rounded as the gradient of the last step was."""


def take_rounded_step(params: Params, gradient: Params, lr: float) -> Params:
    """`take_step`; where a rounded gradient moves a full parameter, its rounded copy lies beside it."""
    fused = {
        name
        for name, value in gradient.items()
        if value.dtype != params[name].dtype and fused_kernels_fit(params[name])
    }
    plain = {name: value for name, value in gradient.items() if name not in fused}
    stepped = take_step(without_rounded(params), plain, lr)
    for name in fused:
        stepped[name], stepped[name + ROUNDED] = fused_step(params[name], gradient[name], lr)
    return stepped


def without_rounded(params: Params) -> Params:
    """Parameters without their rounded copies."""
    return {name: value for name, value in params.items() if not name.endswith(ROUNDED)}
