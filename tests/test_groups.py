"""Many groups at a time: the numbers of `adapt`, group by group, from frames and from files, on every engine."""

import csv
import json
import os
import signal
import threading
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fewsure import FewsureError, Learner, load
from fewsure.cli.main import main
from fewsure.data.io.table_files import read_blocks
from fewsure.learner import group_files, groups
from fewsure.learner.group_files import GroupFiles

pd = pytest.importorskip("pandas")
pl = pytest.importorskip("polars")
pa = pytest.importorskip("pyarrow")
ROLES = {"task_column": "shop", "target": "sales"}


def shops(number: int, seed: int = 0, least: int = 12, most: int = 13) -> Any:
    """Lines of each shop, and a sine of all."""
    random = np.random.default_rng(seed)
    sizes = random.integers(least, most, number)
    shop = np.repeat([f"{'new ' * seed}shop {one}" for one in range(number)], sizes)
    x = random.normal(size=(len(shop), 2))
    slopes = np.repeat(random.normal(size=(number, 2)), sizes, axis=0)
    sales = (slopes * x).sum(1) + np.sin(x[:, 0]) + 0.1 * random.normal(size=len(shop))
    return pd.DataFrame({"shop": shop, "price": x[:, 0], "kind": np.where(x[:, 1] > 0, "big", "small"), "sales": sales})


def parts(frame: Any, known: int | None = None) -> tuple[Any, Any]:
    """The known rows of each group, `known` or all but 1 to 3, and the others, in any order."""
    place = frame.groupby(frame.columns[0]).cumcount()
    size = frame.groupby(frame.columns[0])[frame.columns[0]].transform("size")
    first = place < (size - 1 - size % 3 if known is None else known)
    return frame[first].sample(frac=1, random_state=0), frame[~first].sample(frac=1, random_state=1)


def one_by_one(learner: Learner, known: Any, new: Any, column: str, **how: Any) -> Any:
    found = []
    for name in new[column].unique():
        rows = new[new[column] == name]
        p = learner.adapt(known[known[column] == name]).predict(rows, **how)
        found.append(pd.DataFrame(p.columns(), index=rows.index))
        if hasattr(p, "label"):
            found[-1].insert(0, "label", p.label)
    return pd.concat(found).loc[new.index]


def agree(found: Any, expected: Any) -> None:
    assert list(found.index) == list(expected.index)
    for name, values in expected.items():
        if values.dtype.kind == "f":
            np.testing.assert_allclose(found[name].to_numpy(float), values.to_numpy(float), rtol=1e-4, atol=1e-5)
        else:
            assert found[name].tolist() == values.tolist()


@pytest.fixture(scope="module")
def learner(tmp_path_factory: pytest.TempPathFactory) -> Learner:
    made = Learner("gp", data=shops(60), **ROLES, shot=4, query=8, device="cpu").train(quiet=True)
    made.certify(quiet=True)
    made.save(tmp_path_factory.mktemp("groups") / "run")
    return made


@pytest.mark.parametrize(
    ("method", "options"),
    [
        ("gp", {}),
        ("ridge", {}),
        ("boosting", {}),
        ("tnp", {"encoder_width": 8, "encoder_layers": 1}),
        ("simpa-latent", {"latent": 2, "generator_hidden": (6,), "encoder_width": 8}),
        ("maml", {}),
        ("bmaml", {"particles": 2}),
    ],
)
def test_the_numbers_are_those_of_adapt_whatever_the_sizes(method: str, options: dict[str, Any]) -> None:
    trained = {} if method in ("gp", "ridge", "boosting") else {"hidden": (6,), "tasks": 2, **options}
    learner = Learner(method, data=shops(30), **ROLES, shot=(3, 4), query=5, device="cpu", **trained)
    learner.train(updates=2 if trained else None, quiet=True)
    known, new = parts(shops(14, seed=1, least=5, most=12))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of other numbers of examples than in training
        agree(learner.predict_groups(known, new, quiet=True), one_by_one(learner, known, new, "shop"))


