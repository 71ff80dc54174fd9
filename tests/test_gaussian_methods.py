"""ABML and VAMPIRE, and the Gaussian posteriors they share, against closed forms."""

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

import pytest
import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from fewsure import streams
from fewsure.algorithms.abml import Abml
from fewsure.algorithms.vampire import Vampire
from fewsure.errors import FewsureError
from fewsure.models import classification, regression
from fewsure.networks import Mlp, flatten, weight_count
from fewsure.posteriors.gaussian import GaussianPosterior, divergence, expected_loss
from fewsure.training.engine import Engine
from fewsure.training.optimiser import Optimiser
from fewsure.types import Batch, Model, Noise, Params, Parts, Stage, Task
from fewsure.vectorise import draw_noise, for_each_task, take

METHODS = [Abml, Vampire]
NOISE_STD = 0.5
STAGE = Stage(torch.tensor(0), 4)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Tensors as small as these are slower on several."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@dataclass(frozen=True)
class Linear:
    """y = X w: the posterior of its weights under Gaussian noise and a Gaussian prior is known."""

    inputs: int

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {"weight": (self.inputs, 1)}

    def init(self, generator: torch.Generator) -> Params:
        return {"weight": torch.randn(self.inputs, 1, generator=generator)}

    def __call__(self, params: Params, x: Tensor) -> Tensor:
        return x @ params["weight"]


def double(tree: Parts) -> Parts:
    return {part: {name: value.double() for name, value in params.items()} for part, params in tree.items()}


def sigma_points(weights: int, levels: int) -> Tensor:
    """Noise whose samples have mean 0 and covariance I exactly: expectations of quadratics are then exact."""
    points = math.sqrt(weights) * torch.eye(weights, dtype=torch.float64)
    return torch.cat([points, -points]).expand(levels, -1, -1)


def linear_task(design: Tensor) -> Batch:
    generator = streams.generator(0, "linear")
    truth = torch.randn(design.shape[1], 1, generator=generator, dtype=torch.float64)
    noise = torch.randn(len(design), 1, generator=generator, dtype=torch.float64)
    return Batch(design, design @ truth + NOISE_STD * noise)


def design(orthogonal: bool) -> Tensor:
    correlated = torch.randn(8, 3, generator=streams.generator(1, "design"), dtype=torch.float64)
    return 2 * torch.linalg.qr(correlated).Q if orthogonal else correlated


def gaussian(mean: list[float], log_std: list[float]) -> Parts:
    vectors = {"mean": mean, "log_std": log_std}
    return {part: {"weight": torch.tensor(vector).double().unsqueeze(-1)} for part, vector in vectors.items()}


STANDARD = gaussian([0, 0, 0], [0, 0, 0])
GIVEN = gaussian([-1, 0.5, 1], [-0.5, 0.1, 0.3])
CASES = [
    (STANDARD, linear_task(design(False))),
    (GIVEN, linear_task(design(False))),
    (GIVEN, linear_task(design(True))),
]


@cache
def converged(method: type) -> list[Parts]:
    """The posteriors of all cases after enough steps to converge."""
    steps, network = 700, Linear(3)
    algorithm = method(inner_lr=0.25, inner_steps=steps, temperature=2 * NOISE_STD**2)
    noise = {"weights": sigma_points(3, steps)}

    def adapt(case: tuple[Parts, Batch], noise: Noise) -> Parts:
        prior, support = case
        return algorithm.adapt(prior, regression(network), support, noise)

    adapted = for_each_task(adapt)(pytree.tree_map(lambda *leaves: torch.stack(leaves), *CASES), noise)
    return [take(adapted, index) for index in range(len(CASES))]


def exact_posterior(prior: Parts, support: Batch) -> tuple[Tensor, Tensor]:
    """(mean, precision) of the linear-Gaussian task."""
    prior_precision = torch.exp(-2 * prior["log_std"]["weight"]).squeeze(-1).diag()
    precision = prior_precision + support.x.T @ support.x / NOISE_STD**2
    moment = prior_precision @ prior["mean"]["weight"] + support.x.T @ support.y / NOISE_STD**2
    return torch.linalg.solve(precision, moment), precision


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("case", [0, 1])
def test_enough_steps_reach_the_mean_field_optimum_of_a_linear_gaussian_task(method: type, case: int) -> None:
    posterior = converged(method)[case]
    mean, precision = exact_posterior(*CASES[case])
    assert torch.linalg.matrix_norm(precision - precision.diag().diag()) > 1  # the weights are correlated
    torch.testing.assert_close(posterior["mean"]["weight"], mean, rtol=0, atol=1e-6)
    variances = (2 * posterior["log_std"]["weight"]).exp().squeeze(-1)
    torch.testing.assert_close(variances, 1 / precision.diag(), rtol=1e-6, atol=0)


