"""KL estimates against closed forms."""

import math

import pytest
import torch
from torch.distributions import Independent, MultivariateNormal, Normal, kl_divergence

from fewsure.errors import FewsureError
from fewsure.networks.mlp import Mlp
from fewsure.theory.divergences import (
    critic_reading,
    donsker_varadhan,
    gaussian_kl,
    gaussian_reading,
    isotropic_kl,
    moment_kl,
    moment_reading,
    semi_implicit_kl,
    semi_implicit_reading,
    standardise,
)

pytestmark = pytest.mark.usefixtures("float64")


def test_isotropic_kl_equals_the_general_one() -> None:
    mean = torch.randn(12, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    expected = gaussian_kl(mean, 0.3, 0.0, 2.0)
    torch.testing.assert_close(isotropic_kl(mean.square().sum(), len(mean), 0.3, 2.0), expected)


def test_gaussian_kl_equals_torch_distributions() -> None:
    generator = torch.Generator().manual_seed(0)
    mean, prior_mean = torch.randn(2, 9, generator=generator)
    std, prior_std = torch.rand(2, 9, generator=generator) + 0.1
    expected = kl_divergence(Independent(Normal(mean, std), 1), Independent(Normal(prior_mean, prior_std), 1))
    torch.testing.assert_close(gaussian_kl(mean, std.square(), prior_mean, prior_std.square()), expected)


@pytest.mark.parametrize(("samples", "std", "prior_std"), [(8, 1.0, 1.0), (64, 0.05, 1.0), (16, 0.3, 0.2)])
def test_the_corrected_moment_kl_of_a_gaussian_is_unbiased(samples: int, std: float, prior_std: float) -> None:
    weights, repeats = 200, 400
    generator = torch.Generator().manual_seed(samples)
    mean = torch.linspace(-1, 1, weights)
    exact = gaussian_kl(mean, std**2, 0.0, prior_std**2)
    estimates = torch.stack(
        [moment_kl(mean + std * torch.randn(samples, weights, generator=generator), prior_std) for _ in range(repeats)]
    )
    error = estimates.std() / repeats**0.5
    assert abs(float(estimates.mean() - exact)) < 3 * float(error)
    plug_in_bias = weights / (2 * (samples - 1))
    assert plug_in_bias > 3 * float(error), "the test would not see a missing correction"


def test_standardised_samples_have_mean_0_and_variance_1() -> None:
    samples = standardise(3 + 0.01 * torch.randn(50, 4, generator=torch.Generator().manual_seed(0)))
    torch.testing.assert_close(samples.mean(0), torch.zeros(4), atol=1e-12, rtol=0)
    torch.testing.assert_close(samples.var(0), torch.ones(4), atol=1e-4, rtol=0)


def test_a_trained_critic_on_fresh_samples_is_a_tight_lower_bound() -> None:
    mean, std = torch.tensor([0.8, -0.4]), torch.tensor([1.0, 0.7])
    exact = float(gaussian_kl(mean, std.square(), 0.0, 1.0))
    assert exact <= 1
    generator = torch.Generator().manual_seed(0)

    def draw(count: int) -> tuple[torch.Tensor, torch.Tensor]:
        ours, prior = torch.randn(2, count, 2, generator=generator)
        return mean + std * ours, prior

    network = Mlp((2, 32, 32, 1))
    critic = {name: value.requires_grad_() for name, value in network.init(generator).items()}
    optimiser = torch.optim.Adam(critic.values(), lr=3e-3)
    for _ in range(600):
        ours, prior = draw(2048)
        optimiser.zero_grad()
        (-donsker_varadhan(network(critic, ours)[:, 0], network(critic, prior)[:, 0])).backward()
        optimiser.step()
    with torch.no_grad():
        ours, prior = draw(200_000)
        on_ours, on_prior = network(critic, ours)[:, 0], network(critic, prior)[:, 0]
        estimate = float(donsker_varadhan(on_ours, on_prior))
        weights = on_prior.exp() / on_prior.exp().mean()
        error = float((on_ours.var() + weights.var()).sqrt()) / 200_000**0.5
    assert estimate <= exact + 3 * error
    assert estimate >= 0.9 * exact


def test_donsker_varadhan_is_exact_at_the_log_density_ratio() -> None:
    mean = torch.tensor(0.7)
    generator = torch.Generator().manual_seed(0)
    ours, prior = mean + torch.randn(400_000, generator=generator), torch.randn(400_000, generator=generator)
    ratio = lambda w: mean * w - mean**2 / 2  # noqa: E731
    assert float(donsker_varadhan(ratio(ours), ratio(prior))) == pytest.approx(0.7**2 / 2, abs=0.005)


def test_the_semi_implicit_kl_lies_above_the_true_one_and_the_moment_kl_below() -> None:
    """w = Az + s·noise with normal z is N(0, AAᵀ + s²I): the bound exceeds its KL by the mutual information of w, z."""
    generator = torch.Generator().manual_seed(0)
    weights, latent, std, prior_std = 6, 2, 0.3, 0.8
    mixing = 0.4 * torch.randn(weights, latent, generator=generator)
    covariance = mixing @ mixing.T + std**2 * torch.eye(weights)
    prior = MultivariateNormal(torch.zeros(weights), prior_std**2 * torch.eye(weights))
    true = float(kl_divergence(MultivariateNormal(torch.zeros(weights), covariance), prior))
    information = float(torch.logdet(covariance / std**2)) / 2

    z = torch.randn(400_000, latent, generator=generator)
    upper = float(semi_implicit_kl(z @ mixing.T, std, prior_std))
    assert information > 1
    assert upper == pytest.approx(true + information, abs=0.01)
    noise = std * torch.randn(len(z), weights, generator=generator)
    assert 0 < float(moment_kl(z @ mixing.T + noise, prior_std)) < true < upper


def test_the_semi_implicit_kl_of_a_constant_generator_is_exact() -> None:
    mean = torch.linspace(-1, 1, 7)
    exact = gaussian_kl(mean, 0.2**2, 0.0, 0.5**2)
    torch.testing.assert_close(semi_implicit_kl(mean.expand(3, 7), 0.2, 0.5), exact)


def test_the_semi_implicit_reading_fails_no_more_often_than_delta() -> None:
    """G(z) = z, uniform on [0, 1): E‖G(z)‖²/n = 1/3."""
    generator = torch.Generator().manual_seed(0)
    exact = 0.5 * 3 * (0.25 - 1 - math.log(0.25) + 1 / 3)
    readings = [semi_implicit_reading(torch.rand(60, 3, generator=generator), 0.5, 1.0, delta=0.2) for _ in range(600)]
    failures = sum(reading.value < exact for reading in readings) / len(readings)
    assert failures <= 0.2 + 3 * math.sqrt(0.2 * 0.8 / len(readings))
    assert {(reading.worth, reading.failure, reading.is_upper) for reading in readings} == {("upper bound", 0.2, True)}


def test_the_semi_implicit_reading_of_several_tasks_is_that_of_their_mean() -> None:
    means = torch.rand(200, 5, 4, generator=torch.Generator().manual_seed(0))  # 200 draws, 5 tasks
    together = semi_implicit_reading(means, 0.5, 1.0, delta=0.05).value
    plug_in = float(semi_implicit_kl(means, 0.5, 1.0).mean())
    assert plug_in < together < plug_in + 0.1


def test_a_semi_implicit_reading_refuses_what_would_make_it_wrong() -> None:
    fine = torch.zeros(10, 3)
    with pytest.raises(FewsureError, match="infinite"):
        semi_implicit_reading(fine, 0.0, 1.0, delta=0.1)
    with pytest.raises(FewsureError, match="tanh"):
        semi_implicit_reading(fine + 1.5, 0.1, 1.0, delta=0.1)
    with pytest.raises(FewsureError, match="delta"):
        semi_implicit_reading(fine, 0.1, 1.0, delta=0.0)
    with pytest.raises(FewsureError, match="at least 2"):
        semi_implicit_reading(fine[:1], 0.1, 1.0, delta=0.1)


def test_readings_say_what_they_are_worth() -> None:
    assert gaussian_reading(torch.ones(3), 1.0, 1.0) == (1.5, "exact", 0.0, None)
    samples = torch.randn(50, 3, generator=torch.Generator().manual_seed(0))
    assert moment_reading(samples, 1.0).worth == "lower estimate"
    assert not moment_reading(samples, 1.0).is_upper


def test_a_critics_reading_above_the_logarithm_of_its_samples_is_unreliable() -> None:
    sensible = critic_reading(torch.full((512,), 0.3), torch.zeros(512))
    assert (sensible.reliable, sensible.is_upper) == (True, False)
    assert sensible.ceiling == pytest.approx(math.log(512))
    noise = critic_reading(torch.full((512,), 20_000.0), torch.zeros(512))
    assert not noise.reliable
    assert noise.record()["reliable"] is False


def test_moments_of_single_weights_miss_a_posterior_that_knows_all_directions_but_one() -> None:
    """w = v z with |v_j| = 1: each weight is standard normal, and u·w = 0 in every direction u at right angles to v."""
    v = torch.tensor([1.0, -1.0, 1.0, 1.0, -1.0, 1.0])
    u = torch.tensor([1.0, 1.0, 0.0, 0.0, 0.0, 0.0]) / 2**0.5
    w = torch.randn(20_000, 1, generator=torch.Generator().manual_seed(0)) * v
    assert float((w @ u).abs().max()) < 1e-12  # an exact posterior leaves some spread there
    assert abs(float(moment_kl(w, 1.0))) < 0.01  # and no prior with a density has a finite KL to this line
