"""Files that are either whole or not there, also after a power cut or on a full disk."""

import errno
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

PARTIAL = ".partial"
"""The end of the name of a file that is not whole yet. One that a killed process leaves behind is written over."""


def write_atomically(path: Path, content: bytes | str) -> None:
    """Write beside the target, flush to disk, then rename: a reader sees the old file or the new one, never a part.

    A write that fails, on a full disk for instance, gives its room back and leaves the old file as it is. Processes
    that write the same file wait for each other.
    """
    try:
        with _beside(path) as descriptor:
            _write_all(descriptor, content.encode() if isinstance(content, str) else content)
    except OSError as error:
        raise _named(error, path) from error


@contextmanager
def writing(path: Path) -> Iterator[IO[str]]:
    """A text file to write bit by bit, which takes its name once it is whole, and is gone if that fails.

    with writing(path) as file:
        file.write(…)
    """
    with _beside(path) as descriptor, open(descriptor, "w", encoding="utf-8", newline="", closefd=False) as file:
        yield file


def append_line(path: Path, line: str) -> None:
    """Add a whole line to a file, or nothing, on a full disk for instance. `sync` makes it last."""
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


def copy_folder(source: Path, target: Path, *left_out: str) -> None:
    """Copy a folder without the files of these names; the copy is whole or not there."""
    with tempfile.TemporaryDirectory(prefix=f".{target.name}-", dir=target.parent) as making:
        copied = Path(making) / target.name
        shutil.copytree(source, copied, ignore=shutil.ignore_patterns(*left_out))
        copied.replace(target)


def partial_files(folder: Path) -> set[Path]:
    """The unfinished files that killed processes have left in a folder."""
    return set(folder.glob(f".*{PARTIAL}"))


def _named(error: OSError, path: Path) -> OSError:
    """The error with the file that could not be written."""
    return OSError(error.errno, error.strerror, str(path))


@contextmanager
def _beside(path: Path) -> Iterator[int]:
    """A file to write, which takes the name `path` once it is whole and on the disk, and is gone if that fails."""
    beside = path.with_name(f".{path.name}{PARTIAL}")
    descriptor = _open_alone(beside)
    try:
        yield descriptor
        os.fsync(descriptor)
        os.replace(beside, path)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise
    finally:
        os.close(descriptor)
    sync(path.parent)


def _open_alone(path: Path) -> int:
    """An empty file that no other process has open in this way."""
    while True:
        # A folder that comes from others may hold a link under this name that leads out of it.
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW, 0o666)
        try:
            _lock(descriptor)
            if _is_at(path, descriptor):  # else it has got its name, or is gone, while we waited
                os.ftruncate(descriptor, 0)
                return descriptor
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)


def _lock(descriptor: int) -> None:
    """Wait until no other process has the file locked; where a file system has no locks, that is at once."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
    except OSError as error:
        if error.errno not in (errno.ENOTSUP, errno.ENOLCK, errno.ENOSYS):
            raise


def _is_at(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(path.lstat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def _write_all(descriptor: int, data: bytes) -> None:
    left = memoryview(data)
    while left:
        left = left[os.write(descriptor, left) :]
