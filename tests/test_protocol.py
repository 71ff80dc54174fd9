"""Every registered algorithm through the one interface."""

import dataclasses
import math
from pathlib import Path

import pytest
import torch

from fewsure.algorithms import ALGORITHMS
from fewsure.algorithms.protonet import ProtoNet
from fewsure.cli.options import field_documents
from fewsure.core import streams
from fewsure.core.config import LEARNED
from fewsure.core.vectorise import draw_noise, draw_per_task, for_each
from fewsure.data import DATA
from fewsure.data.features import Features
from fewsure.data.sets.sine_line import SineLine
from fewsure.errors import FewsureError
from fewsure.evaluation.evaluate import evaluate
from fewsure.networks.mlp import MlpOptions
from fewsure.training.engine import Engine
from fewsure.training.experiment import DEFAULT_PRESET, Experiment, Training, load_preset, preset_names
from fewsure.types import Parts, Stage

from .helpers import assert_close, write_blobs

TASKS = 3
PAPERS = ["simpa", "maml", "abml", "vampire", "platipus", "bmaml", "protonet"]
"""Methods that the paper compares."""
KINDS = {"sine-line": "regression", "features": "classification"}
SMALL = {"latent": 4, "generator_hidden": (8,), "encoder_width": 8, "critic_hidden": (8,), "kl_samples": 6}


def small(name: str, data: str, folder: Path = Path("features")) -> Experiment:
    """A registered algorithm with the recommended preset, but small enough to be tested in a moment."""
    experiment = load_preset(DEFAULT_PRESET, name, data)
    if isinstance(experiment.data, Features):
        changed = {"folder": str(folder), "way": 3, "train_way": None, "query": 4, "train_query": None}
        experiment = dataclasses.replace(experiment, data=dataclasses.replace(experiment.data, **changed))
    fields = {field.name for field in dataclasses.fields(experiment.algorithm)}  # type: ignore[arg-type]
    options = {key: value for key, value in SMALL.items() if key in fields}
    algorithm = dataclasses.replace(experiment.algorithm, **options)  # type: ignore[type-var]
    return dataclasses.replace(experiment, algorithm=algorithm, network=type(experiment.network)((6,)))


def batch(experiment: Experiment) -> tuple:
    generator = streams.generator(0, "protocol")
    meta = experiment.algorithm.init(experiment.model, generator)
    tasks, _ = experiment.data.tasks("train", torch.device("cpu")).sample(TASKS, generator)
    shared, noise = draw_noise(experiment.algorithm.noise(experiment.model, 5, 10), TASKS, generator)
    return meta, tasks, shared, noise, Stage(torch.tensor(10_000), TASKS)


def every_leaf(parts: Parts) -> list[torch.Tensor]:
    return [value for params in parts.values() for value in params.values()]


@pytest.fixture(scope="session")
def blobs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_blobs(tmp_path_factory.mktemp("data") / "blobs")


CASES = [(name, data) for name, method in ALGORITHMS.items() for data in KINDS if KINDS[data] in method.kinds]


@pytest.fixture(params=CASES, ids=lambda case: "-".join(case))
def experiment(request: pytest.FixtureRequest, blobs: Path) -> Experiment:
    return small(*request.param, blobs)


def test_it_is_a_frozen_dataclass_whose_every_option_is_explained(experiment: Experiment) -> None:
    algorithm = experiment.algorithm
    fields = [field.name for field in dataclasses.fields(algorithm)]  # type: ignore[arg-type]
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(algorithm, next(iter(fields), "any"), 0)
    assert set(fields) <= set(field_documents(type(algorithm)))


def test_it_has_the_papers_preset_and_the_recommended_one() -> None:
    for name, data in CASES:
        for preset in (DEFAULT_PRESET, "paper") if name in PAPERS else (DEFAULT_PRESET,):
            assert preset in preset_names(data)
            assert load_preset(preset, name, data).algorithm_name == name


@pytest.mark.parametrize(
    "data", [data for data, kind in DATA.items() if data != "features" and "classification" in kind.presets]
)
def test_every_data_set_has_presets_of_both_shots_at_the_papers_settings(data: str) -> None:
    for name in PAPERS:
        one, five = (load_preset(preset, name, data) for preset in ("paper", "paper-5-shot"))
        assert (one.data.way, one.data.shot, five.data.way, five.data.shot) == (5, 1, 5, 5)
        assert (one.training.tasks, one.algorithm) == (20, five.algorithm)


