"""Reproductions: the same budget and trials for all, nothing done twice, every figure on the page from the JSON."""

import dataclasses
import json
import multiprocessing
import operator
import pickle
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from fewsure.algorithms import ALGORITHMS
from fewsure.cli.main import main
from fewsure.core.processes import side_by_side
from fewsure.core.signals import Stopped
from fewsure.data.io.feature_files import load_features
from fewsure.errors import FewsureError
from fewsure.features.extract import nearest_mean_accuracy
from fewsure.reproduce.page import results_page
from fewsure.reproduce.results import read_results, with_earlier
from fewsure.reproduce.run import Job, Reproduction
from fewsure.reproduce.targets import SEVERAL, TARGETS, Target
from fewsure.training.experiment import load_preset
from fewsure.training.runs import Run

from .data_files import python2_pickle, write_tree
from .helpers import write_blobs

RESULTS = Path(__file__).resolve().parents[1] / "results"


@pytest.mark.parametrize("name", TARGETS)
def test_every_method_has_the_same_updates_tasks_and_number_of_trials(name: str) -> None:
    target = TARGETS[name]
    classifies = target.data != "sine-line"
    assert set(target.entries) == set(ALGORITHMS) - (set() if classifies else {"protonet"})
    budgets = {
        (len(target.trials(method)), trial.training.updates, trial.training.tasks)
        for method in target.entries
        for trial in target.trials(method)
    }
    assert len(budgets) == 1


@pytest.mark.parametrize("name", TARGETS)
def test_the_trials_of_a_method_differ(name: str) -> None:
    for method in TARGETS[name].entries:
        settings = [(trial.algorithm, trial.data, trial.training) for trial in TARGETS[name].trials(method)]
        assert len(set(settings)) == len(settings), method


def test_experiments_that_stand_for_several_have_one_of_each_shot() -> None:
    for names in SEVERAL.values():
        assert [TARGETS[name].trials("maml")[0].data.shot for name in names] == [1, 5]


