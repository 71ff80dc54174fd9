"""Theorems 1 and 2 against values computed by hand."""

import math

import pytest
import torch

from fewsure.bounds import theorem_1, theorem_2
from fewsure.errors import FewsureError

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
