"""Tasks of training classes, made from whole groups, and the few numbers with which a method solves them best."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from fewsure.algorithms.parts.group_evidence import minimise
from fewsure.core.vectorise import for_each, stack_components
from fewsure.types import Algorithm, Batch, Model, Parts, Stage, Task

CLASSES, EACH = 100, 10
"""The most training classes, and examples of each, that tasks are made of."""
TASKS = 50
"""Tasks of each number of known examples."""
SHOTS = (1, 5)
"""Known examples of each class: how many a user will have is not known yet."""
ROWS, KNOWN = 50, (2, 5, 16)
"""The most examples of a task whose classes are fixed, and how many of them are known."""


def fit_to_tasks(
    algorithm: Algorithm,
    meta: Parts,
    learned: Sequence[str],
    model: Model,
    groups: Sequence[Batch],
    generator: torch.Generator,
) -> Parts:
    """Meta-parameters whose parts `learned`, which are logarithms, minimise the loss on tasks of training classes."""
    sets = whole_tasks(groups, generator) if model.fixed_classes else tasks_of_classes(model.outputs, groups, generator)
    own = model if model.fixed_classes else model._replace(outputs=min(model.outputs, len(groups)))

    def loss_of(task: Task, parts: Parts) -> Tensor:
        return algorithm.loss(parts, own, task, {}, Stage(torch.tensor(0), TASKS, 0))[0]

    def loss(logarithms: Parts) -> Tensor:
        means = [for_each(loss_of)(tasks, meta | logarithms).mean() for tasks in sets]
        return torch.stack(means).mean()

    found: Any = minimise(loss, {part: meta[part] for part in learned})
    return meta | {
        part: {name: value.to(meta[part][name]) for name, value in params.items()} for part, params in found.items()
    }


def tasks_of_classes(way: int, groups: Sequence[Batch], generator: torch.Generator) -> list[Task]:
    """Tasks for each number of known examples, stacked; the other examples of their classes are to be predicted."""
    place = generator.device
    classes = torch.randperm(len(groups), generator=generator, device=place)[:CLASSES].tolist()
    each = min(EACH, *(len(groups[number].x) for number in classes))
    drawn = []
    for number in classes:
        x = groups[number].x
        drawn.append(x[torch.randperm(len(x), generator=generator, device=place)[:each]])
    examples, way = torch.stack(drawn), min(way, len(drawn))

    def part(x: Tensor) -> Batch:
        return Batch(x.flatten(0, 1), torch.arange(way, device=place).repeat_interleave(x.shape[1]))

    def task(shot: int) -> Task:
        x = examples[torch.randperm(len(examples), generator=generator, device=place)[:way]]
        return Task(part(x[:, :shot]), part(x[:, shot:]))

    return [stack_components([task(shot) for _ in range(TASKS)]) for shot in SHOTS if shot < each]


def whole_tasks(groups: Sequence[Batch], generator: torch.Generator) -> list[Task]:
    """Training tasks with fixed classes for each number of known examples, drawn as they come, stacked."""
    place, sizes = generator.device, torch.tensor([float(len(group.x)) for group in groups])
    each = min(ROWS, int(sizes.quantile(0.25, interpolation="lower")))
    large = [number for number, size in enumerate(sizes.tolist()) if size >= each]

    def task(shot: int) -> Task:
        group = groups[large[int(torch.randint(len(large), (), generator=generator, device=place))]]
        rows = torch.randperm(len(group.x), generator=generator, device=place)[:each]
        known, asked = rows[:shot], rows[shot:]
        return Task(Batch(group.x[known], group.y[known]), Batch(group.x[asked], group.y[asked]))

    return [stack_components([task(shot) for _ in range(TASKS)]) for shot in KNOWN if shot < each]
