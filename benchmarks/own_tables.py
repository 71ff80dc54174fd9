"""Real tables of a user's own kind: the library's methods and baselines beside outside peers, on whole held-out groups.

    .venv/bin/python benchmarks/own_tables.py                       # adds what is missing to results/own-tables.json
    .venv/bin/python benchmarks/own_tables.py --tables school --methods gp maml --again
    make results                                                    # docs/results/tables.md from the JSON

| table | a group | target | known | test groups | draws |
|---|---|---|---|---|---|
| parkinson | a person | total_UPDRS, from age, sex, time and voice | 8 | 14 | 5 |
| school | a school | exam score | 8 | 40 | 5 |
| heart-rate | a patient in intensive care | heart rate, from the hours since admission | 5 | 300 | 1 |
| births | a country | births per woman, from the year | 5 | 39 | 5 |

The first three come from `tables/` in the data root, births with statsmodels. Groups are shuffled by the seed; the
first are for testing, the next for validation, the others for training. Of each test group the known rows are drawn
at random, the same for every method; all its other rows are predicted. Each method learns from the training groups
with the settings that it recommends, without tuning. Validation groups serve what a method needs them for: its noise,
when to stop, the intervals of MAPIE. Scores are means over groups, in the unit of the target; ± is a 95 % interval
over groups. Intervals are those between quantiles that a method predicts itself, and MAPIE's conformal ones.

A row that is done is kept. A row says seed, version, device and processor seconds.
"""

import argparse
import csv
import gzip
import json
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from scipy.optimize import minimize
from scipy.stats import norm

import fewsure
from fewsure.core.devices import device_name
from fewsure.core.files import write_atomically
from fewsure.core.places import data_root
from fewsure.evaluation.metrics.summary import mean_over_tasks, means_of_each
from fewsure.evaluation.scoring.observed import root
from fewsure.report.tables import ABSENT, interval, markdown_table
from fewsure.version import __version__

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "examples"))
from own_csv import write_table as write_births  # noqa: E402 (the example's table)

RESULTS = ROOT / "results" / "own-tables.json"
SEED = 0
SHARES = {"50": 0.5, "90": 0.9}
PAIRED = ("mae", "nll")
SCORES = ("mae", "mse", "nll", "coverage_50", "coverage_90", "width_50", "width_90")

Array = np.ndarray
Rows = tuple[Array, Array]
"""Inputs (n, D) and targets (n,)."""
Groups = dict[str, Rows]


@dataclass(frozen=True)
class Problem:
    """A table, and what is asked of it."""

    title: str
    source: str
    """A file of the data root, or births."""
    group: str
    target: str
    unit: str
    known: int
    test: int
    validation: int
    leave_out: tuple[str, ...] = ()
    """Columns that are no inputs."""
    inputs: tuple[str, ...] = ()
    """The inputs; all other columns where none is named."""
    draws: int = 5
    train: int | None = None
    """Training groups; all that are left where none are named."""
    query: int = 10
    """Query rows of a training task."""
    least: int = 20
    """Rows that a group must have."""


PROBLEMS = {
    "parkinson": Problem(
        "Parkinson: a person's total UPDRS from voice recordings",
        "tables/parkinsons.csv.gz",
        "subject#",
        "total_UPDRS",
        "points",
        known=8,
        test=14,
        validation=6,
        leave_out=("motor_UPDRS",),  # the other score of the same examination
    ),
    "school": Problem(
        "School: exam scores of pupils", "tables/school.csv.gz", "school", "score", "points", 8, test=40, validation=20
    ),
    "heart-rate": Problem(
        "PhysioNet 2012: heart rate in intensive care",
        "tables/physionet-2012.csv.gz",
        "patient",
        "HR",
        "beats per minute",
        known=5,
        test=300,
        validation=300,
        train=2700,
        inputs=("hours",),
        draws=1,
        query=25,
        least=30,
    ),
    "births": Problem(
        "Births per woman, by country and year",
        "births",
        "country",
        "fertility",
        "births per woman",
        known=5,
        test=39,
        validation=39,
    ),
}


# The tables


