"""Adapted tasks as ONNX and torch.export files: the same outputs in another program."""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fewsure import FewsureError, Learner, Table
from fewsure.cli.main import main
from fewsure.learner import Adapted
from fewsure.learner.export import export, sampled_networks, write_onnx, write_torch

from .helpers import WITH_STEPS, write_blobs

onnxruntime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed (requirements.lock)")

SIMPA = {"latent": 3, "generator_hidden": (6,), "kl_samples": 4, "train_samples": 1, "inner_steps": 2}
TINY: dict[str, dict[str, Any]] = {
    "simpa": SIMPA,
    "bmaml": {"particles": 3},
    "pacoh": {"particles": 2},
    "dkt": {"kernels": ("rbf",)},
}
TRAINING = {"tasks": 2, "device": "cpu"}


@pytest.fixture(autouse=True)
def few_functions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two sampled functions: torch takes its time for each network."""
    monkeypatch.setattr("fewsure.learner.predictor.SAMPLES", 2)


def numbers() -> list[tuple[np.ndarray, np.ndarray]]:
    """Lines with noise, in units that need scaling: years, and thousands."""
    random = np.random.default_rng(0)

    def task() -> tuple[np.ndarray, np.ndarray]:
        x = random.normal(size=(14, 2))
        return 10 * x + 1990, 5000 + 800 * (x @ random.normal(size=2)) + 100 * random.normal(size=14)

    return [task() for _ in range(20)]


def images() -> dict[str, np.ndarray]:
    random = np.random.default_rng(1)
    return {f"class {k}": random.integers(0, 256, size=(5, 1, 16, 16), dtype=np.uint8) for k in range(12)}


def adapted_numbers(name: str, **options: Any) -> tuple[Adapted, np.ndarray]:
    learner = Learner(name, numbers(), hidden=(6,), **options, **TINY.get(name, {}), **TRAINING).train(updates=2)
    x, y = numbers()[3]
    return learner.adapt(x[:5], y[:5]), x


def adapted_images(name: str, norm: str = "instance", precision: str = "float32") -> tuple[Adapted, np.ndarray]:
    options = {"way": 2, "shot": 2, "query": 3, "filters": 2, "norm": norm, "precision": precision}
    options |= {"softmax_temperature": 0.7, "temperature_exponent": 0.0}  # which are fitted unless given
    learner = Learner(name, images(), **options, **TINY.get(name, {}), **TRAINING).train(updates=1)
    x = np.concatenate([images()["class 0"], images()["class 1"]])
    return learner.adapt(x[[0, 1, 5, 6]], ["cat", "cat", "dog", "dog"]), x


def predicted(adapted: Adapted, x: np.ndarray) -> dict[str, np.ndarray]:
    """What the library says, scaled to the size of a target's spread."""
    p = adapted.predict(x)
    names = ("mean", "std", "samples") if adapted.labels is None else ("probabilities", "samples")
    return {name: np.asarray(getattr(p, name)) for name in names}


def assert_same(adapted: Adapted, x: np.ndarray, folder: Path, tolerance: float = 1e-5) -> None:
    """The outputs of both files at any number of examples."""
    exported = export(adapted)
    write_onnx(exported, folder / "task.onnx")
    write_torch(exported, folder / "task.pt2")
    session = onnxruntime.InferenceSession(folder / "task.onnx", providers=["CPUExecutionProvider"])
    program = torch.export.load(folder / "task.pt2").module()
    unit = adapted.predictor.scale.y_std
    for size in (1, 3, len(x)):
        expected = predicted(adapted, x[:size])
        by_onnx = dict(zip(expected, session.run(list(expected), {"x": x[:size]}), strict=True))
        with torch.no_grad():
            by_torch = dict(zip(expected, program(torch.from_numpy(x[:size])), strict=True))
        for name, values in expected.items():
            np.testing.assert_allclose(by_onnx[name] / unit, values / unit, atol=tolerance, rtol=0)
            np.testing.assert_allclose(by_torch[name].numpy() / unit, values / unit, atol=tolerance, rtol=0)
    assert [path.name for path in sorted(folder.iterdir())] == ["task.onnx", "task.pt2"]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["simpa", "maml", "bmaml", "gp", "pacoh", "mixed", "boosting"])
@pytest.mark.filterwarnings("ignore::FutureWarning:torch")  # of torch, about how its own files are read
def test_numbers_are_the_same_in_other_programs(name: str, tmp_path: Path) -> None:
    assert_same(*adapted_numbers(name), tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["simpa", "maml", "bmaml", "protonet", "dkt", "metaqda", "metaoptnet"])
@pytest.mark.filterwarnings("ignore::FutureWarning:torch")
def test_classes_of_images_are_the_same_in_other_programs(name: str, tmp_path: Path) -> None:
    assert_same(*adapted_images(name), tmp_path)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::FutureWarning:torch")
