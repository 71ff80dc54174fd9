"""Reproductions: the same budget and trials for all, nothing done twice, every figure on the page from the JSON."""

import dataclasses
import json
import multiprocessing
import operator
import os
import pickle
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fewsure.algorithms import ALGORITHMS
from fewsure.cli.main import main
from fewsure.core.processes import side_by_side
from fewsure.core.signals import Stopped
from fewsure.data.io.feature_files import load_features
from fewsure.errors import FewsureError
from fewsure.evaluation import calibrate
from fewsure.features.extract import nearest_mean_accuracy
from fewsure.reproduce import page, run, targets
from fewsure.reproduce.page import results_page
from fewsure.reproduce.results import merge, read_results
from fewsure.reproduce.run import Reproduction
from fewsure.reproduce.targets import SEVERAL, TARGETS, Target
from fewsure.training.experiment import load_preset
from fewsure.training.runs import Run

from .data_files import python2_pickle, write_tree
from .helpers import write_blobs

RESULTS = Path(__file__).resolve().parents[1] / "results"
COMPARED = {"simpa", "maml", "abml", "bmaml", "platipus", "vampire", "protonet"}
BUDGET = 0.001
REGRESSION = ["reproduce", "regression", "--budget", str(BUDGET)]
SMALL = ["--tasks", "20", "--device", "cpu", "--json"]
OTHERWISE = "The commands above would now tune or train otherwise"
Reproduced = Callable[..., list[dict[str, Any]]]


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two trials of each method, scored on few tasks, and no drawings in the report."""
    whole = targets.read_trials

    def first_two(name: str) -> dict[str, Any]:
        return {method: trials[:2] for method, trials in whole(name).items()}

    for module in (targets, run, page):
        monkeypatch.setattr(module, "read_trials", first_two)
    monkeypatch.setattr(run, "VALIDATION_TASKS", 20)
    monkeypatch.setattr(calibrate, "POINTS", 3000)
    monkeypatch.setattr(run, "NEAREST_MEAN_TASKS", 100)
    monkeypatch.setattr(run, "write_report", lambda folders, file, *asked, **options: file.write_text("a report"))


@pytest.fixture
def reproduced(few: None, capsys: pytest.CaptureFixture[str]) -> Reproduced:
    """Runs a command that succeeds; its rows."""

    def rows(command: list[str], *options: str | Path) -> list[dict[str, Any]]:
        capsys.readouterr()
        assert main([*command, *SMALL, *map(str, options)]) == 0
        found: list[dict[str, Any]] = json.loads(capsys.readouterr().out)
        return found

    return rows


_made: list[Path] = []


@pytest.fixture
def out(reproduced: Reproduced, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of MAML reproduced with two seeds, which is done once."""
    if not _made:
        folder = tmp_path_factory.mktemp("maml")
        reproduced(REGRESSION, "--seeds", "2", "--only", "maml", "--out", folder)
        _made.append(folder)
    return Path(shutil.copytree(_made[0], tmp_path / "out"))


TUNED = [name for name, target in TARGETS.items() if name != "fs-mol" and target.body is None]


@pytest.mark.parametrize("name", TUNED)
def test_every_method_has_the_same_updates_tasks_and_number_of_trials_which_differ(name: str) -> None:
    target = TARGETS[name]
    assert set(target.methods) == (COMPARED - {"protonet"} if target.data == "sine-line" else COMPARED) <= {*ALGORITHMS}
    trials = {method: target.trials(method) for method in target.methods}
    assert len({(len(each), one.training.updates, one.training.tasks) for each in trials.values() for one in each}) == 1
    for method, each in trials.items():
        assert len({(trial.algorithm, trial.data, trial.training) for trial in each}) == len(each), method


