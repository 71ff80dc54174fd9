"""Let a CPU spend its time on arithmetic: threads of one core each, and memory that stays.

The tensors of one task are often too small to be worth sharing between cores. Cores that share them wait for one
another at each operation. Tasks side by side wait once. The C library returns large blocks to the system as they are
freed, and the system clears the pages of the next one. For maps of images that takes longer than the arithmetic.
"""

import ctypes
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from functools import cache
from typing import Any, TypeVar

import torch

Item = TypeVar("Item")

_MMAP_THRESHOLD, _TRIM_THRESHOLD, _ARENAS = -3, -1, -8  # of glibc's malloc.h
_NEVER = 2**31 - 1


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
