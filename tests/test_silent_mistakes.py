"""Mistakes that would go unnoticed: each is put right, or named where it is met first."""

import csv
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import fewsure
from fewsure.cli.main import main
from fewsure.data.io.images import decode
from fewsure.data.own.arrays import own_tasks
from fewsure.errors import FewsureError

SMALL = ["--updates", "1", "--tasks", "2", "--hidden", "4", "--device", "cpu"]


def people(number: int = 60, rows: int = 24, seed: int = 0) -> dict[str, list[Any]]:
    """A table of people with an age and a height, and what follows from both."""
    random = np.random.default_rng(seed)
    person = np.repeat([f"person {k}" for k in range(number)], rows)
    age, height = random.uniform(20, 80, len(person)), random.normal(1.7, 0.1, len(person))
    score = np.repeat(random.normal(size=number), rows) + 0.1 * age + 10 * height
    return {"person": person.tolist(), "age": age.tolist(), "height": height.tolist(), "score": score.tolist()}


def written(path: Path, table: dict[str, list[Any]], names: list[str] | None = None) -> Path:
    names = names or list(table)
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([names, *zip(*(table[name] for name in names), strict=True)])
    return path


def trained(capsys: pytest.CaptureFixture[str], path: Path, out: Path, *more: str) -> str:
    """Standard error of a training on a table of people."""
    options = ["--data", "table", "--file", str(path), "--task-column", "person", "--target", "score"]
    assert main(["train", "maml", *options, *SMALL, "--out", str(out), *more]) == 0
    return capsys.readouterr().err


def checked(capsys: pytest.CaptureFixture[str], path: Path, *more: str) -> str:
    """What `data check` prints of a table of people."""
    assert main(["data", "check", str(path), "--task-column", "person", "--target", "score", *more]) == 0
    return capsys.readouterr().out


def bytes_of(image: Image.Image, kind: str, **options: Any) -> bytes:
    content = io.BytesIO()
    image.save(content, kind, **options)
    return content.getvalue()


