"""Work that is done again and again on a CPU, recorded once as the kernels that it comes to, and replayed.

Vectorisation, differentiation and memory cost the host more than the arithmetic of a small network does. A replay has
none of them: it calls the same kernels in the same order on memory that stays, so its numbers are the same to the last
bit. As with a CUDA graph, only the content of tensors that stay where they are, and the seed of the work's generator,
may differ from one replay to the next.
"""

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, Generic, Literal, NamedTuple, TypeVar

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

PLAIN_CALLS = 3
"""Calls before one is recorded, so that what the work prepares for itself is there."""

Kernel = Callable[[], object]
Role = Literal["outer", "constant", "inner"]
Result = TypeVar("Result")


class CpuGraph(Generic[Result]):
    """Calling it with a piece of work, the same each time, does it.

    The next call overwrites what the work returns. Work that decides by the numbers in its tensors is called plainly,
    with a warning, and so is all work where `records` is false.
    """

    def __init__(self, *, name: str, records: bool) -> None:
        """`name` says in a warning what cannot be recorded."""
        self._name = name
        self._records = records
        self._calls = 0
        self._kernels: list[Kernel] | None = None
        self._result: Any = None

    @property
    def is_recorded(self) -> bool:
        """Whether calls are replays by now."""
        return self._kernels is not None

    def __call__(self, work: Callable[[], Result]) -> Result:
        self._calls += 1
        if not self._records or self._calls <= PLAIN_CALLS:
            return work()
        if self._kernels is None:
            return self._record(work)
        with torch.inference_mode():
            for kernel in self._kernels:
                kernel()
        result: Result = self._result
        return result

    def _record(self, work: Callable[[], Result]) -> Result:
        """Do the work, and note what it calls."""
        recorder = _Recorder()
        with recorder:
            result = self._result = work()
        if recorder.unfit is None:
            self._kernels = recorder.kernels()
        else:
            self._records = False
            warnings.warn(f"{self._name} cannot be recorded, and takes longer ({recorder.unfit})", stacklevel=3)
        return result


@dataclass(eq=False)
class _Memory:
    """What some tensors lie in."""

    weak: Any
    """A weak reference; it also keeps the number of this memory from being given to another."""
    size: int
    role: Literal["outer", "constant", "inner"]
    """Whether it was there before the work, holds numbers that are always the same, or others."""
    storage: torch.UntypedStorage | None = None
    """The memory in replays, if the work's own tensors are not there any more."""
    taken: Tensor | None = None
    """Instead, the tensor that takes up what an operation returns, where all tensors in the memory are alike."""
    last: int = -1
    """The number of the call that uses it last."""


class _View(NamedTuple):
    """A tensor: where it lies in a memory; and the tensor itself, unless that memory is an inner one."""

    memory: _Memory
    dtype: torch.dtype
    offset: int
    shape: torch.Size
    strides: tuple[int, ...]
    tensor: Tensor | None

    def made(self) -> Tensor:
        """The tensor in the memory of replays."""
        if self.tensor is not None:
            return self.tensor
        if self.memory.taken is not None:
            return self.memory.taken
        assert self.memory.storage is not None
        return torch.empty(0, dtype=self.dtype).set_(self.memory.storage, self.offset, self.shape, self.strides)


