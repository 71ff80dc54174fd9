"""The kl-inverse against high precision, and upper limits against simulations with known truth."""

import math
from collections.abc import Callable

import mpmath
import pytest
import torch
from torch import Tensor

from fewsure.core import streams
from fewsure.errors import FewsureError
from fewsure.theory.concentration import (
    bernoulli_kl,
    betting_limit,
    chernoff_limit,
    kl_inverse,
    mean_reading,
    upper_limit,
)

pytestmark = pytest.mark.usefixtures("float64")

QS = [0.0, 1e-300, 1e-12, 1e-6, 1e-3, 0.05, 0.3, 0.5, 0.7, 0.95, 0.999, 1 - 1e-9, 1 - 2**-53, 1.0]
CS = [0.0, 1e-14, 1e-9, 1e-5, 1e-3, 0.05, 0.5, 2.0, 10.0, 60.0]


def high_precision_inverse(q: float | mpmath.mpf, c: float | mpmath.mpf) -> mpmath.mpf:
    """By bisection over t = −ln(1 − p), with 40 digits."""
    with mpmath.workdps(40):
        q, c = mpmath.mpf(q), mpmath.mpf(c)
        if q == 1 or c == 0:
            return q
        entropy = -sum(x * mpmath.log(x) for x in (q, 1 - q) if x > 0)
        low, high = -mpmath.log1p(-q), (c + entropy) / (1 - q)
        for _ in range(150):
            t = (low + high) / 2
            inside = q * mpmath.log(q / -mpmath.expm1(-t)) if q > 0 else 0
            too_far = inside + (1 - q) * (mpmath.log(1 - q) + t) > c
            low, high = (low, t) if too_far else (t, high)
        return -mpmath.expm1(-high)


def test_the_kl_inverse_equals_high_precision_on_a_grid_and_rounds_up() -> None:
    grid = torch.cartesian_prod(torch.tensor(QS), torch.tensor(CS))
    found = kl_inverse(grid[:, 0], grid[:, 1])
    for (q, c), p in zip(grid.tolist(), found.tolist(), strict=True):
        exact = high_precision_inverse(q, c)
        assert mpmath.mpf(p) >= exact, f"kl_inverse({q}, {c}) rounds down"
        assert p == pytest.approx(float(exact), rel=1e-12, abs=1e-300)
        assert q <= p <= 1


def test_in_single_precision_the_kl_inverse_rounds_up_too() -> None:
    q, c = torch.rand(2, 2000, generator=torch.Generator().manual_seed(0), dtype=torch.float32)
    found, exact = kl_inverse(q, c), kl_inverse(q.double(), c.double())
    assert found.dtype == torch.float32
    assert bool((found.double() >= exact).all())
    torch.testing.assert_close(found.double(), exact, rtol=2e-7, atol=0)


def test_the_bernoulli_kl_is_0_where_both_are_certain_and_infinite_where_one_is() -> None:
    q, p = torch.tensor([0.0, 1.0, 0.3, 0.0, 1.0, 0.3, 0.3]), torch.tensor([0.0, 1.0, 0.3, 1.0, 0.0, 0.0, 1.0])
    assert bernoulli_kl(q, p).tolist() == [0, 0, 0, math.inf, math.inf, math.inf, math.inf]
    expected = 0.3 * math.log(0.3 / 0.8) + 0.7 * math.log(0.7 / 0.2)
    assert float(bernoulli_kl(torch.tensor(0.3), torch.tensor(0.8))) == pytest.approx(expected, rel=1e-12)


def test_the_kl_inverse_is_monotone_and_concave() -> None:
    q, c = torch.linspace(0, 1, 101), torch.linspace(0, 3, 61)
    values = kl_inverse(q[:, None], c[None, :])
    assert bool((values.diff(dim=0) >= -1e-15).all())
    assert bool((values.diff(dim=1) >= -1e-15).all())
    middle = kl_inverse((q[:-1, None] + q[1:, None]) / 2, (c[None, :-1] + c[None, 1:]) / 2)
    for first, second in ((values[:-1, :-1], values[1:, 1:]), (values[1:, :-1], values[:-1, 1:])):
        assert bool((middle >= (first + second) / 2 - 1e-12).all())


