"""Folders of class folders of images: which images there are, and which split each belongs to."""

from pathlib import Path
from typing import NamedTuple

from fewsure.data.io.images import KINDS, is_image
from fewsure.data.own.rows import ALIASES, Shares, split_by_name
from fewsure.data.pools import SPLITS, Split, in_group
from fewsure.errors import FewsureError

PLACEMENT = f"class folders of {KINDS} images, CLASS/NAME.jpg, if need be in train, validation and test"
GROUP_PLACEMENT = PLACEMENT.replace("CLASS/", "GROUP/CLASS/")
UNREADABLE = 0.05
"""The share of images that may be unreadable: they are left out and counted."""


class Found(NamedTuple):
    """An image in a class folder."""

    path: Path
    label: str
    split: Split | None
    """Where the folder says it."""
    group: str = ""
    """The folder of the class's folder, where classes are fixed."""

    @property
    def unit(self) -> str:
        """The unit that is held out as a whole: its group, or else its class."""
        return self.group or self.label

    @property
    def name(self) -> str:
        """The name of its class, of its group alone where it has one."""
        return in_group(self.group, self.label) if self.group else self.label


def find_images(folder: Path, *, grouped: bool = False) -> tuple[list[Found], list[Path]]:
    """The images of a folder of class folders, or of folders of groups with class folders, and its other files."""
    tops = {path.name for path in folder.iterdir() if path.is_dir()} & set(ALIASES) if folder.is_dir() else set()
    divided = sorted(ALIASES[name] for name in tops) == sorted(SPLITS)
    images, others = [], []
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        parts = path.relative_to(folder).parts
        if any(part.startswith(".") for part in parts):
            continue
        split = ALIASES.get(parts[0]) if divided else None
        inner = parts[1:] if split else parts
        if is_image(path.name) and len(inner) == 2 + grouped:
            images.append(Found(path, inner[-2], split, inner[0] if grouped else ""))
        else:
            others.append(path)
    return images, others


def image_splits(images: list[Found], shares: Shares, where: str) -> dict[Split, list[Found]]:
    """The images of each split: by the folder, or by the rule for the names of classes."""
    by_folder: dict[str, Split] = {}
    one, many = ("group", "groups") if any(found.group for found in images) else ("class", "classes")
    for found in images:
        if found.split and by_folder.setdefault(found.unit, found.split) != found.split:
            first, second = sorted((by_folder[found.unit], found.split))
            raise FewsureError(
                f"{where}: few-shot learning is tested on {many} that it was not trained on, but {one} "
                f"{found.unit!r} is in {first} and {second}; put all {one} folders side by side, and the rule divides "
                "them"
            )
    names = sorted({found.unit for found in images})
    rule = by_folder if all(found.split for found in images) else split_by_name(names, shares, many, where)
    return {split: [found for found in images if rule[found.unit] == split] for split in SPLITS}
