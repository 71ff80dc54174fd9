"""`--members`: trainings with seeds of their own, averaged in probability."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
import torch

import fewsure
from fewsure.cli.main import main
from fewsure.errors import FewsureError
from fewsure.training.experiment import Training, load_preset
from fewsure.training.runs import Run

from .helpers import write_blobs

CPU = torch.device("cpu")
SMALL = ["--updates", "4", "--tasks", "2", "--device", "cpu"]


def train(*arguments: object) -> int:
    return main(["train", *map(str, arguments), *SMALL])


@pytest.fixture(scope="module")
def blobs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_blobs(tmp_path_factory.mktemp("data") / "blobs")


def test_members_are_the_runs_of_their_seeds_and_are_averaged_in_probability(blobs: Path, tmp_path: Path) -> None:
    data = ["--data", "features", "--folder", blobs, "--way", 3, "--query", 4, "--hidden", 5]
    data += ["--softmax-temperature", 1, "--temperature-exponent", 0, "--no-centred"]
    train("maml", *data, "--members", 2, "--seed", 7, "--out", tmp_path / "both")
    singles = []
    for seed in (7, 8):
        train("maml", *data, "--seed", seed, "--out", tmp_path / str(seed))
        singles.append(fewsure.load(tmp_path / str(seed), device="cpu"))
    both = Run.open(tmp_path / "both").load(CPU).meta["weights"]
    for number, single in enumerate(singles):
        for name, value in single._trained().meta["weights"].items():
            assert torch.equal(both[name][number], value)
    generator = np.random.default_rng(0)
    x, y, at = generator.normal(size=(3, 6)), [0, 1, 2], generator.normal(size=(5, 6))
    each = [learner.adapt(x, y).predict(at).probabilities for learner in singles]
    found = fewsure.load(tmp_path / "both", device="cpu").adapt(x, y).predict(at).probabilities
    np.testing.assert_allclose(found, np.mean(each, 0), rtol=1e-5)
    assert not np.allclose(*each, rtol=1e-2)


@pytest.mark.parametrize("method", ["bmaml", "simpa", "platipus", "tnp", "simpa-latent", "pacoh"])
def test_an_ensemble_predicts_as_the_equal_mixture_of_its_members(method: str, tmp_path: Path) -> None:
    preset = ["--hidden", 4, "--members", 2]
    train(method, *preset, "--out", tmp_path / "run")
    learner = fewsure.load(tmp_path / "run", device="cpu")
    predictor = learner._trained()
    experiment, model = predictor.experiment, predictor.experiment.model
    task = experiment.data.tasks("test", CPU).sample(2, torch.Generator().manual_seed(0))[0]
    support, query = (type(part)(*(value[0] for value in part)) for part in task[:2])
    state = predictor.state(len(support.y))
    adapted, noise = predictor.adapt(model, support, state), predictor.noise(model, state)
    outputs = predictor.outputs(adapted, model, query.x, noise)
    separate = []
    for number in range(2):
        meta, (shared, own, drawn) = (
            fewsure.load(tmp_path / "run/members" / str(number + 1))._trained().meta,
            state.draws,
        )
        own_noise = {name: value[number] for name, value in (shared | own).items()}
        posterior = experiment.algorithm.adapt(meta, model, support, own_noise)
        numbers = {name: value[number] for name, value in drawn.items()}
        separate.append(experiment.algorithm.predict(posterior, model, query.x, numbers))
    torch.testing.assert_close(outputs, torch.cat(separate), rtol=1e-4, atol=1e-4)
    assert len(separate[0]) == len(separate[1])
    if experiment.own_density:
        density = predictor.density(adapted, model, query.x, noise)
        torch.testing.assert_close(density.weights.sum(-1), torch.ones(len(query.x)))


def test_an_interrupted_ensemble_goes_on_and_is_evaluated_certified_and_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from fewsure import pipeline

    def stop(*_: object, **__: object) -> None:
        raise FewsureError("stopped here")

    options = ["maml", "--hidden", 4, "--members", 2]
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    train(*options, "--out", whole)
    monkeypatch.setattr(pipeline, "stack_components", stop)
    assert train(*options, "--out", broken) == 2
    monkeypatch.undo()
    train(*options, "--out", broken, "--resume")
    files = [folder / "checkpoint.safetensors" for folder in (whole, broken)]
    assert files[0].read_bytes() == files[1].read_bytes()
    capsys.readouterr()
    main(["evaluate", str(whole), "--tasks", "20", "--json"])
    assert json.loads(capsys.readouterr().out)["samples"] == 2
    learner = fewsure.load(whole, device="cpu")
    learner.certify(tasks=40, quiet=True)
    adapted = learner.adapt([[0.0], [1.0]], [0.0, 1.0])
    adapted.save(tmp_path / "task")
    again = learner.load_adapted(tmp_path / "task").predict([[0.5]])
    np.testing.assert_array_equal(again.samples, adapted.predict([[0.5]]).samples)


def test_a_method_without_updates_or_with_another_start_has_one_member() -> None:
    with pytest.raises(FewsureError, match="`members` to be 1 for a method without updates"):
        Training(updates=0, members=2)
    experiment = load_preset("recommended", "maml", "sine-line")
    assert experiment.method is experiment.algorithm
    training = dataclasses.replace(experiment.training, members=2)
    with pytest.raises(FewsureError, match="members to start anew"):
        dataclasses.replace(experiment, training=training, start="maml 0123456789abcdef")
