"""The precision of matrix products: what `bf16` rounds, and that it leaves everything else alone."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from fewsure.algorithms import ALGORITHMS
from fewsure.algorithms.simpa import Simpa
from fewsure.core.devices import LARGE, fastest_precision, in_full, precision, rounded_type
from fewsure.core.vectorise import take
from fewsure.networks.conv4 import Conv4
from fewsure.networks.losses import classification, regression
from fewsure.networks.mlp import Mlp
from fewsure.networks.weights import flatten, unflatten
from fewsure.pipeline import start_run
from fewsure.posteriors import outputs
from fewsure.theory.divergences import semi_implicit_kl
from fewsure.training.engine import Engine
from fewsure.training.experiment import load_preset
from fewsure.types import Algorithm, Batch, Model, Parts, Task

from .helpers import TASKS, WITH_STEPS, meta_batch, small_simpa

LINE = regression(Mlp((1, 40, 40, 1)))
IMAGES = classification(Conv4((1, 16, 16), 3, filters=16), 3)
WIDE: dict[str, Any] = {"generator_hidden": (8, 150), "critic_hidden": (150, 5), "train_samples": 2}
"""With 1,761 weights to make, the generator's last matrix and the critic's first are large, and no others."""


def gradients(algorithm: Algorithm, model: Model = LINE, tasks: Task | None = None) -> list:
    """(meta-gradient, info) with rounding, and without."""
    meta, sampled, *rest = meta_batch(algorithm, model=model)
    engine, found = Engine(algorithm, model, loop=model.network.maps is not None), []
    for wanted in ("bf16", "tf32"):
        with precision(wanted):
            found.append(engine.gradient(meta, tasks or sampled, *rest))
    return found


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


def of_wide_networks(name: str) -> tuple[Algorithm, Model]:
    """A method other than SImPa, whose base network has a large matrix in the middle."""
    options = {field.name for field in dataclasses.fields(ALGORITHMS[name])}
    wanted = {"inner_steps": 2, "first_order": True, "particles": 2}
    algorithm = ALGORITHMS[name](**{option: value for option, value in wanted.items() if option in options})
    return algorithm, regression(Mlp((1, 512, 512, 1)))


@pytest.mark.parametrize(
    ("algorithm", "model"),
    [
        *(of_wide_networks(name) for name in WITH_STEPS if name != "simpa"),
        *((small_simpa(kl=kl), LINE) for kl in ("none", "moment", "critic", "moment+critic")),
    ],
    ids=lambda value: type(value).__name__,
)
def test_other_methods_and_a_small_simpa_are_the_same_bit_for_bit(algorithm: Algorithm, model: Model) -> None:
    (found, info), (expected, expected_info) = gradients(algorithm, model)
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
    (found, info), (expected, expected_info) = gradients(algorithm)
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
    x, y = torch.rand(TASKS, 3, 1, 16, 16), torch.arange(3).expand(TASKS, -1)
    (found, info), _ = gradients(algorithm, IMAGES, Task(Batch(x, y), Batch(x.flip(1), y.flip(1))))
    assert bool(flat(found).isfinite().all())
    assert info["loss"].dtype == torch.float32


@pytest.mark.parametrize("kl_samples", [5, 80])
def test_base_networks_compute_with_all_bits_from_rounded_weights(kl_samples: int) -> None:
    algorithm = small_simpa(**WIDE, kl="moment", kl_samples=kl_samples)
    posterior, x, noise = adapted(algorithm)
    with precision("bf16"):
        weights = algorithm.posterior(LINE).sample(posterior["generator"], noise)[0]
        found = algorithm.predict(posterior, LINE, x, noise)
    assert torch.equal(weights, weights.bfloat16().float())
    assert torch.equal(found, outputs(LINE.network, unflatten(LINE.network, weights), x))
    assert not torch.equal(found, found.bfloat16().float())


def adapted(algorithm: Simpa) -> tuple[Parts, Tensor, dict[str, Tensor]]:
    """(the posterior of a task, its query inputs, prediction noise), rounded."""
    meta, tasks, shared, noise, _ = meta_batch(algorithm, model=LINE)
    task, own = take(tasks, 0), take(noise, 0)
    with precision("bf16"):
        return algorithm.adapt(meta, LINE, task.support, shared | own), task.query.x, {"z": own["z"][-1]}


def test_a_task_keeps_its_small_matrices_in_full() -> None:
    generator = adapted(small_simpa(**WIDE, kl="none"))[0]["generator"]
    assert {name for name, value in generator.items() if value.dtype != torch.float32} == {"2.weight", "right"}


def test_sums_of_rounded_samples_are_not_rounded() -> None:
    means = torch.rand(6, 1761, generator=torch.Generator().manual_seed(0)).bfloat16()
    found, expected = (semi_implicit_kl(of, std=0.1, prior_std=1.0).double() for of in (means, means.double()))
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=0)


def test_auto_is_bf16_for_convolutions_on_a_cpu_that_has_it_and_a_run_records_which(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    for has_it, expected in ((True, "bf16"), (False, "tf32")):
        monkeypatch.setattr("torch.cpu._is_avx512_bf16_supported", lambda has_it=has_it: has_it)
        assert fastest_precision(convolves=True) == expected
        assert fastest_precision(convolves=False) == "tf32"
    monkeypatch.setattr("fewsure.training.experiment.fastest_precision", lambda convolves: "bf16")
    experiment = load_preset("quickstart", "maml", "sine-line")
    assert experiment.training.precision == "auto"
    run = start_run(tmp_path, experiment, resume=False)
    assert run.experiment.training.precision == "bf16"
    monkeypatch.setattr("fewsure.training.experiment.fastest_precision", lambda convolves: "tf32")
    assert start_run(tmp_path, experiment, resume=True).experiment.training.precision == "bf16"


def test_bf16_convolutions_on_a_cpu_are_nearly_those_of_float32() -> None:
    x, weights = torch.rand(6, 1, 16, 16), IMAGES.network.init(torch.Generator().manual_seed(0))
    for norm in ("batch", "support", "instance", "none"):
        network = dataclasses.replace(IMAGES.network, norm=norm).given(x)
        with precision("bf16"):
            found = network(weights, x)
        assert found.dtype == torch.float32
        expected = network(weights, x)
        assert 0 < float((found - expected).norm() / expected.norm()) < 0.05
