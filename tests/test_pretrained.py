"""A pretrained start: the body that is trained as a classifier is the base network's, and any method begins with it."""

import dataclasses
import json
import signal
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from safetensors.torch import load_file

from fewsure.algorithms import SimpleShot
from fewsure.certification.freshness import data_record, require_fresh
from fewsure.cli.main import main
from fewsure.core.signals import Stopped
from fewsure.data.memory import forget
from fewsure.data.pools import Pool, Split
from fewsure.data.sets.mini_imagenet import MiniImageNet
from fewsure.errors import FewsureError
from fewsure.evaluation import calibrate
from fewsure.features.classifier import Recipe, Training, recipe_of
from fewsure.features.convolutional import ConvolutionalNetwork
from fewsure.features.start import start_at_features
from fewsure.features.workflow import load_network, make_features, work_folder
from fewsure.networks.conv4 import Conv4, Conv4Options, Norm
from fewsure.pipeline import start_run
from fewsure.reproduce import run
from fewsure.reproduce.targets import Target, changed
from fewsure.training.experiment import Experiment, load_preset
from fewsure.training.loop import train
from fewsure.training.runs import Run

from .helpers import assert_close
from .test_features import textures

CPU = torch.device("cpu")
SHAPE = (3, 84, 84)
RECIPE = dataclasses.replace(recipe_of("conv4"), width=0.125, epochs=2, batch=32, keep_best=1)


@pytest.fixture(scope="module")
def pools() -> dict[Split, Pool]:
    return {
        "train": textures(8, 24, 0, "train", side=84),
        "validation": textures(6, 20, 1, "validation", side=84),
        "test": textures(5, 20, 2, "test", side=84),
    }


