"""Columns of any type: categories, dates, truth values and missing values become inputs as training saw them."""

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.impute import SimpleImputer
from sklearn.preprocessing import OneHotEncoder

import fewsure
from fewsure import FewsureError, Learner, Table
from fewsure.cli.main import main
from fewsure.data.encoding import encode
from fewsure.data.own.rows import row_splits

pd = pytest.importorskip("pandas")
ROLES = {"task_column": "person", "target": "score"}


def people(persons: int = 15, each: int = 16) -> Any:
    """Persons with a column of each type; colours have effects."""
    random = np.random.default_rng(0)
    size = persons * each
    colour = random.choice(["red", "green", "blue"], size)
    days = random.integers(0, 500, size)
    member, dose = random.random(size) < 0.5, random.normal(size=size)
    score = (colour == "red") * 3.0 + 0.01 * days + member + random.normal(size=size) * 0.1
    return pd.DataFrame(
        {
            "person": np.repeat([f"p{number}" for number in range(persons)], each),
            "colour": colour,
            "seen": pd.to_datetime("2025-01-01") + pd.to_timedelta(days, "D"),
            "member": member,
            "dose": dose,
            "score": score,
        }
    )


def with_gaps(frame: Any) -> Any:
    return frame.assign(dose=frame.dose.where(np.arange(len(frame)) % 5 > 0))


@pytest.fixture(scope="module")
def learner() -> Learner:
    return Learner("ridge", data=with_gaps(people()), **ROLES, missing="impute", device="cpu").train(quiet=True)


def test_columns_are_encoded_as_scikit_learn_does_with_the_training_rows() -> None:
    frame = with_gaps(people())
    rows = Table(data=frame, **ROLES, missing="impute").rows()
    train = row_splits(rows, (0.6, 0.2, 0.2), "tasks") == "train"
    hot = OneHotEncoder(sparse_output=False).fit(frame[["colour"]][train]).transform(frame[["colour"]])
    filled = SimpleImputer(add_indicator=True).fit(frame[["dose"]][train]).transform(frame[["dose"]])
    days = (frame.seen - pd.Timestamp("1970-01-01")).dt.days
    assert rows.columns[:6] == ("colour=blue", "colour=green", "colour=red", "seen", "member", "dose")
    assert rows.columns[6:] == ("dose is missing",)
    assert np.allclose(rows.x, np.column_stack([hot, days, frame.member, filled]))


def test_a_file_and_each_library_give_the_same_inputs(tmp_path: Path) -> None:
    frame = with_gaps(people())
    frame.to_csv(tmp_path / "people.csv", index=False)
    frame.to_csv(tmp_path / "semicolons.csv", index=False, sep=";", decimal=",")
    frame.to_parquet(tmp_path / "people.parquet")
    expected = Table(data=frame, **ROLES, missing="impute").rows()
    polars, arrow = pytest.importorskip("polars"), pytest.importorskip("pyarrow")
    others: list[Any] = [
        polars.from_pandas(frame),
        arrow.Table.from_pandas(frame),
        frame.astype({"colour": "category"}),
    ]
    tables = [Table(data=other, **ROLES, missing="impute") for other in others]
    for name in ("people.csv", "semicolons.csv", "people.parquet"):
        tables.append(Table(file=str(tmp_path / name), **ROLES, missing="impute"))
    for table in tables:
        assert table.rows().encoding == expected.encoding
        assert np.array_equal(table.rows().x, expected.x)


def test_a_category_that_training_never_saw_is_named_and_counts_as_none(learner: Learner) -> None:
    rows = with_gaps(people())[:8]
    adapted = learner.adapt(rows[:4])
    with pytest.warns(UserWarning, match="column `colour` has 'violet', which training never saw"):
        found = adapted.predict(rows[4:].assign(colour=["violet"] * 4)).mean
    table = learner.experiment.data.fitted_scale
    inputs = encode(Table(data=rows, **ROLES).table, table.encoding)[4:]
    inputs[:, :3] = 0
    assert np.array_equal(adapted.predict(inputs).mean, found.to_numpy())
    held_out = people()
    held_out.loc[held_out.person == fewsure_test_person(held_out), "colour"] = "violet"
    doubts = Table(data=held_out, **ROLES).prepared().doubts()
    assert any("has 'violet', which training never saw" in doubt for doubt in doubts)


def fewsure_test_person(frame: Any) -> str:
    """A person of the test split."""
    rows = Table(data=frame, **ROLES).rows()
    return str(rows.held_out[row_splits(rows, (0.6, 0.2, 0.2), "tasks") == "test"][0])