def read_groups(problem: Problem) -> tuple[tuple[str, ...], Groups]:
    """The inputs' names, and the rows of each group; rows without the target or an input are left out."""
    if problem.source == "births":
        with tempfile.TemporaryDirectory() as folder:
            lines = write_births(Path(folder) / "births.csv").read_text(encoding="utf-8").splitlines()
    else:
        with gzip.open(data_root() / problem.source, "rt", encoding="utf-8") as file:
            lines = file.read().splitlines()
    table = csv.DictReader(lines)
    other = {problem.group, problem.target, *problem.leave_out}
    inputs = problem.inputs or tuple(name for name in table.fieldnames or () if name not in other)
    rows: dict[str, list[list[str]]] = {}
    for row in table:
        values = [row[name] for name in (*inputs, problem.target)]
        if all(values):
            rows.setdefault(row[problem.group], []).append(values)
    groups = {}
    for name, cells in sorted(rows.items()):
        if len(cells) >= problem.least:
            values = np.array(cells, dtype=np.float64)
            groups[name] = (values[:, :-1], values[:, -1])
    return inputs, groups


def split_groups(problem: Problem, groups: Groups) -> dict[str, Groups]:
    """The groups of each split."""
    names = sorted(groups)
    np.random.default_rng(SEED).shuffle(names)
    first, second = problem.test, problem.test + problem.validation
    last = len(names) if problem.train is None else second + problem.train
    parts = {"test": names[:first], "validation": names[first:second], "train": names[second:last]}
    return {split: {name: groups[name] for name in part} for split, part in parts.items()}


def write_csv(file: Path, inputs: tuple[str, ...], splits: Mapping[str, Groups]) -> None:
    """What a user would have, with a column that names the split."""
    with file.open("w", newline="", encoding="utf-8") as out:
        writer = csv.writer(out)
        writer.writerow(["group", *inputs, "target", "split"])
        for split, groups in splits.items():
            for name, (x, y) in groups.items():
                writer.writerows([f"g{name}", *values, target, split] for values, target in zip(x, y, strict=True))


# Predictions


class Predicted(Protocol):
    """At the rows that were asked for."""

    @property
    def mean(self) -> Array: ...
    def quantile(self, level: float) -> Array: ...
    def log_density(self, y: Array) -> Array | None: ...


class Normal(NamedTuple):
    """A Gaussian at each row."""

    mean: Array
    std: Array

    def quantile(self, level: float) -> Array:
        return self.mean + norm.ppf(level) * self.std

    def log_density(self, y: Array) -> Array:
        return norm.logpdf(y, self.mean, self.std)


class Between(NamedTuple):
    """Intervals without a density."""

    mean: Array
    ends: Mapping[float, Array]
    """Level → quantile."""

    def quantile(self, level: float) -> Array:
        return self.ends[round(level, 6)]

    def log_density(self, y: Array) -> None:
        return None


Method = Callable[[Rows, Array], Predicted]
"""(known rows, inputs to predict at) → predictions."""


class Splits(NamedTuple):
    """What a method learns from."""

    train: Groups
    validation: Groups
    known: int
    query: int
    file: Path


class Learned(NamedTuple):
    """A method that is ready, and what is to be said of it."""

    method: Method
    facts: Mapping[str, Any]


# The library's methods


def of_library(name: str, **options: Any) -> Callable[[Splits], Learned]:
    """A method of fewsure, with the settings that it recommends."""

    def learn(splits: Splits) -> Learned:
        data = fewsure.Table(
            file=str(splits.file),
            task_column="group",
            target="target",
            split_column="split",
            shot=splits.known,
            query=splits.query,
        )
        learner = fewsure.Learner(name, data, device="cpu", seed=SEED, **options)
        learner.train(quiet=not sys.stderr.isatty())

        def predict(known: Rows, x: Array) -> Predicted:
            p: Predicted = learner.adapt(*known).predict(x)
            return p

        facts: dict[str, Any] = {"updates": learner.experiment.training.updates}
        if learner.selection is not None:
            facts |= {"selected": learner.selection["selected"], "budget_seconds": learner.selection["budget"]}
        return Learned(predict, facts)

    return learn


# Outside peers


def pooled(groups: Groups) -> tuple[Array, Array, Array]:
    """Inputs, targets and the number of the group of all rows."""
    sizes = [len(y) for _, y in groups.values()]
    x, y = (np.concatenate(part) for part in zip(*groups.values(), strict=True))
    return x, y, np.repeat(np.arange(len(sizes)), sizes)


class Scaler(NamedTuple):
    """Inputs of spread 1."""

    mean: Array
    std: Array

    def __call__(self, x: Array) -> Array:
        return (x - self.mean) / self.std


def scaler(x: Array) -> Scaler:
    std = x.std(0)
    return Scaler(x.mean(0), np.where(std > 1e-12 * (1 + np.abs(x).max(0)), std, 1.0))


