"""`simpleshot`, `logistic` and `ridge` on classes: by hand, and against scikit-learn."""

from pathlib import Path

import numpy as np
import pytest
import scipy.special
import scipy.stats
import torch
from sklearn.covariance import oas
from torch import Tensor
from torch.nn import functional

from fewsure import Learner
from fewsure.algorithms.dkt import Dkt
from fewsure.algorithms.linear import Ridge
from fewsure.algorithms.logistic import Logistic
from fewsure.algorithms.metaoptnet import MetaOptNet, solve_dual
from fewsure.algorithms.metaqda import MetaQda
from fewsure.algorithms.simpleshot import SimpleShot
from fewsure.core import streams
from fewsure.errors import FewsureError
from fewsure.networks.losses import classification
from fewsure.networks.mlp import Mlp
from fewsure.types import Algorithm, Batch, Parts, Stage, Task

from .helpers import assert_gradient_equals_finite_differences, assert_vectorised_equals_loop

INPUTS, WAY = 4, 3
MODEL = classification(Mlp((INPUTS, 5, WAY)), WAY)
METHODS: dict[str, Algorithm] = {
    "simpleshot": SimpleShot(),
    "logistic": Logistic(),
    "ridge": Ridge(),
    "ridge-deep": Ridge(learn_features=True),
    "metaoptnet": MetaOptNet(),
    "metaoptnet-solved": MetaOptNet(solver_steps=30),
    "metaoptnet-deep": MetaOptNet(learn_features=True, solver_steps=30),
    "metaqda": MetaQda(),
    "metaqda-deep": MetaQda(learn_features=True),
    "dkt": Dkt(),
    "dkt-deep": Dkt(("rbf",), learn_features=True),
}


def classes(count: int = 8, each: int = 9, seed: int = 0) -> list[Batch]:
    """Gaussian clouds around centres that are far from 0."""
    generator = torch.Generator().manual_seed(seed)
    centres = 5 + 2 * torch.randn(count, 1, INPUTS, generator=generator)
    x = centres + torch.randn(count, each, INPUTS, generator=generator)
    return [Batch(of_class, torch.full((each,), number)) for number, of_class in enumerate(x)]


def task(shot: int = 3, seed: int = 1) -> Task:
    three = classes(WAY, seed=seed)

    def part(which: slice) -> Batch:
        x = [batch.x[which] for batch in three]
        return Batch(torch.cat(x), torch.arange(WAY).repeat_interleave(len(x[0])))

    return Task(part(slice(shot)), part(slice(shot, None)))


def logits(algorithm: Algorithm, meta: Parts, on: Task) -> Tensor:
    found = algorithm.predict(algorithm.adapt(meta, MODEL, on.support, {}), MODEL, on.query.x, {})
    assert len(found) == 1
    return found[0]


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("name", METHODS)
def test_vectorised_equals_loop_and_gradients_equal_finite_differences(name: str) -> None:
    meta = METHODS[name].init(MODEL, torch.Generator().manual_seed(0))
    one = task(1 if name.startswith("metaoptnet") else 3)  # a machine of few examples is unique
    two = Task(*(Batch(*(torch.stack([part, part.flip(0)]) for part in batch)) for batch in one[:2]))
    batch = (meta, two, {}, {}, Stage(torch.tensor(0), 2, 0))
    assert_vectorised_equals_loop(METHODS[name], MODEL, batch)
    assert_gradient_equals_finite_differences(METHODS[name], MODEL, batch, absolute=1e-8)


@pytest.mark.usefixtures("float64")
def test_simpleshot_is_the_nearest_mean_of_centred_inputs_of_length_1() -> None:
    on = classes()
    meta = SimpleShot().fit(SimpleShot().init(MODEL, torch.Generator()), MODEL, on, streams.generator(0, "fit"))
    centre = np.mean(np.concatenate([batch.x.numpy() for batch in on]), 0)
    np.testing.assert_allclose(meta["centre"]["mean"], centre)

    def feature(x: np.ndarray) -> np.ndarray:
        return (x - centre) / np.linalg.norm(x - centre, axis=1, keepdims=True)

    one = task()
    means = np.stack([feature(one.support.x.numpy())[one.support.y == label].mean(0) for label in range(WAY)])
    distances = ((feature(one.query.x.numpy())[:, None] - means) ** 2).sum(-1)
    scale = float(meta["logits"]["log_scale"].exp())
    np.testing.assert_allclose(logits(SimpleShot(), meta, one), -scale * distances)


