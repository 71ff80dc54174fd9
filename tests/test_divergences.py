"""KL estimates against closed forms."""

import pytest
import torch
from torch.distributions import Independent, Normal, kl_divergence

from fewsure.divergences import donsker_varadhan, gaussian_kl, moment_kl, standardise
from fewsure.networks import Mlp

pytestmark = pytest.mark.usefixtures("float64")


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
