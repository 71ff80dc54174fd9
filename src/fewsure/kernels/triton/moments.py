"""The moment-matched KL of many posteriors at once, and its gradient: one pass over the samples for each.

m, v       = mean and variance over S samples of each weight (v + floor, so that its logarithm is finite)
KL         = Σ ½ [ v/σ² + m²/σ² − 1 − ln(v/σ²) ] − v/(2Sσ²)
∂KL/∂w_s   = m/(Sσ²) + (w_s − m)/(S − 1) · [ 1/σ² − 1/v − 1/(Sσ²) ]
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

COLUMNS = 128
"""Weights of a program."""
ROWS = 32
"""Samples that a program holds at a time."""


def forward(samples: Tensor, prior_std: float, floor: float) -> tuple[Tensor, Tensor, Tensor]:
    """(KL (G,), mean (G, n), variance (G, n)) of samples (G, S, n); without the correction of the logarithm's bias."""
    groups, count, weights = samples.shape
    blocks = triton.cdiv(weights, COLUMNS)
    mean, variance = samples.new_empty(groups, weights), samples.new_empty(groups, weights)
    partial = samples.new_empty(groups, blocks)
    _moments_kernel[(blocks, groups)](
        samples, mean, variance, partial, count, weights, prior_std**2, floor, COLUMNS=COLUMNS, ROWS=ROWS
    )
    return partial.sum(1), mean, variance


def backward(gradient: Tensor, samples: Tensor, mean: Tensor, variance: Tensor, prior_std: float) -> Tensor:
    """The gradient of the samples, from that of each KL (G,)."""
    groups, count, weights = samples.shape
    result = torch.empty_like(samples)
    _gradient_kernel[(triton.cdiv(weights, COLUMNS), groups)](
        gradient, samples, mean, variance, result, count, weights, prior_std**2, COLUMNS=COLUMNS, ROWS=ROWS
    )
    return result


@triton.jit
def _moments_kernel(
    samples,
    mean,
    variance,
    partial,
    count,
    weights,
    prior,
    floor,
    COLUMNS: tl.constexpr,
    ROWS: tl.constexpr,
):
    block, group = tl.program_id(0), tl.program_id(1).to(tl.int64)
    column = block * COLUMNS + tl.arange(0, COLUMNS)
    valid = column < weights
    samples += group * count * weights
    total = tl.zeros((COLUMNS,), tl.float32)
    for start in range(0, count, ROWS):
        row = start + tl.arange(0, ROWS)
        here = (row < count)[:, None] & valid[None, :]
        total += tl.sum(tl.load(samples + row[:, None] * weights + column[None, :], mask=here, other=0.0), 0)
    m = total / count
    squares = tl.zeros((COLUMNS,), tl.float32)
    for start in range(0, count, ROWS):
        row = start + tl.arange(0, ROWS)
        here = (row < count)[:, None] & valid[None, :]
        value = tl.load(samples + row[:, None] * weights + column[None, :], mask=here, other=0.0)
        offset = tl.where(here, value - m[None, :], 0.0)
        squares += tl.sum(offset * offset, 0)
    v = squares / (count - 1) + floor
    term = 0.5 * ((v + m * m) / prior - 1 - tl.log(v / prior)) - v / (2 * count * prior)
    tl.store(mean + group * weights + column, m, mask=valid)
    tl.store(variance + group * weights + column, v, mask=valid)
    tl.store(partial + group * tl.num_programs(0) + block, tl.sum(tl.where(valid, term, 0.0), 0))


@triton.jit
def _gradient_kernel(
    gradient,
    samples,
    mean,
    variance,
    result,
    count,
    weights,
    prior,
    COLUMNS: tl.constexpr,
    ROWS: tl.constexpr,
):
    group = tl.program_id(1).to(tl.int64)
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    valid = column < weights
    m = tl.load(mean + group * weights + column, mask=valid, other=0.0)
    v = tl.load(variance + group * weights + column, mask=valid, other=1.0)
    scale = tl.load(gradient + group)
    level = scale * m / (count * prior)
    slope = scale * (1 / prior - 1 / v - 1 / (count * prior)) / (count - 1)
    for start in range(0, count, ROWS):
        row = start + tl.arange(0, ROWS)
        here = (row < count)[:, None] & valid[None, :]
        places = (group * count + row)[:, None] * weights + column[None, :]
        value = tl.load(samples + places, mask=here, other=0.0)
        tl.store(result + places, level[None, :] + (value - m[None, :]) * slope[None, :], mask=here)
