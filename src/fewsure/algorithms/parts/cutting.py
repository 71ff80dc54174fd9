"""Tasks of fewer classes, cut out of one with many: all of them share what was computed of its examples."""

import torch
from torch import Tensor

from fewsure.types import Batch, Task


def cut(task: Task, classes: Tensor, examples: Tensor) -> Task:
    """T tasks of W classes of a classification task, with a leading T and labels 0 … W − 1 in order.

    The keys choose: a task takes the classes with the smallest `classes` (T, C). Support and
    query examples of a class are put together, n in all. The smallest `examples` (T, W, n) choose as many support
    examples as before. The classes must have equally many examples.
    """
    count = classes.shape[-1]
    x, y = (torch.cat(parts) for parts in ((task.support.x, task.query.x), (task.support.y, task.query.y)))
    shot, number = len(task.support.y) // count, len(y) // count
    of_class = y.argsort(stable=True).view(count, number)
    chosen = classes.argsort(-1)[..., : examples.shape[-2]]
    rows = of_class[chosen].gather(-1, examples.argsort(-1))
    labels = chosen.new_ones(chosen.shape).cumsum(-1) - 1

    def batch(rows: Tensor) -> Batch:
        return Batch(x[rows.flatten(1)], labels.unsqueeze(-1).expand(rows.shape).flatten(1))

    return Task(batch(rows[..., :shot]), batch(rows[..., shot:]))
