"""Signals that ask a program to stop: the work in hand is finished, and a checkpoint is left behind."""

import signal
import threading
from pathlib import Path
from types import FrameType, TracebackType


class Stopped(Exception):
    """Training was asked to stop by a signal and left a checkpoint behind."""

    def __init__(self, folder: Path, number: int) -> None:
        super().__init__(folder, number)  # as another process makes it again
        self.folder = folder
        self.exit_code = 128 + number

    def __str__(self) -> str:
        go_on = "run the command again to go on (train, features: with --resume)"
        return f"stopped; {self.folder} holds a checkpoint, {go_on}"


class StopSignal:
    """Turns the first SIGINT or SIGTERM into a flag, so that the update in hand is finished; a second one kills.

    Only a program's main thread hears signals; in another one, nothing changes.
    """

    SIGNALS = (signal.SIGINT, signal.SIGTERM)
    received: int = 0

    def __call__(self) -> bool:
        return self.received > 0

    def __enter__(self) -> "StopSignal":
        heard = self.SIGNALS if threading.current_thread() is threading.main_thread() else ()
        self._before = {number: signal.signal(number, self._receive) for number in heard}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._restore()

    def _receive(self, number: int, frame: FrameType | None) -> None:
        self.received = number
        self._restore()

    def _restore(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
