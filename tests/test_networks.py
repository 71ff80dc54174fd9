"""The base networks: the paper's weight counts, and derivatives that hold under vectorisation."""

import pytest
import torch
from torch import nn
from torch.nn import functional

from fewsure.algorithms.maml import Maml
from fewsure.algorithms.protonet import ProtoNet
from fewsure.algorithms.simpa import Simpa
from fewsure.core import streams
from fewsure.core.devices import precision
from fewsure.core.vectorise import draw_noise
from fewsure.data.episodes import Episodes
from fewsure.data.pools import Pool
from fewsure.errors import FewsureError
from fewsure.networks.conv4 import Conv4, Conv4Options, Norm
from fewsure.networks.losses import classification
from fewsure.networks.mlp import Mlp, MlpOptions
from fewsure.networks.weights import weight_count
from fewsure.types import Algorithm, Stage

from .helpers import assert_gradient_equals_finite_differences, assert_vectorised_equals_loop

NORMS: tuple[Norm, ...] = ("batch", "support", "instance", "none")


def test_weight_counts_are_the_papers() -> None:
    assert weight_count(Conv4Options().build((3, 84, 84), 5)) == 32_645
    assert weight_count(Conv4Options().build((1, 28, 28), 5)) == 28_229
    assert weight_count(MlpOptions((128, 32)).build((640,), 5)) == 86_341


@pytest.mark.parametrize("strided", [False, True])
@pytest.mark.parametrize("norm", [norm for norm in NORMS if norm != "support"])
def test_conv4_equals_layers_of_torch(norm: Norm, strided: bool) -> None:
    height, width = (31, 35) if strided else (20, 24)  # a stride rounds up
    network = Conv4((3, height, width), outputs=5, filters=6, norm=norm, strided=strided)
    params = network.init(streams.generator(0, "test"))
    kinds = {"batch": nn.BatchNorm2d, "instance": nn.InstanceNorm2d, "none": lambda filters, affine: nn.Identity()}
    blocks = [
        nn.Sequential(
            nn.Conv2d(6 if block else 3, 6, 3, padding=1), kinds[norm](6, affine=False), nn.ReLU(), nn.MaxPool2d(2)
        )
        for block in range(4)
    ]
    for block, layers in enumerate(blocks):
        if strided and not block:
            layers[0], layers[3] = nn.Conv2d(3, 6, 5, stride=2, padding=2), nn.Identity()
        layers[0].weight.data, layers[0].bias.data = params[f"{block}.weight"], params[f"{block}.bias"]
    x = torch.rand(7, 3, height, width, generator=streams.generator(0, "x"))
    with torch.no_grad():
        embedded = nn.Sequential(*blocks, nn.Flatten())(x)
    torch.testing.assert_close(network.embedding(params, x), embedded)
    torch.testing.assert_close(network(params, x), embedded @ params["4.weight"] + params["4.bias"])


def test_a_network_of_sparse_inputs_starts_with_units_of_the_usual_size() -> None:
    x = (torch.rand(500, 2048, generator=streams.generator(0, "x")) < 48 / 2048).float()
    spreads = []
    for active in (48, None):
        network = MlpOptions((512, 8), active_inputs=active).build((2048,), 2)
        params = network.init(streams.generator(0, "test"))
        spreads.append(float((x @ params["0.weight"]).std()))
    assert spreads[0] == pytest.approx(3**-0.5, rel=0.1)
    assert spreads[1] == pytest.approx((48 / 2048 / 3) ** 0.5, rel=0.1)


def test_bf16_rounds_a_large_matrix_that_sees_bits_and_gradients_stay_whole() -> None:
    network = Mlp((2048, 256, 8, 2), active_inputs=40)
    params = network.init(streams.generator(0, "test"))
    x = (torch.rand(30, 2048, generator=streams.generator(0, "x")) < 0.02).float()
    whole = network(params, x)
    for value in params.values():
        value.requires_grad_()
    with precision("bf16"):
        found = network(params, x)
    gradient = torch.autograd.grad(found.square().sum(), list(params.values()))
    assert found.dtype == torch.float32
    assert 0 < float((found - whole).detach().abs().max()) < 0.01 * float(whole.abs().max())
    assert all(one.dtype == torch.float32 and bool(one.any()) for one in gradient)


