"""FS-Mol: assays of molecules as tasks, from arrays and from the published files; packed bits."""

import gzip
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.metrics import average_precision_score

from fewsure.cli.main import main
from fewsure.core import streams
from fewsure.data.augmentation import Dropping
from fewsure.data.episodes import RowTasks, stratified_counts
from fewsure.data.pools import SPLITS, network_inputs
from fewsure.data.sets.fs_mol import CLASSES, DATA_SET, DESCRIPTORS, FsMol, descriptor_values, read_assays
from fewsure.errors import FewsureError
from fewsure.evaluation.metrics.ranking import top_precision
from fewsure.reproduce.assays import predicted_by_classifier, sampled, scores
from fewsure.reproduce.assays_page import assays_page

from .data_files import ASSAY_SIZES, WrittenAssays

CPU = torch.device("cpu")


@pytest.mark.parametrize("kind", ["arrays", "lines"])
def test_both_kinds_of_files_give_the_molecules_of_each_assay(kind: str, own_data: Path) -> None:
    folder = own_data / "fs-mol"
    folder.mkdir()
    for split in SPLITS:
        getattr(WrittenAssays(split), kind)(folder, split)
    data = FsMol(shot=(16, 24), query=8)
    for split in SPLITS:
        written, pool = WrittenAssays(split), data.pool(split)
        assert (list(pool.classes), pool.starts.tolist()) == (written.names, written.offsets.tolist())
        assert pool.examples.shape == (len(written.counts), 256)
        assert pool.labels is not None
        for first, end in zip(written.offsets, written.offsets[1:], strict=False):
            order = np.argsort(~written.active[first:end], kind="stable")  # those of a class stand together
            expected = np.packbits(written.counts[first:end][order] > 0, axis=1)
            np.testing.assert_array_equal(pool.examples[first:end], expected)
            np.testing.assert_array_equal(pool.labels[first:end], written.active[first:end][order])


def test_bits_are_packed_in_memory_and_numbers_in_tasks(own_data: Path) -> None:
    folder, written = own_data / "fs-mol", WrittenAssays("train")
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


def test_dropping_clears_a_share_of_the_bits(own_data: Path) -> None:
    WrittenAssays("train").lines(own_data / "fs-mol", "train")
    pool = FsMol().pool("train")
    rows = torch.arange(len(pool.examples)).repeat(20)
    whole, found = network_inputs(pool.examples[rows]), Dropping(0.3)(pool.examples, rows, streams.generator(0, "drop"))
    assert not bool((found > whole).any())
    assert float(found.sum() / whole.sum()) == pytest.approx(0.7, abs=0.02)
    plain, dropping = (FsMol(train_dropping=share, query=8) for share in (0.0, 0.3))
    seen = [
        data.tasks("train", CPU).sample(50, streams.generator(0, "seen"))[0].query.x.mean()
        for data in (plain, dropping)
    ]
    assert float(seen[1] / seen[0]) == pytest.approx(0.7, abs=0.02)


