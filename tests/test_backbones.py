"""Pretrained backbones: features are the network's own, kept by content, and nothing runs that a run folder names."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from fewsure import FewsureError, Images, Learner, load
from fewsure.cli.main import main
from fewsure.data.io import feature_cache
from fewsure.data.io.feature_files import load_features
from fewsure.data.own import image_features
from fewsure.data.own.image_features import ImageFeatures
from fewsure.networks import pretrained
from fewsure.networks.pretrained import Pretrained, Standardise, load_pretrained, trust, without_last_layer

from .backbones import LITE0, LITE0_PREPROCESSING, TINY, lite0, tiny, whole_lite0

SMALL: dict[str, Any] = {"way": 3, "shot": 2, "query": 4}


def colours(number: int, each: int = 8, size: tuple[int, int] = (24, 20)) -> dict[str, list[Image.Image]]:
    """Images of classes that differ in the colours of their quarters."""
    random = np.random.default_rng(number)
    found = {}
    for label in range(number):
        base = np.kron(random.uniform(40, 215, (2, 2, 3)), np.ones((size[1] // 2, size[0] // 2, 1)))
        noisy = [base + random.normal(scale=12, size=base.shape) for _ in range(each)]
        found[f"class {label:02}"] = [Image.fromarray(one.clip(0, 255).astype(np.uint8)) for one in noisy]
    return found


def write(folder: Path, classes: dict[str, list[Image.Image]]) -> Path:
    for label, images in classes.items():
        (folder / label).mkdir(parents=True)
        for number, image in enumerate(images):
            image.save(folder / label / f"{number}.png")
    return folder


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FEWSURE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(pretrained, "_trusted", {TINY, LITE0})
    monkeypatch.chdir(Path(__file__).resolve().parents[1])
    return tmp_path / "cache"


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    return write(tmp_path / "photos", colours(15))


def pictures(number: int) -> list[Image.Image]:
    random = np.random.default_rng(0)
    sizes = [(84, 84), (300, 200), (50, 90), (224, 256)]
    return [Image.fromarray(random.integers(0, 256, (*sizes[one % 4][::-1], 3), np.uint8)) for one in range(number)]


@pytest.mark.slow
def test_features_of_a_shipped_network_are_those_of_its_own_forward_pass() -> None:
    found = load_pretrained(LITE0, exact=True)(pictures(3))
    network, seen = whole_lite0(), []
    network._fc.register_forward_pre_hook(lambda layer, inputs: seen.append(inputs[0]))
    with torch.no_grad():
        network(torch.stack([LITE0_PREPROCESSING(image) for image in pictures(3)]))
    torch.testing.assert_close(found, seen[0], rtol=1e-4, atol=1e-4)
    rounded = load_pretrained(LITE0)
    if rounded.rounds:  # this CPU computes in bf16
        cosine = torch.nn.functional.cosine_similarity(rounded(pictures(3)), found)
        assert float(cosine.min()) > 0.995


EXPORTER = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")
"""torch's exporter warns of torch."""


