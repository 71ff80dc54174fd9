"""Data sets decoded once: an array per split that later runs map into memory.

    CACHE/NAME/SPLIT-SOURCE-FINGERPRINT/examples.npy    uint8 (N, C, H, W) or float32 (N, D), sorted by class
                                        index.json      names, sizes and groups of the classes, checksum

The fingerprint is of the source files (names, sizes, times of change) and of the reader, so a changed source has
another folder. Both files appear when they are whole, the index last. Its checksum is compared whenever it is opened,
and what is damaged is made again.
"""

import hashlib
import json
import shutil
import tempfile
import time
from collections.abc import Iterable
from contextlib import ExitStack, suppress
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fewsure.core.config import from_json
from fewsure.core.places import cache_root
from fewsure.core.progress import ProgressLine, note
from fewsure.data.description import DataSet, Item
from fewsure.data.io.checksums import verify
from fewsure.data.pools import Pool, Split, pool_checksum
from fewsure.errors import FewsureError

FORMAT = 1
ARRAY, INDEX = "examples.npy", "index.json"
SHOW_EVERY = 500
ABANDONED_AFTER = 24 * 3600
"""Seconds after which a folder that was never finished is taken for one whose process died."""


def load(dataset: DataSet, split: Split) -> Pool:
    """The pool of a split, from the cache if it is there, else decoded into it with progress on standard error.

    The examples are mapped from the file, not read into memory; a change to them changes no file.
    """
    files = dataset.found(split)
    source = hashlib.sha256(str(dataset.folder.resolve()).encode()).hexdigest()[:8]
    place = cache_root() / dataset.name / f"{split}-{source}-{_fingerprint(dataset, split, files)[:16]}"
    pool = _open(place, dataset)
    if pool is None:
        verify(files, dataset.folder)
        _build(dataset, split, place)
        pool = _open(place, dataset)
    if pool is None:
        raise FewsureError(f"{place} cannot be read back; is the disk of the cache full or damaged?")
    return pool


def _fingerprint(dataset: DataSet, split: Split, files: Iterable[Path]) -> str:
    digest = hashlib.sha256(json.dumps([FORMAT, dataset.name, dataset.version, split]).encode())
    for path in sorted(files):
        status = path.stat()
        name = path.relative_to(dataset.folder).as_posix()
        digest.update(json.dumps([name, status.st_size, status.st_mtime_ns]).encode())
    return digest.hexdigest()


def _open(place: Path, dataset: DataSet) -> Pool | None:
    """The pool that a cache folder holds; None if it is not there or not what was written."""
    try:
        index = from_json((place / INDEX).read_text())
        # Copy on write: torch takes writable arrays only, and the file stays as it is.
        examples = torch.from_numpy(np.load(place / ARRAY, mmap_mode="c", allow_pickle=False))
        starts = torch.tensor(index["starts"], dtype=torch.int64)
        pool = Pool(examples, starts, tuple(index["classes"]), tuple(index["groups"]), index["checksum"])
        whole = pool_checksum(examples, starts, pool.classes) == pool.checksum and index["format"] == FORMAT
        whole = whole and examples.shape[1:] == dataset.shape and len(pool.groups) == len(pool.classes)
    except Exception:  # what is damaged can raise anything, and is made again
        return None
    return pool if whole else None


def _build(dataset: DataSet, split: Split, place: Path) -> None:
    """Decode a split. Processes that do so at once put the same files in place."""
    place.parent.mkdir(parents=True, exist_ok=True)
    _clear_abandoned(place.parent)
    with ExitStack() as stack:
        items = sorted(dataset.read(dataset.folder, split, stack), key=lambda item: (item.label, item.name))
        if not items:
            raise FewsureError(f"expected {dataset.placement} in {dataset.folder}, but {split} has no examples")
        making = tempfile.TemporaryDirectory(prefix=f".{split}-", dir=place.parent, ignore_cleanup_errors=True)
        temporary = Path(stack.enter_context(making))
        index = _write(temporary / ARRAY, dataset, split, items)
        (temporary / INDEX).write_text(json.dumps(index))
        if place.is_file():
            place.unlink()
        place.mkdir(exist_ok=True)
        for name in (ARRAY, INDEX):
            (temporary / name).replace(place / name)
    earlier, _, _ = place.name.rpartition("-")
    for other in place.parent.glob(f"{earlier}-*"):  # from another state of the same source
        if other != place:
            shutil.rmtree(other, ignore_errors=True)


def _write(path: Path, dataset: DataSet, split: Split, items: list[Item]) -> dict[str, Any]:
    """Write the examples; the index of what was written."""
    whole = np.lib.format.open_memmap(path, mode="w+", dtype=dataset.dtype, shape=(len(items), *dataset.shape))
    kept: list[Item] = []
    broken: list[FewsureError] = []
    with ProgressLine(f"decoding {dataset.name} ({split})") as line:
        for done, item in enumerate(items, start=1):
            try:
                whole[len(kept)] = item.load()
                kept.append(item)
            except FewsureError as error:
                broken.append(error)
                if len(broken) > dataset.unreadable * len(items):
                    raise _too_many(broken, len(items), dataset) from error
            if done % SHOW_EVERY == 0 or done == len(items):
                line.show(done, len(items))
    array = whole
    if broken:
        note(f"{split}: {len(broken)} of {len(items):,} examples are unreadable, and are left out: {broken[0]}")
        array = np.lib.format.open_memmap(
            path.with_name(f"kept-{path.name}"), mode="w+", dtype=dataset.dtype, shape=(len(kept), *dataset.shape)
        )
        array[:] = whole[: len(kept)]
        path.with_name(f"kept-{path.name}").replace(path)
        items = kept
    array.flush()
    classes = {label: list(members) for label, members in groupby(items, key=lambda item: item.label)}
    starts = torch.tensor([0, *(len(members) for members in classes.values())]).cumsum(0)
    return {
        "format": FORMAT,
        "checksum": pool_checksum(torch.from_numpy(array), starts, list(classes)),
        "classes": list(classes),
        "groups": [members[0].group for members in classes.values()],
        "starts": starts.tolist(),
    }


def _too_many(broken: list[FewsureError], items: int, dataset: DataSet) -> FewsureError:
    """The error of the first unreadable example, with how many are allowed where some are."""
    if not dataset.unreadable:
        return broken[0]
    return FewsureError(
        f"{broken[0]}; more than {dataset.unreadable:.0%} of {items:,} examples are unreadable; `fewsure data check "
        f"{dataset.folder}` names them all: remove them"
    )


def _clear_abandoned(folder: Path) -> None:
    for other in folder.glob(".*"):
        with suppress(FileNotFoundError):  # its process may just have finished it
            if time.time() - other.stat().st_mtime > ABANDONED_AFTER:
                shutil.rmtree(other, ignore_errors=True)
