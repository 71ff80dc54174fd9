"""SImPa with a latent posterior: its KL, its invariances, and its gradients."""

import pytest
import torch

from fewsure.algorithms.finite_process import FiniteProcess
from fewsure.algorithms.gp import Gp
from fewsure.algorithms.linear import Mean
from fewsure.algorithms.parts.kernels import variances
from fewsure.algorithms.simpa_latent import SimpaLatent
from fewsure.core import streams
from fewsure.data.sets.sine_line import SineLine
from fewsure.networks.losses import gaussian_log_likelihood, regression
from fewsure.networks.mlp import Mlp
from fewsure.networks.weights import flatten
from fewsure.posteriors import outputs
from fewsure.posteriors.latent import Latent, WeightGenerator
from fewsure.theory.pac_bayes import theorem_1
from fewsure.types import Batch, Stage, Task

from .helpers import (
    DATA,
    assert_gradient_equals_finite_differences,
    assert_vectorised_equals_loop,
    meta_batch,
    random_direction,
)

MODEL = regression(Mlp((1, 6, 5, 1)))


def small(**options: object) -> SimpaLatent:
    settings = {"latent": 3, "generator_hidden": (4, 5), "encoder_width": 8, "train_samples": 3}
    settings |= {"input_scale": 5.0, "target_scale": 5.0}
    return SimpaLatent(**(settings | options))  # type: ignore[arg-type]


def problem(method: SimpaLatent) -> tuple:
    return meta_batch(method, model=MODEL)


def one_task(size: int = 6) -> Task:
    tasks, _ = DATA.sample(1, streams.generator(0, "latent task"))
    support, query = (Batch(batch.x[0], batch.y[0]) for batch in (tasks.support, tasks.query))
    return Task(Batch(support.x[:size], support.y[:size]), query)


@pytest.mark.usefixtures("float64")
def test_the_kl_of_the_latent_is_that_of_the_networks_where_the_generator_is_linear_and_injective() -> None:
    """Data processing with equality: G#q and G#p are Gaussians, whose KL torch knows."""
    network = Mlp((2, 1))  # three weights from three latents
    family = WeightGenerator(network, 3, ())
    params = family.generator.init(streams.generator(0, "linear"))
    q = Latent(torch.tensor([0.5, -1.0, 2.0]), torch.tensor([-1.0, 0.3, -0.2]))
    mix, shift = params["0.weight"], params["0.bias"]

    def of_weights(latent: Latent) -> torch.distributions.MultivariateNormal:
        covariance = mix.T @ torch.diag((2 * latent.log_std).exp()) @ mix
        return torch.distributions.MultivariateNormal(latent.mean @ mix + shift, covariance)

    prior = Latent(torch.zeros(3), torch.zeros(3))
    expected = torch.distributions.kl_divergence(of_weights(q), of_weights(prior))
    torch.testing.assert_close(q.kl(), expected)
    assert float(prior.kl()) == 0


@pytest.mark.usefixtures("float64")
def test_a_latent_that_the_generator_ignores_costs_more_than_the_networks_are_apart() -> None:
    family = WeightGenerator(Mlp((2, 1)), 3, ())
    params = {"0.weight": torch.zeros(3, 3), "0.bias": torch.ones(3)}
    q = Latent(torch.ones(3), torch.zeros(3))
    networks = flatten(family(params, q.sample(torch.randn(4, 3))), dims=1)
    assert bool((networks == 1).all())  # all networks are one: their KL is 0
    assert float(q.kl()) == 1.5


