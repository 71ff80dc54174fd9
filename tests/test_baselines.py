"""Baselines of a user's own data: fitted to the training groups, scored on a run's tasks, and compared with it."""

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fewsure.algorithms import ALGORITHMS
from fewsure.cli.main import main
from fewsure.data.own.arrays import own_tasks
from fewsure.data.own.images import OwnConv4Options
from fewsure.evaluation.metrics.paired import PairedScores
from fewsure.evaluation.scoring.observed import SCORES
from fewsure.pipeline import evaluate_run, start_run, train_run
from fewsure.report.evaluation_tables import baseline_notes
from fewsure.selection.baselines import FOLDER, baselines_of, fitted, with_baselines
from fewsure.training.experiment import load_preset
from fewsure.training.runs import Run

CPU = torch.device("cpu")
REGRESSION = [name for name, kind in ALGORITHMS.items() if kind.baseline and "regression" in kind.kinds]


def write_lines(file: Path) -> Path:
    """30 groups of 12 rows around lines that differ in slope and height."""
    random = np.random.default_rng(0)
    rows = ["person,x,y"]
    for person in range(30):
        slope, height = random.normal(size=2)
        rows += [f"p{person},{x},{slope * x + height + 0.1 * random.normal()}" for x in random.uniform(-2, 2, 12)]
    file.write_text("\n".join(rows))
    return file


def train(method: str, file: Path, out: Path, *options: str) -> Path:
    columns = ["--data", "table", "--file", str(file), "--task-column", "person", "--target", "y", "--query", "6"]
    assert main(["train", method, *columns, "--device", "cpu", "--out", str(out), *options]) == 0
    return out


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("baselines")
    small = ("--updates", "3", "--tasks", "2", "--hidden", "6")
    return train("maml", write_lines(folder / "lines.csv"), folder / "maml", *small)


