"""Classes that are the same in every task, such as active or inactive: tasks are drawn as they come.

A task is a group of examples, as in regression. Its examples are drawn at random, so that classes are as frequent as
they are there, and a support set may miss one. `shot` and `query` count the examples of the whole task.
"""

from dataclasses import dataclass, field, replace
from typing import Any, Literal, Self

import torch

from fewsure.core.config import LEARNED
from fewsure.data.classification import Classification
from fewsure.data.episodes import Episodes, RowTasks
from fewsure.data.memory import remembered
from fewsure.data.pools import Pool, Split, by_group, label_in_group, restrict
from fewsure.data.protocol import pool_on
from fewsure.errors import FewsureError
from fewsure.types import Model


@dataclass(frozen=True)
class MayFixClasses(Classification):
    """Classification data whose tasks may all have the same classes."""

    fixed_classes: bool = False
    """The classes are the same in every task (active or inactive, defect or not). --shot and --query then count the
    examples of a whole task, which are drawn as they come: a support set may miss a class."""
    class_names: tuple[str, ...] = field(default=(), metadata=LEARNED)
    """The fixed classes."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.fixed_classes and self.train_way is not None:
            raise FewsureError(f"expected no --train-way with --fixed-classes, but got {self.train_way}; leave it out")

    def class_pool(self, split: Split) -> Pool:
        """The examples of a split by classes. Where classes are fixed, each group stands by itself."""
        raise NotImplementedError

    def pool(self, split: Split) -> Pool:
        pool = self.class_pool(split)
        if not self.fixed_classes:
            return pool
        if not any(pool.groups):
            raise FewsureError(
                f"{self.name}: --fixed-classes takes the group of each example (a task column, or folders "
                "GROUP/CLASS/NAME.jpg), but there is none; name it"
            )
        return by_group(pool, self.known_classes)

    @property
    def known_classes(self) -> tuple[str, ...]:
        """The names of the fixed classes, those of the training tasks."""
        if not self.fixed_classes:
            return ()
        return self.class_names or _class_names(replace(self, class_names=()).at_temperature_1)

    def with_class_names(self) -> Self:
        """The same data with the names of the fixed classes, read anew."""
        data: Any = replace(self, class_names=())
        found: Self = replace(data, class_names=data.known_classes)
        return found

    @property
    def unit(self) -> Literal["classes", "tasks"]:  # type: ignore[override] # (no class sets it below this one)
        return "tasks" if self.fixed_classes else "classes"

    @property
    def outputs(self) -> int:
        return len(self.known_classes) if self.fixed_classes else self.way

    @property
    def training_outputs(self) -> int:
        return self.outputs if self.fixed_classes else super().training_outputs

    @property
    def support_size(self) -> int:
        return self.training_shots[0] if self.fixed_classes else super().support_size

    @property
    def query_size(self) -> int:
        return self.train_query or self.query if self.fixed_classes else super().query_size

    def model(self, network: Any, *, training: bool = False) -> Model:
        return super().model(network, training=training)._replace(fixed_classes=self.fixed_classes)

    def tasks(self, split: Split, device: torch.device) -> Episodes | RowTasks:  # type: ignore[override]
        if not self.fixed_classes:
            return super().tasks(split, device)
        training, pool = split == "train", pool_on(self.at_temperature_1, split, device)
        return RowTasks(
            pool,
            shot=self.training_shots[0] if training else self.test_shot,
            query=(self.train_query if training else None) or self.query,
            augmentation=self.augmentation if training else None,
        )

    def large_enough(self, pool: Pool, split: Split) -> Pool:
        if not self.fixed_classes:
            return super().large_enough(pool, split)
        needed = self.needed_examples
        enough = [name for name, count in zip(pool.classes, pool.counts.tolist(), strict=True) if count >= needed]
        if not enough:
            raise FewsureError(
                f"{self.name}, {split}: a task takes {needed} examples (shot + query), but the largest of "
                f"{len(pool.classes)} tasks has {int(pool.counts.max())}; lower --shot or --query"
            )
        return pool if len(enough) == len(pool.classes) else restrict(pool, enough)


@remembered
def _class_names(data: MayFixClasses) -> tuple[str, ...]:
    """The labels of the training tasks, in sorted order."""
    pool = data.class_pool("train")
    found = {label_in_group(*pair) for pair in zip(pool.classes, pool.groups, strict=True)}
    if len(found) < 2:
        raise FewsureError(
            f"{data.name}: expected 2 classes or more in the training tasks, but all examples are {found.pop()!r}"
        )
    return tuple(sorted(found))
