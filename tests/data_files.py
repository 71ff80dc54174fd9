"""Small files in the layouts in which data sets are published, written byte by byte where the bytes matter."""

import gzip
import io
import json
import struct
import zipfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from PIL import Image

ASSAY_FILES = {"train": "train", "validation": "valid", "test": "test"}
ASSAY_SIZES = {"train": (150, 160), "validation": (150,), "test": (50,)}


def image_bytes(pixels: np.ndarray, kind: str = "PNG") -> bytes:
    """An image file of (H, W) or (H, W, 3) uint8."""
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, kind)
    return buffer.getvalue()


def random_image(seed: int, size: int, *, grey: bool = False) -> np.ndarray:
    shape = (size, size) if grey else (size, size, 3)
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


def write_zip(path: Path, members: Mapping[str, bytes]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)


def write_tree(folder: Path, members: Mapping[str, bytes]) -> None:
    for name, content in members.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


def python2_pickle(value: object) -> bytes:
    """What Python 2's cPickle writes with protocol 2: text as byte strings, numpy by its old module names."""
    return b"\x80\x02" + _python2(value) + b"."


def _python2(value: object) -> bytes:
    match value:
        case dict():
            return b"}(" + b"".join(_python2(key) + _python2(item) for key, item in value.items()) + b"u"
        case list():
            return b"](" + b"".join(map(_python2, value)) + b"e"
        case tuple():
            return b"(" + b"".join(map(_python2, value)) + b"t"
        case str() | bytes():
            text = value.encode("latin1") if isinstance(value, str) else value
            return (
                b"U" + struct.pack("<B", len(text)) if len(text) < 256 else b"T" + struct.pack("<i", len(text))
            ) + text
        case int():
            return b"J" + struct.pack("<i", value)
        case np.ndarray():
            code = value.dtype.str[1:]
            order = "|" if value.dtype.itemsize == 1 or value.dtype.kind == "S" else "<"
            empty = (
                b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\n" + _python2((0,)) + _python2("b") + b"\x87R"
            )
            dtype = b"cnumpy\ndtype\n" + _python2(code) + _python2(0) + _python2(1) + b"\x87R"
            dtype += b"(" + _python2(3) + _python2(order) + b"NNN" + _python2(-1) + _python2(-1) + _python2(0) + b"tb"
            return (
                empty + b"(" + _python2(1) + _python2(value.shape) + dtype + b"\x89" + _python2(value.tobytes()) + b"tb"
            )
    raise TypeError(type(value))


class WrittenAssays:
    """Assays of FS-Mol with random bits, which depend on the split alone."""

    def __init__(self, split: str) -> None:
        random = np.random.default_rng(len(split))
        self.names = [f"CHEMBL{split}{number}" for number in range(len(ASSAY_SIZES[split]))]
        self.offsets = np.cumsum([0, *ASSAY_SIZES[split]])
        self.counts = random.poisson(0.02, (self.offsets[-1], 2048))
        self.active = random.uniform(size=len(self.counts)) < 0.4
        self.smiles = ["C" * (1 + row % 50) for row in range(len(self.counts))]

    def arrays(self, folder: Path, split: str) -> None:
        """As one file, with its molecules in another order."""
        order = np.random.default_rng(1).permutation(len(self.counts))
        np.savez_compressed(
            folder / f"{ASSAY_FILES[split]}.npz",
            assays=np.frombuffer("\n".join(self.names).encode(), np.uint8),
            smiles=np.frombuffer("\n".join(self.smiles[row] for row in order).encode(), np.uint8),
            fingerprints=np.packbits(self.counts[order] > 0, axis=1),
            molecule=np.argsort(order).astype(np.int32),
            offsets=self.offsets,
            active=self.active,
        )

    def lines(self, folder: Path, split: str) -> None:
        """As the published files."""
        (folder / ASSAY_FILES[split]).mkdir(parents=True)
        for name, first, end in zip(self.names, self.offsets, self.offsets[1:], strict=False):
            with gzip.open(folder / ASSAY_FILES[split] / f"{name}.jsonl.gz", "wt") as file:
                for row in range(first, end):
                    label = {"SMILES": self.smiles[row], "Property": str(float(self.active[row])), "Assay_ID": name}
                    file.write(json.dumps(label | {"fingerprints": self.counts[row].tolist()}) + "\n")
