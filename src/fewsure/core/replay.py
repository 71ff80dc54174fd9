"""A function of tensors, recorded once on a CPU as the plain operations that it comes to, and replayed.

Vectorisation and differentiation cost the host more than the arithmetic of a small network does. A recording has
neither. It makes the same operations in the same order, so its numbers are the same to the last bit. A compiler can
then fuse what was recorded.
"""

import shutil
import sys
import warnings
from collections.abc import Callable
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor, fx
from torch.utils import _pytree as pytree

from fewsure.errors import FewsureError, require
from fewsure.types import Network

PLAIN_CALLS = 100
"""Calls before one is recorded, which takes a second or two: short trainings do without."""

Result = TypeVar("Result")


class Replay(Generic[Result]):
    """Calling it calls a function of trees of tensors; after so many plain calls it replays a recording of one.

    The function must not draw random numbers, nor decide anything by the numbers in its tensors. Tensors of other
    shapes than the recorded ones are given to the function itself. With `compiled`, the first call records and
    compiles; numbers then differ by rounding. A function that cannot be recorded is called plainly, with a warning.
    """

    def __init__(
        self, function: Callable[..., Result], plain_calls: int = PLAIN_CALLS, *, compiled: bool = False
    ) -> None:
        self._function = function
        self._plain_calls = 0 if compiled else plain_calls
        self._compiled = compiled
        self._calls = 0
        self._recorded: Callable[..., Any] | None = None
        self._shapes: list[torch.Size] = []
        self._spec: Any = None

    @property
    def is_recorded(self) -> bool:
        """Whether calls are replays by now."""
        return self._recorded is not None

    def __call__(self, *arguments: Any) -> Result:
        self._calls += 1
        if self._calls <= self._plain_calls:
            return self._function(*arguments)
        tensors = _tensors(arguments)
        shapes = [tensor.shape for tensor in tensors]
        if self._recorded is None:
            self._shapes = shapes
            try:
                self._recorded = self._record(arguments, tensors)
            except RuntimeError as error:
                self._plain_calls = sys.maxsize
                warnings.warn(f"an update cannot be recorded, and takes longer ({error})", stacklevel=2)
        if self._recorded is None or shapes != self._shapes:
            return self._function(*arguments)
        with torch.no_grad():
            found = self._recorded(*tensors)
        result: Result = pytree.tree_unflatten(found, self._spec)
        return result

    def _record(self, arguments: tuple[Any, ...], tensors: list[Tensor]) -> Callable[..., Any]:
        from torch.fx.experimental.proxy_tensor import make_fx  # a second, which short trainings need not wait for

        leaves, spec = pytree.tree_flatten(arguments)

        def of_tensors(*tensors: Tensor) -> list[Tensor]:
            left = iter(tensors)
            filled = [next(left) if isinstance(leaf, Tensor) else leaf for leaf in leaves]
            found, self._spec = pytree.tree_flatten(self._function(*pytree.tree_unflatten(filled, spec)))
            return found

        graph = make_fx(of_tensors)(*tensors)
        _leave_out_idle(graph)
        if not self._compiled:
            return graph
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # torch's compiler warns of torch
            compiled = torch.compile(graph)
            compiled(*tensors)
        return compiled


def require_compilable(network: Network) -> None:
    """Refuse to compile convolutions, and where there is no C++ compiler."""
    require(network.maps is None, "compile", "off for convolutions, which gain nothing", True)
    if not any(map(shutil.which, ("g++", "clang++", "c++"))):
        raise FewsureError("expected a C++ compiler (g++) for --compile, but found none; install one or leave it out")


def _tensors(tree: Any) -> list[Tensor]:
    return [leaf for leaf in pytree.tree_leaves(tree) if isinstance(leaf, Tensor)]


_ATEN = torch.ops.aten
_IDLE = {_ATEN.detach.default, _ATEN.alias.default, _ATEN.expand.default, _ATEN.view.default}
"""Operations that do nothing where their result has the shape of what they take."""


def _leave_out_idle(graph: fx.GraphModule) -> None:
    """Remove operations whose result nobody takes, or that do nothing."""
    for node in graph.graph.nodes:
        if node.target in _IDLE and node.args[0].meta["val"].shape == node.meta["val"].shape:
            node.replace_all_uses_with(node.args[0])
    graph.graph.eliminate_dead_code()
    graph.recompile()
