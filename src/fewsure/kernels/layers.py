"""What follows the matrix product of a fully connected layer, for many networks at once: bias and activation, and back.

z (G, R, N), bias (G, N) → y = act(z + bias);    dy → dz = dy · act′(y) and its sum over the R rows
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

KINDS = {"none": 0, "relu": 1, "tanh": 2}
COLUMNS, ROWS = 128, 32
"""Of the part that a program holds at a time."""
SHARE = 512
"""Rows of a program that adds them up."""
STRIDE = 1024
"""Parameters that a program steps."""


def activate_(z: Tensor, bias: Tensor, kind: str) -> Tensor:
    """act(z + bias), in the place of z."""
    groups, rows, columns = z.shape
    grid = (triton.cdiv(columns, COLUMNS), triton.cdiv(rows, ROWS), groups)
    _activate_kernel[grid](z, bias, rows, columns, bias.stride(0), KIND=KINDS[kind], COLUMNS=COLUMNS, ROWS=ROWS)
    return z


def deactivate(dy: Tensor, y: Tensor, kind: str) -> tuple[Tensor, Tensor]:
    """(dz (G, R, N), its sum over the rows (G, N))."""
    groups, rows, columns = y.shape
    shares = triton.cdiv(rows, SHARE)
    dz = torch.empty_like(y)
    partial = y.new_empty(groups, shares, columns, dtype=torch.float32)
    grid = (triton.cdiv(columns, COLUMNS), shares, groups)
    _deactivate_kernel[grid](
        dy, y, dz, partial, rows, columns, KIND=KINDS[kind], COLUMNS=COLUMNS, ROWS=ROWS, SHARE=SHARE
    )
    return dz, partial.view(groups, columns) if shares == 1 else partial.sum(1)


def step(parameter: Tensor, gradient: Tensor, lr: float) -> tuple[Tensor, Tensor]:
    """(parameter − lr·gradient, the same rounded as the gradient is), of groups (G, N); groups may lie in one place."""
    groups, numbers = parameter.shape
    stepped, rounded = parameter.new_empty(groups, numbers), gradient.new_empty(groups, numbers)
    grid = (triton.cdiv(numbers, STRIDE), groups)
    _step_kernel[grid](
        parameter, gradient, stepped, rounded, lr, numbers, parameter.stride(0), gradient.stride(0), STRIDE=STRIDE
    )
    return stepped, rounded


@triton.jit
def _activate_kernel(
    z, bias, rows, columns, of_bias_group, KIND: tl.constexpr, COLUMNS: tl.constexpr, ROWS: tl.constexpr
):
    group = tl.program_id(2).to(tl.int64)
    column, row = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS), tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    valid = column < columns
    here = (row < rows)[:, None] & valid[None, :]
    places = z + (group * rows + row)[:, None] * columns + column[None, :]
    value = tl.load(places, mask=here, other=0.0).to(tl.float32)
    value += tl.load(bias + group * of_bias_group + column, mask=valid, other=0.0)[None, :]
    if KIND == 1:
        value = tl.where(value < 0, 0.0, value)  # a maximum would take what is no number for 0
    if KIND == 2:
        value = 1 - 2 / (tl.exp(2 * value) + 1)
    tl.store(places, value, mask=here)


@triton.jit
def _deactivate_kernel(
    dy,
    y,
    dz,
    partial,
    rows,
    columns,
    KIND: tl.constexpr,
    COLUMNS: tl.constexpr,
    ROWS: tl.constexpr,
    SHARE: tl.constexpr,
):
    share, group = tl.program_id(1), tl.program_id(2).to(tl.int64)
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    valid = column < columns
    total = tl.zeros((COLUMNS,), tl.float32)
    for start in range(0, tl.minimum(SHARE, rows - share * SHARE), ROWS):
        row = share * SHARE + start + tl.arange(0, ROWS)
        here = (row < rows)[:, None] & valid[None, :]
        places = (group * rows + row)[:, None] * columns + column[None, :]
        gradient = tl.load(dy + places, mask=here, other=0.0).to(tl.float32)
        if KIND == 1:
            gradient = tl.where(tl.load(y + places, mask=here, other=0.0) > 0, gradient, 0.0)
        if KIND == 2:
            value = tl.load(y + places, mask=here, other=0.0).to(tl.float32)
            gradient *= 1 - value * value
        tl.store(dz + places, gradient, mask=here)
        total += tl.sum(gradient, 0)
    tl.store(partial + (group * tl.num_programs(1) + share) * columns + column, total, mask=valid)


@triton.jit
def _step_kernel(
    parameter, gradient, stepped, rounded, lr, numbers, of_parameter_group, of_gradient_group, STRIDE: tl.constexpr
):
    group = tl.program_id(1).to(tl.int64)
    place = tl.program_id(0) * STRIDE + tl.arange(0, STRIDE)
    here = place < numbers
    value = tl.load(parameter + group * of_parameter_group + place, mask=here)
    value -= lr * tl.load(gradient + group * of_gradient_group + place, mask=here).to(tl.float32)
    tl.store(stepped + group * numbers + place, value, mask=here)
    tl.store(rounded + group * numbers + place, value, mask=here)
