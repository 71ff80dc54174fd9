"""FS-Mol: 5,135 assays of molecules, which are active or not (Stanley et al., 2021).

A task is an assay. A molecule is 2,048 bits of an extended-connectivity fingerprint, packed 8 to a byte; counts above 0
are 1.
"""

import gzip
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from fewsure.core.config import LEARNED, Range, from_json
from fewsure.core.progress import ProgressLine
from fewsure.data.augmentation import Augmentation, Dropping
from fewsure.data.description import DataSet, Item
from fewsure.data.fixed_classes import MayFixClasses
from fewsure.data.io.cache import load
from fewsure.data.pools import Pool, Split, in_group
from fewsure.errors import FewsureError, require

BITS = 2048
CLASSES = ("inactive", "active")
NAMES: dict[Split, str] = {"train": "train", "validation": "valid", "test": "test"}
"""The names of the splits' files or folders."""
SUFFIX = ".jsonl.gz"
ARRAYS = ("assays", "offsets", "molecule", "active", "smiles", "fingerprints")
PLACEMENT = f"train.npz, valid.npz and test.npz, or the published folders train, valid and test of ASSAY{SUFFIX}"


@dataclass(frozen=True)
class Assays:
    """The measurements of a split."""

    names: list[str]
    offsets: NDArray[np.int64]
    """(assays + 1,): the measurements of assay i are those from offsets[i] to offsets[i + 1]."""
    molecule: NDArray[np.int64]
    """The molecule of each measurement."""
    active: NDArray[np.bool_]
    """Whether it was active."""
    smiles: list[str]
    """The molecules."""
    bits: NDArray[np.uint8]
    """(molecules, bytes): their fingerprints, packed."""


def _files(folder: Path, split: Split) -> list[Path]:
    """One `.npz` of a split, or the published folder with a file for each assay."""
    whole = folder / f"{NAMES[split]}.npz"
    return [whole] if whole.is_file() else sorted((folder / NAMES[split]).glob(f"*{SUFFIX}"))


def read_assays(files: list[Path]) -> Assays:
    """The measurements in the files of a split, of either kind."""
    found = _from_arrays(files[0]) if files[0].suffix == ".npz" else _from_lines(files)
    if found.bits.shape[1:] != (BITS // 8,):
        raise FewsureError(f"expected fingerprints of {BITS:,} bits in {files[0]}, but got {8 * found.bits.shape[1]:,}")
    return found


def _from_arrays(file: Path) -> Assays:
    try:
        with np.load(file, allow_pickle=False) as arrays:
            names, offsets, molecule, active, smiles, bits = (arrays[name] for name in ARRAYS)
        found = Assays(_lines(names), offsets, molecule, active, _lines(smiles), bits)
        if (len(found.names) + 1, len(found.smiles), len(active)) != (len(offsets), len(bits), offsets[-1]):
            raise ValueError("their lengths do not fit together")
    except (OSError, EOFError, ValueError, KeyError, IndexError) as error:
        raise FewsureError(f"expected {file} to hold the arrays {', '.join(ARRAYS)}, but {error}") from error
    return found


def _lines(text: NDArray[np.uint8]) -> list[str]:
    return text.tobytes().decode().splitlines()


def _from_lines(files: list[Path]) -> Assays:
    """The published files: a molecule on each line."""
    offsets, active, smiles, bits = [0], list[bool](), list[str](), list[NDArray[np.uint8]]()
    with ProgressLine(f"reading {files[0].parent}") as progress:
        for number, file in enumerate(files, start=1):
            try:
                with gzip.open(file, "rt", encoding="utf-8") as lines:
                    for line in lines:
                        row = from_json(line)
                        smiles.append(str(row["SMILES"]))
                        active.append(float(row["Property"]) > 0)
                        bits.append(np.packbits(np.asarray(row["fingerprints"], dtype=np.int64) > 0))
            except (OSError, EOFError, ValueError, KeyError, TypeError) as error:
                wanted = "JSON objects with `SMILES`, `Property` and `fingerprints`"
                raise FewsureError(f"expected the lines of {file} to be {wanted}, but {error!r}") from error
            offsets.append(len(active))
            progress.show(number, len(files), "assays")
    names = [file.name.removesuffix(SUFFIX) for file in files]
    return Assays(names, np.array(offsets), np.arange(len(active)), np.array(active), smiles, np.stack(bits))


def _read(folder: Path, split: Split, stack: ExitStack) -> list[Item]:
    found, items = read_assays(_files(folder, split)), list[Item]()
    for name, first, end in zip(found.names, found.offsets, found.offsets[1:], strict=False):
        for row in range(first, end):
            label = in_group(name, CLASSES[int(found.active[row])])
            items.append(Item(label, name, f"{row:08}", partial(found.bits.__getitem__, found.molecule[row])))
    return items


@dataclass(frozen=True)
class FsMol(MayFixClasses):
    """FS-Mol: from a few molecules of an assay, active or not, to all others (Stanley et al., 2021).

    --shot and --query count the molecules of an assay, which are drawn as they come.
    """

    shot: Range = (16, 128)
    """Known molecules of an assay. From a range each meta-batch in training draws a number, small ones more often
    (log-uniform); tests have the middle."""
    query: int = 16
    """Molecules of an assay that are asked for. With fewer than the least of --shot and these, it is left out."""
    softmax_temperature: float | None = None
    """The divisor of outputs before the softmax. `none` fits it to validation assays when training ends."""
    train_dropping: float = 0.0
    """In training, set each bit of a molecule to 0 with this probability."""
    fixed_classes: bool = field(default=True, metadata=LEARNED)

    known_classes = CLASSES
    data_set: ClassVar[DataSet] = DataSet(
        name="fs-mol",
        title="molecules of 5,135 assays, active or not: 2,048 bits of a fingerprint",
        citation="Stanley et al., FS-Mol: a few-shot learning dataset of molecules, NeurIPS 2021",
        licence="CC BY-SA 3.0",
        shape=(BITS // 8,),
        packed=True,
        classes={"train": 9876, "validation": 80, "test": 314},
        placement=PLACEMENT,
        files=_files,
        read=_read,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        require(0 <= self.train_dropping < 1, "train_dropping", "a number in [0, 1)", self.train_dropping)

    @property
    def augmentation(self) -> Augmentation | None:
        return Dropping(self.train_dropping) if self.train_dropping else None

    @property
    def shape(self) -> tuple[int, ...]:
        return (8 * self.data_set.shape[0],)

    @property
    def grouped_by(self) -> str:
        return "assays"

    def class_pool(self, split: Split) -> Pool:
        return load(self.data_set, split)

    def pool(self, split: Split) -> Pool:
        return self.large_enough(super().pool(split), split)
