"""The closed forms of linear-Gaussian models, against the multivariate normal distribution."""

import pytest
import torch
from torch import Tensor
from torch.distributions import MultivariateNormal

from fewsure.algorithms.parts import linear_gaussian as closed_form

pytestmark = pytest.mark.usefixtures("float64")

EXAMPLES, WEIGHTS = 6, 4


def problem() -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Φ, y, μ, s (of which one is 0) and σ."""
    generator = torch.Generator().manual_seed(0)
    features, y, mean = (
        torch.randn(shape, generator=generator) for shape in ((EXAMPLES, WEIGHTS), (EXAMPLES, 1), (WEIGHTS, 1))
    )
    return features, y, mean, torch.tensor([1.0, 0.5, 2.0, 0.0]), torch.tensor(0.3)


def joint() -> tuple[Tensor, Tensor, Tensor]:
    """K, C and the residuals of the same problem in function space."""
    features, y, mean, std, noise_std = problem()
    covariance = features * std.square() @ features.T
    return covariance, covariance + noise_std.square() * torch.eye(EXAMPLES), y - features @ mean


def test_the_evidence_is_the_normal_density_of_the_labels() -> None:
    covariance, of_labels, residual = joint()
    expected = MultivariateNormal(torch.zeros(EXAMPLES), of_labels).log_prob(residual.squeeze(-1))
    torch.testing.assert_close(closed_form.log_evidence(covariance, residual, problem()[-1]), expected)


def test_labels_that_are_not_known_leave_the_evidence_of_the_others() -> None:
    covariance, of_labels, residual = joint()
    known = torch.tensor([True, False, True, True, False, False])
    expected = MultivariateNormal(torch.zeros(3), of_labels[known][:, known]).log_prob(residual[known, 0])
    torch.testing.assert_close(closed_form.log_evidence(covariance, residual, problem()[-1], known), expected)


def test_function_space_weight_space_and_conditioning_by_hand_agree() -> None:
    features, y, mean, std, noise_std = problem()
    covariance, of_labels, residual = joint()
    at = torch.randn(3, WEIGHTS, generator=torch.Generator().manual_seed(1))
    cross, prior = at * std.square() @ features.T, at * std.square() @ at.T
    expected = at @ mean + cross @ torch.linalg.solve(of_labels, residual)
    spread = prior - cross @ torch.linalg.solve(of_labels, cross.T)

    conditioned = closed_form.condition(covariance, residual, noise_std)
    torch.testing.assert_close(at @ mean + closed_form.posterior_mean(conditioned, cross), expected)
    torch.testing.assert_close(closed_form.posterior_covariance(conditioned, cross, prior), spread)
    variance = closed_form.posterior_variance(conditioned, cross, prior.diagonal())
    torch.testing.assert_close(variance.squeeze(-1), spread.diagonal())

    weights = closed_form.condition_weights(features, y, mean, std, noise_std)
    torch.testing.assert_close(at @ weights.mean, expected)
    torch.testing.assert_close(at @ weights.root @ weights.root.T @ at.T, spread)


def test_leaving_one_out_is_conditioning_on_all_others() -> None:
    features, y, mean, std, noise_std = problem()
    covariance, _, residual = joint()
    two = torch.cat([residual, -2 * residual], dim=1)
    found = closed_form.leave_one_out(covariance, two, noise_std)
    for left in range(EXAMPLES):
        others = torch.arange(EXAMPLES) != left
        weights = closed_form.condition_weights(features[others], y[others], mean, std, noise_std)
        expected = features[left] @ (weights.mean - mean)
        torch.testing.assert_close(found[left], torch.stack([expected, -2 * expected]).squeeze(-1))


def test_without_examples_the_posterior_is_the_prior() -> None:
    features, y, mean, std, noise_std = problem()
    weights = closed_form.condition_weights(features[:0], y[:0], mean, std, noise_std)
    torch.testing.assert_close(weights.mean, mean)
    torch.testing.assert_close(weights.root, torch.diag(std))


def test_a_matrix_that_is_not_positive_definite_gives_nan_for_its_task_alone() -> None:
    matrices = torch.stack([torch.eye(2), -torch.eye(2)])
    found = torch.func.vmap(closed_form.cholesky)(matrices)
    torch.testing.assert_close(found[0], torch.eye(2))
    assert bool(found[1].isnan().all())
