"""`fewsure compare`: the same tasks or none."""

import json
from pathlib import Path

import pytest
import scipy.stats

from fewsure.cli.main import main
from fewsure.evaluation.compare import compare_runs
from fewsure.training.experiment import load_preset
from fewsure.training.runs import Run

from .helpers import write_blobs

TASKS = "30"


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two evaluated runs on the same blobs, and one that has not been evaluated."""
    folder = tmp_path_factory.mktemp("compare")
    blobs = str(write_blobs(folder / "blobs"))
    runs = [folder / name for name in ("protonet", "maml", "fresh")]
    for run, algorithm in zip(runs, ("protonet", "maml", "maml"), strict=True):
        options = ["--data", "features", "--folder", blobs, "--query", "4", "--hidden", "8", "--train-query", "4"]
        options += ["--train-way", "5"] if algorithm == "protonet" else []
        assert main(["train", algorithm, *options, "--updates", "3", "--out", str(run), "--json"]) == 0
    for run in runs[:2]:
        assert main(["evaluate", str(run), "--tasks", TASKS, "--json"]) == 0
    return runs


def test_it_is_a_paired_test_over_the_same_tasks(runs: list[Path], capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert main(["compare", str(runs[0]), str(runs[1]), "--json"]) == 0
    (record,) = json.loads(capsys.readouterr().out)
    assert record["tasks"] == 30
    assert set(record["tests"]) == {"accuracy", "nll", "brier"}
    first, second = (Run.open(run).evaluation_records() for run in runs[:2])
    for score, test in record["tests"].items():
        expected = scipy.stats.ttest_rel(first[score].double(), second[score].double())
        assert test["t"] == pytest.approx(expected.statistic)
        assert test["p_value"] == pytest.approx(expected.pvalue)
        assert test["significant"] == (expected.pvalue < 0.05)


def test_the_table_names_the_better_run(runs: list[Path], capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert main(["compare", str(runs[0]), str(runs[1])]) == 0
    text = capsys.readouterr().out
    assert "30 tasks, paired" in text
    better = [line for line in text.splitlines() if "is better" in line or "no significant" in line]
    assert len(better) == 3


def test_a_run_does_not_differ_from_itself(runs: list[Path]) -> None:
    (compared,) = compare_runs([Run.open(runs[0]), Run.open(runs[0])])
    assert all(test["p_value"] == 1 for test in compared.tests.values())


def test_runs_on_other_tasks_are_refused(runs: list[Path], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["evaluate", str(runs[2]), "--tasks", "20", "--json"]) == 0
    for arguments, said in (
        ([runs[0]], "expected two runs or more to compare, but got 1"),
        ([runs[0], runs[2]], "`tasks` is 30"),
    ):
        capsys.readouterr()
        assert main(["compare", *map(str, arguments)]) == 2
        assert said in capsys.readouterr().err


def test_a_run_without_an_evaluation_is_named(runs: list[Path], tmp_path: Path) -> None:
    from fewsure.errors import FewsureError

    fresh = Run.create(tmp_path / "fresh", Run.open(runs[0]).experiment)
    with pytest.raises(FewsureError, match="fresh has not been evaluated"):
        compare_runs([Run.open(runs[0]), fresh])


@pytest.mark.parametrize("preset", ["quickstart", "recommended"])
def test_presets_of_sine_line_are_judged_on_the_same_tasks(preset: str) -> None:
    judged = {
        load_preset(preset, method, "sine-line").data.query for method in ("simpa-latent", "maml", "tnp", "pacoh")
    }
    assert len(judged) == 1