def test_the_gradient_of_the_kl_inverse_equals_finite_differences() -> None:
    q = torch.tensor([0.01, 0.1, 0.5, 0.9, 0.3], requires_grad=True)
    c = torch.tensor([0.3, 0.02, 1.0, 0.1, 1e-3], requires_grad=True)
    assert torch.autograd.gradcheck(kl_inverse, (q, c))
    assert torch.autograd.gradgradcheck(kl_inverse, (q, c))
    by_hand = torch.autograd.grad(kl_inverse(q, c).sum(), (q, c))
    by_vmap = torch.func.vmap(torch.func.grad(kl_inverse, argnums=(0, 1)))(q.detach(), c.detach())
    for ours, theirs in zip(by_hand, by_vmap, strict=True):
        torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize(("q", "c"), [(1e-6, 2.0), (0.1, 0.5), (0.02, 1e-3), (0.7, 1.2), (0.97, 0.3)])
def test_the_gradient_of_the_kl_inverse_equals_high_precision(q: float, c: float) -> None:
    """Differences of 40-digit inverses."""
    step = mpmath.mpf(10) ** -12
    by_q, by_c = torch.func.grad(kl_inverse, argnums=(0, 1))(torch.tensor(q), torch.tensor(c))
    for found, change in ((by_q, (step, 0)), (by_c, (0, step))):
        with mpmath.workdps(40):
            high, low = (high_precision_inverse(q + sign * change[0], c + sign * change[1]) for sign in (1, -1))
            expected = float((high - low) / (2 * step))
        assert float(found) == pytest.approx(expected, rel=1e-8)


def test_the_gradient_of_the_kl_inverse_is_finite_at_the_edges() -> None:
    q = torch.tensor([0.0, 0.0, 0.3, 1.0, 1.0, 0.999], requires_grad=True)
    c = torch.tensor([0.0, 0.5, 0.0, 0.0, 0.5, 100.0], requires_grad=True)
    for gradient in torch.autograd.grad(kl_inverse(q, c).sum(), (q, c)):
        assert bool(gradient.isfinite().all())
        assert bool((gradient >= 0).all())
    at_zero = torch.func.grad(kl_inverse, argnums=1)(torch.tensor(0.0), torch.tensor(0.5))
    assert float(at_zero) == pytest.approx(math.exp(-0.5), rel=1e-9)  # p = 1 − e^−c


def bernoulli(p: float) -> Callable[[torch.Generator, tuple[int, int]], Tensor]:
    return lambda generator, shape: (torch.rand(shape, generator=generator) < p).double()


def beta_2_6(generator: torch.Generator, shape: tuple[int, int]) -> Tensor:
    """The second smallest of 7 uniform numbers, of mean 1/4."""
    return torch.rand((*shape, 7), generator=generator).kthvalue(2, dim=-1).values


def mostly_small(generator: torch.Generator, shape: tuple[int, int]) -> Tensor:
    """Uniform below 0.1 nine times of ten, else above 0.8: of mean 0.9 · 0.05 + 0.1 · 0.9."""
    value, choice = torch.rand((2, *shape), generator=generator)
    return torch.where(choice < 0.9, 0.1 * value, 0.8 + 0.2 * value)


TRUTHS = {
    "rare errors": (bernoulli(0.03), 0.03),
    "coin": (bernoulli(0.5), 0.5),
    "nearly always wrong": (bernoulli(0.97), 0.97),
    "beta": (beta_2_6, 0.25),
    "mixture": (mostly_small, 0.135),
}
REPETITIONS = 3000


@pytest.mark.parametrize("delta", [0.05, 0.2])
@pytest.mark.parametrize("name", TRUTHS)
def test_upper_limits_fail_no_more_often_than_delta(name: str, delta: float) -> None:
    draw, mean = TRUTHS[name]
    values = draw(torch.Generator().manual_seed(7), (REPETITIONS, 80))
    allowed = delta + 3 * math.sqrt(delta * (1 - delta) / REPETITIONS)
    assert float(values.mean()) == pytest.approx(mean, abs=0.01)
    for method in ("chernoff", "betting", "both"):
        failures = float((upper_limit(values, delta, method) < mean).double().mean())
        assert failures <= allowed, f"{method} fails with a rate of {failures}"


