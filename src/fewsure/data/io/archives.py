"""One view of a folder, a zip file, or several zip files. Nothing is ever extracted."""

import os
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import IO, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fewsure.data.io.images import decode, is_image
from fewsure.errors import FewsureError

MAX_MEMBERS = 1_000_000
MAX_BYTES = 64 * 2**20
"""The largest member that is read as a whole: far more than an image has, far less than memory."""
MAX_STREAM = 4 * 2**30
"""The largest that is read as a stream: published arrays of features are well below it."""

DAMAGED = (
    *(ArithmeticError, EOFError, LookupError, OSError, RuntimeError, ValueError),
    *(struct.error, zipfile.BadZipFile, zlib.error),
)
"""The errors of zipfile for a file that is cut off, damaged, encrypted or compressed in a way it does not know."""


class Member(NamedTuple):
    """A file in a folder or in a zip file."""

    path: str
    """Relative, with `/`; a folder of the archive's own name that holds everything is left out."""
    where: str
    """For people: the file, or the zip file and the name in it."""
    opener: Callable[[], IO[bytes]]
    size: int

    def open(self) -> IO[bytes]:
        """Its content as a stream."""
        require_size(self.where, self.size, MAX_STREAM)
        try:
            return self.opener()
        except DAMAGED as error:
            raise damaged(self.where, error) from error

    def read(self) -> bytes:
        """Its content; zipfile compares it with the checksum that the archive holds."""
        require_size(self.where, self.size, MAX_BYTES)
        try:
            with self.opener() as stream:
                return stream.read()
        except DAMAGED as error:
            raise damaged(self.where, error) from error

    def image(self, shape: tuple[int, int, int]) -> NDArray[np.uint8]:
        """Its content as an image of `shape` (C, H, W)."""
        return decode(self.read(), self.where, shape)


def find(folder: Path, stem: str) -> list[Path]:
    """`folder/STEM` if that is a folder, else `STEM.zip`, else all of `STEM_*.zip`; empty if none is there."""
    if (folder / stem).is_dir():
        return [folder / stem]
    whole = folder / f"{stem}.zip"
    return [whole] if whole.is_file() else sorted(folder.glob(f"{stem}_*.zip"))


def files(folder: Path, stem: str) -> list[Path]:
    """The files on disk that `find` leads to: the zip files, or all files of the folder."""
    return [path for found in find(folder, stem) for path in (_walk(found) if found.is_dir() else [found])]


def members(folder: Path, stem: str, stack: ExitStack) -> list[Member]:
    """All members, sorted by path, of what `find` leads to; they can be read until the stack is closed."""
    found: dict[str, Member] = {}
    for source in find(folder, stem):
        for member in _of_folder(source) if source.is_dir() else _of_zip(source, stack):
            path = member.path
            if any(part.startswith((".", "__MACOSX")) for part in path.split("/")):
                continue
            if path in found:
                raise FewsureError(f"expected {path} once, but got {found[path].where} and {member.where}")
            if len(found) >= MAX_MEMBERS:
                raise FewsureError(f"expected {source} to have at most {MAX_MEMBERS:,} files, but it has more")
            found[path] = member
    # A class may have the archive's own name, as CIFAR-FS's "train" has, so one file tells nothing.
    own = f"{stem}/" if all(path.startswith(f"{stem}/") for path in found) else ""
    return [found[path]._replace(path=path.removeprefix(own)) for path in sorted(found)]


def images(folder: Path, stem: str, layout: str, stack: ExitStack) -> Iterator[tuple[list[str], Member]]:
    """The images among the members, with the parts of their paths, which must be as in `layout`: `CLASS/NAME.png`."""
    for member in members(folder, stem, stack):
        parts = member.path.split("/")
        if is_image(member.path):
            if len(parts) != len(layout.split("/")):
                raise FewsureError(f"expected images as {layout}, but got {member.where}")
            yield parts, member


def require_size(where: str, size: int, limit: int) -> None:
    """Refuse a member that says it is larger; none gives more than it says."""
    if size > limit:
        raise FewsureError(f"expected {where} to have at most {limit:,} bytes, but got {size:,}")


def damaged(where: str | Path, error: Exception) -> FewsureError:
    """The error for a file that cannot be read as what it is."""
    return FewsureError(f"{where} is damaged or incomplete ({error}); fetch it again")


def _of_zip(path: Path, stack: ExitStack) -> Iterator[Member]:
    try:
        archive = stack.enter_context(zipfile.ZipFile(path))
    except DAMAGED as error:
        raise damaged(path, error) from error
    for info in archive.infolist():
        if not info.filename.endswith("/"):  # a folder; zipfile's own question fails for a file without a name
            yield Member(info.filename, f"{path}: {info.filename}", partial(archive.open, info), info.file_size)


def _of_folder(folder: Path) -> Iterator[Member]:
    for path in _walk(folder):
        yield Member(path.relative_to(folder).as_posix(), str(path), partial(_open, path), path.stat().st_size)


def _open(path: Path) -> IO[bytes]:
    return path.open("rb")


def _walk(folder: Path) -> Iterator[Path]:
    for parent, _, names in os.walk(folder, followlinks=True):
        yield from (Path(parent) / name for name in sorted(names))
