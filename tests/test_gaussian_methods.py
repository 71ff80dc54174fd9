"""ABML and VAMPIRE, and the Gaussian posteriors they share, against closed forms."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from fewsure.algorithms.abml import Abml
from fewsure.algorithms.maml import Maml
from fewsure.algorithms.vampire import Vampire
from fewsure.core import streams
from fewsure.core.vectorise import draw_noise, for_each, take
from fewsure.errors import FewsureError
from fewsure.networks.losses import classification, regression
from fewsure.networks.mlp import Mlp
from fewsure.networks.weights import flatten, weight_count
from fewsure.posteriors.gaussian import GaussianPosterior, divergence, expected_loss
from fewsure.training.engine import Engine
from fewsure.types import Batch, Model, Noise, Params, Parts, Stage, Task

from .helpers import assert_close, assert_gradient_equals_finite_differences

Method = type[Abml] | type[Vampire]

METHODS = pytest.mark.parametrize("method", [Abml, Vampire])
KINDS = pytest.mark.parametrize("kind", ["regression", "classification"])
ORDERS = pytest.mark.parametrize("first_order", [True, False])
NOISE_STD = 0.5
TASKS = 4


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

    columns: int

    @property
    def inputs(self) -> tuple[int, ...]:
        return (self.columns,)

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {"weight": (self.columns, 1)}

    def init(self, generator: torch.Generator) -> Params:
        return {"weight": torch.randn(self.columns, 1, generator=generator)}

    def __call__(self, params: Params, x: Tensor) -> Tensor:
        return x @ params["weight"]

    def with_outputs(self, outputs: int) -> "Linear":
        raise AssertionError("one output")

    def given(self, support: Tensor) -> "Linear":
        return self

    transductive, maps, modulated, width, embedding = False, None, (), 0, None


def sigma_points(weights: int) -> Tensor:
    """Noise whose samples have mean 0 and covariance I exactly: expectations of quadratics are then exact."""
    points = math.sqrt(weights) * torch.eye(weights, dtype=torch.float64)
    return torch.cat([points, -points])


def linear_task(orthogonal: bool) -> Batch:
    generator = streams.generator(0, "linear")
    draw = torch.randn(8, 5, generator=generator, dtype=torch.float64)
    x = 2 * torch.linalg.qr(draw[:, :3]).Q if orthogonal else draw[:, :3]
    return Batch(x, x @ draw[:3, 3:4] + NOISE_STD * draw[:, 4:])


def gaussian(mean: list[float], log_std: list[float]) -> Parts:
    vectors = {"mean": mean, "log_std": log_std}
    return {part: {"weight": torch.tensor(vector).double().unsqueeze(-1)} for part, vector in vectors.items()}


STANDARD = gaussian([0, 0, 0], [0, 0, 0])
GIVEN = gaussian([-1, 0.5, 1], [-0.5, 0.1, 0.3])
CASES = {
    "standard prior": (STANDARD, linear_task(orthogonal=False)),
    "given prior": (GIVEN, linear_task(orthogonal=False)),
    "orthogonal design": (GIVEN, linear_task(orthogonal=True)),
}


@cache
def converged(method: Method) -> dict[str, tuple[Tensor, Tensor]]:
    """(mean, variances) of each case's posterior after enough steps to converge."""
    steps, model = 700, regression(Linear(3))
    algorithm = method(inner_lr=0.25, inner_steps=steps, temperature=2 * NOISE_STD**2, kl_weight=1, first_order=True)

    def adapt(case: tuple[Parts, Batch], noise: Noise) -> Parts:
        prior, support = case
        return algorithm.adapt(prior, model, support, noise)

    cases = pytree.tree_map(lambda *leaves: torch.stack(leaves), *CASES.values())
    adapted = for_each(adapt)(cases, {"weights": sigma_points(3).expand(steps, -1, -1)})
    means, variances = adapted["mean"]["weight"].squeeze(-1), (2 * adapted["log_std"]["weight"]).exp().squeeze(-1)
    return dict(zip(CASES, zip(means, variances, strict=True), strict=True))


def exact_posterior(prior: Parts, support: Batch) -> tuple[Tensor, Tensor]:
    """(mean, precision) by linear algebra."""
    prior_precision = torch.exp(-2 * prior["log_std"]["weight"]).squeeze(-1).diag()
    precision = prior_precision + support.x.T @ support.x / NOISE_STD**2
    moment = prior_precision @ prior["mean"]["weight"] + support.x.T @ support.y / NOISE_STD**2
    return torch.linalg.solve(precision, moment).squeeze(-1), precision