@pytest.mark.usefixtures("float64")
def test_logistic_regression_is_that_of_scikit_learn() -> None:
    from sklearn.linear_model import LogisticRegression

    one, std = task(), 0.4
    features = np.hstack([np.ones((len(one.support.x), 1)), one.support.x.numpy()])
    reference = LogisticRegression(C=std**2, fit_intercept=False, tol=1e-10, max_iter=10_000)
    reference.fit(features, one.support.y.numpy())
    at = np.hstack([np.ones((len(one.query.x), 1)), one.query.x.numpy()])
    found = logits(Logistic(solver_steps=5000), {"prior": {"log_std": torch.tensor(std).log()}}, one)
    np.testing.assert_allclose(found.softmax(-1), reference.predict_proba(at), atol=1e-6)
    usual = logits(Logistic(), {"prior": {"log_std": torch.tensor(std).log()}}, one)
    np.testing.assert_allclose(usual.softmax(-1), reference.predict_proba(at), atol=0.02)


@pytest.mark.usefixtures("float64")
def test_ridge_is_that_of_scikit_learn_on_indicators() -> None:
    from sklearn.linear_model import Ridge as Reference

    one, slope, scale = task(), 0.5, 3.0
    features = np.hstack([np.ones((len(one.support.x), 1)), one.support.x.numpy()])
    reference = Reference(alpha=slope**-2, fit_intercept=False).fit(features, np.eye(WAY)[one.support.y] - 1 / WAY)
    at = np.hstack([np.ones((len(one.query.x), 1)), one.query.x.numpy()])
    meta = {
        "prior": {"log_std": torch.tensor([slope, slope]).log()},
        "logits": {"log_scale": torch.tensor(scale).log()},
    }
    np.testing.assert_allclose(logits(Ridge(), meta, one), scale * reference.predict(at), rtol=1e-6)


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("with_inputs", [False, True])
def test_ridge_learns_from_each_example_as_predicted_from_all_others(with_inputs: bool) -> None:
    model = MODEL._replace(fixed_classes=True)
    ridge = Ridge(learn_features=True, with_inputs=with_inputs, leave_one_out=True)
    meta = ridge.init(model, streams.generator(0, "ridge"))
    meta["prior"]["mean"] += torch.randn(meta["prior"]["mean"].shape, generator=streams.generator(0, "mean"))
    one = task()
    x, y = (torch.cat(parts) for parts in zip(one.support, one.query, strict=True))
    losses = []
    for left in range(len(x)):
        others = torch.arange(len(x)) != left
        posterior = ridge.adapt(meta, model, Batch(x[others], y[others]), {})
        losses.append(model.loss(ridge.predict(posterior, model, x[left : left + 1], {})[0], y[left : left + 1]))
    stage = Stage(torch.zeros(()), 1)
    torch.testing.assert_close(ridge.loss(meta, model, one, {}, stage)[0], torch.stack(losses).mean())


def test_ridge_knows_classes_that_all_tasks_share_before_any_example() -> None:
    model = MODEL._replace(fixed_classes=True)
    ridge = Ridge(learn_features=True)
    meta = ridge.init(model, streams.generator(0, "ridge"))
    meta["prior"]["mean"] += torch.randn(meta["prior"]["mean"].shape, generator=streams.generator(0, "mean"))
    meta["prior"]["log_std"] -= 20  # a task cannot leave the mean
    one = task()
    (found,) = ridge.predict(ridge.adapt(meta, model, one.support, {}), model, one.query.x, {})
    features = ridge.features(meta, model, one.query.x)
    expected = meta["logits"]["log_scale"].exp() * features @ meta["prior"]["mean"].double()
    torch.testing.assert_close(found, expected.to(found))
    assert "mean" not in ridge.init(MODEL, streams.generator(0, "ridge"))["prior"]


