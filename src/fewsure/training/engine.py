"""The meta-step: one-task code, vectorised over a meta-batch, averaged and differentiated."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fewsure.types import Algorithm, Info, Model, Noise, Parts, Stage, Task
from fewsure.vectorise import for_each_task


@dataclass(frozen=True)
class Engine:
    """Meta-losses and meta-gradients of an algorithm on a model."""

    algorithm: Algorithm
    model: Model
    chunk_size: int | None = None
    """Tasks that are held in memory at once; all of them if None. The numbers do not depend on it."""
    loop: bool = False
    """One task after another instead of vectorised. The numbers do not depend on it."""

    def loss(self, meta: Parts, tasks: Task, shared: Noise, noise: Noise, stage: Stage) -> tuple[Tensor, Info]:
        """The upper-level loss averaged over the tasks of a meta-batch, and each scalar of its info likewise."""

        def one_task(task_and_noise: tuple[Task, Noise], meta: Parts) -> tuple[Tensor, Info]:
            task, own = task_and_noise
            return self.algorithm.loss(meta, self.model, task, shared | own, stage)

        every_task = for_each_task(one_task, chunk_size=self.chunk_size, loop=self.loop)
        losses, info = every_task((tasks, noise), meta)
        return losses.mean(), {name: value.mean() for name, value in info.items()}

    def gradient(self, meta: Parts, tasks: Task, shared: Noise, noise: Noise, stage: Stage) -> tuple[Parts, Info]:
        """The gradient of `loss` in every meta-parameter, and its info."""
        gradient: Any = torch.func.grad(self.loss, has_aux=True)
        parts, info = gradient(meta, tasks, shared, noise, stage)
        return parts, {name: value.detach() for name, value in info.items()}
