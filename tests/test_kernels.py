"""The fused block of conv4 equals the plain one, on a GPU or in Triton's interpreter (`make kernel-test`)."""

import os
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor
from torch.nn import functional

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"
pytest.importorskip("triton", reason="Triton is not installed; `make kernel-test` installs it")

from fewsure import streams
from fewsure.algorithms.maml import Maml
from fewsure.algorithms.protonet import ProtoNet
from fewsure.algorithms.simpa import Simpa
from fewsure.data.episodes import Episodes
from fewsure.data.pools import Pool
from fewsure.divergences import moment_kl
from fewsure.kernels import conv_block as kernels
from fewsure.kernels import fused, generator
from fewsure.models import classification
from fewsure.networks import Conv4
from fewsure.training.engine import Engine
from fewsure.types import Algorithm, Stage
from fewsure.vectorise import draw_noise

from .helpers import assert_close

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


@pytest.fixture(autouse=True)
def full_precision() -> Iterator[None]:
    switches = (torch.backends.cuda.matmul, torch.backends.cudnn)
    before = [switch.allow_tf32 for switch in switches]
    for switch in switches:
        switch.allow_tf32 = False
    yield
    for switch, value in zip(switches, before, strict=True):
        switch.allow_tf32 = value


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
    of_input = channels >= 16
    found_dx, found_dw = kernels.backward(gradient, x, w, *saved, "ieee", of_input=of_input)
    torch.testing.assert_close(found_dw, dw, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(found_dx, dx if of_input else torch.zeros_like(dx), rtol=1e-4, atol=1e-4)


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
    monkeypatch.setattr("fewsure.divergences.fused_kernels_fit", lambda x: True)
    torch.testing.assert_close(of_all(samples), expected, rtol=1e-4, atol=1e-3)
    torch.testing.assert_close(torch.func.grad(of_all)(samples), expected_gradient, rtol=1e-4, atol=1e-4)


SMALL = {"inner_lr": 0.02, "inner_steps": 3, "first_order": True, "latent": 3, "generator_hidden": (6, 40)}
ALGORITHMS: dict[str, Algorithm] = {
    "protonet": ProtoNet(),
    "maml": Maml(inner_lr=0.1, inner_steps=2),
    "simpa": Simpa(**SMALL, kl="none", train_samples=2),  # type: ignore[arg-type]
    "simpa, moment KL": Simpa(**SMALL, kl="moment", kl_samples=5, train_samples=2, sigma_w=0.3),  # type: ignore[arg-type]
    "simpa, many factors": Simpa(**SMALL, kl="moment", kl_samples=9, train_samples=1, inner_clip_norm=0.1),  # type: ignore[arg-type]
}


def fits(x: Tensor) -> bool:
    """As on a GPU, wherever the test runs."""
    return fused._ALLOWED.get()


@pytest.mark.parametrize("name", ALGORITHMS)
def test_meta_gradients_equal_those_of_the_plain_path(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    algorithm, source = ALGORITHMS[name], streams.generator(0, "kernels")
    examples = torch.randint(256, (24, 3, 20, 18), generator=source).to(torch.uint8).to(DEVICE)
    pool = Pool(examples, torch.arange(5).to(DEVICE) * 6, tuple("abcd"), ("",) * 4, "")
    model = classification(Conv4((3, 20, 18), 3, filters=16), 3)
    meta = {
        part: {name: value.to(DEVICE) for name, value in params.items()}
        for part, params in algorithm.init(model, source).items()
    }
    here = streams.generator(0, "tasks", device=DEVICE)
    tasks, _ = Episodes(pool, way=3, shot=1, query=2).sample(3, here)
    shared, noise = draw_noise(algorithm.noise(model), 3, here)
    arguments = (meta, tasks, shared, noise, Stage(torch.tensor(1000, device=DEVICE), 3))  # past the warm-up
    expected, info = Engine(algorithm, model, fuses=False).gradient(*arguments)
    for user in ("networks", "divergences", "posteriors.implicit"):
        monkeypatch.setattr(f"fewsure.{user}.fused_kernels_fit", fits)
    monkeypatch.setattr("fewsure.posteriors.better_looped", lambda network, device: False)
    found, found_info = Engine(algorithm, model).gradient(*arguments)
    assert_close(found, expected, 1e-4)
    torch.testing.assert_close(found_info, info, rtol=1e-5, atol=1e-5)


def test_tanh_keeps_the_digits_of_small_numbers() -> None:
    x = torch.linspace(-9, 9, 4001, device=DEVICE) ** 3 / 81
    x = torch.cat([x, x / 1000])
    fit, _ = generator.squash(x.clone()[None, None], torch.zeros_like(x)[None], None, None, 1, len(x), None, 0.0)
    torch.testing.assert_close(fit[0, 0].double(), x.double().tanh(), rtol=1e-6, atol=0)


def test_a_second_derivative_takes_the_plain_path(monkeypatch: pytest.MonkeyPatch) -> None:
    network = Conv4((1, 16, 16), 2, filters=16)
    params = {name: value.to(DEVICE) for name, value in network.init(streams.generator(0, "init")).items()}
    x = torch.rand(2, 1, 16, 16, generator=streams.generator(0, "x")).to(DEVICE)
    monkeypatch.setattr("fewsure.networks.fused_kernels_fit", fits)

    def slope(at: dict[str, Tensor]) -> Tensor:
        gradient = torch.func.grad(lambda params: network(params, x).square().sum())(at)
        return sum((value.square().sum() for value in gradient.values()), torch.zeros((), device=DEVICE))

    with fused.fused_kernels(allowed=True), pytest.raises(RuntimeError, match="differentiated once"):
        torch.func.grad(slope)(params)
    with fused.fused_kernels(allowed=False):
        assert all(bool(value.isfinite().all()) for value in torch.func.grad(slope)(params).values())
