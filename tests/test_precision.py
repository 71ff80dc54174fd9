"""The precision of matrix products: what `bf16` rounds, and that it leaves everything else alone."""

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor

from fewsure.algorithms import ALGORITHMS
from fewsure.algorithms.simpa import Simpa
from fewsure.core import streams
from fewsure.core.devices import LARGE, Precision, in_full, precision, rounded_type
from fewsure.core.vectorise import draw_noise, take
from fewsure.networks.conv4 import Conv4
from fewsure.networks.losses import classification, regression
from fewsure.networks.mlp import Mlp
from fewsure.networks.weights import flatten, unflatten
from fewsure.posteriors import outputs
from fewsure.theory.divergences import semi_implicit_kl
from fewsure.training.engine import Engine
from fewsure.types import Algorithm, Batch, Model, Parts, Stage, Task

from .helpers import DATA, WITH_STEPS, small_simpa

TASKS = 2
LINE = regression(Mlp((1, 40, 40, 1)))
IMAGES = classification(Conv4((1, 16, 16), 3, filters=16), 3)
WIDE: dict[str, Any] = {"generator_hidden": (8, 150), "critic_hidden": (150, 5), "train_samples": 2}
"""With 1,761 weights to make, the generator's last matrix and the critic's first are large, and no others."""


def arguments(algorithm: Algorithm, model: Model) -> tuple:
    """(meta, tasks, shared noise, noise of each task, stage)."""
    generator = streams.generator(0, "precision")
    meta = algorithm.init(model, generator)
    if model.kind == "regression":
        tasks, _ = DATA.sample(TASKS, generator)
    else:
        x, y = torch.rand(TASKS, 3, 1, 16, 16, generator=generator), torch.arange(3).expand(TASKS, -1)
        tasks = Task(Batch(x, y), Batch(x.flip(1), y.flip(1)))
    return meta, tasks, *draw_noise(algorithm.noise(model, 5, 10), TASKS, generator), Stage(torch.tensor(1000), TASKS)


def gradient(algorithm: Algorithm, model: Model, wanted: Precision) -> tuple[Parts, dict[str, Tensor]]:
    with precision(wanted):
        return Engine(algorithm, model, loop=model.network.maps is not None).gradient(*arguments(algorithm, model))


def rounded(matrix: Tensor) -> Tensor:
    return matrix.to(rounded_type(matrix))


def flat(parts: Parts) -> Tensor:
    return torch.cat([flatten(params) for params in parts.values()])