def test_a_run_keeps_its_columns_and_the_command_line_reads_them(
    learner: Learner, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    learner.save(tmp_path / "run")
    rows = with_gaps(people())[:12]
    expected = learner.adapt(rows[:6]).predict(rows[6:]).mean
    assert fewsure.load(tmp_path / "run", device="cpu").adapt(rows[:6]).predict(rows[6:]).mean.equals(expected)
    rows[:6].to_csv(tmp_path / "known.csv", index=False)
    rows[6:].drop(columns="score").to_csv(tmp_path / "new.csv", index=False)
    files = ["--support", str(tmp_path / "known.csv"), "--query", str(tmp_path / "new.csv")]
    assert main(["predict", str(tmp_path / "run"), *files]) == 0
    printed = capsys.readouterr().out.splitlines()[1:]
    assert np.allclose([float(line.split(",")[1]) for line in printed], expected)


def test_missing_values_are_refused_or_imputed_as_chosen(learner: Learner) -> None:
    frame = with_gaps(people())
    with pytest.raises(FewsureError, match="numbers in column `dose`, but row 1 is empty; fill it in"):
        Table(data=frame, **ROLES).rows()
    encoding = learner.experiment.data.fitted_scale.encoding
    absent = encode(Table(data=people().assign(dose=np.nan), **ROLES).table, encoding)
    assert np.array_equal(absent[:, 5:], [[encoding[-1].fill, 1]] * len(absent))
    colourless = Table(data=frame.assign(colour=frame.colour.where(frame.dose.notna())), **ROLES, missing="impute")
    rows_of = colourless.rows()
    assert rows_of.columns[3] == "colour is missing"
    assert np.array_equal(rows_of.x[:, :3].sum(1), 1 - rows_of.x[:, 3])


def test_rows_without_a_target_are_refused_or_left_out_as_chosen() -> None:
    frame = people()
    gone = np.arange(len(frame)) % 7 == 3
    gaps = frame.assign(score=frame.score.where(~gone), dose=frame.dose.where(~gone, 1e9))
    with pytest.raises(FewsureError, match=r"column `score`, but row 4 is empty; .* leave .* with --missing impute"):
        Table(data=gaps, **ROLES).rows()
    found = Table(data=gaps, **ROLES, missing="impute").rows()
    without = Table(data=frame[~gone], **ROLES, missing="impute").rows()
    assert found.encoding == without.encoding  # the rows that are left out have no part in any mean
    for name in ("x", "y", "task"):
        assert np.array_equal(getattr(found, name), getattr(without, name))


def test_whole_numbers_are_categories_where_the_user_says_so() -> None:
    frame = people().assign(ward=lambda rows: np.arange(len(rows)) % 3)
    rows = Table(data=frame, **ROLES, features=("ward",), categories=("ward",)).rows()
    assert rows.columns == ("ward=0", "ward=1", "ward=2")
    assert np.array_equal(rows.x.argmax(1), frame.ward)
    assert Table(data=frame.astype({"ward": "category"}), **ROLES, features=("ward",)).rows().columns == rows.columns


@pytest.mark.parametrize(
    ("change", "options", "message"),
    [
        (
            lambda frame: frame.assign(note=frame.index.astype(str) + "x"),
            {},
            "up to 100 categories in column `note`, but",
        ),
        (
            lambda frame: frame.assign(dose="1").assign(dose=["x", *["1"] * 239]),
            {},
            "`dose`, but row 1 has 'x'; fill it",
        ),
        (
            lambda frame: frame.reset_index(names="Unnamed: 0"),
            {},
            "`Unnamed: 0` is the index of a table that was saved",
        ),
        (lambda frame: frame.reset_index(names=""), {}, "to have columns with names of text"),
        (lambda frame: frame, {"categories": ("size",)}, "expected `categories` to be among the inputs colour, seen"),
        (
            lambda frame: frame.assign(colour=[None, *frame.colour[1:]]),
            {},
            "a name in column `colour`, but row 1 is empty",
        ),
        (lambda frame: frame.assign(score=frame.colour), {}, "numbers in column `score`, but it has text"),
    ],
)
def test_columns_that_are_no_input_are_refused(change: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(FewsureError, match=message):
        Table(data=change(people()), **ROLES, **options).rows()


def test_a_date_of_another_form_is_refused_when_new_rows_have_it(learner: Learner) -> None:
    rows = with_gaps(people())[:8]
    with pytest.raises(FewsureError, match="dates such as 2026-01-31 in column `seen`, but row 1 has 'yesterday'"):
        learner.adapt(rows.assign(seen="yesterday"))


def test_an_index_without_a_name_in_a_file_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    people().to_csv(tmp_path / "people.csv")
    with pytest.raises(FewsureError, match=r"name every column, but got \['', .* with to_csv\(…, index=False\)"):
        Table(file=str(tmp_path / "people.csv"), **ROLES).rows()
    people().to_csv(tmp_path / "people.csv", index=False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert main(["data", "check", str(tmp_path / "people.csv")]) == 0
    assert "seen: dates, " in capsys.readouterr().out
