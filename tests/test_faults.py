"""Runs survive: kills, full disks, power cuts, signals, and numbers that are no longer finite."""

import dataclasses
import json
import math
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from fewsure.algorithms.maml import Maml
from fewsure.algorithms.platipus import Platipus
from fewsure.algorithms.simpa import Simpa
from fewsure.certification.predictor import checkpoint_digest
from fewsure.cli.main import main
from fewsure.core import files
from fewsure.data.sets.sine_line import SineLine
from fewsure.errors import Diverged, FewsureError
from fewsure.networks.mlp import MlpOptions
from fewsure.pipeline import Start, evaluate_run, start_run, train_run
from fewsure.training.experiment import Experiment, Training
from fewsure.training.loop import train
from fewsure.training.optimiser import Optimiser
from fewsure.training.runs import Run
from fewsure.training.update import MetaUpdate
from fewsure.types import Info, Model, Noise, Parts, Stage, Task

from .helpers import small_simpa
from .reliability import short

pytestmark = pytest.mark.slow
CPU = torch.device("cpu")
EXPERIMENT = Experiment(Maml(inner_steps=1), SineLine(query=6), MlpOptions((5,)), Training(updates=12, tasks=3), "none")


@pytest.fixture(scope="module")
def trials() -> dict[str, Any]:
    return short.found(
        kills="faults.kills(3, every_write=37)",
        full_disk="faults.full_disk(every_write=37)",
        power_cuts="faults.power_cuts(every_call=29)",
        terminated="faults.terminated()",
    )


@pytest.mark.parametrize(
    ("part", "kind"),
    [("kills", "random"), ("kills", "at_a_write"), ("full_disk", "at_a_write"), ("full_disk", "size_limit")],
)
def test_a_broken_training_leaves_no_torn_file_and_ends_as_if_nothing_had_happened(
    trials: dict[str, Any], part: str, kind: str
) -> None:
    found = trials[part][kind]
    assert found["torn_files"] == 0
    assert found["ended_as_if_nothing_had_happened"] == found["trials"] >= 3
    assert found["interrupted"] == found["trials"] or kind == "random"


def test_a_power_cut_leaves_whole_files_whatever_the_disk_had_flushed(trials: dict[str, Any]) -> None:
    found = trials["power_cuts"]
    assert found["torn_files"] == 0
    assert found["ended_as_if_nothing_had_happened"] == found["trials"] >= 12
    assert len(found["resumed_from_updates"]) > 1


def test_sigterm_finishes_the_update_checkpoints_and_exits_with_143(trials: dict[str, Any]) -> None:
    found = trials["terminated"]
    assert found["exit_code"] == 143
    assert 0 < found["stopped_at"] < found["updates"]
    assert found["torn_files"] == 0
    assert found["equal"]


def test_a_file_is_flushed_before_it_takes_its_name_and_the_name_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []
    for name in ("write", "fsync", "replace"):
        monkeypatch.setattr(os, name, _noting(calls, name, getattr(os, name)))
    files.write_atomically(tmp_path / "file", b"content")
    assert calls == ["write", "fsync", "replace", "fsync"]


def _noting(calls: list[str], name: str, function: Any) -> Any:
    def noting(*arguments: Any, **options: Any) -> Any:
        calls.append(name)
        return function(*arguments, **options)

    return noting


