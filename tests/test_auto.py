"""`auto`: the methods that suit a user's data, scored on the same validation tasks, and the run of the best."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

import fewsure
from fewsure.algorithms import ALGORITHMS
from fewsure.cli.main import main
from fewsure.core.signals import Stopped
from fewsure.errors import FewsureError
from fewsure.selection import auto
from fewsure.training.runs import Run

CPU = torch.device("cpu")
QUICK = ("mean", "ridge", "mixed")


def lines(groups: int = 24, rows: int = 16, noise: float = 0.1) -> list[tuple[np.ndarray, np.ndarray]]:
    """Groups on lines of one slope, each with a level of its own: a mixed model is true of them."""
    random = np.random.default_rng(0)
    tasks = []
    for _ in range(groups):
        x = random.uniform(-2, 2, (rows, 1))
        tasks.append((x, 3 * random.normal() + 1.5 * x[:, 0] + noise * random.normal(size=rows)))
    return tasks


@pytest.fixture(scope="module")
def learner() -> fewsure.Learner:
    return fewsure.Learner(data=fewsure.regression_tasks(lines()), methods=QUICK).train(quiet=True)


def test_the_true_model_is_selected(learner: fewsure.Learner) -> None:
    table = learner.selection
    assert table is not None
    scores = {row["name"]: row["nll"]["mean"] for row in table["methods"]}
    assert set(scores) == set(QUICK)
    assert table["selected"] == "mixed" == min(scores, key=lambda name: scores[name])
    assert learner.experiment.algorithm_name == "mixed"


def test_it_becomes_a_run_like_any_other(learner: fewsure.Learner, tmp_path: Path) -> None:
    x, y = lines(1)[0]
    learner.save(tmp_path / "run")
    again = fewsure.load(tmp_path / "run", data=fewsure.regression_tasks(lines()))
    first, second = (one.adapt(x[:4], y[:4]).predict(x[4:]).mean for one in (learner, again))
    np.testing.assert_array_equal(first, second)
    assert np.abs(first - y[4:]).max() < 0.5
    assert again.evaluate(tasks=50, quiet=True)["best_baseline"] == "gp"
    assert again.selection == learner.selection


def test_a_run_of_one_method_has_no_selection() -> None:
    single = fewsure.Learner("mean", data=fewsure.regression_tasks(lines())).train(quiet=True)
    assert single.selection is None


def test_a_trained_method_gets_the_updates_that_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = fewsure.regression_tasks(lines())
    experiments = auto.candidates("given-regression", data, methods=("maml", "mean"))
    assert list(experiments) == ["mean", "maml"]  # what is fitted comes first
    monkeypatch.setattr(auto, "_seconds_per_update", lambda experiment, device: 0.02)
    run, table = auto.select(tmp_path / "run", experiments, CPU, budget=4.0)
    assert Run.open(tmp_path / "run" / auto.FOLDER / "maml").experiment.training.updates == 200
    assert run.experiment.algorithm_name == table["selected"]


def test_a_method_that_does_not_fit_says_so(tmp_path: Path) -> None:
    experiments = auto.candidates("given-regression", fewsure.regression_tasks(lines()), methods=("maml", "mean"))
    _, table = auto.select(tmp_path / "run", experiments, CPU, budget=1e-3)
    reasons = {row["name"]: row.get("reason") for row in table["methods"]}
    assert reasons["mean"] is None
    assert reasons["maml"] == "0 updates fit into what is left of the budget; raise --budget"


def test_an_interrupted_selection_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data, folder = fewsure.regression_tasks(lines()), tmp_path / "run"
    experiments = auto.candidates("given-regression", data, methods=QUICK)
    whole, table = auto.select(tmp_path / "whole", experiments, CPU, budget=60.0)
    train_run = auto.train_run

    def stopped(run: Run, device: torch.device) -> object:
        if run.experiment.algorithm_name == "ridge":
            raise Stopped(run.folder, 15)
        return train_run(run, device)

    monkeypatch.setattr(auto, "train_run", stopped)
    with pytest.raises(Stopped) as signal:
        auto.select(folder, experiments, CPU, budget=60.0)
    assert signal.value.folder == folder
    assert signal.value.exit_code == 128 + 15
    assert not (folder / "config.json").exists()
    monkeypatch.undo()
    run, again = auto.select(folder, experiments, CPU, budget=60.0, resume=True)
    assert run.experiment == whole.experiment
    assert [row["nll"] for row in again["methods"]] == [row["nll"] for row in table["methods"]]
    assert auto.select(folder, experiments, CPU, budget=60.0, resume=True)[1] == again  # nothing is computed again


def test_what_may_be_selected_is_a_registered_method() -> None:
    data = fewsure.regression_tasks(lines())
    found = auto.candidates("given-regression", data)
    assert {"mean", "ridge", "mixed", "gp", "simpa-latent", "tnp"} <= set(found) <= set(ALGORITHMS)
    assert all(experiment.data == data for experiment in found.values())


def test_the_command_shows_every_method(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [f"{number},{x[0]},{y}" for number, (xs, ys) in enumerate(lines()) for x, y in zip(xs, ys, strict=True)]
    table = tmp_path / "my.csv"
    table.write_text("\n".join(["group,x,y", *rows]), encoding="utf-8")
    options = ["--file", str(table), "--task-column", "group", "--target", "y", "--methods", *QUICK]
    assert main(["train", "auto", *options, "--out", str(tmp_path / "run")]) == 0
    shown = capsys.readouterr().out
    assert all(name in shown for name in QUICK)
    assert "is the run of mixed" in shown
    assert json.loads((tmp_path / "run" / "auto.json").read_text())["selected"] == "mixed"
    assert main(["evaluate", str(tmp_path / "run"), "--tasks", "20", "--json"]) == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--budget", "soon"], "expected `budget` to be a time above 0, such as 90s, 5m or 1h, but got 'soon'"),
        (["--methods", "gpp"], "did you mean 'gp'"),
        (["--data", "tabel"], "did you mean 'table'"),
    ],
)
def test_wrong_options_are_one_line(
    arguments: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", "auto", *arguments, "--out", str(tmp_path / "run")]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_a_folder_with_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    experiments = auto.candidates("given-regression", fewsure.regression_tasks(lines()), methods=QUICK)
    with pytest.raises(FewsureError, match="to be a new or empty folder"):
        auto.select(tmp_path, experiments, CPU, budget=60.0)
    with pytest.raises(FewsureError, match="holds a run of one method"):
        auto.select(tmp_path, experiments, CPU, budget=60.0, resume=True)


def test_options_of_auto_in_python(tmp_path: Path) -> None:
    data = fewsure.regression_tasks(lines())
    with pytest.raises(FewsureError, match="auto has selected no method yet"):
        fewsure.Learner(data=data).experiment  # noqa: B018
    with pytest.raises(FewsureError, match="auto trains by `budget`"):
        fewsure.Learner(data=data, methods=QUICK).train(updates=10)
    with pytest.raises(FewsureError, match="option of auto"):
        fewsure.Learner(data=data, inner_lr=0.1)