class _Call(NamedTuple):
    """An operation on views, and the views that it fills; none where it changes what it is given."""

    operation: Any
    arguments: tuple[Any, ...]
    options: dict[str, Any]
    results: tuple[_View, ...] = ()

    @property
    def name(self) -> str:
        """Of the operation, whatever it is given."""
        return str(self.operation.overloadpacket.__name__)

    @property
    def given(self) -> list[_View]:
        """The tensors whose numbers it takes."""
        leaves = pytree.tree_leaves((self.arguments, self.options), is_leaf=_is_view)
        return [leaf for leaf in leaves if _is_view(leaf)] if self.name not in _SHAPED else []

    @property
    def reads(self) -> set[_Memory]:
        """The memories of the numbers that it is given, and may change."""
        return {view.memory for view in self.given}

    @property
    def fills(self) -> set[_Memory]:
        """The memories of its results."""
        return {view.memory for view in self.results}

    @property
    def is_random(self) -> bool:
        """Whether it draws from a generator."""
        return torch.Tag.nondeterministic_seeded in self.operation.tags

    @property
    def only_returns(self) -> bool:
        """Whether it cannot fill tensors that are there."""
        fills = self.name in _SHAPED | _COPIES or self.operation in _SAME or _into(self.operation) is not None
        return bool(self.results) and not fills

    def kernel(self) -> Kernel:
        """The same in the memory of replays."""
        results = [view.made() for view in self.results]
        if self.name in _SHAPED:
            return partial(results[0].fill_, float("ones" in self.name))
        given = (self.arguments, self.options)
        arguments, options = pytree.tree_map_only(_View, _View.made, given, is_leaf=_is_view)
        if self.name in _COPIES:
            return partial(results[0].copy_, arguments[0])
        if not results:
            return partial(self.operation._op, *arguments, **options)
        if self.name == "bmm" and arguments[0].shape[-1] == 1:  # many times faster, with the same numbers
            return partial(torch.mul, *arguments, out=results[0])
        if self.only_returns:
            takers: list[Any] = [
                view.made().copy_ if view.memory.taken is None else view.made().set_ for view in self.results
            ]
            return partial(_take_results, takers, partial(self.operation._op, *arguments, **options))
        into, *more = _SAME.get(self.operation, (_into(self.operation),))
        schema = into._schema.arguments
        options = {name: value for name, value in options.items() if name in {argument.name for argument in schema}}
        outs = [argument.name for argument in schema if argument.is_out]
        function: Kernel = into._op
        if outs == ["out"]:  # torch's own function of that name, where there is one, takes less time to call
            function = getattr(torch._C._VariableFunctions, into.overloadpacket.__name__, function)
        return partial(function, *arguments, *more, **options, **dict(zip(outs, results, strict=True)))


class _Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes each operation on tensors, below vectorisation and differentiation."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.unfit: str | None = None
        """Why this cannot be replayed."""
        self._calls: list[_Call] = []
        self._memories: dict[int, _Memory] = {}

    def __torch_dispatch__(self, operation: Any, types: Any, arguments: Any = (), options: Any = None) -> Any:
        options = options or {}
        if operation.namespace == "profiler":  # the marks that torch's optimisers set
            return operation(*arguments, **options)
        given = pytree.tree_map_only(Tensor, partial(self._view, role="outer"), (arguments, options))
        found = operation(*arguments, **options)
        results = _tensors(found)
        if not all(isinstance(leaf, Tensor) for leaf in results) or _has_shape_of_numbers(operation, arguments):
            self.unfit = f"{operation} gives the host numbers"
            return found
        call = _Call(operation, *given)
        if operation._schema.is_mutable:
            self._calls.append(call)
        elif any(_weak(tensor).cdata not in self._memories for tensor in results):  # others are views, which stay
            constant = not call.is_random and all(memory.role == "constant" for memory in call.reads)
            role: Role = "constant" if constant else "inner"
            self._calls.append(call._replace(results=tuple(self._view(tensor, role) for tensor in results)))
        return found

    def kernels(self) -> list[Kernel]:
        """What a replay calls, one after the other; memory is shared by those who need it at different times."""
        for number, memory in self._memories.items():
            memory.storage = torch.UntypedStorage._new_with_weak_ptr(number)  # of what somebody keeps
        calls = self._needed()
        for position, call in enumerate(calls):
            for memory in call.reads | call.fills:
                memory.last = position
        views: dict[_Memory, set[Any]] = {}
        for view in (view for call in calls for view in (*call.given, *call.results)):
            views.setdefault(view.memory, set()).add((view.dtype, view.offset, view.shape, view.strides))
        for view in (view for call in calls if call.only_returns for view in call.results):
            if view.memory.storage is None and len(views[view.memory]) == 1:
                view.memory.taken = torch.empty(0, dtype=view.dtype)
        kernels, free = list[Kernel](), list[torch.UntypedStorage]()
        lent = set[_Memory]()
        for position, call in enumerate(calls):
            for memory in call.fills:
                if memory.storage is None and memory.taken is None:
                    memory.storage = _fitting(free, memory.size)
                    lent.add(memory)
            kernels.append(call.kernel())
            ended = {memory for memory in lent if memory.last == position}
            free += [memory.storage for memory in ended if memory.storage is not None]
            lent -= ended
            kernels += [
                partial(memory.taken.set_)  # to nothing
                for memory in call.reads | call.fills
                if memory.taken is not None and memory.last == position
            ]
        return kernels

    def _needed(self) -> list[_Call]:
        """The calls without those that always give the same numbers, or numbers that nobody takes."""
        varying = {memory for call in self._calls if not call.results for memory in call.reads}
        for call in self._calls:
            if call.is_random or any(memory.role == "outer" or memory in varying for memory in call.reads):
                varying |= call.fills
        needed = []
        wanted = {memory for memory in self._memories.values() if memory.storage is not None}
        for call in reversed(self._calls):
            if not call.results or call.is_random or (call.fills & varying & wanted):
                needed.append(call)
                wanted |= call.reads
        return needed[::-1]

    def _view(self, tensor: Tensor, role: Role) -> _View:
        """The tensor as a view of its memory, which has this role if it is new."""
        weak = _weak(tensor)
        memory = self._memories.setdefault(weak.cdata, _Memory(weak, tensor.untyped_storage().nbytes(), role))
        kept = None if memory.role == "inner" else tensor
        return _View(memory, tensor.dtype, int(tensor.storage_offset()), tensor.shape, tensor.stride(), kept)


