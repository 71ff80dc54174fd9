"""Does the model know how sure it is? Reliability and calibration errors."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn import functional
from torch.special import ndtr

LEVELS = tuple(level / 10 for level in range(11))
"""The quantile levels of the paper's reliability diagram of regression: 0, 0.1, …, 1."""
BINS = 10
"""Equal-width bins of confidence in the paper's reliability diagram of classification."""
CELLS = 2**16
"""Cells of equal width over [0, 1], in which confidences count as equal for the adaptive error."""


def quantile_reliability(
    predictions: Float[Tensor, "S N"], truth: Float[Tensor, " N"], noise_std: float
) -> Float[Tensor, " L"]:
    """The share of noisy observations below each quantile of the sampled predictions.

    At each level it takes the quantile of the S predictions at x (linear between order statistics). Then it takes the
    Gaussian CDF of that around the noise-free truth, with the standard deviation of the noise, averaged over x. A
    calibrated model gives the levels back; a deterministic one about ½ at every level.

    >>> quantile_reliability(torch.zeros(1, 1), torch.zeros(1), noise_std=0.3)[[0, 10]]
    tensor([0.5000, 0.5000])
    """
    share_below: Tensor = ndtr((quantiles(predictions) - truth) / noise_std)
    return share_below.mean(-1)


def calibration_errors(observed: Float[Tensor, "*B L"]) -> tuple[Float[Tensor, "*B"], Float[Tensor, "*B"]]:
    """(ECE, MCE): the unweighted mean and the maximum over levels of |level − observed|.

    >>> ece, mce = calibration_errors(torch.full((11,), 0.5))
    >>> round(float(ece), 4), float(mce)
    (0.2727, 0.5)
    """
    gap = (observed - levels_like(observed)).abs()
    return gap.mean(-1), gap.amax(-1)


def binned(confidence: Float[Tensor, " N"], correct: Bool[Tensor, " N"]) -> Float[Tensor, "bins 3"]:
    """Number of examples, sum of confidence and number of correct ones in each bin of equal width over [0, 1].

    A bin holds its lower edge; the last one holds both, so that confidence 1 has no bin of its own. Tables of several
    tasks add up.

    >>> binned(torch.tensor([0.95, 1.0, 0.2]), torch.tensor([True, False, True]))[[2, 9]]
    tensor([[1.0000, 0.2000, 1.0000],
            [2.0000, 1.9500, 1.0000]])
    """
    bins = (confidence * BINS).long().clamp(0, BINS - 1)
    member = functional.one_hot(bins, BINS).to(confidence.dtype)
    return member.T @ torch.stack([torch.ones_like(confidence), confidence, correct.to(confidence.dtype)], dim=-1)


def binned_errors(table: Float[Tensor, "*B bins 3"]) -> tuple[Float[Tensor, "*B"], Float[Tensor, "*B"]]:
    """(ECE, MCE) of a table that `binned` made, over bins that are not empty.

    ECE is the mean of |confidence − accuracy| weighted by a bin's share of the examples, MCE the maximum.

    >>> ece, mce = binned_errors(binned(torch.ones(4), torch.tensor([True, True, True, False])))
    >>> float(ece), float(mce)
    (0.25, 0.25)
    """
    count, confidence, correct = table.unbind(-1)
    gap = (confidence - correct).abs()
    return gap.sum(-1) / count.sum(-1), torch.where(count > 0, gap / count, 0).amax(-1)


def confidence_cells(confidence: Float[Tensor, " N"], correct: Bool[Tensor, " N"]) -> Float[Tensor, "cells 2"]:
    """Number of examples and sum of confidence − correctness in each of `CELLS` cells. Tables of tasks add up."""
    cell = (confidence.double() * CELLS).long().clamp(0, CELLS - 1)
    gap = confidence.double() - correct.double()
    number = torch.bincount(cell, minlength=CELLS).double()
    return torch.stack([number, torch.bincount(cell, gap, minlength=CELLS)], dim=-1)


def adaptive_calibration_error(cells: Float[Tensor, "cells 2"], bins: int = BINS) -> Float[Tensor, ""]:
    """ECE over bins that hold equally many examples, in the order of their confidence.

    `cells` is a table that `confidence_cells` made. A cell in which a bin ends is divided in proportion, so the
    order of examples with equal confidences has no effect. Many confidences are exactly 1.

    >>> table = confidence_cells(torch.tensor([0.5, 0.5, 1.0, 1.0]), torch.tensor([True, False, True, True]))
    >>> adaptive_calibration_error(table, bins=2)
    tensor(0., dtype=torch.float64)
    """
    number, gap = cells.unbind(-1)
    up_to = number.cumsum(0)
    edges = torch.arange(bins + 1) * up_to[-1] / bins
    last = torch.searchsorted(up_to, edges).clamp(max=len(number) - 1)
    share = ((edges - up_to[last] + number[last]) / number[last].clamp(min=1)).clamp(0, 1)
    below = gap.cumsum(0)[last] - gap[last] + share * gap[last]
    return below.diff().abs().sum() / up_to[-1]


def quantiles(predictions: Float[Tensor, "S N"]) -> Float[Tensor, "L N"]:
    """The quantiles of S values at each level, linear between order statistics."""
    # torch.quantile's rule, written with a sort: it refuses more than 16 M values and batches poorly.
    ordered = predictions.sort(0).values
    position = levels_like(predictions) * (predictions.shape[0] - 1)
    below = position.floor().long()
    above = position.ceil().long()
    share = (position - below).unsqueeze(-1)
    return ordered[below] * (1 - share) + ordered[above] * share


def levels_like(values: Tensor) -> Float[Tensor, " L"]:
    """`LEVELS` with the type and device of a tensor, made on that device: the host does not wait for it."""
    return torch.arange(len(LEVELS), dtype=values.dtype, device=values.device) / (len(LEVELS) - 1)