@pytest.fixture(scope="module")
def made(pools: dict[Split, Pool], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made") / "features"
    make_features(folder, "mini-imagenet", pools, RECIPE, CPU)
    return folder


@pytest.fixture
def stored(pools: dict[Split, Pool], monkeypatch: pytest.MonkeyPatch) -> None:
    """Mini-ImageNet holds the textures."""
    monkeypatch.setattr(MiniImageNet, "pool", lambda self, split: pools[split])


def experiment(method: str, **groups: dict[str, Any]) -> Experiment:
    training = {"updates": 2, "tasks": 2} | groups.pop("training", {})
    options = {"network": {"filters": 4, "norm": "none"}, "training": training} | groups
    return changed(load_preset("recommended", method, "mini-imagenet"), options, None)


def trained_network() -> ConvolutionalNetwork:
    """A network with running statistics that differ between channels."""
    network = ConvolutionalNetwork(Conv4((3, 24, 20), None, 4))
    generator = torch.Generator().manual_seed(0)
    for value in network.state_dict().values():
        if value.is_floating_point():
            value.copy_(torch.rand(value.shape, generator=generator) - (0.5 if value.dim() == 4 else -0.1))
    return network


@pytest.mark.parametrize("norm", ["none", "batch", "support", "instance"])
def test_the_base_network_goes_on_with_the_function_that_the_classifier_has(norm: Norm, float64: None) -> None:
    network = trained_network()
    images = torch.rand(6, 3, 24, 20, generator=torch.Generator().manual_seed(1))
    body = Conv4((3, 24, 20), None, 4, norm).given(images)
    network.train(norm == "batch")
    alike = torch.allclose(body(network.body(norm), images), network(images), atol=1e-9)
    assert alike == (norm != "instance" and (norm != "support" or network.training)) or norm == "support"
    if norm == "support":  # whose support set is the batch
        assert torch.allclose(body(network.body(norm), images), network.train()(images), atol=1e-9)


def test_the_recommended_recipe_is_that_of_the_network(capsys: pytest.CaptureFixture[str]) -> None:
    assert recipe_of("resnet12") == Recipe()
    assert recipe_of("conv4").label_smoothing == 0.1
    for network in ("conv4", "resnet12"):
        with pytest.raises(SystemExit):
            main(["features", "--network", network, "--help"])
        shown = " ".join(capsys.readouterr().out.split())
        assert f"less sure of its images. (default: {recipe_of(network).label_smoothing})" in shown


def test_a_smoothed_target_shares_its_part_among_all_classes() -> None:
    """With logits b for all images the loss is ln Σ exp(b) − (1 − s) · mean b_y − s · mean b."""
    bias = torch.arange(8.0)
    for smoothing in (0.0, 0.4):
        recipe = dataclasses.replace(RECIPE, label_smoothing=smoothing, held_out=0, batch=32)
        training = Training(textures(8, 4, 0, "train"), recipe, CPU)
        with torch.no_grad():
            training.classifier[1].weight.zero_()
            training.classifier[1].bias.copy_(bias)
        training.step()  # on all images, as many of each class
        assert training.means().loss == pytest.approx(float(bias.logsumexp(0) - bias.mean()), abs=0.02)


def test_the_weights_with_the_best_validation_accuracy_are_kept_through_an_interruption(
    pools: dict[Split, Pool], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fewsure.features import workflow

    scores = iter([0.9, 0.5, 0.5])
    monkeypatch.setattr(workflow, "_nearest_means", lambda training, pool: next(scores))
    step, after = Training.step, dict[int, dict[str, torch.Tensor]]()

    def watched(training: Training) -> None:
        step(training)
        after[training.update] = {name: value.clone() for name, value in training.network.state_dict().items()}
        if training.update == 8:
            signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr(Training, "step", watched)
    recipe = dataclasses.replace(RECIPE, epochs=3)
    with pytest.raises(Stopped):
        make_features(tmp_path / "out", "mini-imagenet", pools, recipe, CPU)
    assert (work_folder(tmp_path / "out") / "checkpoint.safetensors").exists()
    make_features(tmp_path / "out", "mini-imagenet", pools, recipe, CPU, resume=True)
    kept, best = load_file(tmp_path / "out" / "network.safetensors"), after[max(after) // 3]
    assert all(torch.equal(kept[name], value) for name, value in best.items())


@pytest.mark.usefixtures("stored")
@pytest.mark.parametrize("method", ["protonet", "maml", "simpa-latent", "abml", "bmaml", "platipus"])
def test_a_method_starts_at_the_body_and_draws_the_rest_from_its_seed(method: str, made: Path) -> None:
    body = load_network(made).body("none")
    plain, (started, start) = experiment(method), start_at_features(experiment(method), made)
    assert started.start.startswith("pretrained on the training classes of mini-imagenet, features ")
    drawn = plain.algorithm.init(plain.model, torch.Generator().manual_seed(0))
    for name, value in body.items():
        there = [params[name] for params in start.meta.values() if name in params]
        assert any(torch.equal(found, value.expand_as(found)) for found in there)
    assert {part: set(params) for part, params in start.meta.items()} == {p: set(v) for p, v in drawn.items()}


@pytest.mark.usefixtures("stored")
def test_a_run_from_a_body_that_dies_while_its_fit_is_kept_is_fitted_anew(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = {"train_way": 5, "query": 4, "softmax_temperature": 1.0, "temperature_exponent": 0.0}
    heads = {"embedding": 0, "latent": 2, "start_at_means": True}
    options = {"algorithm": heads, "data": data, "training": {"updates": 4, "precision": "float32"}}
    asked, start = start_at_features(experiment("simpa-latent", **options), made)
    whole = start_run(tmp_path / "whole", asked, resume=False, start=start)
    dies = start_run(tmp_path / "dies", asked, resume=False, start=start)
    with monkeypatch.context() as patch:
        patch.setattr(Run, "save", Mock(side_effect=KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            train(dies, CPU)
    train(dies, CPU, stop=Mock(side_effect=[False, True, True, True]))
    assert_close(train(dies, CPU), train(whole, CPU), 0)


@pytest.mark.usefixtures("stored")
def test_the_command_starts_a_run_that_says_so_and_follows_the_data_of_both(
    made: Path, tmp_path: Path, pools: dict[Split, Pool], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["train", "protonet", "--data", "mini-imagenet", "--filters", "4", "--norm", "none", "--updates", "1"]
    words += ["--tasks", "2", "--train-way", "5", "--query", "2", "--device", "cpu", "--lr", "1e-12"]
    words += ["--softmax-temperature", "1", "--temperature-exponent", "0"]
    assert main([*words, "--from", str(made), "--out", str(tmp_path / "run")]) == 0
    run = Run.open(tmp_path / "run")
    assert "pretrained on the training classes" in json.loads((run.folder / "config.json").read_text())["start"]
    for name, value in load_network(made).body("none").items():
        torch.testing.assert_close(run.load(CPU).meta["embedding"][name], value, rtol=0, atol=1e-6)
    fresh = require_fresh(run, run.experiment)
    assert fresh.rigorous
    assert "classes of training of the run that it started at" in fresh.compared
    seen = pools["train"].classes[0]
    renamed = pools["test"]._replace(classes=(seen, *pools["test"].classes[1:]))
    others = {"train": textures(8, 24, 3, "else", side=84), "validation": pools["validation"], "test": renamed}
    monkeypatch.setattr(MiniImageNet, "pool", lambda self, split: others[split])
    forget()
    start = start_at_features(run.experiment, made)[1]
    other = start_run(
        tmp_path / "other", dataclasses.replace(run.experiment, start="features"), resume=False, start=start
    )
    assert data_record(other)["start"]["splits"].keys() == {"train", "validation"}
    with pytest.raises(FewsureError, match=f"were classes of training of the run that it started at, .*{seen}"):
        require_fresh(other, other.experiment)


@pytest.mark.usefixtures("stored")
def test_what_cannot_start_there_is_refused(made: Path, pools: dict[Split, Pool], tmp_path: Path) -> None:
    wide = experiment("protonet", network={"filters": 8, "norm": "none"})
    with pytest.raises(
        FewsureError, match=r"expected --from to be of 8 filters for images of \(3, 84, 84\), .* 4 filter"
    ):
        start_at_features(wide, made)
    residual = Recipe(width=0.02, epochs=1, batch=32)
    make_features(tmp_path / "resnet", "mini-imagenet", pools, residual, CPU)
    with pytest.raises(FewsureError, match=r"features of the network conv4, .* features of resnet12"):
        start_at_features(experiment("protonet"), tmp_path / "resnet")
    nothing = dataclasses.replace(experiment("maml"), network=Conv4Options(4, "none"))
    classless = dataclasses.replace(nothing, algorithm=SimpleShot())
    with pytest.raises(FewsureError, match="a method that has weights of a base network, but simpleshot has none"):
        start_at_features(classless, made)


def test_a_reproduction_makes_the_body_once_and_starts_entries_there_or_at_random(
    pools: dict[Split, Pool], stored: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "recipe_of", lambda network: dataclasses.replace(RECIPE, epochs=1))
    monkeypatch.setattr(run, "load", lambda data_set, split: pools[split])
    monkeypatch.setattr(run, "write_report", lambda folders, file, *asked, **options: None)
    monkeypatch.setattr(calibrate, "TASKS", 20)
    narrow = {"data": {"way": 3, "train_way": 3, "query": 4, "train_query": 4}, "network": {"filters": 4}}
    trials = Target.trials
    monkeypatch.setattr(
        Target, "trials", lambda self, method: [changed(one, narrow, None) for one in trials(self, method)]
    )
    reproduction = run.Reproduction("mini-imagenet-1shot", tmp_path / "1shot", CPU, 0.001, 1, 20)
    reproduction.run(["protonet", "protonet-from-scratch"], jobs=1)
    made = (reproduction.body_folder / "features.json").stat().st_mtime_ns
    reproduction.run(["protonet"], jobs=1)
    assert (reproduction.body_folder / "features.json").stat().st_mtime_ns == made
    page = tmp_path / "results.md"
    rows = {row["label"]: row for row in reproduction.write(tmp_path / "results.json", page)}
    assert rows["protonet"]["start"].startswith("pretrained on the training classes of mini-imagenet")
    assert rows["protonet-from-scratch"]["start"] == "random"
    assert {row["algorithm"] for row in rows.values()} == {"protonet"}
    assert "| pretrained |" in page.read_text()
    assert "without a temperature" in page.read_text()
