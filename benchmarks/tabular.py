"""A real family of tables: births per woman by country and year, with countries held out.

    .venv/bin/python benchmarks/tabular.py                # minutes on one core; writes results/tabular.json
    make results                                          # docs/results/tables.md from the JSON

A task is a country: five years are known, the others are predicted. SImPa and BMAML, with the settings that `fewsure`
recommends for a user's own regression and no tuning, beside scikit-learn's ridge regression and Gaussian processes:
fitted to the five years alone, to all training countries, or (the strongest) with a kernel and a mean that the training
countries have chosen. The intervals are those from the 5 % to the 95 % quantile that each method predicts itself.
"""

import argparse
import json
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import sklearn
import torch
from scipy.special import stdtrit
from scipy.stats import norm
from sklearn.exceptions import ConvergenceWarning
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel
from sklearn.linear_model import BayesianRidge, Ridge
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import PolynomialFeatures

import fewsure
from fewsure.core.files import write_atomically

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "examples"))
from own_csv import read_table, write_table  # noqa: E402 (the example that this measures)

RESULTS = ROOT / "results" / "tabular.json"
SHOT, DRAWS, LEVEL = 5, 5, 0.9
SEED = 0
REACH = float(norm.ppf(0.5 + LEVEL / 2))
LEARNERS: dict[str, tuple[str, dict[str, Any]]] = {
    "SImPa": ("simpa", {}),
    "SImPa, `--kl none`": ("simpa", {"kl": "none"}),
    "BMAML": ("bmaml", {}),
}

Examples = tuple[np.ndarray, np.ndarray]
"""Years (n, 1) and fertility (n,)."""


class Predicted(NamedTuple):
    """At the years that were asked for."""

    mean: np.ndarray
    low: np.ndarray
    high: np.ndarray


Method = Callable[[Examples, np.ndarray], Predicted]
"""(the known years, the years to predict) → predictions."""


def gaussian(mean: np.ndarray, std: np.ndarray | float) -> Predicted:
    return Predicted(mean, mean - REACH * std, mean + REACH * std)


def scaled(years: np.ndarray) -> np.ndarray:
    return (years - 1985.0) / 15.0


def of_learner(learner: fewsure.Learner) -> Method:
    def predict(known: Examples, years: np.ndarray) -> Predicted:
        p = learner.adapt(*known).predict(years)
        return Predicted(p.mean, p.quantile((1 - LEVEL) / 2), p.quantile((1 + LEVEL) / 2))

    return predict


def baselines(train: Mapping[str, Examples], validation: Mapping[str, Examples]) -> dict[str, Method]:
    """Scikit-learn's, each a function of the known years."""

    def ridge_of_task(known: Examples, years: np.ndarray) -> Predicted:
        fitted = BayesianRidge().fit(scaled(known[0]), known[1])
        return gaussian(*fitted.predict(scaled(years), return_std=True))

    def process_of_task(known: Examples, years: np.ndarray) -> Predicted:
        kernel = ConstantKernel() * RBF(1.0, (0.1, 10.0)) + WhiteKernel(1e-2, (1e-5, 1.0))
        process = GaussianProcessRegressor(kernel, normalize_y=True, n_restarts_optimizer=3, random_state=SEED)
        return gaussian(*process.fit(scaled(known[0]), known[1]).predict(scaled(years), return_std=True))

    pooled = make_pipeline(PolynomialFeatures(3), Ridge(1.0))
    pooled.fit(scaled(np.concatenate([years for years, _ in train.values()])), joined(train))
    missed = joined(validation) - pooled.predict(scaled(np.concatenate([years for years, _ in validation.values()])))
    spread = float(np.sqrt(np.mean(missed**2)))

    def ridge_of_all(known: Examples, years: np.ndarray) -> Predicted:
        return gaussian(pooled.predict(scaled(years)), spread)

    # The countries whose years are all known share them, so that one fit sums their evidence for a kernel.
    most = max(len(years) for years, _ in train.values())
    whole = [examples for examples in train.values() if len(examples[0]) == most]
    years = scaled(whole[0][0])
    left = np.stack([values for _, values in whole], 1) - pooled.predict(years)[:, None]
    kernel = ConstantKernel() + ConstantKernel() * RBF(1.0, (0.1, 10.0)) + WhiteKernel(1e-2, (1e-6, 1.0))
    shared = GaussianProcessRegressor(kernel, n_restarts_optimizer=3, random_state=SEED).fit(years, left).kernel_

    def process_of_all(known: Examples, years: np.ndarray) -> Predicted:
        process = GaussianProcessRegressor(shared, optimizer=None)
        process.fit(scaled(known[0]), known[1] - pooled.predict(scaled(known[0])))
        mean, std = process.predict(scaled(years), return_std=True)
        return gaussian(mean + pooled.predict(scaled(years)), std)

    return {
        "Gaussian process, mean and kernel from the training countries": process_of_all,
        "Gaussian process, five years": process_of_task,
        "Bayesian ridge, five years": ridge_of_task,
        "ridge (cubic in the year), training countries": ridge_of_all,
    }


