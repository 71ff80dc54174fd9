"""`mean`, `ridge`, `mixed` and `gp`: their closed forms, independent libraries, and real tables in small."""

import dataclasses
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import scipy.stats
import torch
from torch import Tensor

from fewsure import Learner, Table, regression_tasks
from fewsure.algorithms.boosting import Boosting
from fewsure.algorithms.gp import Gp
from fewsure.algorithms.linear import Mean, Mixed, Ridge
from fewsure.algorithms.pacoh import Pacoh
from fewsure.algorithms.parts.group_scales import SCALES, fit_shares
from fewsure.algorithms.parts.kernels import covariance
from fewsure.core import streams
from fewsure.core.vectorise import draw_per_task
from fewsure.evaluation.metrics.density import function_std, log_density
from fewsure.evaluation.metrics.density import mean as mean_of
from fewsure.networks.losses import regression
from fewsure.networks.mlp import Mlp
from fewsure.training.engine import Engine
from fewsure.types import Algorithm, Batch, Parts, Stage, Task

from .data_fixtures import REAL_DATA
from .helpers import assert_gradient_equals_finite_differences, assert_vectorised_equals_loop, meta_batch

INPUTS = 3
MODEL = regression(Mlp((INPUTS, 5, 1)))
METHODS: dict[str, Algorithm] = {
    "mean": Mean(),
    "ridge": Ridge(),
    "mixed": Mixed(),
    "mixed-slopes": Mixed(slopes=True),
    "gp": Gp(("constant", "linear", "rbf"), fit_rows=21),
    "gp-all": Gp(("constant", "rbf", "exponential", "matern32", "matern52", "periodic"), "constant"),
    "gp-one-length": Gp(("linear", "rbf", "periodic"), ard=False),
    "gp-scales": Gp(("constant", "rbf"), group_scales=True),
    "gp-deep": Gp(learn_features=True),
    "gp-deep-mean": Gp(("rbf",), learn_features=True, trend="network"),
    "boosting": Boosting(trees=3, leaves=4, depth=2),
}


def task(rows: int = 6, seed: int = 0) -> Batch:
    generator = torch.Generator().manual_seed(seed)
    return Batch(torch.randn(rows, INPUTS, generator=generator), torch.randn(rows, 1, generator=generator))


def groups(count: int = 12, seed: int = 0) -> list[Batch]:
    """Groups of unequal sizes with an intercept and slopes of their own."""
    generator = torch.Generator().manual_seed(seed)
    found = []
    for number in range(count):
        x = torch.randn(10 + number, INPUTS, generator=generator)
        own = torch.randn(1 + INPUTS, 1, generator=generator) * torch.tensor([[1.0], [0.5], [0.1], [0.0]])
        slopes = torch.tensor([[0.3], [1.0], [-1.0], [0.0]]) + own
        noise = 0.4 * torch.randn(len(x), 1, generator=generator)
        found.append(Batch(x, torch.cat([torch.ones(len(x), 1), x], 1) @ slopes + noise))
    return found


def fitted(algorithm: Algorithm, on: Sequence[Batch]) -> Parts:
    generator = streams.generator(0, "fit")
    return algorithm.fit(algorithm.init(MODEL, generator), MODEL, on, generator)


