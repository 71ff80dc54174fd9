"""Features as a data set: a folder with one file of features and labels for each split."""

import io
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.numpy import load_file
from torch import Tensor

from fewsure.core.files import write_atomically
from fewsure.data.pools import SPLITS, Pool, Split, in_group, pool_of_rows
from fewsure.errors import FewsureError, require

KINDS = (".npz", ".safetensors")
Arrays = dict[str, NDArray[np.generic]]


def write_features(folder: Path, split: Split, features: Tensor, pool: Pool) -> Path:
    """Store features (N, D) of a pool's N examples, in its order, as `folder/SPLIT.npz`; the file's path.

    `load_features` gives back a pool with the same classes and groups.
    """
    wanted = f"({len(pool.examples)}, D): a row for each example of the pool"
    require(features.ndim == 2 and len(features) == len(pool.examples), "features", wanted, tuple(features.shape))
    counts = pool.counts.numpy()
    content = npz_bytes(
        features=features.detach().to("cpu", torch.float32).numpy(),
        labels=np.repeat(np.array(pool.classes), counts),
        groups=np.repeat(np.array(pool.groups), counts),
    )
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{split}.npz"
    write_atomically(path, content)
    return path


def npz_bytes(**arrays: NDArray[Any]) -> bytes:
    """The content of an npz file."""
    buffer = io.BytesIO()
    np.savez(buffer, allow_pickle=False, **arrays)
    return buffer.getvalue()


def load_features(folder: Path, split: Split, *, grouped: bool = False) -> Pool:
    """The pool of `folder/SPLIT.npz` or `folder/SPLIT.safetensors`.

    The file holds `features` (N, D), floats without NaN or infinity, and `labels` (N,), whole numbers or, in an npz
    file, strings. `groups` (N,), the groups of the rows' classes, are optional. Rows may come in any order: they are
    sorted by class, and keep their order within it. Where rows are `grouped`, each group has classes of its own.
    """
    path = features_file(folder, split)
    arrays = _read(path)
    for name in ("features", "labels"):
        if name not in arrays:
            raise FewsureError(f"expected {path} to hold `features` and `labels`, but got {sorted(arrays)}")
    features, labels = arrays["features"], arrays["labels"]
    groups = arrays.get("groups", np.full(len(labels) if labels.ndim else 0, ""))
    if features.ndim != 2 or features.dtype.kind != "f" or 0 in features.shape:
        raise FewsureError(
            f"expected `features` of {path} to be floats of shape (N, D), but got {_described(features)}"
        )
    for name, array in (("labels", labels), ("groups", groups)):
        if array.shape != (len(features),) or array.dtype.kind not in "iuU":
            raise FewsureError(
                f"expected `{name}` of {path} to be whole numbers or strings of shape ({len(features)},), "
                f"one for each row of features, but got {_described(array)}"
            )
    names, owners = labels.astype(str), groups.astype(str)
    if grouped and (owners != "").all():
        names = np.array([in_group(*pair) for pair in zip(owners.tolist(), names.tolist(), strict=True)])
    return pool_of_rows(path, features.astype(np.float32), names, owners)


def feature_splits(folder: Path) -> list[Split]:
    """The splits that a folder has features of."""
    return [split for split in SPLITS if any((folder / f"{split}{kind}").is_file() for kind in KINDS)]


def features_file(folder: Path, split: Split) -> Path:
    """The file of a split in a folder of features."""
    found = [path for kind in KINDS if (path := folder / f"{split}{kind}").is_file()]
    if not found:
        names = " or ".join(f"{split}{kind}" for kind in KINDS)
        raise FewsureError(
            f"expected {names} in {folder}, but neither is there; `fewsure features` makes such a folder"
        )
    if len(found) > 1:
        raise FewsureError(f"expected one file for {split} in {folder}, but got {found[0].name} and {found[1].name}")
    return found[0]


def _read(path: Path) -> Arrays:
    try:
        if path.suffix == ".safetensors":
            return dict(load_file(path))
        # numpy closes a damaged file late, so it is not the one to open it.
        with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
            return dict(arrays)
    except Exception as error:  # numpy has no one exception for a damaged file
        raise FewsureError(f"{path} cannot be read ({error}); write it again") from error


def _described(array: NDArray[np.generic]) -> str:
    return f"{array.dtype} of shape {array.shape}"