def test_neither_order_nor_batches_nor_other_groups_matter(learner: Learner, monkeypatch: pytest.MonkeyPatch) -> None:
    known, new = parts(shops(20, seed=1, least=5, most=12))
    whole = learner.predict_groups(known, new, quiet=True)
    monkeypatch.setattr(groups, "BATCH_ROWS", 8)
    agree(learner.predict_groups(known[::-1], new, quiet=True), whole)
    some = new[new.shop.isin(["new shop 3", "new shop 7"])]
    agree(learner.predict_groups(known, some, quiet=True), whole.loc[some.index])


def test_a_group_without_known_rows_is_predicted_by_what_all_have_in_common(learner: Learner) -> None:
    known, new = parts(shops(3, seed=1))
    nothing_known = learner.predict_groups(known[:0], new, quiet=True)
    expected = learner.adapt(np.empty((0, 3)), np.empty(0)).predict(new)
    np.testing.assert_allclose(nothing_known["mean"], expected.mean, rtol=1e-5, atol=1e-6)
    assert learner.predict_groups(known, new[:0], quiet=True).columns.tolist() == nothing_known.columns.tolist()


def test_every_library_gets_back_its_own(learner: Learner) -> None:
    known, new = parts(shops(5, seed=1))
    expected = learner.predict_groups(known, new, quiet=True)
    polars = learner.predict_groups(pl.from_pandas(known), pl.from_pandas(new), quiet=True)
    assert isinstance(polars, pl.DataFrame)
    assert polars.to_dict(as_series=False) == expected.to_dict("list")
    arrow = learner.predict_groups(pa.Table.from_pandas(known), pa.Table.from_pandas(new), quiet=True)
    assert isinstance(arrow, pa.Table)
    assert arrow.to_pydict() == expected.to_dict("list")


@pytest.mark.parametrize("known", [4, 6])
def test_coverage_is_that_of_a_task_adapted_to_the_certified_number(learner: Learner, known: int) -> None:
    frames = parts(shops(6, seed=1), known)
    found = learner.predict_groups(*frames, coverage=0.8, quiet=True)
    agree(found, one_by_one(learner, *frames, "shop", coverage=0.8))
    assert list(found) == ["shop", "mean", "std", "function_std", "lower", "upper"]


def species(groups: int, each: int = 8, way: int = 3) -> Any:
    """Blobs of three kinds in each group, which have names of their own."""
    random = np.random.default_rng(2)
    centres = np.repeat(4 * random.normal(size=(groups * way, 2)), each, axis=0)
    names = [f"kind {(number * 7) % 10}-{number}" for number in range(groups * way)]
    frame = pd.DataFrame({"site": np.repeat([f"site {one}" for one in range(groups)], way * each)})
    return frame.assign(a=0.0, b=0.0, kind=np.repeat(names, each)).assign(
        a=centres[:, 0] + random.normal(size=len(frame)), b=centres[:, 1] + random.normal(size=len(frame))
    )


@pytest.mark.parametrize("method", ["protonet", "ridge", "maml"])
def test_classes_of_each_group_come_back_by_their_names(method: str) -> None:
    data = {"label": "kind", "task_column": "site", "way": 3, "shot": 2, "query": 4, "device": "cpu"}
    more = {} if method == "ridge" else {"hidden": (6,), "tasks": 2}
    learner = Learner(method, data=species(24), **data, **more)
    learner.train(updates=None if method == "ridge" else 2, quiet=True)
    learner.certify(quiet=True)
    frame = species(10).groupby(["site", "kind"]).sample(frac=0.9, random_state=0)
    of_kind = frame.groupby(["site", "kind"]).cumcount()
    known, new = frame[of_kind < 3].sample(frac=1, random_state=0), frame[of_kind >= 3].sample(frac=1, random_state=0)
    agree(learner.predict_groups(known, new, quiet=True), one_by_one(learner, known, new, "site"))
    one = new[new.site == "site 4"]
    expected = learner.adapt(known[known.site == "site 4"]).predict(one, coverage=0.9).sets
    found = learner.predict_groups(known, one, coverage=0.9, quiet=True)
    assert found["set"].tolist() == ["|".join(labels) for labels in expected]