@pytest.mark.parametrize("method", METHODS)
def test_for_an_orthogonal_design_that_is_the_exact_posterior(method: type) -> None:
    posterior = converged(method)[2]
    mean, precision = exact_posterior(*CASES[2])
    torch.testing.assert_close(posterior["mean"]["weight"], mean, rtol=0, atol=1e-6)
    covariance = (2 * posterior["log_std"]["weight"]).exp().squeeze(-1).diag()
    torch.testing.assert_close(covariance, torch.linalg.inv(precision), rtol=0, atol=1e-7)


def test_the_weighted_free_energy_at_the_exact_posterior_is_the_evidence():
    """τ = 2σ² makes m/τ times the per-example objective the negative ELBO, which is tight at the exact posterior."""
    prior, support = STANDARD, linear_task(design(orthogonal=True))
    mean, precision = exact_posterior(prior, support)
    exact = {"mean": mean.squeeze(-1), "log_std": -0.5 * precision.diag().log()}
    model = regression(Linear(3))
    loss = expected_loss(exact, model, support, sigma_points(3, 1)[0])
    kl = divergence(exact, GaussianPosterior(model.network).vectors(prior))
    examples, variance = len(support.y), NOISE_STD**2
    negative_elbo = examples / (2 * variance) * loss + kl + 0.5 * examples * math.log(2 * math.pi * variance)
    marginal = variance * torch.eye(examples, dtype=torch.float64) + support.x @ support.x.T
    evidence = torch.distributions.MultivariateNormal(torch.zeros(examples, dtype=torch.float64), marginal)
    torch.testing.assert_close(-negative_elbo, evidence.log_prob(support.y.squeeze(-1)))


def test_the_divergence_equals_torch_distributions():
    generator = streams.generator(0, "kl")
    q, p = ({name: torch.randn(7, generator=generator) for name in ("mean", "log_std")} for _ in range(2))
    normals = [torch.distributions.Normal(part["mean"], part["log_std"].exp()) for part in (q, p)]
    torch.testing.assert_close(divergence(q, p), torch.distributions.kl_divergence(*normals).sum())


def test_samples_have_the_mean_and_the_standard_deviation_of_the_posterior():
    family = GaussianPosterior(Mlp((2, 3, 1)))
    groups = family.init(streams.generator(0, "init"), std=0.3)
    noise = torch.randn(100_000, weight_count(family.network), generator=streams.generator(0, "noise"))
    samples = flatten(family.sample(family.vectors(groups), noise), dims=1)
    torch.testing.assert_close(samples.mean(0), flatten(groups["mean"]), rtol=0, atol=5e-3)
    torch.testing.assert_close(samples.std(0), torch.full((13,), 0.3), rtol=0, atol=5e-3)
    assert all(
        torch.equal(family.groups(family.vectors(groups))["mean"][name], groups["mean"][name])
        for name in groups["mean"]
    )


def test_the_hyper_prior_of_abml_equals_torch_distributions():
    """Up to a constant: the same gradients."""
    algorithm = Abml(gamma_shape=2.5, gamma_rate=0.3)
    prior = {"mean": torch.tensor([0.3, -1.2]), "log_std": torch.tensor([-1.0, 0.4])}

    def reference(prior: Params) -> Tensor:
        normal = torch.distributions.Normal(0.0, 1.0, validate_args=False)
        gamma = torch.distributions.Gamma(torch.tensor(2.5), torch.tensor(0.3), validate_args=False)
        precision = (-2 * prior["log_std"]).exp()
        return -(normal.log_prob(prior["mean"]) + gamma.log_prob(precision)).sum()

    expected = torch.func.grad(reference)(prior)
    actual = torch.func.grad(algorithm._hyper_prior_energy)(prior)
    torch.testing.assert_close(actual, expected)


