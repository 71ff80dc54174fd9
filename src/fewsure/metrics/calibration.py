"""Does the model know how sure it is? Reliability and calibration errors."""

from jaxtyping import Float
from torch import Tensor
from torch.special import ndtr

LEVELS = tuple(level / 10 for level in range(11))
"""The quantile levels of the paper's reliability diagram: 0, 0.1, …, 1."""


def quantile_reliability(
    predictions: Float[Tensor, "S N"], truth: Float[Tensor, " N"], noise_std: float
) -> Float[Tensor, " L"]:
    """What share of noisy observations lies below each quantile of the sampled predictions.

    At each level the quantile of the S predictions at x (linear between order statistics), then the Gaussian CDF of it
    around the noise-free truth with the observation noise's standard deviation, averaged over x. A calibrated model
    gives the levels back; a deterministic one about ½ at every level.

    >>> import torch
    >>> quantile_reliability(torch.zeros(1, 1), torch.zeros(1), noise_std=0.3)[[0, 10]]
    tensor([0.5000, 0.5000])
    """
    share_below: Tensor = ndtr((_quantiles(predictions) - truth) / noise_std)
    return share_below.mean(-1)


def calibration_errors(observed: Float[Tensor, "*B L"]) -> tuple[Float[Tensor, "*B"], Float[Tensor, "*B"]]:
    """(ECE, MCE): the unweighted mean and the maximum over levels of |level − observed|.

    >>> import torch
    >>> ece, mce = calibration_errors(torch.full((11,), 0.5))
    >>> round(float(ece), 4), float(mce)
    (0.2727, 0.5)
    """
    gap = (observed - observed.new_tensor(LEVELS)).abs()
    return gap.mean(-1), gap.amax(-1)


def _quantiles(predictions: Float[Tensor, "S N"]) -> Float[Tensor, "L N"]:
    # torch.quantile's linear rule, written with a sort: it refuses more than 16 M values and batches poorly.
    ordered = predictions.sort(0).values
    position = predictions.new_tensor(LEVELS) * (predictions.shape[0] - 1)
    below = position.floor().long()
    above = position.ceil().long()
    share = (position - below).unsqueeze(-1)
    return ordered[below] * (1 - share) + ordered[above] * share