def test_a_full_disk_leaves_the_old_file_and_no_part_of_the_new_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, log = tmp_path / "file", tmp_path / "log"
    files.write_atomically(path, b"old")
    files.append_line(log, "first")
    really = os.write

    def half(descriptor: int, data: memoryview) -> int:
        really(descriptor, data[: len(data) // 2])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "write", half)
    for write in (lambda: files.write_atomically(path, b"new content"), lambda: files.append_line(log, "second")):
        with pytest.raises(OSError, match="No space left"):
            write()
    assert {found.name: found.read_bytes() for found in tmp_path.iterdir()} == {"file": b"old", "log": b"first\n"}


def test_a_full_disk_ends_the_command_with_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def no_space(descriptor: int, data: memoryview) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files, "os", SimpleNamespace(**vars(os) | {"write": no_space}))
    assert main(["train", "maml", "--updates", "2", "--tasks", "2", "--out", str(tmp_path / "run")]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "No space left on device" in line


def test_a_link_under_the_name_of_an_unfinished_file_leads_nowhere(tmp_path: Path) -> None:
    outside, folder = tmp_path / "outside", tmp_path / "run"
    outside.write_text("mine")
    folder.mkdir()
    for name in (".file.partial", "log"):
        (folder / name).symlink_to(outside)
    with pytest.raises(OSError, match="symbolic links"):
        files.write_atomically(folder / "file", b"content")
    with pytest.raises(OSError, match="symbolic links"):
        files.append_line(folder / "log", "line")
    assert outside.read_text() == "mine"


def test_several_writers_of_one_file_wait_for_each_other(tmp_path: Path) -> None:
    path, contents = tmp_path / "file", [bytes([number]) * 100_000 for number in range(4)]
    files.write_atomically(path, contents[0])
    with ThreadPoolExecutor(4) as threads:  # each opens the file for itself, as a process does
        writing = [threads.submit(files.write_atomically, path, content) for content in contents * 20]
        while not all(one.done() for one in writing):
            assert path.read_bytes() in contents
    assert [one.result() for one in writing] == [None] * 80
    assert [found.name for found in tmp_path.iterdir()] == ["file"]


def test_what_a_killed_start_left_behind_does_not_stand_in_the_way(tmp_path: Path) -> None:
    (tmp_path / ".config.json.partial").write_text('{"form')
    run = start_run(tmp_path, EXPERIMENT, resume=True)
    assert Run.open(tmp_path).experiment == run.experiment


def test_a_run_from_maml_that_was_killed_before_its_first_checkpoint_starts_at_maml(tmp_path: Path) -> None:
    algorithm = Platipus()
    meta = algorithm.from_weights(Maml().init(EXPERIMENT.model, torch.Generator().manual_seed(5))["weights"])
    experiment = dataclasses.replace(EXPERIMENT, algorithm=algorithm, start="maml 0123")
    start = Start(meta, {"streams": [], "splits": {}, "ids_of": "names", "start": None})
    start_run(tmp_path, experiment, resume=False, start=start)
    whole = (tmp_path / "checkpoint.safetensors").read_bytes()
    (tmp_path / "checkpoint.safetensors").unlink()
    with pytest.raises(FewsureError, match=r"starts at another run, .*; give --from again"):
        start_run(tmp_path, experiment, resume=True)
    start_run(tmp_path, experiment, resume=True, start=start)
    assert (tmp_path / "checkpoint.safetensors").read_bytes() == whole


def scored_every(updates: int, patience: int = 0) -> Experiment:
    training = dataclasses.replace(EXPERIMENT.training, keep_best=updates, patience=patience)
    return dataclasses.replace(EXPERIMENT, training=training)


def test_training_stops_when_nothing_improves_and_the_best_checkpoint_predicts(tmp_path: Path) -> None:
    run = Run.create(tmp_path / "run", scored_every(2, patience=2))
    scores = iter([3.0, 1.0, 2.0, 1.5, 0.0])
    train(run, CPU, score=lambda meta: [next(scores)])
    assert (run.load(CPU).update, run.chosen, run.load(CPU, run.chosen).update) == (8, "best", 4)
    scored = [(line["update"], line["validation_nll"], line["since_best"]) for line in run.metrics()]
    assert scored == [(2, 3.0, 0), (4, 1.0, 0), (6, 2.0, 1), (8, 1.5, 2)]
    train(run, CPU, score=lambda meta: [next(scores)])  # a resumed run has stopped, too
    assert run.load(CPU).update == 8
    found = train_run(run, CPU)
    assert (found["update"], found["best_update"], found["best_validation_nll"]) == (8, 4, 1.0)
    digest = checkpoint_digest(run)
    (run.folder / "checkpoint.safetensors").write_bytes(b"of no account for predictions")
    assert checkpoint_digest(run) == digest


def test_an_interrupted_run_stops_where_an_undisturbed_one_does(tmp_path: Path) -> None:
    def score(meta: Parts) -> list[float]:
        return [float(meta["weights"]["0.bias"].abs().sum())]  # which grows

    runs = [Run.create(tmp_path / name, scored_every(2, patience=3)) for name in ("whole", "parts")]
    train(runs[0], CPU, score=score)
    calls = iter(range(100))
    train(runs[1], CPU, score=score, stop=lambda: next(calls) == 4)
    assert runs[1].load(CPU).update == 5
    train(runs[1], CPU, score=score)
    for name in ("checkpoint.safetensors", "best.safetensors"):
        assert (runs[0].folder / name).read_bytes() == (runs[1].folder / name).read_bytes()


def test_a_loss_that_explodes_is_named_with_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = Maml.loss

    def joined(self: Maml, meta: Parts, model: Model, task: Task, noise: Noise, stage: Stage) -> tuple[Tensor, Info]:
        loss, info = whole(self, meta, model, task, noise, stage)
        kl = 1e4 * (stage.update >= 10) * sum(value.square().sum() for value in meta["weights"].values())
        return loss + kl, info | {"loss": loss + kl, "kl": torch.as_tensor(kl)}

    monkeypatch.setattr(Maml, "loss", joined)
    run = Run.create(tmp_path / "run", EXPERIMENT)
    with pytest.warns(UserWarning, match=r"at update 12: `loss` rose from .*, most by the term `kl`: lower its weight"):
        train(run, CPU, log_every=2)


def test_the_last_checkpoints_and_the_best_one_are_kept(tmp_path: Path) -> None:
    run = Run.create(tmp_path / "run", scored_every(3))
    scores = iter([3.0, 1.0, math.inf, 2.0])
    train(run, CPU, checkpoint_every=2, keep_last=3, score=lambda meta: [next(scores)])
    assert run.kept() == [8, 10, 12]
    assert (run.best_score(), run.load(CPU, "best").update) == (1.0, 6)
    assert [line["validation_nll"] for line in run.metrics() if "validation_nll" in line] == [3.0, 1.0, 2.0]
    assert run.checkpoint_file("12").read_bytes() == run.checkpoint_file().read_bytes()
    for which in ("6", "first", "../checkpoint"):
        with pytest.raises(FewsureError, match=r"one that .* has \(last, best, 8, 10, 12\), but got"):
            run.load(CPU, which)


def test_a_checkpoint_can_be_evaluated_by_its_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = Run.create(tmp_path / "run", scored_every(4))
    train_run(run, CPU, checkpoint_every=4, keep_last=2)
    best = evaluate_run(run, CPU, tasks=20, seed=0)
    assert (best["checkpoint"], best["update"]) == ("best", run.load(CPU, "best").update)
    for which, update in (("last", 12), ("8", 8)):
        assert main(["evaluate", str(run.folder), "--tasks", "20", "--checkpoint", which, "--json"]) == 0
        found = json.loads(capsys.readouterr().out)
        assert (found["checkpoint"], found["update"]) == (which, update)
        assert json.loads((run.folder / f"evaluation-{which}.json").read_text()) == found
    assert run.evaluation() == best
    assert main(["evaluate", str(run.folder), "--checkpoint", "7"]) == 2
    assert "has (last, best, 8, 12), but got '7'" in capsys.readouterr().err
    run.forget_evaluation()
    assert not list(run.folder.glob("evaluation*"))


def test_the_best_checkpoint_is_the_one_with_the_lowest_loss_on_validation_tasks(tmp_path: Path) -> None:
    run = Run.create(tmp_path / "run", scored_every(3))
    train_run(run, CPU, checkpoint_every=4)
    scores = {line["update"]: line["validation_nll"] for line in run.metrics() if "validation_nll" in line}
    assert list(scores) == [3, 6, 9, 12]
    assert run.load(CPU, "best").update == min(scores, key=lambda update: scores[update])
    assert run.best_score() == min(scores.values())


def breaking_at(monkeypatch: pytest.MonkeyPatch, first: int, last: int, what: str) -> None:
    """Let a term of MAML's loss, or its gradient alone, be no number from one update to another."""
    whole = Maml.loss

    def loss(self: Maml, meta: Any, model: Any, task: Any, noise: Any, stage: Any) -> Any:
        value, info = whole(self, meta, model, task, noise, stage)
        broken = (stage.update >= first) & (stage.update <= last)
        if what == "kl":
            return value, info | {"kl": torch.where(broken, math.inf, value.detach())}
        zero = 0 * meta["weights"]["0.bias"].sum()
        return value + torch.where(broken, zero, zero + 1).sqrt(), info  # the square root's slope at 0 is infinite

    monkeypatch.setattr(Maml, "loss", loss)


def test_all_terms_that_blew_up_are_named_and_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = Simpa._theorem_2
    monkeypatch.setattr(Simpa, "_theorem_2", lambda self, losses, kl, *rest: whole(self, losses, kl + math.inf, *rest))
    run = Run.create(tmp_path / "run", dataclasses.replace(EXPERIMENT, algorithm=small_simpa()))
    expected = "`R_i`, `bound`, `kl` are not finite, and 3 updates in a row were skipped; no checkpoint was made"
    with pytest.raises(Diverged, match=expected):
        train(run, CPU, log_every=1, max_skipped=3)


def test_the_command_says_so_in_one_line_and_leaves_a_checkpoint_that_is_finite(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    breaking_at(monkeypatch, 5, 99, "kl")
    options = ["--updates", "20", "--tasks", "2", "--hidden", "4", "--max-skipped", "4", "--checkpoint-every", "2"]
    assert main(["train", "maml", *options, "--device", "cpu", "--json", "--out", str(tmp_path / "run")]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "`kl` is not finite" in line
    assert "its last good checkpoint is in" in line
    assert Run.open(tmp_path / "run").load(CPU).update >= 6


@pytest.mark.parametrize(("what", "named"), [("kl", "`kl`"), ("gradient", "the gradient of `weights/0.bias`")])
def test_training_stops_after_updates_in_a_row_that_are_not_finite_and_names_the_term(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str, named: str
) -> None:
    breaking_at(monkeypatch, 7, 99, what)
    run = Run.create(tmp_path / "run", EXPERIMENT)
    with pytest.raises(Diverged, match=rf"before update 10: {named} is not finite, and 3 updates in a row .*last good"):
        train(run, CPU, checkpoint_every=2, log_every=1, max_skipped=3)
    last = run.load(CPU)
    assert last.update == 8
    assert all(bool(value.isfinite().all()) for value in last.meta["weights"].values())


def test_a_few_bad_updates_are_skipped_counted_and_leave_no_trace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    breaking_at(monkeypatch, 4, 5, "kl")
    run = Run.create(tmp_path / "run", EXPERIMENT)
    train(run, CPU, checkpoint_every=6, log_every=2, max_skipped=3)
    lines = {line["update"]: line for line in run.metrics()}
    assert {update: line["skipped"] for update, line in lines.items()} == {2: 0, 4: 0, 6: 1, 8: 0, 10: 0, 12: 0}
    assert "kl" in lines[4]
    assert "kl" not in lines[6]  # there was no update to average over
    assert float(run.load(CPU).optimiser["weights/0.bias/step"]) == 10


def test_an_update_never_waits_for_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    meta = Maml().init(EXPERIMENT.model, torch.Generator().manual_seed(0))
    update = MetaUpdate(EXPERIMENT, meta, Optimiser(meta, torch.device("cpu")), CPU)
    update(0)
    with monkeypatch.context() as patch:
        for name in ("item", "tolist", "__bool__", "__float__", "__int__"):
            patch.setattr(torch.Tensor, name, lambda *arguments: pytest.fail("it asked for a number"))
        update(1)
    assert update.trouble().updates == 0


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA GPU here")
@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype")
@pytest.mark.parametrize("what", ["kl", "gradient"])
@pytest.mark.parametrize("recorded", [False, True])
def test_on_a_gpu_bad_updates_are_skipped_and_counted_without_waiting_for_it(
    monkeypatch: pytest.MonkeyPatch, what: str, recorded: bool
) -> None:
    breaking_at(monkeypatch, 12, 15, what)
    device = torch.device("cuda")
    experiment = dataclasses.replace(EXPERIMENT, training=Training(updates=30, tasks=3, cuda_graph=recorded))
    initial = Maml().init(experiment.model, torch.Generator().manual_seed(0))
    meta = {part: {name: value.to(device) for name, value in params.items()} for part, params in initial.items()}
    update = MetaUpdate(experiment, meta, Optimiser(meta, device), device)
    for number in range(10):  # of which one is recorded
        update(number)
    before = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("error")  # torch then raises where the host would wait for the device
    try:
        for number in range(10, 20):
            update(number)
    finally:
        torch.cuda.set_sync_debug_mode(before)
    assert update.trouble().updates == 4
    assert update.means()["skipped"] == pytest.approx(4 / 20)
    assert all(bool(value.isfinite().all()) for value in meta["weights"].values())
