"""FS-Mol: 5,135 assays of molecules, which are active or not (Stanley et al., 2021).

A task is an assay. A molecule is 2,048 bits of an extended-connectivity fingerprint, packed 8 to a byte; counts above 0
are 1. With `descriptors`, 8 more bits follow for each of 24 of RDKit's: how far up it is among the molecules of the
training assays. A molecule that RDKit cannot read has none of these bits.
"""

import gzip
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import cache, partial
from pathlib import Path

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
SHOW_EVERY = 1000
DESCRIPTORS = (
    *("exactmw", "NumHeavyAtoms", "NumHeteroatoms", "labuteASA", "tpsa", "CrippenClogP", "CrippenMR", "FractionCSP3"),
    *("NumHBD", "NumHBA", "NumRotatableBonds", "NumAmideBonds", "NumAtomStereoCenters", "NumSpiroAtoms", "NumRings"),
    *("NumAromaticRings", "NumAliphaticRings", "NumSaturatedRings", "NumHeterocycles", "NumAromaticHeterocycles"),
    *("hallKierAlpha", "kappa1", "kappa2", "kappa3"),
)
STEPS = 8
"""Bits of a descriptor."""
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


def descriptor_values(smiles: Sequence[str]) -> NDArray[np.float64]:
    """RDKit's descriptors (molecules, 24); NaN of a molecule that it cannot read."""
    try:
        from rdkit.Chem import MolFromSmiles
        from rdkit.Chem.rdMolDescriptors import Properties
        from rdkit.rdBase import BlockLogs
    except ImportError as error:
        raise FewsureError(
            "expected RDKit, which computes --descriptors, but it is not installed; pip install 'fewsure[chem]'"
        ) from error
    properties, unreadable = Properties(DESCRIPTORS), [np.nan] * len(DESCRIPTORS)
    values = []
    with BlockLogs(), ProgressLine("RDKit's descriptors") as progress:
        for number, text in enumerate(smiles, start=1):
            molecule = MolFromSmiles(text)
            values.append(unreadable if molecule is None else list(properties.ComputeProperties(molecule)))
            if number % SHOW_EVERY == 0 or number == len(smiles):
                progress.show(number, len(smiles), "molecules")
    return np.array(values)


@cache
def _steps(files: tuple[Path, ...]) -> NDArray[np.float64]:
    """(24, STEPS): the values that equal shares of the molecules in these files lie between."""
    values = descriptor_values(read_assays(list(files)).smiles)
    return np.nanquantile(values, np.arange(1, STEPS + 1) / (STEPS + 1), axis=0).T


def descriptor_bits(values: NDArray[np.float64], steps: NDArray[np.float64]) -> NDArray[np.uint8]:
    """The packed bits (molecules, 24 · STEPS / 8): which of the steps (24, STEPS) each value is above."""
    return np.packbits((values[:, :, None] > steps).reshape(len(values), -1), axis=1)


def _read(folder: Path, split: Split, stack: ExitStack, *, descriptors: bool = False) -> list[Item]:
    found, items = read_assays(_files(folder, split)), list[Item]()
    bits = found.bits
    if descriptors:
        steps = _steps(tuple(_files(folder, "train")))
        bits = np.hstack([bits, descriptor_bits(descriptor_values(found.smiles), steps)])
    for name, first, end in zip(found.names, found.offsets, found.offsets[1:], strict=False):
        for row in range(first, end):
            label = in_group(name, CLASSES[int(found.active[row])])
            items.append(Item(label, name, f"{row:08}", partial(bits.__getitem__, found.molecule[row])))
    return items


DATA_SET = DataSet(
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
    descriptors: bool = False
    """RDKit's descriptors after the bits of the fingerprint, as bits; RDKit must be installed."""
    train_dropping: float = 0.0
    """In training, set each bit of a molecule to 0 with this probability."""
    fixed_classes: bool = field(default=True, metadata=LEARNED)

    known_classes = CLASSES

    def __post_init__(self) -> None:
        super().__post_init__()
        require(0 <= self.train_dropping < 1, "train_dropping", "a number in [0, 1)", self.train_dropping)

    @property
    def augmentation(self) -> Augmentation | None:
        return Dropping(self.train_dropping) if self.train_dropping else None

    @property
    def data_set(self) -> DataSet:
        if not self.descriptors:
            return DATA_SET
        size, read = (BITS + STEPS * len(DESCRIPTORS)) // 8, partial(_read, descriptors=True)
        return replace(DATA_SET, name="fs-mol-descriptors", place=DATA_SET.folder, shape=(size,), read=read)

    @property
    def shape(self) -> tuple[int, ...]:
        return (8 * self.data_set.shape[0],)

    @property
    def grouped_by(self) -> str:
        return "assays"

    def class_pool(self, split: Split) -> Pool:
        DATA_SET.found(split)
        return load(self.data_set, split)

    def pool(self, split: Split) -> Pool:
        return self.large_enough(super().pool(split), split)