def density(algorithm: Algorithm, meta: Parts, support: Batch, x: Tensor) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard deviation of a label."""
    found = algorithm.predictive(algorithm.adapt(meta, MODEL, support, {}), MODEL, x, {})
    assert torch.equal(found.weights, torch.ones_like(found.weights))
    return found.means[:, 0].numpy(), found.stds[:, 0].numpy()


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("name", METHODS)
def test_vectorised_equals_loop_and_gradients_equal_finite_differences(name: str) -> None:
    model = regression(Mlp((1, 5, 1)))
    batch = meta_batch(METHODS[name], model=model)
    assert_vectorised_equals_loop(METHODS[name], model, batch)
    assert_gradient_equals_finite_differences(METHODS[name], model, batch, absolute=1e-8)


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("name", METHODS)
def test_the_loss_is_the_evidence_of_the_examples_as_single_predictions_chain_it(name: str) -> None:
    algorithm, examples = METHODS[name], task()
    meta = algorithm.init(MODEL, torch.Generator().manual_seed(1))
    whole = Task(Batch(*(part[:2] for part in examples)), Batch(*(part[2:] for part in examples)))
    loss, _ = algorithm.loss(meta, MODEL, whole, {}, Stage(torch.tensor(0), 1))
    chained = 0.0
    for known in range(len(examples.y)):
        posterior = algorithm.adapt(meta, MODEL, Batch(*(part[:known] for part in examples)), {})
        found = algorithm.predictive(posterior, MODEL, examples.x[known, None], {})
        chained += float(log_density(found, examples.y[known]))
    assert -float(loss) * len(examples.y) == pytest.approx(chained, rel=1e-8)


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("name", ["mean", "ridge", "mixed", "mixed-slopes", "gp"])
def test_fit_finds_a_place_where_the_evidence_of_the_groups_is_highest(name: str) -> None:
    algorithm = METHODS[name]
    if isinstance(algorithm, Mixed):
        algorithm = dataclasses.replace(algorithm, reml=False)
    on = groups()
    meta = fitted(algorithm, on)
    restricted = not isinstance(algorithm, Mixed)  # then variances are a little larger than those of highest evidence

    def evidence(parts: Parts) -> float:
        total = 0.0
        for group in on:
            nothing = Batch(group.x[:0], group.y[:0])
            loss, _ = algorithm.loss(parts, MODEL, Task(nothing, group), {}, Stage(torch.tensor(0), 1))
            total -= float(loss) * len(group.y)
        return total

    best = evidence(meta)
    for part, params in meta.items():
        for leaf, value in params.items():
            for step in (-0.2, 0.2):
                moved = meta | {part: params | {leaf: value + step}}
                assert evidence(moved) < best + (0.1 if restricted else 1e-6), (part, leaf, step)


@pytest.mark.usefixtures("float64")
def test_a_linear_kernel_is_ridge_with_a_penalty_of_noise_over_scale() -> None:
    from sklearn.linear_model import Ridge as Reference

    noise, slope, intercept = 0.4, 0.7, 1.3
    support, at = task(), task(5, seed=1).x
    spreads = {"log_std": torch.tensor([intercept, slope]).log()}
    level = {"log_std": torch.tensor(noise).log()}
    ridge = {"prior": {"mean": torch.zeros(1)} | spreads, "noise": level}
    linear = {"constant.log_std": spreads["log_std"][0], "linear.log_std": spreads["log_std"][1].expand(INPUTS)}
    process = {"mean": {"mean": torch.zeros(1)}, "kernel": linear, "noise": level}
    of_ridge = density(Ridge(), ridge, support, at)
    of_process = density(Gp(kernels=("constant", "linear"), trend="constant"), process, support, at)
    np.testing.assert_allclose(of_ridge, of_process, rtol=1e-10)

    # A column of 1s of length τ₀/τ has the intercept's own penalty.
    column = np.full((len(support.x), 1), intercept / slope)
    reference = Reference(alpha=(noise / slope) ** 2, fit_intercept=False)
    reference.fit(np.hstack([column, support.x.numpy()]), support.y[:, 0].numpy())
    predicted = reference.predict(np.hstack([column[: len(at)], at.numpy()]))
    np.testing.assert_allclose(of_ridge[0], predicted, rtol=1e-6)


@pytest.mark.usefixtures("float64")
def test_a_gaussian_process_is_that_of_scikit_learn() -> None:
    from sklearn.gaussian_process import GaussianProcessRegressor
    from sklearn.gaussian_process.kernels import RBF, ConstantKernel, DotProduct, ExpSineSquared, Matern, WhiteKernel

    support, at = task(), task(5, seed=1).x
    lengths, noise = np.array([0.5, 1.0, 2.0]), 0.3
    log_length = torch.from_numpy(lengths).log()
    kernels = {
        "rbf": RBF(lengths),
        "exponential": Matern(lengths, nu=0.5),
        "matern32": Matern(lengths, nu=1.5),
        "matern52": Matern(lengths, nu=2.5),
    }
    names = (*kernels, "constant", "linear")
    params = {"constant.log_std": torch.tensor(0.2).log(), "linear.log_std": torch.zeros(INPUTS)}
    kernel = DotProduct(sigma_0=0.2) + WhiteKernel(noise**2)
    for number, (name, reference) in enumerate(kernels.items(), start=1):
        params |= {f"{name}.log_std": torch.tensor(0.5 * number).log(), f"{name}.log_length": log_length}
        kernel = kernel + ConstantKernel((0.5 * number) ** 2) * reference
    meta = {"mean": {"mean": torch.zeros(1)}, "kernel": params, "noise": {"log_std": torch.tensor(noise).log()}}
    algorithm = Gp(kernels=names, trend="constant")
    reference = GaussianProcessRegressor(kernel, optimizer=None, alpha=0.0)
    reference.fit(support.x.numpy(), support.y[:, 0].numpy())
    expected = reference.predict(at.numpy(), return_std=True)
    np.testing.assert_allclose(density(algorithm, meta, support, at), expected, rtol=1e-6)
    evidence, _ = algorithm.loss(meta, MODEL, Task(support, Batch(at[:0], at[:0, :1])), {}, Stage(torch.tensor(0), 1))
    assert -float(evidence) * len(support.y) == pytest.approx(reference.log_marginal_likelihood_value_, rel=1e-8)

    one = Batch(support.x[:, :1], support.y)
    params = {name: torch.tensor(value).log() for name, value in (("periodic.log_std", 1.5),)}
    params |= {
        f"periodic.log_{name}": torch.tensor([value]).log() for name, value in (("length", 0.8), ("period", 1.7))
    }
    meta = meta | {"kernel": params}
    kernel = ConstantKernel(1.5**2) * ExpSineSquared(0.8, 1.7) + WhiteKernel(noise**2)
    reference = GaussianProcessRegressor(kernel, optimizer=None, alpha=0.0).fit(one.x.numpy(), one.y[:, 0].numpy())
    found = density(Gp(kernels=("periodic",), trend="constant"), meta, one, at[:, :1])
    np.testing.assert_allclose(found, reference.predict(at[:, :1].numpy(), return_std=True), rtol=1e-6)


@pytest.mark.usefixtures("float64")
def test_a_group_of_one_scale_is_a_process_with_all_standard_deviations_times_it() -> None:
    support, at, scale = task(), task(5, seed=1).x, SCALES[12]
    algorithm = Gp(("constant", "rbf"), group_scales=True)
    meta = algorithm.init(MODEL, torch.Generator().manual_seed(0))
    one = torch.full((len(SCALES),), -math.inf).index_fill(0, torch.tensor(12), 0.0)
    found = algorithm.predictive(
        algorithm.adapt(meta | {"scale": {"log_shares": one}}, MODEL, support, {}), MODEL, at, {}
    )
    params = {name: value + math.log(scale) * name.endswith("log_std") for name, value in meta["kernel"].items()}
    larger = {"mean": meta["mean"], "kernel": params, "noise": {"log_std": meta["noise"]["log_std"] + math.log(scale)}}
    mean, std = density(Gp(("constant", "rbf")), larger, support, at)
    np.testing.assert_allclose(found.weights[:, 12], 1.0)
    np.testing.assert_allclose(found.means[:, 12], mean)
    np.testing.assert_allclose(found.stds[:, 12], std)


@pytest.mark.usefixtures("float64")
def test_shares_of_scales_are_those_of_the_groups() -> None:
    random = np.random.default_rng(0)
    rows = torch.full((600,), 40)
    scales = np.where(random.uniform(size=600) < 0.25, SCALES[11], SCALES[6])
    distances = torch.from_numpy(scales**2 * random.chisquare(40, size=600))
    found = fit_shares(distances, rows).exp()
    assert float(found[10:13].sum()) == pytest.approx(0.25, abs=0.04)
    assert float(found[5:8].sum()) == pytest.approx(0.75, abs=0.04)


@pytest.mark.parametrize("double", [False, True])
def test_boosted_trees_are_those_of_scikit_learn(double: bool, request: pytest.FixtureRequest) -> None:
    from sklearn.ensemble import HistGradientBoostingRegressor

    if double:
        request.getfixturevalue("float64")
    on = groups()
    algorithm = Boosting(trees=20, leaves=9, depth=4)
    meta = fitted(algorithm, on)
    x, y = (torch.cat(parts).numpy() for parts in zip(*on, strict=True))
    options = {"max_iter": 20, "max_leaf_nodes": 9, "max_depth": 4, "early_stopping": False}
    reference = HistGradientBoostingRegressor(**options).fit(x, y[:, 0])
    nothing = Batch(torch.zeros(0, INPUTS), torch.zeros(0, 1))
    for at in (x, np.random.default_rng(0).normal(size=(500, INPUTS)).astype(x.dtype)):
        found, _ = density(algorithm, meta, nothing, torch.from_numpy(at))
        expected = reference.predict(at) + float(meta["prior"]["mean"])
        np.testing.assert_allclose(found, expected, atol=1e-10 if double else 1e-5, rtol=0)
    missed = [group.y[:, 0].numpy() - reference.predict(group.x.numpy()) for group in on]
    seen = np.sqrt(np.mean(np.concatenate([values - values.mean() for values in missed]) ** 2))
    assert float(meta["noise"]["log_std"].exp()) > 1.1 * seen  # rows that a tree was grown on look better than new ones


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("name", [*METHODS, "pacoh"])
def test_sampled_functions_have_the_posteriors_mean_and_variance(name: str) -> None:
    algorithm = METHODS.get(name, Pacoh(particles=1))
    meta = algorithm.init(MODEL, torch.Generator().manual_seed(1))
    support, at, count = task(), task(4, seed=1).x, 20_000
    posterior = algorithm.adapt(meta, MODEL, support, {})
    draws = draw_per_task(algorithm.prediction_noise(MODEL, count, 6), 1, torch.Generator().manual_seed(0))
    functions = algorithm.predict(posterior, MODEL, at, {name: draw[0] for name, draw in draws.items()}).squeeze(-1)
    found = algorithm.predictive(posterior, MODEL, at, {})
    torch.testing.assert_close(functions.mean(0), mean_of(found), atol=0.03, rtol=0)
    assert found.function_stds is not None
    torch.testing.assert_close(functions.std(0), function_std(found), rtol=0.05, atol=1e-8)
    noise = meta["noise"]["log_std"].exp()
    scales = torch.tensor(SCALES) if name == "gp-scales" else torch.ones(1)
    torch.testing.assert_close(found.stds.square(), found.function_stds.square() + (scales * noise).square())
    if isinstance(algorithm, Gp):
        known, asked = algorithm._features(meta, MODEL, support.x), algorithm._features(meta, MODEL, at)
        prior = covariance(algorithm.kernels, meta["kernel"], torch.cat([asked, known]))
        of_labels = prior[4:, 4:] + noise.square() * torch.eye(len(known))
        expected = prior[:4, :4] - prior[:4, 4:] @ torch.linalg.solve(of_labels, prior[4:, :4])
        expected = expected * (found.weights * scales.square()).sum(-1).mean()
        torch.testing.assert_close(functions.T.cov(), expected, atol=0.05 * float(expected.max()), rtol=0)


@pytest.mark.usefixtures("float64")
def test_one_particle_of_pacoh_climbs_to_the_mode_of_the_hyper_posterior() -> None:
    algorithm, examples, one = Pacoh(particles=1, prior_tasks=7), task(5), task(4, seed=1)
    meta = algorithm.init(MODEL, torch.Generator().manual_seed(1))
    on = (meta, Task(*(Batch(*(part.unsqueeze(0) for part in batch)) for batch in (one, examples))), {}, {})
    gradient, _ = Engine(algorithm, MODEL).gradient(*on, Stage(torch.tensor(0), 1))

    def log_hyper_posterior(parts: Parts) -> Tensor:
        """ln P(φ) + Σ ln Z / (√(n m) + 1), of 7 tasks like this one, for each of their 9 examples."""
        process = {part: {name: value[0] for name, value in params.items()} for part, params in parts.items()}
        x, y = torch.cat([one.x, examples.x]), torch.cat([one.y, examples.y])
        features = MODEL.network.embedding(process["embedding"], x)
        of_labels = covariance(("rbf",), process["kernel"], features)
        of_labels = of_labels + process["noise"]["log_std"].exp().square() * torch.eye(9)
        mean = MODEL.network(process["mean"], x).squeeze(-1)
        evidence = torch.distributions.MultivariateNormal(mean, of_labels).log_prob(y.squeeze(-1))
        matrices = [v for p in process.values() for v in p.values() if v.dim() == 2]
        others = [v for p in process.values() for v in p.values() if v.dim() < 2]
        stds = ((matrices, 0.5), (others, 3.0))
        log_prior = -sum((value / std).square().sum() / 2 for values, std in stds for value in values)
        return (7 * evidence / (63**0.5 + 1) + log_prior) * (63**0.5 + 1) / 63

    expected = torch.func.grad(log_hyper_posterior)(meta)
    for part, params in gradient.items():
        for name, value in params.items():
            torch.testing.assert_close(value, -expected[part][name])


@pytest.mark.usefixtures("float64")
def test_particles_of_pacoh_predict_as_the_mixture_of_their_processes() -> None:
    algorithm, at = Pacoh(particles=3), task(5, seed=1).x
    meta = algorithm.init(MODEL, torch.Generator().manual_seed(1))
    found = algorithm.predictive(algorithm.adapt(meta, MODEL, task(), {}), MODEL, at, {})
    torch.testing.assert_close(found.weights, torch.full((5, 3), 1 / 3))
    for number in range(3):
        one = {part: {name: value[number] for name, value in params.items()} for part, params in meta.items()}
        mean, std = density(algorithm.process, one, task(), at)
        np.testing.assert_allclose(found.means[:, number], mean)
        np.testing.assert_allclose(found.stds[:, number], std)


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with real tables in small: 25 schools with 8 of their columns, 20 people with the time and 3 columns."""
    here = REAL_DATA / "tables"
    if not here.is_dir():
        pytest.skip("the real tables are not beside the project (shared/data/tables)")
    folder = tmp_path_factory.mktemp("tables")
    school = pd.read_csv(here / "school.csv.gz")[["school", *(f"x{column}" for column in range(1, 9)), "score"]]
    school[school.school <= 25].to_csv(folder / "school.csv", index=False)
    people = pd.read_csv(here / "parkinsons.csv.gz")[["subject#", "age", "test_time", "NHR", "DFA", "total_UPDRS"]]
    people[people["subject#"] <= 20].to_csv(folder / "parkinsons.csv", index=False)
    return folder