@METHODS
@pytest.mark.parametrize("case", ["standard prior", "given prior"])
def test_enough_steps_reach_the_mean_field_optimum_of_a_linear_gaussian_task(method: Method, case: str) -> None:
    mean, variances = converged(method)[case]
    exact_mean, precision = exact_posterior(*CASES[case])
    assert torch.linalg.matrix_norm(precision - precision.diag().diag()) > 1  # the weights are correlated
    torch.testing.assert_close(mean, exact_mean, rtol=0, atol=1e-6)
    torch.testing.assert_close(variances, 1 / precision.diag(), rtol=1e-6, atol=0)


@METHODS
def test_for_an_orthogonal_design_that_is_the_exact_posterior(method: Method) -> None:
    mean, variances = converged(method)["orthogonal design"]
    exact_mean, precision = exact_posterior(*CASES["orthogonal design"])
    torch.testing.assert_close(mean, exact_mean, rtol=0, atol=1e-6)
    torch.testing.assert_close(variances.diag(), torch.linalg.inv(precision), rtol=0, atol=1e-7)


def test_at_the_exact_posterior_the_objective_is_the_evidence() -> None:
    """With τ = 2σ², m/τ times the objective per example is the negative ELBO, which is tight there."""
    prior, support = CASES["orthogonal design"]
    mean, precision = exact_posterior(prior, support)
    posterior = {"mean": mean, "log_std": -0.5 * precision.diag().log()}
    model = regression(Linear(3))
    examples, temperature = len(support.y), 2 * NOISE_STD**2
    kl = divergence(posterior, GaussianPosterior(model.network).vectors(prior))
    objective = expected_loss(posterior, model, support, sigma_points(3)) + temperature / examples * kl
    negative_elbo = examples / temperature * objective + 0.5 * examples * math.log(math.pi * temperature)

    prior_mean, prior_variance = prior["mean"]["weight"], (2 * prior["log_std"]["weight"]).exp().squeeze(-1).diag()
    noise_variance = NOISE_STD**2 * torch.eye(examples, dtype=torch.float64)
    marginal = torch.distributions.MultivariateNormal(
        (support.x @ prior_mean).squeeze(-1), support.x @ prior_variance @ support.x.T + noise_variance
    )
    torch.testing.assert_close(-negative_elbo, marginal.log_prob(support.y.squeeze(-1)))


def test_the_divergence_equals_torch_distributions() -> None:
    generator = streams.generator(0, "kl")
    q, p = ({name: torch.randn(7, generator=generator) for name in ("mean", "log_std")} for _ in range(2))
    normals = [torch.distributions.Normal(vectors["mean"], vectors["log_std"].exp()) for vectors in (q, p)]
    torch.testing.assert_close(divergence(q, p), torch.distributions.kl_divergence(*normals).sum())


def test_the_hyper_prior_of_abml_has_the_gradient_of_torch_distributions() -> None:
    prior = {"mean": torch.tensor([0.3, -1.2]), "log_std": torch.tensor([-1.0, 0.4])}

    def reference(prior: Params) -> Tensor:
        normal = torch.distributions.Normal(0.0, 1.0, validate_args=False)
        gamma = torch.distributions.Gamma(torch.tensor(2.5), torch.tensor(0.3), validate_args=False)
        return -(normal.log_prob(prior["mean"]) + gamma.log_prob((-2 * prior["log_std"]).exp())).sum()

    energy = Abml(gamma_shape=2.5, gamma_rate=0.3)._hyper_prior_energy
    torch.testing.assert_close(torch.func.grad(energy)(prior), torch.func.grad(reference)(prior))


def test_samples_have_the_means_and_standard_deviations_of_the_posterior() -> None:
    family = GaussianPosterior(Mlp((2, 3, 1)))
    groups = family.init(streams.generator(0, "init"), std=0.3)
    noise = torch.randn(100_000, weight_count(family.network), generator=streams.generator(0, "noise"))
    samples = flatten(family.sample(family.vectors(groups), noise), dims=1)
    torch.testing.assert_close(samples.mean(0), flatten(groups["mean"]), rtol=0, atol=5e-3)
    torch.testing.assert_close(samples.std(0), torch.full((13,), 0.3), rtol=0, atol=5e-3)


def test_groups_and_vectors_are_two_views_of_the_same_parameters() -> None:
    family = GaussianPosterior(Mlp((2, 3, 1)))
    groups = family.init(streams.generator(0, "init"), std=0.3)
    assert_close(groups, family.groups(family.vectors(groups)), 0)


def small(method: Method, **options: Any) -> Abml | Vampire:
    settings = {"inner_lr": 0.1, "inner_steps": 3, "train_samples": 2}
    settings |= {"initial_std": 0.2, "temperature": 0.5, "kl_weight": 0.7}
    return method(**(settings | options))


