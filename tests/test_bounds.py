"""Theorems 1 and 2 against values computed by hand, against a simulation, and with what they are worth."""

import itertools
import math

import pytest
import torch

from fewsure.errors import FewsureError
from fewsure.theory.concentration import Reading, bernoulli_kl, kl_inverse
from fewsure.theory.divergences import gaussian_reading
from fewsure.theory.pac_bayes import Bound, bound_new_task, bound_one_task, theorem_1, theorem_2

ZERO = torch.tensor(0.0, dtype=torch.float64)


WITHIN, ACROSS = 9.261635, 8.294050  # ln(50 · 400/1.9) and ln(400/0.1)
BY_HAND = {
    # (ln 50)/0.1 = 39.12023, ln(50/0.1) = 6.214608
    "Theorem 1, paper form": ((0.25, 10), [0.25, math.sqrt(49.12023 / 98)]),
    "Theorem 1, log form": ((0.25, 10), [0.25, math.sqrt(16.214608 / 98)]),
    # 1 − e^−c with c = (3 + ln(2√50/0.1))/50 = (3 + 4.951744)/50
    "Theorem 1, kl form": ((0, 3), [0, 1 - math.exp(-0.15903487)]),
    # √(400/1.9 · ln 50 / 98) and √(200 · ln 20 / 38)
    "Theorem 2, paper form": ((0, 0, 0), [0, 2.898950, 3.970770]),
    "Theorem 2, log form": ((0, 0, 0), [0, math.sqrt(WITHIN / 98), math.sqrt(ACROSS / 38)]),
    "Theorem 2, log form with KLs": ((0.5, 98, 38), [0.5, math.sqrt(1 + WITHIN / 98), math.sqrt(1 + ACROSS / 38)]),
}


@pytest.mark.parametrize("name", BY_HAND)
def test_both_theorems_have_the_hand_computed_values(name: str) -> None:
    """m = 50, T = 20, ε = 0.1; the loss and the KLs, each under its own root."""
    given, expected = BY_HAND[name]
    numbers, form = [ZERO + number for number in given], name.split()[2]
    if len(given) == 2:
        found = theorem_1(*numbers, examples=50, epsilon=0.1, form=form)
    else:
        found = theorem_2(*numbers, examples=50, tasks=20, epsilon=0.1, form=form)
    assert [float(term) for term in found] == pytest.approx(expected, abs=1e-6)
    assert float(found.total) == pytest.approx(sum(expected), abs=2e-6)


def test_the_log_form_is_never_larger() -> None:
    for examples, tasks, epsilon in itertools.product((2, 5, 50, 5000), (2, 20, 2000), (0.01, 0.1, 1.0)):
        settings = {"examples": examples, "tasks": tasks, "epsilon": epsilon}
        paper, log = (theorem_2(ZERO, ZERO, ZERO, **settings, form=form) for form in ("paper", "log"))
        assert float(log.total) <= float(paper.total) + 1e-12


def test_a_negative_estimate_of_a_kl_counts_as_zero() -> None:
    negative, zero = (theorem_1(ZERO, ZERO + kl, examples=5, epsilon=0.1, form="paper") for kl in (-12_000, 0))
    assert negative == zero


@pytest.mark.parametrize(
    ("name", "value"), [("epsilon", 0.0), ("epsilon", -0.1), ("epsilon", 1.5), ("epsilon", math.nan), ("examples", 1)]
)
def test_a_confidence_outside_0_1_and_one_example_or_task_are_refused(name: str, value: float) -> None:
    settings = {"examples": 5, "epsilon": 0.1, "form": "paper"} | {name: value}
    with pytest.raises(FewsureError, match=name):
        theorem_1(ZERO, ZERO, **settings)
    with pytest.raises(FewsureError, match="tasks"):
        theorem_2(ZERO, ZERO, ZERO, examples=5, tasks=1, epsilon=0.1, form="paper")


