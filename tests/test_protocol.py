"""Every registered algorithm through the one interface."""

import dataclasses
from pathlib import Path

import pytest
import torch

from fewsure import streams
from fewsure.algorithms import ALGORITHMS
from fewsure.evaluation import evaluate
from fewsure.experiment import DEFAULT_PRESET, Experiment, load_preset, preset_names
from fewsure.networks import MlpOptions
from fewsure.options import field_documents
from fewsure.training.engine import Engine
from fewsure.types import Algorithm, Parts, Stage
from fewsure.vectorise import draw_noise, draw_per_task, for_each_task

from .helpers import assert_close

TASKS = 3
SMALL = {"latent": 4, "generator_hidden": (8,), "critic_hidden": (8,), "kl_samples": 6}


def small(name: str) -> Experiment:
    """A registered algorithm at its defaults, but small enough to be tested in a moment."""
    experiment = load_preset(DEFAULT_PRESET, name, "sine-line")
    fields = {field.name for field in dataclasses.fields(experiment.algorithm)}  # type: ignore[arg-type]
    options = {key: value for key, value in SMALL.items() if key in fields}
    algorithm = dataclasses.replace(experiment.algorithm, **options)  # type: ignore[type-var]
    return dataclasses.replace(experiment, algorithm=algorithm, network=MlpOptions((6,)))


def batch(experiment: Experiment) -> tuple:
    generator = streams.generator(0, "protocol")
    meta = experiment.algorithm.init(experiment.model, generator)
    tasks = experiment.data.sample(TASKS, generator)
    shared, noise = draw_noise(experiment.algorithm.noise(experiment.model), TASKS, generator)
    return meta, tasks, shared, noise, Stage(torch.tensor(10_000), TASKS)


def every_leaf(parts: Parts) -> list[torch.Tensor]:
    return [value for params in parts.values() for value in params.values()]


@pytest.fixture(params=list(ALGORITHMS))
def experiment(request: pytest.FixtureRequest) -> Experiment:
    return small(request.param)


def test_it_is_a_frozen_dataclass_whose_every_option_is_explained(experiment: Experiment) -> None:
    algorithm = experiment.algorithm
    assert isinstance(algorithm, Algorithm)
    fields = [field.name for field in dataclasses.fields(algorithm)]  # type: ignore[arg-type]
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(algorithm, fields[0], 0)
    assert set(fields) == set(field_documents(type(algorithm)))


def test_it_has_the_papers_preset_and_the_recommended_one() -> None:
    for name in ALGORITHMS:
        for preset in (DEFAULT_PRESET, "paper"):
            assert preset in preset_names("sine-line")
            assert load_preset(preset, name, "sine-line").algorithm_name == name


def test_losses_and_gradients_are_finite_and_deterministic(experiment: Experiment) -> None:
    engine = Engine(experiment.algorithm, experiment.model)
    arguments = batch(experiment)
    gradient, info = engine.gradient(*arguments)
    again, _ = engine.gradient(*batch(experiment))
    assert set(gradient) == set(arguments[0])
    assert all(bool(leaf.isfinite().all()) for leaf in every_leaf(gradient))
    assert any(float(leaf.abs().max()) > 0 for leaf in every_leaf(gradient))
    assert "loss" in info
    assert all(value.shape == () and bool(value.isfinite()) for value in info.values())
    assert_close(gradient, again, 0)


@pytest.mark.usefixtures("float64")
def test_vectorised_equals_loop(experiment: Experiment) -> None:
    arguments = batch(experiment)
    vectorised, _ = Engine(experiment.algorithm, experiment.model).gradient(*arguments)
    looped, _ = Engine(experiment.algorithm, experiment.model, loop=True).gradient(*arguments)
    assert_close(vectorised, looped, 1e-10)


@pytest.mark.parametrize("samples", [1, 8])
def test_it_predicts_with_one_and_with_many_samples(experiment: Experiment, samples: int) -> None:
    algorithm, model = experiment.algorithm, experiment.model
    meta, tasks, shared, noise, _ = batch(experiment)
    prediction_noise = draw_per_task(
        algorithm.prediction_noise(model, samples), TASKS, streams.generator(0, "prediction")
    )

    def predict(parts: tuple, meta: Parts) -> torch.Tensor:
        task, own, prediction = parts
        posterior = algorithm.adapt(meta, model, task.support, shared | own)
        return algorithm.predict(posterior, model, task.query.x, prediction)

    vectorised = for_each_task(predict)((tasks, noise, prediction_noise), meta)
    looped = for_each_task(predict, loop=True)((tasks, noise, prediction_noise), meta)
    functions = vectorised.shape[1]
    assert vectorised.shape == (TASKS, functions, experiment.data.query, 1)
    assert functions in {samples, 1, getattr(algorithm, "particles", 1)}
    torch.testing.assert_close(vectorised, looped, rtol=1e-4, atol=1e-5)


def test_adapting_changes_nothing_it_was_given(experiment: Experiment) -> None:
    meta, tasks, shared, noise, stage = batch(experiment)
    before = [leaf.clone() for leaf in every_leaf(meta)]
    Engine(experiment.algorithm, experiment.model).gradient(meta, tasks, shared, noise, stage)
    assert all(torch.equal(a, b) for a, b in zip(before, every_leaf(meta), strict=True))


def test_its_evaluation_has_every_field_and_does_not_depend_on_how_many_tasks_follow(experiment: Experiment) -> None:
    meta = batch(experiment)[0]
    summary, records = evaluate(experiment, meta, tasks=25, seed=3)
    _, fewer = evaluate(experiment, meta, tasks=7, seed=3)
    torch.testing.assert_close(records["mse"][:7], fewer["mse"])
    assert set(summary) >= {"algorithm", "data", "shot", "tasks", "mse", "nll", "ece", "mce", "reliability"}
    assert set(summary) >= {"seed", "version", "device", "seconds"}
    assert summary["tasks"] == len(records["mse"]) == 25
    assert len(summary["reliability"]["levels"]) == len(summary["reliability"]["observed"]) == 11
    assert set(summary["with_noise"]) >= {"ece", "mce", "reliability"}
    assert summary["ece_ci95"][0] <= summary["ece"] <= summary["ece_ci95"][1] + 0.05


def test_its_help_teaches_every_option(experiment: Experiment, capsys: pytest.CaptureFixture[str]) -> None:
    from fewsure.cli import main

    with pytest.raises(SystemExit) as exit_code:
        main(["train", experiment.algorithm_name, "--help"])
    assert exit_code.value.code == 0
    text = " ".join(capsys.readouterr().out.split())
    for field in dataclasses.fields(experiment.algorithm):  # type: ignore[arg-type]
        assert "--" + field.name.replace("_", "-") in text


def test_no_option_of_an_algorithm_hides_one_of_the_data_the_network_or_the_training() -> None:
    for name in ALGORITHMS:
        experiment = small(name)
        groups = (experiment.algorithm, experiment.data, experiment.network, experiment.training)
        names = [field.name for group in groups for field in dataclasses.fields(group)]  # type: ignore[arg-type]
        assert len(names) == len(set(names)), name


def test_a_checkpoint_of_it_reads_back(experiment: Experiment, tmp_path: Path) -> None:
    from fewsure.training.runs import Run

    run = Run.create(tmp_path / "run", experiment)
    run.save(run.initial())
    assert_close(run.load(torch.device("cpu")).meta, run.initial().meta, 0)