def joined(countries: Mapping[str, Examples]) -> np.ndarray:
    return np.concatenate([values for _, values in countries.values()])


def measured(method: Method, countries: Mapping[str, Examples]) -> dict[str, Any]:
    """Error, coverage and width over the test countries; ± is a 95 % interval over countries, not over years."""
    began = time.perf_counter()
    rows = []
    for number, (years, values) in enumerate(countries.values()):
        random = np.random.default_rng((SEED, number))  # the same years are known to every method
        draws = []
        for _ in range(DRAWS):
            order = random.permutation(len(years))
            known, asked = order[:SHOT], order[SHOT:]
            p = method((years[known], values[known]), years[asked])
            y = values[asked]
            inside = (p.low <= y) & (y <= p.high)
            draws.append(
                [np.mean((p.mean - y) ** 2), np.mean(np.abs(p.mean - y)), inside.mean(), (p.high - p.low).mean()]
            )
        rows.append(np.mean(draws, 0))
    table = np.array(rows)
    intervals = stdtrit(len(table) - 1, 0.975) * table.std(0, ddof=1) / np.sqrt(len(table))
    found: dict[str, Any] = {
        name: {"mean": float(mean), "ci95": float(interval)}
        for name, mean, interval in zip(
            ("squared_error", "absolute_error", "coverage", "width"), table.mean(0), intervals, strict=True
        )
    }
    return found | {"predict_seconds": round(time.perf_counter() - began, 1)}


def run(updates: int | None, results: Path) -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", ConvergenceWarning)  # a kernel's parameter at the end of its range
    entries: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        file = write_table(Path(folder) / "fertility.csv")
        data = fewsure.Table(file=str(file), task_column="country", target="fertility", shot=SHOT)
        table = read_table(file)
        splits = {
            split: {name: table[name] for name in data.pool(split).classes} for split in ("train", "validation", "test")
        }
        methods: dict[str, Method] = {}
        for entry, (name, options) in LEARNERS.items():
            learner = fewsure.Learner(name, data, device="cpu", seed=SEED, **options)
            began = time.process_time()
            learner.train(updates)
            entries[entry] = {
                "train_seconds": round(time.process_time() - began, 1),
                "updates": learner.experiment.training.updates,
            }
            methods[entry] = of_learner(learner)
        methods |= baselines(splits["train"], splits["validation"])
        for entry, method in methods.items():
            entries[entry] = entries.get(entry, {}) | measured(method, splits["test"])
            print(entry, entries[entry], flush=True)
    record = {
        "source": "World Bank, fertility rate (births per woman), as statsmodels ships it",
        "countries": {split: len(found) for split, found in splits.items()},
        "shot": SHOT,
        "draws": DRAWS,
        "level": LEVEL,
        "seed": SEED,
        "device": "cpu",
        "versions": {"fewsure": fewsure.__version__, "torch": torch.__version__, "scikit-learn": sklearn.__version__},
        "entries": entries,
    }
    write_atomically(results, json.dumps(record, indent=1) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--updates", type=int, help="meta-updates; the preset's, if none are given")
    parser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args()
    run(options.updates, options.results)


if __name__ == "__main__":
    main()
