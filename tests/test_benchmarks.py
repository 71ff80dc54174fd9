"""The scripts of benchmarks/ fit the library they measure."""

import dataclasses
import json
import runpy
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.stats
import torch

from fewsure.core import streams
from fewsure.core.places import data_root
from fewsure.data.sets.sine_line import SineLine
from fewsure.theory.pac_bayes import theorem_1

SCRIPTS = {script.stem: script for script in sorted((Path(__file__).resolve().parents[1] / "benchmarks").glob("*.py"))}


def benchmark(name: str) -> dict[str, Any]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "path", [*sys.path])  # a script may add to it
        return runpy.run_path(str(SCRIPTS[name]), run_name="benchmark")


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_finds_all_that_it_imports(name: str) -> None:
    assert callable(benchmark(name)["main"])


def test_own_tables_scores_are_means_over_groups_of_means_over_draws() -> None:
    script = benchmark("own_tables")
    random = np.random.default_rng(0)
    groups = {str(k): (random.normal(size=(12, 1)), np.full(12, float(k))) for k in range(4)}

    def predict(known: tuple[np.ndarray, np.ndarray], x: np.ndarray) -> Any:
        assert len(known[1]) == 3
        return script["Normal"](known[1].mean() + np.full(len(x), known[1][0]), np.ones(len(x)))

    found = script["measured"](predict, groups, known=3, draws=2)
    errors = np.arange(4.0)  # twice the group's value is predicted
    half = scipy.stats.t.ppf(0.975, 3) * scipy.stats.sem(errors)
    assert (found["mae"]["mean"], found["mae"]["ci95"]) == pytest.approx((1.5, half))
    assert found["rmse"]["mean"] == pytest.approx(np.sqrt((errors**2).mean()))
    assert found["nll"]["mean"] == pytest.approx(np.mean(errors**2 / 2) + np.log(2 * np.pi) / 2)
    assert found["coverage_90"]["mean"] == 0.5  # errors of 0 and 1 lie within ±1.64
    assert found["width_90"]["mean"] == pytest.approx(2 * 1.6449, abs=1e-3)


def test_own_tables_random_intercept_is_the_conditional_mean_of_its_gaussian() -> None:
    x, y = np.arange(5.0)[:, None], np.array([2.0, 3.0, 2.5, 4.0, 1.0])
    method = benchmark("own_tables")["with_intercept"](lambda x: x[:, 0] / 2, 0.7, 0.3)
    found = method((x[:4], y[:4]), x[4:])
    covariance = 0.7 + 0.3 * np.eye(4)
    weights = np.linalg.solve(covariance, np.full(4, 0.7))
    assert float(found.mean[0]) == pytest.approx(2 + weights @ (y[:4] - x[:4, 0] / 2))
    assert float(found.std[0]) ** 2 == pytest.approx(1.0 - weights @ np.full(4, 0.7))


@pytest.mark.parametrize("name", ["statsmodels MixedLM", "scikit-learn GP, constant + RBF", "gpboost"])
def test_own_tables_peers_learn_what_groups_have_in_common(name: str) -> None:
    pytest.importorskip("gpboost" if name == "gpboost" else "statsmodels")
    script, random = benchmark("own_tables"), np.random.default_rng(0)

    def group() -> tuple[np.ndarray, np.ndarray]:
        x = random.uniform(-1, 1, size=(40, 1))
        return x, 2 * x[:, 0] + random.normal() + 0.1 * random.normal(size=40)

    train, validation, test = ({str(k): group() for k in range(n)} for n in (12, 4, 6))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        method = script["PEERS"][name][0](script["Splits"](train, validation, 5, 10, None)).method
        found = script["measured"](method, test, known=5, draws=1)
    assert found["mae"]["mean"] < (0.3 if name == "gpboost" else 0.12)  # ideal: 0.09
    assert found["coverage_90"]["mean"] > 0.75


def test_the_expected_loss_of_a_function_is_that_of_many_noisy_labels() -> None:
    grid, generator = torch.linspace(-5, 5, 101), torch.Generator().manual_seed(0)
    functions = torch.stack([grid.sin(), 0.2 * grid - 1, 3 + 0 * grid])
    found = benchmark("latent_bounds")["expected_loss"](functions, grid.cos(), 0.3)
    x = 10 * torch.rand(400_000, generator=generator) - 5
    y = x.cos() + 0.3 * torch.randn(len(x), generator=generator)
    errors = torch.stack([x.sin() - y, 0.2 * x - 1 - y, 3 - y]).square()
    torch.testing.assert_close(found, (errors / (1 + errors)).mean(1), atol=3e-3, rtol=0)


def test_the_oracle_has_the_least_bound_of_all_posteriors_over_its_functions() -> None:
    script, data = benchmark("latent_bounds"), SineLine(shot=20)
    tasks, facts = data.sample(1, streams.generator(0, "oracle"))
    prior = data.functions(2000, streams.generator(1, "oracle"))
    x, y = (part[0].squeeze(-1) for part in tasks.support)
    lines = (facts[name][0].squeeze(-1) for name in ("truth", "grid"))
    found = script["oracle_bound"](prior, x, y, *lines, 0.3, streams.generator(2, "oracle"))
    error = (prior(x.expand(2000, -1)) - y).square()
    losses = (error / (1 + error)).mean(1).double()

    def bound(q: torch.Tensor) -> float:
        kl = torch.xlogy(q, 2000 * q).sum()
        return float(theorem_1((q * losses).sum(), kl, examples=20, epsilon=0.05, form="kl").total)

    likelihood = (-0.5 * error.double().sum(1) / 0.09).softmax(0)
    best = torch.zeros(2000, dtype=torch.float64).index_fill(0, losses.argmin(), 1.0)
    uniform = torch.full((2000,), 1 / 2000, dtype=torch.float64)
    others = [likelihood, best, uniform, (likelihood + uniform) / 2, (-60 * losses).softmax(0)]
    assert all(float(found["bound"]) <= bound(q) + 1e-3 for q in others)
    assert float(found["bound"]) < 1


