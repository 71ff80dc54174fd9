"""PLATIPUS: MAML as the case without noise and γ, its objective term by term, gradients, sampling, classification."""

import pytest
import torch
from torch import Tensor
from torch.distributions import Independent, Normal, kl_divergence

from fewsure.algorithms.maml import Maml
from fewsure.algorithms.platipus import Platipus
from fewsure.core import streams
from fewsure.core.vectorise import draw_per_task, take
from fewsure.errors import FewsureError
from fewsure.networks.weights import flatten, unflatten
from fewsure.training.engine import Engine
from fewsure.types import Batch, Params

from .helpers import (
    MODEL,
    TASKS,
    assert_close,
    meta_batch,
)


def small_platipus(**options: object) -> Platipus:
    settings: dict[str, object] = {"inner_steps": 2, "inner_lr": 0.02, "kl_weight": 0.1}
    settings |= {"prior_std": 0.3, "inference_std": 0.2, "prior_lr": 0.01, "inference_lr": 0.03}
    return Platipus(**(settings | options))  # type: ignore[arg-type]


def loss_gradient(weights: Params, batch: Batch) -> Tensor:
    """∇ of the mean loss at a point, as one vector, by plain autograd."""
    leaves = {key: value.detach().clone().requires_grad_() for key, value in weights.items()}
    MODEL.loss(MODEL.network(leaves, batch.x), batch.y).mean().backward()
    return flatten({key: leaf.grad for key, leaf in leaves.items()})


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("first_order", [True, False], ids=["first", "second"])
def test_without_noise_and_gamma_and_with_equal_variances_it_equals_maml(first_order: bool) -> None:
    maml = Maml(inner_lr=0.02, inner_steps=3, first_order=first_order)
    still = {"prior_lr": 0.0, "inference_lr": 0.0, "prior_std": 0.3, "inference_std": 0.3}
    platipus = Platipus(inner_lr=0.02, inner_steps=3, first_order=first_order, **still)
    meta, tasks, shared, noise, stage = meta_batch(maml)
    random_start = platipus.from_weights(meta["weights"])
    no_noise = {"theta": torch.zeros(TASKS, 16)}

    expected, expected_info = Engine(maml, MODEL).gradient(meta, tasks, shared, noise, stage)
    gradient, info = Engine(platipus, MODEL).gradient(random_start, tasks, shared, no_noise, stage)
    assert_close({"weights": gradient["weights"]}, expected, 1e-14)
    assert float(info["loss"]) == pytest.approx(float(expected_info["loss"]), rel=1e-14)
    assert float(info["kl"]) == pytest.approx(0, abs=1e-14)

    task = take(tasks, 0)
    posteriors = maml.adapt(meta, MODEL, task.support, {}), platipus.adapt(random_start, MODEL, task.support, {})
    predicted = platipus.predict(posteriors[1], MODEL, task.query.x, {"theta": torch.zeros(1, 16)})
    torch.testing.assert_close(predicted, maml.predict(posteriors[0], MODEL, task.query.x, {}), rtol=0, atol=1e-14)


@pytest.mark.usefixtures("float64")
def test_loss_is_the_query_loss_of_maml_from_a_sample_of_q_plus_the_kl_of_torch_distributions() -> None:
    algorithm = small_platipus()
    meta, tasks, _, noise, stage = meta_batch(algorithm)
    task, own = take(tasks, 1), take(noise, 1)
    weights = flatten(meta["weights"])
    q_mean = weights - 0.03 * loss_gradient(meta["weights"], task.query)
    p_mean = weights - 0.01 * loss_gradient(meta["weights"], task.support)
    q = Independent(Normal(q_mean, torch.full_like(weights, 0.2)), 1)
    p = Independent(Normal(p_mean, torch.full_like(weights, 0.3)), 1)

    maml = Maml(inner_lr=0.02, inner_steps=2)
    theta = {"weights": unflatten(MODEL.network, q_mean + 0.2 * own["theta"])}
    query_loss, _ = maml.loss(theta, MODEL, task, {}, stage)

    objective, info = algorithm.loss(meta, MODEL, task, own, stage)
    assert float(info["kl"]) == pytest.approx(float(kl_divergence(q, p)), rel=1e-12)
    assert float(info["loss"]) == pytest.approx(float(query_loss), rel=1e-12)
    assert float(objective) == pytest.approx(float(query_loss + 0.1 * kl_divergence(q, p)), rel=1e-12)


@pytest.mark.usefixtures("float64")
def test_each_predicted_function_is_maml_from_its_own_initialisation() -> None:
    algorithm = small_platipus()
    meta, tasks, *_ = meta_batch(algorithm)
    task = take(tasks, 0)
    draws = draw_per_task(algorithm.prediction_noise(MODEL, 5, 5), 1, streams.generator(0, "prediction"))
    noise = take(draws, 0)
    predictions = algorithm.predict(algorithm.adapt(meta, MODEL, task.support, {}), MODEL, task.query.x, noise)

    mean = flatten(meta["weights"]) - 0.01 * loss_gradient(meta["weights"], task.support)
    maml = Maml(inner_lr=0.02, inner_steps=2)
    for sample in range(5):
        start = {"weights": unflatten(MODEL.network, mean + 0.3 * noise["theta"][sample])}
        expected = maml.predict(maml.adapt(start, MODEL, task.support, {}), MODEL, task.query.x, {})
        torch.testing.assert_close(predictions[sample : sample + 1], expected, rtol=0, atol=1e-13)


def test_a_run_of_maml_gives_the_mean_of_the_initialisations() -> None:
    algorithm = small_platipus()
    weights = MODEL.network.init(streams.generator(3, "maml"))
    start = algorithm.from_weights(weights)
    fresh = algorithm.init(MODEL, streams.generator(3, "maml"))
    assert_close(start, fresh, 0)
    assert_close({"weights": start["weights"]}, {"weights": weights}, 0)
    for key, value in start["weights"].items():
        assert value.data_ptr() != weights[key].data_ptr(), "training would change the MAML run's own weights"


WRONG = [{"inner_lr": 0.0}, {"inner_steps": 0}, {"prior_std": 0.0}, {"kl_weight": -1.0}, {"prior_lr": -1.0}]


@pytest.mark.parametrize("options", WRONG, ids=str)
def test_a_wrong_option_is_named(options: dict[str, float]) -> None:
    with pytest.raises(FewsureError, match=f"expected `{next(iter(options))}` to be"):
        Platipus(**options)  # type: ignore[arg-type]
