"""A pool: the labelled examples of one split of a data set, sorted by class. Tasks are drawn from it."""

import hashlib
import json
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
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
    """The group of each class: an alphabet, a super-category, or "" in a data set without groups."""
    checksum: str
    """SHA-256 (hex) of the names and the examples, so that a result can say what it was measured on."""

    @property
    def counts(self) -> Tensor:
        """(K,) examples of each class."""
        return self.starts.diff()

    def to(self, device: torch.device) -> "Pool":
        """The same pool with its tensors on a device."""
        return self._replace(examples=self.examples.to(device), starts=self.starts.to(device))


def pool_checksum(examples: Tensor, starts: Tensor, classes: Sequence[str]) -> str:
    """SHA-256 (hex) of the names and sizes of the classes and of all examples, in order.

    >>> pool_checksum(torch.zeros(2, 3), torch.tensor([0, 2]), ["a"])[:12]
    'dff4911e7450'
    """
    array = np.ascontiguousarray(examples.numpy())
    header = {"classes": list(classes), "starts": starts.tolist(), "shape": array.shape, "dtype": array.dtype.str}
    digest = hashlib.sha256(json.dumps(header, sort_keys=True).encode())
    digest.update(array.reshape(-1).view(np.uint8).data)
    return digest.hexdigest()


def pool_of_rows(path: Path, rows: NDArray[np.generic], labels: NDArray[np.str_], groups: NDArray[np.str_]) -> Pool:
    """A pool of examples (N, …) with labels (N,) and groups (N,), sorted by label; `path` is named in errors."""
    wrong = np.flatnonzero(~np.isfinite(rows).reshape(len(rows), -1).all(1))
    if len(wrong):
        raise FewsureError(f"expected finite features in {path}, but row {wrong[0]} has NaN or infinity")
    classes, first, counts = np.unique(labels, return_index=True, return_counts=True)
    mixed = np.flatnonzero(groups != groups[first][np.searchsorted(classes, labels)])
    if len(mixed):
        raise FewsureError(f"expected one group for each class in {path}, but {str(labels[mixed[0]])!r} has several")
    examples = torch.from_numpy(rows[np.argsort(labels, kind="stable")])
    starts = torch.from_numpy(np.concatenate([[0], counts.cumsum()]).astype(np.int64))
    names = tuple(classes.tolist())
    return Pool(examples, starts, names, tuple(groups[first].tolist()), pool_checksum(examples, starts, names))


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
