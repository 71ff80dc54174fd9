"""The temperature of class probabilities: learned from validation tasks, kept with the run, used in all predictions."""

import json
import math
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fewsure import FewsureError, load
from fewsure.certification.certify import Request, certify_run
from fewsure.certification.predictor import checkpoint_digest
from fewsure.data.features import Features
from fewsure.evaluation.calibrate import TASKS, calibrated, most_likely_temperature
from fewsure.evaluation.evaluate import evaluate
from fewsure.evaluation.temperature import Temperature, log_odds
from fewsure.learner.export import export
from fewsure.pipeline import evaluate_run, start_run, train_run
from fewsure.reproduce.targets import changed
from fewsure.training.experiment import load_preset
from fewsure.training.runs import Run

from .helpers import write_blobs

CPU = torch.device("cpu")


def trained(folder: Path, method: str = "maml", **data: Any) -> Run:
    """A run on blobs, hardly trained."""
    options = {
        "folder": str(write_blobs(folder / "blobs")),
        "way": 3,
        "train_way": 3,
        "query": 4,
        "length": None,
        "temperature_exponent": 0.0,
    } | data
    small = {"simpa": {"algorithm": {"latent": 3, "generator_hidden": [4], "inner_steps": 2}}}.get(method, {})
    training = {"updates": 3, "tasks": 2}
    groups: dict[str, Any] = {"data": options, "training": training, "network": {"centred": False}}
    experiment = changed(load_preset("recommended", method, "features"), groups | small, None)
    run = start_run(folder / "run", experiment, resume=False)
    train_run(run, CPU)
    return run


def adapted_to_the_first(run: Run) -> tuple[Any, np.ndarray]:
    """A task of the first example of three test classes, and query examples."""
    pool = run.experiment.data.pool("test")  # type: ignore[attr-defined]
    rows = [int(start) for start in pool.starts[:3]]
    adapted = load(run.folder, device="cpu").adapt(pool.examples[rows].numpy(), ["a", "b", "c"])
    return adapted, pool.examples[:12].numpy()


def test_the_most_likely_temperature_has_no_slope_and_scales_with_the_outputs() -> None:
    generator = torch.Generator().manual_seed(0)
    outputs = torch.randn(2, 3, 250, 4, generator=generator, dtype=torch.float64)
    y = torch.randint(4, (2, 250), generator=generator)
    y[:, :150] = outputs.mean(1).argmax(-1)[:, :150]
    found = most_likely_temperature(outputs, y, exponent=0.0).at_even_odds

    def nll(temperature: float) -> float:
        return float(-(outputs / temperature).softmax(-1).mean(1).gather(-1, y.unsqueeze(-1)).log().mean())

    assert nll(found) <= min(nll(found * 1.02), nll(found / 1.02))
    assert most_likely_temperature(5 * outputs, y, exponent=0.0).at_even_odds == pytest.approx(5 * found, rel=0.02)


def test_an_exponent_is_found_again_from_tasks_whose_labels_follow_it() -> None:
    """Outputs of tasks that differ in how sure they are, and labels drawn from the softmax at another temperature."""
    generator = torch.Generator().manual_seed(0)
    scale = torch.linspace(0.5, 3, 100, dtype=torch.float64).view(-1, 1, 1, 1)
    outputs = scale * torch.randn(100, 1, 300, 5, generator=generator, dtype=torch.float64)
    true = Temperature(1.5, 0.4)
    probabilities = torch.stack([true.divide(task).softmax(-1)[0] for task in outputs])
    y = torch.multinomial(probabilities.flatten(0, 1), 1, generator=generator).view(100, 300)
    found = most_likely_temperature(outputs, y, exponent=None)
    assert found.at_even_odds == pytest.approx(1.5, rel=0.05)
    assert found.exponent == pytest.approx(0.4, abs=0.03)

    def nll(temperature: Temperature) -> float:
        divided = torch.stack([temperature.divide(task)[0] for task in outputs])
        return float(-divided.log_softmax(-1).gather(-1, y.unsqueeze(-1)).mean())

    around = [
        Temperature(found.at_even_odds * factor, found.exponent + step)
        for factor in (0.95, 1, 1.05)
        for step in (-0.05, 0.05)
    ]
    assert nll(found) < min(map(nll, around))


