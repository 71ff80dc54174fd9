"""Omniglot: 1,623 handwritten characters of 50 alphabets, each drawn by 20 people (Lake et al., 2015).

The original split: the 30 background alphabets are for training, the 20 evaluation alphabets for testing. Of the
background alphabets, in sorted order, every sixth is for validation (5 of 30).
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fewsure.data.description import DataSet, Item, Remote
from fewsure.data.io import archives
from fewsure.data.io.images import decode, is_image
from fewsure.data.pools import Split
from fewsure.errors import FewsureError

SHAPE = (1, 28, 28)
STEMS: dict[Split, str] = {
    "train": "images_background",
    "validation": "images_background",
    "test": "images_evaluation",
}
VALIDATION_EVERY = 6
SOURCE = "https://raw.githubusercontent.com/brendenlake/omniglot/master/python"


def _files(folder: Path, split: Split) -> list[Path]:
    return archives.files(folder, STEMS[split])


@contextmanager
def _read(folder: Path, split: Split) -> Iterator[list[Item]]:
    with archives.members(folder, STEMS[split]) as members:
        items = []
        for member in (member for member in members if is_image(member.path)):
            alphabet, _, rest = member.path.partition("/")
            character, _, name = rest.partition("/")
            if not name or "/" in name:
                raise FewsureError(f"expected ALPHABET/CHARACTER/NAME.png, but got {member.where}")
            items.append(Item(f"{alphabet}/{character}", alphabet, name, partial(_ink, member)))
        wanted = alphabets_of(split, sorted({item.group for item in items}))
        yield [item for item in items if item.group in wanted]


def alphabets_of(split: Split, alphabets: list[str]) -> list[str]:
    """Those of an archive's alphabets, in sorted order, that belong to a split.

    >>> alphabets_of("validation", list("abcdefghijklmn"))
    ['f', 'l']
    """
    if split == "test":
        return alphabets
    validation = alphabets[VALIDATION_EVERY - 1 :: VALIDATION_EVERY]
    return validation if split == "validation" else [name for name in alphabets if name not in validation]


def _ink(member: archives.Member) -> NDArray[np.uint8]:
    """105 × 105 black on white, to 28 × 28 with ink = 255: the files' white is 255."""
    return 255 - decode(member.read(), member.where, SHAPE)


OMNIGLOT = DataSet(
    name="omniglot",
    title="1,623 characters of 50 alphabets, 20 drawings each",
    citation="Lake, Salakhutdinov and Tenenbaum, Human-level concept learning, Science 2015",
    licence="MIT",
    shape=SHAPE,
    classes={"train": 806, "validation": 158, "test": 659},
    placement="images_background and images_evaluation, each a folder or a zip file",
    files=_files,
    read=_read,
    remotes=(
        Remote("images_background.zip", f"{SOURCE}/images_background.zip", "md5:68d2efa1b9178cc56df9314c21c6e718"),
        Remote("images_evaluation.zip", f"{SOURCE}/images_evaluation.zip", "md5:6b91aef0f799c5bb55b94e3f2daec811"),
    ),
)
