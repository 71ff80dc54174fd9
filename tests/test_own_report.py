"""The report of a user's own data: groups, numbers of examples, intervals and baselines, and nothing of the paper."""

import csv
import json
from pathlib import Path

import pytest
import torch

from fewsure.cli.main import main
from fewsure.evaluation.calibrate import calibrated
from fewsure.evaluation.evaluate import evaluate
from fewsure.report.own_data import TASKS
from fewsure.training.runs import Run

from .test_baselines import train, write_lines

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report of a small MAML run."""
    folder = tmp_path_factory.mktemp("own-report")
    small = ("--updates", "3", "--tasks", "2", "--hidden", "6", "--shot", "3")
    run = train("maml", write_lines(folder / "lines.csv"), folder / "run", *small)
    assert main(["report", str(run), "--tasks", "60", "--out", str(folder / "report.html"), "--device", "cpu"]) == 0
    return folder


def rows(folder: Path, figure: str) -> list[dict[str, str]]:
    (file,) = (folder / "report_files").glob(f"{figure}_*.csv")
    with file.open(encoding="utf-8", newline="") as lines:
        return list(csv.DictReader(lines))


def test_the_best_the_median_and_the_worst_group_are_drawn_in_the_users_unit(folder: Path) -> None:
    result = json.loads((folder / "run" / "evaluation.json").read_text())
    names = [group["group"] for group in result["by_group"]]
    drawn = rows(folder, "groups")
    places = {row["place"]: row["group"] for row in drawn}
    assert places == {"best": names[-1], "median": names[len(names) // 2], "worst": names[0]}
    with (folder / "lines.csv").open(newline="") as lines:
        table = [(row["person"], float(row["y"])) for row in csv.DictReader(lines)]
    for row in drawn:
        assert min(abs(float(row["observed"]) - y) for name, y in table if name == row["group"]) < 1e-4
        assert float(row["low"]) < float(row["predicted"]) < float(row["high"])
    assert len(drawn) == 3 * (12 - 3)  # all rows that are not known


def test_the_error_by_the_number_of_examples_is_that_of_evaluations(folder: Path) -> None:
    found = {(row["method"], int(row["examples"])): float(row["score"]) for row in rows(folder, "shots")}
    run = Run.open(folder / "run")
    best = json.loads((folder / "run" / "evaluation.json").read_text())["best_baseline"]
    assert {method for method, _ in found} == {"MAML", f"{best} (baseline)"}
    meta, experiment = run.load(CPU).meta, calibrated(run, CPU)
    for shot in (1, 5):
        summary, _ = evaluate(experiment.with_shot(shot), meta, tasks=TASKS, seed=0)
        assert found["MAML", shot] == pytest.approx(summary["mae"]["mean"])
    assert found[f"{best} (baseline)", 5] < found["MAML", 5]


def test_intervals_and_baselines_stand_on_the_page_and_the_paper_does_not(folder: Path) -> None:
    result = json.loads((folder / "run" / "evaluation.json").read_text())
    covered = {row["group"]: float(row["coverage_90"]) for row in rows(folder, "coverage")}
    assert covered == {group["group"]: group["coverage_90"] for group in result["by_group"]}
    page = (folder / "report.html").read_text(encoding="utf-8")
    assert "paper" not in page.split("</style>")[1].split("<script>")[0]
    for row in result["baselines"]:
        assert f"{row['name']} (baseline)" in page
    assert "MAML is worse than the best baseline" in page
    assert f"intervals hold {result['coverage_90']['mean']:.0%} of the values" in page
    assert "Training sees targets at a spread of 1." in page
    assert "Intervals: over 9 groups (person)" in page