def test_an_ensemble_is_the_same_in_other_programs(tmp_path: Path) -> None:
    assert_same(*adapted_numbers("maml", members=2), tmp_path)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::FutureWarning:torch")
def test_a_run_in_bf16_is_exported_in_single_precision(tmp_path: Path) -> None:
    assert_same(*adapted_images("protonet", precision="bf16"), tmp_path, tolerance=1e-3)


@pytest.mark.filterwarnings("ignore::FutureWarning:torch")
def test_features_are_centred_and_scaled_in_other_programs_too(tmp_path: Path) -> None:
    folder = write_blobs(tmp_path / "blobs")
    options = {"folder": str(folder), "shot": 2, "query": 3, "way": 2, "length": 4.0, "hidden": (6,)}
    learner = Learner("maml", "features", **options, **TRAINING).train(updates=1)
    x = np.load(folder / "test.npz")["features"][:12] + np.arange(12, dtype=np.float32)[:, None]
    (tmp_path / "out").mkdir()
    assert_same(learner.adapt(x[:4], ["cat", "cat", "dog", "dog"]), x, tmp_path / "out")


@pytest.mark.parametrize("name", WITH_STEPS)
def test_the_sampled_networks_are_those_that_predict(name: str) -> None:
    adapted, x = adapted_numbers(name)
    networks = sampled_networks(adapted)
    assert networks is not None
    scaled = adapted.predictor.scale.inputs(torch.from_numpy(x))
    each = [
        adapted.model.network({key: value[sample] for key, value in networks.items()}, scaled)
        for sample in range(len(next(iter(networks.values()))))
    ]
    torch.testing.assert_close(torch.stack(each), adapted.outputs(scaled), atol=1e-5, rtol=0)


@pytest.fixture(scope="module")
def table_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on a table, and the support file of a new task."""
    folder = tmp_path_factory.mktemp("export")
    rows = [
        f"g{number},{a},{b},{target}"
        for number, (x, y) in enumerate(numbers())
        for (a, b), target in zip(x.tolist(), y.tolist(), strict=True)
    ]
    (folder / "all.csv").write_text("\n".join(["group,a,b,y", *rows]) + "\n")
    (folder / "support.csv").write_text("\n".join(["group,a,b,y", *rows[:5]]) + "\n")
    data = Table(file=str(folder / "all.csv"), task_column="group", target="y", query=9)
    Learner("maml", data, out=folder / "run", hidden=(6,), **TRAINING).train(updates=2)
    return folder


def test_the_command_says_what_the_file_takes_and_gives(
    table_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "task.onnx"
    arguments = ["export", str(table_run / "run"), "--support", str(table_run / "support.csv"), "--device", "cpu"]
    assert main([*arguments, "--onnx", str(file)]) == 0
    assert f"{file}: x (N, 2) float64 → mean, std, samples;" in capsys.readouterr().out
    session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
    description = json.loads(session.get_modelmeta().custom_metadata_map["fewsure"])
    assert description["input"] == {"name": "x", "type": "float64", "shape": ["N", 2], "columns": ["a", "b"]}
    assert session.get_inputs()[0].shape == ["N", 2]
    assert main([*arguments, "--torch", str(tmp_path / "task.pt2"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["files"] == [str(tmp_path / "task.pt2")]


def test_classes_are_named_in_the_order_of_their_probabilities() -> None:
    adapted, _ = adapted_images("protonet")
    assert export(adapted).description["classes"] == ["cat", "dog"]


WRONG = {
    "no support": (["--onnx", "task.onnx"], "expected --support to be a file or a folder of examples, but got none"),
    "no such support": (["--support", "gone.csv", "--onnx", "task.onnx"], "but gone.csv is not there"),
    "no file": (
        ["--support", "{folder}/support.csv"],
        "expected --onnx FILE or --torch FILE, or both, but got neither",
    ),
    "no folder": (["--support", "{folder}/support.csv", "--onnx", "gone/task.onnx"], "but got gone/task.onnx"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_is_wrong_is_one_line(case: str, table_run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments, message = WRONG[case]
    given = [argument.format(folder=table_run) for argument in arguments]
    assert main(["export", str(table_run / "run"), *given, "--device", "cpu"]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_a_missing_package_is_said_with_what_to_install(
    table_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("fewsure.learner.export.find_spec", lambda name: None if name == "onnxscript" else sys)
    files = ["--support", str(table_run / "support.csv"), "--onnx", str(tmp_path / "task.onnx")]
    assert main(["export", str(table_run / "run"), *files, "--device", "cpu"]) == 2
    error = capsys.readouterr().err
    assert "but onnxscript is not installed; run `pip install fewsure[export]`" in error
    assert error.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_a_transductive_run_is_refused() -> None:
    adapted, _ = adapted_images("protonet", norm="batch")
    with pytest.raises(FewsureError, match=r"depend on the other queries.*--norm instance"):
        export(adapted)
