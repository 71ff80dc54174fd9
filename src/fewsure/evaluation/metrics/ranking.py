"""How well scores rank the examples of one class before all others: areas under two curves, and the top of the list.

Areas come from comparing all pairs.
"""

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


def top_precision(scores: Float[Tensor, " N"], positive: Bool[Tensor, " N"], share: float) -> Float[Tensor, ""]:
    """The share of positive examples among the `share` with the highest scores, at least one example.

    Where the last places go to a tie, its members share them.

    >>> import torch
    >>> top_precision(torch.tensor([0.9, 0.6, 0.6, 0.1]), torch.tensor([True, True, False, False]), share=0.5)
    tensor(0.7500)
    """
    places = max(1, round(share * len(scores)))
    last = scores.sort(descending=True).values[places - 1]
    above, tied = scores > last, scores == last
    found = positive[above].sum() + (places - above.sum()) * (positive & tied).sum() / tied.sum()
    return found.to(scores.dtype) / places
