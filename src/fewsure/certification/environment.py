"""Which tasks a certificate is about: fresh ones, from an environment with a name.

Tasks come from random streams of their own, (seed, "certify", part, block), which neither training nor `evaluate` uses.
The unit says what a new task is:

| unit | certified are | so that a new task may be |
|---|---|---|
| `tasks` | any number of draws of the sampler | another draw, from the same classes or groups |
| `new-tasks` | tasks that have no class, and no group, in common | of classes, or of a group, that nobody has seen |

Where tasks are made of classes, the test pool is split into a calibration half, which the statements are about, and a
test half, on which one can see whether they carry over to other classes: by a hash of the names of the classes or,
where all classes of a task are of one group, of the groups. Of groups of rows there are few as a rule, so that a
certificate takes them all, and coverage is measured by leaving one out.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from fewsure.certification.freshness import STREAM
from fewsure.core import streams
from fewsure.core.vectorise import count, take
from fewsure.data import Data, PoolTasks, Tasks
from fewsure.data.episodes import Episodes, RowTasks
from fewsure.data.pools import Pool, restrict
from fewsure.errors import FewsureError, require
from fewsure.evaluation.evaluate import BLOCK
from fewsure.theory.held_out import disjoint_tasks, split_classes
from fewsure.training.experiment import Experiment
from fewsure.types import Facts, Task

Unit = Literal["tasks", "new-tasks"]
"""What counts as one independent draw: a task of the sampler, or a task of classes or of a group that no other has."""
ASSUMED: dict[Unit, str] = {
    "tasks": "a new task is a new draw of this sampler",
    "new-tasks": "the classes or groups of these tasks, and those of a new one, are a random sample of all of them",
}
"""Without which the statements are void."""


def unit_of(data: Data, asked: Unit | None) -> Unit:
    """The unit that was asked for; if none was, a user's own data are about new tasks, others about their sampler."""
    return asked or ("new-tasks" if data.own else "tasks")


@dataclass(frozen=True)
class FreshTasks:
    """Tasks that had no part in training."""

    description: str
    """Where they come from, in words."""
    sampler: Tasks

    @property
    def available(self) -> int | None:
        """How many there are; None for any number."""
        return None

    def sample(self, first: int, tasks: int, generator: torch.Generator) -> tuple[Task, Facts]:
        """So many tasks, or as many as there are from number `first` on."""
        return self.sampler.sample(tasks, generator)


@dataclass(frozen=True)
class SeparateTasks(FreshTasks):
    """The only tasks there are, where no two may have a class or a group in common."""

    sampler: PoolTasks
    members: Tensor
    """The classes (T, way), or the groups of rows (T,), as numbers in the sampler's pool."""

    @property
    def available(self) -> int:
        return len(self.members)

    def sample(self, first: int, tasks: int, generator: torch.Generator) -> tuple[Task, Facts]:
        return self.sampler.sample_of(self.members[first : first + tasks], generator)


@dataclass(frozen=True)
class Environment:
    """What the statements about a run are about."""

    certified: FreshTasks
    unseen: Mapping[str, FreshTasks]
    """Where tasks come from that the statements have not seen, on which they can be checked, by name: `other tasks` of
    the same environment (none if the certified ones are all there are), `other classes` or `other groups` of the test
    half."""
    checksum: str | None
    """Of the data behind the certified tasks, if there are any."""


def environment_of(experiment: Experiment, unit: Unit, seed: int, device: torch.device) -> Environment:
    """The fresh tasks of an experiment. That they are fresh, `freshness` sees to."""
    if experiment.data.unit == "classes":
        return _of_classes(experiment, unit, seed, device)
    if experiment.data.unit == "tasks":
        return _of_rows(experiment, unit, seed, device)
    if unit == "new-tasks":
        raise FewsureError(
            f"every draw of {experiment.data_name} is a new task, so expected `unit` to be tasks; leave it out"
        )
    return _of_sampler(experiment, "new draws of its sampler", device)


def _of_sampler(experiment: Experiment, source: str, device: torch.device) -> Environment:
    data = experiment.data
    certified = FreshTasks(_described(experiment, source), data.tasks("test", device))
    return Environment(certified, {"other tasks": certified}, data.checksum("test"))


def _of_rows(experiment: Experiment, unit: Unit, seed: int, device: torch.device) -> Environment:
    data = experiment.data
    tasks = RowTasks(data.pool("test").to(device), shot=data.shot, query=data.query)
    groups = len(tasks.pool.classes)
    if unit == "tasks":
        return _of_sampler(experiment, f"new draws from the {groups} tasks of its test split", device)
    _require_two(groups, f"{experiment.data_name}, test: tasks with {data.shot + data.query} rows (shot + query)")
    order = torch.randperm(groups, generator=streams.generator(seed, STREAM, "order")).to(device)
    description = _described(experiment, f"the {groups} tasks of its test split, each once")
    return Environment(SeparateTasks(description, tasks, order), {}, data.checksum("test"))


