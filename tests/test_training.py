"""Runs: the same seed, the same file; interrupted and resumed, the same result; nothing half-written."""

import dataclasses
import itertools
import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from fewsure.algorithms import ALGORITHMS
from fewsure.algorithms.gp import Gp
from fewsure.algorithms.maml import Maml
from fewsure.algorithms.pacoh import Pacoh
from fewsure.core import streams
from fewsure.data.sets.sine_line import SineLine
from fewsure.errors import Diverged, FewsureError
from fewsure.evaluation.evaluate import evaluate
from fewsure.networks.mlp import MlpOptions
from fewsure.training.experiment import Experiment, Training
from fewsure.training.loop import train
from fewsure.training.optimiser import Optimiser, optimiser_shapes
from fewsure.training.runs import Run
from fewsure.training.schedule import learning_rate
from fewsure.types import Algorithm

from .helpers import small_simpa

CPU = torch.device("cpu")
METHODS = [Maml(), small_simpa(), small_simpa(kl="moment+critic"), Gp(learn_features=True), Pacoh(particles=2)]


def experiment(algorithm: Algorithm, **training: object) -> Experiment:
    options = {"updates": 12, "tasks": 3} | training
    return Experiment(algorithm, SineLine(query=6), MlpOptions((5,)), Training(**options), "none")  # type: ignore[arg-type]


def trained(folder: Path, algorithm: Algorithm, **training: object) -> bytes:
    run = Run.create(folder, experiment(algorithm, **training))
    train(run, CPU, checkpoint_every=5, log_every=2)
    return (folder / "checkpoint.safetensors").read_bytes()


@pytest.mark.parametrize("algorithm", METHODS, ids=lambda method: type(method).__name__)
def test_the_same_seed_gives_the_same_file_and_another_one_does_not(tmp_path: Path, algorithm: Algorithm) -> None:
    assert trained(tmp_path / "a", algorithm) == trained(tmp_path / "b", algorithm)
    assert trained(tmp_path / "a2", algorithm) != trained(tmp_path / "c", algorithm, seed=1)


@pytest.mark.parametrize("algorithm", METHODS, ids=lambda method: type(method).__name__)
@pytest.mark.parametrize("stop_after", [1, 5, 7])
def test_a_resumed_run_equals_an_uninterrupted_one_bit_for_bit(
    tmp_path: Path, algorithm: Algorithm, stop_after: int
) -> None:
    whole = trained(tmp_path / "whole", algorithm)
    run = Run.create(tmp_path / "parts", experiment(algorithm))
    seen: list[int] = []

    def stop() -> bool:
        seen.append(0)
        return len(seen) == stop_after  # asked once after each update

    train(run, CPU, checkpoint_every=5, log_every=2, stop=stop)
    assert run.load(CPU).update == stop_after
    train(Run.open(run.folder), CPU, checkpoint_every=5, log_every=2)
    assert (run.folder / "checkpoint.safetensors").read_bytes() == whole
    assert [line["update"] for line in run.metrics()][-1] == 12


