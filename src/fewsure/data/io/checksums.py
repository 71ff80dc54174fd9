"""Checksums of files, compared with the list that lies beside them."""

import hashlib
from collections.abc import Iterable
from pathlib import Path

from fewsure.errors import FewsureError

LIST = "SHA256SUMS"
"""A file with lines `CHECKSUM  PATH`, as sha256sum writes them; paths are relative to where it lies."""


def file_checksum(path: Path, algorithm: str = "sha256") -> str:
    """Checksum (hex) of a file's content."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, algorithm).hexdigest()


def verify(files: Iterable[Path], folder: Path) -> dict[str, bool]:
    """Compare files with the SHA256SUMS of a data set's `folder` or of its parent; a wrong one is refused.

    Which of the files (by name) were listed there, and therefore compared.
    """
    listed = _listed(folder.parent) | _listed(folder)
    compared = {}
    for path in files:
        expected = listed.get(path.resolve())
        found = expected and file_checksum(path)
        if found != expected:
            raise FewsureError(
                f"expected {path} to have the SHA-256 {expected} of {LIST}, but got {found}; fetch the file again"
            )
        compared[path.relative_to(folder).as_posix()] = expected is not None
    return compared


def _listed(folder: Path) -> dict[Path, str]:
    path = folder / LIST
    if not path.is_file():
        return {}
    listed = {}
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError as error:
        raise FewsureError(f"expected {path} to be text with lines `SHA-256  PATH`, but got other bytes") from error
    for number, line in enumerate(lines, start=1):
        checksum, _, name = line.strip().partition(" ")
        name = name.strip().removeprefix("*")
        if not line.strip():
            continue
        if len(checksum) != 64 or not name or "\0" in name:
            raise FewsureError(f"expected line {number} of {path} to be `SHA-256  PATH`, but got {line.strip()!r}")
        listed[(folder / name).resolve()] = checksum.lower()
    return listed
