"""The implicit posterior: keeping a task's change of the last layer as factors changes no number."""

import dataclasses

import pytest
import torch

from fewsure.bench.cases import DenseSimpa
from fewsure.core import streams
from fewsure.core.vectorise import take
from fewsure.networks.losses import regression
from fewsure.networks.mlp import Mlp
from fewsure.networks.weights import flatten
from fewsure.training.engine import Engine

from .helpers import MODEL, assert_close, meta_batch, small_simpa

SETTINGS = {
    "one sample, one step": {"kl": "none", "inner_steps": 1},
    "one sample, several steps": {"kl": "none", "inner_steps": 4},
    "several samples and steps": {"kl": "none", "inner_steps": 2, "train_samples": 3},
    "moment KL": {"kl": "moment", "inner_steps": 3, "kl_samples": 5, "train_samples": 2},
    "critic": {"kl": "critic", "inner_steps": 2, "kl_samples": 5},
    "semi-implicit": {"kl": "semi-implicit", "weight_noise": 0.1, "inner_steps": 2, "kl_samples": 4},
    "limited gradients": {"kl": "moment", "inner_steps": 3, "kl_samples": 5, "inner_clip_norm": 0.05},
    "no hidden layer": {"kl": "none", "latent": 8, "generator_hidden": ()},
    "scaled": {"kl": "moment", "inner_steps": 3, "kl_samples": 5, "train_samples": 2, "scaled_generator": True},
}


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("first_order", [True, False])
@pytest.mark.parametrize("name", SETTINGS)
def test_low_rank_equals_dense(name: str, first_order: bool) -> None:
    options = {"generator_hidden": (4, 20), "first_order": first_order, "inner_lr": 0.05} | SETTINGS[name]
    low_rank = small_simpa(**options)
    dense = DenseSimpa(**dataclasses.asdict(low_rank))
    assert low_rank.shares_a_layer(MODEL)
    assert not dense.shares_a_layer(MODEL)
    batch = meta_batch(low_rank)
    meta, tasks, shared, noise, _ = batch
    task, own = take(tasks, 0), take(noise, 0)
    found = []
    for algorithm in (low_rank, dense):
        gradient, info = Engine(algorithm, MODEL).gradient(*batch)
        posterior = algorithm.adapt(meta, MODEL, task.support, shared | own)
        prediction_noise = {name: value[0] for name, value in own.items()}
        predicted = algorithm.predict(posterior, MODEL, task.query.x, prediction_noise)
        found.append(gradient | {"info": info, "predictions": {"": predicted}})
    assert_close(*found, 1e-10)


@pytest.mark.parametrize("scaled", [False, True])
def test_a_generator_may_start_around_the_weights_of_the_base_network(scaled: bool) -> None:
    network = Mlp((40, 90, 2))
    model, z = regression(network), torch.rand(50, 3, generator=streams.generator(2, "z"))
    generated = {}
    for initial in ("generator", "network"):
        simpa = small_simpa(initial_weights=initial, scaled_generator=scaled)
        meta = simpa.init(model, streams.generator(0, "init"))
        generated[initial] = simpa.posterior(model).sample(meta["generator"], {"z": z})[0]
    source = streams.generator(0, "init")
    small_simpa().posterior(model).generator.init(source)
    expected = flatten(network.init(source))
    assert float((generated["network"] - expected).square().mean().sqrt()) < 0.05
    spread, plain = (generated[initial].std(0).mean() for initial in ("network", "generator"))
    assert 0.05 < float(spread / plain) < 0.2


def test_a_task_holds_no_copy_of_the_last_layer() -> None:
    simpa = small_simpa(kl="none", generator_hidden=(4, 20), inner_steps=3)
    meta, tasks, shared, noise, _ = meta_batch(simpa)
    adapted = simpa.adapt(meta, MODEL, take(tasks, 0).support, shared | take(noise, 0))["generator"]
    start = meta["generator"]["2.weight"]
    last, columns = adapted["2.weight"], adapted["2.weight"].shape[-1]
    assert columns % 8 == 0
    assert float((last[..., : start.shape[-1]] - start).abs().max()) < 0.01  # θ's noise alone
    assert (adapted["left"].shape, adapted["right"].shape) == ((1, 3, 20), (1, 3, columns))


@pytest.mark.parametrize(
    ("options", "rank"),
    [
        ({"kl": "none", "inner_steps": 5, "train_samples": 1}, 5),
        ({"kl": "moment", "inner_steps": 5, "kl_samples": 4}, 20),
        ({"kl": "none", "inner_steps": 5, "train_samples": 4}, 20),
        ({"kl": "moment", "inner_steps": 4, "kl_samples": 4}, 16),
    ],
)
def test_factors_are_kept_while_their_rank_is_below_the_layers_width(options: dict, rank: int) -> None:
    posterior = small_simpa(generator_hidden=(4, 18), **options).posterior(MODEL)
    assert posterior.rank == rank
    assert posterior.shares_a_layer == (rank < 18)
