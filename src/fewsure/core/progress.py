"""Progress of long work on standard error: a live line in a terminal, now and then a plain one elsewhere."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from types import TracebackType

from rich.console import Console
from rich.live import Live
from rich.text import Text

PLAIN_EVERY = 15.0
"""Seconds between two lines where there is no terminal."""
_silent = ContextVar("silent", default=False)


@contextmanager
def silenced(quiet: bool = True) -> Iterator[None]:
    """Show no progress of anything below, however deep; with `quiet` false, nothing changes."""
    before = _silent.set(quiet or _silent.get())
    try:
        yield
    finally:
        _silent.reset(before)


def note(text: str) -> None:
    """One line on standard error, unless progress is silenced."""
    if not _silent.get():
        print(f"fewsure: {text}", file=sys.stderr, flush=True)


class ProgressLine:
    """`with ProgressLine("training") as line: line.show(done, total, "loss 1.23")`."""

    def __init__(self, title: str) -> None:
        self._title = title
        self._quiet = _silent.get()
        console = Console(stderr=True)
        self._live = Live(console=console, auto_refresh=False) if console.is_terminal and not self._quiet else None
        self._began = self._printed = time.monotonic()
        self._first: int | None = None

    def __enter__(self) -> "ProgressLine":
        if self._live:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live:
            self._live.stop()

    def show(self, done: int, total: int, text: str = "") -> None:
        """`done` of `total`, with the time left at the pace so far."""
        if self._quiet:
            return
        now = time.monotonic()
        if self._first is None:
            self._first, self._began = done, now
        pace = (now - self._began) / (done - self._first) if done > self._first else None
        left = f", {_clock(pace * (total - done))} left" if pace is not None and done < total else ""
        line = f"{self._title} {done:,}/{total:,}{left}  {text}"
        if self._live:
            self._live.update(Text(line), refresh=True)
        elif done == total or now - self._printed >= PLAIN_EVERY:
            self._printed = now
            print(line, file=sys.stderr, flush=True)


def _clock(seconds: float) -> str:
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"
