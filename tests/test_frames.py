"""DataFrames of pandas and pyarrow: what goes in by name comes back with the same index."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fewsure
from fewsure import FewsureError, Learner, Table, TableClasses

pd = pytest.importorskip("pandas")
pa = pytest.importorskip("pyarrow")
ROLES = {"task_column": "subject", "target": "score"}
SMALL: dict[str, Any] = {"hidden": (6,), "tasks": 2, "device": "cpu"}


def people(subjects: int = 12, each: int = 20) -> Any:
    """Lines through age and treatment, with a slope for each subject."""
    random = np.random.default_rng(0)
    subject = np.repeat([f"s{number}" for number in range(subjects)], each)
    age, treated = random.uniform(20, 80, len(subject)), random.random(len(subject)) < 0.5
    slope = np.repeat(random.normal(size=subjects), each)
    return pd.DataFrame({"subject": subject, "age": age, "treated": treated, "score": slope * age + 5 * treated})


@pytest.fixture(scope="module")
def learner(tmp_path_factory: pytest.TempPathFactory) -> Learner:
    made = Learner("ridge", data=people(), **ROLES, device="cpu").train(quiet=True)
    made.save(tmp_path_factory.mktemp("frames") / "run")
    return made


def test_a_frame_is_the_table_that_a_file_is(tmp_path: Path) -> None:
    frame = people()
    frame.astype({"treated": int}).to_csv(tmp_path / "people.csv", index=False)
    frame.to_parquet(tmp_path / "people.parquet")
    expected = Table(file=str(tmp_path / "people.csv"), **ROLES).prepared()
    others = [Table(data=frame, **ROLES), Table(data=pa.Table.from_pandas(frame), **ROLES)]
    for other in [*others, Table(file=str(tmp_path / "people.parquet"), **ROLES)]:
        assert other.prepared().scale == expected.scale
        assert other.pool("test").classes == expected.pool("test").classes
    assert Learner("ridge", data=frame, **ROLES, shot=3).experiment.data.shot == 3


def test_known_rows_go_in_and_predictions_come_back_with_their_index(learner: Learner) -> None:
    rows = people().query("subject == 's3'").drop(columns="subject")
    rows.index = [f"row {number}" for number in range(len(rows))]
    known, new = rows[:5], rows[5:].drop(columns="score")
    p = learner.adapt(known).predict(new)
    assert isinstance(p.mean, pd.Series)
    assert list(p.mean.index) == list(new.index)
    plain = learner.adapt(known[["age", "treated"]].to_numpy(float), known["score"].to_numpy())
    arrays = plain.predict(new[["age", "treated"]].to_numpy(float))
    assert np.array_equal(p.mean.to_numpy(), arrays.mean)
    assert np.array_equal(p.quantile(0.9).to_numpy(), arrays.quantile(0.9))
    assert p.samples.shape[1] == 15

    reordered = new[["treated", "age"]].assign(more="text")
    assert learner.adapt(known.drop(columns="score"), known["score"]).predict(reordered).mean.equals(p.mean)
    columns = learner.adapt(pa.Table.from_pandas(known)).predict(pa.Table.from_pandas(new))
    assert isinstance(columns.mean, pa.ChunkedArray)
    assert columns.mean.to_pylist() == p.mean.to_list()


def test_intervals_come_out_where_pandas_goes_in() -> None:
    frame = people(subjects=60, each=12).assign(score=lambda rows: rows.score + np.sin(rows.age))
    learner = Learner("ridge", data=frame, **ROLES, shot=4, query=8, device="cpu").train(quiet=True)
    learner.certify(quiet=True)
    rows = frame[frame.subject == "s0"]
    p = learner.adapt(rows[:4]).predict(rows[4:], coverage=0.9)
    assert list(p.lower.index) == list(rows[4:].index)
    assert ((p.lower < p.mean) & (p.mean < p.upper)).all()


def test_classes_come_back_as_they_were(tmp_path: Path) -> None:
    random = np.random.default_rng(1)
    label = np.repeat(np.arange(15), 8)
    frame = pd.DataFrame({"a": label + random.normal(size=120), "b": random.normal(size=120), "kind": label})
    learner = Learner("protonet", data=frame, label="kind", way=2, shot=2, query=3, softmax_temperature=1.0, **SMALL)
    assert isinstance(learner.experiment.data, TableClasses)
    p = learner.train(updates=2, quiet=True).adapt(pd.concat([frame[16:24:2], frame[40:44]])).predict(frame[:3])
    assert set(p.label) <= {2, 5}
    assert list(p.label.index) == [0, 1, 2]
    assert isinstance(p.confidence, pd.Series)


def test_a_run_is_loaded_with_its_frame_and_predicts_without(learner: Learner) -> None:
    loaded = fewsure.load(learner.folder, device="cpu")
    known = people()[:5]
    assert loaded.adapt(known).predict(known).mean.equals(learner.adapt(known).predict(known).mean)
    with pytest.raises(FewsureError, match="in Python give a DataFrame as `data`"):
        loaded.evaluate(tasks=2, quiet=True)
    scores = fewsure.load(learner.folder, data=people(), device="cpu").evaluate(tasks=4, quiet=True)
    assert scores["mse"] == learner.evaluate(tasks=4, quiet=True)["mse"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda frame: frame.rename(columns={"age": "years"}),
            "the columns age, treated, as in training, but `age` is",
        ),
        (lambda frame: frame.assign(age="old"), "numbers in column `age`, but it has text, for instance 'old'"),
        (lambda frame: frame.assign(age=[None, 2.0, 3.0, 4.0, 5.0]), "column `age`, but row 1 is empty; fill it in"),
        (lambda frame: frame.drop(columns="score"), "expected a column `score` with the known values"),
        (lambda frame: frame[:0], "expected rows in the table given, but it has none"),
        (lambda frame: frame.rename(columns={"age": 1}), "columns with names of text"),
        (lambda frame: pd.concat([frame, frame], axis=1), "column names of the table given to differ"),
        (lambda frame: frame.to_numpy(), "expected `y`, a number or a label for each example"),
    ],
)
def test_wrong_frames_are_refused(learner: Learner, change: Any, message: str) -> None:
    with pytest.raises(FewsureError, match=message):
        learner.adapt(change(people()[:5]))