@pytest.mark.parametrize("of", ["networks", "mixture"])
def test_scores_without_the_temperature_are_those_of_an_evaluation_at_temperature_1(of: str, tmp_path: Path) -> None:
    run = trained(tmp_path, "simpa", softmax_temperature=2.5, temperature_of=of)
    meta = run.load(CPU, run.chosen).meta
    tempered, _ = evaluate(run.experiment, meta, tasks=30, seed=0)
    data = replace(run.experiment.data, softmax_temperature=1.0)  # type: ignore[type-var]
    plain, _ = evaluate(replace(run.experiment, data=data), meta, tasks=30, seed=0)
    assert "untempered" not in plain
    for name, value in tempered["untempered"].items():
        assert value == pytest.approx(plain[name], rel=1e-6)


def test_a_temperature_is_learned_for_an_exponent_that_is_given(tmp_path: Path) -> None:
    run = trained(tmp_path, softmax_temperature=None, temperature_exponent=0.3)
    (found,) = json.loads((run.folder / "fitted.json").read_text()).values()
    assert set(found) == {"softmax_temperature"}
    meta, data = run.load(CPU).meta, run.experiment.data

    def nll(temperature: float) -> float:
        given = replace(run.experiment, data=replace(data, softmax_temperature=temperature))  # type: ignore[type-var]
        return float(evaluate(given, meta, tasks=TASKS, seed=0, stream="validation")[0]["nll"]["mean"])

    best = found["softmax_temperature"]
    assert nll(best) < min(nll(1.1 * best), nll(best / 1.1))


@pytest.mark.parametrize("right", [0, 250, 500])
def test_tasks_that_are_equally_sure_have_one_temperature(right: int) -> None:
    outputs = torch.tensor([2.0, 0.0, 1.0], dtype=torch.float64).expand(20, 1, 25, 3)
    y = torch.ones(500, dtype=torch.int64)
    y[:right] = 0
    assert most_likely_temperature(outputs, y.view(20, 25), exponent=None).exponent == 0


def test_a_task_is_surer_the_less_is_left_for_other_classes() -> None:
    """Against probabilities in double precision, with outputs so far apart that 1 − p is 0 in single precision."""
    outputs = torch.tensor([[[19.0, 0.0, 1.0], [0.0, 2.0, 1.0]]])
    p = outputs.double().softmax(-1)[0].sort(-1).values
    expected = (p[:, 2] / (p[:, 0] + p[:, 1])).log().mean()
    assert float(log_odds(outputs)) == pytest.approx(float(expected), rel=1e-6)
    assert float(1 - outputs.softmax(-1)[0, 0, 0]) == 0
    certain = torch.tensor([[[1e4, 0.0]]])
    assert Temperature(1.0, 1.0).divide(certain).isfinite().all()


@pytest.mark.slow
def test_with_an_exponent_predictions_are_those_of_a_query_set(tmp_path: Path) -> None:
    run = trained(tmp_path, "simpa", softmax_temperature=None, temperature_exponent=None)
    (found,) = json.loads((run.folder / "fitted.json").read_text()).values()
    assert set(found) == {"softmax_temperature", "temperature_exponent"}
    assert found["temperature_exponent"] != 0
    summary = evaluate_run(run, CPU, tasks=20, seed=0)
    assert summary["transductive"]
    assert {name: summary[name] for name in found} == found
    adapted, x = adapted_to_the_first(run)
    together, in_batches = adapted.predict(x), adapted.predict(x, batch_size=2)
    np.testing.assert_allclose(together.probabilities, in_batches.probabilities, atol=1e-6)
    raw = adapted.outputs(torch.as_tensor(x))
    p = raw.softmax(-1).mean(0).max(-1).values
    odds = (p / (1 - p)).log().mean().exp()
    divided = raw / (found["softmax_temperature"] * odds ** -found["temperature_exponent"])
    np.testing.assert_allclose(together.probabilities, divided.softmax(-1).mean(0), atol=1e-5)
    with pytest.raises(FewsureError, match="--temperature-exponent 0"):
        export(adapted)
    (run.folder / "fitted.json").write_text(json.dumps({"1": {"softmax_temperature": 1.0}}))
    with pytest.raises(FewsureError, match="temperature_exponent"):
        calibrated(run, CPU)


def test_coverage_with_an_exponent_is_for_query_sets_like_those_that_were_certified(tmp_path: Path) -> None:
    run = trained(tmp_path, "protonet", softmax_temperature=1.0, temperature_exponent=0.3)
    certificate = certify_run(run, CPU, Request(tasks=20))
    assert "not transductive" not in json.dumps(certificate)
    assert "transductive" in json.dumps(certificate)
    adapted, x = adapted_to_the_first(run)
    assert len(adapted.predict(x, coverage=0.9).sets) == 12
    with pytest.raises(FewsureError, match="12 query points, as in the calibration tasks"):
        adapted.predict(x[:11], coverage=0.9)


