"""Methods that read the known examples: their invariances, their densities and their gradients."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from fewsure import Learner, labelled_examples, regression_tasks
from fewsure.algorithms.cnp import Cnp
from fewsure.algorithms.gp import Gp
from fewsure.algorithms.parts.in_context import InContext
from fewsure.algorithms.tnp import Tnp
from fewsure.core import streams
from fewsure.data.sets.sine_line import SineLine
from fewsure.evaluation.metrics.density import log_density
from fewsure.learner.export import export, write_onnx
from fewsure.networks.conv4 import Conv4
from fewsure.networks.losses import classification, regression
from fewsure.networks.mlp import Mlp, MlpOptions
from fewsure.training.experiment import Experiment, Training
from fewsure.training.loop import train
from fewsure.training.runs import Run
from fewsure.types import Batch, Mixture, Model, Noise, Parts, Stage, Task

from .helpers import DATA, assert_gradient_equals_finite_differences, assert_vectorised_equals_loop, meta_batch

MODEL = regression(Mlp((1, 4, 1)))
CLASSES = classification(Mlp((2, 4, 3)), 3)
METHODS = {"tnp": Tnp, "cnp": Cnp}
PREDICTED = Stage(torch.tensor(0), 1)


def small(method: str, **options: object) -> InContext:
    settings = {"encoder_width": 8, "encoder_layers": 2, "frequencies": 2, "gaussians": 3}
    return METHODS[method](**(settings | {"input_scale": 2.5, "target_scale": 5.0} | options))


def problem(method: InContext) -> tuple[Parts, Task]:
    tasks, _ = DATA.sample(1, streams.generator(0, "in context"))
    support, query = (Batch(batch.x[0], batch.y[0]) for batch in (tasks.support, tasks.query))
    return method.init(MODEL, streams.generator(0, "init")), Task(support, query)


def class_problem(method: InContext, way: int = 3) -> tuple[Parts, Batch, Tensor]:
    """Meta-parameters, two examples of each class, and questions."""
    generator = streams.generator(0, "classes")
    known = Batch(torch.randn(2 * way, 2, generator=generator), torch.arange(way).repeat(2))
    return method.init(CLASSES, streams.generator(0, "init")), known, torch.randn(4, 2, generator=generator)


def density_of(method: InContext, meta: Parts, known: Batch, x: Tensor) -> Mixture:
    return method.predictive(method.adapt(meta, MODEL, known, {}), MODEL, x, {})


@pytest.fixture(params=METHODS)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("tnp", {}),
        ("cnp", {}),
        ("tnp", {"kernels": ("constant", "rbf")}),
        ("tnp", {"encoder_layers": 1, "frequencies": 0, "gaussians": 1}),
        ("cnp", {"encoder_layers": 1, "frequencies": 0, "gaussians": 1}),
    ],
)
def test_vectorised_equals_loop_and_the_meta_gradient_equals_finite_differences(name: str, options: dict) -> None:
    method = small(name, **options)
    batch = meta_batch(method, model=MODEL)
    assert_vectorised_equals_loop(method, MODEL, batch)
    assert_gradient_equals_finite_differences(method, MODEL, batch, step=1e-6)


@pytest.mark.usefixtures("float64")
def test_training_starts_at_the_process_that_is_fitted_to_the_groups() -> None:
    method, process = small("tnp", gaussians=1, kernels=("constant", "rbf")), Gp(kernels=("constant", "rbf"))
    meta, (known, query, _) = problem(method)
    x = torch.linspace(-5, 5, 12).unsqueeze(-1)
    groups = [Batch(x, shift + torch.sin(x)) for shift in torch.linspace(-3, 3, 6)]
    fitted = method.fit(meta, MODEL, groups, streams.generator(0, "fit"))
    alone = process.fit(process.init(MODEL, streams.generator(0, "init")), MODEL, groups, streams.generator(0, "fit"))
    of_process = process.predictive(process.adapt(alone, MODEL, known, {}), MODEL, query.x, {})
    density = density_of(method, fitted, known, query.x)
    torch.testing.assert_close(density.means, of_process.means)
    torch.testing.assert_close(density.stds, of_process.stds)
    assert not torch.allclose(density.stds, density_of(method, meta, known, query.x).stds)


@pytest.mark.usefixtures("float64")
def test_a_process_predicts_each_example_from_the_others() -> None:
    process = Gp(kernels=("constant", "matern32"))
    meta, (known, _, _) = problem(small("tnp", kernels=process.kernels))
    found = process.left_out(meta, MODEL, known)
    for left_out in range(len(known.x)):
        others = Batch(*(torch.cat([part[:left_out], part[left_out + 1 :]]) for part in known))
        at = known.x[left_out : left_out + 1]
        alone = process.predictive(process.adapt(meta, MODEL, others, {}), MODEL, at, {})
        torch.testing.assert_close(found.means[left_out], alone.means[0])
        torch.testing.assert_close(found.stds[left_out], alone.stds[0])


@pytest.mark.usefixtures("float64")
def test_so_it_is_with_classes(name: str) -> None:
    method, generator = small(name), streams.generator(0, "tasks")
    y = torch.arange(3).repeat(3, 2)
    tasks = Task(*(Batch(torch.randn(3, 6, 2, generator=generator), y) for _ in range(2)))
    batch = (method.init(CLASSES, generator), tasks, {}, {}, PREDICTED)
    assert_vectorised_equals_loop(method, CLASSES, batch)
    assert_gradient_equals_finite_differences(method, CLASSES, batch, step=1e-6)


@pytest.mark.usefixtures("float64")
def test_neither_the_order_of_the_examples_nor_the_other_questions_matter(name: str) -> None:
    method = small(name)
    meta, (known, query, _) = problem(method)
    density = density_of(method, meta, known, query.x)
    turned = density_of(method, meta, Batch(known.x.flip(0), known.y.flip(0)), query.x)
    torch.testing.assert_close(turned, density)
    alone = [density_of(method, meta, known, point[None]).means for point in query.x]
    torch.testing.assert_close(torch.cat(alone), density.means)
    assert not torch.allclose(density_of(method, meta, Batch(known.x, known.y + 1), query.x).means, density.means)


@pytest.mark.usefixtures("float64")
def test_a_context_that_is_given_twice_is_the_same_to_a_cnp() -> None:
    for method in (small("cnp"), small("tnp", encoder_layers=1)):  # one layer of attention weighs by shares alone, too
        meta, (known, query, _) = problem(method)
        twice = Batch(torch.cat([known.x, known.x]), torch.cat([known.y, known.y]))
        torch.testing.assert_close(density_of(method, meta, twice, query.x), density_of(method, meta, known, query.x))


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("size", [1, 2, 5])
def test_any_number_of_examples_gives_a_density_that_integrates_to_1_and_is_what_training_scores(
    name: str, size: int
) -> None:
    method = small(name)
    meta, task = problem(method)
    known = Batch(task.support.x[:size], task.support.y[:size])
    density = density_of(method, meta, known, task.query.x)
    grid = torch.linspace(-60, 60, 40_001)
    first = Mixture(*(part[:1].expand(len(grid), -1) for part in density[:3]))
    assert float(torch.trapezoid(log_density(first, grid).exp(), grid)) == pytest.approx(1, abs=1e-6)
    loss, _ = method.loss(meta, MODEL, task._replace(support=known), {}, PREDICTED)
    torch.testing.assert_close(loss, -log_density(density, task.query.y.squeeze(-1)).mean())


@pytest.mark.usefixtures("float64")
def test_a_function_is_the_mean_after_the_imagined_examples() -> None:
    method, samples = small("tnp", imagined=1), 4000
    meta, (known, query, _) = problem(method)
    generator, x = streams.generator(0, "draws"), query.x[:3]
    noise: Noise = {
        "place": torch.full((samples, 1, 1), 0.7),  # all at one place
        "gaussian": torch.rand(samples, 1, generator=generator),
        "label": torch.randn(samples, 1, generator=generator),
    }
    assert {key: value.shape for key, value in noise.items()} == {
        key: draw.shape for key, draw in method.prediction_noise(MODEL, samples, 5).items()
    }
    functions = method.predict(method.adapt(meta, MODEL, known, {}), MODEL, x, noise)
    place = torch.full((1, 1), 2.5 * 3**0.5 * 0.4)
    density = density_of(method, meta, known, place)
    points = torch.linspace(-60, 60, 2001)
    shares = log_density(Mixture(*(part.expand(2001, -1) for part in density[:3])), points).exp() * 0.06
    expected = torch.zeros(3, 1)
    for share, y in zip(shares, points, strict=True):  # the integral over the imagined label
        more = Batch(torch.cat([known.x, place]), torch.cat([known.y, y.view(1, 1)]))
        mixture = density_of(method, meta, more, x)
        expected += share * (mixture.weights * mixture.means).sum(-1, keepdim=True)
    error = functions.std(0) / samples**0.5
    assert bool(((functions.mean(0) - expected).abs() < 4 * error + 1e-4).all())


@pytest.mark.usefixtures("float64")
def test_classes_may_be_numbered_in_any_way_and_be_any_number(name: str) -> None:
    method = small(name)
    meta, known, x = class_problem(method)
    logits = method.predict(method.adapt(meta, CLASSES, known, {}), CLASSES, x, {})
    assert logits.shape == (1, 4, 3)
    renamed = torch.tensor([2, 0, 1])
    turned = method.adapt(meta, CLASSES, Batch(known.x, renamed[known.y]), {})
    torch.testing.assert_close(method.predict(turned, CLASSES, x, {})[..., renamed], logits)
    meta, known, x = class_problem(method, way=7)
    seven: Model = CLASSES._replace(outputs=7)
    assert method.predict(method.adapt(meta, seven, known, {}), seven, x, {}).shape == (1, 4, 7)


def test_the_classes_of_other_examples_change_a_tnp(name: str) -> None:
    """Attention sees who shares a class: a CNP's network of each example does not."""
    method = small(name)
    meta, known, _ = class_problem(method)
    memory = method.adapt(meta, CLASSES, known, {})["memory"]
    other = method.adapt(meta, CLASSES, Batch(known.x, known.y.sort().values), {})["memory"]
    assert all(torch.equal(memory[key], other[key]) for key in memory) == (name == "cnp")


