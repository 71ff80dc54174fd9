"""Methods with a density of their own, with nothing to learn, and with a parameter for each training task."""

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
import scipy.stats
import torch
from torch import Tensor

from fewsure import FewsureError, Learner, Table, load
from fewsure.algorithms import ALGORITHMS
from fewsure.learner.export import export, write_onnx
from fewsure.networks.mlp import MlpOptions
from fewsure.pipeline import start_run, train_run
from fewsure.training.experiment import Experiment, Training
from fewsure.training.runs import Run
from fewsure.types import Algorithm, Batch, Draw, Info, Kind, Mixture, Model, Noise, NoiseSpec, Parts, Stage, Task

NOISE = 0.5


@dataclass(frozen=True)
class BayesianLine(Algorithm):
    """y = w · (1, x) + noise with w ~ N(0, I): the exact posterior, with nothing to learn."""

    kinds: ClassVar[frozenset[Kind]] = frozenset({"regression"})
    min_support: ClassVar[int] = 0
    own_density: ClassVar[bool] = True

    def init(self, model: Model, generator: torch.Generator) -> Parts:
        return {}

    def adapt(self, meta: Parts, model: Model, support: Batch, noise: Noise) -> Parts:
        features = self._features(support.x)
        precision = torch.eye(features.shape[1], dtype=features.dtype) + features.T @ features / NOISE**2
        covariance = torch.linalg.inv_ex(precision).inverse
        return {"line": {"mean": covariance @ features.T @ support.y / NOISE**2, "covariance": covariance}}

    def loss(self, meta: Parts, model: Model, task: Task, noise: Noise, stage: Stage) -> tuple[Tensor, Info]:
        raise AssertionError("nothing is learned")

    def predict(self, posterior: Parts, model: Model, x: Tensor, noise: Noise) -> Tensor:
        return (self._features(x) @ posterior["line"]["mean"]).unsqueeze(0)

    def predictive(self, posterior: Parts, model: Model, x: Tensor, noise: Noise) -> Mixture:
        features, line = self._features(x), posterior["line"]
        variance = (features @ line["covariance"] * features).sum(-1, keepdim=True) + NOISE**2
        return Mixture(torch.ones_like(variance), features @ line["mean"], variance.sqrt())

    def _features(self, x: Tensor) -> Tensor:
        return torch.cat([torch.ones_like(x[:, :1]), x], dim=1)


@dataclass(frozen=True)
class Memory(Algorithm):
    """One number for each of 12 training tasks; a dropout mask on the support set, whose size the noise knows."""

    def init(self, model: Model, generator: torch.Generator) -> Parts:
        return {"memory": {"offset": torch.zeros(12)}}

    def noise(self, model: Model, support: int, query: int) -> NoiseSpec:
        return NoiseSpec(task={"dropped": Draw((support,), "uniform")})

    def adapt(self, meta: Parts, model: Model, support: Batch, noise: Noise) -> Parts:
        kept = (noise["dropped"] > 0.5).to(support.y.dtype).unsqueeze(-1)
        return {"mean": {"y": (kept * support.y).sum(0) / kept.sum(0).clamp(min=1)}}

    def loss(self, meta: Parts, model: Model, task: Task, noise: Noise, stage: Stage) -> tuple[Tensor, Info]:
        assert task.number is not None
        at = self.adapt(meta, model, task.support, noise)["mean"]["y"] + meta["memory"]["offset"][task.number]
        loss = (task.query.y - at).square().mean()
        return loss, {"loss": loss}

    def predict(self, posterior: Parts, model: Model, x: Tensor, noise: Noise) -> Tensor:
        return posterior["mean"]["y"].expand(1, len(x), 1)


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    generator = np.random.default_rng(0)
    x = generator.normal(size=(60, 16))
    y = generator.normal(size=(60, 1)) + generator.normal(size=(60, 1)) * x + NOISE * generator.normal(size=x.shape)
    rows = [f"g{task},{x[task, row]},{y[task, row]}" for task in range(60) for row in range(16)]
    path = tmp_path_factory.mktemp("lines") / "lines.csv"
    path.write_text("\n".join(["group,x,y", *rows]) + "\n")
    return path


