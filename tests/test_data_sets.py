"""The real data sets as they are, and small files in the published layouts of those that cannot be had here."""

import csv
import io
import json
import os
import pickle
import shutil
import tarfile
import zipfile
from collections import Counter, defaultdict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from threading import Barrier
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from fewsure.core import streams
from fewsure.core.places import cache_root, data_root
from fewsure.data import DATA_SETS
from fewsure.data.features import Features
from fewsure.data.io import cache, images
from fewsure.data.io.cache import load
from fewsure.data.io.feature_files import load_features, write_features
from fewsure.data.pools import SPLITS, Pool, Split, pool_checksum
from fewsure.data.sets.cifar_fs import SPLIT_CLASSES
from fewsure.errors import FewsureError
from fewsure.learner.inputs import read_inputs
from fewsure.pipeline import start_run
from fewsure.training.experiment import load_preset
from fewsure.training.runs import Run

from .data_files import image_bytes, python2_pickle, random_image, write_tree, write_zip
from .helpers import write_blobs

SHORT: dict[Split, str] = {"train": "train", "validation": "val", "test": "test"}


def assert_pool_is_sound(pool: Pool) -> None:
    assert list(pool.classes) == sorted(set(pool.classes))
    assert len(pool.groups) == len(pool.classes) == len(pool.starts) - 1
    assert (pool.starts[0], pool.starts[-1]) == (0, len(pool.examples))
    assert (pool.counts > 0).all()
    assert pool.checksum == pool_checksum(pool.examples, pool.starts, pool.classes)


# Real data


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "each", "groups"),
    [("omniglot", 20, (25, 5, 20)), ("cifar-fs", 600, (20, 11, 13)), ("mini-imagenet", 600, (0, 0, 0))],
)
def test_real_data_sets_have_the_published_classes(name: str, each: int, groups: tuple, real_data: Path) -> None:
    data, found = DATA_SETS[name], {}
    for split in SPLITS:
        if not data.files(data.folder, split):
            pytest.skip(f"the {'CIFAR-FS' if name == 'cifar-fs' else name} archive is not in shared/data")
        with ExitStack() as stack:
            found[split] = data.read(data.folder, split, stack)
            assert {item.load().shape for item in found[split][::1000]} == {data.shape}
        assert set(Counter(item.label for item in found[split]).values()) == {each}
    labels, members = (
        {split: {getattr(item, field) for item in items} - {""} for split, items in found.items()}
        for field in ("label", "group")
    )
    assert {split: len(names) for split, names in labels.items()} == data.classes
    assert tuple(len(names) for names in members.values()) == groups
    assert len(set.union(*labels.values())) == sum(data.classes.values())
    if name == "omniglot":  # every sixth alphabet of the background is for validation
        assert len(set.union(*members.values())) == sum(groups)
        assert members["validation"] == set(sorted(members["train"] | members["validation"])[5::6])


@pytest.mark.slow
@pytest.mark.parametrize("name", ["omniglot", "mini-imagenet"])
def test_a_real_split_is_a_sound_pool(name: str, real_data: Path) -> None:
    pool = load(DATA_SETS[name], "test")
    assert_pool_is_sound(pool)
    assert pool.examples.dtype == torch.uint8
    assert len(pool.classes) == DATA_SETS[name].classes["test"]
    assert pool.counts.unique().tolist() == [20 if name == "omniglot" else 600]


def test_no_test_image_of_mini_imagenet_is_one_of_another_split(real_data: Path) -> None:
    """By checksum and size; of the 8 pairs that are the same, 6 are of a training and a validation class."""
    owners = defaultdict(list)
    for path in (real_data / "mini-imagenet").glob("*.zip"):
        with zipfile.ZipFile(path) as archive:
            for info in archive.infolist():
                owners[info.CRC, info.file_size].append(path.stem.split("_")[1])
    pairs = Counter(tuple(sorted(splits)) for splits in owners.values() if len(splits) > 1)
    assert pairs == {("train", "train"): 2, ("train", "val"): 6}


def test_omniglot_is_ink_on_nothing(real_data: Path) -> None:
    pool = load(DATA_SETS["omniglot"], "test")
    assert (pool.classes[0], pool.groups[0]) == ("Angelic/character01", "Angelic")
    with zipfile.ZipFile(real_data / "omniglot" / "images_evaluation.zip") as archive:
        names = [info.filename for info in archive.infolist()]
        for row, name in ((0, min(names)), (len(names) - 1, max(names))):
            paper = np.asarray(Image.open(io.BytesIO(archive.read(name))))
            assert paper.shape == (105, 105)
            share = float(pool.examples[row].float().mean() / 255)
            assert share == pytest.approx(1 - paper.mean(), abs=0.01)  # the share of ink is kept
    assert int(pool.examples.amax()) == 255


