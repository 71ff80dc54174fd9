"""Fused kernels equal the plain path, on a GPU or in Triton's interpreter (`make kernel-test`)."""

import dataclasses
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

pytest.importorskip("triton", reason="Triton is not installed; `make kernel-test` installs it")

from fewsure.algorithms.bmaml import Bmaml
from fewsure.algorithms.maml import Maml
from fewsure.algorithms.protonet import ProtoNet
from fewsure.algorithms.simpa import Simpa
from fewsure.core import streams
from fewsure.core.devices import precision
from fewsure.core.vectorise import draw_noise, stack_components
from fewsure.data.episodes import Episodes
from fewsure.data.pools import Pool
from fewsure.data.sets.sine_line import SineLine
from fewsure.kernels import fused
from fewsure.kernels.triton import conv_block as kernels
from fewsure.networks import mlp
from fewsure.networks.conv4 import Conv4
from fewsure.networks.losses import classification, regression
from fewsure.networks.mlp import Mlp
from fewsure.networks.weights import flatten
from fewsure.posteriors.implicit import ImplicitPosterior
from fewsure.posteriors.last_layer import SampleRequest
from fewsure.theory.divergences import moment_kl
from fewsure.theory.sample_kl import KlEstimate
from fewsure.training.engine import Engine
from fewsure.types import Algorithm, Model, Params, Stage, Task

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


@pytest.fixture(autouse=True)
def full_precision() -> Iterator[None]:
    with precision("float32"):
        yield


def plain_block(x: Tensor, w: Tensor) -> Tensor:
    """x (N, H, W, C), w (F, C, 3, 3)."""
    y = functional.conv2d(x.permute(0, 3, 1, 2), w, padding=1)
    pooled = functional.max_pool2d(functional.batch_norm(y, None, None, training=True).relu(), 2)
    return pooled.permute(0, 2, 3, 1)


