"""Images in one folder per class: `CLASS/NAME.png`."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fewsure.data.description import Item
from fewsure.data.io import archives
from fewsure.data.io.images import decode, is_image
from fewsure.errors import FewsureError


@contextmanager
def read(folder: Path, stem: str, shape: tuple[int, int, int], group: Callable[[str], str]) -> Iterator[list[Item]]:
    """The images of `folder/STEM`, a folder or zip files; `group` says what a class belongs to."""
    with archives.members(folder, stem) as members:
        items = []
        for member in members:
            label, _, name = member.path.partition("/")
            if not is_image(member.path):
                continue
            if not name or "/" in name:
                raise FewsureError(f"expected images as CLASS/NAME, but got {member.where}")
            items.append(Item(label, group(label), name, partial(load_image, member, shape)))
        yield items


def load_image(member: archives.Member, shape: tuple[int, int, int]) -> NDArray[np.uint8]:
    """A member of an archive as an image of `shape` (C, H, W)."""
    return decode(member.read(), member.where, shape)