def test_on_a_cpu_bf16_rounds_convolutions_and_nothing_else() -> None:
    network = Conv4((1, 16, 16), outputs=5, filters=6, norm="none")
    params = network.init(streams.generator(0, "test"))
    x = torch.rand(7, 1, 16, 16, generator=streams.generator(0, "x"))
    exact = network(params, x)
    with precision("bf16"):
        found = network(params, x)
    assert found.dtype == exact.dtype
    assert 0 < float((found - exact).abs().max()) < 0.02 * float(exact.abs().max())


@pytest.mark.parametrize("norm", NORMS)
def test_only_the_batch_norm_lets_a_prediction_depend_on_the_other_inputs(norm: Norm) -> None:
    network = Conv4((1, 16, 16), outputs=3, filters=4, norm=norm).given(torch.rand(5, 1, 16, 16))
    params = network.init(streams.generator(0, "test"))
    x = torch.rand(6, 1, 16, 16, generator=streams.generator(0, "x"))
    alone, among_others = network(params, x[:2]), network(params, x)[:2]
    assert network.transductive == (norm == "batch")
    assert torch.allclose(alone, among_others, atol=1e-5) == (not network.transductive)


def image_batch(algorithm: Algorithm, norm: Norm) -> tuple:
    """Meta-parameters and a meta-batch of random images of 16×16 pixels, 3-way 1-shot, for a small conv4."""
    generator = streams.generator(0, norm)
    examples = torch.randint(256, (24, 1, 16, 16), generator=generator).to(torch.uint8)
    pool = Pool(examples, torch.arange(5) * 6, tuple("abcd"), ("",) * 4, "")
    model = classification(Conv4((1, 16, 16), 3, filters=2, norm=norm), 3)
    tasks, _ = Episodes(pool, way=3, shot=1, query=2).sample(4, generator)
    meta = algorithm.init(model, generator)
    shared, noise = draw_noise(algorithm.noise(model, 5, 10), 4, generator)
    return model, (meta, tasks, shared, noise, Stage(torch.tensor(10**6), 4))


GENERATOR = {"latent": 3, "generator_hidden": (4,), "kl_samples": 4, "train_samples": 2}
ALGORITHMS: dict[str, Algorithm] = {
    "maml, first order": Maml(inner_lr=0.1, inner_steps=2),
    "maml, second order": Maml(inner_lr=0.1, inner_steps=2, first_order=False),
    "simpa, first order": Simpa(inner_lr=0.05, inner_steps=2, first_order=True, **GENERATOR),
    "simpa, second order": Simpa(inner_lr=0.05, inner_steps=2, **GENERATOR),
    "protonet": ProtoNet(),
}


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("name", ALGORITHMS)
def test_conv4_vectorised_equals_loop(name: str, norm: Norm) -> None:
    model, batch = image_batch(ALGORITHMS[name], norm)
    assert_vectorised_equals_loop(ALGORITHMS[name], model, batch)


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("name", [name for name in ALGORITHMS if "first" not in name])
def test_conv4_meta_gradients_equal_finite_differences(name: str, norm: Norm) -> None:
    model, batch = image_batch(ALGORITHMS[name], norm)
    # A network with many kinks is smooth over small steps only, over which differences of a large loss are rounded.
    assert_gradient_equals_finite_differences(ALGORITHMS[name], model, batch, step=1e-7, absolute=1e-6)


def test_images_that_four_poolings_leave_nothing_of_are_refused() -> None:
    with pytest.raises(FewsureError, match=r"16 pixels or more.*12×20"):
        Conv4Options().build((3, 12, 20), 5)


@pytest.mark.usefixtures("float64")
def test_a_scaled_network_starts_as_the_same_function_and_steps_independently_of_its_widths() -> None:
    plain, scaled = Mlp((3, 40, 90, 2)), Mlp((3, 40, 90, 2), scaled=True)
    params, larger = (network.init(streams.generator(0, "scaled")) for network in (plain, scaled))
    x = torch.randn(5, 3, generator=streams.generator(1, "scaled"))
    torch.testing.assert_close(scaled(larger, x), plain(params, x))

    gradient = torch.func.grad(lambda weights: plain(weights, x).sum())(params)
    of_larger = torch.func.grad(lambda weights: scaled(weights, x).sum())(larger)
    for layer, fan_in in enumerate((3, 40, 90)):
        name = f"{layer}.weight"
        torch.testing.assert_close(of_larger[name], gradient[name] / fan_in**0.5)
        torch.testing.assert_close(of_larger[f"{layer}.bias"], gradient[f"{layer}.bias"])


