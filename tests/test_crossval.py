"""`fewsure crossval`: every group is predicted by a learner that has not seen it."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.model_selection import GroupKFold

import fewsure
from fewsure.cli.main import main
from fewsure.core.signals import Stopped
from fewsure.errors import FewsureError
from fewsure.selection import crossval
from fewsure.training.runs import Run

GROUPS = 13


def rows(seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Inputs, targets and the group of each row: lines of one slope, each with a level of its own."""
    random = np.random.default_rng(seed)
    sizes = random.integers(16, 40, GROUPS)
    owner = np.repeat([f"g{number:02}" for number in range(GROUPS)], sizes)
    x = random.uniform(-2, 2, (len(owner), 1))
    level = np.repeat(3 * random.normal(size=GROUPS), sizes)
    return x, level + 1.5 * x[:, 0] + 0.3 * random.normal(size=len(x)), owner


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    x, y, owner = rows()
    file = tmp_path_factory.mktemp("data") / "lines.csv"
    lines = [f"{group},{float(a)!r},{float(b)!r}" for group, (a,), b in zip(owner, x, y, strict=True)]
    file.write_text("\n".join(["group,x,y", *lines]) + "\n")
    return ["--data", "table", "--file", str(file), "--task-column", "group", "--target", "y"]


@pytest.fixture(scope="module")
def result(table: list[str], tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, object]]:
    out = tmp_path_factory.mktemp("runs") / "cv"
    assert main(["crossval", "mixed", *table, "--folds", "4", "--test-tasks", "260", "--out", str(out)]) == 0
    return out, json.loads((out / crossval.FILE).read_text())


def test_folds_are_those_of_group_k_fold(result: tuple[Path, dict[str, object]]) -> None:
    x, _, owner = rows()
    for number, (learned, tested) in enumerate(GroupKFold(4).split(x, groups=owner)):
        data = Run.open(result[0] / f"fold-{number + 1}").experiment.data.prepared()
        assert set(data.pool("test").classes) == set(owner[tested])
        known = {name for split in ("train", "validation") for name in data.pool(split).classes}  # type: ignore[arg-type]
        assert known == set(owner[learned])


def test_scores_are_means_over_all_groups(result: tuple[Path, dict[str, object]]) -> None:
    out, found = result
    assert (found["groups"], found["folds"], found["grouped_by"]) == (GROUPS, 4, "group")
    by_group = {row["group"]: row["mae"] for row in found["by_group"]}  # type: ignore[union-attr,index,call-overload]
    assert len(by_group) == GROUPS
    one = json.loads((out / "fold-2" / "evaluation.json").read_text())
    for row in one["by_group"]:
        assert by_group[row["group"]] == pytest.approx(row["mae"])
    assert found["mae"]["mean"] == pytest.approx(np.mean(list(by_group.values())))  # type: ignore[index,call-overload]
    assert found["mae"]["mean"] < 0.4  # type: ignore[index,call-overload]
    assert found["tasks"] == 4 * 65


def test_baselines_are_scored_on_the_same_tasks(result: tuple[Path, dict[str, object]]) -> None:
    found = result[1]
    names = {row["name"]: row for row in found["baselines"]}  # type: ignore[union-attr,index,call-overload]
    assert set(names) == {"gp", "ridge", "mean", "boosting"}
    assert names["mean"]["mae"]["mean"] > 2 * found["mae"]["mean"]  # type: ignore[index,call-overload]
    assert found["best_baseline"] == min(names, key=lambda name: names[name]["nll"]["mean"])
    difference = found["against_best"]["nll"]["difference"]["mean"]  # type: ignore[index,call-overload]
    best = names[found["best_baseline"]]["nll"]["mean"]  # type: ignore[index]
    assert difference == pytest.approx(found["nll"]["mean"] - best)  # type: ignore[index,call-overload]