def test_fixed_classes_have_probabilities() -> None:
    random = np.random.default_rng(0)
    frame = pd.DataFrame({"ward": np.repeat([f"w{n}" for n in range(30)], 20), "age": random.normal(size=600)})
    frame["ill"] = frame["age"] + random.normal(size=600) > 0
    options = {"label": "ill", "task_column": "ward", "fixed_classes": True, "shot": 4, "query": 8}
    learner = Learner("ridge", data=frame, **options, device="cpu").train(quiet=True)
    known, new = parts(frame[:100], 4)
    found = learner.predict_groups(known, new, quiet=True)
    agree(found.drop(columns=["p(0)", "p(1)"]), one_by_one(learner, known, new, "ward"))
    np.testing.assert_allclose(found["p(0)"] + found["p(1)"], 1)


def read(path: Path) -> list[dict[str, Any]]:
    if path.suffix == ".parquet":
        return pd.read_parquet(path).to_dict("records")
    text = path.read_text()
    return json.loads(text) if path.suffix == ".json" else list(csv.DictReader(text.splitlines()))


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Any, Any, Path]:
    """Frames, their files in tmp_path, and small buckets."""
    known, new = parts(shops(40, seed=1, least=5, most=12))
    known.to_csv(tmp_path / "known.csv", index=False)
    new.drop(columns="sales").to_csv(tmp_path / "new.csv", index=False)
    known.to_parquet(tmp_path / "known.parquet", row_group_size=50)
    new.drop(columns="sales").to_parquet(tmp_path / "new.parquet", row_group_size=20)
    monkeypatch.setattr(group_files, "BUCKET_BYTES", 3000)
    monkeypatch.setattr(group_files, "BLOCK_ROWS", 16)
    return known, new, tmp_path


@pytest.mark.parametrize(("source", "target"), [("csv", "csv"), ("csv", "json"), ("parquet", "parquet")])
def test_files_have_the_numbers_of_frames(learner: Learner, files: Any, source: str, target: str) -> None:
    known, new, folder = files
    out = folder / f"out.{target}"
    command = ["predict", str(learner.folder), "--support", str(folder / f"known.{source}")]
    command += ["--query", str(folder / f"new.{source}"), "--group-column", "shop", "--out", str(out)]
    assert main([*command, "--device", "cpu"]) == 0
    found, expected = read(out), learner.predict_groups(known, new, quiet=True)
    assert [int(row["row"]) for row in found] == list(range(1, len(new) + 1))
    assert [row["shop"] for row in found] == new.shop.tolist()
    for name in ("mean", "std", "quantile_95"):
        np.testing.assert_allclose([float(row[name]) for row in found], expected[name], rtol=1e-4, atol=1e-5)
    assert not (folder / f"out.{target}.partial").exists()


def test_an_interrupted_prediction_goes_on_and_ends_in_the_same_bytes(
    learner: Learner, files: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, _, folder = files
    paths, out = (folder / "known.csv", folder / "new.csv"), folder / "out.csv"
    rows = learner.predict_groups(*paths, out=folder / "whole.csv", quiet=True)
    predict, done = GroupFiles.predict, []

    def stops(self: GroupFiles, known: Any, new: Any) -> Any:
        done.append(1)
        if len(done) == 3:
            raise KeyboardInterrupt
        return predict(self, known, new)

    monkeypatch.setattr(GroupFiles, "predict", stops)
    with pytest.raises(KeyboardInterrupt):
        learner.predict_groups(*paths, out=out, quiet=True)
    assert not out.exists()
    with pytest.raises(FewsureError, match="holds the beginning of another prediction; remove it"):
        learner.predict_groups(*paths, out=out, coverage=0.5, quiet=True)
    assert learner.predict_groups(*paths, out=out, quiet=True) == rows
    assert out.read_bytes() == (folder / "whole.csv").read_bytes()
    again = len(done)
    learner.predict_groups(*paths, out=folder / "more.csv", quiet=True)
    assert len(done) - again == again - 1  # one bucket was begun twice, and none predicted twice


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda known, new: (known, new.rename(columns={"price": "cost"})), "as in training, but `price` is missing"),
        (lambda known, new: (known.drop(columns="sales"), new), "expected a column `sales` with what is known"),
        (lambda known, new: (known, new.rename(columns={"shop": "store"})), "group"),
        (lambda known, new: (known.assign(price=np.nan), new), "column `price`, but row 1 is empty"),
        (lambda known, new: (known.to_numpy(), new), "two DataFrames, or two files"),
    ],
)
def test_what_is_wrong_is_one_line(learner: Learner, change: Any, message: str) -> None:
    with pytest.raises(FewsureError, match=message):
        learner.predict_groups(*change(*parts(shops(4, seed=1))), quiet=True)


