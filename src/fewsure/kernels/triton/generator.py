"""Behind the generator's last layer, for many tasks at once: factors, bias, tanh, moments, and the way back.

mapped (G, S, N) = h W of the groups (tasks), S samples each; columns beyond n are padding
y = tanh(mapped + bias + inner·right)                 inner (G, S, r), the first r rows of right (G, R, N)
KL of the samples, its gradient δ before tanh         as in `fewsure.kernels.triton.moments`

A program has all samples of some columns, and passes over them twice: for their moments, and for δ. The gradient of an
objective is c·δ, where c is its derivative in the KL. The rows of the first k samples are returned, so their own
gradient is added. No pass is spent on c: a row keeps its δ beside a scale, which is c, or 1 for those few rows.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

ELEMENTS = 4096
"""Most numbers that a program holds."""
MOST_COLUMNS = 1024
"""Most columns of a program: several programs for each multiprocessor, however few the samples."""
ROWS, WARPS = 16, 4
"""Samples that a program takes at a time, and its warps."""
FEW = 128
"""Up to so many products of samples and factors, a program adds them up one by one; beyond, a matrix product does."""


def tanh_samples(
    mapped: Tensor,
    bias: Tensor,
    inner: Tensor | None,
    right: Tensor | None,
    fit: int,
    weights: int,
    prior_std: float | None,
    floor: float,
    store: Tensor | None,
    first: int,
) -> tuple[Tensor, Tensor | None, Tensor]:
    """(the first `fit` samples (G, fit, n), the KL (G,), the sum of δ over the other samples (G, N)).

    With a KL, δ takes the place of `mapped`, and is written into the rows of `store` (G, R, N) from `first` on too.
    """
    groups, samples, columns = mapped.shape
    rank = 0 if inner is None else inner.shape[2]
    if inner is not None and right is not None and samples * rank > FEW:
        mapped.baddbmm_(inner, right[:, :rank])
        rank = 0
    rows = min(ROWS, triton.next_power_of_2(samples))
    block = max(16, min(MOST_COLUMNS, ELEMENTS // (2 * rows)))
    blocks = triton.cdiv(columns, block)
    fitted, grad_bias = bias.new_empty(groups, fit, weights), bias.new_empty(groups, columns)
    partial = bias.new_empty(groups, blocks)
    _tanh_samples_kernel[(blocks, groups)](
        mapped,
        bias,
        mapped if inner is None else inner,
        mapped if right is None else right,
        fitted,
        partial,
        grad_bias,
        mapped if store is None else store,
        samples,
        weights,
        columns,
        fit,
        rank,
        bias.stride(0),
        0 if right is None else right.stride(0),
        0 if store is None else store.stride(0),
        first,
        1.0 if prior_std is None else prior_std**2,
        floor,
        ROWS=rows,
        COLUMNS=block,
        KL=prior_std is not None,
        FACTORS=rank > 0,
        STORE=store is not None,
        num_warps=WARPS,
    )
    return fitted, None if prior_std is None else partial.sum(1), grad_bias


def add_fit_gradient(
    grad_fit: Tensor,
    grad_kl: Tensor | None,
    fit: Tensor,
    grad_bias: Tensor,
    delta: Tensor,
    store: Tensor | None,
    first: int,
    right: Tensor | None,
) -> tuple[Tensor, Tensor | None]:
    """Let the first k rows of δ, and those of `store` from `first` on, be the whole gradient of the samples handed out.

    Returns the gradient of the bias (G, N), and the products of those rows with the rows of `right` (G, k, r). These
    products exist only if the rows are few.
    """
    groups, count, weights = fit.shape
    columns = delta.shape[2]
    block = max(16, min(MOST_COLUMNS, ELEMENTS // triton.next_power_of_2(count)))
    blocks = triton.cdiv(columns, block)
    rank = 0 if right is None else right.shape[1]
    whole, partial = grad_bias.new_empty(groups, columns), grad_bias.new_empty(groups, blocks, count, rank)
    _add_fit_gradient_kernel[(blocks, groups)](
        grad_fit,
        fit if grad_kl is None else grad_kl,
        fit,
        grad_bias,
        whole,
        delta,
        delta if store is None else store,
        delta if right is None else right,
        partial,
        delta.shape[1],
        weights,
        columns,
        count,
        rank,
        0 if store is None else store.stride(0),
        first,
        0 if right is None else right.stride(0),
        SAMPLES=triton.next_power_of_2(count),
        COLUMNS=block,
        KL=grad_kl is not None,
        FACTORS=right is not None,
        STORE=store is not None,
    )
    return whole, None if right is None else partial.sum(1)


def scale_rows(
    grad_hidden: Tensor, grad_factors: Tensor | None, hidden: Tensor, grad_kl: Tensor, count: int
) -> tuple[Tensor, Tensor]:
    """((grad_hidden + grad_factors)·scale, hidden·scale), (G, S, K): scale is 1 for `count` samples, c for the rest."""
    groups, samples, columns = hidden.shape
    scaled, rows = torch.empty_like(hidden), torch.empty_like(hidden)
    block = triton.next_power_of_2(columns)
    _scale_rows_kernel[(samples, groups)](
        grad_hidden,
        grad_hidden if grad_factors is None else grad_factors,
        hidden,
        grad_kl,
        scaled,
        rows,
        columns,
        count,
        COLUMNS=block,
        FACTORS=grad_factors is not None,
    )
    return scaled, rows


def start(mean: Tensor, shift: Tensor, scale: float, padding: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """(mean + scale·shift of matrices (K, N), with columns of zeros behind; ‖mean‖²)."""
    rows, columns = mean.shape
    padded = mean.new_empty(rows, columns + padding, dtype=dtype)
    blocks = triton.cdiv(columns + padding, MOST_COLUMNS)
    partial = mean.new_empty(rows, blocks)
    sizes = (columns, columns + padding)
    _start_kernel[(blocks, rows)](mean, shift, padded, partial, scale, *sizes, COLUMNS=MOST_COLUMNS)
    return padded, partial.sum()


def grad_start(grad_padded: Tensor, mean: Tensor, grad_squares: Tensor) -> Tensor:
    """The gradient of the mean (K, N), from those of the padded matrix and of ‖mean‖²."""
    rows, columns = mean.shape
    found = torch.empty_like(mean)
    grid = (triton.cdiv(columns, MOST_COLUMNS), rows)
    _grad_start_kernel[grid](
        grad_padded, mean, grad_squares, found, columns, grad_padded.stride(0), COLUMNS=MOST_COLUMNS
    )
    return found


@triton.jit
def _tanh_samples_kernel(
    mapped,
    bias,
    inner,
    right,
    fitted,
    partial,
    grad_bias,
    store,
    samples,
    weights,
    columns,
    fit,
    rank,
    bias_stride,
    right_stride,
    store_stride,
    first,
    prior,
    floor,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    KL: tl.constexpr,
    FACTORS: tl.constexpr,
    STORE: tl.constexpr,
):
    block, group = tl.program_id(0), tl.program_id(1).to(tl.int64)
    column = block * COLUMNS + tl.arange(0, COLUMNS)
    valid, inside = column < weights, column < columns
    mapped += group * samples * columns
    inner += group * samples * rank
    right += group * right_stride
    fitted += group * fit * weights
    store += group * store_stride + first * columns
    offset = tl.load(bias + group * bias_stride + column, mask=valid, other=0.0)
    if KL:
        # Moments around the first sample, which is as near to their mean as the others: no digits are lost.
        centre = _samples(mapped, offset, inner, right, 0, 1, columns, column, valid, rank, 1, FACTORS)
        total = tl.zeros((ROWS, COLUMNS), tl.float32)
        squares = tl.zeros((ROWS, COLUMNS), tl.float32)
        for start in range(0, samples, ROWS):
            y = _samples(mapped, offset, inner, right, start, samples, columns, column, valid, rank, ROWS, FACTORS)
            here = ((start + tl.arange(0, ROWS)) < samples)[:, None] & valid[None, :]
            away = tl.where(here, y - centre, 0.0)
            total += away
            squares += away * away
        shift = tl.sum(total, 0) / samples
        v = (tl.sum(squares, 0) - samples * shift * shift) / (samples - 1)
        v = tl.where(v > 0, v, v * 0.0) + floor  # NaN stays NaN
        m = tl.sum(centre, 0) + shift
        term = 0.5 * ((v + m * m) / prior - 1 - tl.log(v / prior)) - v / (2 * samples * prior)
        tl.store(partial + group * tl.num_programs(0) + block, tl.sum(tl.where(valid, term, 0.0), 0))
        slope = (1 / prior - 1 / v - 1 / (samples * prior)) / (samples - 1)
        level = m / (samples * prior)
        others = tl.zeros((ROWS, COLUMNS), tl.float32)
        tl.debug_barrier()  # all have read the first sample before one writes over it
    for start in range(0, samples if KL else fit, ROWS):
        row = start + tl.arange(0, ROWS)
        y = _samples(mapped, offset, inner, right, start, samples, columns, column, valid, rank, ROWS, FACTORS)
        handed_out = (row < fit)[:, None]
        tl.store(fitted + row[:, None] * weights + column[None, :], y, mask=handed_out & valid[None, :])
        if KL:
            delta = (level[None, :] + (y - m[None, :]) * slope[None, :]) * (1 - y * y)
            delta = tl.where(valid[None, :], delta, 0.0)
            at = row[:, None] * columns + column[None, :]
            here = (row < samples)[:, None] & inside[None, :]
            tl.store(mapped + at, delta, mask=here)
            if STORE:
                tl.store(store + at, delta, mask=here)
            others += tl.where(handed_out | (row >= samples)[:, None], 0.0, delta)
    if KL:
        tl.store(grad_bias + group * columns + column, tl.sum(others, 0), mask=inside)


@triton.jit
def _samples(
    mapped,
    offset,
    inner,
    right,
    start,
    samples,
    columns,
    column,
    valid,
    rank,
    ROWS: tl.constexpr,
    FACTORS: tl.constexpr,
):
    """tanh(mapped + bias + inner·right) of some samples and columns; 0 outside."""
    row = start + tl.arange(0, ROWS)
    sampled = row < samples
    here = sampled[:, None] & valid[None, :]
    value = tl.load(mapped + row[:, None] * columns + column[None, :], mask=here, other=0.0).to(tl.float32)
    value += offset[None, :]
    if FACTORS:
        for factor in range(rank):
            share = tl.load(inner + row * rank + factor, mask=sampled, other=0.0).to(tl.float32)
            line = tl.load(right + factor * columns + column, mask=valid, other=0.0).to(tl.float32)
            value += share[:, None] * line[None, :]
    root = tl.rsqrt(tl.exp(2 * value) + 1)  # tanh is 1 − 2 / (e²ᵛ + 1), and a division is slow
    return tl.where(here, 1 - 2 * root * root, 0.0)


@triton.jit
def _add_fit_gradient_kernel(
    grad_fit,
    grad_kl,
    fitted,
    grad_bias,
    whole,
    delta,
    store,
    right,
    partial,
    samples,
    weights,
    columns,
    fit,
    rank,
    store_stride,
    first,
    right_stride,
    SAMPLES: tl.constexpr,
    COLUMNS: tl.constexpr,
    KL: tl.constexpr,
    FACTORS: tl.constexpr,
    STORE: tl.constexpr,
):
    block, group = tl.program_id(0), tl.program_id(1).to(tl.int64)
    column, row = block * COLUMNS + tl.arange(0, COLUMNS), tl.arange(0, SAMPLES)
    inside = column < columns
    fits = (row < fit)[:, None] & (column < weights)[None, :]
    at = (group * fit + row)[:, None] * weights + column[None, :]
    y = tl.load(fitted + at, mask=fits, other=0.0)
    total = tl.load(grad_fit + at, mask=fits, other=0.0) * (1 - y * y)
    places = delta + (group * samples + row)[:, None] * columns + column[None, :]
    bias = tl.zeros((COLUMNS,), tl.float32)
    if KL:
        scale = tl.load(grad_kl + group)
        total += scale * tl.load(places, mask=fits, other=0.0).to(tl.float32)
        bias += scale * tl.load(grad_bias + group * columns + column, mask=inside, other=0.0)
    rows = (row < fit)[:, None] & inside[None, :]
    tl.store(places, total, mask=rows)
    if STORE:
        store += group * store_stride
        tl.store(store + (first + row)[:, None] * columns + column[None, :], total, mask=rows)
    tl.store(whole + group * columns + column, bias + tl.sum(total, 0), mask=inside)
    if FACTORS:
        partial += (group * tl.num_programs(0) + block) * fit * rank
        for factor in range(rank):
            line = tl.load(right + group * right_stride + factor * columns + column, mask=inside, other=0.0)
            tl.store(partial + row * rank + factor, tl.sum(total * line[None, :], 1), mask=row < fit)


@triton.jit
def _scale_rows_kernel(
    grad_hidden,
    grad_factors,
    hidden,
    grad_kl,
    scaled,
    rows,
    columns,
    count,
    COLUMNS: tl.constexpr,
    FACTORS: tl.constexpr,
):
    sample, group = tl.program_id(0), tl.program_id(1).to(tl.int64)
    column = tl.arange(0, COLUMNS)
    here = column < columns
    at = (group * tl.num_programs(0) + sample) * columns + column
    scale = tl.where(sample < count, 1.0, tl.load(grad_kl + group))
    value = tl.load(grad_hidden + at, mask=here, other=0.0).to(tl.float32)
    if FACTORS:
        value += tl.load(grad_factors + at, mask=here, other=0.0).to(tl.float32)
    tl.store(scaled + at, scale * value, mask=here)
    tl.store(rows + at, scale * tl.load(hidden + at, mask=here, other=0.0), mask=here)


@triton.jit
def _start_kernel(mean, shift, padded, partial, scale, columns, wide, COLUMNS: tl.constexpr):
    block, row = tl.program_id(0), tl.program_id(1).to(tl.int64)
    column = block * COLUMNS + tl.arange(0, COLUMNS)
    here = column < columns
    value = tl.load(mean + row * columns + column, mask=here, other=0.0)
    tl.store(partial + row * tl.num_programs(0) + block, tl.sum(value * value, 0))
    value += scale * tl.load(shift + row * columns + column, mask=here, other=0.0)
    tl.store(padded + row * wide + column, value, mask=column < wide)


@triton.jit
def _grad_start_kernel(grad_padded, mean, grad_squares, found, columns, row_stride, COLUMNS: tl.constexpr):
    row = tl.program_id(1).to(tl.int64)
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    here = column < columns
    value = tl.load(grad_padded + row * row_stride + column, mask=here, other=0.0).to(tl.float32)
    value += 2 * tl.load(grad_squares) * tl.load(mean + row * columns + column, mask=here, other=0.0)
    tl.store(found + row * columns + column, value, mask=here)
