"""`fewsure data` as a user meets it."""

import hashlib
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fewsure.cli.main import main
from fewsure.data import DATA_SETS
from fewsure.data.description import Remote
from fewsure.data.pools import SPLITS

from .data_files import image_bytes, random_image, write_zip
from .test_data_sets import small_omniglot
from .test_download import Server, server  # noqa: F401 (a fixture)


def evaluation(root: Path) -> None:
    drawing = image_bytes(random_image(0, 105, grey=True))
    members = {f"E/character01/{n}.png": drawing for n in range(3)}
    write_zip(root / "omniglot" / "images_evaluation.zip", members)


def test_list_says_what_there_is_and_where(own_data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    small_omniglot(own_data)
    assert main(["data", "list", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["data_root"] == str(own_data)
    names = "omniglot cifar-fs mini-imagenet tiered-imagenet mini-imagenet-leo tiered-imagenet-leo fs-mol"
    assert set(result["data_sets"]) == set(names.split())
    assert result["data_sets"]["omniglot"]["found"] == ["train", "validation"]
    assert result["data_sets"]["cifar-fs"]["found"] == []
    for name, data in result["data_sets"].items():
        assert data["folder"] == str(own_data / name)
        assert data["licence"]
        assert set(data["classes"]) == set(SPLITS)
    assert main(["data", "list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    (omniglot,) = (line for line in lines if line.startswith("omniglot"))
    assert omniglot.split()[1:8] == ["806", "/", "158", "/", "659", "1×28×28", "train"]
    assert str(own_data) in lines[-1]
    small_omniglot(tmp_path / "elsewhere")
    assert main(["data", "list", "--json", "--data-root", str(tmp_path / "elsewhere")]) == 0
    elsewhere = json.loads(capsys.readouterr().out)
    assert elsewhere["data_root"] == str(tmp_path / "elsewhere")
    assert elsewhere["data_sets"]["omniglot"]["found"] == ["train", "validation"]


def test_check_counts_real_data(real_data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", "check", "omniglot", "--json"]) == 0
    printed = capsys.readouterr()
    result = json.loads(printed.out)
    assert printed.err == ""
    assert [result["splits"][split]["units"] for split in SPLITS] == [806, 158, 659]
    assert [result["splits"][split]["examples"] for split in SPLITS] == [16120, 3160, 13180]
    assert result["splits"]["test"]["smallest"]["examples"] == 20
    assert (result["files"], result["files_compared"]) == (2, 2)
    assert result["warnings"] == result["groups_in_two_splits"] == []


def test_check_warns_of_other_counts_and_of_classes_in_two_splits(
    own_data: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    small_omniglot(own_data)
    evaluation(own_data)
    assert main(["data", "check", "omniglot"]) == 0
    text = capsys.readouterr().out
    assert "warning: expected 806 classes in train, as published, but got 12" in text
    assert "possible: up to 1 classes a task (way); shot and query together up to 2 for every class\n" in text
    assert "0 of 2 files listed in SHA256SUMS" in text
    folder = own_data / "features"
    folder.mkdir()
    for split in ("train", "test"):
        np.savez(folder / f"{split}.npz", features=np.eye(3, dtype=np.float32), labels=["a", "b", split])
    assert main(["data", "check", str(folder)]) == 0
    assert "warning: expected every class in one split, but 2 are in two: a, b" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "expected `data` to be followed by list, get NAME or check NAME"),
        (["lst"], "did you mean 'list'?"),
        (["get"], "the following arguments are required: NAME"),
        (["get", "omniglt"], "did you mean 'omniglot'?"),
        (["check", "omniglt"], "expected `name` to be one of omniglot, "),
        (["check", "omniglot"], "run `fewsure data get omniglot`"),
        (["get", "mini-imagenet"], "has no official download: expected mini-imagenet-cache-train.pkl"),
        (["get", "tiered-imagenet"], "for val and test; put them into "),
    ],
)
def test_what_is_wrong_is_one_line(
    arguments: list[str], message: str, own_data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["data", *arguments]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert list(own_data.iterdir()) == []


def test_get_fetches_what_is_missing_and_overwrites_nothing(
    own_data: Path,
    tmp_path: Path,
    server: Server,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    background = small_omniglot(own_data).read_bytes()
    evaluation(tmp_path)
    server.content = (tmp_path / "omniglot" / "images_evaluation.zip").read_bytes()
    checksum = f"md5:{hashlib.md5(server.content).hexdigest()}"
    remotes = (
        Remote("images_background.zip", server.url, checksum),
        Remote("images_evaluation.zip", server.url, checksum),
    )
    monkeypatch.setitem(DATA_SETS, "omniglot", replace(DATA_SETS["omniglot"], remotes=remotes))
    assert main(["data", "get", "omniglot", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["files"] == {
        "images_background.zip": "was there already",
        "images_evaluation.zip": "downloaded, checksum as published",
    }
    assert (own_data / "omniglot" / "images_background.zip").read_bytes() == background
    assert main(["data", "get", "omniglot"]) == 0
    assert "all there already" in capsys.readouterr().out
    assert len(server.asked) == 1
    assert main(["data", "check", "omniglot"]) == 0
