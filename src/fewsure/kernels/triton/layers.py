"""A fully connected layer after its matrix product, for many networks at once: bias and activation, and back.

z (G, R, N), bias (G, N) → y = act(z + bias);    dy → dz = dy · act′(y) and its sum over the R rows
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

KINDS = {"none": 0, "relu": 1, "tanh": 2}
COLUMNS, ROWS = 64, 32
"""Size of the block that a program holds at a time."""
SHARE, PROGRAMS = 128, 256
"""Rows of a program that adds them up; all of them where there are so many programs without that."""
STRIDE = 1024
"""Parameters that a program steps."""


def activate_(z: Tensor, bias: Tensor, kind: str) -> Tensor:
    """act(z + bias), in the place of z."""
    groups, rows, columns = z.shape
    grid = (triton.cdiv(columns, COLUMNS), triton.cdiv(rows, ROWS), groups)
    _activate_kernel[grid](z, bias, rows, columns, bias.stride(0), KIND=KINDS[kind], COLUMNS=COLUMNS, ROWS=ROWS)
    return z


def deactivate(dy: Tensor, y: Tensor, kind: str, *, sums: bool) -> tuple[Tensor, Tensor]:
    """(dz (G, R, N), its sum over the rows (G, N), if that is wanted)."""
    groups, rows, columns = y.shape
    blocks = triton.cdiv(columns, COLUMNS)
    share = rows if blocks * groups >= PROGRAMS else SHARE
    shares = triton.cdiv(rows, share)
    dz = torch.empty_like(y)
    partial = y.new_empty(groups, shares if sums else 0, columns, dtype=torch.float32)
    _deactivate_kernel[(blocks, shares, groups)](
        dy, y, dz, partial, rows, columns, share, KIND=KINDS[kind], COLUMNS=COLUMNS, ROWS=ROWS, SUMS=sums
    )
    if not sums:
        return dz, partial.view(groups, 0)
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
    z, bias, rows, columns, bias_stride, KIND: tl.constexpr, COLUMNS: tl.constexpr, ROWS: tl.constexpr
):
    group = tl.program_id(2).to(tl.int64)
    column, row = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS), tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    valid = column < columns
    here = (row < rows)[:, None] & valid[None, :]
    places = z + (group * rows + row)[:, None] * columns + column[None, :]
    value = tl.load(places, mask=here, other=0.0).to(tl.float32)
    value += tl.load(bias + group * bias_stride + column, mask=valid, other=0.0)[None, :]
    if KIND == 1:
        value = tl.where(value < 0, 0.0, value)  # a maximum would turn NaN into 0
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
    share_rows,
    KIND: tl.constexpr,
    COLUMNS: tl.constexpr,
    ROWS: tl.constexpr,
    SUMS: tl.constexpr,
):
    share, group = tl.program_id(1), tl.program_id(2).to(tl.int64)
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    valid = column < columns
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    last = tl.minimum(rows, (share + 1) * share_rows)
    for start in range(share * share_rows, last, ROWS):
        row = start + tl.arange(0, ROWS)
        here = (row < last)[:, None] & valid[None, :]
        places = (group * rows + row)[:, None] * columns + column[None, :]
        gradient = tl.load(dy + places, mask=here, other=0.0).to(tl.float32)
        if KIND == 1:
            gradient = tl.where(tl.load(y + places, mask=here, other=0.0) > 0, gradient, 0.0)
        if KIND == 2:
            value = tl.load(y + places, mask=here, other=0.0).to(tl.float32)
            gradient *= 1 - value * value
        tl.store(dz + places, gradient, mask=here)
        total += gradient
    if SUMS:
        at = partial + (group * tl.num_programs(1) + share) * columns + column
        tl.store(at, tl.sum(total, 0), mask=valid)


@triton.jit
def _step_kernel(
    parameter, gradient, stepped, rounded, lr, numbers, parameter_stride, gradient_stride, STRIDE: tl.constexpr
):
    group = tl.program_id(1).to(tl.int64)
    place = tl.program_id(0) * STRIDE + tl.arange(0, STRIDE)
    here = place < numbers
    value = tl.load(parameter + group * parameter_stride + place, mask=here)
    value -= lr * tl.load(gradient + group * gradient_stride + place, mask=here).to(tl.float32)
    tl.store(stepped + group * numbers + place, value, mask=here)
    tl.store(rounded + group * numbers + place, value, mask=here)