def test_protonet_on_regression_is_refused_with_the_reason() -> None:
    with pytest.raises(FewsureError, match="protonet solves classification alone, but sine-line is regression"):
        Experiment(ProtoNet(), SineLine(), MlpOptions(), Training(), preset="recommended")


@pytest.mark.parametrize("name", [name for name in PAPERS if name != "protonet"])
def test_a_method_with_an_output_per_class_cannot_train_with_another_way(name: str) -> None:
    experiment = load_preset(DEFAULT_PRESET, name, "omniglot")
    with pytest.raises(FewsureError, match="`train_way` to equal `way`, but got 20 and 5"):
        dataclasses.replace(experiment, data=dataclasses.replace(experiment.data, train_way=20))


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
        algorithm.prediction_noise(model, samples, 5), TASKS, streams.generator(0, "prediction")
    )

    def predict(parts: tuple, meta: Parts) -> torch.Tensor:
        task, own, prediction = parts
        posterior = algorithm.adapt(meta, model, task.support, shared | own)
        return algorithm.predict(posterior, model, task.query.x, prediction)

    vectorised = for_each(predict)((tasks, noise, prediction_noise), meta)
    looped = for_each(predict, loop=True)((tasks, noise, prediction_noise), meta)
    functions = vectorised.shape[1]
    assert vectorised.shape == (TASKS, functions, experiment.data.query_size, model.outputs)
    components = getattr(algorithm, "components", getattr(algorithm, "particles", 1))  # each has an equal share
    assert functions in {1, getattr(algorithm, "particles", 1), components * math.ceil(samples / components)}
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
    for name, values in records.items():
        torch.testing.assert_close(values[:7], fewer[name], msg=name)
    assert set(summary) >= {"algorithm", "data", "shot", "tasks", "nll", "ece", "mce", "reliability", "transductive"}
    assert set(summary) >= {"seed", "version", "device", "seconds", "stream", "data_checksum"}
    assert summary["tasks"] == len(records["nll"]) == 25
    if experiment.model.kind == "regression":
        assert len(summary["reliability"]["levels"]) == len(summary["reliability"]["observed"]) == 11
        assert set(summary["with_noise"]) >= {"ece", "mce", "reliability"}
        assert "mse" in summary
    else:
        assert set(summary) >= {"accuracy", "way", "brier", "adaptive_ece"}
        assert 0 <= summary["accuracy"]["mean"] <= 1
        assert sum(summary["reliability"]["weight"]) == pytest.approx(1)
        assert len(summary["data_checksum"]) == 64
    assert summary["ece_ci95"][0] <= summary["ece"] <= summary["ece_ci95"][1] + 0.05


def test_its_help_teaches_every_option(experiment: Experiment, capsys: pytest.CaptureFixture[str]) -> None:
    from fewsure.cli.main import main

    with pytest.raises(SystemExit) as exit_code:
        main(["train", experiment.algorithm_name, "--data", experiment.data_name, "--help"])
    assert exit_code.value.code == 0
    text = " ".join(capsys.readouterr().out.split())
    for group in (experiment.algorithm, experiment.data, experiment.network):
        for field in dataclasses.fields(group):  # type: ignore[arg-type]
            assert field.metadata == LEARNED or "--" + field.name.replace("_", "-") in text


def test_no_option_of_an_algorithm_hides_one_of_the_data_the_network_or_the_training() -> None:
    for name, data in CASES:
        experiment = load_preset(DEFAULT_PRESET, name, data)
        groups = (experiment.algorithm, experiment.data, experiment.network, experiment.training)
        names = [field.name for group in groups for field in dataclasses.fields(group)]  # type: ignore[arg-type]
        assert len(names) == len(set(names)), name


def test_a_checkpoint_of_it_reads_back(experiment: Experiment, tmp_path: Path) -> None:
    from fewsure.training.runs import Run

    run = Run.create(tmp_path / "run", experiment)
    run.save(run.initial())
    assert_close(run.load(torch.device("cpu")).meta, run.initial().meta, 0)
