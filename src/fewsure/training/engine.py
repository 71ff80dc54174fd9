"""The meta-step: one-task code, vectorised over a meta-batch, averaged and differentiated."""

from dataclasses import dataclass
from functools import cached_property, partial, reduce
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from fewsure.core.cores import map_in_threads
from fewsure.core.recording import Replayed
from fewsure.core.vectorise import better_looped, count, for_each, take
from fewsure.kernels.fused import fused_kernels
from fewsure.types import Algorithm, Info, Model, Noise, Parts, Stage, Task


@dataclass(frozen=True)
class Engine:
    """Meta-losses and meta-gradients of an algorithm on a model."""

    algorithm: Algorithm
    model: Model
    chunk_size: int | None = None
    """Tasks that are held in memory at once; all of them if None. The numbers do not depend on it."""
    loop: bool = False
    """One task after another instead of vectorised. The numbers do not depend on it."""
    threads: bool = False
    """Chunks side by side, in threads of one core each, in which they are recorded and replayed. The numbers do not
    depend on it, but for rounding."""
    fuses: bool = True
    """Use fused kernels where they fit. The numbers do not depend on it, but for rounding."""

    @classmethod
    def fastest(cls, algorithm: Algorithm, model: Model, device: torch.device, chunk_size: int | None) -> "Engine":
        """Vectorised or looped, whichever is faster for the model on the device."""
        loop = better_looped(model.network, device, shared_layer=algorithm.shares_a_layer(model))
        return cls(algorithm, model, 1 if loop else chunk_size, loop, threads=loop)

    def loss(self, meta: Parts, tasks: Task, shared: Noise, noise: Noise, stage: Stage) -> tuple[Tensor, Info]:
        """The upper-level loss averaged over the tasks of a meta-batch, and each scalar of its info likewise."""

        def one_task(task_and_noise: tuple[Task, Noise], meta: Parts) -> tuple[Tensor, Info]:
            task, own = task_and_noise
            return self.algorithm.loss(meta, self.model.given(task.support), task, shared | own, stage)

        losses, info = for_each(one_task, loop=self.loop)((tasks, noise), meta)
        return losses.mean(), {name: value.mean() for name, value in info.items()}

    def gradient(self, meta: Parts, tasks: Task, shared: Noise, noise: Noise, stage: Stage) -> tuple[Parts, Info]:
        """The gradient of `loss` in every meta-parameter, and its info: the sum of what each chunk of tasks adds."""
        of_chunk = self._replayed if self.threads else self._of_chunk
        total = count(tasks)
        size = min(self.chunk_size or total, total)

        def share_of_chunk(first: int) -> Any:
            chunk = slice(first, first + size)
            share = (min(first + size, total) - first) / total
            found = of_chunk(meta, take(tasks, chunk), shared, take(noise, chunk), stage)
            return found if share == 1 else pytree.tree_map(lambda value: share * value, found)

        run = map_in_threads if self.threads else map
        with fused_kernels(allowed=self.fuses and not self.algorithm.differentiates_twice):
            parts, info = reduce(partial(pytree.tree_map, torch.add), run(share_of_chunk, range(0, total, size)))
        return parts, info

    @cached_property
    def _replayed(self) -> Replayed:
        return Replayed(self._of_chunk, name="the update of a task")

    def _of_chunk(self, meta: Parts, tasks: Task, shared: Noise, noise: Noise, stage: Stage) -> tuple[Parts, Info]:
        """The gradient of `loss` and its info, of tasks that are held in memory at once.

        `torch.func.grad` would do, but prepares a second derivative, which takes a fifth longer.
        """
        values, spec = pytree.tree_flatten(meta)
        leaves = [value.detach().requires_grad_() for value in values]
        with torch.enable_grad():
            found, info = self.loss(pytree.tree_unflatten(leaves, spec), tasks, shared, noise, stage)
            gradient = torch.autograd.grad(found, leaves, materialize_grads=True)
        return pytree.tree_unflatten(gradient, spec), {name: value.detach() for name, value in info.items()}
