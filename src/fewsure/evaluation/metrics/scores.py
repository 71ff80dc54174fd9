"""How good the predictions of one task are."""

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional


def class_probabilities(outputs: Float[Tensor, "S N C"]) -> Float[Tensor, "N C"]:
    """The mean softmax of the S sampled functions, in double precision: probabilities are averaged, not logits.

    >>> class_probabilities(torch.tensor([[[0.0, 100.0]], [[100.0, 0.0]]]))
    tensor([[0.5000, 0.5000]], dtype=torch.float64)
    """
    return outputs.double().softmax(-1).mean(0)


def negative_log_likelihood(probabilities: Float[Tensor, "N C"], y: Int[Tensor, " N"]) -> Float[Tensor, ""]:
    """Mean over examples of −ln p(y); p counts as at least the smallest normal number of single precision, 1e-38.

    >>> negative_log_likelihood(torch.tensor([[0.5, 0.5]]), torch.tensor([1]))
    tensor(0.6931)
    """
    chosen = probabilities.gather(-1, y.unsqueeze(-1)).squeeze(-1)
    return -chosen.clamp(min=torch.finfo(torch.float32).tiny).log().mean()


def brier_score(probabilities: Float[Tensor, "N C"], y: Int[Tensor, " N"]) -> Float[Tensor, ""]:
    """Mean over examples of Σ_c (p_c − 1[y = c])², in [0, 2].

    >>> brier_score(torch.tensor([[0.5, 0.5]]), torch.tensor([1]))
    tensor(0.5000)
    """
    truth = functional.one_hot(y, probabilities.shape[-1])
    return (probabilities - truth).square().sum(-1).mean()
