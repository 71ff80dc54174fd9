"""Theorems 1 and 2 against values computed by hand, against a simulation, and with what they are worth."""

import math

import pytest
import torch

from fewsure.errors import FewsureError
from fewsure.theory.concentration import Reading, kl_inverse
from fewsure.theory.pac_bayes import Bound, bound_new_task, bound_one_task, theorem_1, theorem_2

ZERO = torch.tensor(0.0, dtype=torch.float64)


def test_theorem_1_in_both_forms() -> None:
    # m = 50, ε = 0.1: (ln 50)/0.1 = 39.1202 and ln 500 = 6.2146; KL = 10; √((10 + …)/98)
    loss, kl = ZERO + 0.25, ZERO + 10
    paper = theorem_1(loss, kl, examples=50, epsilon=0.1, form="paper")
    log = theorem_1(loss, kl, examples=50, epsilon=0.1, form="log")
    assert float(paper.total) == pytest.approx(0.25 + math.sqrt(49.12023 / 98), abs=1e-6)
    assert float(log.total) == pytest.approx(0.25 + math.sqrt(16.214608 / 98), abs=1e-6)


def test_theorem_2_with_zero_kl_has_the_hand_computed_value() -> None:
    paper = theorem_2(ZERO, ZERO, ZERO, examples=50, tasks=20, epsilon=0.1, form="paper")
    # 400/1.9 · ln 50 = 823.58330; /98 → 8.403911; √ = 2.898950
    # 200 · ln 20 = 599.146455; /38 = 15.767012; √ = 3.970770
    assert float(paper.within_task) == pytest.approx(2.898950, abs=1e-5)
    assert float(paper.across_tasks) == pytest.approx(3.970770, abs=1e-5)
    assert float(paper.total) == pytest.approx(6.869720, abs=1e-5)
    log = theorem_2(ZERO, ZERO, ZERO, examples=50, tasks=20, epsilon=0.1, form="log")
    # ln(50 · 400/1.9) = 9.261635; /98 → √ = 0.307417.   ln(400/0.1) = 8.294050; /38 → √ = 0.467185
    assert float(log.within_task) == pytest.approx(0.307417, abs=1e-5)
    assert float(log.across_tasks) == pytest.approx(0.467185, abs=1e-5)


def test_theorem_2_holds_each_kl_under_its_own_root() -> None:
    bound = theorem_2(ZERO + 0.5, ZERO + 98, ZERO + 38, examples=50, tasks=20, epsilon=0.1, form="log")
    assert float(bound.within_task) == pytest.approx(math.sqrt(1 + 9.261635 / 98), abs=1e-6)
    assert float(bound.across_tasks) == pytest.approx(math.sqrt(1 + 8.294050 / 38), abs=1e-6)
    assert float(bound.total) == pytest.approx(0.5 + float(bound.within_task) + float(bound.across_tasks))


def test_the_log_form_is_never_larger() -> None:
    for examples in (2, 5, 50, 5000):
        for tasks in (2, 20, 2000):
            for epsilon in (0.01, 0.1, 1.0):
                settings = {"examples": examples, "tasks": tasks, "epsilon": epsilon}
                paper = theorem_2(ZERO, ZERO, ZERO, **settings, form="paper")
                log = theorem_2(ZERO, ZERO, ZERO, **settings, form="log")
                assert float(log.total) <= float(paper.total) + 1e-12


def test_a_negative_estimate_of_a_kl_counts_as_zero() -> None:
    assert torch.equal(
        theorem_1(ZERO, ZERO - 12_000, examples=5, epsilon=0.1, form="paper").total,
        theorem_1(ZERO, ZERO, examples=5, epsilon=0.1, form="paper").total,
    )


@pytest.mark.parametrize("epsilon", [0.0, -0.1, 1.5, math.nan])
def test_a_confidence_outside_0_1_is_refused(epsilon: float) -> None:
    with pytest.raises(FewsureError, match="epsilon"):
        theorem_1(ZERO, ZERO, examples=5, epsilon=epsilon, form="paper")