@pytest.mark.usefixtures("float64")
def test_ridge_on_features_and_inputs_is_ridge_on_both_in_one_row() -> None:
    ridge, one, of_inputs = Ridge(learn_features=True, with_inputs=True), task(), 0.4
    meta = ridge.init(MODEL, streams.generator(0, "ridge"))
    meta["prior"]["log_std"] = torch.tensor([0.3, 0.5, of_inputs]).log()
    rows = []
    for x in (one.support.x, one.query.x):
        features = MODEL.network.embedding(meta["embedding"], x)
        rows.append(torch.cat([features, of_inputs / 0.5 * functional.normalize(x, dim=-1)], dim=1))
    wide = MODEL._replace(network=Mlp((rows[0].shape[1], WAY)))
    plain = {"prior": {"log_std": torch.tensor([0.3, 0.5]).log()}, "logits": meta["logits"]}
    posterior = Ridge().adapt(plain, wide, Batch(rows[0], one.support.y), {})
    torch.testing.assert_close(logits(ridge, meta, one), Ridge().predict(posterior, wide, rows[1], {})[0])


def test_leaving_one_out_is_refused_where_it_would_tell_the_class() -> None:
    with pytest.raises(FewsureError, match="`leave_one_out` to be left out without learn_features"):
        Ridge(leave_one_out=True)
    ridge = Ridge(learn_features=True, leave_one_out=True)
    with pytest.raises(FewsureError, match="left out where classes differ between tasks"):
        ridge.init(MODEL, streams.generator(0, "ridge"))


@pytest.mark.usefixtures("float64")
def test_deep_kernel_transfer_is_the_gaussian_process_of_scikit_learn_on_indicators() -> None:
    from sklearn.gaussian_process import GaussianProcessRegressor
    from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel
    from sklearn.multioutput import MultiOutputRegressor

    one, spread, length, noise = task(), 0.7, 1.6, 0.2
    kernel = ConstantKernel(spread**2) * RBF(length) + WhiteKernel(noise**2)
    reference = MultiOutputRegressor(GaussianProcessRegressor(kernel, optimizer=None, alpha=0.0))
    reference.fit(one.support.x.numpy(), np.eye(WAY)[one.support.y] - 1 / WAY)
    found = [process.predict(one.query.x.numpy(), return_std=True) for process in reference.estimators_]
    mean, std = (np.stack(parts, 1) for parts in zip(*found, strict=True))
    codes = np.eye(WAY) - 1 / WAY
    density = np.exp(-(((codes - mean[:, None]) / std[:, None]) ** 2).sum(-1) / 2)
    meta = {
        "kernel": {"rbf.log_std": torch.tensor(spread).log(), "rbf.log_length": torch.tensor([length]).log()},
        "noise": {"log_std": torch.tensor(noise).log()},
    }
    expected = density / density.sum(1, keepdims=True)
    np.testing.assert_allclose(logits(Dkt(("rbf",)), meta, one).softmax(-1), expected, rtol=1e-6)


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("penalty", [0.01, 1.0])
def test_the_machine_of_metaoptnet_is_feasible_and_that_of_liblinear(penalty: float) -> None:
    from sklearn.svm import LinearSVC

    one = task()
    x, labels = one.support.x, torch.eye(WAY)[one.support.y]
    left, _ = solve_dual(penalty * x @ x.T, labels, 30)
    duals = labels - left
    torch.testing.assert_close(duals.sum(1), torch.zeros(len(x)), atol=1e-12, rtol=0)
    assert bool((duals <= labels).all())
    options = {"C": penalty, "fit_intercept": False, "tol": 1e-9, "max_iter": 1_000_000}
    reference = LinearSVC(multi_class="crammer_singer", **options).fit(x.numpy(), one.support.y.numpy())
    np.testing.assert_allclose(penalty * x.T @ duals, reference.coef_.T, atol=1e-5)
    meta = {"machine": {"log_penalty": torch.tensor(penalty).log(), "log_scale": torch.tensor(3.0).log()}}
    found = logits(MetaOptNet(solver_steps=30), meta, one)
    np.testing.assert_allclose(found, 3 * one.query.x.numpy() @ reference.coef_.T, atol=1e-4)