@pytest.mark.usefixtures("float64")
def test_the_lowest_elbo_of_a_linear_gaussian_task_is_the_exact_posterior_with_its_full_covariance() -> None:
    """The generator turns to the axes of the posterior; its noise ±√d e_i makes means of quadratics exact."""
    x = torch.tensor([[1.0, 2.0, 0.0], [1.0, -1.0, 0.5], [0.3, 2.0, 1.0], [1.0, -2.0, -0.5]])
    y, std = torch.tensor([[0.5], [1.5], [-0.3], [2.0]]), torch.tensor(0.3)
    _, axes = torch.linalg.eigh(x.T @ x)
    family = WeightGenerator(Mlp((3, 1)), 3, ())
    turn = torch.cat([axes.T, torch.zeros(3, 1)], 1)  # w = axes z, whose prior is N(0, I), and no bias
    params = {"0.weight": turn, "0.bias": torch.zeros(4)}
    noise = torch.cat([torch.eye(3), -torch.eye(3)]) * 3**0.5
    mean, log_std = torch.zeros(3, requires_grad=True), torch.zeros(3, requires_grad=True)
    optimiser = torch.optim.LBFGS([mean, log_std], max_iter=200, tolerance_change=1e-14, line_search_fn="strong_wolfe")

    def negative_elbo() -> torch.Tensor:
        optimiser.zero_grad()
        q = Latent(mean, log_std)
        found = outputs(family.network, family(params, q.sample(noise)), x)
        value = q.kl() - gaussian_log_likelihood(found, std.expand_as(found), y).mean(0).sum()
        value.backward()
        return value

    optimiser.step(negative_elbo)
    covariance = torch.linalg.inv(torch.eye(3) + x.T @ x / std**2)
    assert float((covariance - covariance.diagonal().diag()).abs().max()) > 0.01
    torch.testing.assert_close(axes @ mean.detach(), (covariance @ x.T @ y).squeeze() / std**2)
    torch.testing.assert_close(axes @ (2 * log_std.detach()).exp().diag() @ axes.T, covariance)
    evidence = torch.distributions.MultivariateNormal(torch.zeros(4), x @ x.T + std**2 * torch.eye(4)).log_prob(y[:, 0])
    torch.testing.assert_close(-negative_elbo().detach(), evidence)  # no gap is left


@pytest.mark.usefixtures("float64")
def test_vectorised_equals_loop_and_the_meta_gradient_equals_finite_differences() -> None:
    bounds = [small(objective="theorem-1", form=form) for form in ("kl", "log")]
    for method in (small(), small(refinements=0), small(refinements=2), *bounds):
        assert_vectorised_equals_loop(method, MODEL, problem(method))
        assert_gradient_equals_finite_differences(method, MODEL, problem(method), step=1e-6)


@pytest.mark.usefixtures("float64")
def test_the_order_of_the_support_set_does_not_matter_and_any_number_of_examples_will_do() -> None:
    method, task = small(), one_task()
    meta = method.init(MODEL, streams.generator(0, "init"))
    adapted = method.adapt(meta, MODEL, task.support, {})["latent"]
    turned = method.adapt(meta, MODEL, Batch(task.support.x.flip(0), task.support.y.flip(0)), {})["latent"]
    torch.testing.assert_close(adapted, turned)
    for size in (1, 2, 5):
        part = Batch(task.support.x[:size], task.support.y[:size])
        assert method.adapt(meta, MODEL, part, {})["latent"]["mean"].shape == (3,)


