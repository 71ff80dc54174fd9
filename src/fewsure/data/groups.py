"""The classes of a pool as whole batches."""

from collections.abc import Sequence
from typing import overload

import torch

from fewsure.data.pools import Pool, network_inputs
from fewsure.types import Batch


class PoolGroups(Sequence[Batch]):
    """Every group with all its examples, made when it is asked for: images take four times the memory as numbers.

    A group of `rows` (inputs …, target) is a regression task. One with labels is a classification task. Else it is a
    class, and its labels are its number.
    """

    def __init__(self, pool: Pool, *, rows: bool) -> None:
        self._pool, self._rows = pool, rows

    def __len__(self) -> int:
        return len(self._pool.classes)

    @overload
    def __getitem__(self, index: int) -> Batch: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Batch]: ...
    def __getitem__(self, index: int | slice) -> Batch | Sequence[Batch]:
        if isinstance(index, slice):
            return [self[number] for number in range(len(self))[index]]
        number = range(len(self))[index]
        x = network_inputs(self._pool.examples[int(self._pool.starts[number]) : int(self._pool.starts[number + 1])])
        if self._rows:
            return Batch(x[:, :-1], x[:, -1:])
        labels = torch.full((len(x),), number, device=x.device)
        if self._pool.labels is not None:
            labels = self._pool.labels[int(self._pool.starts[number]) : int(self._pool.starts[number + 1])]
        return Batch(x, labels)
