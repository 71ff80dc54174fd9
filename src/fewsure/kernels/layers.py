"""What follows the matrix product of a fully connected layer, for many networks at once: bias and activation, and back.

z (G, R, N), bias (G, N) → y = act(z + bias);    dy → dz = dy · act′(y) and its sum over the R rows
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

KINDS = {"none": 0, "relu": 1, "tanh": 2}
COLUMNS, ROWS = 64, 32
"""Of the part that a program holds at a time."""
SHARE = 128
"""Rows of a program that adds them up."""


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
    for start in tl.static_range(0, SHARE, ROWS):
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