def evaluated(run: Path, capsys: pytest.CaptureFixture[str], *options: str) -> dict[str, Any]:
    capsys.readouterr()
    assert main(["evaluate", str(run), "--tasks", "60", "--device", "cpu", "--json", *options]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def pair(ours: Sequence[Any], theirs: Sequence[Any]) -> dict[str, Any]:
    scores = PairedScores()
    for one, other in zip(ours, theirs, strict=True):
        assert one["fingerprint"].equal(other["fingerprint"])  # the same tasks
        scores.add(one["nll"], other["nll"], one["groups"])
    return dict(scores.test())


def test_every_baseline_is_scored_on_the_same_tasks_by_the_same_scorer(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    summary = evaluated(run, capsys)
    rows = {row["name"]: row for row in summary["baselines"]}
    assert list(rows) == REGRESSION
    assert all({*SCORES, "rmse", "ece", "seconds"} <= row.keys() for row in rows.values())
    best = summary["best_baseline"]
    assert rows[best]["nll"]["mean"] == min(row["nll"]["mean"] for row in rows.values())
    ours, theirs = Run.open(run), Run.open(run / FOLDER / best)
    expected = pair(list(ours.evaluated_tasks()), list(theirs.evaluated_tasks()))
    assert summary["against_best"]["nll"]["difference"] == expected["difference"]
    assert summary["against_best"]["beats"] is False
    alone = evaluate_run(theirs, CPU, tasks=60, seed=0)
    assert alone["nll"] == rows[best]["nll"]
    assert main(["evaluate", str(run), "--tasks", "60"]) == 0
    text = capsys.readouterr().out
    assert f"{best} (baseline)" in text
    assert f"maml is worse than the best baseline, {best}: NLL +" in text
    assert f"try `fewsure train {best}` on this data" in text


def test_they_are_fitted_once_and_left_out_when_asked(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = evaluated(run, capsys)
    checkpoints = sorted(run.glob(f"{FOLDER}/*/checkpoint.safetensors"))
    before = [path.stat().st_mtime_ns for path in checkpoints]
    assert len(before) == len(REGRESSION)
    second = evaluated(run, capsys)
    assert [path.stat().st_mtime_ns for path in checkpoints] == before
    without_time = [
        [{k: v for k, v in row.items() if k != "seconds"} for row in s["baselines"]] for s in (first, second)
    ]
    assert without_time[0] == without_time[1]
    assert not {"baselines", "best_baseline", "against_best"} & evaluated(run, capsys, "--no-baselines").keys()


def test_baselines_of_other_options_or_data_are_fitted_anew(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    evaluated(run, capsys)
    config = run / FOLDER / "ridge" / "config.json"
    record = json.loads(config.read_text())
    record["data"]["shot"] = 2
    config.write_text(json.dumps(record))
    assert evaluated(run, capsys)["baselines"]
    assert json.loads(config.read_text())["data"]["shot"] != 2


def test_a_run_that_wins_says_so_and_a_baseline_is_compared_with_the_others(run: Path, tmp_path: Path) -> None:
    file = run.parent / "lines.csv"
    ridge = Run.open(train("ridge", file, tmp_path / "ridge"))
    assert "ridge" not in map(str, baselines_of(ridge))
    summary = with_baselines(ridge, evaluate_run(ridge, CPU, tasks=60, seed=0), CPU)
    assert {row["name"] for row in summary["baselines"]} == set(REGRESSION) - {"ridge"}
    won = summary | {"against_best": {**summary["against_best"], "beats": True}}
    assert baseline_notes(won)[0].startswith(f"ridge beats the best baseline, {summary['best_baseline']}: NLL ")


def test_a_baseline_that_cannot_be_fitted_says_why(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from fewsure.algorithms.linear import Ridge
    from fewsure.errors import FewsureError

    def refuse(*arguments: Any) -> Any:
        raise FewsureError("no reason")

    monkeypatch.setattr(Ridge, "adapt", refuse)
    opened = Run.open(run)
    summary = with_baselines(opened, evaluate_run(opened, CPU, tasks=40, seed=7), CPU)
    assert {"name": "ridge", "reason": "no reason"} in summary["baselines"]
    assert "no ridge: no reason" in baseline_notes(summary)


def test_named_data_sets_have_no_baselines(tmp_path: Path) -> None:
    run = start_run(tmp_path / "run", load_preset("quickstart", "mean", "sine-line"), resume=False)
    train_run(run, CPU)
    summary = evaluate_run(run, CPU, tasks=20, seed=0)
    assert with_baselines(run, summary, CPU) == summary


def test_images_have_baselines_on_pixels_and_on_colours_of_the_same_examples(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    photos = {}
    for kind in range(12):  # classes differ in colour alone
        colour = random.integers(0, 255, size=(1, 3, 1, 1))
        noise = random.integers(-20, 20, size=(6, 3, 16, 16))
        photos[f"kind {kind:02}"] = (colour + noise).clip(0, 255).astype(np.uint8)
    data = own_tasks(photos, way=2, shot=1, query=4)
    experiment = dataclasses.replace(load_preset("recommended", "protonet", "given-images"), data=data)
    training = dataclasses.replace(experiment.training, updates=1, tasks=2)
    small = dataclasses.replace(experiment, network=OwnConv4Options(filters=2), training=training)
    run = start_run(tmp_path / "run", small, resume=False)
    train_run(run, CPU)
    summary = with_baselines(run, evaluate_run(run, CPU, tasks=20, seed=0), CPU)
    names = [row["name"] for row in summary["baselines"]]
    assert {"simpleshot on pixels", "simpleshot on colours", "logistic on colours"} <= set(names)
    assert not any("reason" in row for row in summary["baselines"])
    accuracy = {row["name"]: row["accuracy"]["mean"] for row in summary["baselines"]}
    assert accuracy["logistic on colours"] > 0.9
    for view in ("pixels", "colours"):
        (found,) = [fitted(run, one, CPU) for one in baselines_of(run) if str(one) == f"simpleshot on {view}"]
        assert found.evaluation_records()["classes"].equal(run.evaluation_records()["classes"])