@pytest.mark.usefixtures("float64")
def test_metaqda_is_the_exact_posterior_of_gaussian_classes() -> None:
    kappa, delta, psi, on = 0.6, 3.5, 2.2, classes()
    meta = MetaQda().fit(MetaQda().init(MODEL, torch.Generator()), MODEL, on, streams.generator(0, "fit"))
    within = np.concatenate([batch.x.numpy() - batch.x.numpy().mean(0) for batch in on])
    covariance, _ = oas(within, assume_centered=True)
    matrix = meta["whitening"]["matrix"].numpy()
    np.testing.assert_allclose(matrix @ covariance @ matrix.T, np.eye(INPUTS), atol=1e-10)
    meta["prior"] = {
        f"log_{name}": torch.tensor(value).log() for name, value in (("kappa", kappa), ("delta", delta), ("psi", psi))
    }
    one, centre = task(), meta["whitening"]["centre"].numpy()
    support, query = ((part.x.numpy() - centre) @ matrix.T for part in (one.support, one.query))
    expected = []
    for label in range(WAY):
        z = support[one.support.y == label]
        count, mean = len(z), z.sum(0) / (kappa + len(z))
        scale = psi * np.eye(INPUTS) + z.T @ z - (kappa + count) * np.outer(mean, mean)
        scale *= (kappa + count + 1) / ((kappa + count) * (delta + count))
        expected.append(scipy.stats.multivariate_t.logpdf(query, mean, scale, df=delta + count))
    found = logits(MetaQda(), meta, one).log_softmax(-1)
    np.testing.assert_allclose(found, scipy.special.log_softmax(np.stack(expected, 1), axis=1), rtol=1e-8)


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("name", ["simpleshot", "logistic", "ridge", "dkt", "metaoptnet", "metaqda"])
def test_fit_finds_numbers_that_solve_new_tasks_better_than_the_first_ones(name: str) -> None:
    algorithm = METHODS[name]
    first = algorithm.init(MODEL, torch.Generator().manual_seed(0))
    fitted = algorithm.fit(first, MODEL, classes(60), streams.generator(0, "fit"))

    def loss(meta: Parts) -> float:
        stage = Stage(torch.tensor(0), 1, 0)
        return sum(float(algorithm.loss(meta, MODEL, task(3, seed), {}, stage)[0]) for seed in range(100, 130)) / 30

    assert loss(fitted) < loss(first)


@pytest.mark.parametrize("name", ["simpleshot", "logistic", "ridge", "dkt", "metaoptnet", "metaqda"])
def test_it_is_trained_without_updates_certified_and_takes_any_way(name: str, tmp_path: Path) -> None:
    data = {f"class {number}": batch.x.numpy() for number, batch in enumerate(classes(30))}
    learner = Learner(name, data, shot=2, query=4, way=3, device="cpu").train(quiet=True)
    assert learner.experiment.training.updates == 0
    learner.certify(unit="tasks", quiet=True)
    one = task(2)
    adapted = learner.adapt(one.support.x.numpy(), one.support.y.numpy())
    p = adapted.predict(one.query.x.numpy())
    assert (p.probabilities.argmax(1) == one.query.y.numpy()).mean() > 0.6
    adapted.save(tmp_path / "task")
    again = learner.load_adapted(tmp_path / "task").predict(one.query.x.numpy())
    np.testing.assert_array_equal(p.probabilities, again.probabilities)
    kept = one.support.y < 2
    two = learner.adapt(one.support.x[kept].numpy(), one.support.y[kept].numpy()).predict(one.query.x.numpy())
    assert two.probabilities.shape[1] == 2