def test_only_large_matrices_are_rounded_and_only_under_bf16() -> None:
    large, small = torch.rand(LARGE // 64, 64), torch.rand(LARGE // 64 - 1, 64)
    for wanted in ("float32", "tf32"):
        with precision(wanted):
            assert rounded(large) is large
    with precision("bf16"):
        assert rounded_type(large) == torch.bfloat16
        assert rounded(small) is small
        with precision("float32"):
            assert rounded(large) is large
        assert torch.equal(in_full(rounded(large)), large.bfloat16().float())
    assert rounded(large) is large


def test_the_switches_of_torch_are_put_back() -> None:
    def switches() -> tuple[bool, bool]:
        return torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32

    before = switches()
    for wanted, allowed in (("float32", False), ("tf32", True), ("bf16", True)):
        with precision(wanted):  # type: ignore[arg-type]
            assert switches() == (allowed, allowed)
        assert switches() == before


@pytest.mark.parametrize("name", [name for name in WITH_STEPS if name != "simpa"])
def test_other_methods_are_the_same_bit_for_bit_however_large_their_networks(name: str) -> None:
    options = {field.name for field in dataclasses.fields(ALGORITHMS[name])}
    wanted = {"inner_steps": 2, "first_order": True, "particles": 2}
    algorithm = ALGORITHMS[name](**{option: value for option, value in wanted.items() if option in options})
    model = regression(Mlp((1, 512, 512, 1)))  # the matrix in the middle is large
    (found, info), (expected, expected_info) = (gradient(algorithm, model, to) for to in ("bf16", "tf32"))
    assert torch.equal(flat(found), flat(expected))
    assert info == expected_info


@pytest.mark.parametrize("kl", ["none", "moment", "critic", "moment+critic"])
def test_a_small_simpa_is_the_same_bit_for_bit(kl: str) -> None:
    algorithm = small_simpa(kl=kl)
    (found, info), (expected, expected_info) = (gradient(algorithm, LINE, to) for to in ("bf16", "tf32"))
    assert torch.equal(flat(found), flat(expected))
    assert info == expected_info


SETTINGS: dict[str, dict[str, Any]] = {
    "no KL": {"kl": "none"},
    "moment KL": {"kl": "moment"},
    "moment KL, own copies": {"kl": "moment", "kl_samples": 80},
    "moment KL, weight noise": {"kl": "moment", "weight_noise": 0.1, "inner_clip_norm": 1.0},
    "critic": {"kl": "critic"},
    "semi-implicit": {"kl": "semi-implicit", "weight_noise": 0.1},
}


@pytest.mark.parametrize("first_order", [True, False])
@pytest.mark.parametrize("name", SETTINGS)
def test_a_large_simpa_is_rounded_and_nearly_the_same(name: str, first_order: bool) -> None:
    # Steps are short: long ones from an untrained start make large differences of small ones, whatever the precision.
    algorithm = small_simpa(**WIDE, **SETTINGS[name], first_order=first_order, inner_lr=1e-5)
    (found, info), (expected, expected_info) = (gradient(algorithm, LINE, to) for to in ("bf16", "tf32"))
    assert not torch.equal(flat(found), flat(expected))
    for part, params in found.items():
        difference = (flatten(params) - flatten(expected[part])).norm() / flatten(expected[part]).norm()
        assert float(difference) < 0.05
    # What is logged is no number of 8 bits.
    assert {value.dtype for value in info.values()} == {torch.float32}
    for term, value in info.items():
        torch.testing.assert_close(value, expected_info[term], rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize("kl", ["none", "moment", "critic"])
def test_images_are_learned_from_too(kl: str) -> None:
    algorithm = small_simpa(kl=kl, generator_hidden=(4, 40), critic_hidden=(40,), kl_samples=4)
    found, info = gradient(algorithm, IMAGES, "bf16")
    assert bool(flat(found).isfinite().all())
    assert info["loss"].dtype == torch.float32


@contextmanager
def adapted(algorithm: Simpa) -> Iterator[tuple[Any, Parts, dict[str, Tensor]]]:
    """(a task, its posterior, prediction noise) under bf16."""
    meta, tasks, shared, noise, _ = arguments(algorithm, LINE)
    with precision("bf16"):
        task, own = take(tasks, 0), take(noise, 0)
        yield task, algorithm.adapt(meta, LINE, task.support, shared | own), {"z": own["z"][-1]}


@pytest.mark.parametrize("kl_samples", [5, 80])
def test_base_networks_compute_with_all_bits_from_rounded_weights(kl_samples: int) -> None:
    algorithm = small_simpa(**WIDE, kl="moment", kl_samples=kl_samples)
    with adapted(algorithm) as (task, posterior, noise):
        weights = algorithm.posterior(LINE).sample(posterior["generator"], noise)[0]
        found = algorithm.predict(posterior, LINE, task.query.x, noise)
    assert torch.equal(weights, weights.bfloat16().float())
    expected = outputs(LINE.network, unflatten(LINE.network, weights), task.query.x)
    assert torch.equal(found, expected)
    assert not torch.equal(found, found.bfloat16().float())


def test_a_task_keeps_its_small_matrices_in_full() -> None:
    with adapted(small_simpa(**WIDE, kl="none")) as (_, posterior, _):
        generator = posterior["generator"]
    assert {name for name, value in generator.items() if value.dtype != torch.float32} == {"2.weight", "right"}


def test_sums_of_rounded_samples_are_not_rounded() -> None:
    means = torch.rand(6, 1761, generator=torch.Generator().manual_seed(0)).bfloat16()
    found = semi_implicit_kl(means, std=0.1, prior_std=1.0)
    torch.testing.assert_close(
        found.double(), semi_implicit_kl(means.double(), std=0.1, prior_std=1.0), rtol=1e-6, atol=0
    )