def test_entries_from_a_pretrained_body_are_judged_on_the_same_tasks() -> None:
    for target in (target for target in TARGETS.values() if target.body is not None):
        trials = {method: target.trials(method) for method in target.methods}
        assert all(len(each) == 1 for each in trials.values())
        assert len({(one.data.way, one.data.shot, one.data.query) for (one,) in trials.values()}) == 1
        from_scratch = {method for method in target.methods if not target.starts_at_body(method)}
        assert from_scratch == {"protonet-from-scratch", "maml-from-scratch"}
        transductive = {method for method, (one,) in trials.items() if one.transductive}
        assert transductive == {*from_scratch, "maml-transductive", "simpa-transductive"}


def test_experiments_that_stand_for_several_have_one_of_each_shot() -> None:
    for names in SEVERAL.values():
        assert [TARGETS[name].trials("maml")[0].data.shot for name in names] == [1, 5]


def test_a_reproduction_is_written_up_and_not_done_twice(out: Path, reproduced: Reproduced) -> None:
    files = sorted(out.glob("maml/*/checkpoint.safetensors"))
    assert [file.parent.name for file in files] == ["seed-0", "seed-1", "trial-0", "trial-1"]
    times = [file.stat().st_mtime_ns for file in files]
    rows = reproduced(REGRESSION, "--seeds", "2", "--only", "maml", "vampire", "--out", out)
    assert [file.stat().st_mtime_ns for file in files] == times
    runs = [("maml", 0), ("maml", 1), ("vampire", 0), ("vampire", 1)]
    assert [(row["algorithm"], row["train_seed"]) for row in rows] == runs
    updates = round(load_preset("recommended", "maml", "sine-line").training.updates * BUDGET)
    assert all(row["updates"] == updates and row["train_seconds"] > 0 for row in rows)
    for row in rows:
        assert [trial["trial"] for trial in row["trials"]] == [0, 1]
        best = min(row["trials"], key=lambda trial: trial["nll"]["mean"])
        assert row["preset"] == f"recommended, trial {best['trial']}"
    assert json.loads((out / "results.json").read_text()) == rows
    written = (out / "results.md").read_text()
    assert written == results_page(rows, [], "regression")
    for row in rows:
        assert f"{row['mse']['mean']:.3f} ± {row['mse']['ci95']:.3f}" in written
        assert f"{row['ece']:.4f}" in written
    assert written.count("| MAML | ") == written.count("| VAMPIRE | ") == 1 + 1 + 2 + 2  # scores, noise, runs, trials
    assert (out / "report.html").is_file()


def test_results_grow_by_methods_that_are_run_elsewhere(out: Path, tmp_path: Path, reproduced: Reproduced) -> None:
    results, there = out / "results.json", tmp_path / "there"
    first, second = json.loads(results.read_text())
    (there / "maml" / "seed-0").mkdir(parents=True)  # begun, and not finished
    shutil.copy(out / "maml" / "seed-0" / "config.json", there / "maml" / "seed-0")
    rows = reproduced(REGRESSION, "--seeds", "1", "--only", "vampire", "--out", there, "--results", results)
    assert rows[:2] == [first, second]
    assert [row["label"] for row in rows] == ["maml", "maml", "vampire"]
    assert (there / "results.md").read_text() == results_page(rows, [], "regression")

    nowhere = tmp_path / "nowhere"
    assert reproduced(REGRESSION, "--collect", "--out", nowhere, "--results", results) == rows
    assert json.loads(results.read_text()) == rows
    assert (nowhere / "results.md").read_text() == (there / "results.md").read_text()


