"""How good the predictions of one task are."""

import math

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional


def mean_squared_error(predictions: Float[Tensor, "S N 1"], y: Float[Tensor, "N 1"]) -> Float[Tensor, ""]:
    """Mean over examples of (mean over the S sampled functions − y)².

    >>> mean_squared_error(torch.tensor([[[0.0]], [[2.0]]]), torch.tensor([[3.0]]))
    tensor(4.)
    """
    return (predictions.mean(0) - y).square().mean()


def mixture_nll(predictions: Float[Tensor, "S N 1"], y: Float[Tensor, "N 1"], noise_std: float) -> Float[Tensor, ""]:
    """Mean over examples of −ln (1/S) Σ_s N(y; f_s(x), noise_std²): the S functions as a mixture of Gaussians.

    >>> mixture_nll(torch.zeros(4, 1, 1), torch.zeros(1, 1), noise_std=1.0)
    tensor(0.9189)
    """
    log_density = -0.5 * ((y - predictions) / noise_std).square() - math.log(noise_std * math.sqrt(2 * math.pi))
    return -(log_density.logsumexp(0) - math.log(predictions.shape[0])).mean()


def class_probabilities(outputs: Float[Tensor, "S N C"]) -> Float[Tensor, "N C"]:
    """The mean over the S sampled functions of their softmax: averaged as probabilities, not as logits.

    >>> class_probabilities(torch.tensor([[[0.0, 100.0]], [[100.0, 0.0]]]))
    tensor([[0.5000, 0.5000]])
    """
    return outputs.softmax(-1).mean(0)


def negative_log_likelihood(probabilities: Float[Tensor, "N C"], y: Int[Tensor, " N"]) -> Float[Tensor, ""]:
    """Mean over examples of −ln p(y); a probability that underflows counts as the smallest normal number.

    >>> negative_log_likelihood(torch.tensor([[0.5, 0.5]]), torch.tensor([1]))
    tensor(0.6931)
    """
    chosen = probabilities.gather(-1, y.unsqueeze(-1)).squeeze(-1)
    return -chosen.clamp(min=torch.finfo(chosen.dtype).tiny).log().mean()


def brier_score(probabilities: Float[Tensor, "N C"], y: Int[Tensor, " N"]) -> Float[Tensor, ""]:
    """Mean over examples of Σ_c (p_c − 1[y = c])², in [0, 2].

    >>> brier_score(torch.tensor([[0.5, 0.5]]), torch.tensor([1]))
    tensor(0.5000)
    """
    truth = functional.one_hot(y, probabilities.shape[-1])
    return (probabilities - truth).square().sum(-1).mean()