def test_images_are_embedded_by_the_base_network(name: str) -> None:
    model = classification(Conv4((1, 16, 16), 3, filters=2, norm="instance"), 3)
    method = small(name, frequencies=0)
    meta, generator = method.init(model, streams.generator(0, "init")), streams.generator(0, "images")
    assert set(meta["embedding"]) == set(model.network.embedding.shapes)
    known = Batch(torch.rand(6, 1, 16, 16, generator=generator), torch.arange(3).repeat(2))
    posterior = method.adapt(meta, model, known, {})
    assert method.predict(posterior, model, known.x[:2], {}).shape == (1, 2, 3)


def test_a_resumed_run_equals_an_uninterrupted_one_bit_for_bit(tmp_path: Path, name: str) -> None:
    options = Training(updates=6, tasks=3, optimiser="muon")
    tasks = SineLine(query=6, shot=(2, 5))
    experiment = Experiment(small(name, encoder_width=16), tasks, MlpOptions((5,)), options, "none")
    cpu, seen = torch.device("cpu"), iter((False, False, True))
    whole, parts = (Run.create(tmp_path / kind, experiment) for kind in ("whole", "parts"))
    train(whole, cpu)
    train(parts, cpu, stop=lambda: next(seen))
    assert parts.load(cpu).update == 3
    train(parts, cpu)
    whole_file, parts_file = (run.folder / "checkpoint.safetensors" for run in (whole, parts))
    assert whole_file.read_bytes() == parts_file.read_bytes()


