"""Let a CPU spend its time on arithmetic: as many cores as pay, threads of one core each, and memory that stays.

The tensors of one task are often too small to be worth sharing between cores. Cores that share them wait for one
another at each operation. Tasks side by side wait once. The C library returns large blocks to the system as they are
freed, and the system clears the pages of the next one. For maps of images that takes longer than the arithmetic.
"""

import ctypes
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import copy_context
from functools import cache
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

Item = TypeVar("Item")
LARGE = 2**21
"""Numbers of a tensor from which on the cores share an operation; for smaller ones they wait for each other longer than
they compute."""

_MMAP_THRESHOLD, _TRIM_THRESHOLD, _ARENAS = -3, -1, -8  # of glibc's malloc.h
_NEVER = 2**31 - 1


class Largest(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Within it, `numbers` is the size of the largest tensor that an operation has given so far."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.numbers = 0

    def __torch_dispatch__(self, operation: Any, types: Any, arguments: Any = (), options: Any = None) -> Any:
        found = operation(*arguments, **(options or {}))
        sizes = [leaf.numel() for leaf in pytree.tree_leaves(found) if isinstance(leaf, Tensor)]
        self.numbers = max(self.numbers, *sizes, 0)
        return found


def cores_that_pay(work: Callable[[], object]) -> int:
    """How many cores such work should use: one, or all that torch uses. It does the work once, to see its sizes."""
    everything = torch.get_num_threads()
    if everything == 1:
        return 1
    with Largest() as largest:
        work()
    return everything if largest.numbers >= LARGE else 1


@contextmanager
def on_cores(count: int) -> Iterator[None]:
    """Operations within it use so many cores."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def map_in_threads(function: Callable[[Item], Any], items: Sequence[Item]) -> Iterator[Any]:
    """`function` of each item, in order; as many at a time as torch uses threads, each of which then uses one."""
    threads = min(torch.get_num_threads(), len(items))
    if threads == 1:
        yield from map(function, items)
        return
    differentiates = torch.is_grad_enabled()

    def work(item: Item) -> Any:
        with torch.set_grad_enabled(differentiates):  # which each thread knows for itself
            return function(item)

    contexts = [copy_context() for _ in items]
    yield from _pool(torch.get_num_threads()).map(lambda context, item: context.run(work, item), contexts, items)


@cache
def _pool(threads: int) -> ThreadPoolExecutor:
    everybody = threading.Barrier(threads)

    def start() -> None:
        torch.set_num_threads(1)
        torch.get_num_threads()  # a thread takes up the number when it first asks for it
        everybody.wait()

    pool = ThreadPoolExecutor(threads, "fewsure", initializer=start)
    list(pool.map(str, range(threads)))  # each starts a thread, since none is idle before all have started
    torch.set_num_threads(threads)  # of threads that start later; those of the pool keep one
    return pool


@cache
def keep_freed_memory() -> None:
    """Reuse the memory of freed tensors from now on, where the C library is glibc; others are left alone."""
    with_glibc = os.name == "posix" and hasattr(libc := ctypes.CDLL(None), "gnu_get_libc_version")
    if with_glibc:
        for option, value in ((_MMAP_THRESHOLD, _NEVER), (_TRIM_THRESHOLD, _NEVER), (_ARENAS, 1)):
            libc.mallopt(option, value)
