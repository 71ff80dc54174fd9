"""Files that are either whole or not there, also after a power cut or on a full disk."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

PARTIAL = ".partial"
"""How the name of a file ends that is not whole yet; what a killed process leaves behind is written over."""


def write_atomically(path: Path, content: bytes | str) -> None:
    """Write beside the target, flush to disk, then rename: a reader sees the old file or the new one, never a part.

    What cannot be written, on a full disk for instance, gives its room back and leaves the old file as it is.
    """
    data = content.encode() if isinstance(content, str) else content
    beside = path.with_name(f".{path.name}{PARTIAL}")
    try:
        _write(beside, data)
        os.replace(beside, path)
    except OSError as error:
        beside.unlink(missing_ok=True)
        raise _named(error, path) from error
    sync(path.parent)


@contextmanager
def writing(path: Path) -> Iterator[IO[str]]:
    """A text file to write bit by bit, which takes its name once it is whole, and is gone if that fails.

    with writing(path) as file:
        file.write(…)
    """
    beside = path.with_name(f".{path.name}{PARTIAL}")
    try:
        with beside.open("w", encoding="utf-8", newline="") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, path)
    finally:
        beside.unlink(missing_ok=True)
    sync(path.parent)


def append_line(path: Path, line: str) -> None:
    """Add a line to a file, or nothing: what a full disk cuts short is taken back. `sync` makes it last."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o666)
    try:
        before = os.fstat(descriptor).st_size
        try:
            _write_all(descriptor, f"{line}\n".encode())
        except OSError as error:
            os.ftruncate(descriptor, before)
            raise _named(error, path) from error
    finally:
        os.close(descriptor)


def make_folder(folder: Path) -> None:
    """Make a folder, and those above it, so that they last."""
    if not folder.is_dir():
        make_folder(folder.parent)
        folder.mkdir(exist_ok=True)
        sync(folder.parent)


def sync(path: Path) -> None:
    """Wait until a file's content, or the names in a folder, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def leftovers(folder: Path) -> set[Path]:
    """What killed processes have left of files that they were writing into a folder."""
    return set(folder.glob(f".*{PARTIAL}"))


def _named(error: OSError, path: Path) -> OSError:
    """The error with the file that could not be written."""
    return OSError(error.errno, error.strerror, str(path))


def _write(path: Path, data: bytes) -> None:
    # A folder that comes from others may hold a link under this name that leads out of it.
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o666)
    try:
        _write_all(descriptor, data)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _write_all(descriptor: int, data: bytes) -> None:
    left = memoryview(data)
    while left:
        left = left[os.write(descriptor, left) :]