def test_betting_is_nearly_as_tight_as_can_be() -> None:
    """For many values √(2 ln(1/δ)·variance/N) is what Chernoff's argument gives where the variance is known."""
    values = beta_2_6(torch.Generator().manual_seed(0), (50, 1000))
    excess = float((betting_limit(values, 0.05) - values.mean(-1)).mean())
    ideal = math.sqrt(2 * math.log(20) * float(values.var()) / 1000)
    assert excess < 1.05 * ideal


@pytest.mark.parametrize("name", TRUTHS)
def test_with_1000_values_every_limit_is_within_0_05_and_below_hoeffding(name: str) -> None:
    values = TRUTHS[name][0](torch.Generator().manual_seed(1), (20, 1000))
    hoeffding = math.sqrt(math.log(20) / 2000)
    for limit in (betting_limit, chernoff_limit):
        excess = limit(values, 0.05) - values.mean(-1)
        assert float(excess.max()) < 0.05
        assert float(excess.mean()) <= hoeffding


def test_limits_of_perfect_and_of_useless_values() -> None:
    perfect, useless = torch.zeros(100), torch.ones(100)
    assert float(chernoff_limit(perfect, 0.05)) == pytest.approx(1 - 0.05 ** (1 / 100), rel=1e-12)
    assert float(chernoff_limit(perfect, 0.05)) < float(betting_limit(perfect, 0.05)) < 0.04
    assert float(chernoff_limit(useless, 0.05)) == float(betting_limit(useless, 0.05)) == 1


def test_the_limit_parts_the_means_that_bets_reject_from_those_they_do_not() -> None:
    """The capital written out bet by bet, at means on both sides of the limit: it rises with the mean."""
    delta, count = 0.1, 40
    values = torch.rand(count, generator=torch.Generator().manual_seed(0)) ** 3
    limit = float(betting_limit(values, delta, seed=3))
    order = torch.randperm(count, generator=streams.generator(3, "betting")).tolist()

    def best_capital(mean: float) -> float:
        capital, best, squares, total = 1.0, 1.0, 0.25, 0.5
        for number, index in enumerate(order, start=1):
            value = float(values[index])
            bet = min(math.sqrt(2 * math.log(1 / delta) / (count * squares / number)), 0.9 / (1 - mean))
            capital *= 1 + bet * (mean - value)
            best = max(best, capital)
            total += value
            squares += (value - total / (number + 1)) ** 2
        return best

    means = torch.linspace(0.01, 0.99, 200).tolist()
    capitals = [best_capital(mean) for mean in means]
    assert capitals == sorted(capitals)
    assert all((capital >= 1 / delta) == (mean >= limit) for mean, capital in zip(means, capitals, strict=True))


def test_a_limit_is_never_below_the_mean_of_its_values() -> None:
    values = torch.rand(500, 30, generator=torch.Generator().manual_seed(0)) ** 3
    for method in ("betting", "chernoff", "both"):
        assert bool((upper_limit(values, 0.5, method) >= values.mean(-1) - 1e-15).all())


def test_both_pays_for_the_choice() -> None:
    values = mostly_small(torch.Generator().manual_seed(0), (1, 200))[0]
    assert float(upper_limit(values, 0.1, "both")) == min(
        float(upper_limit(values, 0.05, "betting")), float(upper_limit(values, 0.05, "chernoff"))
    )


def test_a_mean_reading_is_an_upper_bound_that_says_how_often_it_fails() -> None:
    reading = mean_reading(torch.full((50,), 0.5), 0.01)
    assert (reading.worth, reading.failure, reading.is_upper) == ("upper bound", 0.01, True)


@pytest.mark.parametrize("limit", [betting_limit, chernoff_limit])
def test_bad_input_is_refused(limit: Callable[[Tensor, float], Tensor]) -> None:
    fine = torch.full((10,), 0.5)
    for delta in (0.0, 1.0, -0.1, math.nan):
        with pytest.raises(FewsureError, match=r"`delta` to be a probability in \(0, 1\)"):
            limit(fine, delta)
    for bad in (-0.1, 1.1, math.nan, math.inf):
        with pytest.raises(FewsureError, match=r"in \[0, 1\]"):
            limit(torch.cat([fine, torch.tensor([bad])]), 0.05)
    with pytest.raises(FewsureError, match="at least 2"):
        limit(fine[:1], 0.05)
