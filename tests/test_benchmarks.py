"""The scripts of benchmarks/ fit the library they measure."""

import runpy
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

SCRIPTS = {script.stem: script for script in sorted((Path(__file__).resolve().parents[1] / "benchmarks").glob("*.py"))}


def benchmark(name: str) -> dict[str, Any]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "path", [*sys.path])  # a script may add to it
        return runpy.run_path(str(SCRIPTS[name]), run_name="benchmark")


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_finds_all_that_it_imports(name: str) -> None:
    assert callable(benchmark(name)["main"])


def test_an_interval_of_all_numbers_covers_and_a_point_does_not() -> None:
    tabular = benchmark("tabular")
    countries = {name: (np.arange(12.0)[:, None], np.full(12, 2.0)) for name in ("a", "b", "c")}
    wide = tabular["measured"](lambda known, years: tabular["gaussian"](np.full(len(years), 2.5), 1.0), countries)
    assert wide["coverage"]["mean"] == 1
    assert wide["squared_error"]["mean"] == pytest.approx(0.25)
    assert wide["width"]["mean"] == pytest.approx(2 * 1.6449, abs=1e-3)
    point = tabular["measured"](lambda known, years: tabular["gaussian"](np.full(len(years), 2.5), 0.0), countries)
    assert point["coverage"]["mean"] == 0


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")  # a line has no noise: the range ends
def test_baselines_know_a_line_when_they_see_one() -> None:
    years = np.arange(1960.0, 2012.0)[:, None]
    random = np.random.default_rng(0)
    lines = {str(k): (years, 3 + random.normal() - 0.02 * (years[:, 0] - 1985)) for k in range(9)}
    x, y = lines["4"]
    for name, method in benchmark("tabular")["baselines"](lines, lines).items():
        error = np.abs(method((x[::11], y[::11]), x).mean - y).max()
        assert error < (2.0 if "ridge (cubic" in name else 0.1), name
