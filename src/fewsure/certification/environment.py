"""Which tasks a certificate is about: fresh ones, from an environment with a name.

Tasks come from random streams of their own, (seed, "certify", part, block), which neither training nor `evaluate` uses.
The unit says what a new task is:

| unit | certified are | so that a new task may be |
|---|---|---|
| `tasks` | any number of draws of the sampler | another draw, from the same classes or groups |
| `new-tasks` | tasks that have no class, and no group, in common | of classes, or of a group, that nobody has seen |

Where tasks are made of classes, the test pool is split in two. The statements are about the calibration half; the
test half shows whether they carry over to other classes. The split goes by a hash of the classes' names, or of
the groups' where all classes of a task are of one group. Groups of rows are few as a rule: a certificate takes all of
them, and coverage is measured by leaving one out.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from fewsure.certification.freshness import STREAM
from fewsure.core import streams
from fewsure.core.vectorise import count, take
from fewsure.data import Data, Tasks
from fewsure.data.episodes import Episodes, RowTasks
from fewsure.data.pools import Pool, restrict
from fewsure.errors import FewsureError, require
from fewsure.evaluation.evaluate import BLOCK
from fewsure.theory.held_out import disjoint_tasks, split_classes
from fewsure.training.experiment import Experiment
from fewsure.types import Facts, Task

Unit = Literal["tasks", "new-tasks"]
"""One independent draw: a task of the sampler, or a task of classes or of a group that no other task has."""
NEW_DRAW = "a new task is a new draw of this sampler"


def unit_of(data: Data, asked: Unit | None) -> Unit:
    """The unit that was asked for; by default new tasks for a user's own data, and draws of the sampler elsewhere."""
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

    sampler: Episodes | RowTasks
    members: Tensor
    """The classes (T, way), or the groups of rows (T,), as numbers in the sampler's pool."""

    @property
    def available(self) -> int:
        return len(self.members)

    def sample(self, first: int, tasks: int, generator: torch.Generator) -> tuple[Task, Facts]:
        return self.sampler.sample_of(self.members[first : first + tasks], generator)


@dataclass(frozen=True)
class Environment:
    """The tasks that the statements about a run speak of."""

    certified: FreshTasks
    assumed: str
    """The assumption without which the statements are void."""
    unseen: Mapping[str, FreshTasks]
    """Sources of tasks that can check the statements, by name. `other tasks` are of the same environment, and absent if
    all its tasks are certified. `other classes` or `other groups` are of the test half."""
    checksum: str | None
    """The checksum of the data behind the certified tasks, if there are any."""


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


def _random_sample(what: str, size: str) -> str:
    return f"the {what} of these tasks, and those of a new one, are a random sample of all {what} with at least {size}"


def _of_sampler(experiment: Experiment, source: str, device: torch.device) -> Environment:
    data = experiment.data
    certified = FreshTasks(_described(experiment, source), data.tasks("test", device))
    return Environment(certified, NEW_DRAW, {"other tasks": certified}, data.checksum("test"))


def _of_rows(experiment: Experiment, unit: Unit, seed: int, device: torch.device) -> Environment:
    data = experiment.data
    tasks = data.tasks("test", device)
    assert isinstance(tasks, RowTasks)
    groups, size = len(tasks.pool.classes), f"{data.needed_examples} rows (shot + query)"
    if unit == "tasks":
        return _of_sampler(experiment, f"new draws from the {groups} tasks of its test split", device)
    _require_two(groups, f"{experiment.data_name}, test: tasks with {size}")
    order = torch.randperm(groups, generator=streams.generator(seed, STREAM, "order")).to(device)
    forecasts = f", {tasks.forecast:.0%} of them forecasts" if tasks.forecast else ""
    description = _described(experiment, f"the {groups} tasks of its test split, each once{forecasts}")
    certified = SeparateTasks(description, tasks, order)
    return Environment(certified, _random_sample("groups", size), {}, data.checksum("test"))


def _described(experiment: Experiment, source: str) -> str:
    data, dependence = experiment.data, _dependence(experiment)
    return f"{experiment.data_name}, {source}, {data.test_shot}-shot, {data.query} query points, {dependence}"


def _dependence(experiment: Experiment) -> str:
    return "transductive" if experiment.transductive else "not transductive"


def _of_classes(experiment: Experiment, unit: Unit, seed: int, device: torch.device) -> Environment:
    data, name = experiment.data, experiment.data_name
    pool, way, grouped = data.pool("test"), data.outputs, data.draws_within_group
    alone = f", no {'group' if grouped else 'class'} in two tasks" if unit == "new-tasks" else ""

    def fresh(part: Pool, which: str) -> FreshTasks:
        where = f"{name} test pool, {which} half"
        episodes = Episodes(
            part.to(device), way=way, shot=data.test_shot, query=data.query, within_group=grouped, name=where
        )
        made = f"{len(part.classes)} of {len(pool.classes)} classes"
        if grouped:
            made = f"{len(set(part.groups))} of {len(set(pool.groups))} groups, {made}"
        description = (
            f"{where} ({made}), {way}-way{' of one group' if grouped else ''} {data.test_shot}-shot, {data.query} "
            f"queries per class, {_dependence(experiment)}{alone}"
        )
        if unit == "tasks":
            return FreshTasks(description, episodes)
        members = _one_of_each_group(part, way, seed) if grouped else disjoint_tasks(len(part.classes), way, seed)
        return SeparateTasks(description, episodes, members.to(device))

    calibration, test = _halves(pool, way, grouped, name)
    certified = fresh(calibration, "calibration")
    if certified.available is not None:
        _require_two(certified.available, f"{certified.description}: tasks")
    unseen = {"other groups" if grouped else "other classes": fresh(test, "test")}
    if unit == "tasks":
        unseen = {"other tasks": certified} | unseen
    size = f"{data.needed_examples} examples (shot + query)"
    sample = ("groups", f"{way} classes of at least {size}") if grouped else ("classes", size)
    assumed = NEW_DRAW if unit == "tasks" else _random_sample(*sample)
    return Environment(certified, assumed, unseen, calibration.checksum)


def _halves(pool: Pool, way: int, grouped: bool, name: str) -> list[Pool]:
    """The parts of a pool with half of its classes each, or of the groups that can make a task."""
    owners = pool.groups if grouped else pool.classes
    enough = [owner for owner, classes in Counter(owners).items() if classes >= (way if grouped else 1)]
    if len(enough) < (2 if grouped else 2 * way):
        split = f"groups with at least {way} classes (way)" if grouped else "classes"
        least = "" if grouped else f" of at least {way} (way)"
        raise FewsureError(
            f"{name}, test: a certificate splits the {split} into halves{least}, but there "
            f"{'is' if len(enough) == 1 else 'are'} {len(enough)}; certify a run with a smaller way, or with more "
            f"{'groups' if grouped else 'classes'} to test on"
        )
    pairs = list(zip(pool.classes, owners, strict=True))
    return [restrict(pool, [name for name, owner in pairs if owner in half]) for half in split_classes(enough)]


def _one_of_each_group(pool: Pool, way: int, seed: int) -> Tensor:
    """Tasks (T, way) of one group each, as numbers in the pool; every group makes one."""
    generator, groups = streams.generator(seed, STREAM, "groups"), sorted(set(pool.groups))
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