@pytest.fixture(scope="module")
def learner(tmp_path_factory: pytest.TempPathFactory) -> Learner:
    generator = np.random.default_rng(0)
    tasks = []
    for _ in range(120):
        x, a, b = generator.uniform(-1, 1, (16, 2)), *generator.normal(size=2)
        tasks.append((x, a + b * x[:, 0] + 0.1 * generator.normal(size=16)))
    data, out = regression_tasks(tasks, shares=(0.5, 0.2, 0.3)), tmp_path_factory.mktemp("tnp") / "run"
    options = {"encoder_width": 16, "encoder_layers": 2, "lr_warm_up": 10}
    learner = Learner("tnp", data=data, out=out, **options)
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
    labels = np.linspace(-8, 10, 4001)
    one = learner.adapt(x, 1 + x[:, 0]).predict(np.repeat(at[:1], len(labels), 0))
    assert np.trapezoid(np.exp(one.log_density(labels)), labels) == pytest.approx(1, abs=1e-3)


def test_it_learns_classes_of_any_number(tmp_path: Path, name: str) -> None:
    generator = np.random.default_rng(0)
    centres = 3 * generator.normal(size=(40, 1, 3))
    x, labels = (centres + generator.normal(size=(40, 12, 3))).reshape(-1, 3), np.repeat(np.arange(40), 12)
    data = labelled_examples(x, labels, way=3, shot=2, query=4, shares=(0.6, 0.2, 0.2))
    learner = Learner(name, data=data, out=tmp_path / "run", encoder_width=16, lr_warm_up=10)
    learner.train(updates=120, quiet=True)
    assert learner.evaluate(tasks=60)["accuracy"]["mean"] > 0.75
    rows = np.concatenate([np.arange(12 * number, 12 * number + 2) for number in range(5)])
    adapted = learner.adapt(x[rows], labels[rows])
    p = adapted.predict(x[rows + 2])
    assert p.probabilities.shape == (10, 5)
    assert export(adapted).program.module()(torch.tensor(x[rows + 2]))[0].shape == (10, 5)
