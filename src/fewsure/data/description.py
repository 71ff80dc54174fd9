"""The description of a data set, and how it is read."""

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fewsure.core.places import data_root
from fewsure.data.pools import Split
from fewsure.errors import FewsureError

SHORT: dict[Split, str] = {"train": "train", "validation": "val", "test": "test"}
"""The names of the splits in published files."""


class Item(NamedTuple):
    """One example that a reader has found but not decoded yet."""

    label: str
    """The name of its class."""
    group: str
    """The group that the class belongs to, or ""."""
    name: str
    """Its name within the class, which gives the order."""
    load: Callable[[], NDArray[Any]]
    """The example, of the data set's shape."""


class Remote(NamedTuple):
    """A file that its authors offer for download."""

    name: str
    """Its name in the data set's folder."""
    url: str
    checksum: str | None
    """`md5:…` or `sha256:…` as published, or None where no checksum is."""


@dataclass(frozen=True)
class DataSet:
    """A data set with its published split into classes for training, validation and testing."""

    name: str
    title: str
    shape: tuple[int, ...]
    """The shape of an example: (C, H, W) for images, (D,) for features."""
    placement: str
    """The files that it is read from, to complete the sentence "expected …"."""
    files: Callable[[Path, Split], list[Path]]
    """The files of a split in a folder; empty if they are not there."""
    read: Callable[[Path, Split, ExitStack], list[Item]]
    """The examples of a split in a folder, in any order; they can be loaded until the stack is closed."""
    citation: str = ""
    licence: str = "research use"
    classes: Mapping[Split, int] = field(default_factory=dict)
    """How many classes were published for each split."""
    remotes: tuple[Remote, ...] = ()
    """The files that `fewsure data get` downloads, if there is an official source."""
    version: int = 1
    """Raised whenever a change to the reader changes what it gives, so that caches are made anew."""
    packed: bool = False
    """Whether an example is a row of bits, 8 to a byte."""
    place: Path | None = None
    """Where it is, if not in the data root."""
    unreadable: float = 0.0
    """The share of its examples that may be unreadable: they are left out and counted."""

    @property
    def folder(self) -> Path:
        """Where it is looked for."""
        return self.place or data_root() / self.name

    @property
    def dtype(self) -> np.dtype[Any]:
        """The type of an example: bytes for images and packed bits, floats for features."""
        return np.dtype(np.uint8 if len(self.shape) == 3 or self.packed else np.float32)

    @property
    def how_to_get(self) -> str:
        """Advice to a user who does not have it."""
        if self.place:
            return (
                f"put them there, or name another folder with --folder; `fewsure data check {self.place}` looks at one"
            )
        by_hand = f"put them into {self.folder}"
        return f"run `fewsure data get {self.name}`, or {by_hand}" if self.remotes else by_hand

    def found(self, split: Split) -> list[Path]:
        """The files of a split, which must be there."""
        files = self.files(self.folder, split)
        if not files:
            raise FewsureError(
                f"{self.name} ({split}) is not in {self.folder}: expected {self.placement}; {self.how_to_get}"
            )
        return files
