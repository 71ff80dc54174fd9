"""Behind the generator's last layer, for many tasks at once: bias, factors, tanh, moments, and the way back.

mapped (G, S, N) = h W of the groups (tasks), S samples each; columns beyond n are padding
y = tanh(mapped + bias + inner·right)                       inner (G, S, r), right (G, R, N) with r of its rows in use
KL, its gradient δ in what tanh is taken of                 as in `fewsure.kernels.moments`

A program holds all samples of some columns, so everything but the products is one pass over the samples.
"""

import triton
import triton.language as tl
from torch import Tensor

ELEMENTS = 4096
"""Numbers that a program holds."""
FEW = 128
"""Up to so many products of samples and factors, a program adds them up itself."""


def squash(
    mapped: Tensor,
    bias: Tensor,
    inner: Tensor | None,
    right: Tensor | None,
    fit: int,
    weights: int,
    prior_std: float | None,
    floor: float,
) -> tuple[Tensor, Tensor | None]:
    """(the first `fit` samples y (G, fit, n), their KL (G,)). With a KL, `mapped` becomes its gradient before tanh."""
    groups, samples, columns = mapped.shape
    few = inner is not None and _few(samples, inner.shape[2])
    if inner is not None and right is not None and not few:
        mapped.baddbmm_(inner, right[:, : inner.shape[2]])
    block = _columns(samples)
    blocks = triton.cdiv(columns, block)
    fitted = bias.new_empty(groups, fit, weights)
    partial = bias.new_empty(groups, blocks)
    _squash_kernel[(blocks, groups)](
        mapped,
        bias,
        inner if few else mapped,
        right if few else mapped,
        fitted,
        partial,
        samples,
        weights,
        columns,
        fit,
        inner.shape[2] if few and inner is not None else 0,
        bias.stride(0),
        right.stride(0) if few and right is not None else 0,
        1.0 if prior_std is None else prior_std**2,
        floor,
        SAMPLES=triton.next_power_of_2(samples),
        COLUMNS=block,
        KL=prior_std is not None,
        FACTORS=few,
    )
    return fitted, None if prior_std is None else partial.sum(1)


