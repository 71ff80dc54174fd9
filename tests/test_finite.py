"""The finite posterior over heads and numberings: against enumeration, and the lowest of its own objective."""

from itertools import permutations

import pytest
import torch
from torch.distributions import Categorical, kl_divergence

from fewsure.core import streams

from .test_benchmarks import benchmark

SCRIPT = benchmark("omniglot_bound")


@pytest.mark.usefixtures("float64")
def test_errors_under_each_numbering_are_those_of_counting() -> None:
    classes, heads, shot = 3, 4, 2
    generator = streams.generator(0, "cells")
    cells = torch.randint(classes, (heads, classes * shot), generator=generator)
    y = torch.arange(classes).repeat_interleave(shot)[torch.randperm(classes * shot, generator=generator)]
    found = SCRIPT["numbered_errors"](cells, y, classes)
    for column, numbering in enumerate(permutations(range(classes))):
        expected = (cells != torch.tensor(numbering)[y]).double().mean(1)
        torch.testing.assert_close(found[:, column], expected)


@pytest.mark.usefixtures("float64")
def test_the_kl_is_that_to_the_uniform_prior_and_no_other_posterior_has_a_lower_objective() -> None:
    generator = streams.generator(0, "losses")
    losses, strength = torch.rand(5, 6, generator=generator), 7.0
    found = SCRIPT["gibbs_posterior"](losses, strength)
    uniform = Categorical(torch.full((30,), 1 / 30))
    torch.testing.assert_close(found.kl, kl_divergence(Categorical(found.weights.flatten()), uniform))
    lowest = strength * found.mean(losses) + found.kl
    torch.testing.assert_close(lowest, -(-strength * losses).exp().mean().log())  # Donsker and Varadhan
    for _ in range(20):
        nearby = (found.weights.flatten().log() + 0.1 * torch.randn(30, generator=generator)).softmax(0)
        objective = strength * (nearby * losses.flatten()).sum() + kl_divergence(Categorical(nearby), uniform)
        assert float(objective) > float(lowest)