TARGETS = {"school": ("school", "score"), "parkinsons": ("subject#", "total_UPDRS")}


def learned(name: str, table: str, tables: Path, **options: object) -> tuple[Learner, list[pd.DataFrame]]:
    """A trained method and the groups that it was not trained on."""
    task_column, target = TARGETS[table]
    data = Table(file=tables / f"{table}.csv", task_column=task_column, target=target, shot=8, query=10)
    learner = Learner(name, data, device="cpu", **options).train(quiet=True)
    frame = pd.read_csv(tables / f"{table}.csv", dtype={task_column: str})
    held_out = {*data.pool("test").classes, *data.pool("validation").classes}
    return learner, [group for key, group in frame.groupby(task_column) if key in held_out]


def scores(mean: np.ndarray, std: np.ndarray, y: np.ndarray) -> np.ndarray:
    """(MAE, NLL)."""
    return np.array([np.abs(mean - y).mean(), -scipy.stats.norm.logpdf(y, mean, std).mean()])


def columns_of(frame: pd.DataFrame, table: str) -> np.ndarray:
    return frame.drop(columns=[*TARGETS[table]]).to_numpy(float)


def test_a_mixed_model_is_as_good_as_that_of_statsmodels(tables: Path) -> None:
    from statsmodels.regression.mixed_linear_model import MixedLM

    learner, unseen = learned("mixed", "school", tables)
    frame = pd.read_csv(tables / "school.csv")
    known = frame[~frame.school.isin([group.school.iloc[0] for group in map(numbered, unseen)])]
    x = design(known)
    reference = MixedLM(known.score, x, groups=known.school).fit()
    between, within = float(reference.cov_re.iloc[0, 0]), float(reference.scale)
    found, expected = [], []
    for group in unseen:
        x, y = columns_of(group, "school"), group.score.to_numpy(float)
        p = learner.adapt(x[:8], y[:8]).predict(x[8:])
        found.append(scores(p.mean, p.std, y[8:]))
        missed = y - design(group) @ reference.fe_params.to_numpy()
        left = between * within / (8 * between + within)
        mean = y[8:] - missed[8:] + missed[:8].sum() * left / within
        expected.append(scores(mean, np.full(len(mean), np.sqrt(left + within)), y[8:]))
    (mae, nll), (their_mae, their_nll) = np.mean(found, 0), np.mean(expected, 0)
    assert mae == pytest.approx(their_mae, rel=0.02)
    assert nll == pytest.approx(their_nll, abs=0.02)