def test_results_that_come_while_others_are_run_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reproduced: Reproduced
) -> None:
    results = tmp_path / "results.json"
    (row, *_) = read_results(RESULTS / "regression.json")

    def meanwhile(reproduction: Reproduction, methods: list[str], jobs: int) -> None:
        results.write_text(json.dumps([row | {"label": "bmaml"}]))

    monkeypatch.setattr(Reproduction, "run", meanwhile)
    rows = reproduced(REGRESSION, "--only", "maml", "--out", tmp_path / "out", "--results", results)
    assert [row["label"] for row in rows] == ["bmaml"]


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda row: [row | {"seed": 9}], "expected results of seed 1, but vampire, seed 0 is of 9"),
        (lambda row: [row | {"target": "omniglot"}], "expected results of target regression"),
        (lambda row: [row | {"data_checksum": "x"}], "their checksums differ"),
        (lambda row: [row, row], "some are there twice"),
        (lambda row: [row | {"label": ["maml"]}], "with `label` in every row"),
        (lambda row: [{name: row[name] for name in row if name != "train_seconds"}], "'train_seconds'"),
        (lambda row: [row | {"trials": 3}], "expected rows as this version writes them"),
        (lambda row: {"rows": []}, "is in the way of the results: move it away, or choose another --results"),
        (lambda row: "[", "expected results of `fewsure reproduce`, a list of objects"),
    ],
)
def test_a_file_that_is_in_the_way_of_the_results_is_left_as_it_is(
    out: Path, change: Callable[[dict[str, Any]], object], why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    results = out / "results.json"
    row = json.loads(results.read_text())[0] | {"label": "vampire"}
    results.write_text(json.dumps(change(row)))
    before = results.read_bytes()
    assert main([*REGRESSION, *SMALL, "--collect", "--out", str(out)]) == 2
    assert why in capsys.readouterr().err
    assert results.read_bytes() == before


def test_a_file_in_the_way_is_refused_before_anything_is_trained(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    others = ["--results", str(RESULTS / "omniglot.json"), "--only", "maml", "--out", str(tmp_path / "never")]
    assert main([*REGRESSION, *SMALL, *others]) == 2
    assert "expected results of target regression, but abml, seed 0 is of omniglot" in capsys.readouterr().err
    assert not (tmp_path / "never").exists()


def test_a_page_is_of_the_newest_results(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = read_results(RESULTS / "cifar-fs-1shot.json")
    row = rows[0] | {"train_seed": 1, "updates": 10, "tasks": 20}
    assert merge([row], rows) == sorted([*rows, row], key=lambda row: (row["label"], row["train_seed"]))
    again = rows[0] | {"updates": 10}
    assert merge([again], rows) == [again, *rows[1:]]
    assert "abml, seed 0: a run of 10 updates" in capsys.readouterr().err
    unfinished = rows[0] | {"update": 7, "softmax_temperature": 1.0, "temperature_exponent": 0.0}
    assert "| ABML | 0 | 7 of 20,000 |" in results_page(rows[1:], [unfinished], "cifar-fs-1shot")


@pytest.mark.slow
def test_trainings_side_by_side_find_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = {}
    for jobs in (2, 1):
        out = ["--seeds", "1", "--out", str(tmp_path / str(jobs)), "--only", "maml", "--jobs", str(jobs)]
        assert main([*REGRESSION, *SMALL, *out]) == 0
        found[jobs] = json.loads(capsys.readouterr().out)
        monkeypatch.setattr(run, "write_report", lambda *asked, **options: None)  # one will do
    for row in (*found[1], *found[2]):
        del row["seconds"], row["train_seconds"]
    assert found[1] == found[2]
    assert "<html" in (tmp_path / "2" / "report.html").read_text()


def test_the_first_error_of_work_side_by_side_is_raised() -> None:
    with pytest.raises(ZeroDivisionError):
        side_by_side(operator.truth, [[[1], [2]], [[3, 4]]], 2, done=lambda piece: 1 // (piece - 2))  # type: ignore[arg-type, func-returns-value]
    with pytest.raises(TypeError, match="bad operand"):
        side_by_side(operator.neg, [[[1, "x"], [2]]], 2)


def test_work_side_by_side_ends_when_one_of_its_processes_is_killed() -> None:
    with pytest.raises(FewsureError, match="one of the processes was killed, perhaps for lack of memory"):
        side_by_side(signal.raise_signal, [[[signal.SIGKILL]], [[signal.SIGCONT]]], 2)


def test_an_error_ends_work_side_by_side_that_is_begun_and_begins_no_more() -> None:
    heard: list[float] = []
    began = time.monotonic()
    with pytest.raises(TypeError):
        side_by_side(time.sleep, [[[0.01], ["soon"], [600.0]], [[600.0]]], 2, heard.append)  # type: ignore[arg-type]
    assert heard == [0.01]
    assert time.monotonic() - began < 60
    assert not multiprocessing.active_children()


@pytest.mark.slow
def test_a_signal_ends_trainings_side_by_side_with_a_checkpoint_each(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "fewsure", "reproduce", "regression", "--only", "maml", "--jobs", "2"]
    process = subprocess.Popen([*command, "--out", str(tmp_path), "--device", "cpu", "--json"], stderr=subprocess.PIPE)
    trainings = [tmp_path / "maml" / f"trial-{number}" for number in range(2)]
    end = time.monotonic() + 120
    while not all((folder / "metrics.jsonl").is_file() for folder in trainings):
        assert time.monotonic() < end
        time.sleep(0.2)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=120)
    assert process.returncode == 128 + signal.SIGTERM
    assert all(Run.open(folder).has_checkpoint for folder in trainings)
    assert not (tmp_path / "maml" / "trial-2").exists()


@pytest.mark.parametrize(("number", "ends"), [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, SystemExit)])
def test_a_signal_ends_work_side_by_side(number: int, ends: type[BaseException]) -> None:
    began = time.monotonic()
    pieces: list[list[list[float]]] = [[[0.01], [600.0]], [[600.0]]]
    with pytest.raises(ends) as raised:
        side_by_side(time.sleep, pieces, 2, lambda piece: os.kill(os.getpid(), number))  # type: ignore[arg-type]
    assert ends is KeyboardInterrupt or raised.value.code == 128 + number
    assert time.monotonic() - began < 60
    assert not multiprocessing.active_children()


def test_what_stopped_a_training_is_the_same_in_another_process() -> None:
    stopped = Stopped(Path("run"), signal.SIGTERM)
    again = pickle.loads(pickle.dumps(stopped))
    assert (str(again), again.exit_code) == (str(stopped), 128 + signal.SIGTERM)


def test_a_stage_begins_when_the_last_one_is_complete() -> None:
    order: list[int] = []
    side_by_side(operator.neg, [[[1, 2], [], [3, 4]], [[5], [6]]], 2, order.append)  # type: ignore[arg-type]
    assert sorted(order) == [1, 2, 3, 4, 5, 6]
    assert max(order.index(1), order.index(2)) < min(order.index(3), order.index(4))
    assert order.index(5) < order.index(6)


def test_work_side_by_side_completes_what_comes_first_before_what_comes_later() -> None:
    order: list[int] = []
    side_by_side(operator.neg, [[[1, 2], [3]], [[4], [5]]], 1, order.append)  # type: ignore[arg-type]
    assert order == [1, 2, 3, 4, 5]


def test_an_evaluation_of_other_tasks_is_not_taken_for_the_experiments(out: Path, reproduced: Reproduced) -> None:
    (row, _) = json.loads((out / "results.json").read_text())
    assert main(["evaluate", str(out / "maml" / "seed-0"), "--tasks", "5", "--seed", "9", "--json"]) == 0
    (again, _) = reproduced(REGRESSION, "--seeds", "2", "--only", "maml", "--out", out)
    assert (again["tasks"], again["seed"], again["stream"]) == (20, TARGETS["regression"].test_seed, "test")
    assert again["mse"] == row["mse"]


def test_a_diverging_run_does_not_end_the_experiment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, few: None, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = TARGETS["regression"].trials("maml")
    explosive = dataclasses.replace(first, algorithm=dataclasses.replace(first.algorithm, inner_lr=1e30))  # type: ignore[type-var]
    trials = {"maml": [explosive, second], "vampire": [explosive, explosive]}
    monkeypatch.setattr(Target, "trials", lambda target, method: trials[method])
    command = [*REGRESSION, *SMALL, "--seeds", "1", "--only", "vampire", "maml", "--out", str(tmp_path)]
    assert main(command) == 0  # though all trials of one of them diverge
    printed = capsys.readouterr()
    assert "trial-0: " in printed.err
    assert "diverged" in printed.err
    assert "every tuning trial of vampire diverged" in printed.err
    (row,) = json.loads(printed.out)
    assert (row["label"], row["preset"]) == ("maml", second.preset)


@pytest.mark.parametrize("joins", [False, True])
def test_a_reproduction_of_classification_is_written_up(
    joins: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, few: None, capsys: pytest.CaptureFixture[str]
) -> None:
    name = "features-cifar-fs-1shot"
    monkeypatch.setitem(TARGETS, name, dataclasses.replace(TARGETS[name], joins_validation=joins))
    folder, out = write_blobs(tmp_path / "data" / "features" / "cifar-fs", each=20), tmp_path / "out"
    command = ["reproduce", name, "--budget", "0.006", "--seeds", "1", *SMALL, "--out", str(out)]
    command += ["--data-root", str(tmp_path / "data")]
    assert main([*command, "--only", "maml"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    written = (out / "results.md").read_text()
    assert f"{row['accuracy']['mean']:.4f} ± {row['accuracy']['ci95']:.4f}" in written
    assert f"{row['ece']:.4f}" in written
    assert "transductive" in written
    assert (row["way"], row["shot"], row["stream"]) == (5, 1, "test")
    for key, centred in (("nearest_mean", False), ("nearest_mean_centred", True)):
        nearest = nearest_mean_accuracy(load_features(folder, "test"), shot=1, tasks=100, centred=centred)
        assert row[key] == nearest
        assert nearest is not None
        assert f"{nearest['accuracy']['mean']:.4f} ± {nearest['accuracy']['ci95']:.4f}" in written
    assert "--only maml --seeds 1 --device cpu --budget 0.006 --tasks 20" in written
    assert OTHERWISE not in written  # a scale that is learned is no option

    final, best = out / "maml" / "seed-0", out / "maml" / row["preset"].removeprefix("recommended, ").replace(" ", "-")
    config, trial = (json.loads((folder / "config.json").read_text()) for folder in (final, best))
    assert trial["training"]["updates"] == row["updates"] == 3  # features are tried in full
    assert not (final / "validation.json").exists()
    if joins:  # the last training has validation classes too, and the temperature that the trial has learned from them
        (learned,) = json.loads((best / "fitted.json").read_text()).values()
        assert set(learned) == {"softmax_temperature", "temperature_exponent"}
        assert all(trial["data"][key] is None for key in learned)
        assert config["data"] == trial["data"] | learned | {"train_on_validation": True}
        assert not (final / "fitted.json").exists()
        assert "temperature from the best trial, which did not train on validation classes" in written
    else:
        for file in ("checkpoint.safetensors", "metrics.jsonl"):  # with the seconds: a copy
            assert (final / file).read_bytes() == (best / file).read_bytes()


def test_what_was_trained_elsewhere_is_written_up_without_its_data(
    tmp_path: Path, reproduced: Reproduced, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, out = write_blobs(tmp_path / "data" / "features" / "cifar-fs", each=20), tmp_path / "out"
    command = ["reproduce", "features-cifar-fs-1shot", "--budget", "0.006", "--seeds", "1", "--out", str(out)]
    command += ["--data-root", str(tmp_path / "data")]
    (row,) = reproduced(command, "--only", "maml")
    folder.rename(tmp_path / "away")
    for file in (out / "maml").glob("*/checkpoint.safetensors"):
        file.unlink()
    (out / "results.json").unlink()
    assert main([*command, *SMALL, "--collect"]) == 0
    printed = capsys.readouterr()
    (collected,) = json.loads(printed.out)
    assert collected == {name: value for name, value in row.items() if not name.startswith("nearest_mean")}
    assert "the nearest class mean is left out: expected" in printed.err

    (out / "maml").rename(out / "another")
    assert main([*command, *SMALL, "--collect"]) == 2
    assert "of no method of features-cifar-fs-1shot (simpa, maml, abml" in capsys.readouterr().err


def test_tiered_imagenet_is_reproduced_from_the_published_files(
    own_data: Path, tmp_path: Path, reproduced: Reproduced
) -> None:
    random = np.random.default_rng(0)
    for split, classes in (("train", 12), ("val", 8), ("test", 8)):
        centres = np.repeat(random.standard_normal((classes, 640)), 20, axis=0)
        features = (centres + 3 * random.standard_normal(centres.shape)).astype(np.float32)
        keys = np.array([f"{row}-{split}{row // 20}-image{row}.JPEG".encode() for row in range(len(features))])
        content = python2_pickle({"embeddings": features, "labels": np.arange(len(features)) // 20, "keys": keys})
        write_tree(own_data / "tiered-imagenet-leo", {f"{split}_embeddings.pkl": content})
    command = ["reproduce", "tiered-imagenet-1shot", "--only", "maml", "--budget", "0.006", "--seeds", "1"]
    (row,) = reproduced(command, "--out", tmp_path / "out")
    assert (row["data"], row["way"], row["shot"], row["tasks"], row["updates"]) == ("tiered-imagenet-leo", 5, 1, 20, 3)
    nearest = f"{row['nearest_mean']['accuracy']['mean']:.4f}"
    written = (tmp_path / "out" / "results.md").read_text()
    assert f"| nearest class mean | {nearest} ± " in written
    assert (tmp_path / "out" / "report.html").is_file()
    simpa = results_page([row | {"label": "simpa", "algorithm": "simpa"}], [], "tiered-imagenet-1shot")
    assert "| 0.7026 / – / – |" in simpa  # what the paper prints


def test_a_page_names_methods_that_are_not_made_as_today() -> None:
    name = "features-cifar-fs-1shot"
    rows, written = read_results(RESULTS / f"{name}.json"), partial(results_page, unfinished=[], target=name)
    assert OTHERWISE not in written(rows)
    for changed in ({"updates": 1}, {"train_on_validation": True}):
        assert f"{OTHERWISE}: MAML.\n" in written([row | changed if row["label"] == "maml" else row for row in rows])
    maml = next(row for row in rows if row["label"] == "maml")
    maml["trials"][0]["options"]["training"]["lr"] *= 2
    assert f"{OTHERWISE}: MAML.\n" in written([row for row in rows if row["label"] != "maml"] + [maml])
    other = "cifar-fs-1shot"  # where three were tuned with one temperature for all tasks, and VAMPIRE among others
    assert f"{OTHERWISE}: MAML, ProtoNet, SImPa, VAMPIRE.\n" in results_page(
        read_results(RESULTS / f"{other}.json"), [], other
    )


def test_a_trial_says_what_it_has_that_today_it_would_not_have(
    out: Path, reproduced: Reproduced, capsys: pytest.CaptureFixture[str]
) -> None:
    assert OTHERWISE not in (out / "results.md").read_text()
    config = out / "maml" / "trial-0" / "config.json"
    record = json.loads(config.read_text())
    record["algorithm"]["first_order"] = not record["algorithm"]["first_order"]
    config.write_text(json.dumps(record))
    collect = [*REGRESSION, "--collect", "--out", str(out)]
    row, _ = reproduced(collect)
    assert row["trials"][0]["options"]["algorithm"]["first_order"] is record["algorithm"]["first_order"]
    assert "first_order" not in row["trials"][1]["options"]["algorithm"]
    assert f"{OTHERWISE}: MAML." in (out / "results.md").read_text()

    config.parent.rename(out / "maml" / "trial-9")
    assert main(collect) == 2
    assert "trial-9 is none of the" in capsys.readouterr().err


def test_commands_name_the_device_of_each_method() -> None:
    written = results_page(read_results(RESULTS / "features-cifar-fs-5shot.json"), [], "features-cifar-fs-5shot")
    assert "Evaluated on a CPU, and so on other test tasks: ABML.\n" in written
    assert "--only abml --seeds 1 --device cpu" in written
    assert "--only maml protonet simpa --seeds 3 --device cuda" in written


def test_one_file_for_the_results_of_several_experiments_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reproduce", "cifar-fs", "--results", "results.json"]) == 2
    assert "cifar-fs-1shot, cifar-fs-5shot" in capsys.readouterr().err
