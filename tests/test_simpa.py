"""SImPa: what is shared, what sends gradients where, and each clip and KL option."""

from pathlib import Path
from typing import Any

import pytest
import torch

from fewsure.cli.main import main
from fewsure.core.vectorise import take
from fewsure.errors import FewsureError
from fewsure.networks.losses import bounded_cross_entropy, bounded_squared_error
from fewsure.networks.mlp import Mlp
from fewsure.networks.weights import weight_count
from fewsure.posteriors.mixture import lagging_components
from fewsure.theory.divergences import gaussian_kl
from fewsure.training.engine import Engine
from fewsure.training.experiment import load_preset
from fewsure.types import Params, Parts, Stage

from .helpers import (
    MODEL,
    TASKS,
    assert_close,
    assert_gradient_equals_finite_differences,
    assert_vectorised_equals_loop,
    inner_product,
    meta_batch,
    random_direction,
    slope,
    small_simpa,
)


def largest(params: Params) -> float:
    return max(float(value.abs().max()) for value in params.values())


def test_the_generator_and_critic_have_the_papers_sizes() -> None:
    experiment = load_preset("paper", "simpa", "sine-line")
    algorithm, model = experiment.algorithm, experiment.model
    assert weight_count(model.network) == 1761
    assert algorithm.posterior(model).generator.sizes == (128, 256, 512, 1761)
    assert algorithm.kl_estimate(model).critic.sizes == (1761, 512, 256, 128, 1)


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("kl", ["critic", "moment+critic"])
def test_the_critics_objective_sends_no_gradient_into_the_generator_nor_the_bound_into_the_critic(kl: str) -> None:
    algorithm = small_simpa(kl=kl, first_order=False)
    meta, *rest = meta_batch(algorithm)
    engine = Engine(algorithm, MODEL)

    def bound_alone(at: Parts) -> torch.Tensor:
        loss, info = engine.loss(at, *rest)
        return loss + info["critic"]  # what ω₀ ascends is taken out again

    def estimate_alone(at: Parts) -> torch.Tensor:
        return engine.loss(at, *rest)[1]["critic"]

    both, _ = engine.gradient(meta, *rest)
    bound, estimate = torch.func.grad(bound_alone)(meta), torch.func.grad(estimate_alone)(meta)
    assert largest(bound["critic"]) == largest(estimate["generator"]) == 0
    assert_close({"generator": both["generator"]}, {"generator": bound["generator"]}, 1e-13)
    assert_close({"critic": both["critic"]}, {"critic": {k: -v for k, v in estimate["critic"].items()}}, 1e-13)
    assert largest(both["critic"]) > 0


@pytest.mark.usefixtures("float64")
def test_the_critics_meta_gradient_is_an_ascent_that_equals_finite_differences() -> None:
    algorithm = small_simpa(kl="critic", first_order=False, inner_lr=1e-15)  # the generator stands still
    meta, *rest = meta_batch(algorithm)
    engine = Engine(algorithm, MODEL)
    gradient, _ = engine.gradient(meta, *rest)
    direction = random_direction({"critic": meta["critic"]})
    estimate = slope(lambda at: engine.loss(meta | at, *rest)[1]["critic"], {"critic": meta["critic"]}, direction)
    assert -inner_product({"critic": gradient["critic"]}, direction) == pytest.approx(estimate, rel=1e-6)


@pytest.mark.usefixtures("float64")
def test_theta_is_drawn_once_per_meta_batch_with_variance_sigma_0() -> None:
    algorithm = small_simpa(sigma_0=0.25, inner_lr=1e-15)
    meta, tasks, shared, noise, _ = meta_batch(algorithm)
    first, second = (algorithm.adapt(meta, MODEL, take(tasks, i).support, shared | take(noise, i)) for i in range(2))
    assert_close(first, second, 1e-13)
    shift = torch.cat([(first["generator"][key] - value).flatten() for key, value in meta["generator"].items()])
    torch.testing.assert_close(shift, 0.5 * shared["theta"][0], rtol=0, atol=1e-13)


def test_the_regularisers_join_after_the_warm_up() -> None:
    algorithm = small_simpa(warm_up_tasks=40)
    meta, tasks, shared, noise, _ = meta_batch(algorithm)
    engine = Engine(algorithm, MODEL)
    for update, regularised in ((0, False), (9, False), (10, True)):
        loss, info = engine.loss(meta, tasks, shared, noise, Stage(torch.tensor(update), TASKS))
        expected = info["loss"] + (info["R_i"] + info["R_0"] if regularised else 0)
        torch.testing.assert_close(loss, expected)


def test_the_hard_clip_has_no_gradient_above_1() -> None:
    algorithm = small_simpa(clip="hard", kl="none", sigma_theta=1e9)
    meta, tasks, shared, noise, stage = meta_batch(algorithm)
    far = tasks._replace(query=tasks.query._replace(y=tasks.query.y + 100))
    gradient, info = Engine(algorithm, MODEL).gradient(meta, far, shared, noise, stage)
    assert float(info["loss"]) == 1
    assert largest(gradient["generator"]) < 1e-8
    unclipped, info = Engine(small_simpa(clip="none", kl="none"), MODEL).gradient(meta, far, shared, noise, stage)
    assert float(info["loss"]) > 100
    assert float(info["clipped_loss"]) == 1
    assert largest(unclipped["generator"]) > 1e-2