@pytest.mark.usefixtures("float64")
def test_the_loss_is_the_likelihood_of_the_mixture_that_predicts() -> None:
    method, task = small(kl_weight=0.5), one_task()
    meta = method.init(MODEL, streams.generator(0, "init"))
    noise = {"z": torch.randn(3, 3, generator=streams.generator(0, "z"))}
    posterior = method.adapt(meta, MODEL, task.support, noise)
    density = method.predictive(posterior, MODEL, task.query.x, noise)
    functions = method.predict(posterior, MODEL, task.query.x, noise)
    torch.testing.assert_close(density.means.T, functions.squeeze(-1))
    components = torch.distributions.Normal(density.means, density.stds).log_prob(task.query.y)
    nll = -(components.logsumexp(1) - torch.tensor(3.0).log()).mean()
    total, info = method.loss(meta, MODEL, task, noise, None)  # type: ignore[arg-type]
    torch.testing.assert_close(info["loss"], nll)
    torch.testing.assert_close(total, nll + 0.5 * Latent(**posterior["latent"]).kl())


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("form", ["log", "kl"])
def test_the_objective_theorem_1_is_the_bound_and_at_first_the_predictive_one_beside_it(form: str) -> None:
    method, task = small(objective="theorem-1", form=form, epsilon=0.1), one_task()
    meta = method.init(MODEL, streams.generator(0, "init"))
    noise = {"z": torch.randn(3, 3, generator=streams.generator(0, "z"))}
    posterior = method.adapt(meta, MODEL, task.support, noise)
    errors = (method.predict(posterior, MODEL, task.support.x, noise) - task.support.y).square()
    gibbs, kl = (errors / (1 + errors)).mean(), Latent(**posterior["latent"]).kl()
    bound = theorem_1(gibbs, kl, examples=5, epsilon=0.1, form=form).total  # type: ignore[arg-type]
    predictive, _ = small().loss(meta, MODEL, task, noise, Stage(torch.tensor(0), 1, 100))
    for update, weight in ((0, 1.0), (7, 0.8), (35, 0.0), (90, 0.0)):
        total, info = method.loss(meta, MODEL, task, noise, Stage(torch.tensor(update), 1, 100))
        torch.testing.assert_close(info["bound"], bound)
        torch.testing.assert_close(total, bound + weight * predictive)


@pytest.mark.usefixtures("float64")
def test_in_training_the_bound_of_many_examples_takes_the_loss_of_32_at_random() -> None:
    """The mean over choices is the loss of all of them, and m is their whole number."""
    method, data = small(objective="theorem-1"), SineLine(shot=40, query=3)
    drawn, _ = data.sample(1, streams.generator(0, "many"))
    task = Task(*(Batch(batch.x[0], batch.y[0]) for batch in (drawn.support, drawn.query)))
    assert "examples" not in method.noise(MODEL, 32, 3).task
    meta = method.init(MODEL, streams.generator(0, "init"))
    z = torch.randn(3, 3, generator=streams.generator(0, "z"))
    posterior = method.adapt(meta, MODEL, task.support, {})
    functions = method.predict(posterior, MODEL, task.support.x, {"z": z})
    losses = torch.stack([MODEL.bounded_loss(function, task.support.y) for function in functions]).mean(0)
    for seed in range(3):
        examples = torch.rand(method.noise(MODEL, 40, 3).task["examples"].shape, generator=streams.generator(seed, "e"))
        _, info = method.loss(meta, MODEL, task, {"z": z, "examples": examples}, Stage(torch.tensor(0), 1))
        torch.testing.assert_close(info["gibbs_loss"], losses[examples.argsort()[:32]].mean())
        bound = theorem_1(info["gibbs_loss"], info["kl"], examples=40, epsilon=0.05, form="kl").total
        torch.testing.assert_close(info["bound"], bound)


def lines(count: int, slope: float, seed: int = 0, rows: int = 20) -> list[Batch]:
    """Groups of y = slope · x + an intercept of their own + noise."""
    generator = streams.generator(seed, "lines")
    found = []
    for _ in range(count):
        x, (noise, intercept) = torch.randn(rows, 1, generator=generator), torch.randn(2, generator=generator)
        noise = 0.3 * torch.randn(rows, 1, generator=generator)
        found.append(Batch(x, slope * x + intercept + noise))
    return found


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("refinements", [0, 2])
def test_training_starts_at_the_process_of_the_training_groups(refinements: int) -> None:
    """Two numbers span a random intercept and slope: q(z) is the exact posterior, and the density that of `gp`."""
    kernels = ("constant", "linear")
    options = {"input_scale": 1.0, "target_scale": 2.0, "noise_floor": 1e-6, "basis": 2, "refinements": refinements}
    method, groups = small(kernels=kernels, **options), lines(30, 2.0)
    meta = method.fit(method.init(MODEL, streams.generator(0, "init")), MODEL, groups, streams.generator(0, "fit"))
    gp = Gp(kernels=kernels)
    scaled = [Batch(group.x, group.y / 2.0) for group in groups]
    fitted = gp.fit(gp.init(MODEL, streams.generator(0, "init")), MODEL, scaled, streams.generator(0, "fit"))
    support, x = lines(1, 2.0, seed=1, rows=5)[0], torch.tensor([[-1.0], [2.0]])
    posterior = method.adapt(meta, MODEL, support, {})
    found = method.predictive(posterior, MODEL, x, {"z": torch.randn(3, 5)})
    halved = Batch(support.x, support.y / 2.0)
    expected = gp.predictive(gp.adapt(fitted, MODEL, halved, {}), MODEL, x, {})
    for ours, theirs in zip(found[1:], expected[1:], strict=True):
        assert ours is not None
        assert theirs is not None
        torch.testing.assert_close(ours, 2.0 * theirs.expand_as(ours), rtol=1e-4, atol=1e-4)
    drawn = method.predict(posterior, MODEL, x, {"z": torch.randn(20_000, 5)}).squeeze(-1)
    torch.testing.assert_close(drawn.std(0), found.function_stds[:, 0], rtol=0.03, atol=0.0)
    q = Latent(**posterior["latent"])
    root = q.log_std[:2].exp().diag() @ q.turn[:2, :2]
    normal = torch.distributions.MultivariateNormal
    exact = torch.distributions.kl_divergence(normal(q.mean[:2], root @ root.mT), normal(torch.zeros(2), torch.eye(2)))
    torch.testing.assert_close(q.first(2).kl(), exact)
    torch.testing.assert_close(q.mean[2:], torch.zeros(3))