def trained(table: Path, out: Path, method: Algorithm, **options: object) -> Learner:
    data = Table(file=table, task_column="group", target="y", shot=5, query=5, shares=(0.2, 0.2, 0.6))
    run = start_run(out, Experiment(method, data, MlpOptions(), Training(**options), "recommended"), resume=False)
    train_run(run, torch.device("cpu"))
    return load(out)


@pytest.fixture
def lines(table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Learner:
    monkeypatch.setitem(ALGORITHMS, "line", BayesianLine)
    return trained(table, tmp_path / "line", BayesianLine(), updates=0)


def closed_form(learner: Learner, x: np.ndarray, y: np.ndarray, at: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard deviation of a label in the user's unit, by numpy."""
    scale = learner.experiment.data.scale
    features, points = (np.stack([np.ones_like(v), (v - scale.x_mean[0]) / scale.x_std[0]], 1) for v in (x, at))
    covariance = np.linalg.inv(np.eye(2) + features.T @ features / NOISE**2)
    mean = covariance @ features.T @ ((y - scale.y_mean) / scale.y_std) / NOISE**2
    variance = np.einsum("nd,de,ne->n", points, covariance, points) + NOISE**2
    return points @ mean * scale.y_std + scale.y_mean, np.sqrt(variance) * scale.y_std


def test_a_density_of_its_own_predicts_in_closed_form(lines: Learner) -> None:
    x, at = np.linspace(-1, 1, 5), np.linspace(-2, 2, 7)
    p = lines.adapt(x[:, None], 2 * x + 1).predict(at[:, None], coverage=None)
    mean, std = closed_form(lines, x, 2 * x + 1, at)
    np.testing.assert_allclose(p.mean, mean, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(p.std, std, rtol=1e-4)
    np.testing.assert_allclose(p.quantile(0.9), scipy.stats.norm.ppf(0.9, mean, std), rtol=1e-4, atol=1e-4)


def test_its_likelihood_is_scored_and_no_noise_is_learned(lines: Learner) -> None:
    found = lines.evaluate(tasks=100)
    assert "noise_std" not in found
    assert not (lines.folder / "noise.json").exists()
    assert found["ece"] < 0.1  # 36 tasks of 5 points
    assert found["nll"]["mean"] < 1.3


def test_its_intervals_are_certified_and_hold_the_truth(lines: Learner) -> None:
    lines.certify()
    x = np.linspace(-1, 1, 5)
    p = lines.adapt(x[:, None], 2 * x + 1).predict(np.linspace(-2, 2, 5)[:, None], coverage=0.8)
    mean, std = closed_form(lines, x, 2 * x + 1, np.linspace(-2, 2, 5))
    ratio = (p.upper - mean) / std
    np.testing.assert_allclose(ratio, ratio[0], rtol=1e-3)
    np.testing.assert_allclose(mean - p.lower, p.upper - mean, rtol=1e-3)


def test_it_is_exported(lines: Learner, tmp_path: Path) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    x, at = np.linspace(-1, 1, 5), np.linspace(-2, 2, 7)[:, None]
    adapted = lines.adapt(x[:, None], 2 * x + 1)
    write_onnx(export(adapted), tmp_path / "line.onnx")
    mean, std, _ = onnxruntime.InferenceSession(tmp_path / "line.onnx").run(None, {"x": at})
    p = adapted.predict(at)
    np.testing.assert_allclose(mean, p.mean, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(std, p.std, rtol=1e-5)


def test_a_method_with_nothing_to_learn_refuses_updates(table: Path, tmp_path: Path, lines: Learner) -> None:
    with pytest.raises(FewsureError, match="has nothing to learn: expected `updates` to be 0, but got 5"):
        trained(table, tmp_path / "five", BayesianLine(), updates=5)


def test_a_task_carries_its_number_in_a_finite_training_set(
    table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(ALGORITHMS, "memory", Memory)
    learner = trained(table, tmp_path / "memory", Memory(), updates=50, tasks=4, optimiser="sgd", lr=0.05)
    offsets = Run.open(learner.folder).load(torch.device("cpu")).meta["memory"]["offset"]
    assert bool((offsets != 0).all())  # each of the 12 training tasks has moved its own number
