"""The temperature of class probabilities: learned from validation tasks, kept with the run, used in all predictions."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fewsure import FewsureError, load
from fewsure.certification.predictor import checkpoint_digest
from fewsure.data.classification import Features
from fewsure.evaluation import evaluate
from fewsure.experiment import load_preset
from fewsure.export import export
from fewsure.learned import most_likely_temperature, with_learned
from fewsure.reproduce import changed
from fewsure.training.runs import Run
from fewsure.workflow import evaluate_run, start_run, train_run

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
    } | data
    small = {"simpa": {"algorithm": {"latent": 3, "generator_hidden": [4], "inner_steps": 2}}}.get(method, {})
    training = {"updates": 3, "tasks": 2}
    experiment = changed(
        load_preset("recommended", method, "features"), {"data": options, "training": training} | small, None
    )
    run = start_run(folder / "run", experiment, resume=False)
    train_run(run, CPU, quiet=True)
    return run


def test_the_most_likely_temperature_has_no_slope_and_scales_with_the_outputs() -> None:
    generator = torch.Generator().manual_seed(0)
    outputs = torch.randn(3, 500, 4, generator=generator, dtype=torch.float64)
    y = torch.randint(4, (500,), generator=generator)
    y[:300] = outputs.mean(0).argmax(-1)[:300]
    found = most_likely_temperature(outputs, y)

    def nll(temperature: float) -> float:
        return float(-(outputs / temperature).softmax(-1).mean(0).gather(-1, y[:, None]).log().mean())

    assert nll(found) <= min(nll(found * 1.02), nll(found / 1.02))
    assert most_likely_temperature(5 * outputs, y) == pytest.approx(5 * found, rel=0.02)


def test_the_temperature_is_learned_when_training_ends_and_lowers_the_nll_of_validation_tasks(tmp_path: Path) -> None:
    run = trained(tmp_path, softmax_temperature=None)
    temperature = json.loads((run.folder / "temperature.json").read_text())["softmax_temperature"]
    assert temperature != 1
    learned = with_learned(run, CPU)
    assert learned.data == replace(run.experiment.data, softmax_temperature=temperature)  # type: ignore[type-var]
    meta = run.load(CPU).meta
    plain = replace(run.experiment, data=replace(run.experiment.data, softmax_temperature=1.0))  # type: ignore[type-var]
    before, after = (
        evaluate(experiment, meta, tasks=200, seed=0, stream="validation")[0] for experiment in (plain, learned)
    )
    assert after["nll"]["mean"] < before["nll"]["mean"]
    assert after["accuracy"] == before["accuracy"]  # one network: its order of the classes stays
    assert (before["softmax_temperature"], after["softmax_temperature"]) == (1.0, temperature)
    assert evaluate_run(run, CPU, tasks=20, seed=0, quiet=True)["softmax_temperature"] == temperature


def test_a_given_temperature_is_what_outputs_are_divided_by(tmp_path: Path) -> None:
    for method in ("maml", "protonet", "simpa"):
        run = trained(tmp_path / method, method, softmax_temperature=2.0)
        assert not (run.folder / "temperature.json").exists()
        learner = load(run.folder, device="cpu")
        pool = run.experiment.data.pool("test")  # type: ignore[attr-defined]
        rows = [int(start) for start in pool.starts[:3]]
        adapted = learner.adapt(pool.examples[rows].numpy(), ["a", "b", "c"])
        x = pool.examples[1:9].numpy()
        probabilities = np.asarray(adapted.predict(x).probabilities)  # type: ignore[union-attr]
        predictor = adapted.predictor
        raw = predictor.experiment.algorithm.predict(
            adapted.posterior, adapted.model, torch.as_tensor(x), adapted.noise
        )
        expected = (raw / 2).softmax(-1).mean(0)
        np.testing.assert_allclose(probabilities, expected.detach().numpy(), atol=1e-6)
        (exported, _) = export(adapted).program.module()(torch.as_tensor(x))
        np.testing.assert_allclose(exported.detach().numpy(), probabilities, atol=1e-6)


def test_a_temperature_of_a_checkpoint_on_the_way_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody may look at a run while it trains."""
    save = Run.save

    def save_and_be_looked_at(run: Run, *given: Any, **named: Any) -> None:
        save(run, *given, **named)
        run.save_learned("softmax_temperature", 77.0)

    monkeypatch.setattr(Run, "save", save_and_be_looked_at)
    assert trained(tmp_path, softmax_temperature=None).learned("softmax_temperature") != 77


def test_a_calibration_belongs_to_its_temperature(tmp_path: Path) -> None:
    run = trained(tmp_path, softmax_temperature=None)
    before = checkpoint_digest(run)
    run.save_learned("softmax_temperature", 2.0)
    assert checkpoint_digest(run) != before


def test_without_validation_classes_a_temperature_is_not_waited_for(tmp_path: Path) -> None:
    folder = write_blobs(tmp_path / "blobs")
    (folder / "validation.npz").unlink()
    options = {"folder": str(folder), "way": 3, "query": 4}
    for temperature in (1.0, None):
        experiment = changed(
            load_preset("recommended", "maml", "features"),
            {"data": options | {"softmax_temperature": temperature}, "training": {"updates": 1, "tasks": 2}},
            None,
        )
        if temperature is None:
            with pytest.raises(FewsureError, match="validation"):
                start_run(tmp_path / "learned", experiment, resume=False)
            assert not (tmp_path / "learned").exists()
        else:
            train_run(start_run(tmp_path / "given", experiment, resume=False), CPU, quiet=True)


def test_what_a_temperature_is_learned_from_cannot_certify(tmp_path: Path) -> None:
    run = trained(tmp_path, softmax_temperature=None)
    assert set(json.loads((run.folder / "data.json").read_text())["splits"]) == {"train", "validation"}


def test_tasks_are_loaded_once_whatever_the_temperature(tmp_path: Path) -> None:
    data = Features(folder=str(write_blobs(tmp_path / "blobs")), way=3, query=4)
    first, second = (replace(data, softmax_temperature=value).tasks("test", CPU) for value in (1.1, 1.2))
    assert first is second


@pytest.mark.parametrize(
    ("content", "word"),
    [("{}", "softmax_temperature"), ('{"softmax_temperature": 0}', "above 0"), ("not JSON", "damaged")],
)
def test_a_damaged_temperature_is_one_line(content: str, word: str, tmp_path: Path) -> None:
    run = trained(tmp_path, softmax_temperature=None)
    (run.folder / "temperature.json").write_text(content)
    with pytest.raises(FewsureError, match=word):
        run.learned("softmax_temperature")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"softmax_temperature": 0.0}, "expected `softmax_temperature`"),
        ({"softmax_temperature": float("inf")}, "expected `softmax_temperature`"),
        ({"softmax_temperature": None, "train_on_validation": True}, "cannot be learned from them"),
    ],
)
def test_a_temperature_that_cannot_be_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(FewsureError, match=message):
        Features(**options)