def test_columns_of_files_are_found_by_their_names(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table, run = people(), tmp_path / "run"
    trained(capsys, written(tmp_path / "people.csv", table), run)
    known = {name: values[:6] for name, values in table.items()}
    files = [written(tmp_path / "a.csv", known), written(tmp_path / "b.csv", known, [*known][::-1])]
    printed = []
    for support, query in (files, files[::-1]):
        assert main(["predict", str(run), "--support", str(support), "--query", str(query)]) == 0
        printed.append(capsys.readouterr().out)
    assert printed[0] == printed[1]
    assert len(printed[0].splitlines()) == 7


def test_columns_of_data_frames_are_found_by_their_names() -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(people(number=20))
    learner = fewsure.Learner("ridge", data=frame, task_column="person", target="score").train(quiet=True)
    known, rest = frame[:5], frame[5:9]
    expected = np.asarray(learner.adapt(known).predict(rest).mean)
    turned = learner.adapt(known[known.columns[::-1]]).predict(rest[["height", "age"]]).mean
    assert np.array_equal(np.asarray(turned), expected)
    by_position = learner.adapt(known[["age", "height"]].to_numpy(), known["score"]).predict(
        rest[["age", "height"]].to_numpy()
    )
    assert np.array_equal(by_position.mean, expected)
    with pytest.raises(FewsureError, match="expected rows of one group, but `person` has 'person 0' and 'person 1'"):
        learner.adapt(frame[20:28])
    tasks = [(part[["age", "height"]], part["score"]) for _, part in frame.groupby("person")]
    mixed = [(x[["height", "age"]], y) if number % 2 else (x, y) for number, (x, y) in enumerate(tasks)]
    one, two = (own_tasks(given).prepared() for given in (tasks, mixed))
    assert one.pool("train").checksum == two.pool("train").checksum
    with pytest.raises(FewsureError, match="the columns of the first task, but `height` is missing"):
        own_tasks([*tasks, (tasks[0][0][["age"]], tasks[0][1])])


def test_whole_numbers_are_numbers_and_classes_are_text_or_said_to_be() -> None:
    x, exam = np.arange(20.0), np.arange(20) % 15
    assert own_tasks([(x, exam)] * 9).kind == "regression"
    assert own_tasks([(x, [f"grade {mark % 2}" for mark in exam])] * 9).kind == "classification"
    assert own_tasks([(x, exam > 5)] * 9).kind == "classification"
    assert fewsure.classification_tasks([(x, exam % 2)] * 9).kind == "classification"


def test_an_image_is_turned_as_its_exif_orientation_says() -> None:
    upright = Image.fromarray(np.repeat(np.arange(0, 240, 10, dtype=np.uint8)[:, None], 16, 1))
    exif = Image.Exif()
    exif[0x0112] = 6  # it was taken with the camera turned to the left
    sideways = bytes_of(upright.rotate(90, expand=True), "PNG", exif=exif)
    assert np.array_equal(decode(sideways, "x", (1, 24, 16)), decode(bytes_of(upright, "PNG"), "x", (1, 24, 16)))


def test_images_of_16_bits_keep_their_greys_and_transparent_ones_become_white() -> None:
    greys = np.linspace(0, 65535, 256).astype(np.uint16).reshape(16, 16)
    for kind in ("PNG", "TIFF"):
        found = decode(bytes_of(Image.fromarray(greys), kind), "x", (1, 16, 16))
        assert np.array_equal(found[0].ravel(), np.arange(256))
    clear = Image.new("RGBA", (8, 8), (0, 0, 0, 0))
    assert decode(bytes_of(clear, "PNG"), "x", (3, 8, 8)).min() == 255
    floats = bytes_of(Image.fromarray(np.full((8, 8), 0.5, dtype=np.float32)), "TIFF")
    with pytest.raises(FewsureError, match="its pixels are floats, of which nobody knows the range"):
        decode(floats, "x", (1, 8, 8))


@pytest.mark.parametrize("kind", ["WEBP", "BMP", "TIFF"])
def test_other_formats_of_photographs_are_read(kind: str) -> None:
    image = Image.fromarray(np.random.default_rng(0).integers(0, 255, (12, 12, 3), dtype=np.uint8))
    lossless = {"lossless": True} if kind == "WEBP" else {}
    expected = decode(bytes_of(image, "PNG"), "x", (3, 12, 12))
    assert np.array_equal(decode(bytes_of(image, kind, **lossless), "x", (3, 12, 12)), expected)


def photos(folder: Path, broken: int, classes: int = 20, each: int = 8) -> Path:
    """Class folders; the first image of so many classes is broken."""
    for number in range(classes):
        inside = folder / f"class {number:02}"
        inside.mkdir(parents=True)
        for image in range(each):
            whole = bytes_of(Image.new("L", (16, 16), 9 * number + image), "BMP")
            (inside / f"{image}.bmp").write_bytes(b"no image" if image == 0 and number < broken else whole)
    return folder


def test_unreadable_images_are_left_out_with_a_count_and_a_limit(
    tmp_path: Path, own_data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    few = photos(tmp_path / "few", broken=1)
    (few / "class 00" / "photo.heic").write_bytes(b"of another kind")
    options = ["--data", "images", "--image-size", "16", "--filters", "2", "--way", "2", *SMALL[:4], "--query", "3"]
    assert main(["train", "protonet", *options, "--folder", str(few), "--out", str(tmp_path / "run")]) == 0
    said = capsys.readouterr().err
    assert "1 of " in said
    assert "examples are unreadable, and are left out: expected " in said
    assert "1 files are no PNG, JPEG, WebP, BMP or TIFF file in a class folder, and are left out" in said
    many = photos(tmp_path / "many", broken=20)
    assert main(["train", "protonet", *options, "--folder", str(many), "--out", str(tmp_path / "other")]) == 2
    assert "more than 5% of" in capsys.readouterr().err


def test_several_groups_in_a_support_file_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = people()
    trained(capsys, written(tmp_path / "people.csv", table), tmp_path / "run")
    both = written(tmp_path / "both.csv", {name: values[22:26] for name, values in table.items()})
    one, other = (
        written(tmp_path / f"{start}.csv", {name: values[start : start + 4] for name, values in table.items()})
        for start in (0, 24)
    )
    assert main(["predict", str(tmp_path / "run"), "--support", str(both), "--query", str(one)]) == 2
    assert "expected rows of one group, but `person` has 'person 0' and 'person 1'" in capsys.readouterr().err
    assert main(["predict", str(tmp_path / "run"), "--support", str(one), "--query", str(other)]) == 2
    assert "expected rows of the support's group, 'person 0', but `person` has 'person 1'" in capsys.readouterr().err


def test_rows_that_are_there_twice_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = {name: values + values[:7] for name, values in people().items()}
    path = written(tmp_path / "twice.csv", table)
    says = "7 of 1,447 rows are copies of others of their task"
    assert says in checked(capsys, path)
    assert says in trained(capsys, path, tmp_path / "run")


def test_a_value_a_million_spreads_from_the_others_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = people()
    table["height"][4] = -99_999_999.0
    path = written(tmp_path / "missing.csv", table)
    says = "`height` has -1e+08 in row 5, over a million times the spread of the others"
    assert says in checked(capsys, path)
    assert says in trained(capsys, path, tmp_path / "run")
    stamps = written(tmp_path / "stamps.csv", people() | {"age": (1.7e9 + np.arange(60 * 24)).tolist()})
    assert "over a million" not in checked(
        capsys, stamps
    )  # large numbers with little spread are scaled in double precision


def test_a_target_without_differences_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = people(number=12)
    path = written(tmp_path / "same.csv", table | {"score": [7.0] * len(table["score"])})
    says = "the target is 7 in all rows, so there is nothing to learn"
    assert says in checked(capsys, path)
    assert says in trained(capsys, path, tmp_path / "run")


def test_too_few_groups_for_a_certificate_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = written(tmp_path / "few.csv", people(number=12))
    says = "sets with coverage 90 % need 9"
    assert says in checked(capsys, path)
    assert says in trained(capsys, path, tmp_path / "run", "--shares", "0.5", "0.2", "0.3")
    enough = written(tmp_path / "enough.csv", people(number=60))
    assert says not in checked(capsys, enough)


def test_four_tasks_in_all_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = written(tmp_path / "four.csv", people(number=4))
    says = "4 tasks in all, "
    assert says in checked(capsys, path)
    assert says in trained(capsys, path, tmp_path / "run")


def test_a_missing_file_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    gone = str(tmp_path / "gone.csv")
    assert main(["data", "check", gone]) == 2
    assert f"there is no '{gone}'" in capsys.readouterr().err
    options = ["--data", "table", "--file", gone, "--task-column", "person", "--target", "score"]
    assert main(["train", "maml", *options, *SMALL, "--out", str(tmp_path / "run")]) == 2
    assert f"{gone} is not there" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_what_is_doubtful_is_in_the_json_of_a_check(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = written(tmp_path / "four.csv", people(number=4))
    assert len(json.loads(checked(capsys, path, "--json"))["warnings"]) == 2
