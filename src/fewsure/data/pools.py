"""A pool: the labelled examples of one split of a data set, sorted by class. Tasks are drawn from it."""

import hashlib
from collections.abc import Collection
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from fewsure.errors import FewsureError

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

    def to(self, device: torch.device) -> "Pool":
        """The same pool with its tensors on a device."""
        return self._replace(examples=self.examples.to(device), starts=self.starts.to(device))


def merge(first: Pool, second: Pool) -> Pool:
    """One pool with the classes of both, those of `first` first; for training on the validation classes too."""
    return Pool(
        torch.cat([first.examples, second.examples]),
        torch.cat([first.starts, second.starts[1:] + first.starts[-1]]),
        first.classes + second.classes,
        first.groups + second.groups,
        f"{first.checksum}+{second.checksum}",
    )


def restrict(pool: Pool, names: Collection[str]) -> Pool:
    """The pool of these classes alone, in the pool's order; its checksum is of the pool's and the names."""
    unknown = sorted(set(names) - set(pool.classes))
    if unknown:
        raise FewsureError(f"expected classes of the pool, but {len(unknown)} are not, for instance {unknown[0]!r}")
    kept = [number for number, name in enumerate(pool.classes) if name in set(names)]
    rows = [pool.examples[int(pool.starts[number]) : int(pool.starts[number + 1])] for number in kept]
    starts = torch.cat([pool.starts[:1], pool.counts[kept].cumsum(0)])
    classes = tuple(pool.classes[number] for number in kept)
    checksum = hashlib.sha256("\n".join([pool.checksum, *classes]).encode()).hexdigest()
    return Pool(torch.cat(rows), starts, classes, tuple(pool.groups[number] for number in kept), checksum)
