"""Images from the command line: what cannot be trained on ends in one line and leaves nothing; real images train."""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from fewsure.cli.main import main

from .data_files import image_bytes, random_image, write_zip

OPTIONS = ["--data", "cifar-fs", "--way", "3", "--query", "2", "--updates", "2", "--tasks", "2", "--device", "cpu"]
QUERY = ["--train-query", "2"]
MEMBERS = {f"class{n // 4}/{n % 4:02}.png": image_bytes(random_image(n, 32)) for n in range(24)}
OTHER = hashlib.sha256(b"something else").hexdigest()


@pytest.fixture
def small_cifar(own_data: Path) -> Path:
    """A few random images in CIFAR-FS's layout; the splits have the same classes, which no one but a test would do."""
    for split in ("train", "val", "test"):
        write_zip(own_data / "cifar-fs" / f"{split}.zip", MEMBERS)
    return own_data / "cifar-fs"


def cut(folder: Path) -> None:
    (folder / "train.zip").write_bytes((folder / "train.zip").read_bytes()[:-200])


def wrong_sum(folder: Path) -> None:
    (folder / "SHA256SUMS").write_text(f"{OTHER}  train.zip\n")


def not_an_image(folder: Path) -> None:
    write_zip(folder / "train.zip", MEMBERS | {"class2/03.png": b"no image"})


@pytest.mark.parametrize(
    ("damage", "options", "said"),
    [
        (cut, [], ["train.zip"]),
        (wrong_sum, [], ["train.zip", "expected", OTHER[:8]]),
        (not_an_image, [], ["class2/03.png"]),
        (None, ["--train-shot", "3"], ["class0", "5 examples", "4"]),
        (None, ["--way", "9"], ["9 classes", "6"]),
    ],
)
@pytest.mark.usefixtures("few_points")
def test_what_cannot_be_trained_on_is_one_line_and_leaves_nothing_and_a_corrected_command_runs(
    damage: Callable[[Path], None] | None,
    options: list[str],
    said: list[str],
    small_cifar: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    if damage:
        damage(small_cifar)
    command = ["train", "maml", *OPTIONS, *QUERY, "--out", str(tmp_path / "run"), "--json"]
    assert main([*command, *options]) == 2
    (error,) = capsys.readouterr().err.strip().splitlines()  # and no progress
    assert all(word in error for word in said), error
    assert not (tmp_path / "run").exists()
    if damage:
        assert not [*(tmp_path / "cache").rglob("examples.npy")]
    else:
        assert main(command) == 0


@pytest.fixture
def few_points(monkeypatch: pytest.MonkeyPatch) -> None:
    """A temperature is learned from one block of tasks."""
    monkeypatch.setattr("fewsure.evaluation.calibrate.POINTS", 1)


@pytest.mark.usefixtures("few_points")
@pytest.mark.parametrize("json_option", [[], ["--json"]])
def test_json_has_no_progress_beside_it_not_even_of_decoding(
    json_option: list[str], small_cifar: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", "maml", *OPTIONS, *QUERY, "--out", str(tmp_path / "run"), *json_option]) == 0
    printed = capsys.readouterr()
    for progress in ("decoding cifar-fs (train)", "training maml", "learning from validation tasks 20/20"):
        assert (progress in printed.err) == (not json_option)
    if json_option:
        assert printed.err == ""
        assert json.loads(printed.out)["run"] == str(tmp_path / "run")


@pytest.mark.slow
@pytest.mark.parametrize("method", ["protonet", "maml", "simpa"])
def test_the_preset_for_cpus_trains_and_evaluates_on_real_omniglot(
    method: str, real_data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--data", "omniglot", "--preset", "omniglot-cpu", "--updates", "2", "--device", "cpu", "--json"]
    assert main(["train", method, *options, "--out", str(tmp_path / "run")]) == 0
    capsys.readouterr()
    assert main(["evaluate", str(tmp_path / "run"), "--tasks", "2", "--device", "cpu", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert (result["way"], result["shot"], result["transductive"]) == (5, 1, True)
    assert result["samples"] == (32 if method == "simpa" else 1)
    assert 0 <= result["accuracy"]["mean"] <= 1


def test_protonet_on_regression_says_why_not(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "protonet", "--out", str(tmp_path / "run")]) == 2
    assert "protonet solves classification alone, but sine-line is regression" in capsys.readouterr().err