def with_intercept(fixed: Callable[[Array], Array], of_groups: float, of_noise: float) -> Method:
    """Fixed effects, and the random intercept of a group given its known rows, by its two variances."""

    def predict(known: Rows, x: Array) -> Predicted:
        residual = known[1] - fixed(known[0])
        variance = 1 / (1 / of_groups + len(residual) / of_noise) if of_groups > 0 else 0.0
        intercept = variance * residual.sum() / of_noise
        return Normal(fixed(x) + intercept, np.full(len(x), np.sqrt(variance + of_noise)))

    return predict


def mixed_model(splits: Splits) -> Learned:
    """The linear mixed model of statsmodels, by restricted likelihood, with an intercept for each group."""
    from statsmodels.regression.mixed_linear_model import MixedLM

    x, y, group = pooled(splits.train)
    scale = scaler(x)
    whole = np.column_stack([np.ones(len(x)), scale(x)])
    kept = [  # columns that others add up to have no coefficient of their own
        column
        for column in range(whole.shape[1])
        if np.linalg.matrix_rank(whole[:, : column + 1]) > np.linalg.matrix_rank(whole[:, :column])
    ]

    def design(x: Array) -> Array:
        return np.column_stack([np.ones(len(x)), scale(x)])[:, kept]

    fitted = MixedLM(y, design(x), group).fit(reml=True)
    method = with_intercept(lambda x: design(x) @ fitted.fe_params, float(fitted.cov_re[0, 0]), float(fitted.scale))
    return Learned(method, {})


TREES = (1, 3, 10, 30, 100, 300)


def gpboost(splits: Splits) -> Learned:
    """Mixed effects with boosted trees (Sigrist, 2022); known rows of validation groups choose the number of trees."""
    import gpboost as gpb

    x, y, group = pooled(splits.train)
    centre, spread = y.mean(), y.std()  # its steps are of a size that suits targets of spread 1
    options = {"learning_rate": 0.05, "num_leaves": 15, "verbose": -1, "num_threads": 1, "seed": SEED}

    def boosted(trees: int) -> Method:
        model = gpb.GPModel(group_data=group, likelihood="gaussian", num_parallel_threads=1)
        booster = gpb.train(options, gpb.Dataset(x, (y - centre) / spread), trees, gp_model=model, verbose_eval=False)
        of_noise, of_groups = (float(value) for value in np.asarray(model.get_cov_pars()).ravel()[:2])

        def fixed(x: Array) -> Array:
            return centre + spread * np.asarray(booster.predict(data=x, ignore_gp_model=True))

        return with_intercept(fixed, spread**2 * of_groups, spread**2 * of_noise)

    found = {trees: boosted(trees) for trees in TREES}
    nll = {
        trees: measured(method, splits.validation, splits.known, 1)["nll"]["mean"] for trees, method in found.items()
    }
    best = min(nll, key=lambda trees: nll[trees])
    return Learned(found[best], {"trees": best})


