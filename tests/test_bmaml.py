"""BMAML: the direction of SVGD, MAML as the case of one particle, the chaser loss, gradients, classification."""

import math
from itertools import product

import pytest
import torch
from torch import Tensor

from fewsure.algorithms.bmaml import Bmaml
from fewsure.algorithms.maml import Maml
from fewsure.core import streams
from fewsure.core.vectorise import take
from fewsure.errors import FewsureError
from fewsure.networks.weights import flatten
from fewsure.posteriors import stack_one
from fewsure.posteriors.particles import bandwidth, squared_distances, stein_direction
from fewsure.training.engine import Engine
from fewsure.types import Batch, Parts, Task

from .helpers import (
    MODEL,
    TASKS,
    assert_close,
    inner_product,
    meta_batch,
    random_direction,
    slope,
)

ORDERS = pytest.mark.parametrize("first_order", [True, False], ids=["first", "second"])


def small_bmaml(**options: object) -> Bmaml:
    settings: dict[str, object] = {"particles": 4, "inner_lr": 0.05, "inner_steps": 2, "leader_steps": 2}
    return Bmaml(**(settings | options))  # type: ignore[arg-type]


@pytest.mark.usefixtures("float64")
def test_direction_equals_a_double_loop() -> None:
    generator = streams.generator(0, "particles")
    particles, scores = torch.randn(5, 3, generator=generator), torch.randn(5, 3, generator=generator)
    pairs = [float((particles[i] - particles[j]).square().sum()) for i in range(5) for j in range(i)]
    h = sorted(pairs)[4] / math.log(6)  # the lower one of the two in the middle

    def kernel(a: Tensor, b: Tensor) -> Tensor:
        return torch.exp(-(a - b).square().sum() / h)

    expected = torch.zeros(5, 3)
    for i, j in product(range(5), range(5)):
        pull = kernel(particles[j], particles[i]) * scores[j]
        push = torch.func.grad(kernel)(particles[j], particles[i])
        expected[i] += (pull + push) / 5
    torch.testing.assert_close(stein_direction(particles, scores), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.usefixtures("float64")
def test_squared_distances_equal_cdist_far_from_the_origin() -> None:
    particles = torch.randn(6, 50, generator=streams.generator(0, "particles"))
    expected = torch.cdist(particles, particles, compute_mode="donot_use_mm_for_euclid_dist").square()
    torch.testing.assert_close(squared_distances(particles + 1000), expected, rtol=1e-9, atol=1e-9)


def test_bandwidth_is_defined_for_one_particle_and_for_particles_that_coincide() -> None:
    assert bandwidth(torch.zeros(1, 1)) > 0
    scores = torch.tensor([[1.0, 0.0], [0.0, 3.0]])
    direction = stein_direction(torch.ones(2, 2), scores)
    torch.testing.assert_close(direction, scores.mean(0).expand(2, 2))


@pytest.mark.usefixtures("float64")
def test_particles_find_the_mean_and_spread_of_a_gaussian() -> None:
    mean, std = torch.tensor([1.0, -2.0]), torch.tensor([0.5, 2.0])
    particles = torch.randn(20, 2, generator=streams.generator(0, "particles"))
    for _ in range(400):
        particles = particles + 0.4 * stein_direction(particles, (mean - particles) / std**2)
    torch.testing.assert_close(particles.mean(0), mean, rtol=0, atol=0.01)
    torch.testing.assert_close(particles.std(0), std, rtol=0.1, atol=0)


@pytest.mark.usefixtures("float64")
@ORDERS
@pytest.mark.parametrize("scale", [1.0, 4.0])
def test_one_particle_without_chaser_equals_maml(first_order: bool, scale: float) -> None:
    maml = Maml(inner_lr=0.02, inner_steps=3, first_order=first_order)
    bmaml = Bmaml(1, inner_lr=0.02 / scale, inner_steps=3, first_order=first_order, likelihood_scale=scale)
    meta, tasks, *rest = meta_batch(maml)
    particle = {"particles": stack_one(meta["weights"])}
    for index in range(TASKS):
        support = take(tasks, index).support
        weights = maml.adapt(meta, MODEL, support, {})["weights"]
        assert_close(bmaml.adapt(particle, MODEL, support, {}), {"particles": stack_one(weights)}, 1e-14)
    gradient, info = Engine(maml, MODEL).gradient(meta, tasks, *rest)
    particle_gradient, particle_info = Engine(bmaml, MODEL).gradient(particle, tasks, *rest)
    assert_close(particle_gradient, {"particles": stack_one(gradient["weights"])}, 1e-13)
    assert float(particle_info["loss"]) == pytest.approx(float(info["loss"]), rel=1e-14)


@pytest.mark.usefixtures("float64")
def test_one_particle_with_a_gaussian_prior_descends_the_penalised_loss() -> None:
    algorithm = Bmaml(1, inner_lr=0.05, inner_steps=1, likelihood_scale=2.0, prior_std=0.7)
    meta, tasks, *_ = meta_batch(algorithm)
    support, weights = take(tasks, 0).support, meta["particles"]
    leaves = {key: value[0].clone().requires_grad_() for key, value in weights.items()}
    loss = 2 * MODEL.loss(MODEL.network(leaves, support.x), support.y).mean()
    penalty = sum(leaf.square().sum() for leaf in leaves.values()) / (2 * 0.7**2)
    (loss + penalty).backward()
    expected = {key: (leaf.detach() - 0.05 * leaf.grad).unsqueeze(0) for key, leaf in leaves.items()}
    assert_close(algorithm.adapt(meta, MODEL, support, {}), {"particles": expected}, 1e-14)


@pytest.mark.usefixtures("float64")
def test_query_loss_is_that_of_the_mixture_of_particles() -> None:
    algorithm = small_bmaml(likelihood_scale=0.5)
    meta, tasks, _, _, stage = meta_batch(algorithm)
    task = take(tasks, 0)
    predictions = algorithm.predict(algorithm.adapt(meta, MODEL, task.support, {}), MODEL, task.query.x, {})
    likelihoods = [math.exp(-0.5 * float(MODEL.loss(output, task.query.y).mean())) for output in predictions]
    loss, info = algorithm.loss(meta, MODEL, task, {}, stage)
    assert float(loss) == pytest.approx(-2 * math.log(sum(likelihoods) / 4), rel=1e-12)
    assert info["loss"] < info["particle_loss"]


def leader_of(algorithm: Bmaml, chaser: Parts, task: Task) -> Parts:
    """The chaser's particles after S more steps on support and query together."""
    union = Batch(torch.cat([task.support.x, task.query.x]), torch.cat([task.support.y, task.query.y]))
    steps = small_bmaml(inner_steps=algorithm.leader_steps, prior_std=algorithm.prior_std)
    return steps.adapt(chaser, MODEL, union, {})


@pytest.mark.usefixtures("float64")
def test_first_order_chaser_gradient_points_from_leader_to_chaser() -> None:
    algorithm = small_bmaml(chaser=True, leader_steps=3)
    meta, tasks, *rest = meta_batch(algorithm)
    gradient, info = Engine(algorithm, MODEL).gradient(meta, tasks, *rest)
    gaps = []
    for index in range(TASKS):
        task = take(tasks, index)
        chaser = algorithm.adapt(meta, MODEL, task.support, {})
        leader = leader_of(algorithm, chaser, task)["particles"]
        gaps.append(flatten(chaser["particles"], dims=1) - flatten(leader, dims=1))
    gap = torch.stack(gaps)
    torch.testing.assert_close(flatten(gradient["particles"], dims=1), 2 / 4 * gap.mean(0), rtol=0, atol=1e-14)
    assert float(info["chaser"]) == pytest.approx(float(gap.square().sum() / (4 * TASKS)), rel=1e-12)


@pytest.mark.usefixtures("float64")
def test_second_order_chaser_gradient_equals_finite_differences_with_the_leader_held_still() -> None:
    algorithm = small_bmaml(first_order=False, chaser=True)
    meta, tasks, *rest = meta_batch(algorithm)

    def chaser(at: Parts, task: Task) -> Parts:
        return algorithm.adapt(at, MODEL, task.support, {})

    def distance(at: Parts) -> Tensor:
        gaps = [
            flatten(chaser(at, take(tasks, index))["particles"], dims=1) - flatten(leader["particles"], dims=1)
            for index, leader in enumerate(leaders)
        ]
        return torch.stack(gaps).square().sum(-1).mean()

    leaders = [leader_of(algorithm, chaser(meta, take(tasks, index)), take(tasks, index)) for index in range(TASKS)]
    gradient, _ = Engine(algorithm, MODEL).gradient(meta, tasks, *rest)
    for seed in range(3):
        direction = random_direction(meta, seed)
        assert inner_product(gradient, direction) == pytest.approx(slope(distance, meta, direction), rel=1e-6)


def test_prediction_is_that_of_the_particles_whatever_number_is_asked_for() -> None:
    algorithm = small_bmaml()
    meta, tasks, *_ = meta_batch(algorithm)
    task = take(tasks, 0)
    assert algorithm.prediction_noise(MODEL, 32, 5) == {}
    predictions = algorithm.predict(algorithm.adapt(meta, MODEL, task.support, {}), MODEL, task.query.x, {})
    assert predictions.shape == (4, *task.query.y.shape)
    assert predictions.std(0).min() > 0


@pytest.mark.parametrize(
    "options",
    [{"particles": 0}, {"inner_lr": -1.0}, {"likelihood_scale": 0.0}, {"prior_std": 0.0}, {"leader_steps": 0}],
    ids=str,
)
def test_a_wrong_option_is_named(options: dict[str, float]) -> None:
    with pytest.raises(FewsureError, match=f"expected `{next(iter(options))}` to be"):
        Bmaml(**options)  # type: ignore[arg-type]