def small_problem(kind: str) -> tuple[Model, Task]:
    """A meta-batch of 4 tasks for a small network, in float64."""
    generator = streams.generator(3, kind)
    if kind == "regression":
        model = regression(Mlp((1, 4, 1)))
        batches = [Batch(*torch.randn(2, 4, count, 1, generator=generator).double()) for count in (5, 6)]
    else:
        model = classification(Mlp((2, 4, 3)))
        batches = [
            Batch(
                torch.randn(4, count, 2, generator=generator).double(),
                torch.randint(3, (4, count), generator=generator),
            )
            for count in (5, 6)
        ]
    return model, Task(*batches)


def settings(method: type, **values):
    return method(
        inner_lr=0.1, inner_steps=3, train_samples=2, initial_std=0.2, temperature=0.5, kl_weight=0.7, **values
    )


def problem_parts(algorithm, kind: str):
    model, tasks = small_problem(kind)
    meta = double(algorithm.init(model, streams.generator(0, "init")))
    _, noise = draw_noise(algorithm.noise(model), 4, streams.generator(0, "noise"))
    return model, tasks, meta, {name: value.double() for name, value in noise.items()}


def shifted(meta: Parts, part: str, name: str, index: tuple[int, ...], by: float) -> Parts:
    value = meta[part][name].clone()
    value[index] += by
    return meta | {part: meta[part] | {name: value}}


@pytest.mark.parametrize("kind", ["regression", "classification"])
@pytest.mark.parametrize("method", METHODS)
def test_second_order_meta_gradient_equals_finite_differences(method, kind):
    algorithm = settings(method, first_order=False)
    model, tasks, meta, noise = problem_parts(algorithm, kind)
    engine, step = Engine(algorithm, model), 1e-6
    gradient, _ = engine.gradient(meta, tasks, {}, noise, STAGE)
    for part, params in meta.items():
        for name, value in params.items():
            for index in itertools.islice(itertools.product(*map(range, value.shape)), 4):
                up, down = (
                    engine.loss(shifted(meta, part, name, index, sign * step), tasks, {}, noise, STAGE)[0]
                    for sign in (1, -1)
                )
                difference = (up - down) / (2 * step)
                torch.testing.assert_close(gradient[part][name][index], difference, rtol=1e-6, atol=1e-8)


def task_of(tasks: Task, noise, index: int):
    task = Task(*(Batch(batch.x[index], batch.y[index]) for batch in tasks))
    return task, {name: value[index] for name, value in noise.items()}


@pytest.mark.parametrize("kind", ["regression", "classification"])
def test_first_order_gradient_of_vampire_is_the_query_gradient_at_the_adapted_posterior(kind):
    algorithm = settings(Vampire)
    model, tasks, meta, noise = problem_parts(algorithm, kind)
    task, noise = task_of(tasks, noise, 0)
    family = GaussianPosterior(model.network)
    adapted = algorithm.adapt(meta, model, task.support, noise)

    def query_loss(posterior: Parts) -> Tensor:
        return expected_loss(family.vectors(posterior), model, task.query, noise["weights"][-1])

    actual = torch.func.grad(lambda meta: algorithm.loss(meta, model, task, noise, STAGE)[0])(meta)
    torch.testing.assert_close(actual, torch.func.grad(query_loss)(adapted))


@pytest.mark.parametrize("kind", ["regression", "classification"])
def test_first_order_gradient_of_abml_adds_that_of_the_prior(kind):
    """∂/∂λ at the adapted posterior, plus ∂/∂θ of the KL's prior and of the hyper-prior with the posterior held."""
    algorithm = settings(Abml, hyper_prior_tasks=10)
    model, tasks, meta, noise = problem_parts(algorithm, kind)
    task, noise = task_of(tasks, noise, 0)
    family = GaussianPosterior(model.network)
    adapted = algorithm.adapt(meta, model, task.support, noise)
    examples = Batch(*(torch.cat(pair) for pair in zip(*task, strict=True)))

    def upper_level(posterior: Parts, prior: Parts) -> Tensor:
        q, p = family.vectors(posterior), family.vectors(prior)
        normals = [torch.distributions.Normal(v["mean"], v["log_std"].exp(), validate_args=False) for v in (q, p)]
        kl = torch.distributions.kl_divergence(*normals).sum()
        hyper = (0.5 * p["mean"] ** 2 + algorithm.gamma_rate * torch.exp(-2 * p["log_std"])).sum()
        loss = expected_loss(q, model, examples, noise["weights"][-1])
        return loss + 0.5 / 11 * (0.7 * kl + hyper / 10)

    by_posterior, by_prior = torch.func.grad(upper_level, argnums=(0, 1))(adapted, meta)
    actual = torch.func.grad(lambda meta: algorithm.loss(meta, model, task, noise, STAGE)[0])(meta)
    for part in ("mean", "log_std"):
        expected = flatten(by_posterior[part]) + flatten(by_prior[part])
        torch.testing.assert_close(flatten(actual[part]), expected)