def test_the_table_of_cifar_fs_is_the_published_one(real_data: Path) -> None:
    for split, name in SHORT.items():
        published = json.loads((real_data / "splits" / "cifar-fs" / f"{name}.json").read_text())
        assert SPLIT_CLASSES[split] == {label: group for group, label in published}


# Published layouts


def test_cifar_fs_is_the_same_in_class_folders_and_in_the_official_archive(own_data: Path) -> None:
    labels, folder = ["apple", "baby", "crab", "bus"], own_data / "cifar-fs"
    members = {"meta": python2_pickle({"fine_label_names": labels, "coarse_label_names": ["a"]})}
    for seed, part in enumerate(("train", "test")):
        entries = [(number, f"{label}_s_{n:06}.png") for n in range(3) for number, label in enumerate(labels)]
        pixels = [random_image(100 * seed + row, 32) for row in range(len(entries))]
        for (number, name), image in zip(entries, pixels, strict=True):
            split = next(SHORT[split] for split in SPLITS if labels[number] in SPLIT_CLASSES[split])
            write_tree(folder / split / labels[number], {f"{part}_{name}": image_bytes(image)})
        content = {
            "filenames": [name for _, name in entries],
            "batch_label": "testing batch 1 of 1",
            "fine_labels": [number for number, _ in entries],
            "coarse_labels": [0] * len(entries),
            "data": np.stack([image.transpose(2, 0, 1).reshape(-1) for image in pixels]),
        }
        members[part] = python2_pickle(content)
    of_folders = [load(DATA_SETS["cifar-fs"], split) for split in SPLITS]
    shutil.rmtree(folder)
    folder.mkdir()
    with tarfile.open(folder / "cifar-100-python.tar.gz", "w:gz") as archive:
        for name, data in members.items():
            info = tarfile.TarInfo(f"cifar-100-python/{name}")
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    of_archive = [load(DATA_SETS["cifar-fs"], split) for split in SPLITS]
    train = of_archive[0]
    assert (train.classes, train.groups) == (("apple", "bus"), ("fruit_and_vegetables", "vehicles_1"))
    np.testing.assert_array_equal(train.examples[0], random_image(100, 32).transpose(2, 0, 1))  # the first of `test`
    for one, other in zip(of_folders, of_archive, strict=True):
        assert (one.checksum, one.groups) == (other.checksum, other.groups)


dumps = pytest.mark.parametrize("dump", [python2_pickle, pickle.dumps])


@dumps
def test_mini_imagenet_s_pickles(dump: Any, own_data: Path) -> None:
    pixels = np.stack([random_image(seed, 84) for seed in range(7)])
    content = {"image_data": pixels, "class_dict": {"n02": [0, 1, 4], "n01": [2, 3, 5, 6]}}
    write_tree(own_data / "mini-imagenet", {"mini-imagenet-cache-val.pkl": dump(content)})
    pool = load(DATA_SETS["mini-imagenet"], "validation")
    assert_pool_is_sound(pool)
    assert (pool.classes, pool.counts.tolist()) == (("n01", "n02"), [4, 3])
    np.testing.assert_array_equal(pool.examples, pixels[[2, 3, 5, 6, 0, 1, 4]].transpose(0, 3, 1, 2))


def test_mini_imagenet_s_images_with_the_real_split(own_data: Path) -> None:
    table = Path(__file__).resolve().parents[2] / "shared" / "data" / "splits" / "mini-imagenet" / "test.csv"
    if not table.is_file():
        pytest.skip("the published split is not beside the project (shared/data/splits)")
    with table.open(newline="") as file:
        rows = [row for number, row in enumerate(csv.DictReader(file)) if number % 600 < 2]
    folder = own_data / "mini-imagenet"
    pixels = {row["filename"]: random_image(seed, 84, grey=seed % 2 == 0) for seed, row in enumerate(rows)}
    write_zip(folder / "images.zip", {f"images/{name}": image_bytes(image) for name, image in pixels.items()})
    (folder / "test.csv").write_text(
        "filename,label\n" + "".join(f"{row['filename']},{row['label']}\n" for row in rows)
    )
    pool = load(DATA_SETS["mini-imagenet"], "test")
    assert_pool_is_sound(pool)
    assert (len(pool.classes), len(pool.examples)) == (20, 40)
    first = pixels[min(pixels)]
    np.testing.assert_array_equal(pool.examples[0], np.broadcast_to(first, (3, 84, 84)))  # grey became RGB
    (folder / "test.csv").write_text("filename,label\nmissing.jpg,n01\n")
    with pytest.raises(FewsureError, match=r"expected missing\.jpg, which .*test\.csv names"):
        load(DATA_SETS["mini-imagenet"], "test")


