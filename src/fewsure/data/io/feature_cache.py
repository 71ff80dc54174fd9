"""Features of images by their content: no image passes through a backbone twice, wherever it lies.

    CACHE/backbones/DIGEST/NAME.npz     keys (N,), SHA-256 of the images; features (N, D)

A file holds a batch and is whole or not there, so that an interrupted extraction goes on where it stopped.
"""

import hashlib
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from fewsure.core.devices import find_device
from fewsure.core.files import make_folder, write_atomically
from fewsure.core.places import cache_root
from fewsure.core.progress import ProgressLine, note
from fewsure.data.io.feature_files import npz_bytes
from fewsure.errors import FewsureError
from fewsure.networks.pretrained import Pretrained

BATCH = 128
"""Images of a file."""


class Source(NamedTuple):
    """An image that is read when its features are asked for."""

    read: Callable[[], bytes]
    open: Callable[[bytes], Image.Image]


def cached_features(
    sources: Sequence[Source],
    digest: str,
    backbone: Callable[[], Pretrained],
    *,
    unreadable: float = 0.0,
) -> tuple[NDArray[np.bool_], NDArray[np.float32]]:
    """Which images could be read (N,), and their features (M, D); no more than a share may be `unreadable`.

    The backbone with this digest is loaded only if an image is new.
    """
    folder = cache_root() / "backbones" / digest[:32]
    known = _read(folder)
    keys = [hashlib.sha256(source.read()).hexdigest() for source in sources]
    copies = Counter(keys)
    new = list({key: source for key, source in zip(keys, sources, strict=True) if key not in known}.items())
    broken: dict[str, FewsureError] = {}
    network, device = backbone() if new else None, find_device("auto")
    with ProgressLine("features of images") as line:
        for start in range(0, len(new), BATCH):
            images = {}
            for key, source in new[start : start + BATCH]:
                try:
                    images[key] = source.open(source.read())
                except FewsureError as error:
                    broken[key] = error
                    if sum(copies[one] for one in broken) > unreadable * len(sources):
                        raise
            if images and network is not None:
                found = network([*images.values()], device).numpy()
                known |= dict(zip(images, found, strict=True))
                _write(folder, [*images], found)
            line.show(min(start + BATCH, len(new)), len(new))
    there = np.array([key in known for key in keys])
    if broken:
        left_out = int((~there).sum())
        note(f"{left_out} of {len(keys):,} images are unreadable, and are left out: {next(iter(broken.values()))}")
    return there, np.stack([known[key] for key, is_there in zip(keys, there, strict=True) if is_there])


def _read(folder: Path) -> dict[str, NDArray[np.float32]]:
    known: dict[str, NDArray[np.float32]] = {}
    for path in sorted(folder.glob("*.npz")):
        try:
            with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
                known |= dict(zip(arrays["keys"].tolist(), arrays["features"], strict=True))
        except Exception:  # numpy has no one exception for a damaged file, which is made again
            path.unlink(missing_ok=True)
    return known


def _write(folder: Path, keys: list[str], features: NDArray[np.float32]) -> None:
    make_folder(folder)
    name = hashlib.sha256("".join(keys).encode()).hexdigest()[:32]
    write_atomically(folder / f"{name}.npz", npz_bytes(keys=np.array(keys), features=features))