@pytest.fixture(scope="module")
def fitted(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A MAML run with the temperature that its training fitted."""
    return trained(tmp_path_factory.mktemp("fitted"), softmax_temperature=None)


def test_the_temperature_is_fitted_when_training_ends_and_lowers_the_nll_of_validation_tasks(fitted: Run) -> None:
    (found,) = json.loads((fitted.folder / "fitted.json").read_text()).values()
    temperature = found["softmax_temperature"]
    assert temperature != 1
    data = fitted.experiment.data
    at_1, ready = replace(data, softmax_temperature=1.0), calibrated(fitted, CPU)  # type: ignore[type-var]
    assert ready.data == replace(data, softmax_temperature=temperature)  # type: ignore[type-var]
    before, after = (
        evaluate(experiment, fitted.load(CPU).meta, tasks=200, seed=0, stream="validation")[0]
        for experiment in (replace(fitted.experiment, data=at_1), ready)
    )
    assert after["nll"]["mean"] < before["nll"]["mean"]
    assert after["accuracy"] == before["accuracy"]  # one network: its order of the classes stays
    assert (before["softmax_temperature"], after["softmax_temperature"]) == (1.0, temperature)
    assert evaluate_run(fitted, CPU, tasks=20, seed=0)["softmax_temperature"] == temperature


def test_a_calibration_belongs_to_its_temperature_and_a_damaged_one_is_one_line(fitted: Run, tmp_path: Path) -> None:
    shutil.copytree(fitted.folder, tmp_path / "run")
    run = Run.open(tmp_path / "run")
    before = checkpoint_digest(run)
    run.save_fitted({1: {"softmax_temperature": 2.0}})
    assert checkpoint_digest(run) != before
    damages = {'{"1": {}}': "softmax_temperature", "{}": "no number of examples", "not JSON": "damaged"}
    damages |= {'{"1": {"softmax_temperature": 0}}': "is 0.0", '{"one": {}}': "damaged"}
    for content, word in damages.items():
        (run.folder / "fitted.json").write_text(content)
        with pytest.raises(FewsureError, match=word):
            run.fitted(["softmax_temperature"])


@pytest.mark.parametrize("method", ["maml", "protonet", "simpa"])
def test_a_given_temperature_is_what_outputs_are_divided_by(method: str, tmp_path: Path) -> None:
    run = trained(tmp_path, method, softmax_temperature=2.0)
    assert not (run.folder / "fitted.json").exists()
    adapted, x = adapted_to_the_first(run)
    probabilities = np.asarray(adapted.predict(x).probabilities)
    expected = (adapted.outputs(torch.as_tensor(x)) / 2).softmax(-1).mean(0)
    np.testing.assert_allclose(probabilities, expected.detach(), atol=1e-6)
    (exported, _) = export(adapted).program.module()(torch.as_tensor(x))
    np.testing.assert_allclose(exported.detach(), probabilities, atol=1e-6)


def test_the_temperature_of_a_mixture_is_a_power_of_its_probabilities() -> None:
    outputs = 5 * torch.randn(4, 6, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    mixture = outputs.softmax(-1).mean(0)
    expected = mixture**2 / (mixture**2).sum(-1, keepdim=True)
    found = Temperature(0.5, of_mixture=True)
    torch.testing.assert_close(found.divide(outputs).softmax(-1), expected[None])
    assert found.of_networks(outputs) is outputs
    sure = log_odds(outputs)
    by_task = Temperature(0.5, 0.2, of_mixture=True).divide(outputs)
    torch.testing.assert_close(by_task, mixture.log()[None] / (0.5 * torch.exp(-0.2 * sure)))
    for temperature in (Temperature(2.0), Temperature(2.0, 0.3)):  # one network is its own mixture
        of_mixture = replace(temperature, of_mixture=True).divide(outputs[:1])
        torch.testing.assert_close(of_mixture.softmax(-1), temperature.divide(outputs[:1]).softmax(-1))
    far_apart = torch.tensor([[[1e4, 0.0]], [[1e4, 0.0]]])
    assert Temperature(0.5, of_mixture=True).divide(far_apart).isfinite().all()


def test_networks_that_are_sure_and_disagree_need_a_temperature_of_their_mixture() -> None:
    """Each is right nine times in ten, independently, and says so; most of five are right far more often."""
    generator = torch.Generator().manual_seed(0)
    y = torch.zeros(40, 50, dtype=torch.long)
    right = torch.rand(40, 5, 50, generator=generator) < 0.9
    outputs = torch.stack([right, ~right], -1) * math.log(9)
    mixture = torch.stack([Temperature(of_mixture=True).divide(task) for task in outputs])
    found = most_likely_temperature(mixture, y, exponent=0.0)
    of_networks = most_likely_temperature(outputs, y, exponent=0.0)

    def nll(outputs: torch.Tensor, temperature: Temperature) -> float:
        return float(-(outputs / temperature.at_even_odds).softmax(-1).mean(1)[..., 0].log().mean())

    assert nll(mixture, found) < 0.5 * nll(outputs, of_networks)
    confidence = (mixture / found.at_even_odds).softmax(-1).amax(-1).mean()
    accuracy = (mixture[..., 0] > mixture[..., 1]).double().mean()
    assert abs(float(confidence - accuracy)) < 0.01


@pytest.mark.slow
def test_predictions_at_the_temperature_of_the_mixture_are_one_networks_and_samples_are_as_they_are(
    tmp_path: Path,
) -> None:
    run = trained(tmp_path, "simpa", softmax_temperature=None, temperature_of="mixture")
    temperature = calibrated(run, CPU).data.softmax_temperature
    summary = evaluate_run(run, CPU, tasks=20, seed=0)
    assert (summary["softmax_temperature"], summary["temperature_of"]) == (temperature, "mixture")
    assert summary["samples"] == 32
    certify_run(run, CPU, Request(tasks=20, bound_samples=4))
    adapted, x = adapted_to_the_first(run)
    predicted = adapted.predict(x, coverage=0.9)
    raw = adapted.outputs(torch.as_tensor(x)).double().softmax(-1)
    np.testing.assert_allclose(predicted.samples, raw, atol=1e-6)
    power = raw.mean(0) ** (1 / temperature)
    np.testing.assert_allclose(predicted.probabilities, power / power.sum(-1, keepdim=True), atol=1e-6)
    at_1 = -torch.special.xlogy(raw.mean(0), raw.mean(0)).sum(-1)
    np.testing.assert_allclose(predicted.expected_entropy + predicted.mutual_information, at_1, atol=1e-6)
    (probabilities, samples) = export(adapted).program.module()(torch.as_tensor(x))
    np.testing.assert_allclose(probabilities.detach(), predicted.probabilities, atol=1e-5)
    np.testing.assert_allclose(samples.detach(), predicted.samples, atol=1e-5)


def test_a_temperature_of_a_checkpoint_on_the_way_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody may look at a run while it trains."""
    save = Run.save

    def save_and_be_looked_at(run: Run, *given: Any, **named: Any) -> None:
        save(run, *given, **named)
        run.save_fitted({1: {"softmax_temperature": 77.0}})

    monkeypatch.setattr(Run, "save", save_and_be_looked_at)
    fits = trained(tmp_path, softmax_temperature=None).fitted(["softmax_temperature"])
    assert fits is not None
    assert all(values["softmax_temperature"] != 77 for values in fits.values())


@pytest.mark.parametrize("temperature", [1.0, None])
def test_without_validation_classes_a_temperature_is_not_waited_for(temperature: float | None, tmp_path: Path) -> None:
    folder = write_blobs(tmp_path / "blobs")
    (folder / "validation.npz").unlink()
    data = {"folder": str(folder), "way": 3, "query": 4, "temperature_exponent": 0.0}
    groups = {"data": data | {"softmax_temperature": temperature}, "training": {"updates": 1, "tasks": 2}}
    experiment = changed(load_preset("recommended", "maml", "features"), groups, None)
    if temperature is not None:
        train_run(start_run(tmp_path / "run", experiment, resume=False), CPU)
        return
    with pytest.raises(FewsureError, match="validation"):
        start_run(tmp_path / "run", experiment, resume=False)
    assert not (tmp_path / "run").exists()


def test_tasks_are_loaded_once_whatever_the_temperature(tmp_path: Path) -> None:
    data = Features(folder=str(write_blobs(tmp_path / "blobs")), way=3, query=4)
    first, *others = (
        replace(data, softmax_temperature=value, temperature_exponent=exponent).tasks("test", CPU)
        for value, exponent in ((1.1, 0.0), (1.2, 0.0), (None, None))
    )
    assert all(other.pool is first.pool for other in others)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"softmax_temperature": 0.0}, "expected `softmax_temperature`"),
        ({"softmax_temperature": float("inf")}, "expected `softmax_temperature`"),
        ({"softmax_temperature": None, "train_on_validation": True}, "cannot be learned from them"),
        ({"temperature_exponent": float("nan")}, "expected `temperature_exponent`"),
        ({"temperature_exponent": 1.5}, "expected `temperature_exponent`"),
        ({"temperature_exponent": None}, "learned together, but got 1.0"),
    ],
)
def test_a_temperature_that_cannot_be_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(FewsureError, match=message):
        Features(**options)
