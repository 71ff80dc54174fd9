"""Pieces of work in processes of their own, side by side: a small training leaves most of a GPU, or a core, idle."""

import multiprocessing
import os
import signal
import sys
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection, wait
from typing import Any, TypeVar

from fewsure.core.progress import silenced
from fewsure.core.signals import StopSignal
from fewsure.errors import FewsureError

Piece = TypeVar("Piece")

WAIT = 0.2
"""Seconds after which it is looked whether a signal has come."""
NO_MORE = None
"""Sent to a process in place of a piece, it ends the process."""


def side_by_side(
    do: Callable[[Piece], None],
    chains: Sequence[Sequence[Sequence[Piece]]],
    processes: int,
    done: Callable[[Piece], None] = lambda piece: None,
) -> None:
    """Do all pieces of all chains, so many at a time. A chain is made of stages: one begins when the last is complete.

    The pieces of a chain come before those of the chains behind it, so that it is complete first.
    `do` must be importable in a new process. The first error, or SIGINT or SIGTERM, stops everything else, and is
    raised; training that is stopped in this way leaves a checkpoint. `done` hears of each piece.
    """
    ahead = [deque(list(stage) for stage in chain if stage) for chain in chains]
    left = [0] * len(ahead)  # pieces of each chain's stage that are not done yet
    ready: list[list[Piece]] = [[] for _ in chains]
    with _workers(do, processes) as idle, StopSignal() as stop:
        busy: dict[Connection, tuple[int, Piece]] = {}
        while True:
            for chain, stages in enumerate(ahead):
                if stages and not left[chain]:
                    stage = stages.popleft()
                    left[chain] = len(stage)
                    ready[chain] = stage
            while idle and any(ready):
                chain = next(number for number, pieces in enumerate(ready) if pieces)
                worker, piece = idle.pop(), ready[chain].pop(0)
                _tell(worker, (piece,))
                busy[worker] = chain, piece
            if not busy:
                return
            heard = wait(list(busy), WAIT)
            for worker in [worker for worker in busy if worker in heard]:
                chain, piece = busy.pop(worker)
                _take_result(worker)
                left[chain] -= 1
                idle.append(worker)
                done(piece)
            if stop():
                raise KeyboardInterrupt if stop.received == signal.SIGINT else SystemExit(128 + stop.received)


@contextmanager
def _workers(do: Callable[[Any], None], processes: int) -> Iterator[list[Connection]]:
    """Processes that do what they are sent, one piece after the other. An error here stops what they are doing."""
    spawn = multiprocessing.get_context("spawn")
    connections, started = [], []
    try:
        for _ in range(processes):
            here, there = spawn.Pipe()
            process = spawn.Process(target=_work, args=(there, do, processes), daemon=True)
            process.start()
            there.close()  # so that the connection ends with the process
            connections.append(here)
            started.append(process)
        yield list(connections)
        for connection in connections:
            _tell(connection, NO_MORE)
    except BaseException:
        for process in started:
            process.terminate()
        raise
    finally:
        for process in started:
            process.join()


def _tell(worker: Connection, message: Any) -> None:
    with suppress(ConnectionError):  # of a process that was killed, nothing comes back
        worker.send(message)


def _take_result(worker: Connection) -> None:
    try:
        error = worker.recv()
    except (EOFError, ConnectionError):
        raise FewsureError(
            "one of the processes was killed, perhaps for lack of memory; what is finished is kept: run the command "
            "again, with fewer --jobs"
        ) from None
    if error is not None:
        raise error


def _work(asked: Connection, do: Callable[[Any], None], processes: int) -> None:
    """The work of a process; it ends with the first error, and when there is nobody left to work for."""
    os.setpgrp()  # Ctrl-C is for the one that asks, which stops us
    if torch := sys.modules.get("torch"):  # where `do` needs it; to import it takes a second
        torch.set_num_threads(max(1, (os.cpu_count() or 1) // processes))
    error: BaseException | None = None
    while error is None:
        try:
            message = asked.recv()
        except EOFError:
            return
        if message is NO_MORE:
            return
        try:
            with silenced():
                do(*message)
        except BaseException as raised:
            error = raised
            error.add_note(traceback.format_exc())
        try:
            asked.send(error)
        except ConnectionError:
            return
