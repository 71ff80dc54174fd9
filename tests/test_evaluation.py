"""Evaluation in shards: the numbers of one long evaluation, whatever happens on the way, in constant memory."""

import dataclasses
import gc
import hashlib
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import fewsure.core.shards
import fewsure.evaluation.evaluate
from fewsure.algorithms.maml import Maml
from fewsure.algorithms.protonet import ProtoNet
from fewsure.core import streams
from fewsure.core.cuda_graph import CudaGraph
from fewsure.core.shards import SHARD, ShardFolder
from fewsure.data.features import FeatureHeadOptions, Features
from fewsure.data.sets.sine_line import SineLine
from fewsure.errors import Diverged, FewsureError
from fewsure.evaluation.compare import compare_runs
from fewsure.evaluation.evaluate import BLOCK, UnseenBlocks, evaluate, evaluate_in_shards, identity
from fewsure.networks.mlp import MlpOptions
from fewsure.pipeline import evaluate_run, start_run, train_run
from fewsure.report.page import write_report
from fewsure.training.experiment import Experiment, Training
from fewsure.training.runs import Run
from fewsure.types import Parts

from .helpers import small_simpa, write_blobs

CPU = torch.device("cpu")
SMALL = 40
"""Tasks of a shard where many of them are wanted fast."""


@pytest.fixture(scope="module")
def blobs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_blobs(tmp_path_factory.mktemp("blobs") / "blobs")


@pytest.fixture
def small_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (fewsure.core.shards, fewsure.evaluation.evaluate):
        monkeypatch.setattr(module, "SHARD", SMALL)