def test_descriptors_are_eight_bits_each_by_the_training_molecules(own_data: Path) -> None:
    pytest.importorskip("rdkit", reason="RDKit is not installed")
    for split in SPLITS:
        WrittenAssays(split).lines(own_data / "fs-mol", split)
    data = FsMol(descriptors=True)
    assert data.shape == (2048 + 8 * len(DESCRIPTORS),)
    plain, pool = FsMol().pool("train"), data.pool("train")
    assert torch.equal(pool.examples[:, :256], plain.examples)
    steps = network_inputs(pool.examples[:, 256:]).unflatten(1, (-1, 8))
    assert bool((steps[..., 1:] <= steps[..., :-1]).all())  # who is above a step is above all lower ones
    heavy = steps[:, DESCRIPTORS.index("NumHeavyAtoms")].mean(0)
    torch.testing.assert_close(heavy, 1 - torch.arange(1, 9) / 9, atol=0.05, rtol=0)  # chains of all lengths
    atoms = descriptor_values(["CCC", "no molecule"])
    assert (atoms[0, DESCRIPTORS.index("NumHeavyAtoms")], bool(np.isnan(atoms[1]).all())) == (3, True)
    assert data.pool("test").examples.shape == (50, data.shape[0] // 8)
    (own_data / "fs-mol" / "test").rename(own_data / "elsewhere")
    with pytest.raises(FewsureError, match=r"fs-mol \(test\) is not in"):
        data.pool("test")


def test_an_assay_that_is_too_small_is_left_out(own_data: Path) -> None:
    WrittenAssays("train").lines(own_data / "fs-mol", "train")
    assert FsMol(shot=(16, 40), query=135).pool("train").classes == ("CHEMBLtrain1",)
    with pytest.raises(FewsureError, match=r"takes 175 examples .* but the largest of 2 tasks has 160"):
        FsMol(shot=40, query=135).pool("train")


@pytest.mark.parametrize(
    ("file", "content", "says"),
    [
        ("train.npz", b"nothing", "to hold the arrays assays, offsets"),
        ("train/CHEMBL1.jsonl.gz", b"nothing", "the lines of .*CHEMBL1.jsonl.gz to be JSON objects"),
        ("train/CHEMBL1.jsonl.gz", gzip.compress(b'{"SMILES": "C", "Property": "1.0"}\n', mtime=0), "KeyError"),
        (
            "train/CHEMBL1.jsonl.gz",
            gzip.compress(b'{"SMILES": "C", "Property": 1, "fingerprints": [1]}', mtime=0),  # names of tests stay
            "2,048 bits",
        ),
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


def test_support_sets_are_stratified_and_all_other_molecules_are_queries(own_data: Path) -> None:
    WrittenAssays("train").lines(own_data / "fs-mol", "train")
    data = FsMol(shot=16, query=1)
    pool, tasks = data.pool("train"), data.tasks("train", CPU)
    assert isinstance(tasks, RowTasks)
    assert pool.labels is not None
    for number, size in enumerate(ASSAY_SIZES["train"]):
        rows = slice(int(pool.starts[number]), int(pool.starts[number + 1]))
        labels, x = pool.labels[rows], network_inputs(pool.examples[rows])
        task, facts = tasks.stratified(number, 10, streams.generator(0, "stratified"))
        assert facts["groups"].tolist() == [[number]] * 10
        assert (task.support.x.shape, task.query.x.shape) == ((10, 16, 2048), (10, size - 16, 2048))
        assert (task.support.y.sum(1) - 16 * labels.double().mean()).abs().max() <= 0.5
        weights = torch.randn(2048, dtype=torch.float64, generator=streams.generator(0, "hash"))
        for support, query in zip(task.support.x, task.query.x, strict=True):
            both = torch.cat([support, query]).double() @ weights
            torch.testing.assert_close(both.sort().values, (x.double() @ weights).sort().values)
        assert len(set((task.support.x.double() @ weights).sum(1).tolist())) == 10
    counts = [stratified_counts([7, 8, 5], size) for size in range(21)]
    assert [sum(found) for found in counts] == list(range(21))
    assert all(
        abs(found - size * whole / 20) < 1
        for size, each in enumerate(counts)
        for found, whole in zip(each, (7, 8, 5), strict=True)
    )


def test_the_top_of_a_list_shares_its_last_places_among_a_tie() -> None:
    random = np.random.default_rng(0)
    for size in (1, 9, 40, 101):
        scores, positive = random.integers(0, 6, size), random.uniform(size=size) < 0.4
        places = max(1, round(0.1 * size))
        shuffled = [random.permutation(size) for _ in range(4000)]
        expected = np.mean(
            [positive[order[np.argsort(-scores[order], kind="stable")[:places]]].mean() for order in shuffled]
        )
        found = top_precision(torch.tensor(scores).double(), torch.tensor(positive), 0.1)
        assert float(found) == pytest.approx(expected, abs=0.03)


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


def test_the_fingerprints_are_those_of_rdkit_as_a_user_makes_them(real_data: Path) -> None:
    generators = pytest.importorskip("rdkit.Chem.rdFingerprintGenerator", reason="RDKit is not installed")
    if not (real_data / "fs-mol").is_dir():
        pytest.skip("FS-Mol is not beside the project (shared/data/fs-mol)")
    from rdkit.Chem import MolFromSmiles

    assays, generator = read_assays(DATA_SET.found("validation")), generators.GetMorganGenerator(radius=2, fpSize=2048)
    for smiles, bits in zip(assays.smiles[:20], np.unpackbits(assays.bits[:20], axis=1), strict=True):
        np.testing.assert_array_equal(generator.GetFingerprintAsNumPy(MolFromSmiles(smiles)), bits)


@pytest.fixture
def assays(own_data: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Small assays, and the authors' table of one of their methods."""
    folder = own_data / "fs-mol"
    folder.mkdir()
    for split in SPLITS:
        WrittenAssays(split).arrays(folder, split)
    rows = [
        f"CHEMBLtest0,{method},{size},{0.5 + size / 1000},0.02,0.4" for method in ("knn", "mat") for size in (16, 32)
    ]
    (folder / "published.csv").write_text("\n".join(["assay,method,support,auprc,std,positive_share", *rows]) + "\n")
    monkeypatch.setattr("fewsure.reproduce.assays.SUPPORTS", (16, 32))
    monkeypatch.setattr("fewsure.reproduce.run.VALIDATION_TASKS", 20)
    monkeypatch.setattr("fewsure.evaluation.calibrate.TASKS", 20)
    return folder


def test_neighbours_are_scored_as_by_scikit_learn_on_the_same_support_sets(assays: Path) -> None:
    labels = WrittenAssays("test").active
    found = list(predicted_by_classifier("nearest-neighbours", 16, 1, "test"))
    assert len(found) == 1
    probabilities, y = found[0]
    assert probabilities.shape == (10, 34, 2)
    assert bool((y.sum(1) == labels.sum() - stratified_counts([int((~labels).sum()), int(labels.sum())], 16)[1]).all())
    task, _ = next(iter(sampled(FsMol(), "test", 16, 1)))
    bits, known = task.query.x[3] > 0, task.support.x[3] > 0
    both = (bits.double() @ known.double().T) / (bits.unsqueeze(1) | known).sum(-1)
    votes = torch.stack([task.support.y[3][row.topk(4).indices].sum() for row in both])
    distinct = both.sort(1, descending=True).values[:, 3] > both.sort(1, descending=True).values[:, 4]
    torch.testing.assert_close(probabilities[3, distinct, 1], (votes[distinct].double() + 1) / 6)
    score = scores(probabilities[3], y[3])
    expected = average_precision_score(y[3], probabilities[3, :, 1]) - y[3].double().mean()
    assert float(score["delta_auprc"]) == pytest.approx(float(expected))


@pytest.mark.slow
def test_the_protocol_is_reproduced_and_written_up(
    assays: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--budget", "0.002", "--seeds", "1", "--device", "cpu", "--out", str(tmp_path / "out"), "--json"]
    assert main(["reproduce", "fs-mol", "--only", "protonet", "nearest-neighbours", *options]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [(row["label"], row["support"]) for row in rows] == [
        (label, support) for label in ("nearest-neighbours", "protonet") for support in (16, 32)
    ]
    for row in rows:
        share = row["auprc"]["mean"] - row["delta_auprc"]["mean"]
        assert 0 < share < 1
        assert row["of_assays"]["delta_auprc"] == [pytest.approx(row["delta_auprc"]["mean"], abs=1e-5)]
        assert row["against"]["mat"]["delta_auprc"]["mean"] == pytest.approx(0.1 + row["support"] / 1000, abs=1e-6)
        expected = row["delta_auprc"]["mean"] - row["against"]["mat"]["delta_auprc"]["mean"]
        assert row["against"]["mat"]["difference"]["mean"] == pytest.approx(expected, abs=1e-5)
        assert 0 <= row["coverage"]["mean"] <= 1
        assert row["assays"] == 1
    before = {file: file.read_bytes() for file in (tmp_path / "out").glob("*/seed-0/assays-*.json")}
    assert len(before) == 4
    assert main(["reproduce", "fs-mol", "--collect", *options]) == 0
    assert json.loads(capsys.readouterr().out) == rows
    page = (tmp_path / "out" / "results.md").read_text()
    assert page == assays_page(rows)
    for row in rows:
        assert f"{row['delta_auprc']['mean']:.3f}" in page


def test_a_method_that_is_no_part_of_the_experiment_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reproduce", "fs-mol", "--only", "bmaml"]) == 2
    assert "nearest-neighbours" in capsys.readouterr().err