@pytest.mark.usefixtures("float64")
def test_a_centred_network_sees_each_batch_without_its_mean() -> None:
    plain, centred = Mlp((3, 8, 2)), Mlp((3, 8, 2), centred=True)
    params = plain.init(streams.generator(0, "centred"))
    x = torch.randn(5, 3, generator=streams.generator(1, "centred"))
    torch.testing.assert_close(centred(params, x), plain(params, x - x.mean(0)))
    torch.testing.assert_close(centred(params, x + 7), centred(params, x))
    torch.testing.assert_close(centred.embedding(params, x), plain.embedding(params, x - x.mean(0)))
    assert (centred.transductive, centred.embedding.transductive, plain.transductive) == (True, True, False)


@pytest.mark.usefixtures("float64")
def test_the_support_norm_normalises_queries_as_batch_norm_with_the_support_sets_running_statistics() -> None:
    generator = streams.generator(0, "support norm")
    support, query = (torch.rand(number, 1, 16, 16, generator=generator) for number in (5, 7))
    network = Conv4((1, 16, 16), outputs=3, filters=4, norm="support").given(support)
    params = network.init(generator)
    seen, unseen = support, query
    for block in range(4):
        norm = nn.BatchNorm2d(4, affine=False, momentum=1.0)
        maps = [
            functional.conv2d(x, params[f"{block}.weight"], params[f"{block}.bias"], padding=1) for x in (seen, unseen)
        ]
        seen = norm(maps[0])
        variances = maps[0].var((0, 2, 3), correction=0)
        norm.running_var.copy_(variances)  # torch keeps the unbiased one
        seen, unseen = (functional.max_pool2d(x.relu(), 2) for x in (seen, norm.eval()(maps[1])))
    torch.testing.assert_close(network.embedding(params, query), unseen.flatten(1))
    torch.testing.assert_close(network.embedding(params, support), seen.flatten(1))
    torch.testing.assert_close(network(params, query[:1]), network(params, query)[:1])
    assert not network.transductive


def test_a_support_norm_without_its_support_set_is_refused() -> None:
    network = Conv4((1, 16, 16), outputs=3, filters=4, norm="support")
    with pytest.raises(FewsureError, match="to be given the support set"):
        network(network.init(streams.generator(0, "test")), torch.rand(2, 1, 16, 16))


NETWORKS = (Mlp((3, 8, 6, 2)), Conv4((1, 16, 16), outputs=2, filters=4, norm="instance"))


@pytest.mark.parametrize("network", NETWORKS)
def test_a_network_says_what_goes_in_and_how_wide_its_embedding_is(network: Mlp | Conv4) -> None:
    params = network.init(streams.generator(0, "test"))
    embedded = network.embedding(params, torch.rand(5, *network.inputs))
    assert embedded.shape == (5, network.width)
    assert network.maps in (None, network.inputs)


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("network", NETWORKS)
def test_a_modulation_scales_and_shifts_each_hidden_layer(network: Mlp | Conv4) -> None:
    generator = streams.generator(0, "modulation")
    params, x = network.init(generator), torch.rand(5, *network.inputs, generator=generator)
    ones = [(torch.ones(units), torch.zeros(units)) for units in network.modulated]
    torch.testing.assert_close(network(params, x, ones), network(params, x))
    scaled = [(torch.full((network.modulated[0],), 3.0), torch.ones(network.modulated[0])), *ones[1:]]
    assert not torch.allclose(network(params, x, scaled), network(params, x))
    if isinstance(network, Mlp):
        by_hand = params | {"0.weight": 3 * params["0.weight"], "0.bias": 3 * params["0.bias"] + 1}
        torch.testing.assert_close(network(params, x, scaled), network(by_hand, x))
