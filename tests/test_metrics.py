"""Metrics against the paper's own printed tables, scipy and simulation."""

import numpy as np
import pytest
import scipy.stats
import torch

from fewsure.metrics.calibration import LEVELS, calibration_errors, quantile_reliability
from fewsure.metrics.scores import mean_squared_error, mixture_nll
from fewsure.metrics.summary import calibration_intervals, mean_over_tasks

METHODS = ("MAML", "PLATIPUS", "BMAML", "ABML", "SImPa")


@pytest.mark.parametrize("method", METHODS)
def test_errors_of_the_papers_reliability_rows_equal_its_printed_ones(paper: dict, method: str) -> None:
    printed = paper["regression_sine_line_5shot"]
    assert printed["reliability"]["levels"] == pytest.approx(LEVELS)
    ece, mce = calibration_errors(torch.tensor(printed["reliability"][method], dtype=torch.float64))
    assert float(ece) == pytest.approx(printed["ece"][method], abs=5e-5)
    assert float(mce) == pytest.approx(printed["mce"][method], abs=5e-5)


@pytest.mark.parametrize("samples", [1, 2, 10, 32])
def test_reliability_equals_numpy_quantiles_and_scipys_normal_cdf(samples: int) -> None:
    generator = torch.Generator().manual_seed(samples)
    predictions = torch.randn(samples, 17, generator=generator, dtype=torch.float64)
    truth = torch.randn(17, generator=generator, dtype=torch.float64)
    quantiles = np.quantile(predictions.numpy(), LEVELS, axis=0)
    expected = scipy.stats.norm.cdf(quantiles, loc=truth.numpy(), scale=0.3).mean(1)
    np.testing.assert_allclose(quantile_reliability(predictions, truth, 0.3).numpy(), expected, atol=1e-14)


def test_samples_from_the_noise_itself_are_calibrated() -> None:
    generator = torch.Generator().manual_seed(0)
    truth = torch.randn(2000, generator=generator)
    predictions = truth + 0.3 * torch.randn(1000, 2000, generator=generator)
    _, mce = calibration_errors(quantile_reliability(predictions, truth, 0.3))
    assert float(mce) < 0.01


def test_the_mixture_nll_equals_scipy() -> None:
    generator = torch.Generator().manual_seed(0)
    predictions = torch.randn(5, 7, 1, generator=generator, dtype=torch.float64)
    y = torch.randn(7, 1, generator=generator, dtype=torch.float64)
    density = scipy.stats.norm.pdf(y.numpy(), loc=predictions.numpy(), scale=0.3).mean(0)
    assert float(mixture_nll(predictions, y, 0.3)) == pytest.approx(-np.log(density).mean(), rel=1e-12)


def test_the_error_is_that_of_the_mean_prediction() -> None:
    predictions = torch.tensor([[[0.0], [1.0]], [[2.0], [1.0]]])
    assert float(mean_squared_error(predictions, torch.tensor([[1.0], [3.0]]))) == pytest.approx(2.0)


def test_the_interval_of_a_mean_covers_at_its_rate() -> None:
    generator = torch.Generator().manual_seed(0)
    covered = 0
    for _ in range(400):
        interval = mean_over_tasks(torch.randn(100, generator=generator))
        covered += abs(interval["mean"]) <= interval["ci95"]
    assert 0.92 <= covered / 400 <= 0.975


def test_bootstrap_intervals_hold_the_estimate_and_shrink_with_tasks() -> None:
    generator = torch.Generator().manual_seed(0)
    reliability = 0.5 + 0.1 * torch.rand(400, 11, generator=generator)
    ece = float(calibration_errors(reliability.mean(0))[0])
    (low, high), _ = calibration_intervals(reliability)
    assert low <= ece <= high
    (low_few, high_few), _ = calibration_intervals(reliability[:40])
    assert high - low < high_few - low_few