def test_the_kl_form_inverts_each_level_in_turn() -> None:
    """From a loss of 0 the first is in closed form."""
    within = (3 + math.log(2 * math.sqrt(50) * 400 / (19 * 0.1))) / 50
    across = (5 + math.log(2 * math.sqrt(20) * 20 / 0.1)) / 20
    two = theorem_2(ZERO, ZERO + 3, ZERO + 5, examples=50, tasks=20, epsilon=0.1, form="kl")
    assert float(two.loss + two.within_task) == pytest.approx(1 - math.exp(-within), abs=1e-12)
    assert float(two.total) == pytest.approx(float(kl_inverse(ZERO + 1 - math.exp(-within), ZERO + across)), abs=1e-12)


def test_the_kl_form_is_never_larger_than_the_log_form_and_never_above_1() -> None:
    for loss, kl, examples in itertools.product((0.0, 0.02, 0.3, 0.9, 1.0), (0.0, 5.0, 100.0, 1e6), (8, 50, 5000)):
        settings = {"examples": examples, "epsilon": 0.05}
        tight = float(theorem_1(ZERO + loss, ZERO + kl, **settings, form="kl").total)
        assert tight <= float(theorem_1(ZERO + loss, ZERO + kl, **settings, form="log").total)
        assert loss <= tight <= 1


def test_maurers_moment_is_at_most_2_root_m() -> None:
    """E e^{m kl(p̂ ‖ p)} of m coins, Σ_k C(m, k) (k/m)^k (1 − k/m)^(m−k) for every p, on which the kl form rests."""
    for m in range(1, 400):
        moment = sum(math.comb(m, k) * (k / m) ** k * (1 - k / m) ** (m - k) for k in range(m + 1))
        assert math.sqrt(m) <= moment <= 2 * math.sqrt(m)


def test_of_balanced_sets_the_moment_is_at_most_that_of_a_binomial() -> None:
    """m losses of different means, each 0, 1/2 or 1; then coins of their means; then coins of the mean of means."""
    generator = torch.Generator().manual_seed(0)

    def moment(halves: list[torch.Tensor]) -> float:
        """E e^{m kl(p̂ ‖ p)} from the probabilities of 0, 1/2 and 1 of each loss: the exact law of their sum."""
        law = torch.ones(1, dtype=torch.float64)
        for one in halves:
            law = torch.nn.functional.conv1d(law.view(1, 1, -1), one.flip(0).view(1, 1, -1), padding=2).flatten()
        m, values = len(halves), torch.linspace(0, 1, len(law), dtype=torch.float64)
        mean = (law * values).sum()
        return float((law * (m * bernoulli_kl(values, mean.expand_as(values))).exp()).sum())

    for m in (2, 5, 25):
        losses = torch.rand(m, 3, generator=generator, dtype=torch.float64) ** 3
        losses = losses / losses.sum(1, keepdim=True)
        means = losses @ torch.tensor([0, 0.5, 1.0], dtype=torch.float64)
        coins = torch.stack([1 - means, 0 * means, means], 1)
        same = coins.mean(0).expand(m, 3)
        each = [moment([*law]) for law in (losses, coins, same)]
        assert each == sorted(each)
        assert each[-1] <= 2 * math.sqrt(m)


@pytest.mark.parametrize("form", ["paper", "log", "kl"])
def test_theorem_1_fails_no_more_often_than_epsilon_for_a_posterior_that_has_seen_the_examples(form: str) -> None:
    """Ten predictors that err with known rates; q favours those that err least on the examples."""
    repetitions, examples, epsilon = 3000, 20, 0.2
    rates = torch.linspace(0.3, 0.6, 10, dtype=torch.float64)
    generator = torch.Generator().manual_seed(0)
    errors = torch.rand(repetitions, examples, 10, generator=generator, dtype=torch.float64) < rates
    empirical = errors.double().mean(1)
    posterior = (-60 * empirical).softmax(-1)
    kl = torch.xlogy(posterior, 10 * posterior).sum(-1)

    def total(loss: torch.Tensor, kl: torch.Tensor) -> torch.Tensor:
        return theorem_1(loss, kl, examples=examples, epsilon=epsilon, form=form).total

    bound = torch.func.vmap(total)((posterior * empirical).sum(-1), kl)
    failures = float((bound < (posterior * rates).sum(-1)).double().mean())
    assert failures <= epsilon + 3 * math.sqrt(epsilon * (1 - epsilon) / repetitions)
    assert float(((posterior * empirical).sum(-1) < (posterior * rates).sum(-1)).double().mean()) > 0.5


