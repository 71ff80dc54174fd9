"""Pieces of work in processes of their own, side by side: a small training leaves most of a GPU, or a core, idle."""

import multiprocessing
import os
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from typing import TypeVar

import torch

from fewsure.errors import FewsureError

Piece = TypeVar("Piece")

WAIT = 0.2
"""Seconds between two looks at what is done."""


def side_by_side(
    do: Callable[[Piece], None],
    chains: Sequence[Sequence[Sequence[Piece]]],
    processes: int,
    done: Callable[[Piece], None] = lambda piece: None,
) -> None:
    """Do all pieces of all chains, so many at a time. A chain is made of stages: one begins when the last is complete.

    `do` must be importable in a new process. The first error stops everything else, and is raised; training that is
    stopped in this way leaves a checkpoint. `done` hears of each piece.
    """
    with _workers(processes) as workers:
        ahead = [[list(stage) for stage in chain if stage] for chain in chains]
        running: list[list[tuple[Piece, Future[None]]]] = [[] for _ in chains]
        while any(ahead) or any(running):
            for stages, mine in zip(ahead, running, strict=True):
                for piece, result in [(piece, result) for piece, result in mine if result.done()]:
                    result.result()
                    mine.remove((piece, result))
                    done(piece)
                if stages and not mine:
                    mine += [(piece, workers.submit(do, piece)) for piece in stages.pop(0)]
            time.sleep(WAIT)


@contextmanager
def _workers(processes: int) -> Iterator[Executor]:
    """So many processes, which are ended when there is an error here or in one of them."""
    before = set(multiprocessing.active_children())
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(processes, spawn, _take_a_share_of_the_cores, (processes,)) as workers:
        try:
            yield workers
        except BaseException as error:
            workers.shutdown(wait=False, cancel_futures=True)
            for process in set(multiprocessing.active_children()) - before:
                process.terminate()
            if isinstance(error, BrokenProcessPool):
                raise FewsureError(
                    "one of the processes was killed, perhaps for lack of memory; what is finished is kept: run the "
                    "command again, with fewer --jobs"
                ) from error
            raise


def _take_a_share_of_the_cores(processes: int) -> None:
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // processes))
