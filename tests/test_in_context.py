"""Methods that read the known examples: their invariances, their densities and their gradients."""

from pathlib import Path

import numpy as np
import pytest
import torch

from fewsure import Learner, regression_tasks
from fewsure.algorithms.tnp import Tnp
from fewsure.core import streams
from fewsure.evaluation.metrics.density import log_density
from fewsure.learner.export import export, write_onnx
from fewsure.networks.losses import regression
from fewsure.networks.mlp import Mlp
from fewsure.types import Batch, Noise, Parts, Task

from .helpers import DATA, assert_gradient_equals_finite_differences, assert_vectorised_equals_loop, meta_batch

MODEL = regression(Mlp((1, 4, 1)))


def small(**options: object) -> Tnp:
    settings = {"encoder_width": 8, "encoder_layers": 2, "frequencies": 2, "gaussians": 3}
    return Tnp(**(settings | {"input_scale": 2.5, "target_scale": 5.0} | options))  # type: ignore[arg-type]


def problem(method: Tnp) -> tuple[Parts, Task]:
    tasks, _ = DATA.sample(1, streams.generator(0, "in context"))
    support, query = (Batch(batch.x[0], batch.y[0]) for batch in (tasks.support, tasks.query))
    return method.init(MODEL, streams.generator(0, "init")), Task(support, query)


def draws(method: Tnp, samples: int) -> Noise:
    generator = streams.generator(0, "draws")
    made = {"normal": torch.randn, "uniform": torch.rand}
    spec = method.prediction_noise(MODEL, samples, 5)
    return {name: made[draw.kind](draw.shape, generator=generator) for name, draw in spec.items()}


@pytest.mark.usefixtures("float64")
def test_vectorised_equals_loop_and_the_meta_gradient_equals_finite_differences() -> None:
    for method in (small(), small(encoder_layers=1, frequencies=0, gaussians=1)):
        assert_vectorised_equals_loop(method, MODEL, meta_batch(method, model=MODEL))
        assert_gradient_equals_finite_differences(method, MODEL, meta_batch(method, model=MODEL), step=1e-6)


@pytest.mark.usefixtures("float64")
def test_neither_the_order_of_the_examples_nor_the_other_questions_matter() -> None:
    method = small()
    meta, task = problem(method)
    known, x = task.support, task.query.x
    density = method.predictive(method.adapt(meta, MODEL, known, {}), MODEL, x, {})
    turned = method.adapt(meta, MODEL, Batch(known.x.flip(0), known.y.flip(0)), {})
    torch.testing.assert_close(method.predictive(turned, MODEL, x, {}), density)
    alone = [method.predictive(method.adapt(meta, MODEL, known, {}), MODEL, point[None], {}) for point in x]
    torch.testing.assert_close(torch.cat([one.means for one in alone]), density.means)
    moved = method.predictive(method.adapt(meta, MODEL, Batch(known.x, known.y + 1), {}), MODEL, x, {})
    assert not torch.allclose(moved.means, density.means)


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("size", [1, 2, 5])
def test_any_number_of_examples_gives_a_density_that_integrates_to_1_and_is_what_training_scores(size: int) -> None:
    method = small()
    meta, task = problem(method)
    task = task._replace(support=Batch(task.support.x[:size], task.support.y[:size]))
    density = method.predictive(method.adapt(meta, MODEL, task.support, {}), MODEL, task.query.x[:1], {})
    grid = torch.linspace(-60, 60, 40_001)
    one = type(density)(*(part.expand(len(grid), -1) for part in density[:3]))
    torch.testing.assert_close(
        torch.trapezoid(log_density(one, grid).exp(), grid), torch.tensor(1.0), atol=1e-6, rtol=0
    )
    loss, _ = method.loss(meta, MODEL, task, {}, None)  # type: ignore[arg-type]
    density = method.predictive(method.adapt(meta, MODEL, task.support, {}), MODEL, task.query.x, {})
    torch.testing.assert_close(loss, -log_density(density, task.query.y.squeeze(-1)).mean())


@pytest.mark.usefixtures("float64")
def test_a_function_is_the_mean_after_the_imagined_examples() -> None:
    method, samples = small(imagined=1), 4000
    meta, task = problem(method)
    posterior, x = method.adapt(meta, MODEL, task.support, {}), task.query.x[:3]
    noise = draws(method, samples)
    noise["place"] = noise["place"][:1].expand(samples, -1, -1)  # all at one place
    functions = method.predict(posterior, MODEL, x, noise)
    assert functions.shape == (samples, 3, 1)
    place = 2.5 * 3**0.5 * (2 * noise["place"][0] - 1)
    density = method.predictive(posterior, MODEL, place, noise)
    points, expected = torch.linspace(-60, 60, 2001), torch.zeros(3, 1)
    weights = log_density(type(density)(*(part.expand(2001, -1) for part in density[:3])), points).exp() * 0.06
    for weight, y in zip(weights, points, strict=True):  # the integral over the imagined label
        known = Batch(torch.cat([task.support.x, place]), torch.cat([task.support.y, y.view(1, 1)]))
        expected += weight * small().predict(method.adapt(meta, MODEL, known, {}), MODEL, x, {})[0]
    error = functions.std(0) / samples**0.5
    assert bool(((functions.mean(0) - expected).abs() < 4 * error + 1e-4).all())


@pytest.fixture(scope="module")
def learner(tmp_path_factory: pytest.TempPathFactory) -> Learner:
    generator = np.random.default_rng(0)
    tasks = []
    for _ in range(120):
        x, a, b = generator.uniform(-1, 1, (16, 2)), *generator.normal(size=2)
        tasks.append((x, a + b * x[:, 0] + 0.1 * generator.normal(size=16)))
    data, out = regression_tasks(tasks, shares=(0.5, 0.2, 0.3)), tmp_path_factory.mktemp("tnp") / "run"
    learner = Learner("tnp", data=data, out=out, encoder_width=16, encoder_layers=2, lr_warm_up=10)
    return learner.train(updates=150, quiet=True)


def test_it_learns_is_certified_and_exported(learner: Learner, tmp_path: Path) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    assert learner.evaluate(tasks=60)["nll"]["mean"] < 1.0
    learner.certify()
    generator = np.random.default_rng(1)
    x, at = generator.uniform(-1, 1, (5, 2)), generator.uniform(-1, 1, (7, 2))
    adapted = learner.adapt(x, 1 + x[:, 0])
    p = adapted.predict(at, coverage=0.8)
    assert bool((p.lower < p.upper).all())
    write_onnx(export(adapted), tmp_path / "task.onnx")
    mean, std, _ = onnxruntime.InferenceSession(tmp_path / "task.onnx").run(None, {"x": at})
    np.testing.assert_allclose(mean, p.mean, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(std, p.std, rtol=1e-4)