def test_a_reproduction_is_written_up_and_not_done_twice(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["reproduce", "regression", "--budget", "0.001", "--seeds", "2", "--tasks", "20", "--device", "cpu"]
    command += ["--out", str(tmp_path), "--json"]
    assert main([*command, "--only", "maml"]) == 0
    files = sorted(tmp_path.glob("maml/*/checkpoint.safetensors"))
    assert len(files) == len(TARGETS["regression"].trials("maml")) + 2
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


def test_results_grow_by_entries_that_are_run_elsewhere(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["reproduce", "regression", "--budget", "0.0004", "--seeds", "1", "--tasks", "20", "--device", "cpu"]
    earlier = tmp_path / "here" / "results.json"
    assert main([*command, "--only", "maml", "--out", str(earlier.parent), "--json"]) == 0
    (maml,) = json.loads(capsys.readouterr().out)
    assert [trial["trial"] for trial in maml["trials"]] == list(range(len(TARGETS["regression"].trials("maml"))))
    best = min(maml["trials"], key=lambda trial: trial["nll"]["mean"])
    assert maml["preset"] == f"recommended, trial {best['trial']}"

    there = [*command, "--out", str(tmp_path / "there"), "--json", "--beside", str(earlier)]
    assert main([*there, "--only", "vampire"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["label"] for row in rows] == ["maml", "vampire"]
    assert rows[0] == maml
    page = (tmp_path / "there" / "results.md").read_text()
    assert page == results_page(rows, [], "regression")
    assert page.count("| MAML | ") == page.count("| VAMPIRE | ") == 3 + len(maml["trials"])

    remade = [*command, "--collect", "--out", str(tmp_path / "nowhere"), "--json"]
    assert main([*remade, "--beside", str(tmp_path / "there" / "results.json")]) == 0
    assert json.loads(capsys.readouterr().out) == rows
    assert (tmp_path / "nowhere" / "results.md").read_text() == page

    def refused(text: str, why: str) -> None:
        before = (tmp_path / "there" / "results.json").read_bytes()
        earlier.write_text(text)
        assert main([*there, "--collect"]) == 2
        assert why in capsys.readouterr().err
        assert (tmp_path / "there" / "results.json").read_bytes() == before

    refused(json.dumps([maml | {"seed": 9}]), "expected results of seed 1, but maml, seed 0 is of 9")
    refused(json.dumps([maml | {"target": "omniglot"}]), "expected results of target regression")
    refused(json.dumps([maml | {"data_checksum": "x"}]), "their checksums differ")
    refused(json.dumps([maml, maml]), "some are there twice")
    refused(json.dumps([maml | {"label": ["maml"]}]), "expected `label` in every row")
    refused(json.dumps([{name: value for name, value in maml.items() if name != "train_seconds"}]), "'train_seconds'")
    refused(json.dumps([maml | {"trials": 3}]), "expected earlier results as this version writes them")
    refused(json.dumps({"rows": []}), "a list of objects, but it is none")
    refused("[", "expected results of `fewsure reproduce`, but")
    others = ["--results", str(RESULTS / "omniglot.json"), "--only", "maml"]
    assert main([*command, *others, "--out", str(tmp_path / "never")]) == 2
    assert "is in the way of the results: move it away, or choose another --results" in capsys.readouterr().err
    earlier.unlink()
    assert main([*command, "--beside", str(earlier), "--out", str(tmp_path / "never")]) == 2
    assert "No such file or directory; give a file that it has written, or none" in capsys.readouterr().err
    assert not (tmp_path / "never").exists()  # it is read before anything is trained

    without = [*command, "--out", str(tmp_path / "there"), "--json"]
    before = (tmp_path / "there" / "results.json").read_bytes()
    for asked in (["--collect"], ["--only", "vampire"]):
        assert main([*without, *asked]) == 2
        assert "has results of maml, seed 0, of which" in capsys.readouterr().err
    assert (tmp_path / "there" / "results.json").read_bytes() == before

    (tmp_path / "there" / "maml" / "seed-0").mkdir(parents=True)  # begun, and not finished
    (tmp_path / "there" / "maml" / "seed-0" / "config.json").write_bytes(
        (tmp_path / "here" / "maml" / "seed-0" / "config.json").read_bytes()
    )
    assert main([*without, "--collect"]) == 2
    assert "has results of maml, seed 0, of which" in capsys.readouterr().err
    assert (tmp_path / "there" / "results.json").read_bytes() == before
    (tmp_path / "there" / "results.json").write_text("[1]")
    assert main([*without, "--collect"]) == 2
    assert "is in the way of the results: move it away" in capsys.readouterr().err


def test_results_that_came_while_others_were_run_are_not_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    results = tmp_path / "results.json"
    really, (row, *_) = Reproduction.do, read_results(RESULTS / "regression.json")

    def meanwhile(reproduction: Reproduction, job: Job) -> None:
        really(reproduction, job)
        results.write_text(json.dumps([row | {"label": "bmaml"}]))

    monkeypatch.setattr(Reproduction, "do", meanwhile)
    command = ["reproduce", "regression", "--budget", "0.0004", "--seeds", "1", "--tasks", "20", "--device", "cpu"]
    command += ["--only", "maml", "--out", str(tmp_path / "out"), "--results", str(results), "--json"]
    assert main(command) == 2
    assert "has results of bmaml, seed 0, of which" in capsys.readouterr().err
    assert [row["label"] for row in json.loads(results.read_text())] == ["bmaml"]


def test_a_page_is_of_what_is_finished_wherever_it_was(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = read_results(RESULTS / "cifar-fs-1shot.json")
    row = rows[0] | {"train_seed": 1, "updates": 10, "tasks": 20}
    assert with_earlier([row], rows) == sorted([*rows, row], key=lambda row: (row["label"], row["train_seed"]))
    again = rows[0] | {"updates": 10}
    assert with_earlier([again], rows) == [again, *rows[1:]]
    assert "abml, seed 0: a run of 10 updates" in capsys.readouterr().err

    unfinished = rows[0] | {"update": 7, "softmax_temperature": 1.0, "temperature_exponent": 0.0}
    page = results_page(rows[1:], [unfinished], "cifar-fs-1shot")
    assert "| ABML | 0 | 7 of 20,000 |" in page
    assert "Scored with one temperature for all tasks: MAML, ProtoNet, SImPa." in page

    of_second_seeds = tmp_path / "results.json"
    of_second_seeds.write_text(json.dumps([row | {"train_seed": 1} for row in rows]))
    command = ["reproduce", "cifar-fs-1shot", "--collect", "--out", str(tmp_path / "out"), "--device", "cpu", "--json"]
    assert main([*command, "--beside", str(of_second_seeds)]) == 0
    other = ["--beside", str(RESULTS / "features-cifar-fs-1shot.json")]
    assert main([*command, *other]) == 2
    assert "expected results of target cifar-fs-1shot" in capsys.readouterr().err


def test_trainings_side_by_side_find_the_same(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["reproduce", "regression", "--budget", "0.0004", "--seeds", "2", "--tasks", "20", "--device", "cpu"]
    found = {}
    for jobs in (1, 2):
        out = ["--out", str(tmp_path / str(jobs)), "--only", "maml", "--json", "--jobs", str(jobs)]
        assert main([*command, *out]) == 0
        found[jobs] = json.loads(capsys.readouterr().out)
    for row in (*found[1], *found[2]):
        del row["seconds"], row["train_seconds"]
    assert found[1] == found[2]


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


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_trainings_side_by_side_with_a_checkpoint_each(number: int, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "fewsure", "reproduce", "regression", "--only", "maml", "--jobs", "2"]
    process = subprocess.Popen(
        [*command, "--out", str(tmp_path), "--device", "cpu", "--json"], stderr=subprocess.PIPE, text=True
    )
    trainings = [tmp_path / "maml" / f"trial-{number}" for number in range(2)]
    end = time.monotonic() + 120
    while not all((folder / "metrics.jsonl").is_file() for folder in trainings):
        assert time.monotonic() < end
        time.sleep(0.2)
    process.send_signal(number)
    process.communicate(timeout=120)
    assert process.returncode == 128 + number
    assert all(Run.open(folder).has_checkpoint for folder in trainings)
    assert not (tmp_path / "maml" / "trial-2").exists()


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


def test_an_evaluation_of_other_tasks_is_not_taken_for_the_experiments(tmp_path: Path) -> None:
    command = ["reproduce", "regression", "--budget", "0.001", "--seeds", "1", "--tasks", "20", "--device", "cpu"]
    command += ["--out", str(tmp_path), "--only", "maml", "--json"]
    assert main(command) == 0
    expected = json.loads((tmp_path / "results.json").read_text())[0]["mse"]
    assert main(["evaluate", str(tmp_path / "maml" / "seed-0"), "--tasks", "5", "--seed", "9", "--json"]) == 0
    assert main(command) == 0
    row = json.loads((tmp_path / "results.json").read_text())[0]
    assert (row["tasks"], row["seed"], row["stream"], row["mse"]) == (
        20,
        TARGETS["regression"].test_seed,
        "test",
        expected,
    )


def test_a_diverging_run_does_not_end_the_experiment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second, *_ = TARGETS["regression"].trials("maml")
    explosive = dataclasses.replace(first, algorithm=dataclasses.replace(first.algorithm, inner_lr=1e30))  # type: ignore[type-var]
    monkeypatch.setattr(Target, "trials", lambda target, method: [explosive, second])
    command = ["reproduce", "regression", "--budget", "0.001", "--seeds", "1", "--tasks", "20", "--device", "cpu"]
    assert main([*command, "--out", str(tmp_path), "--only", "maml", "--json"]) == 0
    printed = capsys.readouterr()
    assert "diverged" in printed.err
    assert json.loads(printed.out)[0]["preset"] == second.preset

    monkeypatch.setattr(Target, "trials", lambda target, method: [explosive if method == "vampire" else second])
    both = ["--only", "vampire", "maml", "--out", str(tmp_path / "both"), "--json"]
    assert main([*command, *both]) == 0  # though all trials of one of them diverge
    printed = capsys.readouterr()
    assert "every tuning trial of vampire diverged" in printed.err
    assert [row["label"] for row in json.loads(printed.out)] == ["maml"]


def test_a_reproduction_of_classification_is_written_up(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_blobs(tmp_path / "data" / "features" / "cifar-fs", each=20)
    command = ["reproduce", "features-cifar-fs-1shot", "--budget", "0.006", "--seeds", "1", "--tasks", "20"]
    command += ["--data-root", str(tmp_path / "data"), "--out", str(tmp_path / "out"), "--device", "cpu", "--json"]
    assert main([*command, "--only", "maml"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    page = (tmp_path / "out" / "results.md").read_text()
    assert f"{row['accuracy']['mean']:.4f} ± {row['accuracy']['ci95']:.4f}" in page
    assert f"{row['ece']:.4f}" in page
    assert "transductive" in page
    assert (row["way"], row["shot"], row["stream"]) == (5, 1, "test")
    for name, centred in (("nearest_mean", False), ("nearest_mean_centred", True)):
        nearest = nearest_mean_accuracy(load_features(folder, "test"), shot=1, tasks=10_000, centred=centred)
        assert row[name] == nearest
        assert nearest is not None
        assert f"{nearest['accuracy']['mean']:.4f} ± {nearest['accuracy']['ci95']:.4f}" in page
    assert "--only maml --seeds 1 --device cpu --budget 0.006 --tasks 20" in page
    config = json.loads((tmp_path / "out" / "maml" / "trial-0" / "config.json").read_text())
    assert config["training"]["updates"] == row["updates"] == 3  # features are tried in full

    def trained(name: str, file: str) -> bytes:
        return (tmp_path / "out" / "maml" / name / file).read_bytes()

    assert "Tuned among other options" not in page  # a scale that is learned is no option

    best = int(row["preset"].removeprefix("recommended, trial "))
    assert trained("seed-0", "checkpoint.safetensors") == trained(f"trial-{best}", "checkpoint.safetensors")
    assert trained("seed-0", "metrics.jsonl") == trained(f"trial-{best}", "metrics.jsonl")  # with the seconds: a copy
    assert not (tmp_path / "out" / "maml" / "seed-0" / "validation.json").exists()

    folder.rename(tmp_path / "away")
    for file in (tmp_path / "out" / "maml").glob("*/checkpoint.safetensors"):
        file.unlink()
    assert main([*command, "--collect"]) == 0
    printed = capsys.readouterr()
    (collected,) = json.loads(printed.out)
    assert collected == {name: value for name, value in row.items() if not name.startswith("nearest_mean")}
    assert "the nearest class mean is left out: expected" in printed.err

    (tmp_path / "out" / "maml" / "seed-0").rename(tmp_path / "out" / "other")
    (tmp_path / "out" / "another").mkdir()
    (tmp_path / "out" / "other").rename(tmp_path / "out" / "another" / "seed-0")
    (tmp_path / "out" / "results.json").unlink()
    assert main([*command, "--collect"]) == 2
    assert "of no entry of features-cifar-fs-1shot (simpa, maml, abml" in capsys.readouterr().err


def test_tiered_imagenet_is_reproduced_from_the_published_files(
    own_data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    random = np.random.default_rng(0)
    for split, classes in (("train", 12), ("val", 8), ("test", 8)):
        centres = np.repeat(random.standard_normal((classes, 640)), 20, axis=0)
        features = (centres + 3 * random.standard_normal(centres.shape)).astype(np.float32)
        keys = np.array([f"{row}-{split}{row // 20}-image{row}.JPEG".encode() for row in range(len(features))])
        content = python2_pickle({"embeddings": features, "labels": np.arange(len(features)) // 20, "keys": keys})
        write_tree(own_data / "tiered-imagenet-leo", {f"{split}_embeddings.pkl": content})
    command = ["reproduce", "tiered-imagenet-1shot", "--only", "maml", "--budget", "0.006", "--seeds", "1"]
    command += ["--tasks", "20", "--out", str(tmp_path / "out"), "--device", "cpu", "--json"]
    assert main(command) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert (row["data"], row["way"], row["shot"], row["tasks"], row["updates"]) == ("tiered-imagenet-leo", 5, 1, 20, 3)
    assert len(row["trials"]) == 3
    nearest = f"{row['nearest_mean']['accuracy']['mean']:.4f}"
    page = (tmp_path / "out" / "results.md").read_text()
    assert f"The nearest class mean of the same features, scaled to length 1: {nearest}" in page
    assert (tmp_path / "out" / "report.html").is_file()
    simpa = results_page([row | {"label": "simpa", "algorithm": "simpa"}], [], "tiered-imagenet-1shot")
    assert "| 0.7026 / – / – |" in simpa  # what the paper prints


def test_validation_classes_join_a_last_training_with_the_temperature_that_the_best_trial_learned_from_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "features-cifar-fs-1shot"
    monkeypatch.setitem(TARGETS, name, dataclasses.replace(TARGETS[name], joins_validation=True))
    write_blobs(tmp_path / "data" / "features" / "cifar-fs", each=20)
    command = ["reproduce", name, "--only", "maml", "--budget", "0.006", "--seeds", "1", "--tasks", "20", "--json"]
    command += ["--data-root", str(tmp_path / "data"), "--out", str(tmp_path / "out"), "--device", "cpu"]
    assert main(command) == 0

    runs, page = tmp_path / "out" / "maml", (tmp_path / "out" / "results.md").read_text()
    joined = json.loads((runs / "seed-0" / "config.json").read_text())
    best = runs / joined["preset"].removeprefix("recommended, ").replace(" ", "-")
    data = json.loads((best / "config.json").read_text())["data"]
    learned = json.loads((best / "fitted.json").read_text())
    assert set(learned) == {"softmax_temperature", "temperature_exponent"} <= {key for key in data if data[key] is None}
    assert joined["data"] == data | learned | {"train_on_validation": True}
    assert not (runs / "seed-0" / "fitted.json").exists()
    assert "it is the best trial's, which did not." in page


def test_a_page_names_entries_that_are_not_made_as_today() -> None:
    name = "features-cifar-fs-1shot"
    rows, page = read_results(RESULTS / f"{name}.json"), partial(results_page, unfinished=[], target=name)
    tuned = "Tuned among other options than the commands above try today"
    trained = "Trained for longer or shorter, or on other classes, than by the commands above today"
    assert not any(words in page(rows) for words in (tuned, trained))
    for changed in ({"updates": 1}, {"train_on_validation": True}):
        assert f"{trained}: MAML.\n" in page([row | changed if row["label"] == "maml" else row for row in rows])
    maml = next(row for row in rows if row["label"] == "maml")
    maml["trials"][0]["options"]["training"]["lr"] *= 2
    assert f"{tuned}: MAML.\n" in page([row for row in rows if row["label"] != "maml"] + [maml])


def test_a_trial_says_what_it_has_that_today_it_would_not_have(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["reproduce", "regression", "--budget", "0.0004", "--seeds", "1", "--tasks", "20", "--device", "cpu"]
    command += ["--only", "maml", "--out", str(tmp_path), "--json"]
    assert main(command) == 0
    assert "Tuned among other options" not in (tmp_path / "results.md").read_text()
    config = tmp_path / "maml" / "trial-0" / "config.json"
    record = json.loads(config.read_text())
    record["algorithm"]["first_order"] = not record["algorithm"]["first_order"]
    config.write_text(json.dumps(record))
    capsys.readouterr()
    collect = [part for part in command if part not in ("--only", "maml")] + ["--collect"]
    assert main(collect) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert row["trials"][0]["options"]["algorithm"]["first_order"] is record["algorithm"]["first_order"]
    assert "first_order" not in row["trials"][1]["options"]["algorithm"]
    assert "Tuned among other options than the commands above try today: MAML." in (tmp_path / "results.md").read_text()

    config.parent.rename(tmp_path / "maml" / "trial-9")
    assert main(collect) == 2
    assert "trial-9 is none of the" in capsys.readouterr().err


def test_commands_name_the_device_of_each_entry() -> None:
    page = (RESULTS.parent / "docs" / "features-cifar-fs-5shot.md").read_text()
    assert "On a CPU, and so on other tasks than the others, though as many: ABML.\n" in page
    assert "--only abml --seeds 1 --device cpu" in page
    assert "--only maml protonet simpa --seeds 3 --device cuda" in page


def test_one_file_for_the_results_of_several_experiments_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reproduce", "cifar-fs", "--results", "results.json"]) == 2
    assert "cifar-fs-1shot, cifar-fs-5shot" in capsys.readouterr().err
