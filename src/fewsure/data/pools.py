"""A pool: the labelled examples of one split of a data set, sorted by class. Tasks are drawn from it."""

from typing import Literal, NamedTuple

import torch
from torch import Tensor

Split = Literal["train", "validation", "test"]
SPLITS: tuple[Split, ...] = ("train", "validation", "test")


class Pool(NamedTuple):
    """Class k is called `classes[k]` and owns `examples[starts[k] : starts[k + 1]]`."""

    examples: Tensor
    """uint8 images (N, C, H, W), or float32 features (N, D)."""
    starts: Tensor
    """(K + 1,) int64, rising from 0 to N."""
    classes: tuple[str, ...]
    """Names of the K classes, in sorted order, no two the same."""
    groups: tuple[str, ...]
    """What each class belongs to: an alphabet, a super-category, or "" where the data set has none."""
    checksum: str
    """SHA-256 (hex) of the names and the examples, so that a result can say what it was measured on."""

    @property
    def counts(self) -> Tensor:
        """(K,) examples of each class."""
        return self.starts.diff()


def merge(first: Pool, second: Pool) -> Pool:
    """One pool with the classes of both, those of `first` first; for training on the validation classes too."""
    return Pool(
        torch.cat([first.examples, second.examples]),
        torch.cat([first.starts, second.starts[1:] + first.starts[-1]]),
        first.classes + second.classes,
        first.groups + second.groups,
        f"{first.checksum}+{second.checksum}",
    )
