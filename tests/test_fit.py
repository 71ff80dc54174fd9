"""Meta-parameters that come from whole training groups, before the first update."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor

from fewsure import Table
from fewsure.algorithms import ALGORITHMS
from fewsure.core import streams
from fewsure.data.features import Features
from fewsure.data.sets.sine_line import GROUPS, SineLine
from fewsure.networks.mlp import MlpOptions
from fewsure.training.experiment import Experiment, Training
from fewsure.training.loop import train
from fewsure.training.runs import Run
from fewsure.types import Algorithm, Batch, Info, Kind, Model, Noise, Parts, Stage, Task

from .helpers import write_blobs

CPU = torch.device("cpu")


@dataclass(frozen=True)
class Pooled(Algorithm):
    """The mean label of all training rows, which updates may move."""

    kinds: ClassVar[frozenset[Kind]] = frozenset({"regression"})
    fits: ClassVar[list[int]] = []
    """The number of groups of each fit so far."""

    def init(self, model: Model, generator: torch.Generator) -> Parts:
        return {"mean": {"y": torch.zeros(1)}}

    def fit(self, meta: Parts, model: Model, groups: Sequence[Batch], generator: torch.Generator) -> Parts:
        self.fits.append(len(groups))
        return {"mean": {"y": torch.cat([group.y for group in groups]).mean(0)}}

    def adapt(self, meta: Parts, model: Model, support: Batch, noise: Noise) -> Parts:
        return meta

    def loss(self, meta: Parts, model: Model, task: Task, noise: Noise, stage: Stage) -> tuple[Tensor, Info]:
        loss = (task.query.y - meta["mean"]["y"]).square().mean()
        return loss, {"loss": loss}

    def predict(self, posterior: Parts, model: Model, x: Tensor, noise: Noise) -> Tensor:
        return posterior["mean"]["y"].expand(1, len(x), 1)


@pytest.fixture
def table(tmp_path: Path) -> Table:
    generator = np.random.default_rng(0)
    rows = [f"g{task},{generator.normal()},{task + row}" for task in range(20) for row in range(10 + task)]
    (tmp_path / "t.csv").write_text("\n".join(["group,x,y", *rows]) + "\n")
    return Table(file=tmp_path / "t.csv", task_column="group", target="y", shot=3, query=3)


def run_of(table: Table, folder: Path, monkeypatch: pytest.MonkeyPatch, **options: object) -> Run:
    monkeypatch.setitem(ALGORITHMS, "pooled", Pooled)
    Pooled.fits.clear()
    return Run.create(folder, Experiment(Pooled(), table, MlpOptions(), Training(**options), "recommended"))


def test_without_updates_the_checkpoint_is_what_was_fitted(
    table: Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = run_of(table, tmp_path / "run", monkeypatch, updates=0)
    for _ in range(2):
        train(run, CPU)
    assert Pooled.fits == [12]  # once, and with the training tasks alone
    assert len(run.metrics()) == 1
    assert float(run.load(CPU).meta["mean"]["y"]) == pytest.approx(0, abs=1e-6)  # targets are centred by these rows


def test_updates_go_on_from_the_fit_and_a_resumed_run_ends_in_the_same_numbers(
    table: Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, stopped = (
        run_of(table, tmp_path / name, monkeypatch, updates=4, tasks=2, lr=0.1) for name in ("whole", "stopped")
    )
    train(whole, CPU)
    train(stopped, CPU, stop=lambda: True)
    assert stopped.load(CPU).update == 1
    train(stopped, CPU)
    assert Pooled.fits == [12, 12]
    ends = [run.load(CPU).meta["mean"]["y"] for run in (whole, stopped)]
    assert torch.equal(*ends)
    assert float(ends[0].abs()) > 1e-3


def test_a_run_that_was_killed_after_its_fit_does_not_fit_again(
    table: Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = run_of(table, tmp_path / "run", monkeypatch, updates=2, tasks=2)
    with monkeypatch.context() as patch:
        patch.setattr("fewsure.training.loop.MetaUpdate", interrupted)
        with pytest.raises(KeyboardInterrupt):
            train(run, CPU)
    assert run.load(CPU).update == 0
    train(run, CPU)
    assert Pooled.fits == [12]


def interrupted(*_: object) -> None:
    raise KeyboardInterrupt


def test_groups_are_whole_tasks_or_whole_classes(table: Table, tmp_path: Path) -> None:
    generator = streams.generator(0, "groups")
    tasks = table.groups(CPU, generator)
    assert len(tasks) == 12
    assert len(tasks[0].x) == len(tasks[0].y) >= 10
    assert sum(len(task.y) for task in tasks[3:]) == sum(len(task.y) for task in list(tasks)[3:])
    classes = Features(folder=str(write_blobs(tmp_path / "blobs"))).groups(CPU, generator)
    assert [batch.y.unique().tolist() for batch in classes] == [[number] for number in range(8)]
    assert {tuple(batch.x.shape) for batch in classes} == {(12, 6)}
    sines = SineLine(shot=5, query=7).groups(CPU, generator)
    assert (len(sines), tuple(sines[0].x.shape), tuple(sines[0].y.shape)) == (GROUPS, (12, 1), (12, 1))


@pytest.mark.parametrize(("later", "best"), [([1.0, 2.0, 1.5], 0), ([1.0, 1.1, 1.0], 4), ([1.0, 1.1, 2.9], 0)])
def test_what_was_fitted_predicts_until_updates_are_ahead_of_it_by_more_than_chance(
    table: Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, later: list[float], best: int
) -> None:
    """In a run that is resumed, too. Its groups have scores of their own, by which lower ones are compared."""
    run = run_of(table, tmp_path / "run", monkeypatch, updates=6, tasks=2, lr=0.1, keep_best=2, patience=9)
    scores = iter([[1.5, 1.6, 1.4], [1.5, 1.6, 1.39], later, [9.0, 9.0, 9.0]])
    train(run, CPU, score=lambda meta: next(scores), stop=lambda: True)
    train(run, CPU, score=lambda meta: next(scores))
    assert run.load(CPU, run.chosen).update == best
    assert [line.get("ahead_of_start") for line in run.metrics() if "validation_nll" in line][1:] == [0, best > 0, 0]
