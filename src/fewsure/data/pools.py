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
    """uint8 images (N, C, H, W), packed bits (N, D / 8), or float32 features (N, D)."""
    starts: Tensor
    """(K + 1,) int64, rising from 0 to N."""
    classes: tuple[str, ...]
    """Names of the K classes, in sorted order, no two the same."""
    groups: tuple[str, ...]
    """The group of each class: an alphabet, a super-category, or "" in a data set without groups."""
    checksum: str
    """SHA-256 (hex) of the names and the examples, so that a result can say what it was measured on."""
    labels: Tensor | None = None
    """(N,) the number of each example's class, where tasks own the examples and have the same classes."""

    @property
    def counts(self) -> Tensor:
        """(K,) examples of each class."""
        return self.starts.diff()

    def to(self, device: torch.device) -> "Pool":
        """The same pool with its tensors on a device."""
        labels = None if self.labels is None else self.labels.to(device)
        return self._replace(examples=self.examples.to(device), starts=self.starts.to(device), labels=labels)


def network_inputs(examples: Tensor) -> Tensor:
    """Examples of a pool as networks see them: the bytes of images become numbers in [0, 1], packed bits 0 or 1.

    >>> network_inputs(torch.tensor([[0b10100000]], dtype=torch.uint8))
    tensor([[1., 0., 1., 0., 0., 0., 0., 0.]])
    """
    if examples.dtype == torch.uint8 and examples.dim() == 2:
        places = torch.arange(7, -1, -1, dtype=torch.uint8, device=examples.device)
        return (examples.unsqueeze(-1) >> places & 1).flatten(1).to(torch.get_default_dtype())
    x = examples.to(torch.get_default_dtype())
    return x.div_(255) if examples.dtype == torch.uint8 else x


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
        None if first.labels is None or second.labels is None else torch.cat([first.labels, second.labels]),
    )


def restrict(pool: Pool, names: Collection[str]) -> Pool:
    """The pool of these classes alone, in the pool's order; its checksum is of the pool's and the names."""
    unknown = sorted(set(names) - set(pool.classes))
    if unknown:
        raise FewsureError(f"expected classes of the pool, but {len(unknown)} are not, for instance {unknown[0]!r}")
    kept = [number for number, name in enumerate(pool.classes) if name in set(names)]

    def of_kept(values: Tensor) -> Tensor:
        return torch.cat([values[int(pool.starts[number]) : int(pool.starts[number + 1])] for number in kept])

    labels = None if pool.labels is None else of_kept(pool.labels)
    starts = torch.cat([pool.starts[:1], pool.counts[kept].cumsum(0)])
    classes = tuple(pool.classes[number] for number in kept)
    checksum = hashlib.sha256("\n".join([pool.checksum, *classes]).encode()).hexdigest()
    return Pool(
        of_kept(pool.examples), starts, classes, tuple(pool.groups[number] for number in kept), checksum, labels
    )


def in_group(group: str, label: str) -> str:
    """The name of a class that belongs to one group.

    >>> in_group("assay 7", "active")
    'assay 7/active'
    """
    return f"{group}/{label}"


def label_in_group(name: str, group: str) -> str:
    """The label of a class that `in_group` has named."""
    return name.removeprefix(f"{group}/")


def by_group(pool: Pool, labels: Sequence[str]) -> Pool:
    """The pool whose units are the groups of classes that `in_group` has named, with the numbers of these `labels`."""
    numbers = {label: number for number, label in enumerate(labels)}
    found = [label_in_group(name, group) for name, group in zip(pool.classes, pool.groups, strict=True)]
    other = [number for number, label in enumerate(found) if label not in numbers]
    if other:
        raise FewsureError(
            f"expected the classes of training tasks in every task, {', '.join(labels)}, but {pool.groups[other[0]]!r} "
            f"has {found[other[0]]!r}; train on tasks with all classes"
        )
    names = sorted(set(pool.groups))
    place = {name: number for number, name in enumerate(names)}
    owner = torch.tensor([place[group] for group in pool.groups]).repeat_interleave(pool.counts)
    order = owner.argsort(stable=True)
    label = torch.tensor([numbers[name] for name in found]).repeat_interleave(pool.counts)
    starts = torch.cat([pool.starts[:1], torch.bincount(owner, minlength=len(names)).cumsum(0)])
    checksum = hashlib.sha256("\n".join([pool.checksum, *labels]).encode()).hexdigest()
    return Pool(pool.examples[order], starts, tuple(names), ("",) * len(names), checksum, label[order])