def design(school: pd.DataFrame) -> np.ndarray:
    """An intercept, and the columns that do not follow from others: one of three years and one of two sexes do."""
    x = columns_of(school.drop(columns=["x3", "x7"]), "school")
    return np.hstack([np.ones((len(x), 1)), x])


def numbered(group: pd.DataFrame) -> pd.DataFrame:
    return group.assign(school=group.school.astype(int))


def test_a_gaussian_process_on_a_real_table_is_that_of_scikit_learn(tables: Path) -> None:
    from sklearn.gaussian_process import GaussianProcessRegressor
    from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel

    learner, unseen = learned("gp", "parkinsons", tables, kernels=("constant", "rbf"), group_scales=False)
    meta = learner._trained().meta
    numbers = {name: value.double().exp().numpy() for name, value in meta["kernel"].items()}
    kernel = ConstantKernel(numbers["constant.log_std"] ** 2) + WhiteKernel(float(meta["noise"]["log_std"].exp()) ** 2)
    kernel = kernel + ConstantKernel(numbers["rbf.log_std"] ** 2) * RBF(numbers["rbf.log_length"])
    scale, slopes = learner.experiment.data.fitted_scale, meta["mean"]["mean"].double().numpy()
    for group in unseen:
        y = group.total_UPDRS.to_numpy(float)
        x = columns_of(group, "parkinsons")
        p = learner.adapt(x[:8], y[:8]).predict(x[8:])
        inputs, labels = (x - scale.x_mean) / scale.x_std, (y - scale.y_mean) / scale.y_std
        trend = slopes[0] + inputs @ slopes[1:]
        reference = GaussianProcessRegressor(kernel, optimizer=None, alpha=0.0)
        reference.fit(inputs[:8], (labels - trend)[:8])
        mean, std = reference.predict(inputs[8:], return_std=True)
        expected = scores((mean + trend[8:]) * scale.y_std + scale.y_mean, std * scale.y_std, y[8:])
        np.testing.assert_allclose(scores(p.mean, p.std, y[8:]), expected, rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("name", ["mean", "ridge", "mixed", "gp", "boosting"])
def test_it_is_trained_without_updates_certified_and_kept(name: str, tables: Path, tmp_path: Path) -> None:
    learner, unseen = learned(name, "school", tables)
    assert learner.experiment.training.updates == 0
    (line,) = learner._trained().run.metrics()
    assert line["seconds"] < 60
    learner.certify(quiet=True)
    x, y = columns_of(unseen[0], "school"), unseen[0].score.to_numpy(float)
    adapted = learner.adapt(x[:8], y[:8])
    p = adapted.predict(x[8:], coverage=0.5)
    assert (p.lower < p.mean).all()
    assert (p.mean < p.upper).all()
    adapted.save(tmp_path / "task")
    again = learner.load_adapted(tmp_path / "task").predict(x[8:])
    np.testing.assert_array_equal(p.mean, again.mean)
    np.testing.assert_array_equal(p.samples, again.samples)
    other = learner.adapt(x[:8][::-1].copy(), y[:8][::-1].copy()).predict(x[8:])
    np.testing.assert_allclose(other.mean, p.mean, rtol=1e-5)
    np.testing.assert_allclose(other.samples, p.samples, rtol=1e-4, atol=1e-4)
    assert np.ptp(p.mean) > 0 or name == "mean"
    wider = learner.adapt(x[:2], y[:2]).predict(x[8:])
    assert (wider.function_std > p.function_std).all()


def test_pacoh_is_trained_certified_and_kept(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    tasks = [
        (x := random.normal(size=(14, 1)), x[:, 0] * random.normal() + 0.1 * random.normal(size=14)) for _ in range(80)
    ]
    learner = Learner("pacoh", regression_tasks(tasks, shot=4, query=6), particles=2)
    learner.train(updates=3, quiet=True).certify(quiet=True)
    x, y = tasks[0]
    adapted = learner.adapt(x[:4], y[:4])
    p = adapted.predict(x[4:], coverage=0.5)
    assert (p.lower < p.upper).all()
    adapted.save(tmp_path / "task")
    np.testing.assert_array_equal(learner.load_adapted(tmp_path / "task").predict(x[4:]).mean, p.mean)