def _described(experiment: Experiment, source: str) -> str:
    data, dependence = experiment.data, _dependence(experiment)
    return f"{experiment.data_name}, {source}, {data.shot}-shot, {data.query_size} query points, {dependence}"


def _dependence(experiment: Experiment) -> str:
    return "transductive" if experiment.transductive else "not transductive"


def _of_classes(experiment: Experiment, unit: Unit, seed: int, device: torch.device) -> Environment:
    data, name = experiment.data, experiment.data_name
    pool, way, grouped = data.pool("test"), data.outputs, data.draws_within_group
    names = _halves_by_group(pool, way, name) if grouped else _halves(pool, way, name)
    halves = [restrict(pool, half) for half in names]
    alone = f", no {'group' if grouped else 'class'} in two tasks" if unit == "new-tasks" else ""

    def fresh(part: Pool, which: str) -> FreshTasks:
        where = f"{name} test pool, {which} half"
        episodes = Episodes(
            part.to(device), way=way, shot=data.shot, query=data.query, within_group=grouped, name=where
        )
        made = f"{len(part.classes)} of {len(pool.classes)} classes"
        if grouped:
            made = f"{len(set(part.groups))} of {len(set(pool.groups))} groups, {made}"
        description = (
            f"{where} ({made}), {way}-way{' of one group' if grouped else ''} {data.shot}-shot, {data.query} "
            f"queries per class, {_dependence(experiment)}{alone}"
        )
        if unit == "tasks":
            return FreshTasks(description, episodes)
        return SeparateTasks(description, episodes, _members(part, way, seed, grouped).to(device))

    certified = fresh(halves[0], "calibration")
    if certified.available is not None:
        _require_two(certified.available, f"{certified.description}: tasks")
    unseen = {"other groups" if grouped else "other classes": fresh(halves[1], "test")}
    if unit == "tasks":
        unseen = {"other tasks": certified} | unseen
    return Environment(certified, unseen, halves[0].checksum)


def _halves(pool: Pool, way: int, name: str) -> tuple[Sequence[str], Sequence[str]]:
    """The names of the classes of each half."""
    if len(pool.classes) // 2 < way:
        raise FewsureError(
            f"{name}, test: a certificate splits the classes into halves of at least {way} (way), but there are "
            f"{len(pool.classes)}; certify a run with a smaller way, or with more classes to test on"
        )
    return split_classes(pool.classes)


def _halves_by_group(pool: Pool, way: int, name: str) -> tuple[Sequence[str], Sequence[str]]:
    """The names of the classes of each half, of those groups that can make a task."""
    large = [group for group in sorted(set(pool.groups)) if pool.groups.count(group) >= way]
    if len(large) < 2:
        raise FewsureError(
            f"{name}, test: all classes of a task are of one group, and a certificate splits the groups with at least "
            f"{way} classes (way) into halves, but there {'is' if len(large) == 1 else 'are'} {len(large)}; certify a "
            "run with a smaller way, or with more groups to test on"
        )
    first, second = (
        [member for member, group in zip(pool.classes, pool.groups, strict=True) if group in half]
        for half in split_classes(large)
    )
    return first, second


def _members(pool: Pool, way: int, seed: int, grouped: bool) -> Tensor:
    """Tasks (T, way) with no class in common, as numbers in the pool; one of each group, where a task is of one."""
    number = {name: index for index, name in enumerate(pool.classes)}
    if not grouped:
        tasks = disjoint_tasks(pool.classes, way, seed)
        return torch.tensor([[number[member] for member in task] for task in tasks])
    generator = streams.generator(seed, STREAM, "groups")
    groups = sorted(set(pool.groups))
    order = [groups[index] for index in torch.randperm(len(groups), generator=generator).tolist()]
    rows = [torch.tensor([index for index, group in enumerate(pool.groups) if group == one]) for one in order]
    return torch.stack([row[torch.randperm(len(row), generator=generator)[:way]] for row in rows])


def _require_two(tasks: int, what: str) -> None:
    if tasks < 2:
        raise FewsureError(
            f"{what} without anything in common: expected at least 2 of them for a certificate about new tasks, but "
            f"there is {tasks}; hold out more, or choose --unit tasks, which is about new draws from the same"
        )


def fresh_blocks(
    fresh: FreshTasks, part: str, tasks: int, seed: int, device: torch.device
) -> Iterator[tuple[Task, Facts]]:
    """The first `tasks` of them, a block at a time; `part` names the random stream."""
    if fresh.available is not None:
        most = f"at most {fresh.available}, the tasks without a class or group in common ({fresh.description})"
        require(tasks <= fresh.available, "tasks", most, tasks)
    for index, first in enumerate(range(0, tasks, BLOCK)):
        generator = streams.generator(seed, STREAM, part, index, device=device)
        block = fresh.sample(first, BLOCK, generator)
        yield take(block, slice(0, min(count(block), tasks - first)))