def test_a_run_killed_after_a_checkpoint_logs_each_update_once(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    whole = trained(folder, Maml())
    lines = (folder / "metrics.jsonl").read_text()
    run = Run.open(folder)
    # As if killed while writing a line past the last checkpoint.
    (folder / "metrics.jsonl").write_text(lines + '{"update": 14, "seconds": 1.0}\n{"upda')
    train(run, CPU, checkpoint_every=5, log_every=2)
    assert (folder / "metrics.jsonl").read_text() == lines
    assert (folder / "checkpoint.safetensors").read_bytes() == whole


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA GPU here")
@pytest.mark.parametrize("algorithm", METHODS, ids=lambda method: type(method).__name__)
def test_a_recorded_update_equals_an_eager_one(tmp_path: Path, algorithm: Algorithm) -> None:
    results = []
    for recorded in (True, False):
        run = Run.create(tmp_path / str(recorded), experiment(algorithm, updates=50, cuda_graph=recorded))
        results.append(train(run, torch.device("cuda")))
    for part, params in results[0].items():
        for name, value in params.items():
            torch.testing.assert_close(value, results[1][part][name])


def test_metrics_hold_every_term_of_the_bound(tmp_path: Path) -> None:
    trained(tmp_path / "run", small_simpa(kl="critic"))
    lines = Run.open(tmp_path / "run").metrics()
    assert [line["update"] for line in lines] == [2, 4, 5, 6, 8, 10, 12]
    terms = {"loss", "clipped_loss", "R_i", "R_0", "bound", "kl", "critic", "gradient_norm", "skipped"}
    assert terms | {"update", "device", "seconds", "tasks_per_second"} == set(lines[0])
    for line in lines:
        assert line["bound"] == pytest.approx(line["clipped_loss"] + line["R_i"] + line["R_0"], rel=1e-5)


def test_a_config_reads_back_as_the_same_experiment(tmp_path: Path) -> None:
    for algorithm in METHODS:
        chosen = experiment(algorithm, clip_norm=None)
        folder = tmp_path / str(id(algorithm))
        Run.create(folder, chosen)
        assert Run.open(folder).experiment == chosen


IN_THE_PAPER = ["simpa", "maml", "abml", "vampire", "platipus", "bmaml"]


@pytest.mark.parametrize("presets", ["sine-line", "classification"])
@pytest.mark.parametrize("algorithm", IN_THE_PAPER)
def test_the_paper_preset_sets_every_option_of_its_algorithm(algorithm: str, presets: str) -> None:
    import tomllib
    from importlib import resources

    table = tomllib.loads((resources.files("fewsure.training") / f"presets/{presets}/paper.toml").read_text())
    fields = dataclasses.fields(ALGORITHMS[algorithm])
    assert set(table[algorithm]["algorithm"]) == {field.name for field in fields}


def test_diverging_training_stops_with_the_last_good_checkpoint(tmp_path: Path) -> None:
    run = Run.create(tmp_path / "run", experiment(Maml(inner_lr=1e30), updates=4))
    with pytest.raises(FewsureError, match=r"diverged.*`loss` is not finite"):
        train(run, CPU, log_every=1)
    assert not run.has_checkpoint


def test_an_evaluation_whose_predictions_are_no_numbers_is_refused(tmp_path: Path) -> None:
    run = Run.create(tmp_path / "run", experiment(Maml(inner_lr=1e30)))
    with pytest.raises(Diverged, match=r"diverged on \d+ of 10 tasks"):
        evaluate(run.experiment, run.initial().meta, tasks=10, seed=0)


def test_an_update_whose_gradient_is_not_finite_is_skipped_and_counted() -> None:
    meta = {"a": {"w": torch.ones(2)}}
    optimiser = Optimiser(meta, torch.device("cpu"))
    optimiser.set_learning_rate(0.1)
    optimiser.step({"a": {"w": torch.tensor([1.0, -1.0])}}, clip_norm=1.0)
    assert bool((meta["a"]["w"] != 1).all())
    before = {"w": meta["a"]["w"], **optimiser.state()}
    before = {name: value.clone() for name, value in before.items()}
    norm = optimiser.step({"a": {"w": torch.tensor([1.0, float("nan")])}}, clip_norm=1.0)
    assert not bool(norm.isfinite())
    after = {"w": meta["a"]["w"], **optimiser.state()}
    assert all(torch.equal(after[name], value) for name, value in before.items())


@pytest.mark.parametrize("cut", [0, 5, 100, -10])
def test_a_checkpoint_cut_short_is_refused_and_left_as_it_is(tmp_path: Path, cut: int) -> None:
    content = trained(tmp_path / "run", Maml())[:cut]
    (tmp_path / "run" / "checkpoint.safetensors").write_bytes(content)
    with pytest.raises(FewsureError, match="damaged or cut short"):
        Run.open(tmp_path / "run").load(CPU)
    assert (tmp_path / "run" / "checkpoint.safetensors").read_bytes() == content


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("update", torch.tensor([1, 2])),
        ("update", torch.tensor(-7)),
        ("update", torch.tensor(10_000)),
        ("optimiser/weights/0.weight/exp_avg", torch.zeros(3)),
        ("optimiser/weights/9.weight/exp_avg", torch.zeros(3)),
        ("meta/weights/0.bias", torch.zeros(5, dtype=torch.long)),
        ("meta/weights/0.bias", torch.full((5,), float("nan"))),
    ],
)
def test_a_checkpoint_with_a_damaged_tensor_is_refused(tmp_path: Path, name: str, value: torch.Tensor) -> None:
    from safetensors.torch import load, save

    content = load(trained(tmp_path / "run", Maml()))
    (tmp_path / "run" / "checkpoint.safetensors").write_bytes(save(content | {name: value}))
    with pytest.raises(FewsureError, match="train the run anew"):
        Run.open(tmp_path / "run").load(CPU)


def test_a_checkpoint_of_another_experiment_is_refused(tmp_path: Path) -> None:
    trained(tmp_path / "simpa", small_simpa())
    trained(tmp_path / "maml", Maml())
    (tmp_path / "maml" / "checkpoint.safetensors").replace(tmp_path / "simpa" / "checkpoint.safetensors")
    with pytest.raises(FewsureError, match="does it belong"):
        Run.open(tmp_path / "simpa").load(CPU)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"format": 99, "version": "9.9"},
            r"format 99 \(version 9.9\), but this version reads 1; train the run anew",
        ),
        ({"training": {}}, "is missing"),
        ({"network": {"hidden": [5], "colour": 1}}, "unknown option `colour`"),
        ({"network": {"hidden": 5, "activation": "relu", "active_inputs": None}}, "a list"),
        ({"network": 5}, "a table of options"),
        ({"algorithm": {"name": "mammal"}}, "did you mean 'maml'"),
    ],
)
def test_a_config_of_another_version_is_refused(tmp_path: Path, change: dict, message: str) -> None:
    trained(tmp_path / "run", Maml())
    config = tmp_path / "run" / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | change))
    with pytest.raises(FewsureError, match=message):
        Run.open(tmp_path / "run")