@pytest.mark.slow
@pytest.mark.parametrize(("table", "method"), [("school", "mixed"), ("births", "gp, constant + RBF")])
def test_the_librarys_models_have_the_scores_of_other_libraries_on_real_tables(table: str, method: str) -> None:
    pytest.importorskip("statsmodels")
    script = benchmark("own_tables")
    problem = dataclasses.replace(script["PROBLEMS"][table], draws=1)
    if problem.source != "births" and not (data_root() / problem.source).is_file():
        pytest.skip(f"{problem.source} is not in the data root")
    script["PROBLEMS"][table] = problem
    rows = [script["measure"](table, name) for name in (method, script["PAIRS"][method])]
    ((mae, nll),) = script["agreement"](rows).values()
    assert (mae < 1e-3, nll < 1e-3) == (True, True)


def test_patients_are_asked_between_their_readings_or_ahead_of_them() -> None:
    script = benchmark("vital_signs")
    hours = np.array([0.0, 1.0, 1.5, 9.0, 10.0, 15.0, 16.5])
    for seed in range(30):
        random = np.random.default_rng(seed)
        known, asked = script["between"](hours, 3, random)
        assert sorted([*known, *asked]) == list(range(7))
        known, asked = script["ahead"](hours, 3, random)
        assert list(known) in ([1, 2, 3], [2, 3, 4], [3, 4, 5])  # nothing is asked within six hours of 1.5
        assert all(hours[known[-1]] < hours[asked])
        assert all(hours[asked] <= hours[known[-1]] + 6)
        assert asked[0] == known[-1] + 1
    assert script["ahead"](hours[:4], 3, random) is None
    since = script["hours_since"](np.array([1.0, 9.0]), np.array([0.5, 1.0, 8.0, 10.0]))
    assert since.tolist() == [np.inf, 0.0, 7.0, 1.0]


def test_a_carried_value_is_the_last_one_with_the_spread_of_readings_so_far_apart() -> None:
    script = benchmark("vital_signs")
    hours = np.array([[0.0], [3.0], [20.0]])
    readings = {"a": (hours, np.array([1.0, 3.0, 10.0])), "b": (hours, np.array([5.0, 6.0, 6.0]))}
    found = script["carried"](readings)(hours[:2], np.array([50.0, 60.0]), np.array([[2.5], [19.0]]), np.zeros(2))
    assert found.mean.tolist() == [50.0, 60.0]
    spread = np.sqrt([(4 + 1) / 2, (49 + 81 + 0 + 1) / 4])  # pairs 3 hours apart, and 17 to 20 hours
    assert (found.high - found.low) / (2 * scipy.stats.norm.ppf(0.95)) == pytest.approx(spread)
    assert found.log_density == pytest.approx(scipy.stats.norm.logpdf(0.0, found.mean, spread))


def test_coverage_is_counted_over_groups_and_averaged_over_splits() -> None:
    script = benchmark("unseen_groups")
    groups = {str(number): (np.zeros((12, 1)), np.full(12, float(number))) for number in range(4)}

    def predict(known: tuple[np.ndarray, np.ndarray], x: np.ndarray) -> dict[str, Any]:
        assert len(known[1]) == 5
        return {"own": (np.full(len(x), 0.5), np.full(len(x), 2.5))}

    one = script["counted"](predict, groups, 5, 0)
    assert one == {"own": {"coverage": 0.5, "width": 2.0}}
    other = {"own": {"coverage": 0.7, "width": 3.0}}
    found = script["summary"]([{"gp": one}, {"gp": other}], "gp")["own"]
    assert found["coverage"] == pytest.approx({"mean": 0.6, "error": 0.1})
    parts = script["parts"]({str(number): groups["0"] for number in range(20)}, 3)
    assert {part: len(some) for part, some in parts.items()} == {"new": 4, "test": 6, "validation": 2, "train": 8}
    assert len(set().union(*parts.values())) == 20


def test_recorded_models_have_the_scores_of_other_libraries_on_all_tables() -> None:
    script = benchmark("own_tables")
    apart = script["agreement"](json.loads(script["RESULTS"].read_text()))
    assert len(apart) == len(script["PAIRS"]) * len(script["PROBLEMS"])
    assert all(mae < 0.02 and nll < 0.02 for mae, nll in apart.values())


def test_recorded_intervals_hold_95_percent_for_normal_scores_of_groups() -> None:
    script = benchmark("intervals")
    rows = {(row["scores"], row["number"]): row for row in json.loads(script["RESULTS"].read_text()) if row["way"] == 1}
    assert all(0.94 <= rows["normal", number]["covered"] <= 0.96 for number in (5, 14, 40))
    assert all(rows["normal", number]["covered_as_if_tasks_were_independent"] < 0.5 for number in (5, 14, 40))
