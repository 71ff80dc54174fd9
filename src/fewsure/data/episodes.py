"""N-way k-shot tasks: a few classes of a pool, a few examples of each to adapt to, and a few more to be judged by.

A whole meta-batch is drawn on the device that holds the pool, without a loop. Each class gets a random key, and the N
smallest keys name the classes of a task. The examples of each class are drawn in the same way; keys beyond the size of
a class are ∞.
"""

from collections.abc import Sequence
from copy import copy
from typing import Self

import torch
from torch import Tensor

from fewsure.data.augmentation import Augmentation
from fewsure.data.pools import Pool, network_inputs
from fewsure.errors import FewsureError
from fewsure.types import Batch, Facts, Task


class Episodes:
    """Tasks of `way` classes with `shot` support and `query` query examples each, from the classes of a pool."""

    def __init__(
        self,
        pool: Pool,
        *,
        way: int,
        shot: int,
        query: int,
        within_group: bool = False,
        augmentation: Augmentation | None = None,
        name: str = "the pool",
    ) -> None:
        """`within_group` draws all classes of a task from one group, each group that is large enough being as likely.

        `augmentation` changes each example. `name` says in errors what the pool is. Tasks are drawn on the device of
        the pool's examples.
        """
        self.pool = pool
        self._augmentation = augmentation
        self._shot, self._query = shot, query
        self._way, self._name = way, name
        self._most = _most_examples(pool, shot + query, name)
        self._members = _group_members(pool, way, within_group, name)
        self._group_of = _group_numbers(pool).to(pool.starts.device) if within_group and any(pool.groups) else None

    def with_shot(self, shot: int) -> Self:
        """The same tasks with so many support examples of each class, from the classes that are large enough."""
        other = copy(self)
        other._shot, size = shot, shot + self._query
        members = self._members & (self.pool.counts >= size)
        most = int(members.sum(1).max())
        if most < self._way:
            raise FewsureError(
                f"{self._name}: a task takes {self._way} classes with {size} examples (shot + query), but there are "
                f"{most}; lower --shot, --query or --way"
            )
        other._members = members[members.sum(1) >= self._way]
        return other

    @property
    def size(self) -> int:
        """Examples of a task."""
        return self._way * (self._shot + self._query)

    def seen_as(self, examples: Tensor) -> Self:
        """The same tasks of other examples, one in the place of each of the pool's."""
        other = copy(self)
        other.pool = self.pool._replace(examples=examples)
        return other

    def sample(self, tasks: int, generator: torch.Generator) -> tuple[Task, Facts]:
        """A meta-batch: support x of shape (T, way · shot, …), query likewise, labels 0 … way − 1 in order.

        The facts are the numbers of a task's `classes` in the pool, (T, way), its `groups`: its one group, or else
        its classes, and the `rows` of its examples in the pool (T, way, shot + query).
        """
        groups = torch.randint(len(self._members), (tasks,), generator=generator, device=generator.device)
        return self.sample_of(choose(self._members[groups], self._way, generator), generator)

    def sample_of(self, classes: Tensor, generator: torch.Generator) -> tuple[Task, Facts]:
        """Tasks of given classes, as numbers in the pool (T, way); only their examples are drawn."""
        rows = _rows_of(self.pool, classes, self._most, self._shot + self._query, generator)
        support, query = torch.split(rows, [self._shot, self._query], dim=-1)
        groups = classes if self._group_of is None else self._group_of[classes[:, :1]]
        facts = {"classes": classes, "groups": groups, "rows": rows}
        return Task(self._batch(support, generator), self._batch(query, generator)), facts

    def _batch(self, rows: Tensor, generator: torch.Generator) -> Batch:
        """The examples in these rows of the pool, (T, way, k), with their labels."""
        tasks, way, each = rows.shape
        x = _inputs(self.pool, rows.flatten(1), self._augmentation, generator)
        return Batch(x, torch.arange(way, device=rows.device).repeat_interleave(each).expand(tasks, -1))


