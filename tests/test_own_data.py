"""A user's own data: images in folders, tables, arrays and generators behind the one interface."""

import csv
import dataclasses
import json
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.stats import norm

from fewsure import FewsureError, Images, Table, TableClasses
from fewsure.cli.main import main
from fewsure.core import streams
from fewsure.core.config import from_record, to_record
from fewsure.data import DATA
from fewsure.data.check import Roles, check
from fewsure.data.own.arrays import classification_tasks, labelled_examples, own_tasks, regression_tasks
from fewsure.data.own.rows import SHARES, split_by_name
from fewsure.data.pools import SPLITS
from fewsure.evaluation.calibrate import most_likely_noise
from fewsure.evaluation.scoring.observed import ObservedScorer
from fewsure.evaluation.scoring.predict import Predict
from fewsure.pipeline import start_run
from fewsure.training.experiment import load_preset
from fewsure.training.runs import Run
from fewsure.types import Batch, Task

from .data_files import image_bytes, random_image, write_tree

CPU = torch.device("cpu")
SMALL = ["--updates", "3", "--tasks", "2", "--hidden", "6", "--device", "cpu"]


def write_csv(path: Path, columns: list[str], rows: list[list[object]]) -> Path:
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([columns, *rows])
    return path


@pytest.fixture(scope="module")
def groups_csv(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """20 groups of 12 rows, and one of 3, whose y is a line through a and b in units of its own."""
    random = np.random.default_rng(0)
    rows: list[list[object]] = []
    for group in range(21):
        slope = random.normal(size=2)
        for _ in range(12 if group else 3):
            a, b = random.normal(size=2)
            rows.append([f"g{group}", 1.7e9 + 1000 * a, b, 300 + 40 * (slope @ [a, b]) + random.normal()])
    return write_csv(tmp_path_factory.mktemp("tables") / "groups.csv", ["group", "time", "b", "y"], rows)


@pytest.fixture(scope="module")
def classes_csv(tmp_path_factory: pytest.TempPathFactory) -> Path:
    random = np.random.default_rng(1)
    rows = [
        [f"kind {kind}", f"place {kind % 3}", *(3 * kind + random.normal(size=2))]
        for kind in range(15)
        for _ in range(8)
    ]
    return write_csv(tmp_path_factory.mktemp("tables") / "classes.csv", ["species", "place", "u", "v"], rows)


@pytest.fixture
def photos(tmp_path: Path, own_data: Path) -> Path:
    """12 class folders with 5 images of different sizes."""
    folder = tmp_path / "photos"
    for number in range(60):
        kind, name = ("PNG", "png") if number % 2 else ("JPEG", "jpg")
        content = image_bytes(random_image(number, 20 + number % 5), kind)
        write_tree(folder, {f"class {number // 5:02}/{number % 5}.{name}": content})
    return folder


def table(path: Path, **options: object) -> Table:
    return Table(file=str(path), task_column="group", target="y", **options)  # type: ignore[arg-type]


def test_the_rule_depends_on_names_alone_and_holds_the_shares() -> None:
    names = [f"class {number}" for number in range(50)]
    rule = split_by_name(names, SHARES, "classes", "here")
    assert rule == split_by_name(names[::-1], SHARES, "classes", "there")
    assert [list(rule.values()).count(split) for split in SPLITS] == [30, 10, 10]
    assert sorted(split_by_name(["a", "b", "c"], SHARES, "classes", "here").values()) == sorted(SPLITS)


@pytest.mark.parametrize(
    ("groups", "shares", "expected"),
    [(26, SHARES, 5), (27, SHARES, 9), (42, SHARES, 9), (60, SHARES, 12), (42, (0.8, 0.1, 0.1), 4)],
)
def test_the_groups_to_test_on_suffice_for_a_certificate_where_these_are_a_third_at_most(
    groups: int, shares: tuple[float, float, float], expected: int
) -> None:
    tasks = [(np.arange(20.0), np.random.default_rng(number).normal(size=20)) for number in range(groups)]
    data = regression_tasks(tasks, shot=2, query=4, shares=shares).prepared()
    assert len(data.pool("test").classes) == expected


def test_rows_become_tasks_that_are_scaled_by_the_training_rows(groups_csv: Path) -> None:
    data = table(groups_csv, shot=4, query=6).prepared()
    pools = {split: data.pool(split) for split in SPLITS}
    assert [len(pool.classes) for pool in pools.values()] == [12, 4, 4]  # the group of 3 rows is left out
    assert len({name for pool in pools.values() for name in pool.classes}) == 20
    train = dataclasses.replace(data, shot=1, query=1).pool("train").examples.double()
    torch.testing.assert_close(train.mean(0), torch.zeros(3).double(), atol=1e-5, rtol=0)
    torch.testing.assert_close(train.std(0, correction=0), torch.ones(3).double(), atol=1e-5, rtol=0)
    task, facts = data.tasks("test", CPU).sample(50, streams.generator(0, "own"))
    shapes = [tuple(part.shape) for part in (*task.support, *task.query)]
    assert shapes == [(50, 4, 2), (50, 4, 1), (50, 6, 2), (50, 6, 1)]
    rows = torch.cat([torch.cat(batch, -1) for batch in task[:2]], 1)
    for number in range(50):
        members = pools["test"].examples[12 * facts["groups"][number, 0] :][:12]
        found = (rows[number].unsqueeze(1) == members).all(-1)
        assert found.sum() == 10  # each row is a row of its task
        assert (found.sum(0) <= 1).all()  # and none is drawn twice


def test_what_is_learned_of_the_data_is_recorded_and_reads_back_without_the_data(groups_csv: Path) -> None:
    data = table(groups_csv, query=6).prepared()
    record = json.loads(json.dumps(to_record(data)))
    assert record["scale"]["columns"] == ["time", "b"]
    assert from_record(Table, record, source="test") == data
    elsewhere = from_record(Table, record | {"file": "gone.csv"}, source="test")
    network = DATA["table"].network()
    assert elsewhere.model(network).network.shapes == data.model(network).network.shapes
    with pytest.raises(FewsureError, match=r"but gone.csv is not there"):
        elsewhere.tasks("test", CPU)


def test_a_split_column_is_honoured_and_must_not_cut_a_task(tmp_path: Path) -> None:
    rows = [[group, group % 7, group % 5, ("train", "val", "test")[group % 3]] for group in range(9) for _ in range(6)]
    path = write_csv(tmp_path / "split.csv", ["group", "x", "y", "part"], rows)
    options = {"shot": 2, "query": 2, "split_column": "part"}
    assert table(path, **options).pool("validation").classes == ("1", "4", "7")
    path.write_text(path.read_text().replace("1,1,1,val", "1,1,1,test", 1))
    with pytest.raises(FewsureError, match="'1' is in test and validation; what is tested on must not be trained on"):
        table(path, **options).prepared()


def test_classes_of_a_table_meet_in_any_task_or_in_their_own(classes_csv: Path) -> None:
    data = TableClasses(file=str(classes_csv), label="species", features=("u", "v"), way=3, shot=2, query=3)
    task, facts = data.tasks("train", CPU).sample(20, streams.generator(0, "own"))
    assert task.query.x.shape == (20, 9, 2)
    assert [len(data.pool(split).classes) for split in SPLITS] == [9, 3, 3]
    grouped = TableClasses(file=str(classes_csv), label="species", task_column="place", way=5, shot=2, query=3)
    assert [len(set(grouped.pool(split).groups)) for split in SPLITS] == [1, 1, 1]
    _, facts = grouped.tasks("test", CPU).sample(20, streams.generator(0, "own"))
    assert all(len(set(row)) == 5 for row in facts["classes"].tolist())


def test_images_of_any_size_are_resized_and_divided_by_class(photos: Path) -> None:
    data = Images(folder=str(photos), image_size=16, way=2, query=4)
    pools = {split: data.pool(split) for split in SPLITS}
    assert [len(pool.classes) for pool in pools.values()] == [8, 2, 2]
    assert pools["train"].examples.shape == (40, 3, 16, 16)
    task, _ = dataclasses.replace(data, shot=1).tasks("test", CPU).sample(3, streams.generator(0, "own"))
    assert task.support.x.shape == (3, 2, 3, 16, 16)
    assert 0 <= float(task.support.x.min()) < float(task.support.x.max()) <= 1
    assert Images(folder=str(photos), image_size=20, grey=True).pool("test").examples.shape == (10, 1, 20, 20)


def test_a_class_with_too_few_examples_is_left_out(photos: Path, classes_csv: Path, tmp_path: Path) -> None:
    data = Images(folder=str(photos), image_size=16, way=2, query=4)
    small = data.pool("train").classes[0]
    next((photos / small).iterdir()).unlink()
    assert data.prepared().pool("train").classes == tuple(sorted(Images(folder=str(photos)).pool("train").classes))[1:]
    assert small in dataclasses.replace(data, query=3).pool("train").classes
    assert small in dataclasses.replace(data, way=8).pool("train").classes  # eight are needed, and drawing says why
    with pytest.raises(FewsureError, match=rf"takes 5 examples of a class \(shot \+ query\), but class {small} has 4"):
        dataclasses.replace(data, way=8).tasks("train", CPU)
    rows = [line.split(",") for line in classes_csv.read_text().splitlines()[1:]]
    few = write_csv(tmp_path / "few.csv", ["species", "place", "u", "v"], [*rows[:2], *rows[8:]])  # 2 of kind 0
    options = {"file": str(few), "label": "species", "way": 4, "shot": 2, "query": 3}
    grouped = TableClasses(task_column="place", **options).prepared()  # type: ignore[arg-type]
    (split,) = (split for split in SPLITS if "place 0" in grouped.pool(split).groups)
    assert grouped.pool(split).classes == tuple(f"place 0/kind {kind}" for kind in (12, 3, 6, 9))
    assert grouped.tasks(split, CPU).sample(3, streams.generator(0, "own"))[0].query.x.shape == (3, 12, 2)


def test_every_size_of_images_is_decoded_once(photos: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for size in (16, 20, 16):
        Images(folder=str(photos), image_size=size).pool("test")
    assert capsys.readouterr().err.count("decoding images") == 2


def test_split_folders_are_honoured_and_must_not_share_classes(photos: Path, tmp_path: Path) -> None:
    divided = tmp_path / "divided"
    for number, folder in enumerate(sorted(photos.iterdir())):
        target = divided / ("train", "val", "test")[number % 3]
        target.mkdir(parents=True, exist_ok=True)
        folder.rename(target / folder.name)
    data = Images(folder=str(divided), image_size=16)
    assert data.pool("validation").classes == ("class 01", "class 04", "class 07", "class 10")
    (divided / "test" / "class 02").rename(divided / "test" / "class 00")
    with pytest.raises(
        FewsureError, match="classes that it was not trained on, but class 'class 00' is in test and train"
    ):
        data.pool("train")


def test_generators_functions_and_arrays_are_data() -> None:
    def endless() -> Iterator[tuple[np.ndarray, np.ndarray]]:
        random = np.random.default_rng(0)
        while True:
            x = random.normal(size=30)
            yield x, random.normal() * x

    for given in (endless(), endless):
        data = own_tasks(given)
        assert (data.kind, data.shot, data.query_size) == ("regression", (1, 10), 10)
        assert len(data.pool("train").classes) == 600
    few = regression_tasks([(np.arange(8.0), np.arange(8.0))] * 5)
    assert (few.shot, few.query) == ((1, 4), 4)
    labels = np.repeat(list("abcdefghij"), 6)
    arrays = labelled_examples(np.random.default_rng(0).normal(size=(60, 3)), labels)
    assert (arrays.way, arrays.shot, arrays.query) == (2, (1, 3), 3)
    by_task = classification_tasks([(np.zeros((8, 3)), ["x"] * 4 + ["y"] * 4)] * 5, shot=2)
    assert (by_task.way, by_task.query) == (2, 2)
    task, facts = by_task.tasks("train", CPU).sample(4, streams.generator(0, "own"))
    assert task.support.y.tolist() == [[0, 0, 1, 1]] * 4
    assert (facts["classes"] // 2 == facts["classes"][:, :1] // 2).all()  # both classes are of one task


def test_every_method_has_settings_for_own_data() -> None:
    for name in ("images", "table-classes", "given-classes", "given-images"):
        assert load_preset("recommended", "protonet", name).data.training_outputs == 5
    assert load_preset("recommended", "simpa", "table").algorithm_name == "simpa"
    with pytest.raises(FewsureError, match="table is regression"):
        load_preset("recommended", "protonet", "table")


def test_scores_against_observed_labels_are_those_of_the_mixture() -> None:
    generator = streams.generator(0, "observed")
    functions, labels = torch.randn(7, 40, 1, generator=generator), torch.randn(40, 1, generator=generator)
    task = Task(Batch(labels, labels), Batch(labels, labels))
    record = ObservedScorer(0.4, unit=10.0).score(Predict(lambda x: functions), task, {}, {})
    f, y = 10 * functions.squeeze(-1).double().numpy(), 10 * labels.squeeze(-1).double().numpy()
    assert float(record["mse"]) == pytest.approx(((f.mean(0) - y) ** 2).mean(), rel=1e-5)
    assert float(record["nll"]) == pytest.approx(-np.log(norm.pdf(y, f, 4.0).mean(0)).mean(), rel=1e-5)
    share_below = norm.cdf(y, f, 4.0).mean(0)
    for index, level in enumerate(np.linspace(0, 1, 11)):
        assert float(record["reliability"][index]) == pytest.approx((share_below <= level).mean())
    assert float(record["mae"]) == pytest.approx(np.abs(f.mean(0) - y).mean(), rel=1e-5)
    draws = f[:, None] + 4.0 * norm.ppf((np.arange(4000) + 0.5) / 4000)[:, None]
    for share in (0.5, 0.9):
        low, high = (np.quantile(draws.reshape(-1, 40), (1 + sign * share) / 2, axis=0) for sign in (-1, 1))
        name = f"{share:.0%}".removesuffix("%")
        assert float(record[f"width_{name}"]) == pytest.approx((high - low).mean(), rel=1e-3)
        assert float(record[f"coverage_{name}"]) == pytest.approx(((low < y) & (y < high)).mean())


def test_the_right_noise_is_calibrated_and_a_wrong_one_is_not() -> None:
    generator = streams.generator(1, "observed")
    truth = torch.randn(1, 4000, 1, generator=generator)
    labels = truth[0] + 0.5 * torch.randn(4000, 1, generator=generator)
    task = Task(Batch(labels, labels), Batch(labels, labels))
    levels = torch.linspace(0, 1, 11)
    right, wrong = (
        (ObservedScorer(std, 1.0).score(Predict(lambda x: truth), task, {}, {})["reliability"] - levels).abs().max()
        for std in (0.5, 0.1)
    )
    assert right < 0.02
    assert wrong > 0.2


def test_the_learned_noise_of_a_point_estimate_is_its_root_mean_square_error() -> None:
    generator = streams.generator(2, "observed")
    outputs, y = torch.randn(1, 300, 1, generator=generator), torch.randn(300, 1, generator=generator)
    error = float((outputs[0] - y).square().mean().sqrt())
    assert most_likely_noise(outputs.double(), y.double()) == pytest.approx(error, rel=0.011)


def test_train_evaluate_compare_and_report_on_a_table(
    groups_csv: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--data", "table", "--file", str(groups_csv), "--task-column", "group", "--target", "y", "--query", "6"]
    runs = [tmp_path / name for name in ("maml", "bmaml")]
    for run in runs:
        assert main(["train", run.name, *options, *SMALL, "--out", str(run)]) == 0
        assert main(["evaluate", str(run), "--tasks", "40", "--json"]) == 0
    *_, last = capsys.readouterr().out.splitlines()
    summary = json.loads(last)
    assert set(summary) >= {"mse", "nll", "ece", "mce", "reliability", "noise_std", "data_checksum"}
    noise = {int(shot): found["noise_std"] for shot, found in json.loads((runs[1] / "fitted.json").read_text()).items()}
    assert list(noise) == [1, 2, 4, 6]  # over the range that groups of 12 rows allow
    assert noise[2] < summary["noise_std"] < noise[4] or noise[2] > summary["noise_std"] > noise[4]
    assert summary["shot"] == 3
    assert 300 < summary["mse"]["mean"] < 30_000  # in the unit of y, whose spread is about 50
    held_out = len(Run.open(runs[1]).experiment.data.pool("test").classes)
    assert (summary["groups"], summary["grouped_by"]) == (held_out, "group")
    over = f"over {held_out} groups (group); so few hold 95 % where the scores of groups are normal"
    assert main(["compare", *map(str, runs)]) == 0
    assert over in capsys.readouterr().out
    assert main(["compare", *map(str, runs), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["groups"] == held_out
    assert main(["report", *map(str, runs), "--out", str(tmp_path / "report.html")]) == 0
    page = (tmp_path / "report.html").read_text()
    assert over in page
    assert "On data of your own nobody knows the truth" in page
    assert "x_mean" not in page
    assert main(["train", "maml", "--out", str(runs[0]), "--resume", "--device", "cpu"]) == 0
    changed = tmp_path / "changed.csv"
    changed.write_text(groups_csv.read_text())
    given = [*options[:3], str(changed), *options[4:]]
    assert main(["train", "maml", *given, *SMALL, "--out", str(tmp_path / "other")]) == 0
    changed.write_text(changed.read_text().replace(",3", ",4", 40))
    capsys.readouterr()
    assert main(["train", "maml", "--out", str(tmp_path / "other"), "--resume", "--device", "cpu"]) == 2
    assert "has changed since the run began" in capsys.readouterr().err


def test_train_and_evaluate_on_images_and_on_classes_of_a_table(
    photos: Path, classes_csv: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    small = ["--updates", "2", "--tasks", "2", "--device", "cpu", "--way", "2"]
    images = ["--data", "images", "--folder", str(photos), "--image-size", "16", "--query", "4", "--filters", "2"]
    classes = ["--data", "table-classes", "--file", str(classes_csv), "--label", "species", "--features", "u", "v"]
    for name, options in {"images": images, "classes": [*classes, "--query", "4"]}.items():
        assert main(["train", "protonet", *options, *small, "--out", str(tmp_path / name)]) == 0
        assert main(["evaluate", str(tmp_path / name), "--tasks", "20", "--json"]) == 0
        *_, last = capsys.readouterr().out.splitlines()
        summary = json.loads(last)
        assert summary["transductive"] is False
        assert summary["grouped_by"] == "classes"
        assert ("ci95" in summary["accuracy"]) is (summary["groups"] > summary["way"])


def test_check_says_what_is_there_what_is_unusable_and_what_is_possible(
    photos: Path, groups_csv: Path, classes_csv: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (photos / "class 03" / "broken.png").write_bytes(b"no image")
    (photos / "class 03" / "notes.txt").write_text("hello")
    assert main(["data", "check", str(photos), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [Path(item["file"]).name for item in found["unusable"]] == ["notes.txt", "broken.png"]
    assert found["splits"]["train"]["units"] == 8
    assert main(["data", "check", str(photos)]) == 0
    text = capsys.readouterr().out
    assert "possible: up to 2 classes a task (way); shot and query together up to 5 for every class\n" in text
    assert "unusable: " in text
    assert main(["data", "check", str(groups_csv)]) == 0
    text = capsys.readouterr().out
    assert "group: text, 21 different" in text
    assert "--target COLUMN --task-column COLUMN" in text
    assert main(["data", "check", str(groups_csv), "--target", "y", "--task-column", "group"]) == 0
    assert "up to 12 for half of them" in capsys.readouterr().out
    assert main(["data", "check", str(classes_csv), "--label", "species", "--task-column", "place"]) == 0
    assert "up to 5 classes a task" in capsys.readouterr().out


CSV = "group,x,y\n" + "".join(f"g{number // 4},{number},{number % 3}\n" for number in range(40))


def with_cell(cell: str) -> str:
    return CSV.replace("g3,13,", f"g3,{cell},")


def with_column(name: str) -> str:
    """A further column, which says `late` in each row."""
    return CSV.replace("\n", ",late\n").replace("group,x,y,late", f"group,x,y,{name}")


WRONG_TABLES: list[tuple[str | None, dict[str, object], str]] = [
    (None, {}, "but nowhere.csv is not there"),
    ("group,x,y\n", {}, "it has none below the line with the column names"),
    ("", {}, "expected the first line of .* to name every column"),
    (CSV, {"target": "z"}, "expected `target` to be one of group, x, y, but got 'z'"),
    (CSV, {"task_column": ""}, "expected `task_column` to name a column of .*, one of group, x, y"),
    (with_cell("many"), {}, "numbers in column `x`, but row 14 has 'many'"),
    (
        CSV.replace("\n", ",\n").replace("group,x,y,", "group,x,y,z"),
        {},
        "column `z`, but row 1 is empty; fill it in, or leave the row out, or name the columns .* --fe",
    ),
    (with_cell(""), {}, "column `x`, but row 14 is empty; fill it in, or leave the row out, or name"),
    (with_cell("nan"), {}, "column `x`, but row 14 has 'nan'"),
    (CSV.replace("g3,13,1", "g3,13"), {}, "expected 3 columns, as in its first line, but row 14 has 2"),
    (CSV.replace("group,x,y", "group,y,y"), {}, "names of .* to differ, but `y` is there twice"),
    (CSV, {"features": ("y",)}, "to be columns to predict from, but `y` is no input"),
    (CSV, {"task_column": "y"}, "a column for each thing .*, but `y` is named for two .*; name another for one"),
    (CSV, {"features": "x"}, "expected `features` to be a list of any number of values, but got 'x'"),
    (CSV, {"shot": "two"}, "expected `shot` to be a whole number or a range, 5 or 1-10, but got 'two'"),
    (CSV, {"shot": 5}, r"takes 7 rows \(shot . query\), but the largest of 6 tasks has 4; lower --shot"),
    (with_column("part"), {"split_column": "part"}, "splits to be train, validation or test, but got 'late'"),
    (CSV, {"shares": (0.5, 0.5, 0.5)}, "three numbers above 0 .* that add up to 1"),
]


@pytest.mark.parametrize(("text", "changes", "message"), WRONG_TABLES)
def test_a_wrong_table_is_refused_with_what_to_do(
    text: str | None, changes: dict, message: str, tmp_path: Path
) -> None:
    path = _written(tmp_path / "my.csv", text) if text is not None else Path("nowhere.csv")
    options = {"file": str(path), "task_column": "group", "target": "y", "shot": 2, "query": 2} | changes
    with pytest.raises(FewsureError, match=message):
        Table(**options).prepared()


def test_paths_lists_and_numbers_of_numpy_are_what_a_run_records(tmp_path: Path) -> None:
    path = _written(tmp_path / "my.csv", CSV)
    given = Table(file=path, task_column="group", target="y", shot=np.int64(2), query=2, features=["x"])  # type: ignore[arg-type]
    assert given == Table(file=str(path), task_column="group", target="y", shot=2, query=2, features=("x",))
    assert json.loads(json.dumps(to_record(given))) == to_record(given)
    assert Images(folder=tmp_path, shares=np.array([0.5, 0.25, 0.25])) == Images(  # type: ignore[arg-type]
        folder=str(tmp_path), shares=(0.5, 0.25, 0.25)
    )
    with pytest.raises(FewsureError, match=r"expected `image_size` to be of type int, but got 28\.0"):
        Images(folder=str(tmp_path), image_size=28.0)  # type: ignore[arg-type]


def test_other_delimiters_and_a_byte_order_mark_are_read(tmp_path: Path) -> None:
    expected = table(_written(tmp_path / "a.csv", CSV), shot=2, query=2).prepared()
    for name, text in (("b.csv", CSV.replace(",", ";")), ("c.tsv", CSV.replace(",", "\t")), ("d.csv", "\ufeff" + CSV)):
        assert table(_written(tmp_path / name, text), shot=2, query=2).prepared().scale == expected.scale


def test_a_decimal_comma_is_read_where_columns_have_another_delimiter(tmp_path: Path) -> None:
    rows = [f"g{group};{value + 0.5};{-value}e0" for group in range(6) for value in range(4)]
    points = "\n".join(["group;x;y", *rows])
    expected = table(_written(tmp_path / "points.csv", points), shot=2, query=2).prepared()
    path = _written(tmp_path / "commas.csv", points.replace(".", ","))
    assert table(path, shot=2, query=2).prepared().scale == expected.scale
    assert check(str(path), Roles())["columns"]["x"] == "numbers, 4 different"
    mixed = _written(tmp_path / "mixed.csv", points.replace("2.5", "2,5"))
    with pytest.raises(FewsureError, match=r"one decimal sign in column `x`, but row 3 has '2,5' and row 1 has '0\.5'"):
        table(mixed, shot=2, query=2).prepared()
    thousands = _written(tmp_path / "thousands.csv", CSV.replace("1", '"1,234"', 1))
    with pytest.raises(FewsureError, match="has '1,234'"):
        table(thousands, shot=2, query=2).prepared()


def _written(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def test_parquet_is_read_as_csv_is(tmp_path: Path) -> None:
    arrow_csv = pytest.importorskip("pyarrow.csv", reason="pyarrow is not installed (requirements.lock)")
    parquet = pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "my.parquet"
    parquet.write_table(arrow_csv.read_csv(_written(tmp_path / "my.csv", CSV)), path)
    found, expected = (table(file, shot=2, query=2).prepared().scale for file in (path, tmp_path / "my.csv"))
    assert found == expected
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(FewsureError, match=r"my.parquet cannot be read as Parquet .*; write it again"):
        table(path, shot=2, query=2).prepared()


def test_parquet_says_what_it_needs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    (tmp_path / "my.parquet").touch()
    with pytest.raises(FewsureError, match="needs pyarrow: run `pip install pyarrow`, or save the table as CSV"):
        table(tmp_path / "my.parquet").prepared()


def test_wrong_image_folders_are_refused_with_what_to_do(
    photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(
        FewsureError,
        match=r"expected class folders of PNG, .* name another folder with --fol",
    ):
        Images(folder=str(tmp_path / "empty")).prepared()
    with pytest.raises(FewsureError, match=r"expected `folder` to be a folder .*, but nowhere is neither here nor in "):
        Images(folder="nowhere").prepared()
    assert main(["train", "maml", "--data", str(photos)]) == 2
    assert f"is a path; give --data images --folder {photos}\n" in capsys.readouterr().err
    assert main(["data", "check", str(tmp_path / "empty")]) == 2
    assert "supported are PNG, JPEG, WebP, BMP or TIFF files" in capsys.readouterr().err
    assert main(["data", "check", str(photos), "--label", "species"]) == 2
    assert "expected --label with a table, but" in capsys.readouterr().err
    assert main(["data", "check", "nothere.csv"]) == 2
    assert "but there is no 'nothere.csv'" in capsys.readouterr().err
    with pytest.raises(FewsureError, match="`image_size` to be from 16 to 1024 pixels, but got 8"):
        Images(folder=str(photos), image_size=8)
    training = Images(folder=str(photos), image_size=16).pool("train").classes[0]
    for name in ("broken.png", "broken too.png", "broken as well.png"):  # more than 5 %
        (photos / training / name).write_bytes(b"no image")
    with pytest.raises(FewsureError, match=r"broken.*png to be a PNG, .* image, but it cannot be decoded"):
        Images(folder=str(photos), image_size=16).prepared()
    for folder in sorted(photos.iterdir())[2:]:
        for file in folder.iterdir():
            file.unlink()
    with pytest.raises(
        FewsureError, match="expected 3 classes or more, to train, validate and test on different ones, but got 2"
    ):
        Images(folder=str(photos)).prepared()


@pytest.mark.parametrize("noise_std", [0.0, 1e308, "x"])
def test_learned_noise_that_cannot_be_is_refused_with_its_file(tmp_path: Path, noise_std: object) -> None:
    run = start_run(tmp_path / "run", load_preset("recommended", "maml", "sine-line"), resume=False)
    (run.folder / "fitted.json").write_text(json.dumps({"5": {"noise_std": noise_std}}))
    with pytest.raises(FewsureError, match=r"fitted.json is damaged .*; delete it, and it is made again"):
        run.fitted(["noise_std"])