@dumps
def test_tiered_imagenet_s_pickles(dump: Any, own_data: Path) -> None:
    pixels = [random_image(seed, 84) for seed in range(5)]
    encoded = [np.frombuffer(image_bytes(image), dtype=np.uint8).reshape(-1, 1) for image in pixels]
    labels = {
        "label_specific": np.array([1, 0, 2, 1, 0]),
        "label_general": np.array([0, 0, 1, 0, 0]),
        "label_specific_str": ["robin", "crane", "crane"],
        "label_general_str": ["bird", "machine"],
    }
    write_tree(own_data / "tiered-imagenet", {"train_images_png.pkl": dump(encoded), "train_labels.pkl": dump(labels)})
    pool = load(DATA_SETS["tiered-imagenet"], "train")
    assert_pool_is_sound(pool)
    assert pool.classes == ("crane (1)", "crane (2)", "robin")  # two classes of one name stay two
    assert pool.groups == ("bird", "machine", "bird")
    expected = np.stack([pixels[row] for row in (0, 3, 2, 1, 4)]).transpose(0, 3, 1, 2)
    np.testing.assert_array_equal(pool.examples, expected)


@dumps
@pytest.mark.parametrize("zipped", [True, False])
def test_leo_s_features(zipped: bool, dump: Any, own_data: Path) -> None:
    features = np.random.default_rng(0).standard_normal((4, 640)).astype(np.float32)
    keys = np.array([b"7-n02-n02_9.JPEG", b"3-n01-n01_5.JPEG", b"1-n02-n02_1.JPEG", b"2-n01-n01_4.JPEG"])
    content = dump({"embeddings": features, "labels": np.array([1, 0, 1, 0]), "keys": keys})
    folder = own_data / "mini-imagenet-leo"
    if zipped:
        write_zip(folder / "embeddings.zip", {"embeddings/miniImageNet/center/test_embeddings.pkl": content})
    else:
        write_tree(folder, {"test_embeddings.pkl": content})
    pool = load(DATA_SETS["mini-imagenet-leo"], "test")
    assert_pool_is_sound(pool)
    assert (pool.classes, pool.examples.dtype) == (("n01", "n02"), torch.float32)
    np.testing.assert_array_equal(pool.examples, features[[3, 1, 2, 0]])


class Evil:
    def __reduce__(self) -> Any:
        return print, ("run",)


def mini(classes: Any, size: int = 84) -> dict[str, Any]:
    images = np.zeros((2, size, size, 3), np.uint8)
    return {"mini-imagenet-cache-train.pkl": {"image_data": images, "class_dict": classes}}


def leo(features: np.ndarray, key: str) -> dict[str, Any]:
    return {"train_embeddings.pkl": {"embeddings": features, "keys": [key]}}


@pytest.mark.parametrize(
    ("name", "files", "message"),
    [
        ("mini-imagenet", {"mini-imagenet-cache-train.pkl": Evil()}, "tried to import builtins.print"),
        ("mini-imagenet", {"mini-imagenet-cache-train.pkl": {"image_data": 1}}, "to hold image_data, class_dict"),
        ("mini-imagenet", mini({}, size=8), r"uint8 \(N, 84, 84, 3\), but got uint8 \(2, 8, 8, 3\)"),
        ("mini-imagenet", mini({"a": [2]}), "rows 0 to 1 in .*pkl, but class a has 2"),
        ("mini-imagenet", mini({"a": [0], "b": [0]}), "but 0 is in a and b"),
        ("mini-imagenet", mini({"a": 0}), "train.pkl is not in the published layout"),
        ("mini-imagenet", mini({"a": [0.5]}), "train.pkl is not in the published layout"),
        ("mini-imagenet", mini([0]), "train.pkl is not in the published layout"),
        ("tiered-imagenet", {"train_images_png.pkl": Evil(), "train_labels.pkl": {}}, "to hold label_specific"),
        ("mini-imagenet-leo", leo(np.zeros((1, 3)), "a"), r"\(1, 640\)"),
        ("mini-imagenet-leo", leo(np.full((1, 640), np.nan), "1-a-b"), "row 0 has NaN"),
        ("tiered-imagenet-leo", leo(np.zeros((1, 640)), "a"), "NUMBER-CLASS-IMAGE .* but row 0 has 'a'"),
    ],
)
def test_a_pickle_in_another_layout_is_one_line(name: str, files: dict, message: str, own_data: Path) -> None:
    write_tree(own_data / name, {file: pickle.dumps(content) for file, content in files.items()})
    with pytest.raises(FewsureError, match=message) as error:
        load(DATA_SETS[name], "train")
    assert str(own_data) in str(error.value)
    assert [path for path in cache_root().rglob("*") if path.is_file()] == []


