"""FS-Mol: assays of molecules as tasks, from arrays and from the published files; packed bits."""

import gzip
import json
from pathlib import Path

import numpy as np
import pytest
import torch

from fewsure.core import streams
from fewsure.data.pools import SPLITS
from fewsure.data.sets.fs_mol import CLASSES, FsMol
from fewsure.errors import FewsureError

CPU = torch.device("cpu")
NAMES = {"train": "train", "validation": "valid", "test": "test"}
SIZES = {"train": (40, 45), "validation": (36,), "test": (50,)}


class Written:
    """Assays with random bits, which depend on the split alone."""

    def __init__(self, split: str) -> None:
        random = np.random.default_rng(len(split))
        self.names = [f"CHEMBL{split}{number}" for number in range(len(SIZES[split]))]
        self.offsets = np.cumsum([0, *SIZES[split]])
        self.counts = random.poisson(0.02, (self.offsets[-1], 2048))
        self.active = random.uniform(size=len(self.counts)) < 0.4
        self.smiles = [f"C{'C' * row}" for row in range(len(self.counts))]

    def arrays(self, folder: Path, split: str) -> None:
        """As one file, with its molecules in another order."""
        order = np.random.default_rng(1).permutation(len(self.counts))
        np.savez_compressed(
            folder / f"{NAMES[split]}.npz",
            assays=np.frombuffer("\n".join(self.names).encode(), np.uint8),
            smiles=np.frombuffer("\n".join(self.smiles[row] for row in order).encode(), np.uint8),
            fingerprints=np.packbits(self.counts[order] > 0, axis=1),
            molecule=np.argsort(order).astype(np.int32),
            offsets=self.offsets,
            active=self.active,
        )

    def lines(self, folder: Path, split: str) -> None:
        """As the published files."""
        (folder / NAMES[split]).mkdir(parents=True)
        for name, first, end in zip(self.names, self.offsets, self.offsets[1:], strict=False):
            with gzip.open(folder / NAMES[split] / f"{name}.jsonl.gz", "wt") as file:
                for row in range(first, end):
                    label = {"SMILES": self.smiles[row], "Property": str(float(self.active[row])), "Assay_ID": name}
                    file.write(json.dumps(label | {"fingerprints": self.counts[row].tolist()}) + "\n")


@pytest.mark.parametrize("kind", ["arrays", "lines"])
def test_both_kinds_of_files_give_the_molecules_of_each_assay(kind: str, own_data: Path) -> None:
    folder = own_data / "fs-mol"
    folder.mkdir()
    for split in SPLITS:
        getattr(Written(split), kind)(folder, split)
    data = FsMol(shot=(16, 24), query=8)
    for split in SPLITS:
        written, pool = Written(split), data.pool(split)
        assert (list(pool.classes), pool.starts.tolist()) == (written.names, written.offsets.tolist())
        assert pool.examples.shape == (len(written.counts), 256)
        assert pool.labels is not None
        for first, end in zip(written.offsets, written.offsets[1:], strict=False):
            order = np.argsort(~written.active[first:end], kind="stable")  # those of a class stand together
            expected = np.packbits(written.counts[first:end][order] > 0, axis=1)
            np.testing.assert_array_equal(pool.examples[first:end], expected)
            np.testing.assert_array_equal(pool.labels[first:end], written.active[first:end][order])


def test_bits_are_packed_in_memory_and_numbers_in_tasks(own_data: Path) -> None:
    folder, written = own_data / "fs-mol", Written("train")
    written.lines(folder, "train")
    data = FsMol(shot=16, query=8)
    assert (data.shape, data.outputs, data.known_classes, data.grouped_by) == ((2048,), 2, CLASSES, "assays")
    task, facts = data.tasks("train", CPU).sample(3, streams.generator(0, "bits"))
    assert task.support.x.shape == (3, 16, 2048)
    rows = {row.tobytes(): bool(active) for row, active in zip(written.counts > 0, written.active, strict=True)}
    for x, y in zip(task.query.x.flatten(0, 1).numpy(), task.query.y.flatten().tolist(), strict=True):
        assert rows[(x == 1).tobytes()] == (CLASSES[y] == "active")
    assert set(task.query.x.unique().tolist()) == {0.0, 1.0}
    group = data.groups(CPU, streams.generator(0, "groups"))[int(facts["groups"][0, 0])]
    assert bool((group.x == task.support.x[0, 0]).all(1).any())


def test_an_assay_that_is_too_small_is_left_out(own_data: Path) -> None:
    Written("train").lines(own_data / "fs-mol", "train")
    assert FsMol(shot=(16, 40), query=26).pool("train").classes == ("CHEMBLtrain1",)
    with pytest.raises(FewsureError, match=r"takes 66 examples .* but the largest of 2 tasks has 45"):
        FsMol(shot=40, query=26).pool("train")


@pytest.mark.parametrize(
    ("file", "content", "says"),
    [
        ("train.npz", b"nothing", "to hold the arrays assays, offsets"),
        ("train/CHEMBL1.jsonl.gz", b"nothing", "the lines of .*CHEMBL1.jsonl.gz to be JSON objects"),
        ("train/CHEMBL1.jsonl.gz", gzip.compress(b'{"SMILES": "C", "Property": "1.0"}\n'), "KeyError"),
        ("train/CHEMBL1.jsonl.gz", gzip.compress(b'{"SMILES": "C", "Property": 1, "fingerprints": [1]}'), "2,048 bits"),
        ("other", b"", "expected train.npz, valid.npz and test.npz, or the published folders"),
    ],
)
def test_other_files_are_refused_in_one_line(file: str, content: bytes, says: str, own_data: Path) -> None:
    path = own_data / "fs-mol" / file
    path.parent.mkdir(parents=True)
    path.write_bytes(content)
    with pytest.raises(FewsureError, match=says) as refusal:
        FsMol().pool("train")
    assert "\n" not in str(refusal.value)


def test_the_real_assays(real_data: Path) -> None:
    if not (real_data / "fs-mol").is_dir():
        pytest.skip("FS-Mol is not beside the project (shared/data/fs-mol)")
    pool = FsMol().pool("test")
    assert (len(pool.classes), len(pool.examples)) == (157, 56220)
    with np.load(real_data / "fs-mol" / "test.npz") as arrays:
        active = [
            arrays["active"][first:end] for first, end in zip(arrays["offsets"], arrays["offsets"][1:], strict=False)
        ]
        bits = np.unpackbits(arrays["fingerprints"], axis=1).sum(1)[arrays["molecule"]]
    assert pool.labels is not None
    assert [int(labels.sum()) for labels in pool.labels.split(pool.counts.tolist())] == [int(y.sum()) for y in active]
    task, _ = FsMol(shot=16, query=8).tasks("test", CPU).sample(200, streams.generator(0, "real"))
    assert abs(float(task.support.x.sum(-1).mean()) / bits.mean() - 1) < 0.1
