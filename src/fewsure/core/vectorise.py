"""From one task to many: the only place that knows of the task dimension.

`for_each` turns a function of one task into one of a whole meta-batch, by `torch.func.vmap` or by a plain loop. Random
numbers are arguments, so both give the same numbers.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from fewsure.types import Draw, Network, Noise, NoiseSpec


def for_each(function: Callable[..., Any], *, loop: bool = False) -> Callable[..., Any]:
    """`function(tree of one task, shared)` → a function of (tree with a leading T, shared) with results stacked."""

    def looped(tasks: Any, shared: Any) -> Any:
        results = [function(take(tasks, index), shared) for index in range(count(tasks))]
        return pytree.tree_map(lambda *leaves: torch.stack(leaves), *results)

    return looped if loop else torch.func.vmap(function, in_dims=(0, None))


SMALL_IMAGE = 32 * 32


def better_looped(network: Network, device: torch.device, *, shared_layer: bool = False) -> bool:
    """Whether many networks are faster one after the other: on a CPU, those that convolve (`benchmarks/vectorised.py`).

    In training, tasks that share a large layer gain more by passing over it together than small images lose.
    """
    return device.type == "cpu" and network.pixels > (SMALL_IMAGE if shared_layer else 0)


def count(tree: Any) -> int:
    """T, of a tree whose leaves have a leading T."""
    return int(pytree.tree_leaves(tree)[0].shape[0])


def take(tree: Any, index: int | slice) -> Any:
    """The tasks at `index` of a tree whose leaves have a leading T."""
    return pytree.tree_map(lambda leaf: leaf[index], tree)


def draw_noise(spec: NoiseSpec, tasks: int, generator: torch.Generator) -> tuple[Noise, Noise]:
    """(shared, per-task with a leading T): every random number of a meta-batch, in the order of the specification."""
    shared = {name: _draw(draw.shape, draw, generator) for name, draw in spec.shared.items()}
    return shared, draw_per_task(spec.task, tasks, generator)


def draw_per_task(draws: Mapping[str, Draw], tasks: int, generator: torch.Generator) -> Noise:
    """Each draw once per task, with a leading T."""
    return {name: _draw((tasks, *draw.shape), draw, generator) for name, draw in draws.items()}


def _draw(shape: tuple[int, ...], draw: Draw, generator: torch.Generator) -> Tensor:
    make = torch.randn if draw.kind == "normal" else torch.rand
    return make(shape, generator=generator, device=generator.device)
