"""From images to a folder of features by a pretrained network, which nobody trains: extract, and publish at once.

The folder is that of `fewsure.features.workflow`, without weights. Features come from the cache where they are known,
so an interrupted call loses a batch at most.
"""

import json
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from PIL import Image

from fewsure.core.devices import device_name
from fewsure.core.files import copy_folder, write_atomically
from fewsure.data import DATA_SETS
from fewsure.data.io.cache import load
from fewsure.data.io.feature_cache import Source, cached_features
from fewsure.data.io.feature_files import load_features, write_features
from fewsure.data.own.image_features import ImageFeatures
from fewsure.data.pools import SPLITS, Pool, Split
from fewsure.errors import FewsureError, require_known
from fewsure.features.extract import nearest_mean_accuracy
from fewsure.features.workflow import FORMAT, RECORD, SHOTS, TASKS
from fewsure.networks.pretrained import Pretrained, load_pretrained
from fewsure.version import __version__


def make_frozen_features(
    out: Path, data: str, backbone: str, weights: str | None, device: torch.device
) -> dict[str, Any]:
    """Store the features of a data set's splits, or of a folder of class folders; the content of features.json."""
    began = time.perf_counter()
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise FewsureError(f"expected --out to be a new or empty folder, but {out} is not; choose another")
    read = _reader(data, backbone, weights)
    network = load_pretrained(backbone, weights)
    pools = {split: read(split, network) for split in SPLITS}
    record = {
        "format": FORMAT,
        "version": __version__,
        "data": data,
        "backbone": backbone,
        "digest": network.digest,
        "device": device_name(device),
        "precision": "bf16" if network.rounds else "float32",
        "seconds": round(time.perf_counter() - began, 1),
        "features": int(pools["train"].examples.shape[1]),
        "classes": {split: len(pool.classes) for split, pool in pools.items()},
        "images": {split: len(pool.examples) for split, pool in pools.items()},
    }
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        for split, pool in pools.items():
            write_features(work, split, pool.examples, pool)
        validation = load_features(work, "validation")
        record["nearest_mean"] = [nearest_mean_accuracy(validation, shot=shot, tasks=TASKS) for shot in SHOTS]
        write_atomically(work / RECORD, json.dumps(record, indent=1) + "\n")
        out.parent.mkdir(parents=True, exist_ok=True)
        copy_folder(work, out)
    return record


def describe(record: dict[str, Any], out: Path) -> str:
    """The same, for a person."""
    images = sum(record["images"].values())
    lines = [f"{record['features']} features of {images:,} images in {out}, after {record['seconds']:.0f} s"]
    for found in filter(None, record["nearest_mean"]):
        mean, interval = found["accuracy"]["mean"], found["accuracy"]["ci95"]
        name = f"{found['way']}-way {found['shot']}-shot"
        lines.append(f"nearest class mean on validation classes, {name}: {mean:.3f} ± {interval:.3f}")
    return "\n".join([*lines, f"next: fewsure train simpleshot --data features --folder {out}"])


def _reader(data: str, backbone: str, weights: str | None) -> Callable[[Split, Pretrained], Pool]:
    """The features of a split, of a data set by its name or of a folder."""
    if Path(data).is_dir():
        folder = ImageFeatures(folder=data, backbone=backbone, weights=weights)
        return lambda split, network: folder.stored_features(split)
    require_known("data", data, [name for name, data_set in DATA_SETS.items() if len(data_set.shape) == 3])

    def of_data_set(split: Split, network: Pretrained) -> Pool:
        pool = load(DATA_SETS[data], split)
        _, features = cached_features(_sources(pool), network.digest, lambda: network)
        return pool._replace(examples=torch.from_numpy(features))

    return of_data_set


def _sources(pool: Pool) -> list[Source]:
    """The images of a pool (N, C, H, W)."""
    shape = tuple(pool.examples.shape[1:])
    images = pool.examples.numpy()

    def read(number: int) -> bytes:
        content: bytes = images[number].tobytes()
        return repr(shape).encode() + content

    def opened(data: bytes) -> Image.Image:
        pixels = torch.frombuffer(bytearray(data[len(repr(shape)) :]), dtype=torch.uint8).view(shape)
        return Image.fromarray(pixels.expand(3, -1, -1).permute(1, 2, 0).contiguous().numpy())

    return [Source(partial(read, number), opened) for number in range(len(images))]
