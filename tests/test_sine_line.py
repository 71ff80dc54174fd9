"""The task distribution of section 5.1."""

import math

import pytest
import scipy.stats
import torch

from fewsure.core import streams
from fewsure.data.sets.sine_line import SineLine
from fewsure.errors import FewsureError
from fewsure.types import Batch


def test_parameters_have_the_papers_distributions() -> None:
    functions = SineLine().functions(5000, streams.generator(0, "test"))
    assert float(functions.is_sine.double().mean()) == pytest.approx(0.5, abs=0.03)
    limits = {"amplitude": (0.1, 5), "phase": (0, math.pi), "slope": (-3, 3), "intercept": (-3, 3)}
    for name, (low, high) in limits.items():
        values = getattr(functions, name).flatten().numpy()
        assert scipy.stats.kstest(values, scipy.stats.uniform(low, high - low).cdf).pvalue > 1e-3, name


def test_tasks_have_the_papers_shapes_inputs_and_noise() -> None:
    data = SineLine()
    task, facts = data.sample(3000, streams.generator(0, "test"))
    functions = data.functions(3000, streams.generator(0, "test"))
    assert task.support.x.shape == task.support.y.shape == (3000, 5, 1)
    assert task.query.x.shape == task.query.y.shape == (3000, 50, 1)
    x = task.query.x.flatten().numpy()[:5000]
    assert scipy.stats.kstest(x, scipy.stats.uniform(-5, 10).cdf).pvalue > 1e-3
    residual = task.query.y - functions(task.query.x.squeeze(-1)).unsqueeze(-1)
    assert float(residual.std()) == pytest.approx(0.3, rel=0.01)
    assert facts["grid"][0, ::10].flatten().tolist() == pytest.approx(list(range(-5, 6)), abs=1e-6)
    torch.testing.assert_close(facts["truth"].squeeze(-1), functions(facts["grid"].squeeze(-1)))


def test_a_sinusoid_and_a_line_have_the_values_of_their_formulas() -> None:
    functions = (
        SineLine()
        .functions(2, streams.generator(0, "test"))
        ._replace(
            is_sine=torch.tensor([[True], [False]]),
            amplitude=torch.full((2, 1), 2.0),
            phase=torch.full((2, 1), 0.5),
            slope=torch.full((2, 1), -1.5),
            intercept=torch.full((2, 1), 0.25),
        )
    )
    values = functions(torch.tensor([[1.0], [1.0]]))
    assert values.flatten().tolist() == pytest.approx([2 * math.sin(1.5), -1.25])


@pytest.mark.parametrize(
    "options", [{"shot": 0}, {"query": 0}, {"noise_std": -1.0}, {"x_range": (1.0, -1.0)}, {"sine_share": math.nan}]
)
def test_impossible_options_are_refused_by_name(options: dict) -> None:
    with pytest.raises(FewsureError, match=next(iter(options))):
        SineLine(**options)


def test_exact_functions_are_those_of_bayes_rule_where_it_has_a_closed_form() -> None:
    """Lines in a box that the support set leaves far behind: a Gaussian of intercept and slope."""
    data = SineLine(sine_share=0.0, slope=(-2.0, 2.0), intercept=(-2.0, 2.0))
    x, y = torch.tensor([[-4.0], [-1.0], [2.0], [4.5]]), torch.tensor([[1.0], [0.7], [-0.3], [-0.8]])
    at = torch.tensor([[-5.0], [0.0], [5.0]])
    found = data.exact_functions(Batch(x, y), at, 20_000, torch.Generator().manual_seed(0)).squeeze(-1)
    points, targets = (torch.cat([torch.ones_like(one), one], 1) for one in (x, at))
    covariance = torch.linalg.inv(points.T @ points / data.noise_std**2)
    mean = targets @ covariance @ points.T @ y / data.noise_std**2
    std = (targets @ covariance @ targets.T).diagonal().sqrt()
    torch.testing.assert_close(found.mean(0), mean.squeeze(-1), atol=0.03, rtol=0)
    torch.testing.assert_close(found.std(0), std, atol=0.02, rtol=0.03)