def deltas(
    of_fit: Tensor,
    of_kl: Tensor | None,
    fit: Tensor,
    kl_delta: Tensor | None,
    right: Tensor | None,
    rank: int,
    space: int,
    shape: tuple[int, int, int],
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """(δ (G, S, N), its sum over samples (G, N), its products with the `rank` rows of right in use, right with δ).

    δ is written into `right` below the rows in use, and there is room for `space` of them; 0 leaves it as it is. Before
    the first step there is none.
    """
    groups, samples, columns = shape
    few = right is not None and _few(samples, rank)
    delta = fit.new_empty(shape)
    appended = fit.new_empty(groups, space, columns) if right is None else right
    of_bias = fit.new_empty(groups, columns)
    block = _columns(samples)
    blocks = triton.cdiv(columns, block)
    partial = fit.new_empty(groups, blocks, samples, rank if few else 0)
    _deltas_kernel[(blocks, groups)](
        of_fit,
        fit if of_kl is None else of_kl,
        fit,
        fit if kl_delta is None else kl_delta,
        appended,
        delta,
        of_bias,
        partial,
        samples,
        fit.shape[2],
        columns,
        fit.shape[1],
        rank,
        appended.shape[1],
        SAMPLES=triton.next_power_of_2(samples),
        COLUMNS=block,
        KL=of_kl is not None,
        FACTORS=few,
        APPEND=space > 0,
    )
    if right is None:
        on_right = delta.new_empty(groups, samples, 0)
    else:
        on_right = partial.sum(1) if few else delta @ right[:, :rank].transpose(1, 2)
    return delta, of_bias, on_right, appended


def _columns(samples: int) -> int:
    return max(16, ELEMENTS // triton.next_power_of_2(samples))


def _few(samples: int, rank: int) -> bool:
    return samples * rank <= FEW


@triton.jit
def _tanh(x):
    # The exponential loses the digits of a small x; up to 0.15, five terms of the series are exact in float32.
    square = x * x
    series = 1 + square * (-1 / 3 + square * (2 / 15 + square * (-17 / 315 + square * (62 / 2835))))
    return tl.where(tl.abs(x) < 0.15, x * series, 1 - 2 / (tl.exp(2 * x) + 1))


@triton.jit
def _squash_kernel(
    mapped,
    bias,
    inner,
    right,
    fitted,
    partial,
    samples,
    weights,
    columns,
    fit,
    rank,
    of_bias_group,
    of_right_group,
    prior,
    floor,
    SAMPLES: tl.constexpr,
    COLUMNS: tl.constexpr,
    KL: tl.constexpr,
    FACTORS: tl.constexpr,
):
    block, group = tl.program_id(0), tl.program_id(1).to(tl.int64)
    column, row = block * COLUMNS + tl.arange(0, COLUMNS), tl.arange(0, SAMPLES)
    valid, sampled = column < weights, row < samples
    here = sampled[:, None] & valid[None, :]
    places = mapped + (group * samples + row)[:, None] * columns + column[None, :]
    value = tl.load(places, mask=here, other=0.0)
    value += tl.load(bias + group * of_bias_group + column, mask=valid, other=0.0)[None, :]
    if FACTORS:
        for factor in range(rank):
            share = tl.load(inner + (group * samples + row) * rank + factor, mask=sampled, other=0.0)
            line = tl.load(right + group * of_right_group + factor * columns + column, mask=valid, other=0.0)
            value += share[:, None] * line[None, :]
    y = _tanh(value)
    kept = here & (row < fit)[:, None]
    tl.store(fitted + (group * fit + row)[:, None] * weights + column[None, :], y, mask=kept)
    if KL:
        m = tl.sum(tl.where(here, y, 0.0), 0) / samples
        offset = tl.where(here, y - m[None, :], 0.0)
        v = tl.sum(offset * offset, 0) / (samples - 1) + floor
        term = 0.5 * ((v + m * m) / prior - 1 - tl.log(v / prior)) - v / (2 * samples * prior)
        tl.store(partial + group * tl.num_programs(0) + block, tl.sum(tl.where(valid, term, 0.0), 0))
        slope = (1 / prior - 1 / v - 1 / (samples * prior)) / (samples - 1)
        gradient = m[None, :] / (samples * prior) + offset * slope[None, :]
        tl.store(places, gradient * (1 - y * y), mask=here)


@triton.jit
def _deltas_kernel(
    of_fit,
    of_kl,
    fitted,
    kl_delta,
    right,
    delta,
    of_bias,
    partial,
    samples,
    weights,
    columns,
    fit,
    rank,
    space,
    SAMPLES: tl.constexpr,
    COLUMNS: tl.constexpr,
    KL: tl.constexpr,
    FACTORS: tl.constexpr,
    APPEND: tl.constexpr,
):
    block, group = tl.program_id(0), tl.program_id(1).to(tl.int64)
    column, row = block * COLUMNS + tl.arange(0, COLUMNS), tl.arange(0, SAMPLES)
    valid, sampled = column < weights, row < samples
    fits = (row < fit)[:, None] & valid[None, :]
    at = (group * fit + row)[:, None] * weights + column[None, :]
    y = tl.load(fitted + at, mask=fits, other=0.0)
    total = tl.load(of_fit + at, mask=fits, other=0.0) * (1 - y * y)
    places = (group * samples + row)[:, None] * columns + column[None, :]
    if KL:
        here = sampled[:, None] & valid[None, :]
        total += tl.load(of_kl + group) * tl.load(kl_delta + places, mask=here, other=0.0)
    inside = sampled[:, None] & (column < columns)[None, :]
    tl.store(delta + places, total, mask=inside)
    right += group * space * columns
    if APPEND:
        tl.store(right + (rank + row)[:, None] * columns + column[None, :], total, mask=inside)
    tl.store(of_bias + group * columns + column, tl.sum(total, 0), mask=column < columns)
    if FACTORS:
        partial += (group * tl.num_programs(0) + block) * samples * rank
        for factor in range(rank):
            line = tl.load(right + factor * columns + column, mask=column < columns, other=0.0)
            tl.store(partial + row * rank + factor, tl.sum(total * line[None, :], 1), mask=sampled)
