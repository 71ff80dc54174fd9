"""Omniglot: 1,623 handwritten characters of 50 alphabets, each drawn by 20 people (Lake et al., 2015).

The original split: the 30 background alphabets are for training, the 20 evaluation alphabets for testing. Every sixth
of the background alphabets, in sorted order, is for validation (5 of 30).
"""

from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fewsure.data.classification import ImageSet
from fewsure.data.description import DataSet, Item, Remote
from fewsure.data.io import archives
from fewsure.data.pools import Split

SHAPE = (1, 28, 28)
VALIDATION_EVERY = 6
SOURCE = "https://raw.githubusercontent.com/brendenlake/omniglot/master/python"


def _stem(split: Split) -> str:
    return "images_evaluation" if split == "test" else "images_background"


def _read(folder: Path, split: Split, stack: ExitStack) -> list[Item]:
    items = [
        Item(f"{alphabet}/{character}", alphabet, name, partial(_ink, member))
        for (alphabet, character, name), member in archives.images(
            folder, _stem(split), "ALPHABET/CHARACTER/NAME.png", stack
        )
    ]
    wanted = alphabets_of(split, sorted({item.group for item in items}))
    return [item for item in items if item.group in wanted]


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
    return 255 - member.image(SHAPE)


@dataclass(frozen=True)
class Omniglot(ImageSet):
    """Omniglot's handwritten characters, 28×28, original split (Lake et al., 2015)."""

    inverted = True
    data_set = DataSet(
        name="omniglot",
        title="1,623 characters of 50 alphabets, 20 drawings each",
        citation="Lake, Salakhutdinov and Tenenbaum, Human-level concept learning, Science 2015",
        licence="MIT",
        shape=SHAPE,
        classes={"train": 806, "validation": 158, "test": 659},
        placement="images_background and images_evaluation, each a folder or a zip file",
        files=lambda folder, split: archives.files(folder, _stem(split)),
        read=_read,
        remotes=(
            Remote("images_background.zip", f"{SOURCE}/images_background.zip", "md5:68d2efa1b9178cc56df9314c21c6e718"),
            Remote("images_evaluation.zip", f"{SOURCE}/images_evaluation.zip", "md5:6b91aef0f799c5bb55b94e3f2daec811"),
        ),
    )
