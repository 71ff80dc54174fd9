"""Run folders as bytes, so that learners and tasks can be pickled, copied and sent to other processes."""

import shutil
import tempfile
import weakref
from pathlib import Path

Packed = dict[str, bytes]
"""The files of a run folder, by their paths in it."""


def pack(folder: Path) -> Packed:
    """The files of a run folder; none where it is not there yet."""
    files = sorted(path for path in folder.rglob("*") if path.is_file()) if folder.is_dir() else []
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


def unpack(files: Packed, owner: object) -> Path:
    """A temporary run folder with these files, which goes when its owner does."""
    folder = temporary_folder(owner)
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return folder


def temporary_folder(owner: object) -> Path:
    """The place of a run that goes when its owner does."""
    place = tempfile.mkdtemp(prefix="fewsure-")
    weakref.finalize(owner, shutil.rmtree, place, ignore_errors=True)
    return Path(place) / "run"