def test_schedules() -> None:
    cosine = [learning_rate(u, 12, peak=2.0, schedule="cosine", warm_up=2) for u in range(12)]
    assert cosine[:3] == [1.0, 2.0, 2.0]
    assert cosine[7] == pytest.approx(1.0)
    assert all(a > b for a, b in itertools.pairwise(cosine[2:]))
    assert 0 < cosine[-1] < 0.1


def test_the_optimiser_is_adam_and_clips_the_norm_over_all_groups() -> None:
    meta = {"a": {"w": torch.zeros(3)}, "b": {"w": torch.zeros(1)}}
    gradient = {"a": {"w": torch.tensor([3.0, 0.0, 0.0])}, "b": {"w": torch.tensor([4.0])}}
    reference = torch.zeros(4, requires_grad=True)
    adam = torch.optim.Adam([reference])
    optimiser = Optimiser(meta, torch.device("cpu"))
    for lr in (0.1, 0.05):
        optimiser.set_learning_rate(lr)
        norm = optimiser.step({k: {n: v.clone() for n, v in g.items()} for k, g in gradient.items()}, clip_norm=1.0)
        assert float(norm) == pytest.approx(5)
        reference.grad = torch.tensor([0.6, 0, 0, 0.8])
        adam.param_groups[0]["lr"] = lr
        adam.step()
    torch.testing.assert_close(torch.cat([meta["a"]["w"], meta["b"]["w"]]), reference.detach(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["adam", "adamw", "sgd"])
def test_a_step_is_that_of_torchs_plain_optimiser_and_a_gradient_that_is_not_finite_changes_nothing(name: str) -> None:
    generator = streams.generator(0, "optimiser")
    meta = {"weights": {"w": torch.randn(4, 3, generator=generator), "b": torch.randn(3, generator=generator)}}
    plain = [value.clone() for value in meta["weights"].values()]
    kind = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW, "sgd": torch.optim.SGD}[name]
    momentum = {"momentum": 0.8} if name == "sgd" else {}
    reference = kind(plain, lr=0.1, weight_decay=0.2, **momentum)
    optimiser = Optimiser(meta, torch.device("cpu"), name=name, weight_decay=0.2, momentum=0.8)
    optimiser.set_learning_rate(0.1)
    for _ in range(3):
        gradient = {key: torch.randn(value.shape, generator=generator) for key, value in meta["weights"].items()}
        optimiser.step({"weights": gradient})
        for value, leaf in zip(plain, gradient.values(), strict=True):
            value.grad = leaf
        reference.step()
    torch.testing.assert_close(list(meta["weights"].values()), plain)
    before = {key: value.clone() for key, value in (optimiser.state() | meta["weights"]).items()}
    optimiser.step({"weights": {key: torch.full_like(value, torch.nan) for key, value in meta["weights"].items()}})
    after = optimiser.state() | meta["weights"]
    assert all(torch.equal(value, after[key]) for key, value in before.items())
    shapes = {key: value.shape for key, value in optimiser.state().items()}
    assert shapes == optimiser_shapes(meta, name, 0.8)


@pytest.mark.parametrize("weight_decay", [0.0, 0.01])
@pytest.mark.parametrize("name", ["adam", "adamw", "sgd"])
def test_an_optimiser_makes_the_steps_of_torchs_own_bit_for_bit(name: Any, weight_decay: float) -> None:
    generator = torch.Generator().manual_seed(0)
    shapes = {"weight": (3, 4), "bias": (5,)}
    meta = {"part": {key: torch.randn(shape, generator=generator) for key, shape in shapes.items()}}
    same = [value.clone().requires_grad_() for value in meta["part"].values()]
    ours = Optimiser(meta, torch.device("cpu"), name=name, weight_decay=weight_decay)
    ours.set_learning_rate(0.01)
    options: dict[str, Any] = {"lr": torch.tensor(0.01), "weight_decay": weight_decay, "fused": True}
    kinds = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW, "sgd": partial(torch.optim.SGD, momentum=0.9)}
    torchs = kinds[name](same, **options)
    for _ in range(4):
        gradient = {"part": {key: torch.randn(shape, generator=generator) for key, shape in shapes.items()}}
        for value, slope in zip(same, gradient["part"].values(), strict=True):
            value.grad = slope.clone()
        ours.step(gradient)
        torchs.step()
    for found, expected in zip(meta["part"].values(), same, strict=True):
        assert torch.equal(found, expected)
