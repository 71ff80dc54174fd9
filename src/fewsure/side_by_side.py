"""Pieces of work in processes of their own, side by side: a small training leaves most of a GPU, or a core, idle."""

import multiprocessing
import os
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch

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
    context = multiprocessing.get_context("spawn")
    with context.Pool(processes, _take_a_share_of_the_cores, (processes,)) as pool:  # leaving it ends the processes
        ahead = [[list(stage) for stage in chain if stage] for chain in chains]
        running: list[list[tuple[Piece, Any]]] = [[] for _ in chains]
        while any(ahead) or any(running):
            for stages, mine in zip(ahead, running, strict=True):
                for piece, result in [(piece, result) for piece, result in mine if result.ready()]:
                    result.get()
                    mine.remove((piece, result))
                    done(piece)
                if stages and not mine:
                    mine += [(piece, pool.apply_async(do, (piece,))) for piece in stages.pop(0)]
            time.sleep(WAIT)


def _take_a_share_of_the_cores(processes: int) -> None:
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // processes))
