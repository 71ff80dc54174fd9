"""Several processes: the numbers of one, one that writes, and an end with a message when one is killed."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from fewsure.cli.train import read_arguments
from fewsure.core import distributed
from fewsure.data.sets.sine_line import SineLine
from fewsure.errors import FewsureError
from fewsure.networks.mlp import MlpOptions
from fewsure.training.experiment import Experiment, Training
from fewsure.training.optimiser import Optimiser
from fewsure.training.runs import Run
from fewsure.training.update import MetaUpdate

from .reliability import short
from .reliability.faults import ROOT, one_thread
from .reliability.ranks import METHODS, OFFSET, TASKS

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    return short.found(
        equality="ranks.equality((2, 4), updates=4)",
        killed="ranks.killed_fork(updates=100)",
        diverged="ranks.diverging()",
    )


@pytest.mark.parametrize("processes", [2, 4])
@pytest.mark.parametrize("method", ["simpa", "maml"])
def test_several_processes_train_evaluate_and_certify_as_one_does(
    found: dict[str, Any], method: str, processes: int
) -> None:
    difference = found["equality"][f"{method}, {processes} processes"]
    assert difference["weights"] < 1e-9  # Adam divides by small numbers
    assert difference["critic_offset"] < 1e-9
    assert difference["logged"] < 1e-12
    assert difference["evaluated_tasks"] < 1e-9
    assert difference["certificate"] < 1e-9


def test_when_training_diverges_all_processes_end_with_a_message(found: dict[str, Any]) -> None:
    assert found["diverged"] == [2, 2]


def test_the_offset_of_the_critic_has_no_gradient_but_rounding() -> None:
    experiment = Experiment(METHODS["simpa"], SineLine(query=6), MlpOptions((5,)), Training(tasks=TASKS), "none")
    meta = experiment.algorithm.init(experiment.model, torch.Generator().manual_seed(0))
    optimiser = Optimiser(meta, torch.device("cpu"))
    MetaUpdate(experiment, meta, optimiser, torch.device("cpu"))(0)
    norms = dict(zip(optimiser.names, optimiser.norms.tolist(), strict=True))
    assert norms.pop(OFFSET) < 1e-6
    assert min(norms.values()) > 1e-3


def test_the_others_end_soon_with_a_message_when_one_is_killed_and_all_can_be_resumed(found: dict[str, Any]) -> None:
    killed = found["killed"]
    assert killed["codes"] == [2, -9]
    assert killed["seconds"] < 60
    assert 0 < killed["stopped_at"] < 100
    assert killed["resumed"] == [0, 0]
    assert killed["equal"]


@pytest.mark.parametrize("processes", [1, 2, 3, 7])
def test_shares_cover_all_tasks_once(processes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(distributed, "world_size", lambda: processes)
    taken: list[int] = []
    sizes = set()
    for number in range(processes):
        monkeypatch.setattr(distributed, "rank", lambda number=number: number)
        own = list(range(20))[distributed.task_share(20)]
        taken += own
        sizes.add(len(own))
    assert taken == list(range(20))
    assert max(sizes) - min(sizes) <= 1


def test_more_processes_than_tasks_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(distributed, "world_size", lambda: 4)
    with pytest.raises(FewsureError, match="at least the number of processes, but got 3 and 4"):
        distributed.task_share(3)


def test_one_process_needs_nobody() -> None:
    with distributed.process_group("cpu") as device:
        assert device == torch.device("cpu")
        assert distributed.is_rank_zero()
        tree = {"a": torch.ones(2)}
        assert distributed.weighted_sum(tree, 1.0) is tree
        assert distributed.all_gather(2.5) == [2.5]
        assert (distributed.any_process(True), distributed.any_process(False)) == (True, False)
        found = distributed.map_in_turn([2, 1], int, lambda size: {"x": torch.full((size,), size)}, lambda done: None)
        assert found["x"].tolist() == [2, 2, 1]


@pytest.fixture
def cluster(tmp_path: Path) -> dict[str, str]:
    """The environment of a SLURM job on this machine: `srun` and `scontrol` are stand-ins, all else is real."""
    commands = tmp_path / "bin"
    commands.mkdir()
    programs = {"srun": '"$@"', "scontrol": "echo localhost"}
    programs |= {"fewsure": f'{sys.executable} -m fewsure "$@"'}
    programs |= {"torchrun": f'{sys.executable} -m torch.distributed.run "$@"'}
    for name, line in programs.items():
        (commands / name).write_text(f"#!/bin/bash\nexec {line}\n")
        (commands / name).chmod(0o755)
    job = {"SLURM_JOB_ID": str(os.getpid()), "SLURM_JOB_NUM_NODES": "1", "SLURM_JOB_NODELIST": "localhost"}
    job |= {"SLURM_GPUS_ON_NODE": "2", "SLURM_ARRAY_TASK_ID": "2"}
    return one_thread() | job | {"PATH": f"{commands}:{os.environ['PATH']}"}


def submitted(script: str, arguments: list[str], cluster: dict[str, str]) -> None:
    command = ["bash", str(ROOT / "examples" / "slurm" / script), *arguments]
    ended = subprocess.run(command, check=False, cwd=ROOT, env=cluster, capture_output=True, text=True, timeout=300)
    assert ended.returncode == 0, ended.stderr[-3000:]


SMALL = ["--updates", "4", "--tasks", "2", "--hidden", "4", "--device", "cpu", "--json"]


def test_the_job_file_of_a_training_starts_torchrun(cluster: dict[str, str], tmp_path: Path) -> None:
    submitted("train.sbatch", ["maml", *SMALL, "--out", str(tmp_path / "run")], cluster)
    assert Run.open(tmp_path / "run").load(torch.device("cpu")).update == 4


def test_the_job_file_of_a_sweep_trains_and_evaluates_its_line(cluster: dict[str, str], tmp_path: Path) -> None:
    lines = [" ".join(["maml", *SMALL, "--out", str(tmp_path / f"run-{number}")]) for number in (1, 2)]
    (tmp_path / "sweep.txt").write_text("\n".join(lines) + "\n")
    submitted("sweep.sbatch", [str(tmp_path / "sweep.txt")], cluster)
    assert not (tmp_path / "run-1").exists()
    evaluation = Run.open(tmp_path / "run-2").evaluation()
    assert evaluation is not None
    assert evaluation["tasks"] == 1000


def test_every_line_of_the_sweep_is_a_training() -> None:
    lines = (ROOT / "examples" / "slurm" / "sweep.txt").read_text().splitlines()
    folders = {str(read_arguments(line.split())[0].out) for line in lines}
    assert len(folders) == len(lines) >= 2
