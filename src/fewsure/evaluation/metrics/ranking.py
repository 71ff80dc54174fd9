"""How well scores rank the examples of one class before all others: areas under two curves, by comparing all pairs."""

from jaxtyping import Bool, Float
from torch import Tensor


def area_under_roc(scores: Float[Tensor, " N"], positive: Bool[Tensor, " N"]) -> Float[Tensor, ""]:
    """AUC: how often a positive example has a higher score than a negative one; ties count half.

    NaN where all examples are of one kind.

    >>> import torch
    >>> area_under_roc(torch.tensor([0.9, 0.6, 0.6, 0.1]), torch.tensor([True, True, False, False]))
    tensor(0.8750)
    """
    above = (scores.unsqueeze(1) > scores).to(scores.dtype) + 0.5 * (scores.unsqueeze(1) == scores).to(scores.dtype)
    pairs = (positive.unsqueeze(1) & ~positive).to(scores.dtype)
    return (above * pairs).sum() / pairs.sum()


def average_precision(scores: Float[Tensor, " N"], positive: Bool[Tensor, " N"]) -> Float[Tensor, ""]:
    """AUPRC: the precision at the score of each positive example, averaged over them; NaN where there are none.

    >>> import torch
    >>> average_precision(torch.tensor([0.9, 0.6, 0.6, 0.1]), torch.tensor([True, True, False, False]))
    tensor(0.8333)
    """
    member = positive.to(scores.dtype)
    chosen = (scores >= scores.unsqueeze(1)).to(scores.dtype)  # (threshold, example)
    precision = (chosen * member).sum(1) / chosen.sum(1)
    return (precision * member).sum() / member.sum()
