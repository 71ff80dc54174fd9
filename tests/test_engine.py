"""The meta-step: vectorised = loop, first and second order, any chunk, any number of processes."""

import re
from itertools import product

import pytest
import torch

from fewsure.algorithms.maml import Maml
from fewsure.algorithms.simpa import Simpa
from fewsure.core.cores import map_in_threads
from fewsure.core.vectorise import for_each, take
from fewsure.networks.conv4 import Conv4
from fewsure.networks.losses import classification
from fewsure.networks.mlp import Mlp
from fewsure.training.engine import Engine
from fewsure.types import Algorithm, Parts

from .helpers import (
    DATA,
    MODEL,
    TASKS,
    assert_close,
    assert_gradient_equals_finite_differences,
    assert_vectorised_equals_loop,
    meta_batch,
    small_simpa,
)
from .test_bmaml import small_bmaml
from .test_platipus import small_platipus

KL = ("none", "moment", "moment+critic", "critic")
METHODS = [Maml(first_order=first) for first in (True, False)]
METHODS += [small_simpa(kl=kl, first_order=first) for kl in KL for first in (True, False)]
METHODS += [small_simpa(train_samples=3, clip=clip) for clip in ("hard", "bounded")]
METHODS += [small_platipus(first_order=first) for first in (True, False)]
METHODS += [
    small_bmaml(first_order=first, chaser=chaser, prior_std=std, likelihood_scale=scale)
    for first, chaser, (std, scale) in product((True, False), (True, False), ((None, 1.0), (2.0, 0.5)))
]
HELD_STILL = re.compile("critic|True")
"""Methods whose loss is not one objective: a critic's generator, and a chaser's leader, are held still in it."""


