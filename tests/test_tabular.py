"""The page on the real table says what its JSON says."""

import json
import runpy
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("sklearn", reason="scikit-learn is not installed (requirements.lock)")
ROOT = Path(__file__).resolve().parents[1]
RESULTS, PAGE = ROOT / "results" / "tabular.json", ROOT / "docs" / "tabular.md"


@pytest.fixture(scope="module")
def benchmark() -> dict[str, Any]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "path", [*sys.path])  # the benchmark adds the examples to it
        return runpy.run_path(str(ROOT / "benchmarks" / "tabular.py"), run_name="benchmark")


def test_the_page_is_what_the_command_writes(benchmark: dict[str, Any], tmp_path: Path) -> None:
    page = tmp_path / "tabular.md"
    page.write_text(PAGE.read_text(encoding="utf-8"), encoding="utf-8")
    benchmark["write_page"](RESULTS, page)
    assert page.read_text(encoding="utf-8") == PAGE.read_text(encoding="utf-8")


def test_what_the_page_says_of_the_table_is_so() -> None:
    entries = json.loads(RESULTS.read_text(encoding="utf-8"))["entries"]
    error, coverage = (
        {name: found[key]["mean"] for name, found in entries.items()} for key in ("squared_error", "coverage")
    )
    learners = [name for name in entries if "updates" in entries[name]]
    shared = "Gaussian process, mean and kernel from the training countries"
    alone = ["Gaussian process, five years", "Bayesian ridge, five years"]
    for name in [*learners, shared]:
        assert error[name] < min(error[other] for other in alone)
        assert coverage[name] >= 0.9
    assert max(coverage[name] for name in alone) < 0.75
    best = min(learners, key=lambda name: error[name])
    assert best == "SImPa, `--kl none`"
    assert error[best] < error[shared]
    ends = [error[name] + sign * entries[name]["squared_error"]["ci95"] for name, sign in ((best, 1), (shared, -1))]
    assert ends[0] > ends[1]
    assert 0 < entries[best]["absolute_error"]["mean"] - entries[shared]["absolute_error"]["mean"] < 0.02
    covering = [name for name in entries if coverage[name] >= 0.9]
    assert min(covering, key=lambda name: entries[name]["width"]["mean"]) == shared
    for name in ("BMAML", best):
        assert entries[name]["width"]["ci95"] < 0.01 * entries[name]["width"]["mean"]


def test_an_interval_of_all_numbers_covers_and_a_point_does_not(benchmark: dict[str, Any]) -> None:
    countries = {name: (np.arange(12.0)[:, None], np.full(12, 2.0)) for name in ("a", "b", "c")}
    wide = benchmark["measured"](lambda known, years: benchmark["gaussian"](np.full(len(years), 2.5), 1.0), countries)
    assert wide["coverage"]["mean"] == 1
    assert wide["squared_error"]["mean"] == pytest.approx(0.25)
    assert wide["width"]["mean"] == pytest.approx(2 * 1.6449, abs=1e-3)
    point = benchmark["measured"](lambda known, years: benchmark["gaussian"](np.full(len(years), 2.5), 0.0), countries)
    assert point["coverage"]["mean"] == 0


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")  # a line has no noise: the range ends
def test_baselines_know_a_line_when_they_see_one(benchmark: dict[str, Any]) -> None:
    years = np.arange(1960.0, 2012.0)[:, None]
    random = np.random.default_rng(0)
    lines = {str(k): (years, 3 + random.normal() - 0.02 * (years[:, 0] - 1985)) for k in range(9)}
    methods = benchmark["baselines"](lines, lines)
    x, y = lines["4"]
    for name, method in methods.items():
        mean = method((x[::11], y[::11]), x).mean
        error = np.abs(mean - y).max()
        assert error < (2.0 if "ridge (cubic" in name else 0.1), name
