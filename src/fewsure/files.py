"""Files that are either whole or not there."""

import os
from pathlib import Path


def write_atomically(path: Path, content: bytes | str) -> None:
    """Write beside the target, flush to disk, then rename: a reader sees the old file or the new one, never a part."""
    data = content.encode() if isinstance(content, str) else content
    beside = path.with_name(f".{path.name}.partial")
    with beside.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    beside.replace(path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