# The cache


def small_omniglot(root: Path) -> Path:
    """Seven alphabets of two characters with two drawings each, the sixth of which is for validation."""
    drawing = image_bytes(random_image(0, 105, grey=True))
    names = [f"A{a}/character0{c}/{d}.png" for a in range(7) for c in (1, 2) for d in (1, 2)]
    path = root / "omniglot" / "images_background.zip"
    write_zip(path, {f"images_background/{name}": drawing for name in names})
    return path


def test_only_what_is_asked_for_is_decoded_and_only_once(own_data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    small_omniglot(own_data)
    pool = load(DATA_SETS["omniglot"], "validation")
    assert set(pool.groups) == {"A5"}
    assert "decoding omniglot (validation) 4/4" in capsys.readouterr().err
    assert [path.name.partition("-")[0] for path in (cache_root() / "omniglot").iterdir()] == ["validation"]
    again = load(DATA_SETS["omniglot"], "validation")
    assert capsys.readouterr().err == ""
    assert again.checksum == pool.checksum
    again.examples.zero_()  # the pool may be changed; the cache is not
    assert load(DATA_SETS["omniglot"], "validation").checksum == pool.checksum
    assert data_root() == own_data


def shorter(array: Path, index: Path) -> None:
    array.write_bytes(array.read_bytes()[:-1])


def changed(array: Path, index: Path) -> None:
    content = array.read_bytes()
    array.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))


def without_an_index(array: Path, index: Path) -> None:
    index.unlink()


def of_another_format(array: Path, index: Path) -> None:
    index.write_text(json.dumps(json.loads(index.read_text()) | {"format": 0}))


def with_another_index(array: Path, index: Path) -> None:
    index.write_text("[]")


def a_file(array: Path, index: Path) -> None:
    shutil.rmtree(array.parent)
    array.parent.write_bytes(b"")


@pytest.mark.parametrize("damage", [shorter, changed, without_an_index, of_another_format, with_another_index, a_file])
def test_a_damaged_cache_is_made_again(
    damage: Callable[[Path, Path], None], own_data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    small_omniglot(own_data)
    before = load(DATA_SETS["omniglot"], "train")
    (place,) = (cache_root() / "omniglot").iterdir()
    damage(place / "examples.npy", place / "index.json")
    capsys.readouterr()
    after = load(DATA_SETS["omniglot"], "train")
    assert "decoding" in capsys.readouterr().err
    assert after.checksum == before.checksum
    assert [path.name for path in (cache_root() / "omniglot").iterdir()] == [place.name]


def test_a_changed_source_is_decoded_anew_and_the_old_cache_goes(own_data: Path) -> None:
    source = small_omniglot(own_data)
    before = load(DATA_SETS["omniglot"], "train")
    write_zip(source, {f"A/c/{n}.png": image_bytes(random_image(n, 105, grey=True)) for n in range(3)})
    after = load(DATA_SETS["omniglot"], "train")
    assert after.classes == ("A/c",)
    assert after.checksum != before.checksum
    assert len(list((cache_root() / "omniglot").iterdir())) == 1


def test_what_a_killed_process_left_is_cleared_after_a_day(own_data: Path) -> None:
    small_omniglot(own_data)
    left, fresh = (cache_root() / "omniglot" / name for name in (".train-left", ".train-fresh"))
    for folder in (left, fresh):
        folder.mkdir(parents=True)
    os.utime(left, times=(0, 0))
    load(DATA_SETS["omniglot"], "train")
    assert (left.exists(), fresh.exists()) == (False, True)


def test_those_who_decode_at_once_all_succeed(own_data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small_omniglot(own_data)
    together, write = Barrier(3), cache._write

    def write_together(*arguments: Any) -> dict[str, Any]:
        index = write(*arguments)
        together.wait(timeout=60)
        return index

    monkeypatch.setattr(cache, "_write", write_together)
    with ThreadPoolExecutor(3) as pool:
        checksums = set(pool.map(lambda split: load(DATA_SETS["omniglot"], split).checksum, ["train"] * 3))
    assert checksums == {load(DATA_SETS["omniglot"], "train").checksum}
    assert len(list((cache_root() / "omniglot").iterdir())) == 1


def undecodable(path: Path) -> None:
    write_zip(path, {"images_background/A/c/1.png": b"no image"})


def too_deep(path: Path) -> None:
    write_zip(path, {"A/c/d/1.png": b""})


def empty(path: Path) -> None:
    write_zip(path, {})


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (
            undecodable,
            r"images_background\.zip: images_background/A/c/1\.png to be a PNG, JPEG, .* image, but",
        ),
        (too_deep, r"ALPHABET/CHARACTER/NAME\.png, but got .*images_background\.zip: A/c/d/1\.png"),
        (empty, r"train has no examples"),
        (Path.unlink, r"is not in .*omniglot: expected images_background .*; run `fewsure data get omniglot`, or put"),
    ],
)
def test_what_cannot_be_read_is_one_line_and_leaves_no_cache(damage: Any, message: str, own_data: Path) -> None:
    damage(small_omniglot(own_data))
    with pytest.raises(FewsureError, match=message):
        load(DATA_SETS["omniglot"], "train")
    assert [path for path in cache_root().rglob("*") if path.is_file()] == []