def test_an_interrupted_one_goes_on_and_ends_in_the_same_numbers(
    table: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, result: tuple[Path, dict[str, object]]
) -> None:
    train, done = crossval.train_run, []

    def stop_at_the_third(run: Run, device: torch.device) -> object:
        if len(done) == 2:
            raise Stopped(run.folder, 15)
        done.append(run)
        return train(run, device)

    arguments = ["crossval", "mixed", *table, "--folds", "4", "--test-tasks", "260", "--out", str(tmp_path / "cv")]
    monkeypatch.setattr(crossval, "train_run", stop_at_the_third)
    assert main(arguments) == 143
    assert not (tmp_path / "cv" / crossval.FILE).exists()
    monkeypatch.undo()
    assert main(arguments) == 2  # without --resume the folder is not free
    assert main([*arguments, "--resume"]) == 0
    found = json.loads((tmp_path / "cv" / crossval.FILE).read_text())
    for name in ("mae", "nll", "by_group"):
        assert found[name] == result[1][name]


def test_other_folds_are_refused(
    table: list[str], result: tuple[Path, dict[str, object]], capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["crossval", "mixed", *table, "--folds", "5", "--test-tasks", "260", "--out", str(result[0]), "--resume"]
    assert main(options) == 2
    assert "a resumed run keeps its options: `fold` is" in capsys.readouterr().err


def test_one_fold_for_each_group_and_auto_in_python() -> None:
    x, y, owner = rows()
    tasks = [(x[owner == name], y[owner == name]) for name in dict.fromkeys(owner)][:6]
    data = fewsure.regression_tasks(tasks)
    learner = fewsure.Learner(data=data, methods=("mean", "mixed"))
    found = learner.crossval(folds=None, tasks=60, baselines=False, quiet=True)
    assert (found["folds"], found["groups"]) == (6, 6)
    assert {row["algorithm"] for row in found["by_fold"]} == {"mixed"} == {found["algorithm"]}
    assert found["mae"]["mean"] < 0.4
    with pytest.raises(FewsureError, match="from 2 to 6"):
        learner.crossval(folds=7, quiet=True)


def test_a_method_that_auto_selects_in_some_folds_is_scored_on_all(monkeypatch: pytest.MonkeyPatch) -> None:
    trained = crossval._trained

    def alternating(folder: Path, plan: crossval.Plan, fold: tuple[int, int], device: torch.device) -> Run:
        name = ("mixed", "mean")[fold[0]]
        one = dataclasses.replace(plan, experiments={name: plan.experiments[name]}, budget=None)
        return trained(folder, one, fold, device)

    monkeypatch.setattr(crossval, "_trained", alternating)
    x, y, owner = rows()
    tasks = [(x[owner == name], y[owner == name]) for name in dict.fromkeys(owner)]
    found = fewsure.Learner(data=fewsure.regression_tasks(tasks)).crossval(folds=2, tasks=80, quiet=True)
    assert [row["algorithm"] for row in found["by_fold"]] == ["mixed", "mean"]
    names = {row["name"]: row for row in found["baselines"]}
    assert set(names) == {"gp", "ridge", "mean", "mixed", "boosting"}
    assert names["mixed"]["nll"]["mean"] < found["nll"]["mean"] < names["mean"]["nll"]["mean"]
    best = names[found["best_baseline"]]["nll"]["mean"]
    assert found["against_best"]["nll"]["difference"]["mean"] == pytest.approx(found["nll"]["mean"] - best)


def test_classes_make_folds_too() -> None:
    random = np.random.default_rng(0)
    examples = {f"kind {k:02}": random.normal(size=4) + 0.3 * random.normal(size=(12, 4)) for k in range(20)}
    found = fewsure.Learner("simpleshot", data=examples, way=3).crossval(folds=4, tasks=100, quiet=True)
    assert (found["groups"], found["grouped_by"], found["way"]) == (20, "classes", 3)
    assert found["accuracy"]["mean"] > 0.8
    assert {row["name"] for row in found["baselines"]} >= {"ridge", "logistic"}


def test_what_has_no_groups_of_its_own_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["crossval", "maml", "--data", "sine-line", "--out", str(tmp_path / "cv")]) == 2
    assert "expected crossval with a table or tasks of your own" in capsys.readouterr().err
    assert not (tmp_path / "cv").exists()
