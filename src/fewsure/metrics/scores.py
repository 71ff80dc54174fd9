"""How good the predictions of one task are."""

import math

from jaxtyping import Float
from torch import Tensor


def mean_squared_error(predictions: Float[Tensor, "S N 1"], y: Float[Tensor, "N 1"]) -> Float[Tensor, ""]:
    """Mean over examples of (mean over the S sampled functions − y)².

    >>> import torch
    >>> mean_squared_error(torch.tensor([[[0.0]], [[2.0]]]), torch.tensor([[3.0]]))
    tensor(4.)
    """
    return (predictions.mean(0) - y).square().mean()


def mixture_nll(predictions: Float[Tensor, "S N 1"], y: Float[Tensor, "N 1"], noise_std: float) -> Float[Tensor, ""]:
    """Mean over examples of −ln (1/S) Σ_s N(y; f_s(x), noise_std²): the S functions as a mixture of Gaussians.

    >>> import torch
    >>> mixture_nll(torch.zeros(4, 1, 1), torch.zeros(1, 1), noise_std=1.0)
    tensor(0.9189)
    """
    log_density = -0.5 * ((y - predictions) / noise_std).square() - math.log(noise_std * math.sqrt(2 * math.pi))
    return -(log_density.logsumexp(0) - math.log(predictions.shape[0])).mean()
