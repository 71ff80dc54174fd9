"""`fewsure predict`: files in, predictions out, and one line for what is wrong."""

import csv
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fewsure
from fewsure import Images, Learner, Table, TableClasses
from fewsure.certification.certify import Request, certify_run
from fewsure.cli.main import main
from fewsure.learner.files import Files
from fewsure.training.experiment import load_preset
from fewsure.training.runs import Run

from .data_files import image_bytes, random_image, write_tree

TINY = {"tasks": 2, "device": "cpu"}


def write_csv(path: Path, header: str, rows: np.ndarray, names: list[str] | None = None) -> Path:
    lines = [
        ",".join([*([names[index]] if names else []), *(repr(float(v)) for v in row)]) for index, row in enumerate(rows)
    ]
    path.write_text("\n".join([header, *lines]) + "\n")
    return path


@pytest.fixture(scope="module")
def numbers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run on a table, certified, and files of a new task."""
    folder = tmp_path_factory.mktemp("numbers")
    random = np.random.default_rng(0)
    x = random.normal(size=(240, 2))
    slopes = np.repeat(random.normal(size=(20, 2)), 12, axis=0)
    rows = np.column_stack([x, 100 + 10 * (x * slopes).sum(1) + random.normal(size=240)])
    write_csv(folder / "train.csv", "group,a,b,y", rows, [f"g{row // 12}" for row in range(240)])
    data = Table(file=str(folder / "train.csv"), task_column="group", target="y", shot=5, query=5)
    options = {"latent": 3, "generator_hidden": (6,), "kl_samples": 4, "inner_steps": 2, "hidden": (6,)}
    Learner("simpa", data, out=folder / "run", **options, **TINY).train(updates=3)
    write_csv(folder / "support.csv", "b,a,y", rows[:5][:, [1, 0, 2]])  # columns go by their names
    write_csv(folder / "query.csv", "a,b", rows[5:12, :2])
    np.save(folder / "rows.npy", rows)
    return folder


@pytest.fixture(scope="module")
def classes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("classes")
    random = np.random.default_rng(1)
    centres = 6 * random.normal(size=(18, 3))
    rows = np.repeat(centres, 8, axis=0) + random.normal(size=(144, 3))
    names = [f"kind {row // 8}" for row in range(144)]
    write_csv(folder / "train.csv", "species,u,v,w", rows, names)
    data = TableClasses(file=str(folder / "train.csv"), label="species", way=2, shot=2, query=4)
    Learner("protonet", data, out=folder / "run", hidden=(8,), **TINY).train(updates=3)
    write_csv(folder / "support.csv", "species,u,v,w", rows[[0, 1, 8, 9]], ["left", "left", "right", "right"])
    write_csv(folder / "query.csv", "u,v,w", rows[[2, 3, 10, 11, 12]])
    return folder


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("images")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FEWSURE_CACHE", str(folder / "cache"))
        files = {f"class {k}/{n}.png": image_bytes(random_image(9 * k + n, 18)) for k in range(12) for n in range(4)}
        write_tree(folder / "all", files)
        data = Images(folder=str(folder / "all"), image_size=16, way=2, query=3)
        for name in ("instance", "batch"):
            Learner("protonet", data, out=folder / name, filters=2, norm=name, **TINY).train(updates=1)
    for k, label in enumerate(("cat", "dog")):
        write_tree(folder / "support", {f"{label}/{n}.png": files[f"class {k}/{n}.png"] for n in range(2)})
    write_tree(folder / "query", {f"{n}.png": files[f"class {n % 2}/{2 + n // 2}.png"] for n in range(4)})
    return folder


def predict(
    folder: Path, *more: str, run: str = "run", support: str = "support.csv", query: str = "query.csv"
) -> list[str]:
    files = ["--support", str(folder / support), "--query", str(folder / query)]
    return ["predict", str(folder / run), *files, "--device", "cpu", *more]


def printed(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> Any:
    capsys.readouterr()
    assert main(arguments) == 0
    out = capsys.readouterr().out
    return json.loads(out) if "--json" in arguments else list(csv.DictReader(io.StringIO(out)))


def test_numbers_are_those_of_the_learner(numbers: Path, capsys: pytest.CaptureFixture[str]) -> None:
    records = printed(predict(numbers, "--json"), capsys)
    rows = np.load(numbers / "rows.npy")
    p = fewsure.load(numbers / "run").adapt(rows[:5, :2], rows[:5, 2]).predict(rows[5:12, :2])
    assert [record["row"] for record in records] == list(range(1, 8))
    for name, values in {"mean": p.mean, "std": p.std, "function_std": p.function_std}.items():
        np.testing.assert_allclose([record[name] for record in records], values, rtol=1e-6)
    np.testing.assert_allclose([record["quantile_05"] for record in records], p.quantile(0.05), rtol=1e-6)
    lines = printed(predict(numbers), capsys)
    assert list(lines[0]) == ["row", "mean", "std", "function_std", "quantile_05", "quantile_95"]
    assert float(lines[3]["mean"]) == records[3]["mean"]


def test_classes_have_probabilities_and_both_parts_of_the_uncertainty(
    classes: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    records = printed(predict(classes, "--json"), capsys)
    assert [record["label"] for record in records] == ["left", "left", "right", "right", "right"]
    for record in records:
        assert sum(record["probabilities"].values()) == pytest.approx(1)
        assert record["confidence"] == record["probabilities"][record["label"]]
        assert record["expected_entropy"] + record["mutual_information"] == pytest.approx(record["entropy"])
    (first, *_) = printed(predict(classes), capsys)
    assert list(first)[-2:] == ["p(left)", "p(right)"]


def test_batches_change_nothing_and_a_file_is_whole(
    numbers: Path, images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = printed(predict(numbers, "--json"), capsys)
    parts = printed(predict(numbers, "--json", "--batch-size", "2"), capsys)
    np.testing.assert_allclose([r["mean"] for r in parts], [r["mean"] for r in whole], rtol=1e-6)
    target = tmp_path / "out.json"
    assert main(predict(numbers, "--out", str(target))) == 0
    assert json.loads(target.read_text()) == whole
    assert capsys.readouterr().out == ""
    one_by_one = printed(predict(images, "--batch-size", "1", run="instance", support="support", query="query"), capsys)
    together = printed(predict(images, run="instance", support="support", query="query"), capsys)
    assert (
        [line["file"] for line in one_by_one] == [line["file"] for line in together] == [f"{n}.png" for n in range(4)]
    )
    for one, other in zip(one_by_one, together, strict=True):
        assert float(one["p(cat)"]) == pytest.approx(float(other["p(cat)"]), abs=1e-5)


def test_rows_are_predicted_before_later_ones_are_read(
    numbers: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = (numbers / "query.csv").read_text().splitlines()
    (tmp_path / "query.csv").write_text("\n".join([*rows[:5], "no,number"]) + "\n")
    arguments = ["predict", str(numbers / "run"), "--support", str(numbers / "support.csv"), "--batch-size", "2"]
    arguments += ["--query", str(tmp_path / "query.csv"), "--device", "cpu"]
    assert main(arguments) == 2
    printed = capsys.readouterr()
    assert [line.split(",")[0] for line in printed.out.splitlines()] == ["row", "1", "2", "3", "4"]
    assert "but row 5 has 'no'" in printed.err
    assert main([*arguments, "--out", str(tmp_path / "out.csv")]) == 2
    assert [path.name for path in tmp_path.iterdir()] == ["query.csv"]


def test_one_image_is_a_query_and_a_transductive_run_says_so(images: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (line,) = printed(predict(images, run="instance", support="support", query="query/2.png"), capsys)
    assert line["file"] == "2.png"
    capsys.readouterr()
    assert main(predict(images, run="batch", support="support", query="query")) == 0
    assert "this run is transductive: all query points are predicted together" in capsys.readouterr().err


def test_coverage_says_how_to_get_it_and_then_gives_intervals(
    numbers: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "out.csv"
    assert main(predict(numbers, "--coverage", "0.9", "--out", str(target))) == 2
    error = capsys.readouterr().err
    assert f"run `fewsure certify {numbers / 'run'}` once" in error
    assert error.count("\n") == 1
    assert list(tmp_path.iterdir()) == []
    certify_run(Run.open(numbers / "run"), torch.device("cpu"), Request(tasks=30, bound_samples=4, unit="tasks"))
    for record in printed(predict(numbers, "--coverage", "0.9", "--json"), capsys):
        assert record["lower"] < record["mean"] < record["upper"]
    assert main(predict(numbers, "--coverage", "0.9")) == 0
    said = "fewsure: coverage 0.9 is that of a new task like table, new draws from the 4 tasks of its test split"
    assert capsys.readouterr().err.startswith(said)
    # 30 calibration tasks cannot promise 99 %: the interval is the whole line, which JSON has no number for.
    for record in printed(predict(numbers, "--coverage", "0.99", "--json"), capsys):
        assert record["lower"] is None
        assert record["upper"] is None
    assert main(predict(numbers, "--coverage", "0.99")) == 0
    assert "30 calibration tasks are too few for coverage 0.99: intervals have no ends\n" in capsys.readouterr().err


def test_classes_have_sets_with_coverage(classes: Path, capsys: pytest.CaptureFixture[str]) -> None:
    certify_run(Run.open(classes / "run"), torch.device("cpu"), Request(tasks=30, bound_samples=4, unit="tasks"))
    for record in printed(predict(classes, "--coverage", "0.9", "--json"), capsys):
        assert set(record["set"]) <= {"left", "right"}
    assert {line["set"] for line in printed(predict(classes, "--coverage", "0.99"), capsys)} == {"left|right"}


NUMBERS, IMAGES = "--support {numbers}/support.csv", "--support {images}/support"
WRONG = {
    "no support": (
        "numbers",
        "--query {numbers}/query.csv",
        "--support to be a file or a folder of examples, but got none",
    ),
    "no such query": ("numbers", f"{NUMBERS} --query gone.csv", "but gone.csv is not there"),
    "a column is missing": (
        "numbers",
        f"{NUMBERS} --query {{classes}}/query.csv",
        "expected the columns a, b, as in training, but `a` is missing",
    ),
    "no target": (
        "numbers",
        "--support {numbers}/query.csv --query {numbers}/query.csv",
        "expected a column `y` with the support set's numbers, but it has a, b; name it with --target",
    ),
    "a folder": ("numbers", f"{IMAGES} --query {{numbers}}/query.csv", "CSV or Parquet file for this run, but"),
    "a batch of none": (
        "numbers",
        f"{NUMBERS} --query {{numbers}}/query.csv --batch-size 0",
        "expected `batch_size` to be at least 1",
    ),
    "too much coverage": (
        "classes",
        "--support {classes}/support.csv --query {classes}/query.csv --coverage 90",
        "expected `coverage` to be a probability in (0, 1), but got 90.0",
    ),
    "no folder for the output": (
        "numbers",
        f"{NUMBERS} --query {{numbers}}/query.csv --out nowhere/p.csv",
        "expected --out to be a file in a folder that is there, but nowhere is not; make it",
    ),
    "a folder as --out": (
        "numbers",
        f"{NUMBERS} --query {{numbers}}/query.csv --out {{numbers}}",
        "expected --out to be a file such as predicted.csv, but",
    ),
    "no number": (
        "numbers",
        f"{NUMBERS} --query {{numbers}}/text.csv",
        "text.csv: expected numbers in column `a`, but row 2 has 'high'; fill it in, or leave the row out\n",
    ),
    "no row": ("numbers", f"{NUMBERS} --query {{numbers}}/none.csv", "expected rows to predict in"),
    "no image": (
        "images",
        f"{IMAGES} --query {{images}}/broken/1.png",
        "broken/1.png to be a PNG, JPEG, WebP, BMP or TIFF image, but it cannot be decoded (it is another kind"
        " of file)\n",
    ),
    "a flat support folder": (
        "images",
        "--support {images}/query --query {images}/query",
        "a folder with a folder of PNG, JPEG, WebP, BMP or TIFF images for each class, but",
    ),
    "a query folder without images": (
        "images",
        f"{IMAGES} --query {{images}}/empty",
        "an image, or a folder of PNG, JPEG, WebP, BMP or TIFF images, but",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_is_wrong_is_one_line_and_exit_code_2(
    case: str, numbers: Path, classes: Path, images: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, arguments, message = WRONG[case]
    folders = {"numbers": numbers, "classes": classes, "images": images}
    (numbers / "text.csv").write_text("a,b\n1,2\nhigh,2\n")
    (numbers / "none.csv").write_text("a,b\n")
    (images / "empty").mkdir(exist_ok=True)
    write_tree(images / "broken", {"1.png": b"hello"})
    trained = images / "instance" if run == "images" else folders[run] / "run"
    given = [argument.format(**folders) for argument in arguments.split()]
    capsys.readouterr()
    assert main(["predict", str(trained), *given, "--device", "cpu"]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_omniglots_ink_is_read_as_its_pools_have_it(tmp_path: Path) -> None:
    paper = np.full((40, 40), 255, dtype=np.uint8)
    paper[10:30, 10:30] = 0
    (tmp_path / "drawing.png").write_bytes(image_bytes(paper))
    files = Files(load_preset("recommended", "protonet", "omniglot"), None)
    (points,) = files.query(tmp_path / "drawing.png", size=8)
    assert points.x.shape == (1, 1, 28, 28)
    assert (points.x[0, 0, 0, 0], points.x[0, 0, 14, 14]) == (0, 255)