def test_one_example_or_one_task_is_refused() -> None:
    with pytest.raises(FewsureError, match="examples"):
        theorem_1(ZERO, ZERO, examples=1, epsilon=0.1, form="paper")
    with pytest.raises(FewsureError, match="tasks"):
        theorem_2(ZERO, ZERO, ZERO, examples=5, tasks=1, epsilon=0.1, form="paper")


def test_the_kl_form_has_the_hand_computed_value() -> None:
    # loss 0, m = 50, ε = 0.1, KL = 3: 1 − e^−c with c = (3 + ln(2√50/0.1))/50 = (3 + 4.951744)/50 = 0.15903487
    one = theorem_1(ZERO, ZERO + 3, examples=50, epsilon=0.1, form="kl")
    assert float(one.total) == pytest.approx(1 - math.exp(-0.15903487), abs=1e-7)
    # T = 20: each level is inverted in turn, from a loss of 0 within a task in closed form
    within = (3 + math.log(2 * math.sqrt(50) * 400 / (19 * 0.1))) / 50
    across = (5 + math.log(2 * math.sqrt(20) * 20 / 0.1)) / 20
    two = theorem_2(ZERO, ZERO + 3, ZERO + 5, examples=50, tasks=20, epsilon=0.1, form="kl")
    assert float(two.loss + two.within_task) == pytest.approx(1 - math.exp(-within), abs=1e-12)
    assert float(two.total) == pytest.approx(float(kl_inverse(ZERO + 1 - math.exp(-within), ZERO + across)), abs=1e-12)


def test_the_kl_form_is_never_larger_than_the_log_form_and_never_above_1() -> None:
    for loss in (0.0, 0.02, 0.3, 0.9, 1.0):
        for kl in (0.0, 5.0, 100.0, 1e6):
            for examples in (8, 50, 5000):
                settings = {"examples": examples, "epsilon": 0.05}
                tight = float(theorem_1(ZERO + loss, ZERO + kl, **settings, form="kl").total)
                assert tight <= float(theorem_1(ZERO + loss, ZERO + kl, **settings, form="log").total)
                assert loss <= tight <= 1


def test_maurers_moment_is_at_most_2_root_m() -> None:
    """E e^{m kl(p̂ ‖ p)} of m coins, Σ_k C(m, k) (k/m)^k (1 − k/m)^(m−k) for every p, on which the kl form rests."""
    for m in range(1, 400):
        moment = sum(math.comb(m, k) * (k / m) ** k * (1 - k / m) ** (m - k) for k in range(m + 1))
        assert math.sqrt(m) <= moment <= 2 * math.sqrt(m)


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
    from fewsure.theory.divergences import gaussian_reading

    weights = 128 * 256 + 256 + 256 * 512 + 512 + 512 * 1761 + 1761
    kl_theta = gaussian_reading(torch.zeros(weights), 1e-6, 1.0)
    assert kl_theta.value == pytest.approx(weights / 2 * (1e-6 - 1 + math.log(1e6)), rel=1e-9)
    for form in ("paper", "log", "kl"):
        bound = bound_new_task(
            Reading(0.0, "exact"),
            Reading(0.0, "exact"),
            kl_theta,
            examples=50,
            tasks=20,
            delta=0.1,
            form=form,
            caveats=(),
        )
        assert bound.vacuous, form
        assert bound.rigorous, form
    assert bound_one_task(EXACT, EXACT, examples=50, delta=0.1, form="log", caveats=()).total < 1


def test_bad_readings_are_refused() -> None:
    with pytest.raises(FewsureError, match="`loss`"):
        new_task(loss=Reading(1.2, "exact"))
    with pytest.raises(FewsureError, match="`loss`"):
        new_task(loss=Reading(math.nan, "exact"))
    with pytest.raises(FewsureError, match="to be a number"):
        new_task(kl=Reading(math.nan, "exact"))
    with pytest.raises(FewsureError, match="spent on Monte-Carlo error"):
        new_task(delta=0.02)
    with pytest.raises(FewsureError, match="delta"):
        new_task(delta=1.0)
    assert new_task(kl=Reading(math.inf, "upper bound")).vacuous
