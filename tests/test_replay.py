"""A recording on a CPU: the numbers of the function itself, for every method, and those of a training."""

import dataclasses
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch

from fewsure.core.replay import Replay, require_compilable
from fewsure.errors import FewsureError
from fewsure.pipeline import start_run
from fewsure.training.engine import Engine
from fewsure.training.experiment import Experiment, load_preset
from fewsure.training.loop import train
from fewsure.training.runs import Run
from fewsure.training.update import MetaUpdate
from fewsure.types import Stage

from .helpers import assert_close
from .test_protocol import CASES, batch, blobs, small  # noqa: F401 (a fixture)

CPU = torch.device("cpu")


def quick(name: str, data: str, folder: Path = Path("features")) -> Experiment:
    """With two steps in a task."""
    experiment = small(name, data, folder)
    if hasattr(experiment.algorithm, "inner_steps"):
        algorithm = dataclasses.replace(experiment.algorithm, inner_steps=2)
        experiment = dataclasses.replace(experiment, algorithm=algorithm)
    return experiment


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(case))
def test_a_replayed_meta_gradient_is_the_plain_one_bit_for_bit(case: tuple[str, str], blobs: Path) -> None:  # noqa: F811
    experiment = quick(*case, blobs)
    engine = Engine(experiment.algorithm, experiment.model)
    meta, tasks, shared, noise, _ = batch(experiment)
    replayed = Replay(lambda *at: engine.gradient(*at[:-1], Stage(at[-1], 3)), plain_calls=1)
    for update in (10_000, 10_000, 0):  # plain, recorded, and replayed with other numbers than were recorded
        moved = {part: {name: value + update / 1e6 for name, value in params.items()} for part, params in meta.items()}
        gradient, info = replayed(moved, tasks, shared, noise, torch.tensor(update))
        expected, expected_info = engine.gradient(moved, tasks, shared, noise, Stage(torch.tensor(update), 3))
        assert_close(gradient, expected, 0)
        assert_close({"info": info}, {"info": expected_info}, 0)
    assert replayed.is_recorded


def recorded(function: Callable[..., torch.Tensor]) -> Replay[torch.Tensor]:
    found = Replay(function, plain_calls=0)
    found(torch.zeros(3))
    assert found.is_recorded
    return found


def test_a_recording_leaves_out_what_does_nothing() -> None:
    found = recorded(lambda x: (x.detach().expand(3).view(3) + 1).expand(2, 3))
    operations = [node.target for node in found._recorded.graph.nodes if node.op == "call_function"]
    assert operations == [torch.ops.aten.add.Tensor, torch.ops.aten.expand.default]
    assert torch.equal(found(torch.ones(3)), torch.full((2, 3), 2.0))


def test_a_view_of_another_type_is_not_idle() -> None:
    assert torch.equal(recorded(lambda x: x.view(torch.int32))(torch.ones(3)), torch.ones(3).view(torch.int32))


def test_tensors_of_other_shapes_are_not_replayed() -> None:
    found = recorded(lambda x: x.sum() * x.numel())
    assert found(torch.ones(4)) == 16


def test_what_decides_by_numbers_is_called_plainly() -> None:
    found = Replay(lambda x: x + 1 if float(x.sum()) > 0 else x, plain_calls=0)
    with pytest.warns(UserWarning, match="cannot be recorded"):
        assert torch.equal(found(torch.ones(3)), torch.full((3,), 2.0))
    assert torch.equal(found(-torch.ones(3)), -torch.ones(3))


def trained(folder: Path, *, stop_after: int | None = None, **options: object) -> dict:
    experiment = quick("maml", "sine-line")
    training = dataclasses.replace(experiment.training, updates=6, tasks=4, **options)
    run = (
        Run.open(folder)
        if (folder / "config.json").is_file()
        else Run.create(folder, dataclasses.replace(experiment, training=training))
    )
    calls = iter(range(100))
    return train(run, CPU, stop=lambda: stop_after is not None and next(calls) + 1 >= stop_after)


def test_a_training_ends_in_the_same_numbers_recorded_or_not_and_interrupted_or_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = trained(tmp_path / "plain")
    monkeypatch.setattr("fewsure.training.loop.MetaUpdate", partial(MetaUpdate, plain_calls=1))
    recorded = trained(tmp_path / "recorded")
    trained(tmp_path / "interrupted", stop_after=3)
    assert_close(recorded, plain, 0)
    assert_close(trained(tmp_path / "interrupted"), plain, 0)


def test_what_cannot_be_compiled_is_refused_before_a_run_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    experiment = load_preset("recommended", "maml", "sine-line")
    training = dataclasses.replace(experiment.training, compile=True)
    with pytest.raises(FewsureError, match=r"expected a C\+\+ compiler"):
        start_run(tmp_path / "run", dataclasses.replace(experiment, training=training), resume=False)
    assert not (tmp_path / "run").exists()


def test_convolutions_are_not_compiled() -> None:
    with pytest.raises(FewsureError, match="off for convolutions"):
        require_compilable(load_preset("recommended", "maml", "omniglot").model.network)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="there is no C++ compiler (g++)")
def test_a_compiled_training_ends_in_the_same_numbers_but_for_rounding(tmp_path: Path) -> None:
    assert_close(trained(tmp_path / "compiled", compile=True), trained(tmp_path / "plain"), 1e-6)