class RowTasks:
    """Tasks from a pool whose units are tasks: each has rows (inputs …, target), or examples and labels."""

    def __init__(
        self, pool: Pool, *, shot: int, query: int, augmentation: Augmentation | None = None, forecast: float = 0.0
    ) -> None:
        """`forecast` is the share of tasks whose rows follow one another, the support rows first."""
        self.pool = pool
        self.forecast = forecast
        self._augmentation = augmentation
        self._shot, self._query = shot, query
        self._most = int(pool.counts.max())
        self._large = torch.arange(len(pool.classes), device=pool.starts.device)

    def with_shot(self, shot: int) -> Self:
        """The same tasks with so many support rows, where they are large enough."""
        other = copy(self)
        other._shot, size = shot, shot + self._query
        other._large = (self.pool.counts >= size).nonzero().squeeze(1)
        if not len(other._large):
            raise FewsureError(
                f"a task takes {size} rows (shot + query), but the largest has {self._most}; lower --shot or --query"
            )
        return other

    def sample(self, tasks: int, generator: torch.Generator) -> tuple[Task, Facts]:
        """A meta-batch: each task as likely as any other, and in it `shot` + `query` different rows.

        x has shape (T, N, D) and y (T, N, 1), or (T, N) for numbers of classes. The fact is the number of each task in
        the pool, as its `groups` (T, 1).
        """
        which = torch.randint(len(self._large), (tasks,), generator=generator, device=generator.device)
        return self.sample_of(self._large[which], generator)

    def sample_of(self, which: Tensor, generator: torch.Generator) -> tuple[Task, Facts]:
        """Given tasks, as numbers in the pool (T,); only their rows are drawn."""
        size = self._shot + self._query
        rows = _rows_of(self.pool, which, self._most, size, generator)
        if self.forecast:
            draws = torch.rand(2, len(which), 1, generator=generator, device=generator.device)
            first = (draws[0] * (self.pool.counts[which].unsqueeze(-1) - size + 1)).long()
            following = self.pool.starts[which].unsqueeze(-1) + first + torch.arange(size, device=rows.device)
            rows = torch.where(draws[1] < self.forecast, following, rows)
        parts = torch.split(rows, [self._shot, self._query], dim=1)
        support, query = (self._batch(part, generator) for part in parts)
        return Task(support, query, which), {"groups": which.unsqueeze(-1)}

    def stratified(self, which: int, draws: int, generator: torch.Generator) -> tuple[Task, Facts]:
        """One task with several support sets, each with the task's shares of its classes: all others are its queries.

        x has shape (draws, N, D) and y (draws, N). The fact is the number of the task in the pool.
        """
        labels = self.pool.labels
        assert labels is not None
        first, end = self.pool.starts[which : which + 2].tolist()
        support, query = [], []
        for label, count in enumerate(stratified_counts(torch.bincount(labels[first:end]).tolist(), self._shot)):
            rows = first + (labels[first:end] == label).nonzero().squeeze(1)
            keys = torch.rand((draws, len(rows)), generator=generator, device=generator.device)
            shuffled = rows[keys.argsort(1)]
            support.append(shuffled[:, :count])
            query.append(shuffled[:, count:])
        known, asked = (self._batch(torch.cat(part, 1), generator) for part in (support, query))
        return Task(known, asked), {"groups": torch.full((draws, 1), which, device=labels.device)}

    def _batch(self, rows: Tensor, generator: torch.Generator) -> Batch:
        """The examples in these rows (T, N) of the pool."""
        if self.pool.labels is not None:
            return Batch(_inputs(self.pool, rows, self._augmentation, generator), self.pool.labels[rows])
        examples = self.pool.examples[rows].to(torch.get_default_dtype())
        return Batch(examples[..., :-1], examples[..., -1:])


def stratified_counts(counts: Sequence[int], size: int) -> list[int]:
    """Examples of each class in a sample of `size` of all `counts`: in proportion, the largest remainders rounded up.

    >>> stratified_counts([90, 40], 16)
    [11, 5]
    """
    shares = [size * count / sum(counts) for count in counts]
    found = [int(share) for share in shares]
    for number in sorted(range(len(counts)), key=lambda number: found[number] - shares[number])[: size - sum(found)]:
        found[number] += 1
    return found


def _inputs(pool: Pool, rows: Tensor, augmentation: Augmentation | None, generator: torch.Generator) -> Tensor:
    """The examples in these rows (T, N) of a pool as networks see them."""
    flat = rows.flatten()
    examples = pool.examples[flat] if augmentation is None else augmentation(pool.examples, flat, generator)
    return network_inputs(examples).reshape(*rows.shape, *examples.shape[1:-1], -1)


def _rows_of(pool: Pool, classes: Tensor, most: int, count: int, generator: torch.Generator) -> Tensor:
    """`count` random rows (…, count) of each of these classes of a pool, the largest of which has `most`."""
    has = torch.arange(most, device=generator.device) < pool.counts[classes].unsqueeze(-1)
    return pool.starts[classes].unsqueeze(-1) + choose(has, count, generator)


def choose(allowed: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """`count` different allowed positions of the last dimension, in random order, each set as likely as any other."""
    keys = torch.rand(allowed.shape, generator=generator, device=generator.device)
    return keys.masked_fill(~allowed, torch.inf).topk(count, largest=False).indices


def _most_examples(pool: Pool, needed: int, name: str) -> int:
    """Examples of the largest class; refuses a pool with a class that has too few for a task."""
    least = int(pool.counts.argmin())
    if int(pool.counts[least]) < needed:
        raise FewsureError(
            f"{name}: a task takes {needed} examples of a class (shot + query), but class {pool.classes[least]} has "
            f"{int(pool.counts[least])}; lower --shot or --query"
        )
    return int(pool.counts.max())


def _group_numbers(pool: Pool) -> Tensor:
    """(K,): the number of each class's group, in the order of their names."""
    number = {group: index for index, group in enumerate(sorted(set(pool.groups)))}
    return torch.tensor([number[group] for group in pool.groups])


def _group_members(pool: Pool, way: int, within_group: bool, name: str) -> Tensor:
    """(G, K): which classes may meet in a task: all, or those of a group with enough of them."""
    numbers = _group_numbers(pool) if within_group else torch.zeros(len(pool.classes), dtype=torch.long)
    members = numbers == torch.arange(int(numbers.max()) + 1).unsqueeze(1)
    sizes = members.sum(1)
    largest = int(sizes.max())
    if largest < way:
        has = "of one group, but the largest group has" if within_group else "(way), but there are"
        raise FewsureError(f"{name}: a task takes {way} classes {has} {largest}; lower --way")
    return members[sizes >= way].to(pool.starts.device)
