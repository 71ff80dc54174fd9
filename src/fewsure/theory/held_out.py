"""Held-out certificates: fresh tasks bound the expected loss on one more task of the same environment.

A certificate needs tasks that had no part in training or in any choice. It assumes nothing about the model, and so
holds for every method. The unit of the statement defines "a new task":

| unit | tasks are independent draws of | so the statement is about |
|---|---|---|
| `tasks` | the task sampler over a fixed pool of classes | a new task of the same sampler and pool |
| `new-tasks` | classes or groups, none in two tasks | new classes or groups, if the pool is a random sample of all |
"""

import hashlib
from collections import Counter
from collections.abc import Collection
from dataclasses import asdict, dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from fewsure.core import streams
from fewsure.errors import require
from fewsure.theory.concentration import Method, upper_limit


@dataclass(frozen=True)
class HeldOut:
    """With confidence 1 − δ the expected loss on a new task is at most `limit`."""

    limit: float
    mean: float
    """The mean loss of the N tasks; the limit lies above it."""
    tasks: int
    """N."""
    delta: float
    method: Method

    @property
    def vacuous(self) -> bool:
        return not self.limit < 1

    def record(self) -> dict[str, Any]:
        """As JSON values."""
        return asdict(self) | {"vacuous": self.vacuous}


def held_out(losses: Float[Tensor, " N"], delta: float, method: Method = "betting") -> HeldOut:
    """The certificate of N independent held-out tasks, one loss in [0, 1] each (such as the share of errors).

    The method is part of the statement: choose it before looking at the losses. `both` pays for the choice with half
    of δ each. `betting` adapts to the spread of the losses; `chernoff` is tight where a task's loss is
    0 or 1.

    >>> certificate = held_out(torch.full((1000,), 0.25), delta=0.05)
    >>> round(certificate.limit, 3)
    0.253
    """
    limit = float(upper_limit(losses, delta, method))
    return HeldOut(limit, float(losses.double().mean()), len(losses), delta, method)


def split_classes(names: Collection[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """(calibration, test): the halves of an evaluation pool's classes, by the order of a hash of their names.

    The split depends on the set of names alone: not on their order, a seed, or anything that was measured.

    >>> split_classes(["ant", "bee", "cat", "dog"]) == split_classes(["dog", "cat", "bee", "ant"])
    True
    """
    twice = [name for name, count in Counter(names).items() if count > 1]
    require(not twice, "classes", "different from each other", twice[:3])
    require(len(names) >= 2, "classes", "at least 2, one for each half", len(names))
    ordered = sorted(names, key=lambda name: hashlib.blake2b(f"certify/{name}".encode()).digest())
    count = round(len(names) / 2)
    return tuple(sorted(ordered[:count])), tuple(sorted(ordered[count:]))


def disjoint_tasks(classes: int, way: int, seed: int) -> Int[Tensor, "T way"]:
    """As many tasks of `way` classes as there are without using a class twice, in an order drawn from the seed.

    If the classes are independent draws from all classes, so are these tasks. A certificate of them speaks of new
    classes. Tasks that share classes are independent only given the pool. If the classes are exchangeable, so are the
    tasks; conformal prediction needs no more.

    >>> disjoint_tasks(11, way=5, seed=0).shape
    torch.Size([2, 5])
    """
    require(way >= 2, "way", "at least 2", way)
    require(classes >= way, "classes", f"at least {way}, the number in a task", classes)
    tasks = classes // way
    return torch.randperm(classes, generator=streams.generator(seed, "disjoint"))[: tasks * way].view(tasks, way)