def mapie(splits: Splits) -> Learned:
    """Gradient boosting on all training rows, with MAPIE's split-conformal intervals from the validation groups.

    It knows nothing of the group, and its rows count as exchangeable, which rows of few groups are not.
    """
    from mapie.regression import SplitConformalRegressor
    from sklearn.ensemble import HistGradientBoostingRegressor

    (x, y, _), (x_valid, y_valid, _) = pooled(splits.train), pooled(splits.validation)
    boosted = HistGradientBoostingRegressor(random_state=SEED).fit(x, y)
    conformal = SplitConformalRegressor(boosted, confidence_level=list(SHARES.values()), prefit=True)
    conformal.conformalize(x_valid, y_valid)

    def predict(known: Rows, x: Array) -> Predicted:
        mean, ends = conformal.predict_interval(x)
        levels = {
            round((1 + sign * share) / 2, 6): ends[:, (sign + 1) // 2, number]
            for number, share in enumerate(SHARES.values())
            for sign in (-1, 1)
        }
        return Between(mean, levels)

    return Learned(predict, {})


ROWS, GROUPS, ROUNDS = 100, 200, 3
"""Rows of a group and groups behind a kernel, and how often kernel and mean are learned in turn."""


def process(splits: Splits) -> Learned:
    """A Gaussian process of scikit-learn whose mean and kernel (constant + RBF) the training groups choose.

    The kernel maximises the sum of the groups' evidence of what the mean leaves; the mean is generalised least squares
    under the kernel; three times in turn. Of large tables 200 groups and 100 rows of each are taken.
    """
    from sklearn.gaussian_process import GaussianProcessRegressor
    from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel

    random = np.random.default_rng(SEED)
    names = random.permutation(sorted(splits.train))[:GROUPS]
    x_all, y_all, _ = pooled(splits.train)
    scale, (centre, spread) = scaler(x_all), (y_all.mean(), y_all.std())
    some = {}
    for name in names:
        x, y = splits.train[name]
        kept = random.permutation(len(y))[:ROWS]
        some[name] = scale(x[kept]), (y[kept] - centre) / spread

    lengths, variances = (1e-4, 1e4), (1e-8, 1e8)  # as wide as the library's
    length = RBF(np.full(x_all.shape[1], 2 * x_all.shape[1] ** 0.5), lengths)
    kernel: Any = (
        ConstantKernel(1.0, variances) + ConstantKernel(1.0, variances) * length + WhiteKernel(0.25, variances)
    )
    mean = 0.0
    for _ in range(ROUNDS):
        left = [GaussianProcessRegressor(kernel, optimizer=None).fit(x, y - mean) for x, y in some.values()]

        def evidence(theta: Array, left: list[Any] = left) -> tuple[float, Array]:
            found = [one.log_marginal_likelihood(theta, eval_gradient=True, clone_kernel=False) for one in left]
            return -sum(value for value, _ in found), -np.sum([slope for _, slope in found], 0)

        found = minimize(
            evidence, kernel.theta, jac=True, method="L-BFGS-B", bounds=kernel.bounds, options={"maxiter": 200}
        )
        kernel = kernel.clone_with_theta(found.x)
        weights = {name: np.linalg.solve(kernel(x), np.ones(len(x))) for name, (x, _) in some.items()}
        total = sum(weight.sum() for weight in weights.values())
        mean = sum(weights[name] @ y for name, (_, y) in some.items()) / total

    def predict(known: Rows, x: Array) -> Predicted:
        fitted = GaussianProcessRegressor(kernel, optimizer=None)
        fitted.fit(scale(known[0]), (known[1] - centre) / spread - mean)
        at, std = fitted.predict(scale(x), return_std=True)  # a noise kernel is part of its variance
        return Normal(centre + spread * (at + mean), spread * std)

    return Learned(predict, {})


PEERS = {
    "statsmodels MixedLM": (mixed_model, "statsmodels"),
    "scikit-learn GP, constant + RBF": (process, "scikit-learn"),
    "gpboost": (gpboost, "gpboost"),
    "MAPIE on gradient boosting": (mapie, "mapie"),
}
LIBRARY: dict[str, tuple[str, dict[str, Any]]] = {
    **{name: (name, {}) for name in ("mean", "ridge", "boosting", "mixed", "gp")},
    "gp, constant + RBF": (
        "gp",
        {
            "kernels": ("constant", "rbf"),
            "trend": "constant",
            "group_scales": False,
            "fit_rows": ROWS,
            "fit_groups": GROUPS,
        },
    ),
    **{name: (name, {}) for name in ("bmaml", "maml", "simpa-latent", "tnp", "simpa")},
    "auto": ("auto", {"budget": "3m"}),
}
BASELINES = frozenset({"mean", "ridge", "boosting", "mixed", "gp", "gp, constant + RBF"})
"""Those of the library that need no meta-training."""


def methods() -> dict[str, tuple[Callable[[Splits], Learned], str, str]]:
    """Name → (how it is learned, the package that it is of, its kind)."""
    found = {}
    for name, (method, options) in LIBRARY.items():
        found[name] = (of_library(method, **options), "fewsure", "baseline" if name in BASELINES else "learner")
    peers = {name: (learn, package, "peer") for name, (learn, package) in PEERS.items()}
    order = {"baseline": 0, "peer": 1, "learner": 2}
    return dict(sorted((found | peers).items(), key=lambda entry: order[entry[1][2]]))


# Scores


def scores_of(predicted: Predicted, y: Array) -> list[float]:
    """`SCORES` of the rows that were asked for."""
    error, log_density = predicted.mean - y, predicted.log_density(y)
    found = {"mae": np.abs(error).mean(), "mse": (error**2).mean()}
    found["nll"] = np.nan if log_density is None else -np.mean(log_density)
    for name, share in SHARES.items():
        low, high = (predicted.quantile((1 + sign * share) / 2) for sign in (-1, 1))
        found |= {f"coverage_{name}": ((low <= y) & (y <= high)).mean(), f"width_{name}": (high - low).mean()}
    return [float(found[name]) for name in SCORES]


def measured(method: Method, groups: Groups, known: int, draws: int) -> dict[str, Any]:
    """Scores over groups, each the mean of its draws; ± is over groups."""
    began, rows, owner = time.process_time(), [], []
    for number, (x, y) in enumerate(groups.values()):
        random = np.random.default_rng((SEED, number))  # the same rows are known to every method
        for _ in range(draws):
            order = random.permutation(len(y))
            chosen, asked = np.sort(order[:known]), np.sort(order[known:])
            rows.append(scores_of(method((x[chosen], y[chosen]), x[asked]), y[asked]))
            owner.append(number)
    table, of = torch.tensor(rows, dtype=torch.float64), torch.tensor(owner).unsqueeze(-1)
    found: dict[str, Any] = {
        name: mean_over_tasks(table[:, column], of)
        for column, name in enumerate(SCORES)
        if not bool(table[:, column].isnan().any())
    }
    means = {  # for differences between methods
        name: [float(f"{mean:.6g}") for mean in means_of_each(table[:, column], of).tolist()]
        for column, name in enumerate(SCORES)
        if name in found and name in PAIRED
    }
    seconds = round(time.process_time() - began, 1)
    return found | {"rmse": root(found["mse"]), "of_groups": means, "predict_cpu_seconds": seconds}


def measure(table: str, name: str) -> dict[str, Any]:
    """One row: a method on a table."""
    problem, (learn, package, kind) = PROBLEMS[table], methods()[name]
    inputs, groups = read_groups(problem)
    splits = split_groups(problem, groups)
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of other packages: kernels at the end of a range, and the like
        file = Path(folder) / "table.csv"
        write_csv(file, inputs, splits)
        began = time.process_time()
        learned = learn(Splits(splits["train"], splits["validation"], problem.known, problem.query, file))
        trained = round(time.process_time() - began, 1)
        found = measured(learned.method, splits["test"], problem.known, problem.draws)
    seconds = trained + found["predict_cpu_seconds"]
    return {
        "table": table,
        "method": name,
        "kind": kind,
        "groups": len(splits["test"]),
        "train_groups": len(splits["train"]),
        "validation_groups": len(splits["validation"]),
        "known": problem.known,
        "draws": problem.draws,
        **found,
        **learned.facts,
        "train_cpu_seconds": trained,
        "seconds": round(seconds, 1),
        "seed": SEED,
        "package": f"{package} {version(package)}",
        "version": __version__,
        "device": device_name(torch.device("cpu")),
    }


def run(results: Path, tables: list[str], names: list[str], *, again: bool) -> None:
    """Measure what is missing, and keep each row as soon as it is done."""
    for table in tables:
        for name in names:
            rows = json.loads(results.read_text(encoding="utf-8")) if results.is_file() else []
            others = [row for row in rows if (row["table"], row["method"]) != (table, name)]
            if len(others) < len(rows) and not again:
                continue
            row = measure(table, name)
            print(
                json.dumps(
                    {key: row[key] for key in ("table", "method", "mae", "nll", "train_cpu_seconds") if key in row}
                )
            )
            sys.stdout.flush()
            write_atomically(results, "[\n" + ",\n".join(json.dumps(one) for one in [*others, row]) + "\n]\n")


# The page

PAGE = """# Results: tables

With this page you can compare methods on real tables of a user's own kind, and run the comparison again.

{tables}

## Notes

1. Whole groups are held out. Every method knows the same rows of a test group, drawn at random. It predicts all the
   other rows. Scores are means over test groups; ± is a 95 % interval over groups.
2. Rows are in the order of NLL, which weighs error and sureness together. The difference from the library's best
   baseline is taken group by group: below 0 is better. Intervals are those between quantiles that a method predicts
   itself. MAPIE's are conformal, and MAPIE has no density.
3. A *baseline* is a method of the library without meta-training; a *peer* is another library's. All others are
   meta-learned. Each has the settings that it recommends, without tuning. There is one seed.
4. The library's mixed model and Gaussian process have the scores of statsmodels' and of scikit-learn's. With the same
   kernel their MAE differs by {mae:.1%} at most, their NLL by {nll:.4f} nats.
5. Training and prediction are in seconds of one processor core.{auto}

{intervals}

## Run it again

    .venv/bin/python benchmarks/own_tables.py
    .venv/bin/python benchmarks/intervals.py
    make results

Device: {device}. Versions: {versions}. Seed: {seed}.
"""
AUTO = """
6. `auto` had {budget:g} s of wall time for all trainings of a table, on a machine that others used. Validation groups
   selected {selected}."""
COLUMNS = {
    "mae": "MAE",
    "nll": "NLL",
    "coverage_50": "in 50 %",
    "coverage_90": "in 90 %",
    "width_90": "width of 90 %",
}
PAIRS = {"mixed": "statsmodels MixedLM", "gp, constant + RBF": "scikit-learn GP, constant + RBF"}
"""Methods of the library, and the peers that are the same model."""
Row = Mapping[str, Any]


def page(rows: Sequence[Row], intervals: str) -> str:
    """docs/results/tables.md."""
    apart = agreement(rows)
    return PAGE.format(
        tables="\n\n".join(_section(table, [row for row in rows if row["table"] == table]) for table in PROBLEMS),
        mae=max(mae for mae, _ in apart.values()),
        nll=max(nll for _, nll in apart.values()),
        auto=_of_auto([row for row in rows if row["method"] == "auto"]),
        intervals=intervals,
        device=_listed(sorted({row["device"] for row in rows})),
        versions=_listed(sorted({row["package"] for row in rows})),
        seed=rows[0]["seed"],
    )


def _of_auto(rows: Sequence[Row]) -> str:
    if not rows:
        return ""
    selected = _listed([f"`{row['selected']}` on {row['table']}" for row in rows])
    return AUTO.format(budget=rows[0]["budget_seconds"], selected=selected)


def agreement(rows: Sequence[Row]) -> dict[tuple[str, str], tuple[float, float]]:
    """(table, method) → how far it is from the peer that is the same model: a share of the MAE, and nats."""
    found = {(row["table"], row["method"]): row for row in rows}
    apart = {}
    for (table, method), row in found.items():
        peer = found.get((table, PAIRS.get(method, "")))
        if peer is not None:
            mae, nll = (abs(row[score]["mean"] - peer[score]["mean"]) for score in PAIRED)
            apart[table, method] = mae / peer["mae"]["mean"], nll
    return apart


def best_baseline(rows: Sequence[Row]) -> Row:
    """That of the library, by NLL, of the rows of one table."""
    return min((row for row in rows if row["kind"] == "baseline"), key=lambda row: row["nll"]["mean"])


def difference(row: Row, other: Row, score: str) -> Mapping[str, float]:
    """A row's score less another's, group by group."""
    ours, theirs = (torch.tensor(one["of_groups"][score], dtype=torch.float64) for one in (row, other))
    return mean_over_tasks(ours - theirs, torch.arange(len(ours)).unsqueeze(-1))


def _section(table: str, rows: Sequence[Row]) -> str:
    problem, best = PROBLEMS[table], best_baseline(rows)
    ordered = sorted(rows, key=lambda row: row["nll"]["mean"] if "nll" in row else np.inf)
    lines = [
        (
            row["method"] + (f" ({row['kind']})" if row["kind"] != "learner" else ""),
            *(interval(row[name], 3) if name in row else ABSENT for name in COLUMNS),
            ABSENT if row is best or "nll" not in row else interval(difference(row, best, "nll"), 3),
            f"{row['train_cpu_seconds']:,.0f} s, {row['predict_cpu_seconds']:,.0f} s",
        )
        for row in ordered
    ]
    first = rows[0]
    draws = f"{problem.draws} draws of " if problem.draws > 1 else ""
    known = (
        f"{draws}{problem.known} known rows in each of {first['groups']} test groups; {first['train_groups']} groups "
        f"for training, {first['validation_groups']} for validation. MAE and widths are in {problem.unit}."
    )
    headers = ("method", *COLUMNS.values(), f"NLL less that of `{best['method']}`", "training, prediction")
    return f"## {problem.title}\n\n{known}\n\n{markdown_table(headers, lines)}"


def _listed(parts: Sequence[str]) -> str:
    return " and ".join([", ".join(parts[:-1]), parts[-1]]) if len(parts) > 1 else parts[0]


def main() -> None:
    """Measure what is missing."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tables", nargs="+", choices=list(PROBLEMS), default=list(PROBLEMS))
    parser.add_argument("--methods", nargs="+", choices=list(methods()), default=list(methods()))
    parser.add_argument("--again", action="store_true", help="measure rows anew that are there")
    parser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    run(options.results, options.tables, options.methods, again=options.again)


if __name__ == "__main__":
    main()
