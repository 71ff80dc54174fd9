"""Gradient steps inside a task: limited in norm, differentiable all the same, and for every method."""

import dataclasses

import pytest
import torch

from fewsure.algorithms import ALGORITHMS
from fewsure.algorithms.maml import Maml
from fewsure.core.gradient import clip, descend
from fewsure.core.vectorise import take
from fewsure.errors import FewsureError
from fewsure.networks.weights import flatten
from fewsure.training.engine import Engine
from fewsure.types import Algorithm, Params, Parts

from .helpers import MODEL, WITH_STEPS, assert_close, inner_product, meta_batch, random_direction, slope, small_simpa


def method(name: str) -> Algorithm:
    algorithm = small_simpa() if name == "simpa" else ALGORITHMS[name]()
    return dataclasses.replace(algorithm, first_order=False, inner_steps=2)  # type: ignore[type-var]


def test_a_gradient_keeps_its_direction_and_loses_what_is_above_the_limit() -> None:
    gradient = {"a": torch.tensor([[3.0]]), "b": torch.tensor([4.0])}
    assert_close({"": clip(gradient, 10.0)}, {"": gradient}, 0)
    clipped = clip(gradient, 0.5)
    torch.testing.assert_close(clipped, {"a": torch.tensor([[0.3]]), "b": torch.tensor([0.4])})


def test_each_particle_has_a_limit_of_its_own() -> None:
    rows = torch.tensor([[3.0, 4.0], [0.3, 0.4]])
    torch.testing.assert_close(clip({"": rows}, 1.0, dims=1)[""], torch.tensor([[0.6, 0.8], [0.3, 0.4]]))


def test_a_gradient_of_zero_differentiates_to_finite_numbers() -> None:
    def step(start: torch.Tensor) -> torch.Tensor:
        def objective(params: Params) -> torch.Tensor:
            return params["w"].square().sum()

        return descend(objective, {"w": start}, 0.1, first_order=False, clip_norm=1.0)["w"].sum()

    torch.testing.assert_close(torch.func.grad(step)(torch.zeros(3)), torch.full((3,), 0.8))


@pytest.mark.usefixtures("float64")
def test_maml_moves_no_further_than_its_limited_steps_reach() -> None:
    algorithm = Maml(inner_lr=0.1, inner_steps=3, inner_clip_norm=0.01)
    meta, tasks, *_ = meta_batch(algorithm)
    adapted = algorithm.adapt(meta, MODEL, take(tasks, 0).support, {})
    moved = float((flatten(adapted["weights"]) - flatten(meta["weights"])).norm())
    assert 0.5 * 3 * 0.1 * 0.01 < moved <= 3 * 0.1 * 0.01 + 1e-12


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("name", WITH_STEPS)
def test_a_limit_out_of_reach_changes_nothing_and_a_low_one_something(name: str) -> None:
    free = method(name)
    batch = meta_batch(free)

    def gradient(limit: float) -> Parts:
        limited: Algorithm = dataclasses.replace(free, inner_clip_norm=limit)  # type: ignore[type-var]
        return Engine(limited, MODEL).gradient(*batch)[0]

    reference, _ = Engine(free, MODEL).gradient(*batch)
    assert_close(gradient(1e9), reference, 1e-12)
    assert abs(inner_product(gradient(1e-3), reference) / inner_product(reference, reference) - 1) > 1e-6


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("name", WITH_STEPS)
def test_the_meta_gradient_through_limited_steps_equals_finite_differences(name: str) -> None:
    algorithm: Algorithm = dataclasses.replace(method(name), inner_clip_norm=0.5)  # type: ignore[type-var]
    meta, *rest = meta_batch(algorithm)
    engine = Engine(algorithm, MODEL)
    gradient, _ = engine.gradient(meta, *rest)
    direction = random_direction(meta)
    expected = slope(lambda at: engine.loss(at, *rest)[0], meta, direction)
    assert inner_product(gradient, direction) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("name", WITH_STEPS)
def test_a_limit_that_is_no_number_above_zero_is_refused(name: str) -> None:
    with pytest.raises(FewsureError, match="expected `inner_clip_norm` to be a number above 0, or none, but got -1"):
        dataclasses.replace(method(name), inner_clip_norm=-1.0)  # type: ignore[type-var]