@pytest.mark.usefixtures("float64")
def test_bounded_losses_stay_in_0_1_and_have_a_gradient_everywhere() -> None:
    output = torch.tensor([[-300.0], [-1.0], [0.5], [1e4]], requires_grad=True)
    loss = bounded_squared_error(output, torch.zeros(4, 1))
    loss.sum().backward()
    assert bool(((loss >= 0) & (loss <= 1)).all())
    assert bool((output.grad != 0).all())

    logits = torch.tensor([[0.0, 20.0, 1.0], [3.0, 0.0, 0.0], [-1.0, -2.0, 8.0]], requires_grad=True)
    loss = bounded_cross_entropy(logits, torch.tensor([0, 0, 2]))
    loss.sum().backward()
    assert bool(((loss >= 0) & (loss <= 1)).all())
    assert bool((logits.grad != 0).all())
    extreme = bounded_cross_entropy(torch.tensor([[0.0, 1000.0], [1000.0, 0.0]]), torch.tensor([0, 0]))
    torch.testing.assert_close(
        extreme, torch.tensor([1.0, -torch.log(torch.tensor(0.999)) / torch.log(torch.tensor(1e3))])
    )


@pytest.mark.parametrize("latent_noise", ["uniform", "normal"])
def test_latent_noise_is_of_the_chosen_kind(latent_noise: str) -> None:
    noise = meta_batch(small_simpa(latent_noise=latent_noise, kl_samples=500))[3]["z"]
    if latent_noise == "uniform":
        assert 0 <= float(noise.min()) < 0.01 < 0.99 < float(noise.max()) < 1
    else:
        assert (float(noise.mean()), float(noise.std())) == pytest.approx((0, 1), abs=0.02)


def test_weights_stay_inside_the_tanh() -> None:
    generator = Mlp((3, 4, 6), last="tanh")
    params = {name: 100 * value for name, value in generator.init(torch.Generator().manual_seed(0)).items()}
    assert float(generator(params, torch.rand(50, 3)).abs().max()) <= 1


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"kl": "semi-implicit"}, "`weight_noise` to be above 0"),
        ({"weight_noise": -0.1}, "`weight_noise` to be a number of at least 0"),
        ({"inner_clip_norm": 0.0}, "expected `inner_clip_norm`"),
    ],
)
def test_options_that_make_no_sense_are_refused(options: dict[str, Any], error: str) -> None:
    with pytest.raises(FewsureError, match=error):
        small_simpa(**options)


def test_without_weight_noise_nothing_else_is_drawn() -> None:
    implicit, noisy = small_simpa(), small_simpa(weight_noise=0.1)
    assert list(implicit.noise(MODEL, 5, 10).task) == list(implicit.prediction_noise(MODEL, 3, 5)) == ["z"]
    assert list(noisy.noise(MODEL, 5, 10).task) == list(noisy.prediction_noise(MODEL, 3, 5)) == ["z", "weights"]


@pytest.mark.usefixtures("float64")
def test_weight_noise_has_its_standard_deviation() -> None:
    algorithm = small_simpa(weight_noise=0.3)
    noise = {"weights": torch.randn(4000, 16, generator=torch.Generator().manual_seed(0))}
    samples = algorithm.posterior(MODEL).perturb(torch.zeros(1, 4000, 16), noise)
    assert float(samples.std()) == pytest.approx(0.3, rel=0.01)
    meta = algorithm.init(MODEL, torch.Generator().manual_seed(0))
    x, z = torch.linspace(-1, 1, 5).unsqueeze(-1), torch.rand(3, 3)
    still = {"z": z, "weights": torch.zeros(3, weight_count(MODEL.network))}
    same = small_simpa().predict(meta, MODEL, x, {"z": z})
    torch.testing.assert_close(algorithm.predict(meta, MODEL, x, still), same)
    moved = still | {"weights": torch.ones(3, weight_count(MODEL.network))}
    assert float((algorithm.predict(meta, MODEL, x, moved) - same).abs().min()) > 0


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize(
    "options",
    [
        *({"kl": kl, "weight_noise": 0.2} for kl in ("semi-implicit", "moment", "critic")),
        {"weight_noise": 0.2, "components": 2},
    ],
    ids=str,
)
def test_it_trains_alike_vectorised_looped_and_by_finite_differences(options: dict[str, Any]) -> None:
    algorithm = small_simpa(**options, first_order=False, train_samples=2)
    batch = meta_batch(algorithm)
    assert_vectorised_equals_loop(algorithm, MODEL, batch)
    if algorithm.kl != "critic":  # whose loss is not one objective
        assert_gradient_equals_finite_differences(algorithm, MODEL, batch)