# Images


def test_images_are_bounded_before_they_are_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    small = image_bytes(random_image(0, 20))
    assert images.decode(small, "small", (1, 28, 28)).shape == (1, 28, 28)
    monkeypatch.setattr(images, "MAX_PIXELS", 399)
    with pytest.raises(FewsureError, match=r"bomb\.png .*\(20 × 20 pixels are too many"):
        images.decode(small, "bomb.png", (3, 28, 28))
    monkeypatch.setattr(images, "MAX_PIXELS", 10**9)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 300)  # Pillow only warns below twice its limit
    with pytest.raises(FewsureError, match=r"bomb\.png .* decompression bomb"):
        images.decode(small, "bomb.png", (3, 28, 28))
    for cut in range(0, len(small), 7):
        with pytest.raises(FewsureError, match=r"cut\.png"):
            images.decode(small[:cut], "cut.png", (3, 28, 28))


def test_resizing_is_antialiased() -> None:
    stripes = np.tile(np.array([0, 255], dtype=np.uint8), (56, 28))
    half = images.decode(image_bytes(stripes), "stripes", (1, 28, 28))
    inside = half[0, :, 4:-4].astype(int)
    assert abs(inside - 127).max() <= 1  # one of two pixels alone would be all black or all white


# Features


def test_features_are_stored_and_read_back(tmp_path: Path) -> None:
    pool = Pool(torch.zeros(5, 1, 2, 2, dtype=torch.uint8), torch.tensor([0, 2, 5]), ("a", "b"), ("g", ""), "")
    features = torch.randn(5, 3)
    assert write_features(tmp_path / "new", "validation", features, pool) == tmp_path / "new" / "validation.npz"
    found = load_features(tmp_path / "new", "validation")
    assert_pool_is_sound(found)
    assert torch.equal(found.examples, features)
    assert (found.starts.tolist(), found.classes, found.groups) == ([0, 2, 5], pool.classes, pool.groups)
    with pytest.raises(FewsureError, match=r"\(5, D\): a row for each example of the pool, but got \(4, 3\)"):
        write_features(tmp_path, "test", features[:4], pool)


def test_own_features_come_in_any_order_and_from_safetensors(tmp_path: Path) -> None:
    from safetensors.numpy import save_file

    features = np.arange(8, dtype=np.float32).reshape(4, 2)
    save_file({"features": features, "labels": np.array([7, 3, 7, 3])}, tmp_path / "test.safetensors")
    pool = load_features(tmp_path, "test")
    assert_pool_is_sound(pool)
    assert (pool.classes, pool.groups) == (("3", "7"), ("", ""))
    np.testing.assert_array_equal(pool.examples, features[[1, 3, 0, 2]])