@pytest.mark.parametrize(
    "shape",
    [(2, 3, 14, 14, 16, 16), (3, 2, 7, 7, 16, 32), (2, 5, 9, 12, 1, 16), (1, 2, 28, 28, 3, 32), (2, 2, 3, 3, 32, 32)],
)
def test_values_and_gradients_equal_torchs(shape: tuple[int, ...]) -> None:
    *image_shape, filters = shape
    channels = image_shape[-1]
    generator = streams.generator(0, *shape)
    x = torch.randn(image_shape, generator=generator).to(DEVICE)
    w = 0.1 * torch.randn(shape[0], filters, channels, 3, 3, generator=generator).to(DEVICE)
    pooled, *saved = kernels.forward(x, w, "ieee")
    expected, pull_back = torch.func.vjp(torch.func.vmap(plain_block), x, w)
    torch.testing.assert_close(pooled, expected, rtol=1e-4, atol=1e-5)
    gradient = torch.randn(expected.shape, generator=generator).to(DEVICE)
    dx, dw = pull_back(gradient)
    wanted = channels >= 16
    found_dx, found_dw = kernels.backward(gradient, x, w, *saved, "ieee", input_gradient=wanted)
    torch.testing.assert_close(found_dw, dw, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(found_dx, dx if wanted else torch.zeros_like(dx), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("shape", [(4, 5), (40, 300), (33, 128)])
def test_the_moment_kl_and_its_gradient_equal_the_plain_ones(
    shape: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    scale = torch.linspace(0.01, 2, shape[1])
    samples = (0.3 + scale * torch.randn(3, *shape, generator=streams.generator(0, "samples"))).to(DEVICE)

    def of_all(samples: Tensor) -> Tensor:
        weights = torch.arange(1.0, 4, device=DEVICE)
        return (weights * torch.func.vmap(lambda one: moment_kl(one, 0.7))(samples)).sum()

    expected, expected_gradient = of_all(samples), torch.func.grad(of_all)(samples)
    use_kernels(monkeypatch)
    with fused.fused_kernels(allowed=True):
        torch.testing.assert_close(of_all(samples), expected, rtol=1e-4, atol=1e-3)
        torch.testing.assert_close(torch.func.grad(of_all)(samples), expected_gradient, rtol=1e-4, atol=1e-4)


STEPS: dict[str, Any] = {"inner_steps": 3, "first_order": True}
MOMENTS: dict[str, Any] = {"kl": "moment", "sigma_w": 0.3}
CRITIC: dict[str, Any] = {"kl": "critic", "kl_samples": 5, "critic_hidden": (7, 6), "critic_lr": 0.1}
NOISY: dict[str, Any] = {"weight_noise": 0.1, "kl_samples": 15, "critic_hidden": (7,), "critic_steps": 2}


def simpa(**options: Any) -> Simpa:
    settings = {"inner_lr": 0.02, "latent": 3, "generator_hidden": (6, 40), "kl": "none", "train_samples": 2}
    return Simpa(**STEPS, **settings | options)


ON_IMAGES: dict[str, Algorithm] = {
    "protonet": ProtoNet(),
    "maml": Maml(inner_lr=0.1, inner_steps=2),
    "simpa": simpa(),
    "simpa, mixture": simpa(train_samples=1, components=2),
    "bmaml": Bmaml(**STEPS, particles=2),
}
ON_LINES: dict[str, Algorithm] = {
    "maml": Maml(inner_lr=0.1, **STEPS),
    "bmaml": Bmaml(**STEPS, particles=3),
    "simpa, no KL": simpa(),
    "simpa, scaled": simpa(scaled_generator=True),
    "simpa, moment KL": simpa(**MOMENTS, kl_samples=5),
    "simpa, many factors": simpa(**MOMENTS, kl_samples=9, train_samples=1, inner_clip_norm=0.1),
    "simpa, own copies": simpa(**MOMENTS, kl_samples=15, train_samples=3),
    "simpa, moments and critic, noisy": simpa(**NOISY, kl="moment+critic", train_samples=4),
    "simpa, critic": simpa(**CRITIC, train_samples=4),
    "simpa, mixture": simpa(**MOMENTS, kl_samples=5, components=2),
}


def use_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU, wherever the test runs."""
    monkeypatch.setattr("fewsure.kernels.fused._made_for", lambda x: True)


@pytest.mark.slow
@pytest.mark.parametrize("name", ON_IMAGES)
def test_meta_gradients_on_images_equal_those_of_the_plain_path(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    algorithm, source = ON_IMAGES[name], streams.generator(0, "kernels")
    examples = torch.randint(256, (24, 3, 20, 18), generator=source).to(torch.uint8).to(DEVICE)
    pool = Pool(examples, torch.arange(5).to(DEVICE) * 6, tuple("abcd"), ("",) * 4, "")
    tasks, _ = Episodes(pool, way=3, shot=1, query=2).sample(2, streams.generator(0, "tasks", device=DEVICE))
    compare(algorithm, classification(Conv4((3, 20, 18), 3, filters=16), 3), tasks, monkeypatch, chunk_sizes=(None,))


@pytest.mark.slow
@pytest.mark.parametrize("name", ON_LINES)
def test_meta_gradients_on_lines_equal_those_of_the_plain_path(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    tasks, _ = SineLine().tasks("train", DEVICE).sample(3, streams.generator(0, "tasks", device=DEVICE))
    compare(ON_LINES[name], regression(Mlp((1, 7, 6, 1))), tasks, monkeypatch)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["simpa, no KL", "simpa, moment KL", "simpa, many factors", "simpa, own copies", "simpa, critic"]
)
def test_rounded_matrices_give_nearly_the_same_on_both_paths(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "fewsure.core.devices.LARGE", 500
    )  # the generator's last matrix and the critic's first, not the trunk
    tasks, _ = SineLine().tasks("train", DEVICE).sample(3, streams.generator(0, "tasks", device=DEVICE))
    algorithm = dataclasses.replace(ON_LINES[name], inner_lr=1e-4)  # type: ignore[type-var]  # as in test_precision
    with precision("bf16"):
        compare(algorithm, regression(Mlp((1, 7, 6, 1))), tasks, monkeypatch, tolerance=0.1)


def compare(
    algorithm: Algorithm,
    model: Model,
    tasks: Task,
    monkeypatch: pytest.MonkeyPatch,
    tolerance: float = 1e-4,
    chunk_sizes: tuple[int | None, ...] = (None, 2),
) -> None:
    """Meta-gradients and what is logged, with the kernels, so many tasks at once, and without."""
    init = algorithm.init(model, streams.generator(0, "init"))
    meta = {part: {name: value.to(DEVICE) for name, value in params.items()} for part, params in init.items()}
    count = len(tasks.support.x)
    shared, noise = draw_noise(algorithm.noise(model, 5, 10), count, streams.generator(0, "noise", device=DEVICE))
    arguments = (meta, tasks, shared, noise, Stage(torch.tensor(1000, device=DEVICE), count))  # past the warm-up
    expected, info = Engine(algorithm, model, fuses=False).gradient(*arguments)
    use_kernels(monkeypatch)
    monkeypatch.setattr("fewsure.posteriors.better_looped", lambda network, device: False)
    monkeypatch.setattr("fewsure.kernels.fused_generator.LARGE", 1)
    for chunk_size in chunk_sizes:
        found, found_info = Engine(algorithm, model, chunk_size).gradient(*arguments)
        for part, params in expected.items():
            whole = flatten(params).norm()  # some have a gradient that is zero, but for rounding
            for name, value in params.items():
                difference = float((found[part][name] - value).norm() / whole)
                assert difference < tolerance, f"{part}/{name} differs by {difference} of the whole gradient's norm"
        torch.testing.assert_close(found_info, info, rtol=tolerance / 10, atol=tolerance / 10)


@pytest.mark.parametrize("activation", ["none", "relu", "tanh"])
@pytest.mark.parametrize("shape", [(3, 5, 4, 7), (2, 200, 30, 70), (1, 1, 1, 1)])
def test_a_layer_equals_the_plain_one(shape: tuple[int, ...], activation: Any) -> None:
    groups, rows, inputs, outputs = shape
    source = streams.generator(0, "layer")
    x, weight, bias = (
        torch.randn(size, generator=source).to(DEVICE)
        for size in ((groups, rows, inputs), (groups, inputs, outputs), (groups, outputs))
    )
    for in_dims in ((0, 0, 0), (0, None, None), (None, 0, 0), (0, 0, None)):
        tensors = [tensor if dim == 0 else tensor[0] for tensor, dim in zip((x, weight, bias), in_dims, strict=True)]
        (expected, back), (found, found_back) = (
            torch.func.vjp(torch.func.vmap(partial(layer, activation=activation), in_dims), *tensors)
            for layer in (mlp.layer, fused.layer)
        )
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
        gradient = torch.randn(expected.shape, generator=source).to(DEVICE)
        for one, other in zip(found_back(gradient), back(gradient), strict=True):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)


def test_what_is_no_number_stays_none() -> None:
    images, w = torch.ones(1, 1, 4, 4, 1, device=DEVICE), torch.full((1, 16, 1, 3, 3), torch.nan, device=DEVICE)
    assert bool(kernels.forward(images, w, "ieee")[0].isnan().all())
    x, weight = torch.tensor([[float("nan")], [-1.0], [2.0]]).to(DEVICE), torch.ones(1, 3).to(DEVICE)
    found = fused.layer(x, weight, torch.zeros(3).to(DEVICE), "relu")
    torch.testing.assert_close(found, (x @ weight).relu(), equal_nan=True)


@pytest.mark.parametrize("looked_at", ["fit", "kl"])
def test_an_objective_may_look_at_the_samples_or_at_their_kl_alone(
    looked_at: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    posterior = ImplicitPosterior(Mlp((1, 7, 1)), 3, (6,), "normal", rank=5)
    source = streams.generator(0, "one")
    theta = stack_components([posterior.generator.init(source) for _ in range(2)])
    z = torch.randn(5, 3, generator=source).to(DEVICE)
    start, _ = posterior.generator.start(theta, theta, 0.0, shared=True)
    parameters = {name: value.to(DEVICE) for name, value in start.items()}
    request = SampleRequest(2, KlEstimate(moments=True, prior_std=0.3))

    def objective(parameters: Params) -> Tensor:
        return posterior.see(parameters, {"z": z}, request)[looked_at].square().sum()

    expected = torch.func.grad(objective)(parameters)
    use_kernels(monkeypatch)
    with fused.fused_kernels(allowed=True):
        found = torch.func.grad(objective)(parameters)
    largest = max(float(gradient.abs().max()) for gradient in expected.values())  # small ones are sums of such
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5 * largest)


def test_a_second_derivative_takes_the_plain_path(monkeypatch: pytest.MonkeyPatch) -> None:
    network = Conv4((1, 16, 16), 2, filters=16)
    params = {name: value.to(DEVICE) for name, value in network.init(streams.generator(0, "init")).items()}
    x = torch.rand(2, 1, 16, 16, generator=streams.generator(0, "x")).to(DEVICE)
    use_kernels(monkeypatch)

    def slope(at: dict[str, Tensor]) -> Tensor:
        gradient = torch.func.grad(lambda params: network(params, x).square().sum())(at)
        return sum((value.square().sum() for value in gradient.values()), torch.zeros((), device=DEVICE))

    with fused.fused_kernels(allowed=True), pytest.raises(RuntimeError, match="differentiated once"):
        torch.func.grad(slope)(params)
    with fused.fused_kernels(allowed=False):
        assert all(bool(value.isfinite().all()) for value in torch.func.grad(slope)(params).values())