def name(algorithm: Algorithm) -> str:
    options = vars(algorithm)
    order = "first" if options["first_order"] else "second"
    keys = ("kl", "clip", "chaser", "likelihood_scale")
    return "-".join([type(algorithm).__name__, order, *(str(options[key]) for key in keys if key in options)])


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("algorithm", METHODS, ids=name)
def test_vectorised_equals_loop_and_any_chunk(algorithm: Algorithm) -> None:
    assert_vectorised_equals_loop(algorithm, MODEL, meta_batch(algorithm))


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("algorithm", METHODS, ids=name)
def test_processes_that_share_a_meta_batch_average_to_the_whole(algorithm: Algorithm) -> None:
    meta, tasks, shared, noise, stage = meta_batch(algorithm)
    engine = Engine(algorithm, MODEL)
    whole, _ = engine.gradient(meta, tasks, shared, noise, stage)
    parts = [
        engine.gradient(meta, *take((tasks,), part), shared, take(noise, part), stage)[0]
        for part in (slice(0, TASKS // 2), slice(TASKS // 2, TASKS))
    ]
    mean = {group: {key: (parts[0][group][key] + parts[1][group][key]) / 2 for key in whole[group]} for group in whole}
    assert_close(mean, whole, 1e-10)


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize(
    "algorithm", [m for m in METHODS if not (m.first_order or HELD_STILL.search(name(m)))], ids=name
)
def test_second_order_gradient_equals_finite_differences(algorithm: Algorithm) -> None:
    assert_gradient_equals_finite_differences(algorithm, MODEL, meta_batch(algorithm))


@pytest.mark.usefixtures("float64")
def test_second_order_differs_from_first_order() -> None:
    first, second = (Engine(Maml(first_order=order), MODEL).gradient(*meta_batch(Maml()))[0] for order in (True, False))
    assert max(float((first["weights"][key] - second["weights"][key]).abs().max()) for key in first["weights"]) > 1e-3


@pytest.mark.usefixtures("float64")
def test_first_order_gradient_of_maml_is_the_query_gradient_at_the_adapted_weights() -> None:
    algorithm = Maml(first_order=True)
    meta, tasks, _, noise, stage = meta_batch(algorithm)
    gradient, _ = Engine(algorithm, MODEL).gradient(meta, tasks, {}, noise, stage)
    expected = {key: torch.zeros_like(value) for key, value in meta["weights"].items()}
    for index in range(TASKS):
        task = take(tasks, index)
        weights = algorithm.adapt(meta, MODEL, task.support, {})["weights"]
        leaves = {key: value.clone().requires_grad_() for key, value in weights.items()}
        MODEL.loss(MODEL.network(leaves, task.query.x), task.query.y).mean().backward()
        expected = {key: value + leaves[key].grad / TASKS for key, value in expected.items()}
    assert_close(gradient, {"weights": expected}, 1e-14)


@pytest.mark.usefixtures("float64")
def test_first_order_gradient_of_simpa_is_the_query_gradient_at_the_adapted_generator() -> None:
    algorithm = small_simpa(kl="none", sigma_theta=1e9)  # R_0 is then constant in ψ to 1e-12
    meta, tasks, shared, noise, stage = meta_batch(algorithm)
    gradient, _ = Engine(algorithm, MODEL).gradient(meta, tasks, shared, noise, stage)

    def query_loss(parts: tuple, generator: Parts) -> torch.Tensor:
        task, own = parts
        output = algorithm.predict(generator, MODEL, task.query.x, {"z": own["z"][-1]})
        return (output - task.query.y).square().mean()

    def query_gradient(parts: tuple, meta: Parts) -> Parts:
        adapted = algorithm.adapt(meta, MODEL, parts[0].support, shared | parts[1])
        return torch.func.grad(query_loss, argnums=1)(parts, adapted)

    every = for_each(query_gradient, loop=True)((tasks, noise), meta)
    expected = {"generator": {key: value.mean(0) for key, value in every["generator"].items()}}
    assert_close(gradient, expected, 1e-12)


def _tensors(tree: object) -> list[torch.Tensor]:
    return [leaf for leaf in torch.utils._pytree.tree_leaves(tree) if leaf is not None]


def test_the_same_seed_gives_the_same_tasks_and_noise() -> None:
    for a, b in zip(meta_batch(small_simpa())[1:4], meta_batch(small_simpa())[1:4], strict=True):
        flat_a, flat_b = (_tensors(tree) for tree in (a, b))
        assert all(torch.equal(x, y) for x, y in zip(flat_a, flat_b, strict=True))


def test_a_meta_batch_does_not_depend_on_the_algorithm() -> None:
    generator = torch.Generator().manual_seed(1)
    tasks, _ = DATA.sample(3, generator)
    assert torch.equal(tasks.query.y, DATA.sample(3, torch.Generator().manual_seed(1))[0].query.y)


@pytest.mark.parametrize(
    ("algorithm", "size", "loops"),
    [
        *[(Maml(), 28, True), (Simpa(), 28, False), (Simpa(), 84, True), (Maml(), 0, False)],
        (Simpa(kl_samples=512), 28, True),  # each task has its own copy of the layer
    ],
)
def test_on_a_cpu_convolutions_are_looped_over_unless_a_shared_layer_outweighs_small_images(
    algorithm: Algorithm, size: int, loops: bool
) -> None:
    model = classification(Conv4((1, size, size), 5) if size else Mlp((3, 4, 5)), 5)
    engine = Engine.fastest(algorithm, model, torch.device("cpu"), None)
    assert engine.loop == loops
    assert engine.chunk_size == (1 if loops else None)
    assert not Engine.fastest(algorithm, model, torch.device("cuda"), None).loop


def test_threads_give_the_results_of_a_loop_in_order_and_know_whether_gradients_are_wanted() -> None:
    def seen(item: int) -> tuple[int, bool, int]:
        return item, torch.is_grad_enabled(), torch.get_num_threads()

    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with torch.no_grad():
            found = list(map_in_threads(seen, range(9)))
        assert found == [(item, False, 1) for item in range(9)]
        assert torch.get_num_threads() == 2
        batch = meta_batch(Maml())
        plain, threads = (Engine(Maml(), MODEL, chunk_size=1, loop=True, threads=way) for way in (False, True))
        assert_close(threads.gradient(*batch)[0], plain.gradient(*batch)[0], 1e-6)
        with pytest.raises(ZeroDivisionError):
            list(map_in_threads(lambda item: 1 // item, range(3)))
    finally:
        torch.set_num_threads(before)
