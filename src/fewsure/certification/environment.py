"""Which tasks a certificate is about: fresh ones, from an environment with a name.

Tasks come from random streams of their own, (seed, "certify", part, block), which neither training nor `evaluate` uses.
Where tasks are made of classes, the test pool is split by a hash of the classes' names into a calibration half, which
the statements are about, and a test half, on which one can see whether they carry over to other classes.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

import torch
from torch import Tensor

from fewsure import streams
from fewsure.certificates import disjoint_tasks, require_unused, split_classes
from fewsure.data import Tasks
from fewsure.data.classification import Classification
from fewsure.data.episodes import Episodes
from fewsure.data.pools import Pool, Split, restrict
from fewsure.errors import FewsureError, require
from fewsure.evaluation import BLOCK, UnseenBlock, with_noise
from fewsure.experiment import Experiment
from fewsure.types import Facts, Task
from fewsure.vectorise import count, take

Unit = Literal["tasks", "new-classes"]
"""What counts as one independent draw: a task of the sampler, or a task of classes that no other task has."""
ASSUMED: dict[Unit, str] = {
    "tasks": "a new task is a new draw of this sampler",
    "new-classes": "these classes, and those of a new task, are a random sample of all classes",
}
"""Without which the statements are void."""


@runtime_checkable
class HasPool(Protocol):
    """Data whose tasks are drawn from a pool."""

    def pool(self, split: Split) -> Pool:
        """The examples of a split, on the CPU."""


@dataclass(frozen=True)
class FreshTasks:
    """Tasks that had no part in training."""

    description: str
    """Where they come from, in words."""
    sampler: Tasks
    disjoint: Tensor | None = None
    """The classes (T, way) of the only tasks there are, if no class may be in two of them."""

    @property
    def available(self) -> int | None:
        """How many there are; None for any number."""
        return None if self.disjoint is None else len(self.disjoint)

    def sample(self, first: int, tasks: int, generator: torch.Generator) -> tuple[Task, Facts]:
        """So many tasks, or as many as there are from number `first` on."""
        if self.disjoint is None:
            return self.sampler.sample(tasks, generator)
        assert isinstance(self.sampler, Episodes)
        return self.sampler.sample_of(self.disjoint[first : first + tasks], generator)


@dataclass(frozen=True)
class Environment:
    """What the statements about a run are about."""

    certified: FreshTasks
    unseen: Mapping[str, FreshTasks]
    """Where tasks come from that the statements have not seen, on which they can be checked, by name: `other tasks` of
    the same environment (none if the certified ones are all there are), `other classes` of the test half."""
    checksum: str | None
    """Of the data behind the certified tasks, if there are any."""


def environment_of(experiment: Experiment, unit: Unit, seed: int, device: torch.device) -> Environment:
    """The fresh tasks of an experiment; refuses classes that had a part in training."""
    data, transductive = experiment.data, experiment.model.network.transductive
    norm = "transductive" if transductive else "not transductive"
    if not isinstance(data, Classification):
        if unit == "new-classes":
            raise FewsureError(f"{experiment.data_name} has no classes, so expected `unit` to be tasks; leave it out")
        source = "new draws of its sampler"
        if isinstance(data, HasPool):  # rows that belong to tasks, which the pool calls classes
            require_unused(data.pool("test").classes, data.pool("train").classes, "tasks of training")
            source = f"new draws from the {len(data.pool('test').classes)} tasks of its test split"
        description = f"{experiment.data_name}, {source}, {data.shot}-shot, {data.query_size} query points, {norm}"
        certified = FreshTasks(description, data.tasks("test", device))
        return Environment(certified, {"other tasks": certified}, data.checksum("test"))

    pool, name = data.pool("test"), experiment.data_name
    require_unused(pool.classes, data.pool("train").classes, "classes of training")
    if data.train_on_validation:
        require_unused(pool.classes, data.pool("validation").classes, "classes of training (validation)")
    if unit == "new-classes" and data.draws_within_group:
        raise FewsureError("the classes of a task are of one group, so expected `unit` to be tasks; leave it out")
    if len(pool.classes) // 2 < data.way:
        raise FewsureError(
            f"{name}, test: a certificate splits the classes into halves of at least {data.way} (way), but there "
            f"are {len(pool.classes)}; certify a run with a smaller way"
        )

    def half(part: Pool, which: str) -> FreshTasks:
        on_device = part._replace(examples=part.examples.to(device), starts=part.starts.to(device))
        where = f"{name} test pool, {which} half"
        episodes = Episodes(
            on_device, way=data.way, shot=data.shot, query=data.query, within_group=data.draws_within_group, name=where
        )
        disjoint, alone = None, ""
        if unit == "new-classes":
            number = {class_name: index for index, class_name in enumerate(part.classes)}
            tasks = disjoint_tasks(part.classes, data.way, seed)
            disjoint = torch.tensor([[number[member] for member in task] for task in tasks], device=device)
            alone = ", no class in two tasks"
        groups = " of one group" if data.draws_within_group else ""
        description = (
            f"{where} ({len(part.classes)} of {len(pool.classes)} classes), {data.way}-way{groups} {data.shot}-shot, "
            f"{data.query} queries per class, {norm}{alone}"
        )
        return FreshTasks(description, episodes, disjoint)

    calibration, test = (restrict(pool, names) for names in split_classes(pool.classes))
    certified, others = half(calibration, "calibration"), {"other classes": half(test, "test")}
    unseen = others if unit == "new-classes" else {"other tasks": certified} | others
    return Environment(certified, unseen, calibration.checksum)


def fresh_blocks(
    experiment: Experiment, fresh: FreshTasks, part: str, tasks: int, seed: int, device: torch.device
) -> Iterator[UnseenBlock]:
    """The first `tasks` of them with all their random numbers, a block at a time; `part` names the random stream."""
    if fresh.available is not None:
        most = f"at most {fresh.available}, the tasks without a class in common ({fresh.description})"
        require(tasks <= fresh.available, "tasks", most, tasks)
    for index, first in enumerate(range(0, tasks, BLOCK)):
        generator = streams.generator(seed, "certify", part, index, device=device)
        block = with_noise(experiment, fresh.sample(first, BLOCK, generator), {}, generator)
        yield take(block, slice(0, min(count(block), tasks - first)))
