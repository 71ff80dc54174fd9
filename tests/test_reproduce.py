"""Reproductions: the same budget and trials for all, nothing done twice, every figure on the page from the JSON."""

import json
from pathlib import Path

import pytest

from fewsure.algorithms import ALGORITHMS
from fewsure.cli import main
from fewsure.experiment import load_preset
from fewsure.reproduce import TARGETS, trials, variants


def test_every_method_has_the_same_updates_tasks_and_number_of_trials() -> None:
    methods = TARGETS["regression"][0]()
    assert set(methods) == set(ALGORITHMS) - {"protonet"}  # which only classifies
    budgets = {
        (len(trials(method)), trial.training.updates, trial.training.tasks)
        for method in methods
        for trial in trials(method)
    }
    assert len(budgets) == 1


def test_the_trials_of_a_method_differ() -> None:
    for method in TARGETS["regression"][0]():
        settings = [(trial.algorithm, trial.training) for trial in trials(method)]
        assert len(set(settings)) == len(settings), method


def test_each_variant_of_the_ablation_changes_one_option_group_member() -> None:
    base = variants()["base"]
    for name, variant in variants().items():
        changed = [
            key
            for group in ("algorithm", "training")
            for key, value in vars(getattr(base, group)).items()
            if vars(getattr(variant, group))[key] != value
        ]
        expected = {"base": 0, "generator-of-the-paper": 2}.get(name, 1)
        assert len(changed) == expected, (name, changed)


def test_a_reproduction_is_written_up_and_not_done_twice(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["reproduce", "regression", "--budget", "0.001", "--seeds", "2", "--tasks", "20", "--device", "cpu"]
    command += ["--out", str(tmp_path), "--json"]
    assert main([*command, "--only", "maml"]) == 0
    files = sorted(tmp_path.glob("maml/*/checkpoint.safetensors"))
    assert len(files) == len(trials("maml")) + 2
    times = [file.stat().st_mtime_ns for file in files]
    capsys.readouterr()
    assert main([*command, "--only", "maml", "vampire"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [file.stat().st_mtime_ns for file in files] == times
    assert [(row["algorithm"], row["train_seed"]) for row in rows] == [
        ("maml", 0),
        ("maml", 1),
        ("vampire", 0),
        ("vampire", 1),
    ]
    updates = round(load_preset("recommended", "maml", "sine-line").training.updates * 0.001)
    assert all(row["updates"] == updates and row["train_seconds"] > 0 for row in rows)
    assert json.loads((tmp_path / "results.json").read_text()) == rows
    page = (tmp_path / "results.md").read_text()
    for row in rows:
        assert f"{row['mse']['mean']:.3f} ± {row['mse']['ci95']:.3f}" in page
        assert f"{row['ece']:.4f}" in page
    assert (tmp_path / "report.html").is_file()


def test_an_evaluation_of_other_tasks_is_not_taken_for_the_experiments(tmp_path: Path) -> None:
    command = ["reproduce", "regression", "--budget", "0.001", "--seeds", "1", "--tasks", "20", "--device", "cpu"]
    command += ["--out", str(tmp_path), "--only", "maml", "--json"]
    assert main(command) == 0
    expected = json.loads((tmp_path / "results.json").read_text())[0]["mse"]
    assert main(["evaluate", str(tmp_path / "maml" / "seed-0"), "--tasks", "5", "--seed", "9", "--json"]) == 0
    assert main(command) == 0
    row = json.loads((tmp_path / "results.json").read_text())[0]
    assert (row["tasks"], row["seed"], row["stream"], row["mse"]) == (20, 0, "test", expected)


def test_a_diverging_run_does_not_end_the_experiment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import dataclasses

    from fewsure import reproduce

    first, second, *_ = trials("maml")
    explosive = dataclasses.replace(first, algorithm=dataclasses.replace(first.algorithm, inner_lr=1e30))  # type: ignore[type-var]
    monkeypatch.setattr(reproduce, "trials", lambda method: [explosive, second])
    command = ["reproduce", "regression", "--budget", "0.001", "--seeds", "1", "--tasks", "20", "--device", "cpu"]
    assert main([*command, "--out", str(tmp_path), "--only", "maml", "--json"]) == 0
    printed = capsys.readouterr()
    assert "diverged" in printed.err
    assert json.loads(printed.out)[0]["preset"] == second.preset
