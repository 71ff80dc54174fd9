"""One block of conv4 for many networks at once, and its gradient: convolution, batch norm, ReLU, pooling.

A group is a network with its own weights and its own batch of images: a task, or a sample of a task's posterior.

    x (G, N, H, W, C), w (G, F, C, 3, 3)  →  y = x ∗ w  →  ŷ = (y − mean)/std over a group's pixels  →  relu  →  2×2 max

Three facts keep the memory traffic small. The norm has no weights and rises with y, so it commutes with the maximum and
is applied to a quarter of the pixels. A bias would cancel in the norm. The gradient of y is a line in ŷ, except
at the largest pixel of each window: one pass makes it.

Everything is deterministic: sums over blocks are stored and added in a fixed order.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

EPSILON = 1e-5
"""Added to the variance, as torch's norms do."""
ROWS = 128
"""Pixels of a program that convolves."""
WINDOWS = 64
"""Pooling windows of a program."""
PROGRAMS = 528
"""How many programs should share the sum over pixels in a weight gradient: four for each multiprocessor of an H200."""


def forward(x: Tensor, w: Tensor, precision: str) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """(pooled (G, N, H/2, W/2, F), y (G, N·H·W, F), mean and 1/std of y (G, F)); odd edges are not pooled."""
    groups, images, height, width, _ = x.shape
    filters, pixels = w.shape[1], images * height * width
    y, partial = _convolve(x, w, precision, statistics=True)
    mean, scale = x.new_empty(groups, filters), x.new_empty(groups, filters)
    _statistics_kernel[(groups,)](partial, mean, scale, pixels, partial.shape[1], EPSILON, ROWS, F=filters, BLOCK=32)
    pooled = x.new_empty(groups, images, height // 2, width // 2, filters)
    windows = images * (height // 2) * (width // 2)
    _pool_kernel[(triton.cdiv(windows, WINDOWS), groups)](
        y, mean, scale, pooled, images, height, width, F=filters, BLOCK=WINDOWS
    )
    return pooled, y, mean, scale


def backward(
    gradient: Tensor,
    x: Tensor,
    w: Tensor,
    y: Tensor,
    mean: Tensor,
    scale: Tensor,
    precision: str,
    *,
    input_gradient: bool,
) -> tuple[Tensor, Tensor]:
    """The gradients of x (zero if it is not asked for) and of w, from that of `pooled`."""
    groups, images, height, width, _ = x.shape
    filters, gradient = w.shape[1], gradient.contiguous()
    blocks = triton.cdiv(images * (height // 2) * (width // 2), WINDOWS)
    partial = x.new_empty(groups, blocks, 2, filters)
    _pooled_sums_kernel[(blocks, groups)](
        gradient, y, mean, scale, partial, images, height, width, F=filters, BLOCK=WINDOWS
    )
    sums = partial.sum(1)
    dy = torch.empty_like(y)
    windows = images * triton.cdiv(height, 2) * triton.cdiv(width, 2)
    _normalise_backward_kernel[(triton.cdiv(windows, WINDOWS), groups)](
        gradient, y, mean, scale, sums, dy, images, height, width, F=filters, BLOCK=WINDOWS
    )
    if input_gradient:
        spread = dy.view(groups, images, height, width, filters)
        dx = _convolve(spread, w, precision, mirrored=True)[0].view(x.shape)
    else:
        dx = x.new_zeros(()).expand(x.shape)
    return dx, _weight_gradient(x, dy, precision)


def _convolve(
    x: Tensor, w: Tensor, precision: str, *, statistics: bool = False, mirrored: bool = False
) -> tuple[Tensor, Tensor]:
    """(y, means and squared deviations of blocks of it). `mirrored` convolves a gradient of y into one of x."""
    groups, images, height, width, channels = x.shape
    filters, pixels = w.shape[2 if mirrored else 1], images * height * width
    blocks = triton.cdiv(pixels, ROWS)
    y = x.new_empty(groups, pixels, filters)
    partial = x.new_empty(groups, blocks, 2, filters) if statistics else y
    w = w if w[0].is_contiguous() else w.contiguous()  # groups may lie apart, as parts of vectors
    # w of filter f, input channel c and tap t lies at start + f·filter_stride + c·channel_stride + t·tap_stride.
    by_filter, by_channel = 9 * w.shape[2], 9
    start, filter_stride, channel_stride, tap_stride = (
        (8, by_channel, by_filter, -1) if mirrored else (0, by_filter, by_channel, 1)
    )
    _convolve_kernel[(blocks, groups)](
        x,
        w,
        y,
        partial,
        images,
        height,
        width,
        w.stride(0),
        start,
        filter_stride,
        channel_stride,
        tap_stride,
        C=channels,
        F=filters,
        BLOCK=ROWS,
        DEPTH=_depth(channels),
        STATISTICS=statistics,
        PRECISION=precision,
    )
    return y, partial


def _weight_gradient(x: Tensor, dy: Tensor, precision: str) -> Tensor:
    groups, images, height, width, channels = x.shape
    filters, pixels, depth = dy.shape[-1], images * height * width, _depth(channels)
    layers = triton.cdiv(9 * channels, depth)
    splits = max(1, min(triton.cdiv(PROGRAMS, groups * layers), triton.cdiv(pixels, 64)))
    share = triton.cdiv(triton.cdiv(pixels, splits), 64) * 64
    partial = x.new_empty(groups, splits, filters, channels, 3, 3)
    _weight_gradient_kernel[(splits, groups, layers)](
        x,
        dy,
        partial,
        images,
        height,
        width,
        share,
        C=channels,
        F=filters,
        BLOCK=64,
        DEPTH=depth,
        PRECISION=precision,
    )
    return partial.sum(1)


def _depth(channels: int) -> int:
    """How many of the 9·C products are summed at a time."""
    return 16 if 9 * channels <= 16 else 32


@triton.jit
def _convolve_kernel(
    x,
    w,
    y,
    partial,
    images,
    height,
    width,
    group_stride,
    start_of_w,
    filter_stride,
    channel_stride,
    tap_stride,
    C: tl.constexpr,
    F: tl.constexpr,
    BLOCK: tl.constexpr,
    DEPTH: tl.constexpr,
    STATISTICS: tl.constexpr,
    PRECISION: tl.constexpr,
):
    block, group = tl.program_id(0), tl.program_id(1).to(tl.int64)
    pixels = images * height * width
    rows = block * BLOCK + tl.arange(0, BLOCK)
    valid = rows < pixels
    row, column = rows // width % height, rows % width
    filters = tl.arange(0, F)
    x += group * pixels * C
    w += group * group_stride + start_of_w
    total = tl.zeros((BLOCK, F), tl.float32)
    for start in tl.static_range(0, 9 * C, DEPTH):
        k = start + tl.arange(0, DEPTH)
        down, right = k // C // 3 - 1, k // C % 3 - 1
        at_row, at_column = row[:, None] + down[None, :], column[:, None] + right[None, :]
        inside = (at_row >= 0) & (at_row < height) & (at_column >= 0) & (at_column < width)
        inside = inside & valid[:, None] & (k < 9 * C)[None, :]
        places = (rows[:, None] + down[None, :] * width + right[None, :]) * C + (k % C)[None, :]
        patch = tl.load(x + places, mask=inside, other=0.0)
        at = (k % C * channel_stride + k // C * tap_stride)[:, None] + (filters * filter_stride)[None, :]
        kernel = tl.load(w + at, mask=(k < 9 * C)[:, None], other=0.0)
        total = tl.dot(patch, kernel, total, input_precision=PRECISION)
    tl.store(y + (group * pixels + rows)[:, None] * F + filters[None, :], total, mask=valid[:, None])
    if STATISTICS:
        count = tl.minimum(pixels - block * BLOCK, BLOCK)
        mean = tl.sum(tl.where(valid[:, None], total, 0.0), 0) / count
        deviation = tl.where(valid[:, None], total - mean[None, :], 0.0)
        partial += (group * tl.num_programs(0) + block) * 2 * F
        tl.store(partial + filters, mean)
        tl.store(partial + F + filters, tl.sum(deviation * deviation, 0))


@triton.jit
def _statistics_kernel(partial, mean, scale, pixels, blocks, epsilon, rows, F: tl.constexpr, BLOCK: tl.constexpr):
    # Means and squared deviations of blocks, put together (Chan, Golub and LeVeque, 1983).
    group = tl.program_id(0).to(tl.int64)
    filters = tl.arange(0, F)
    partial += group * blocks * 2 * F
    total = tl.zeros((F,), tl.float32)
    for start in range(0, blocks, BLOCK):
        block = start + tl.arange(0, BLOCK)
        here = (block < blocks)[:, None]
        count = tl.minimum(pixels - block * rows, rows)[:, None].to(tl.float32)
        means = tl.load(partial + block[:, None] * 2 * F + filters[None, :], mask=here, other=0.0)
        total += tl.sum(tl.where(here, count * means, 0.0), 0)
    centre = total / pixels
    squares = tl.zeros((F,), tl.float32)
    for start in range(0, blocks, BLOCK):
        block = start + tl.arange(0, BLOCK)
        here = (block < blocks)[:, None]
        count = tl.minimum(pixels - block * rows, rows)[:, None].to(tl.float32)
        means = tl.load(partial + block[:, None] * 2 * F + filters[None, :], mask=here, other=0.0)
        within = tl.load(partial + block[:, None] * 2 * F + F + filters[None, :], mask=here, other=0.0)
        offset = means - centre[None, :]
        squares += tl.sum(tl.where(here, within + count * offset * offset, 0.0), 0)
    tl.store(mean + group * F + filters, centre)
    tl.store(scale + group * F + filters, 1 / tl.sqrt(squares / pixels + epsilon))


@triton.jit
def _pool_kernel(y, mean, scale, pooled, images, height, width, F: tl.constexpr, BLOCK: tl.constexpr):
    group = tl.program_id(1).to(tl.int64)
    high, wide = height // 2, width // 2
    windows = images * high * wide
    window = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    valid = (window < windows)[:, None]
    filters = tl.arange(0, F)[None, :]
    corner = (window // (high * wide) * height + window // wide % high * 2) * width + window % wide * 2
    places = y + (group * images * height * width + corner)[:, None] * F + filters
    top = tl.maximum(tl.load(places, mask=valid), tl.load(places + F, mask=valid))
    low = tl.maximum(tl.load(places + width * F, mask=valid), tl.load(places + (width + 1) * F, mask=valid))
    centre, factor = tl.load(mean + group * F + filters), tl.load(scale + group * F + filters)
    normal = (tl.maximum(top, low) - centre) * factor
    value = tl.where(normal < 0, 0.0, normal)  # a maximum would turn NaN into 0
    tl.store(pooled + (group * windows + window)[:, None] * F + filters, value, mask=valid)


@triton.jit
def _pooled_sums_kernel(gradient, y, mean, scale, partial, images, height, width, F: tl.constexpr, BLOCK: tl.constexpr):
    # Σ g and Σ g·ŷ over a block of windows, g being the gradient of the largest ŷ of a window.
    group = tl.program_id(1).to(tl.int64)
    high, wide = height // 2, width // 2
    windows = images * high * wide
    window = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    valid = (window < windows)[:, None]
    filters = tl.arange(0, F)
    corner = (window // (high * wide) * height + window // wide % high * 2) * width + window % wide * 2
    places = y + (group * images * height * width + corner)[:, None] * F + filters[None, :]
    top = tl.maximum(tl.load(places, mask=valid), tl.load(places + F, mask=valid))
    low = tl.maximum(tl.load(places + width * F, mask=valid), tl.load(places + (width + 1) * F, mask=valid))
    centre, factor = tl.load(mean + group * F + filters)[None, :], tl.load(scale + group * F + filters)[None, :]
    normal = (tl.maximum(top, low) - centre) * factor
    g = tl.load(gradient + (group * windows + window)[:, None] * F + filters[None, :], mask=valid, other=0.0)
    g = tl.where(valid & (normal > 0), g, 0.0)
    partial += (group * tl.num_programs(0) + tl.program_id(0)) * 2 * F
    tl.store(partial + filters, tl.sum(g, 0))
    tl.store(partial + F + filters, tl.sum(tl.where(valid, g * normal, 0.0), 0))


@triton.jit
def _normalise_backward_kernel(
    gradient, y, mean, scale, sums, dy, images, height, width, F: tl.constexpr, BLOCK: tl.constexpr
):
    # dy = (g − mean g − ŷ · mean(g·ŷ))/std, with g = 0 but at the first largest pixel of a window.
    group = tl.program_id(1).to(tl.int64)
    high, wide = (height + 1) // 2, (width + 1) // 2
    pixels = images * height * width
    window = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    image, i, j = window // (high * wide), window // wide % high, window % wide
    filters = tl.arange(0, F)[None, :]
    has_right, has_low = (2 * j + 1 < width)[:, None], (2 * i + 1 < height)[:, None]
    valid = (image < images)[:, None]
    whole = valid & has_right & has_low  # an odd edge is in no window that is pooled
    corner = (group * pixels + (image * height + 2 * i) * width + 2 * j)[:, None] * F + filters
    a = tl.load(y + corner, mask=valid, other=0.0)
    b = tl.load(y + corner + F, mask=valid & has_right, other=0.0)
    c = tl.load(y + corner + width * F, mask=valid & has_low, other=0.0)
    d = tl.load(y + corner + (width + 1) * F, mask=whole, other=0.0)
    largest = tl.maximum(tl.maximum(a, b), tl.maximum(c, d))
    centre, factor = tl.load(mean + group * F + filters), tl.load(scale + group * F + filters)
    place = ((image * (height // 2) + i) * (width // 2) + j).to(tl.int64)
    place = (group * images * (height // 2) * (width // 2) + place)[:, None] * F + filters
    g = tl.load(gradient + place, mask=whole, other=0.0)
    g = tl.where(whole & (largest > centre), g, 0.0)
    level = tl.load(sums + group * 2 * F + filters) / pixels
    tilt = tl.load(sums + group * 2 * F + F + filters) / pixels
    at_a = a == largest
    at_b = (b == largest) & ~at_a
    at_c = (c == largest) & ~at_a & ~at_b
    at_d = (d == largest) & ~at_a & ~at_b & ~at_c
    dy += corner
    tl.store(dy, factor * (tl.where(at_a, g, 0.0) - level - (a - centre) * factor * tilt), mask=valid)
    tl.store(dy + F, factor * (tl.where(at_b, g, 0.0) - level - (b - centre) * factor * tilt), mask=valid & has_right)
    below = dy + width * F
    tl.store(below, factor * (tl.where(at_c, g, 0.0) - level - (c - centre) * factor * tilt), mask=valid & has_low)
    tl.store(below + F, factor * (tl.where(at_d, g, 0.0) - level - (d - centre) * factor * tilt), mask=whole)


@triton.jit
def _weight_gradient_kernel(
    x,
    dy,
    partial,
    images,
    height,
    width,
    share,
    C: tl.constexpr,
    F: tl.constexpr,
    BLOCK: tl.constexpr,
    DEPTH: tl.constexpr,
    PRECISION: tl.constexpr,
):
    split, group = tl.program_id(0), tl.program_id(1).to(tl.int64)
    pixels = images * height * width
    filters = tl.arange(0, F)
    k = tl.program_id(2) * DEPTH + tl.arange(0, DEPTH)
    down, right = k // C // 3 - 1, k // C % 3 - 1
    x += group * pixels * C
    total = tl.zeros((DEPTH, F), tl.float32)
    last = tl.minimum((split + 1) * share, pixels)
    for start in range(split * share, last, BLOCK):
        rows = start + tl.arange(0, BLOCK)
        valid = rows < last
        at_row, at_column = (rows // width % height)[None, :] + down[:, None], (rows % width)[None, :] + right[:, None]
        inside = (at_row >= 0) & (at_row < height) & (at_column >= 0) & (at_column < width)
        inside = inside & valid[None, :] & (k < 9 * C)[:, None]
        places = (rows[None, :] + down[:, None] * width + right[:, None]) * C + (k % C)[:, None]
        patch = tl.load(x + places, mask=inside, other=0.0)
        g = tl.load(dy + (group * pixels + rows)[:, None] * F + filters[None, :], mask=valid[:, None], other=0.0)
        total = tl.dot(patch, g, total, input_precision=PRECISION)
    partial += (group * tl.num_programs(0) + split) * 9 * C * F
    at = (k % C * 9 + k // C)[:, None] + (filters * 9 * C)[None, :]
    tl.store(partial + at, total, mask=(k < 9 * C)[:, None])