@pytest.mark.usefixtures("float64")
def test_the_semi_implicit_kl_is_the_closed_form_at_the_adapted_generator() -> None:
    algorithm = small_simpa(kl="semi-implicit", weight_noise=0.2, sigma_w=0.7)
    meta, tasks, shared, noise, stage = meta_batch(algorithm)
    one = take(tasks, 0)
    every = shared | take(noise, 0)
    adapted = algorithm.adapt(meta, MODEL, one.support, every)
    (means,) = algorithm.posterior(MODEL).sample(adapted["generator"], {"z": every["z"][-1]})
    expected = torch.stack([gaussian_kl(mean, 0.2**2, 0.0, 0.7**2) for mean in means]).mean()
    torch.testing.assert_close(algorithm.loss(meta, MODEL, one, every, stage)[1]["kl"], expected)


# Mixtures


def component(parts: Parts, number: int) -> Parts:
    return {
        part: {name: value[number : number + 1] for name, value in params.items()} for part, params in parts.items()
    }


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize(
    "options",
    [
        {"kl": "none"},
        {"kl": "none", "inner_clip_norm": 0.01, "train_samples": 3},
        {"kl": "moment+critic"},
        {"kl": "semi-implicit", "weight_noise": 0.1},
        {"kl": "moment", "weight_noise": 0.1, "first_order": False},
    ],
    ids=str,
)
def test_the_loss_of_a_mixture_is_the_mean_of_its_components_and_each_has_its_own_gradient(
    options: dict[str, Any],
) -> None:
    mixture, single = (small_simpa(**options, components=count) for count in (3, 1))
    meta, tasks, shared, noise, stage = meta_batch(mixture)
    gradient, info = Engine(mixture, MODEL).gradient(meta, tasks, shared, noise, stage)
    total = 0.0
    for number in range(3):
        own = shared | {"theta": shared["theta"][number : number + 1]}
        alone, terms = Engine(single, MODEL).gradient(component(meta, number), tasks, own, noise, stage)
        thirds = {part: {name: value / 3 for name, value in params.items()} for part, params in alone.items()}
        assert_close(component(gradient, number), thirds, 1e-12)
        total += float(terms["loss"]) / 3
        assert float(info[f"loss.{number + 1}"]) == pytest.approx(float(terms["loss"]), rel=1e-12)
    assert float(info["loss"]) == pytest.approx(total, rel=1e-12)


@pytest.mark.usefixtures("float64")
def test_each_component_of_a_mixture_adapts_by_itself_and_predicts_with_an_equal_share_of_networks() -> None:
    mixture, single = (small_simpa(kl="none", components=count) for count in (2, 1))
    meta, tasks, shared, noise, _ = meta_batch(mixture)
    support, own = take(tasks, 0).support, take(noise, 0)
    assert mixture.prediction_noise(MODEL, 5, 5)["z"].shape == (2, 3, 3)  # 6 networks where 5 are asked for
    x, z = torch.linspace(-1, 1, 5).unsqueeze(-1), torch.rand(2, 3, 3)
    adapted = mixture.adapt(meta, MODEL, support, shared | own)
    expected = []
    for number in range(2):
        theta = {"theta": shared["theta"][number : number + 1]}
        alone = single.adapt(component(meta, number), MODEL, support, own | theta)
        assert_close(component(adapted, number), alone, 1e-15)
        expected.append(single.predict(alone, MODEL, x, {"z": z[number]}))
    torch.testing.assert_close(mixture.predict(adapted, MODEL, x, {"z": z}), torch.cat(expected), rtol=0, atol=1e-15)
    first, second = mixture.init(MODEL, torch.Generator().manual_seed(0))["generator"]["0.weight"]
    assert not torch.equal(first, second)


def test_components_with_twice_the_loss_of_the_best_at_the_end_have_learned_badly() -> None:
    early = [{"loss": 1.0, "loss.1": 1.9, "loss.2": 0.1, "loss.3": 1.0}] * 18
    late = [
        {"loss": 0.1, "loss.1": 0.1, "loss.2": 0.21, "loss.3": 0.15},
        {"loss.1": 0.1, "loss.2": 0.19, "loss.3": 0.26},
    ]
    assert lagging_components(early + late) == [3]  # 0.205 of 0.1 twice: the last tenth is two lines
    assert lagging_components(early + late[:1]) == [2]
    assert lagging_components([{"loss": 0.1}]) == lagging_components([]) == []  # one generator, or none that learned


def test_a_mixture_whose_generators_learn_unlike_says_so_at_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["train", "simpa", "--preset", "quickstart", "--updates", "2", "--tasks", "2", "--components", "2"]
    command += ["--device", "cpu"]
    assert main([*command, "--out", str(tmp_path / "alike")]) == 0
    assert "generators whose loss" not in capsys.readouterr().err
    monkeypatch.setattr("fewsure.cli.train.lagging_components", lambda log: [2] if "loss.2" in log[-1] else [])
    assert main([*command, "--out", str(tmp_path / "unlike")]) == 0
    said = capsys.readouterr().err
    assert (
        "generators whose loss ended at more than 2 times that of the best: 2; a larger --inner-lr or a lower" in said
    )