@pytest.mark.parametrize("kind", ["regression", "classification"])
@pytest.mark.parametrize("first_order", [True, False])
@pytest.mark.parametrize("method", METHODS)
def test_vectorised_equals_the_loop(method, first_order, kind):
    algorithm = settings(method, first_order=first_order)
    model, tasks, meta, noise = problem_parts(algorithm, kind)
    results = [
        Engine(algorithm, model, chunk_size=chunk, loop=loop).gradient(meta, tasks, {}, noise, STAGE)
        for chunk, loop in ((None, True), (None, False), (3, False))
    ]
    for result in results[1:]:
        torch.testing.assert_close(result, results[0], rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("method", METHODS)
def test_without_a_divergence_and_without_spread_adaptation_is_that_of_maml(method):
    """σ → 0 and β = 0: every sample is the mean, which then takes MAML's steps."""
    from fewsure.algorithms.maml import Maml

    model, tasks = small_problem("regression")
    algorithm = method(inner_lr=0.1, inner_steps=3, train_samples=2, initial_std=1e-12, kl_weight=0.0)
    model, tasks, meta, noise = problem_parts(algorithm, "regression")
    task, noise = task_of(tasks, noise, 0)
    adapted = algorithm.adapt(meta, model, task.support, noise)
    maml = Maml(inner_lr=0.1, inner_steps=3).adapt({"weights": meta["mean"]}, model, task.support, {})
    torch.testing.assert_close(adapted["mean"], maml["weights"], rtol=0, atol=1e-9)


def blobs(tasks: int, generator: torch.Generator) -> Task:
    """3-way 5-shot tasks in the plane: the classes are blobs around three random centres."""
    centres = 2 * torch.randn(tasks, 3, 2, generator=generator)

    def observe(shot: int) -> Batch:
        y = torch.arange(3).repeat(shot).expand(tasks, -1)
        x = centres.gather(1, y.unsqueeze(-1).expand(-1, -1, 2))
        return Batch(x + 0.5 * torch.randn(x.shape, generator=generator), y)

    return Task(observe(5), observe(10))


@pytest.mark.parametrize("first_order", [True, False])
@pytest.mark.parametrize("method", METHODS)
def test_blobs_are_classified_after_short_training(method, first_order):
    model = classification(Mlp((2, 32, 3)))
    algorithm = method(inner_lr=0.1, inner_steps=5, train_samples=2, initial_std=0.2, first_order=first_order)
    meta = algorithm.init(model, streams.generator(0, "init"))
    engine, optimiser = Engine(algorithm, model), Optimiser(meta)
    optimiser.set_learning_rate(1e-2)
    for update in range(100):
        generator = streams.generator(0, "train", update)
        tasks = blobs(8, generator)
        _, noise = draw_noise(algorithm.noise(model), 8, generator)
        gradient, _ = engine.gradient(meta, tasks, {}, noise, Stage(torch.tensor(update), 8))
        optimiser.step(gradient, clip_norm=1.0)

    generator = streams.generator(0, "test")
    tasks = blobs(100, generator)
    _, noise = draw_noise(algorithm.noise(model), 100, generator)
    prediction_noise = torch.randn(100, 8, weight_count(model.network), generator=generator)

    def accuracy(parts, meta: Parts) -> Tensor:
        task, noise, prediction_noise = parts
        posterior = algorithm.adapt(meta, model, task.support, noise)
        outputs = algorithm.predict(posterior, model, task.query.x, {"weights": prediction_noise})
        return (outputs.softmax(-1).mean(0).argmax(-1) == task.query.y).float().mean()

    assert for_each_task(accuracy)((tasks, noise, prediction_noise), meta).mean() > 0.75  # chance is 1/3


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    "values",
    [{"inner_lr": 0}, {"temperature": -1}, {"kl_weight": -0.1}, {"train_samples": 0}, {"initial_std": math.inf}],
)
def test_wrong_values_are_named(method, values):
    with pytest.raises(FewsureError, match=next(iter(values))):
        method(**values)