_ATEN = torch.ops.aten
_SHAPED = {"ones_like", "zeros_like", "empty_like", "new_ones", "new_zeros", "new_empty", "new_empty_strided"}
"""Operations that take the shape of a tensor, and none of its numbers."""
_COPIES = {"_to_copy", "clone"}
_SAME = {
    _ATEN.relu.default: (_ATEN.clamp_min.out, 0),
    _ATEN.mul.Scalar: (_ATEN.mul.out,),
    _ATEN.div.Scalar: (_ATEN.div.out,),
}
"""What fills a tensor with the result of an operation that can only return it; and what it is given beside."""
_OF_NEW = {"dtype", "layout", "device", "pin_memory"}
"""What an operation can ask of a new tensor."""


def _is_view(leaf: Any) -> bool:
    return isinstance(leaf, _View)


def _tensors(found: Any) -> list[Any]:
    """What an operation returns, but for the gradients that nobody asked for."""
    return [leaf for leaf in pytree.tree_leaves(found) if leaf is not None]


def _weak(tensor: Tensor) -> Any:
    """A weak reference to a tensor's memory, with its number."""
    return StorageWeakRef(tensor.untyped_storage())  # type: ignore[no-untyped-call]


def _has_shape_of_numbers(operation: Any, arguments: Any) -> bool:
    """Whether the shape of a result depends on the numbers in a tensor: `nonzero`, or a mask as an index."""
    if torch.Tag.dynamic_output_shape not in operation.tags:
        return False
    indices = [leaf for leaf in pytree.tree_leaves(arguments[1:]) if isinstance(leaf, Tensor)]
    return operation is not _ATEN.index.Tensor or any(index.dtype == torch.bool for index in indices)


@cache
def _into(operation: Any) -> Any:
    """The operation that fills tensors with the same results, unless it would only copy them."""

    def takes(operation: Any) -> set[tuple[str, str]]:
        given = (argument for argument in operation._schema.arguments if not argument.is_out)
        return {(argument.name, str(argument.type)) for argument in given if argument.name not in _OF_NEW}

    for other in (getattr(operation.overloadpacket, name) for name in operation.overloadpacket.overloads()):
        if torch.Tag.out in other.tags and torch.Tag.generated not in other.tags and takes(other) == takes(operation):
            return other
    return None


def _take_results(takers: list[Callable[[Tensor], object]], operation: Callable[[], Any]) -> None:
    for take, value in zip(takers, _tensors(operation()), strict=True):
        take(value)


def _fitting(free: list[torch.UntypedStorage], size: int) -> torch.UntypedStorage:
    """The smallest free memory that is large enough and not much too large, or a new one."""
    fitting = [storage for storage in free if size <= storage.nbytes() <= 2 * size]
    if not fitting:
        return torch.UntypedStorage(size)  # type: ignore[no-untyped-call]
    found = min(fitting, key=lambda storage: storage.nbytes())
    free[:] = [storage for storage in free if storage is not found]
    return found
