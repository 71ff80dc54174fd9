"""From one task to many: the only place that knows of the task dimension.

`for_each` turns a function of one task into one of a whole meta-batch, by `torch.func.vmap` or by a plain loop. Random
numbers are arguments, so both give the same numbers.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from fewsure.core.cores import map_in_threads
from fewsure.types import Draw, Network, Noise, NoiseSpec


def for_each(function: Callable[..., Any], *, loop: bool = False, threads: bool = False) -> Callable[..., Any]:
    """`function(tree of one task, shared)` → a function of (tree with a leading T, shared) with results stacked.

    A loop takes one task after the other, or several at a time in `threads`.
    """

    def vectorised(tasks: Any, shared: Any) -> Any:
        leaves, spec = pytree.tree_flatten(tasks)  # vmap takes tensors alone, and None means that there is none

        def of_tensors(tensors: list[Tensor], shared: Any) -> Any:
            left = iter(tensors)
            task = pytree.tree_unflatten([None if leaf is None else next(left) for leaf in leaves], spec)
            return function(task, shared)

        return torch.func.vmap(of_tensors, in_dims=(0, None))([leaf for leaf in leaves if leaf is not None], shared)

    def looped(tasks: Any, shared: Any) -> Any:
        run = map_in_threads if threads else map
        results = list(run(lambda index: function(take(tasks, index), shared), range(count(tasks))))
        return pytree.tree_map(lambda *leaves: torch.stack(leaves), *results)

    return looped if loop else vectorised


def for_components(function: Callable[..., Any], *stacks: Tensor | None) -> Any:
    """The results of `function` for each of K components, stacked, from tensors with a leading K.

    A loop: `vmap` would copy a matrix that all tasks share for each of them.
    """
    components = next(len(stack) for stack in stacks if stack is not None)
    each = ([None] * components if stack is None else stack.unbind() for stack in stacks)
    return stack_components([function(*one) for one in zip(*each, strict=True)])


def stack_components(components: Sequence[Any]) -> Any:
    """Trees of K components as one with a leading K. A single component is not copied."""

    def stack(*leaves: Tensor | None) -> Tensor | None:
        tensors = [leaf for leaf in leaves if leaf is not None]
        return None if not tensors else tensors[0].unsqueeze(0) if len(tensors) == 1 else torch.stack(tensors)

    return pytree.tree_map(stack, *components)


SMALL_IMAGE = 32 * 32


def better_looped(network: Network, device: torch.device, *, shared_layer: bool = False) -> bool:
    """Whether many networks are faster one by one: on a CPU, convolutions (`benchmarks/vectorised.py`).

    In training, tasks that share a large layer gain more by passing over it together than small images lose.
    """
    if device.type != "cpu" or network.maps is None:
        return False
    _, height, width = network.maps
    return not shared_layer or height * width > SMALL_IMAGE


def indicators(y: Tensor, classes: int) -> Tensor:
    """(…, classes): whether each number is that of the class. Unlike `one_hot` it does not look at the numbers.

    >>> indicators(torch.tensor([1, 0]), 2)
    tensor([[False,  True],
            [ True, False]])
    """
    return y.unsqueeze(-1) == torch.arange(classes, device=y.device)


def count(tree: Any) -> int:
    """T, of a tree whose leaves have a leading T."""
    return int(pytree.tree_leaves(tree)[0].shape[0])


def take(tree: Any, index: int | slice) -> Any:
    """The tasks at `index` of a tree whose leaves have a leading T, or are None."""
    return pytree.tree_map(lambda leaf: None if leaf is None else leaf[index], tree)


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