ONES = np.ones((2, 3), dtype=np.float32)


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"features": ONES}, r"to hold `features` and `labels`, but got \['features'\]"),
        ({"features": ONES[0], "labels": [0]}, r"floats of shape \(N, D\), but got float32 of shape \(3,\)"),
        ({"features": ONES.astype(int), "labels": [0, 1]}, r"floats of shape \(N, D\), but got int64"),
        ({"features": ONES[:0], "labels": []}, r"floats of shape \(N, D\), but got float32 of shape \(0, 3\)"),
        ({"features": ONES, "labels": [0]}, r"`labels` .* of shape \(2,\), .* but got int64 of shape \(1,\)"),
        ({"features": ONES, "labels": [0.5, 1.0]}, "`labels` .* to be whole numbers or strings .* but got float64"),
        ({"features": ONES, "labels": 1}, r"`labels` .* but got int64 of shape \(\)"),
        ({"features": ONES * np.nan, "labels": [0, 1]}, "but row 0 has NaN or infinity"),
        ({"features": ONES, "labels": [0, 0], "groups": ["a", "b"]}, "one group for each class .* '0' has several"),
        ({"features": ONES, "labels": np.array([{}, {}])}, "cannot be read"),
    ],
)
def test_features_that_are_wrong_are_one_line(arrays: dict[str, Any], message: str, tmp_path: Path) -> None:
    np.savez(tmp_path / "train.npz", **arrays)
    with pytest.raises(FewsureError, match=message) as error:
        load_features(tmp_path, "train")
    assert str(tmp_path / "train.npz") in str(error.value)


def test_features_that_are_missing_damaged_or_twice_there_are_one_line(tmp_path: Path) -> None:
    with pytest.raises(FewsureError, match=r"expected train\.npz or train\.safetensors in"):
        load_features(tmp_path, "train")
    for name in ("train.npz", "train.safetensors"):
        (tmp_path / name).write_bytes(b"nothing of the kind")
        with pytest.raises(FewsureError, match=r"train\.\w+ cannot be read|but got train\.npz and train\.safetensors"):
            load_features(tmp_path, "train")
    (tmp_path / "train.npz").unlink()
    with pytest.raises(FewsureError, match=r"train\.safetensors cannot be read"):
        load_features(tmp_path, "train")


def test_features_are_centred_by_the_training_classes_and_scaled_to_a_length(tmp_path: Path) -> None:
    folder = write_blobs(tmp_path / "blobs")
    data = Features(folder=str(folder), length=4.0, shot=1, query=3)
    raw, centre = load_features(folder, "test"), load_features(folder, "train").examples.mean(0)
    expected = 4 * torch.nn.functional.normalize(raw.examples - centre)
    torch.testing.assert_close(data.pool("test").examples, expected)
    torch.testing.assert_close(read_inputs(raw.examples, data.fitted_scale, "x"), expected)  # what a user hands over
    assert torch.equal(Features(folder=str(folder)).pool("test").examples, raw.examples)


def test_a_run_keeps_what_its_features_were_centred_by(tmp_path: Path) -> None:
    folder = write_blobs(tmp_path / "blobs")
    base = load_preset("recommended", "protonet", "features")
    data = replace(base.data, folder=str(folder), train_way=5, train_query=3, query=3, length=4.0)
    small = replace(base, data=data, training=replace(base.training, updates=1, tasks=2))
    run = start_run(tmp_path / "run", small, resume=False)
    before = Run.open(run.folder).experiment.data.fitted_scale
    stored = dict(np.load(folder / "train.npz"))
    np.savez(folder / "train.npz", **stored | {"features": stored["features"] + 5})
    assert Run.open(run.folder).experiment.data.fitted_scale == before
    shifted = np.array(run.experiment.data.prepared().fitted_scale.x_mean) - np.array(before.x_mean)
    np.testing.assert_allclose(shifted, 5, rtol=1e-5)


def test_features_are_mixed_in_training_alone(tmp_path: Path) -> None:
    data = Features(folder=str(write_blobs(tmp_path / "blobs")), train_mixing=0.5, shot=1, query=3)
    for split, is_mixed in (("train", True), ("validation", False), ("test", False)):
        tasks, _ = data.tasks(split, torch.device("cpu")).sample(2, streams.generator(0, "mixed"))
        stored = {tuple(row) for row in data.pool(split).examples.tolist()}
        assert all(tuple(row) in stored for row in tasks.query.x.flatten(0, 1).tolist()) is not is_mixed


@pytest.mark.parametrize("options", [{"length": 0.0}, {"train_mixing": -1.0}])
def test_a_length_or_a_share_that_cannot_be_is_refused(options: dict[str, float]) -> None:
    with pytest.raises(FewsureError, match=next(iter(options))):
        Features(**options)  # type: ignore[arg-type]
