"""Work that is recorded once and replayed: as a CUDA graph on a GPU, as a list of kernels on a CPU."""

import threading
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from fewsure.core.cpu_graph import CpuGraph
from fewsure.core.cuda_graph import CudaGraph


def recording(generator: torch.Generator, *, name: str, records: bool) -> CpuGraph[Any] | CudaGraph[Any]:
    """What does a piece of work, which draws from `generator`, again and again on its device.

    Only the content of tensors that stay where they are, and the seed of the generator, may differ from one time to the
    next. `name` says in a warning what cannot be recorded.
    """
    if generator.device.type == "cuda":
        return CudaGraph(generator, name=name, records=records)
    return CpuGraph(name=name, records=records)


class Replayed:
    """A function of trees of tensors on a CPU, recorded once for each thread and each set of shapes.

    The next call in a thread overwrites what it returns.
    """

    def __init__(self, function: Callable[..., Any], *, name: str) -> None:
        """`name` says in a warning what cannot be recorded."""
        self._function = function
        self._name = name
        self._of_thread = threading.local()

    def __call__(self, *arguments: Any) -> Any:
        recorded: dict[Any, Any] = vars(self._of_thread)
        given, spec = pytree.tree_flatten(arguments)
        shapes = tuple(leaf.shape if isinstance(leaf, Tensor) else leaf for leaf in given)
        if shapes not in recorded:
            kept = [leaf.clone() if isinstance(leaf, Tensor) else leaf for leaf in given]
            recorded[shapes] = kept, CpuGraph[Any](name=self._name, records=True)
        kept, graph = recorded[shapes]
        for leaf, value in zip(kept, given, strict=True):
            if isinstance(leaf, Tensor):
                leaf.copy_(value)
        return graph(lambda: self._function(*pytree.tree_unflatten(kept, spec)))