@pytest.mark.usefixtures("float64")
def test_what_a_basis_leaves_of_a_process_is_noise() -> None:
    """The variance of a label is that of the whole process, however few numbers stand for it."""
    groups = lines(6, 1.0)
    for size in (1, 4):
        process = FiniteProcess(("constant", "exponential"), size)
        parts = process.fit(MODEL, groups, torch.Generator())
        x = torch.linspace(-2, 2, 7).unsqueeze(-1)
        _, features, rest = process.at(parts, x)
        torch.testing.assert_close(features.square().sum(-1) + rest, variances(process.kernels, parts["kernel"], x))
        inputs = parts["basis"]["inputs"]
        assert bool((process.at(parts, inputs)[2] < 1e-5 * variances(process.kernels, parts["kernel"], inputs)).all())


@pytest.mark.usefixtures("float64")
def test_with_a_process_and_a_mixture_as_noise_the_meta_gradient_equals_finite_differences() -> None:
    method = small(kernels=("constant", "rbf"), basis=3, gaussians=3)
    meta, *rest = problem(method)
    change = random_direction(meta)
    meta = {
        part: {name: value + 0.1 * change[part][name] for name, value in params.items()}
        for part, params in meta.items()
    }
    assert_vectorised_equals_loop(method, MODEL, (meta, *rest))
    assert_gradient_equals_finite_differences(method, MODEL, (meta, *rest), step=1e-6)


def test_a_process_of_few_groups_must_earn_its_place() -> None:
    """Five groups are no test, and columns without an effect no gain: it is then the shrunken mean of closed form."""
    wide = regression(Mlp((6, 5, 1)))
    for count, effect, kept in ((5, 2.0, False), (12, 0.0, False), (12, 2.0, True)):
        groups = [
            Batch(torch.cat([group.x, torch.randn(20, 5)], 1), group.y) for group in lines(count, effect, seed=count)
        ]
        process = FiniteProcess(("constant", "linear"), 3)
        found = process.fit(wide, groups, streams.generator(0, "fit"))
        assert bool(found["mean"]["mean"][1:].abs().sum() > 0) is kept
        if not kept:
            mean, rows = Mean(), groups[0].x
            fitted = mean.fit(mean.init(wide, torch.Generator()), wide, groups, streams.generator(0, "fit"))
            trend, features, rest = process.at(found, rows)
            spread = fitted["prior"]["log_std"].exp().double()
            torch.testing.assert_close(trend, fitted["prior"]["mean"].double().expand(20), rtol=1e-3, atol=1e-3)
            expected = spread.square().expand(20)
            torch.testing.assert_close(features.square().sum(-1) + rest, expected, rtol=1e-2, atol=1e-3)