def problem(algorithm: Abml | Vampire, kind: str) -> tuple[Model, tuple]:
    """A model, and the arguments of an engine's methods for a meta-batch of it."""
    generator = streams.generator(0, kind)
    if kind == "regression":
        model = regression(Mlp((1, 4, 1)))
        batches = [Batch(*torch.randn(2, TASKS, count, 1, generator=generator)) for count in (5, 6)]
    else:
        model = classification(Mlp((2, 4, 3)), 3)
        x, y = torch.randn(TASKS, 11, 2, generator=generator), torch.randint(3, (TASKS, 11), generator=generator)
        batches = [Batch(x[:, :5], y[:, :5]), Batch(x[:, 5:], y[:, 5:])]
    meta = algorithm.init(model, generator)
    shared, noise = draw_noise(algorithm.noise(model, 5, 10), TASKS, generator)
    return model, (meta, Task(*batches), shared, noise, Stage(torch.tensor(0), TASKS))


@pytest.mark.usefixtures("float64")
@KINDS
@METHODS
def test_second_order_meta_gradient_equals_finite_differences(method: Method, kind: str) -> None:
    algorithm = small(method, first_order=False)
    assert_gradient_equals_finite_differences(algorithm, *problem(algorithm, kind))


@pytest.mark.usefixtures("float64")
@KINDS
@METHODS
def test_first_order_meta_gradient_holds_the_inner_gradients_constant(method: Method, kind: str) -> None:
    """It is the upper level's gradient at the adapted λ, plus, for ABML, that of θ as the prior with λ held."""
    algorithm = small(method, first_order=True, **({"hyper_prior_tasks": 10} if method is Abml else {}))
    model, (meta, tasks, _, noise, stage) = problem(algorithm, kind)
    task, noise = take((tasks, noise), 0)
    family = GaussianPosterior(model.network)
    examples = (
        Batch(*(torch.cat(pair) for pair in zip(task.support, task.query, strict=True)))
        if method is Abml
        else task.query
    )

    def upper_level(posterior: Parts, prior: Parts) -> Tensor:
        q, p = family.vectors(posterior), family.vectors(prior)
        loss = expected_loss(q, model, examples, noise["weights"][-1])
        if method is Vampire:
            return loss
        hyper_prior = (0.5 * p["mean"].square() + 0.01 * torch.exp(-2 * p["log_std"])).sum()
        return loss + 0.5 / 11 * (0.7 * divergence(q, p) + hyper_prior / 10)

    adapted = algorithm.adapt(meta, model, task.support, noise)
    by_posterior = torch.func.grad(upper_level, argnums=0)(adapted, meta)
    by_prior = torch.func.grad(upper_level, argnums=1)(adapted, meta)
    expected = pytree.tree_map(torch.add, by_posterior, by_prior)
    actual = torch.func.grad(lambda meta: algorithm.loss(meta, model, task, noise, stage)[0])(meta)
    assert_close(actual, expected, 1e-12)


@pytest.mark.usefixtures("float64")
@KINDS
@ORDERS
@METHODS
def test_vectorised_equals_loop_equals_any_chunk_size(method: Method, first_order: bool, kind: str) -> None:
    algorithm = small(method, first_order=first_order)
    model, arguments = problem(algorithm, kind)
    looped, _ = Engine(algorithm, model, loop=True).gradient(*arguments)
    for chunk_size in (None, 3):
        assert_close(Engine(algorithm, model, chunk_size=chunk_size).gradient(*arguments)[0], looped, 1e-10)


@pytest.mark.usefixtures("float64")
@METHODS
def test_without_spread_and_without_divergence_adaptation_is_that_of_maml(method: Method) -> None:
    algorithm = small(method, initial_std=1e-12, kl_weight=0.0)
    model, (meta, tasks, _, noise, _) = problem(algorithm, "regression")
    task, noise = take((tasks, noise), 0)
    adapted = algorithm.adapt(meta, model, task.support, noise)
    maml = Maml(inner_lr=0.1, inner_steps=3).adapt({"weights": meta["mean"]}, model, task.support, {})
    assert_close({"weights": adapted["mean"]}, maml, 1e-9)


@METHODS
@pytest.mark.parametrize(
    "wrong",
    [{"inner_lr": 0}, {"temperature": -1}, {"kl_weight": -0.1}, {"train_samples": 0}, {"initial_std": math.inf}],
)
def test_a_wrong_value_is_named(method: Method, wrong: dict[str, Any]) -> None:
    with pytest.raises(FewsureError, match=next(iter(wrong))):
        method(**wrong)
