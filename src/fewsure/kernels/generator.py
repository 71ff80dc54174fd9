"""Behind the generator's last layer, for many tasks at once: factors, bias, tanh, moments, and the way back.

mapped (G, S, N) = h W of the groups (tasks), S samples each; columns beyond n are padding
y = tanh(mapped + bias + inner·right)                 inner (G, S, r), the first r rows of right (G, R, N)
KL of the samples, its gradient δ before tanh         as in `fewsure.kernels.moments`

A program holds all samples of some columns, so everything but the products is one pass. The gradient of an objective
is c·δ, c its derivative in the KL, and what the first k samples, which are handed out, add to their rows. No pass is
spent on c: a row keeps its δ beside a scale, which is c, or 1 for the first k, whose rows are few.
"""

import triton
import triton.language as tl
from torch import Tensor

ELEMENTS = 4096
"""Most numbers that a program holds."""
MOST_COLUMNS = 1024
"""Most columns of a program: several programs for each multiprocessor, however few the samples."""
FEW = 128
"""Up to so many products of samples and factors, a program adds them up one by one, and beyond as a matrix product."""
DEPTH = 32
"""Factors that a matrix product takes at a time."""


def squash(
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
    precision: str,
) -> tuple[Tensor, Tensor | None, Tensor]:
    """(the first `fit` samples (G, fit, n), the KL (G,), the sum of δ over the other samples (G, N)).

    With a KL, δ takes the place of `mapped`, and is written into the rows of `store` (G, R, N) from `first` on too.
    """
    groups, samples, columns = mapped.shape
    rank = 0 if inner is None else inner.shape[2]
    many = samples * rank > FEW
    held = max(16 if many else 1, triton.next_power_of_2(samples))
    block = max(16, min(MOST_COLUMNS, ELEMENTS // held))
    blocks = triton.cdiv(columns, block)
    fitted, of_bias = bias.new_empty(groups, fit, weights), bias.new_empty(groups, columns)
    partial = bias.new_empty(groups, blocks)
    _squash_kernel[(blocks, groups)](
        mapped,
        bias,
        mapped if inner is None else inner,
        mapped if right is None else right,
        fitted,
        partial,
        of_bias,
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
        SAMPLES=held,
        COLUMNS=block,
        KL=prior_std is not None,
        FACTORS=rank > 0 and not many,
        MANY_FACTORS=many,
        DEPTH=DEPTH,
        STORE=store is not None,
        PRECISION=precision,
        num_warps=4 if many else 2,  # with more, they spend their time adding up across each other
    )
    return fitted, None if prior_std is None else partial.sum(1), of_bias


def merge(
    of_fit: Tensor,
    of_kl: Tensor | None,
    fit: Tensor,
    of_bias: Tensor,
    delta: Tensor,
    store: Tensor | None,
    first: int,
    right: Tensor | None,
) -> tuple[Tensor, Tensor | None]:
    """Let the first k rows of δ, and those of `store` from `first` on, be the whole gradient of the samples handed out.

    Returns the gradient of the bias (G, N), and the products of those rows with the rows of `right` (G, k, r), which is
    there only if they are few.
    """
    groups, count, weights = fit.shape
    columns = delta.shape[2]
    block = max(16, min(MOST_COLUMNS, ELEMENTS // triton.next_power_of_2(count)))
    blocks = triton.cdiv(columns, block)
    rank = 0 if right is None else right.shape[1]
    whole, partial = of_bias.new_empty(groups, columns), of_bias.new_empty(groups, blocks, count, rank)
    _merge_kernel[(blocks, groups)](
        of_fit,
        fit if of_kl is None else of_kl,
        fit,
        of_bias,
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
        KL=of_kl is not None,
        FACTORS=right is not None,
        STORE=store is not None,
    )
    return whole, None if right is None else partial.sum(1)


@triton.jit
def _squash_kernel(
    mapped,
    bias,
    inner,
    right,
    fitted,
    partial,
    of_bias,
    store,
    samples,
    weights,
    columns,
    fit,
    rank,
    of_bias_group,
    of_right_group,
    of_store_group,
    first,
    prior,
    floor,
    SAMPLES: tl.constexpr,
    COLUMNS: tl.constexpr,
    KL: tl.constexpr,
    FACTORS: tl.constexpr,
    MANY_FACTORS: tl.constexpr,
    DEPTH: tl.constexpr,
    STORE: tl.constexpr,
    PRECISION: tl.constexpr,
):
    block, group = tl.program_id(0), tl.program_id(1).to(tl.int64)
    column, row = block * COLUMNS + tl.arange(0, COLUMNS), tl.arange(0, SAMPLES)
    valid, sampled = column < weights, row < samples
    here = sampled[:, None] & valid[None, :]
    at = row[:, None] * columns + column[None, :]
    mapped += group * samples * columns
    value = tl.load(mapped + at, mask=here, other=0.0).to(tl.float32)
    value += tl.load(bias + group * of_bias_group + column, mask=valid, other=0.0)[None, :]
    if FACTORS:
        inner += group * samples * rank
        right += group * of_right_group
        for factor in range(rank):
            share = tl.load(inner + row * rank + factor, mask=sampled, other=0.0).to(tl.float32)
            line = tl.load(right + factor * columns + column, mask=valid, other=0.0)
            value += share[:, None] * line[None, :]
    if MANY_FACTORS:
        inner += group * samples * rank
        right += group * of_right_group
        for start in range(0, rank, DEPTH):
            factor = start + tl.arange(0, DEPTH)
            used = factor < rank
            shares = tl.load(
                inner + row[:, None] * rank + factor[None, :], mask=sampled[:, None] & used[None, :], other=0.0
            )
            lines = tl.load(
                right + factor[:, None] * columns + column[None, :], mask=used[:, None] & valid[None, :], other=0.0
            )
            value = tl.dot(shares, lines, value, input_precision=PRECISION)
    y = 1 - 2 / (tl.exp(2 * value) + 1)
    fitted += group * fit * weights
    handed_out = (row < fit)[:, None]
    tl.store(fitted + row[:, None] * weights + column[None, :], y, mask=here & handed_out)
    if KL:
        m = tl.sum(tl.where(here, y, 0.0), 0) / samples
        offset = tl.where(here, y - m[None, :], 0.0)
        v = tl.sum(offset * offset, 0) / (samples - 1) + floor
        term = 0.5 * ((v + m * m) / prior - 1 - tl.log(v / prior)) - v / (2 * samples * prior)
        tl.store(partial + group * tl.num_programs(0) + block, tl.sum(tl.where(valid, term, 0.0), 0))
        slope = (1 / prior - 1 / v - 1 / (samples * prior)) / (samples - 1)
        delta = (m[None, :] / (samples * prior) + offset * slope[None, :]) * (1 - y * y)
        delta = tl.where(here, delta, 0.0)
        inside = sampled[:, None] & (column < columns)[None, :]
        tl.store(mapped + at, delta, mask=inside)
        if STORE:
            store += group * of_store_group + first * columns
            tl.store(store + at, delta, mask=inside)
        others = tl.sum(tl.where(handed_out, 0.0, delta), 0)
        tl.store(of_bias + group * columns + column, others, mask=column < columns)


@triton.jit
def _merge_kernel(
    of_fit,
    of_kl,
    fitted,
    of_bias,
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
    of_store_group,
    first,
    of_right_group,
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
    total = tl.load(of_fit + at, mask=fits, other=0.0) * (1 - y * y)
    places = delta + (group * samples + row)[:, None] * columns + column[None, :]
    bias = tl.zeros((COLUMNS,), tl.float32)
    if KL:
        scale = tl.load(of_kl + group)
        total += scale * tl.load(places, mask=fits, other=0.0).to(tl.float32)
        bias += scale * tl.load(of_bias + group * columns + column, mask=inside, other=0.0)
    rows = (row < fit)[:, None] & inside[None, :]
    tl.store(places, total, mask=rows)
    if STORE:
        store += group * of_store_group
        tl.store(store + (first + row)[:, None] * columns + column[None, :], total, mask=rows)
    tl.store(whole + group * columns + column, bias + tl.sum(total, 0), mask=inside)
    if FACTORS:
        partial += (group * tl.num_programs(0) + block) * fit * rank
        for factor in range(rank):
            line = tl.load(right + group * of_right_group + factor * columns + column, mask=inside, other=0.0)
            tl.store(partial + row * rank + factor, tl.sum(total * line[None, :], 1), mask=row < fit)