@pytest.mark.slow
@EXPORTER
def test_the_same_network_as_an_onnx_file_gives_the_same_features(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    network, _ = lite0()
    network.network.set_swish(memory_efficient=False)
    file, shapes = tmp_path / "lite0.onnx", {"images": {0: torch.export.Dim("N")}}
    torch.onnx.export(network.eval(), (torch.zeros(2, 3, 224, 224),), file, dynamic_shapes=shapes, verbose=False)
    found = load_pretrained(f"onnx:{file}")
    expected = Pretrained("plain", network, found.preprocess, "")(pictures(3))
    assert found.preprocess == Standardise()
    torch.testing.assert_close(found(pictures(3)), expected, rtol=1e-3, atol=1e-3)


@EXPORTER
def test_an_onnx_file_for_one_image_takes_several(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    network, _ = tiny()
    torch.onnx.export(network.eval(), (torch.zeros(1, 3, 16, 16),), tmp_path / "tiny.onnx", verbose=False)
    found = load_pretrained(f"onnx:{tmp_path / 'tiny.onnx'}")
    expected = Pretrained("plain", network, Standardise(size=16), "")(pictures(3))
    torch.testing.assert_close(found(pictures(3)), expected)


@pytest.mark.parametrize("kind", ["timm", "torchvision", "open-clip"])
def test_networks_of_other_libraries(kind: str, tmp_path: Path) -> None:
    module = {"timm": "timm", "torchvision": "torchvision.models", "open-clip": "open_clip"}[kind]
    try:
        library = pytest.importorskip(module, exc_type=ImportError)
    except RuntimeError as error:  # compiled operators of another build of torch
        pytest.skip(f"{module} is installed and cannot be imported: {error}")
    if kind == "open-clip":
        pytest.skip("OpenCLIP has no weights without a download")
    name = "resnet18"
    model = library.create_model(name) if kind == "timm" else library.get_model(name)
    torch.save(model.state_dict(), tmp_path / "weights.pt")
    backbone = load_pretrained(f"{kind}:{name}", str(tmp_path / "weights.pt"), exact=True)
    seen: list[torch.Tensor] = []
    model.eval().fc.register_forward_pre_hook(lambda layer, inputs: seen.append(inputs[0]))
    with torch.no_grad():
        model(torch.stack([backbone.preprocess(image) for image in pictures(2)]))
    torch.testing.assert_close(backbone(pictures(2)), seen[0], rtol=1e-4, atol=1e-4)


def test_the_last_linear_layer_is_taken_out() -> None:
    body, head = torch.nn.Linear(4, 3), torch.nn.Linear(3, 2)
    network = torch.nn.Sequential(body, torch.nn.ReLU(), torch.nn.ModuleDict({"head": head})["head"])
    x = torch.randn(5, 4)
    expected = body(x).relu()
    assert torch.equal(without_last_layer(network)(x), expected)
    with pytest.raises(FewsureError, match="expected a network that ends in a linear layer"):
        without_last_layer(torch.nn.ReLU())


def test_preprocessing_cuts_the_middle_out_and_standardises() -> None:
    image = Image.new("RGB", (40, 20), (255, 0, 51))
    image.paste((0, 0, 0), (0, 0, 5, 20))  # outside of the middle
    found = Standardise(size=10, crop=1.0, mean=(0.5, 0.0, 0.0), std=(0.5, 1.0, 0.1))(image)
    assert found.shape == (3, 10, 10)
    torch.testing.assert_close(found.mean((1, 2)), torch.tensor([1.0, 0.0, 2.0]), rtol=1e-5, atol=1e-5)
    upscaled = Standardise(size=30)(image)
    assert upscaled.shape == (3, 30, 30)


def test_batches_fit_into_memory_and_do_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    backbone, images = load_pretrained(TINY, exact=True), pictures(5)
    whole = backbone(images)
    monkeypatch.setattr(pretrained, "_free_memory", lambda: 0)
    assert backbone.batch_size(backbone.preprocess(images[0]), torch.device("cpu")) == 1
    torch.testing.assert_close(backbone(images), whole)


def test_a_folder_becomes_a_certified_classifier(photos: Path, tmp_path: Path) -> None:
    data = Images(folder=str(photos), backbone=TINY, **SMALL)
    assert isinstance(data, ImageFeatures)
    learner = Learner("simpleshot", data=data, device="cpu").train(quiet=True)
    assert learner.evaluate(tasks=40, quiet=True, baselines=False)["accuracy"]["mean"] > 0.9
    learner.save(tmp_path / "run")
    x = sorted((photos / "class 01").glob("*"))[:2] + sorted((photos / "class 02").glob("*"))[:2]
    adapted = learner.adapt([str(path) for path in x], ["a", "a", "b", "b"])
    new = [photos / "class 01" / "5.png", photos / "class 02" / "6.png"]
    found = adapted.predict(new)
    assert found.label == ["a", "b"]
    plain = learner.adapt(data.features_of(x), ["a", "a", "b", "b"]).predict(data.features_of(new))
    np.testing.assert_array_equal(found.probabilities, plain.probabilities)


def test_the_command_line_trains_and_predicts(photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run, support, query = tmp_path / "run", tmp_path / "support", tmp_path / "query"
    options = ["--way", "3", "--shot", "2", "--query", "4", "--device", "cpu", "--out", str(run)]
    train = ["train", "ridge", "--data", "image-features", "--folder", str(photos), "--backbone", TINY]
    assert main([*train, *options]) == 0
    for label in ("class 03", "class 04"):
        shutil.copytree(photos / label, support / label)
    shutil.copytree(photos / "class 03", query)
    capsys.readouterr()
    predict = ["predict", str(run), "--support", str(support), "--query", str(query), "--json", "--device", "cpu"]
    assert main(predict) == 0
    records = json.loads(capsys.readouterr().out)
    assert {record["label"] for record in records} == {"class 03"}


def test_no_image_passes_through_a_backbone_twice(photos: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    passed: list[int] = []
    call = Pretrained.__call__

    def counted(self: Pretrained, images: Any, device: Any = "cpu") -> Any:
        passed.append(len(images))
        return call(self, images, device)

    monkeypatch.setattr(Pretrained, "__call__", counted)
    monkeypatch.setattr(feature_cache, "BATCH", 16)

    def features(folder: Path) -> torch.Tensor:
        data = Images(folder=str(folder), backbone=TINY, **SMALL).prepared()
        return torch.cat([data.stored_features(split).examples for split in ("train", "validation", "test")])

    first = features(photos)
    assert sum(passed) == 15 * 8
    moved = photos.rename(photos.with_name("moved"))
    (moved / "class 00" / "0.png").rename(moved / "class 00" / "renamed.png")
    Image.new("RGB", (30, 30), "red").save(moved / "class 01" / "more.png")
    assert torch.equal(features(moved).sum(0).sort().values[:0], first.sum(0).sort().values[:0])
    assert sum(passed) == 15 * 8 + 1
    for path in sorted(cache.rglob("*.npz"))[:1]:
        path.write_bytes(b"damaged")
    features(moved)
    assert 15 * 8 + 1 < sum(passed) <= 15 * 8 + 1 + 16


def test_unreadable_images_are_left_out_up_to_a_share(photos: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (photos / "class 00" / "0.png").write_bytes(b"no image")
    pool = Images(folder=str(photos), backbone=TINY, **SMALL).prepared().stored_features
    assert sum(int(pool(split).counts.sum()) for split in ("train", "validation", "test")) == 15 * 8 - 1
    assert "1 of" in capsys.readouterr().err
    for path in photos.rglob("?.png"):
        path.write_bytes(b"no image")
    with pytest.raises(FewsureError, match="it cannot be decoded"):
        Images(folder=str(photos), backbone=TINY, **SMALL).prepared()


def test_a_run_refuses_other_weights(photos: Path, tmp_path: Path) -> None:
    weights = tmp_path / "weights"
    weights.write_text("1")
    data = Images(folder=str(photos), backbone=TINY, weights=str(weights), **SMALL)
    learner = Learner("simpleshot", data=data, device="cpu").train(quiet=True)
    weights.write_text("2")
    new = photos.with_name("new.png")
    Image.new("RGB", (30, 30), "blue").save(new)
    with pytest.raises(FewsureError, match="has other weights or another preprocessing than in training"):
        learner.adapt([new, new], ["a", "b"])


def test_a_run_folder_imports_nothing_that_its_user_has_not_named(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Learner("simpleshot", data=Images(folder=str(photos), backbone=TINY, **SMALL), device="cpu").train(quiet=True).save(
        tmp_path / "run"
    )
    new = tmp_path / "new.png"
    Image.new("RGB", (30, 30), "blue").save(new)
    image_features._network.cache_clear()  # as in another process
    monkeypatch.setattr(pretrained, "_trusted", set())
    monkeypatch.delenv(pretrained.TRUST, raising=False)
    learner = load(tmp_path / "run", device="cpu")
    with pytest.raises(FewsureError, match=f"never executes code by itself; .* set FEWSURE_TRUST={TINY}"):
        learner.adapt([new, new], ["a", "b"])
    known = photos / "class 00" / "0.png"
    assert learner.adapt([known, known], ["a", "b"]).labels is not None  # its features are in the cache
    monkeypatch.setenv(pretrained.TRUST, f"other,{TINY}")
    learner.adapt([new, new], ["a", "b"])


@pytest.mark.parametrize("source", ["folder", "omniglot"])
def test_features_of_a_folder_and_of_a_data_set(
    source: str, photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    if source == "omniglot":
        from fewsure.data.pools import Pool
        from fewsure.features import frozen

        grey = torch.randint(0, 256, (24, 1, 28, 28), dtype=torch.uint8)
        pool = Pool(grey, torch.arange(4) * 8, ("a", "b", "c"), ("",) * 3, "")
        monkeypatch.setattr(frozen, "load", lambda data_set, split: pool)
    out, data = tmp_path / "features", str(photos) if source == "folder" else source
    assert main(["features", "--data", data, "--backbone", TINY, "--out", str(out)]) == 0
    assert f"next: fewsure train simpleshot --data features --folder {out}" in capsys.readouterr().out
    record = json.loads((out / "features.json").read_text())
    assert (record["backbone"], record["features"]) == (TINY, 12)
    pool = load_features(out, "test")
    assert len(pool.examples) == record["images"]["test"]
    assert main(["features", "--data", data, "--backbone", TINY, "--out", str(out)]) == 2
    train = ["train", "simpleshot", "--data", "features", "--folder", str(out), "--way", "3", "--query", "4"]
    assert main([*train, "--out", str(tmp_path / "run"), "--device", "cpu"]) == 0


@pytest.mark.parametrize(
    ("name", "weights", "message"),
    [
        ("resnet", None, "to be timm:NAME, torchvision:NAME"),
        ("onnx:nowhere.onnx", None, "nowhere.onnx is not there"),
        (TINY, "nowhere.pt", "expected --weights to be a file"),
        ("python:tests.backbones:absent", None, "to be python:MODULE:FUNCTION, but it cannot be imported"),
        ("python:tests.backbones:nothing", None, "to return a network, or a network and its preprocessing"),
        (f"onnx:{__file__}", None, "cannot be read as ONNX"),
        (f"onnx:{__file__}", __file__, "expected no --weights with an onnx backbone"),
    ],
)
def test_wrong_backbones_are_one_line(name: str, weights: str | None, message: str) -> None:
    trust(name)
    with pytest.raises(FewsureError, match=message):
        load_pretrained(name, weights)


def test_a_library_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "timm", None)
    with pytest.raises(FewsureError, match=r"timm backbones need timm, .* run `pip install \"fewsure\[vision\]\"`"):
        load_pretrained("timm:resnet18")


def test_features_of_the_wrong_form_are_refused() -> None:
    broken = Pretrained("mine", lambda images: images.flatten(), Standardise(size=8), "")
    with pytest.raises(FewsureError, match=r"expected mine to return features \(N, D\) or maps"):
        broken(pictures(2))
    maps = Pretrained("mine", lambda images: images, Standardise(size=8), "")
    assert maps(pictures(2)).shape == (2, 3)