EXACT = Reading(0.1, "exact")
KL, KL_THETA = Reading(4.0, "upper bound", failure=0.01), Reading(2.0, "exact")


def new_task(**changes: object) -> Bound:
    settings = {"loss": Reading(0.1, "upper bound", failure=0.01), "kl": KL, "kl_theta": KL_THETA, "examples": 400}
    settings |= {"tasks": 2000, "delta": 0.05, "form": "kl", "caveats": ()}
    return bound_new_task(**(settings | changes))  # type: ignore[arg-type]


def test_a_bound_pays_for_monte_carlo_error_and_names_its_terms() -> None:
    bound = new_task()
    assert bound.epsilon == pytest.approx(0.03)
    settings = {"examples": 400, "tasks": 2000, "epsilon": bound.epsilon, "form": "kl"}
    expected = theorem_2(ZERO + 0.1, ZERO + 4, ZERO + 2, **settings)
    assert bound.terms == {
        "loss": 0.1,
        "R_i": pytest.approx(float(expected.within_task)),
        "R_0": pytest.approx(float(expected.across_tasks)),
    }
    assert bound.total == pytest.approx(sum(bound.terms.values()))
    assert bound.rigorous
    assert not bound.vacuous
    assert (bound.tasks, bound.record()["tasks"], bound.record()["rigorous"]) == (2000, 2000, True)


@pytest.mark.parametrize("worth", ["estimate", "lower estimate"])
@pytest.mark.parametrize("name", ["loss", "kl", "kl_theta"])
def test_a_bound_with_one_term_that_is_no_upper_bound_is_not_rigorous(name: str, worth: str) -> None:
    bound = new_task(**{name: Reading(0.1, worth)})  # type: ignore[arg-type]
    assert not bound.rigorous
    assert f"{worth}, not an upper bound" in bound.reason


def test_a_bound_whose_assumptions_do_not_hold_is_not_rigorous() -> None:
    bound = new_task(caveats=["query points are predicted together"])
    assert not bound.rigorous
    assert bound.reason == "query points are predicted together"


def test_the_bound_of_the_papers_own_settings_is_vacuous() -> None:
    """T = 20, m = 50, ε = 0.1, σ₀ = 1e-6 with the 1,068,001 weights of the paper's regression generator at zero."""
    weights = 128 * 256 + 256 + 256 * 512 + 512 + 512 * 1761 + 1761
    kl_theta = gaussian_reading(torch.zeros(weights), 1e-6, 1.0)
    assert kl_theta.value == pytest.approx(weights / 2 * (1e-6 - 1 + math.log(1e6)), rel=1e-9)
    for form in ("paper", "log", "kl"):
        zero = Reading(0.0, "exact")
        bound = bound_new_task(zero, zero, kl_theta, examples=50, tasks=20, delta=0.1, form=form, caveats=())
        assert (bound.vacuous, bound.rigorous) == (True, True), form
    assert bound_one_task(EXACT, EXACT, examples=50, delta=0.1, form="log", caveats=()).total < 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"loss": Reading(1.2, "exact")}, "`loss`"),
        ({"loss": Reading(math.nan, "exact")}, "`loss`"),
        ({"kl": Reading(math.nan, "exact")}, "to be a number"),
        ({"delta": 0.02}, "spent on Monte-Carlo error"),
        ({"delta": 1.0}, "delta"),
    ],
)
def test_bad_readings_are_refused(change: dict, message: str) -> None:
    with pytest.raises(FewsureError, match=message):
        new_task(**change)
    assert new_task(kl=Reading(math.inf, "upper bound")).vacuous
