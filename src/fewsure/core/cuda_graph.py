"""Work that is done again and again on a GPU, recorded once as a CUDA graph and replayed.

A replay costs the host one call, whatever the work does. Only the content of tensors
that stay where they are, and the seed of the work's generator, may differ from one replay to the next.
"""

import warnings
from collections.abc import Callable
from typing import Any, Generic, TypeVar

import torch

EAGER_CALLS = 3
"""Calls that are run before one is recorded, so that libraries have set themselves up."""

Result = TypeVar("Result")


class CudaGraph(Generic[Result]):
    """Calling it with a piece of work, the same each time, does it.

    The work draws from `generator`, which is seeded anew before each call. Where `records` is false, which it must be
    on a CPU, each call is a plain one. Where it is true, results are tensors that the next call overwrites.
    """

    def __init__(self, generator: torch.Generator, *, name: str, records: bool) -> None:
        """`name` says in a warning what cannot be recorded."""
        self._generator = generator
        self._name = name
        self._records = records
        self._calls = 0
        self._aside: Any = None
        self._graph: Any = None
        self._result: Any = None

    @property
    def is_recorded(self) -> bool:
        """Whether calls are replays by now."""
        return self._graph is not None

    def __call__(self, work: Callable[[], Result]) -> Result:
        # The work is not kept: it mostly belongs to an object that keeps this one, and memory would outlive both.
        self._calls += 1
        if self._records and self._calls <= EAGER_CALLS:
            return self._run_aside(work)
        if self._records and self._graph is None:
            self._record(work)
        if self._graph is None:
            return work()
        self._graph.replay()
        result: Result = self._result
        return result

    def _run_aside(self, work: Callable[[], Result]) -> Result:
        # Recording wants what it will record to have run on another stream than the default one: on one, since the
        # memory that each stream has used stays with it.
        if self._aside is None:
            self._aside = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        self._aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._aside):
            result = work()
        torch.cuda.current_stream().wait_stream(self._aside)
        return result

    def _record(self, work: Callable[[], Result]) -> None:
        seed, graph = self._generator.initial_seed(), torch.cuda.CUDAGraph()
        graph.register_generator_state(self._generator)  # each replay then draws from the seed it is given
        try:
            with torch.cuda.graph(graph):
                self._result = work()
            self._graph = graph
        except RuntimeError as error:
            self._records = False
            self._generator.manual_seed(seed)  # the call goes on as a plain one
            warnings.warn(f"{self._name} cannot be recorded, and runs one kernel at a time ({error})", stacklevel=3)
