"""Results on a user's own data are in the unit of the target: 1,000 times the target, 1,000 times the result."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fewsure
from fewsure.report.certificates import certificate_text

FACTOR = 1000.0
OPTIONS: dict[str, Any] = {"shot": 4, "query": 6, "tasks": 2, "updates": 5, "hidden": (6,), "device": "cpu"}
METHODS = {"bmaml": {"particles": 2, "inner_steps": 1}, "maml": {"inner_steps": 1}}


def learner_on(path: Path, factor: float, method: str) -> fewsure.Learner:
    """A learner on 60 groups of lines with noise, whose target is `factor` times as large."""
    random = np.random.default_rng(0)
    lines = ["group,x,y"]
    for group in range(60):
        slope, offset = random.normal(size=2)
        for x in random.normal(size=12):
            lines.append(f"g{group:02},{x:.6f},{factor * (3 + slope * x + offset + 0.2 * random.normal()):.9g}")
    path.write_text("\n".join(lines))
    data = fewsure.Table(file=str(path), task_column="group", target="y", shot=4, query=6)
    options = {name: value for name, value in OPTIONS.items() if name not in ("shot", "query", "updates")}
    learner = fewsure.Learner(method, data, **options, **METHODS[method])
    return learner.train(OPTIONS["updates"], quiet=True)


@pytest.mark.parametrize("method", list(METHODS))
def test_a_table_scaled_by_1000_gives_results_scaled_by_1000(tmp_path: Path, method: str) -> None:
    learners = [learner_on(tmp_path / f"{factor}.csv", factor, method) for factor in (1.0, FACTOR)]
    one, thousand = (learner.evaluate(tasks=100, quiet=True) for learner in learners)
    lengths = ("mae", "rmse", "crps", "width_50", "width_90")
    powers = {**dict.fromkeys(lengths, 1), "mse": 2, "coverage_50": 0, "coverage_90": 0}
    for name, power in powers.items():
        for part in ("mean", "ci95"):
            assert thousand[name][part] == pytest.approx(
                FACTOR**power * one[name][part], rel=2e-3, abs=1e-4 * FACTOR**power
            ), name
        for group, other in zip(one["by_group"], thousand["by_group"], strict=True):
            assert other["group"] == group["group"]
            assert other[name] == pytest.approx(FACTOR**power * group[name], rel=2e-3, abs=1e-9)
    assert thousand["nll"]["mean"] == pytest.approx(one["nll"]["mean"] + math.log(FACTOR), abs=2e-3)
    assert thousand["nll"]["ci95"] == pytest.approx(one["nll"]["ci95"], rel=2e-3)
    assert thousand["noise_std"] == pytest.approx(FACTOR * one["noise_std"], rel=2e-3)
    assert thousand["ece"] == pytest.approx(one["ece"], abs=2e-3)

    small, large = (learner.certify(alpha=0.2, quiet=True) for learner in learners)
    for part in ("limit", "mean"):
        assert large["held_out"][part] == pytest.approx(FACTOR**2 * small["held_out"][part], rel=2e-3)
    length = FACTOR if small["conformal"]["score"] == "residual" else 1.0
    assert large["conformal"]["threshold"] == pytest.approx(length * small["conformal"]["threshold"], rel=2e-3)
    (measured,), (of_large,) = small["conformal"]["measured"], large["conformal"]["measured"]
    assert of_large["size"] == pytest.approx(FACTOR * measured["size"], rel=2e-3)
    assert of_large["coverage"] == pytest.approx(measured["coverage"], abs=1e-3)
    assert f"{of_large['size']:,.0f} mean width" in certificate_text(large)
    x, y = np.linspace(-1, 1, 4)[:, None], np.linspace(1, 4, 4)
    narrow, wide = (
        learner.adapt(x, factor * y).predict(x, coverage=0.8)
        for learner, factor in zip(learners, (1, FACTOR), strict=True)
    )
    for name in ("mean", "std", "lower", "upper"):
        np.testing.assert_allclose(getattr(wide, name), FACTOR * getattr(narrow, name), rtol=2e-3, atol=2.0)
