"""How frequent classes are that are the same in every task: the known examples say it, and training tasks do.

    share of c = (n_c + s · b_c) / (n + s),   n_c of the n known examples are of c

The base rates b and their strength s are meta-parameters. Methods that compare an example with class means add the
logarithm of the share to the logit. A support set that misses a class then makes it unlikely, not impossible.
"""

import torch
from torch import Tensor

from fewsure.core.vectorise import indicators
from fewsure.types import Model, Params, Parts

PART = "shares"


def shares_init(model: Model) -> Parts:
    """Equal base rates that weigh as much as one example; nothing where classes differ between tasks."""
    if not model.fixed_classes:
        return {}
    return {PART: {"log_rates": torch.zeros(model.outputs), "log_strength": torch.zeros(())}}


def log_shares(meta: Parts, y: Tensor, classes: int) -> Params:
    """The logarithms of the shares (C,), under a name; nothing where classes differ between tasks.

    >>> meta = {"shares": {"log_rates": torch.zeros(2), "log_strength": torch.zeros(())}}
    >>> log_shares(meta, torch.tensor([0, 0, 0]), 2)["log_share"].exp()
    tensor([0.8750, 0.1250])
    """
    if PART not in meta:
        return {}
    strength = meta[PART]["log_strength"].exp()
    counts = indicators(y, classes).sum(0) + strength * meta[PART]["log_rates"].softmax(-1)
    return {"log_share": (counts / (len(y) + strength)).log()}


def with_shares(logits: Tensor, of_classes: Params) -> Tensor:
    """Logits (…, C), with the logarithms of shares where there are any."""
    return logits + of_classes["log_share"] if "log_share" in of_classes else logits