def test_groups_that_cannot_be_predicted_are_named(tmp_path: Path) -> None:
    learner = Learner("maml", data=shops(30), **ROLES, shot=3, query=5, device="cpu", hidden=(6,), tasks=2)
    learner.train(updates=1, quiet=True)
    known, new = parts(shops(4, seed=1))
    with pytest.raises(FewsureError, match="1 known rows or more of each group for maml, but group 'new shop 2' has 0"):
        learner.predict_groups(known[known.shop != "new shop 2"], new, quiet=True)
    with pytest.raises(FewsureError, match="needs a certified run"):
        learner.predict_groups(known, new, coverage=0.9, quiet=True)
    learner.save(tmp_path / "run")
    known.to_csv(tmp_path / "known.csv", index=False)
    command = ["predict", str(tmp_path / "run"), "--support", str(tmp_path / "known.csv"), "--group-column", "shop"]
    assert main([*command, "--query", str(tmp_path / "known.csv")]) == 2  # no --out


def test_a_parquet_file_is_never_in_memory_as_a_whole(tmp_path: Path) -> None:
    path, values = tmp_path / "large.parquet", np.random.default_rng(0).normal(size=200_000)
    pd.DataFrame(dict.fromkeys("abcd", values)).to_parquet(path, row_group_size=5_000)
    before = pa.total_allocated_bytes()
    held = [pa.total_allocated_bytes() - before for _ in read_blocks(path, 5_000)]
    assert len(held) == 40
    assert max(held) < path.stat().st_size / 4


def alive(text: str) -> list[int]:
    """The processes whose command line starts with a text."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if (process / "cmdline").read_bytes().startswith(text.encode()):
                found.append(int(process.name))
        except OSError:
            continue
    return found


@pytest.mark.slow
def test_a_cluster_of_two_workers_of_which_one_is_killed_gives_the_same_file(learner: Learner, files: Any) -> None:
    ray = pytest.importorskip("ray", reason="the extra fewsure[ray] is not installed")
    _, new, folder = files
    paths = (folder / "known.parquet", folder / "new.parquet")
    learner.predict_groups(*paths, out=folder / "local.parquet", quiet=True)
    expected = pd.read_parquet(folder / "local.parquet")
    before = set(alive("ray::"))
    killed: list[int] = []

    def kill_one() -> None:
        while not killed:
            at_work = [pid for pid in alive("ray::Map") + alive("ray::reduce") if pid not in before]
            for pid in at_work[:1]:
                os.kill(pid, signal.SIGKILL)
                killed.append(pid)
            time.sleep(0.01)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        quiet = {"include_dashboard": False, "logging_level": "error", "log_to_driver": False}
        ray.init(num_cpus=2, object_store_memory=10**8, **quiet)
        try:
            threading.Thread(target=kill_one, daemon=True).start()
            rows = learner.predict_groups(*paths, out=folder / "ray", engine="ray", quiet=True)
        finally:
            ray.shutdown()
    assert killed
    assert rows == len(new)
    found = pd.read_parquet(folder / "ray").sort_values("row", ignore_index=True)
    pd.testing.assert_frame_equal(found, expected)


def test_ray_wants_parquet_and_a_new_folder(learner: Learner, files: Any) -> None:
    pytest.importorskip("ray", reason="the extra fewsure[ray] is not installed")
    _, _, folder = files
    with pytest.raises(FewsureError, match="expected Parquet files with the engine `ray`"):
        learner.predict_groups(folder / "known.csv", folder / "new.csv", out=folder / "x", engine="ray", quiet=True)
    paths = (folder / "known.parquet", folder / "new.parquet")
    with pytest.raises(FewsureError, match="to be a new or empty folder"):
        learner.predict_groups(*paths, out=folder, engine="ray", quiet=True)
    assert load(learner.folder).predict_groups(*parts(shops(2)), quiet=True) is not None