@pytest.fixture
def computed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The numbers of the blocks that are computed."""
    numbers: list[int] = []
    whole = UnseenBlocks._block

    def counted(self: UnseenBlocks, index: int, tasks: int) -> dict[str, torch.Tensor]:
        numbers.append(index)
        return whole(self, index, tasks)

    monkeypatch.setattr(UnseenBlocks, "_block", counted)
    return numbers


def sine_line(algorithm: Any = None, **training: Any) -> Experiment:
    options = Training(updates=2, tasks=3, **training)
    return Experiment(algorithm or Maml(inner_steps=1), SineLine(query=5), MlpOptions((6,)), options, "none")


def classes(blobs: Path) -> Experiment:
    data = Features(folder=str(blobs), query=11)
    return Experiment(ProtoNet(), data, FeatureHeadOptions((6,)), Training(updates=2, tasks=3), "none")


def initial(experiment: Experiment) -> Parts:
    return experiment.algorithm.init(experiment.model, streams.generator(0, "init"))


def trained(folder: Path, experiment: Experiment) -> Run:
    run = start_run(folder, experiment, resume=False)
    train_run(run, CPU)
    return run


def without_seconds(summary: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in summary.items() if name != "seconds"}


def equal(first: Any, second: Any) -> bool:
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


# Shards and one long evaluation


@pytest.mark.parametrize("kind", ["sine-line", "classes"])
@pytest.mark.parametrize("tasks", [SMALL, 3 * SMALL + 7])
def test_merged_shards_equal_one_long_evaluation(
    kind: str, tasks: int, blobs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    experiment = sine_line(small_simpa(kl="none")) if kind == "sine-line" else classes(blobs)
    found = []
    for size in (SHARD, SMALL, BLOCK):
        monkeypatch.setattr(fewsure.evaluation.evaluate, "SHARD", size)
        found.append(evaluate(experiment, initial(experiment), tasks=tasks, seed=1))
    for summary, records in found[1:]:
        assert without_seconds(summary) == without_seconds(found[0][0])
        assert equal(records, found[0][1])
    assert len(found[0][1]["nll"]) == tasks


class Killed(BaseException):
    """As if the process had ended."""


def killed_after(run: Run, tasks: int, done: int) -> None:
    """An evaluation that ends once so many tasks are done."""
    experiment, meta = run.experiment, run.load(CPU).meta

    def stop(number: int) -> None:
        if number >= done:
            raise Killed

    store = run.evaluation_shards(identity(experiment, meta, seed=0, stream="test"))
    with pytest.raises(Killed):
        evaluate_in_shards(experiment, meta, tasks=tasks, seed=0, stream="test", store=store, progress=stop)


def test_an_interrupted_evaluation_goes_on_with_the_missing_shards(
    tmp_path: Path, small_shards: None, computed: list[int]
) -> None:
    whole = trained(tmp_path / "whole", sine_line())
    summary = evaluate_run(whole, CPU, tasks=130, seed=0)
    assert computed == [0, 1, 2, 3, 4, 5, 6]
    run = trained(tmp_path / "run", sine_line())
    killed_after(run, 130, done=100)
    assert run.evaluation() is None
    shards = run.evaluation_shards(summary["records"])
    assert sorted(path.name for path in shards.folder.iterdir()) == ["0000000000.safetensors", "0000000040.safetensors"]
    computed.clear()
    resumed = evaluate_run(run, CPU, tasks=130, seed=0)
    assert computed == [4, 5, 6]
    assert without_seconds(resumed) == without_seconds(summary)
    assert equal(run.evaluation_records(), whole.evaluation_records())
    # More tasks of the same evaluation go on, too; the last shard was not whole.
    computed.clear()
    longer = evaluate_run(run, CPU, tasks=200, seed=0)
    assert computed == [6, 7, 8, 9]
    assert without_seconds(longer) == without_seconds(evaluate_run(whole, CPU, tasks=200, seed=0))


@pytest.mark.slow
def test_an_evaluation_survives_a_kill(tmp_path: Path) -> None:
    tasks = 2 * SHARD
    whole, run = (trained(tmp_path / name, sine_line()) for name in ("whole", "run"))
    expected = evaluate_run(whole, CPU, tasks=tasks, seed=0)
    command = [sys.executable, "-m", "fewsure", "evaluate", str(run.folder), "--tasks", str(tasks), "--device", "cpu"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    first = run.evaluation_shards(expected["records"]).folder / "0000000000.safetensors"
    with subprocess.Popen([*command, "--json"], env=environment, stdout=subprocess.PIPE) as process:
        while process.poll() is None and not first.exists():
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
    assert first.exists()
    assert run.evaluation() is None
    before = first.stat().st_mtime_ns
    printed = subprocess.run([*command, "--json"], env=environment, check=True, capture_output=True).stdout
    assert without_seconds(json.loads(printed)) == without_seconds(expected)
    assert first.stat().st_mtime_ns == before
    assert equal(run.evaluation_records(), whole.evaluation_records())


@pytest.mark.parametrize("damage", ["cut", "partial", "empty", "rows", "header"])
def test_a_shard_that_is_not_whole_or_not_its_own_is_made_again(
    damage: str, tmp_path: Path, small_shards: None, computed: list[int]
) -> None:
    run = trained(tmp_path / "run", sine_line())
    summary = evaluate_run(run, CPU, tasks=120, seed=0)
    records = run.evaluation_records()
    other = evaluate_run(trained(tmp_path / "other", sine_line()), CPU, tasks=120, seed=5)
    path = run.evaluation_shards(summary["records"]).folder / "0000000040.safetensors"
    if damage == "cut":
        path.write_bytes(path.read_bytes()[:-8])
    elif damage == "partial":
        path.rename(path.with_name(f".{path.name}.partial"))
    elif damage == "empty":
        path.write_bytes(b"")
    elif damage == "rows":
        tensors = load_file(path)
        tensors["nll"] = tensors["nll"][:3].clone()
        save_file(tensors, path)
    else:  # of other tasks, under this one's name
        shutil.copy(tmp_path / "other" / "evaluation" / other["records"] / path.name, path)
    with pytest.raises(FewsureError, match="run `fewsure evaluate`"):
        run.evaluation_records()
    computed.clear()
    assert without_seconds(evaluate_run(run, CPU, tasks=120, seed=0)) == without_seconds(summary)
    assert computed == [2, 3]
    assert equal(run.evaluation_records(), records)


def test_what_a_shard_belongs_to_depends_on_all_that_decides_its_records(monkeypatch: pytest.MonkeyPatch) -> None:
    experiment = sine_line()
    meta = initial(experiment)
    moved = {part: {name: value + 1e-6 for name, value in params.items()} for part, params in meta.items()}

    def of_first() -> str:
        return identity(sine_line(), initial(sine_line()), seed=0, stream="test")

    found = {
        identity(experiment, meta, seed=0, stream="test"),
        identity(experiment, meta, seed=1, stream="test"),
        identity(experiment, meta, seed=0, stream="validation"),
        identity(experiment, moved, seed=0, stream="test"),
        identity(sine_line(Maml(inner_steps=2)), meta, seed=0, stream="test"),
        identity(dataclasses.replace(experiment, data=SineLine(query=6)), meta, seed=0, stream="test"),
    }
    assert len(found) == 6
    assert of_first() in found
    sources = (path.read_bytes() for path in sorted(Path(fewsure.__file__).parent.rglob("*.py")))
    assert fewsure.evaluation.evaluate._code_checksum() == hashlib.sha256(b"".join(sources)).hexdigest()
    for module, name in ((torch, "__version__"), (fewsure.evaluation.evaluate, "_code_checksum")):
        with monkeypatch.context() as changed:
            changed.setattr(module, name, "another" if name == "__version__" else lambda: "another")
            assert of_first() not in found


def test_another_evaluation_replaces_the_last_one_once_it_is_whole(tmp_path: Path, small_shards: None) -> None:
    run = trained(tmp_path / "run", sine_line())
    other = evaluate_run(run, CPU, tasks=60, seed=9)
    records = run.evaluation_records()
    killed_after(run, 130, done=100)
    assert run.evaluation() == other
    assert equal(run.evaluation_records(), records)
    found = evaluate_run(run, CPU, tasks=130, seed=0)
    assert [path.name for path in (run.folder / "evaluation").iterdir()] == [found["records"]]
    run.forget_evaluation()
    assert not list(run.folder.glob("evaluation*"))


def test_one_of_more_tasks_leaves_the_last_one_readable_until_it_is_whole(tmp_path: Path, small_shards: None) -> None:
    run = trained(tmp_path / "run", sine_line())
    shorter = evaluate_run(run, CPU, tasks=60, seed=0)
    records, folder = run.evaluation_records(), run.evaluation_shards(shorter["records"]).folder
    assert sorted(path.name for path in folder.iterdir()) == ["0000000000.safetensors", "0000000040-20.safetensors"]
    killed_after(run, 130, done=100)  # tasks 40 to 79 are kept by then
    assert run.evaluation() == shorter
    assert equal(run.evaluation_records(), records)
    evaluate_run(run, CPU, tasks=130, seed=0)
    names = sorted(path.name for path in folder.iterdir())
    assert names == [f"{name}.safetensors" for name in ("0000000000", "0000000040", "0000000080", "0000000120-10")]
    assert equal(
        {name: value[:40] for name, value in run.evaluation_records().items()}, {n: v[:40] for n, v in records.items()}
    )


def test_tasks_that_diverge_leave_no_shard_behind(tmp_path: Path) -> None:
    run = start_run(tmp_path / "run", sine_line(Maml(inner_lr=1e30)), resume=False)
    experiment, meta = run.experiment, run.initial().meta
    store = ShardFolder(tmp_path / "shards" / "0123")
    with pytest.raises(Diverged, match="of 30 tasks"):
        evaluate_in_shards(experiment, meta, tasks=30, seed=0, stream="test", store=store)
    assert not store.folder.exists()


# Memory


def live_bytes() -> int:
    """Of all tensors that Python knows of."""
    gc.collect()
    storages = {}
    for found in gc.get_objects():
        if type(found) is torch.Tensor:
            with suppress(NotImplementedError):  # a batched one, which an earlier test may have left, has no storage
                storages[found.untyped_storage().data_ptr()] = found.untyped_storage().nbytes()
    return sum(storages.values())


@pytest.mark.slow
def test_memory_does_not_grow_from_shard_to_shard(tmp_path: Path, blobs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    experiment, size = classes(blobs), 400
    for module in (fewsure.core.shards, fewsure.evaluation.evaluate):
        monkeypatch.setattr(module, "SHARD", size)
    held: dict[int, tuple[int, int]] = {}

    def look(done: int) -> None:
        if done % size == 0:
            held[done] = live_bytes(), resident()

    store = ShardFolder(tmp_path / "0123")
    tasks = 8 * size
    evaluate_in_shards(experiment, initial(experiment), tasks=tasks, seed=0, stream="test", store=store, progress=look)
    kept = sum(path.stat().st_size for path in store.folder.iterdir())
    tensors, memory = zip(*(held[done] for done in range(2 * size, tasks + 1, size)), strict=True)
    assert max(tensors) - min(tensors) < kept / 100
    assert memory[-1] - memory[0] < 8 * 2**20


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


# Those who read the records


@pytest.fixture
def two_runs(tmp_path: Path, blobs: Path, small_shards: None) -> list[Run]:
    longer = dataclasses.replace(classes(blobs), training=Training(updates=3, tasks=3))
    runs = [trained(tmp_path / "first", classes(blobs)), trained(tmp_path / "longer", longer)]
    for run in runs:
        evaluate_run(run, CPU, tasks=110, seed=0)
    return runs


def test_runs_are_compared_shard_by_shard_as_in_one_piece(
    two_runs: list[Run], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (streamed,) = compare_runs(two_runs)
    report = write_report([run.folder for run in two_runs], tmp_path / "a.html", device=CPU, tasks=2, seed=0)
    assert not report.problems
    for module in (fewsure.core.shards, fewsure.evaluation.evaluate):
        monkeypatch.setattr(module, "SHARD", SHARD)
    for run in two_runs:
        evaluate_run(run, CPU, tasks=110, seed=0)
    (whole,) = compare_runs(two_runs)
    assert whole.tests == streamed.tests


def test_the_records_of_a_run_are_looked_up_and_never_made_into_a_path(two_runs: list[Run]) -> None:
    path = two_runs[0].folder / "evaluation.json"
    whole = json.loads(path.read_text())
    for records, tasks in (("../../longer", 110), (["a"], 110), (whole["records"], 10**15), (whole["records"], -1)):
        path.write_text(json.dumps(whole | {"records": records, "tasks": tasks}))
        with pytest.raises(FewsureError, match="run `fewsure evaluate"):
            two_runs[0].evaluation_records()


def test_records_without_a_score_that_the_result_has_are_refused(two_runs: list[Run]) -> None:
    path = two_runs[0].folder / "evaluation.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"mse": {"mean": 1.0, "ci95": 0.1}}))
    with pytest.raises(FewsureError, match=r"are another evaluation's; run `fewsure evaluate"):
        compare_runs(two_runs)


# Several processes, and a GPU


@pytest.mark.slow
def test_several_processes_go_on_where_one_was(tmp_path: Path) -> None:
    tasks = SHARD + 150
    whole, run = (trained(tmp_path / name, sine_line()) for name in ("whole", "run"))
    expected = evaluate_run(whole, CPU, tasks=tasks, seed=0)
    evaluate_run(run, CPU, tasks=SHARD, seed=0)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "-m", "fewsure"]
    command += ["evaluate", str(run.folder), "--tasks", str(tasks), "--device", "cpu", "--json"]
    printed = subprocess.run(command, env=os.environ | {"OMP_NUM_THREADS": "1"}, check=True, capture_output=True).stdout
    assert without_seconds(json.loads(printed)) == without_seconds(expected)
    assert equal(run.evaluation_records(), whole.evaluation_records())


def test_what_is_not_recorded_is_done_each_time() -> None:
    numbers = iter(range(6))
    recorded = CudaGraph[int](torch.Generator(), name="counting", records=False)
    assert [recorded(lambda: next(numbers)) for _ in range(6)] == [0, 1, 2, 3, 4, 5]
    assert not recorded.is_recorded


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA GPU here")
@pytest.mark.parametrize("kind", ["simpa", "maml", "classes"])
def test_recorded_blocks_equal_eager_ones(kind: str, blobs: Path) -> None:
    algorithm = small_simpa(kl="none") if kind == "simpa" else Maml()
    found = []
    for recorded in (True, False):
        experiment = sine_line(algorithm) if kind != "classes" else classes(blobs)
        training = dataclasses.replace(experiment.training, cuda_graph=recorded, precision="float32")
        experiment = dataclasses.replace(experiment, training=training)
        meta = {
            part: {name: value.cuda() for name, value in params.items()} for part, params in initial(experiment).items()
        }
        blocks = UnseenBlocks(experiment, meta, 0, "test", 10 * BLOCK + 7)
        found.append(blocks.records(0, 10 * BLOCK + 7, lambda done: None))
        assert blocks._recorded.is_recorded == recorded
    for name, value in found[0].items():
        torch.testing.assert_close(value, found[1][name])
