"""How far functions spread where a support set says nothing and where it says much: SImPa, SImPa-latent, exact Bayes.

    .venv/bin/python benchmarks/collapse.py [METHOD …]        # minutes on one core
    make results

Trains small networks of each method on two kinds of tasks whose exact posterior is known: sine-line with three known
points, and Gaussian lines with two, where it has a closed form. At each point of unseen tasks the standard deviation of
a method's functions stands beside the exact one. Results go to results/collapse.json; methods that are not named keep
theirs.
"""

import argparse
import dataclasses
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, NullFormatter, StrMethodFormatter
from torch import Tensor

from fewsure.algorithms.simpa import Simpa
from fewsure.core import streams
from fewsure.core.files import write_atomically
from fewsure.core.vectorise import take
from fewsure.data.sets.sine_line import Functions, SineLine
from fewsure.evaluation.evaluate import score_blocks, shared_noise, unseen_block
from fewsure.evaluation.metrics.density import std as label_std
from fewsure.evaluation.scoring.predict import Predict
from fewsure.networks.mlp import MlpOptions
from fewsure.posteriors.last_layer import SampleRequest, Samples
from fewsure.report.drawing import QUIET, WIDTH, tidy
from fewsure.report.styles import BLUE, GREEN, ORANGE, PURPLE, VERMILLION
from fewsure.report.tables import ABSENT, markdown_table
from fewsure.training.experiment import Experiment, load_preset
from fewsure.training.update import MetaUpdate, new_optimiser
from fewsure.types import Batch, Facts, Info, Model, Noise, Params, Parts, Stage, Task
from fewsure.version import __version__

RESULTS = Path(__file__).resolve().parents[1] / "results" / "collapse.json"
CPU = torch.device("cpu")
SEED = 0
BLOCKS = 10
"""Of 20 unseen tasks each."""
EDGES = (0.0, 0.2, 0.4, 0.8, 1.6, float("inf"))
"""Between which standard deviations of the exact posterior points are taken together."""
EXACT = 1000
"""Functions of an exact posterior without closed form."""
THINNED = 4
"""Every so many points of the range are kept of it."""
LAST = 100
"""Updates over which the logged KL is averaged."""


@dataclass(frozen=True)
class GaussianLines(SineLine):
    """y = a x + b with a, b ~ N(0, 1) and Gaussian noise: the exact posterior is Gaussian, too."""

    shot: int = 2

    def functions(self, tasks: int, generator: torch.Generator) -> Functions:
        """Lines alone."""
        slope, intercept = torch.randn(2, tasks, 1, generator=generator)
        nothing = torch.zeros_like(slope)
        return Functions(nothing.bool(), nothing, nothing, slope, intercept)

    def exact(self, support: Batch) -> tuple[Tensor, Tensor]:
        """Mean and covariance of (b, a) given a support set (m, 1)."""
        points = torch.cat([torch.ones_like(support.x), support.x], 1).double()
        covariance = torch.linalg.inv(torch.eye(2).double() + points.T @ points / self.noise_std**2)
        return (covariance @ points.T @ support.y.double() / self.noise_std**2).squeeze(-1), covariance

    def exact_functions(self, support: Batch, x: Tensor, size: int, generator: torch.Generator) -> Tensor:
        mean, covariance = self.exact(support)
        root = torch.linalg.cholesky(covariance)
        drawn = mean + torch.randn(size, 2, generator=generator).double() @ root.T
        return (drawn @ torch.cat([torch.ones_like(x), x], 1).double().T).float().unsqueeze(-1)

    def exact_kl(self, support: Batch) -> Tensor:
        """KL of the exact posterior to the prior N(0, I) of (b, a)."""
        mean, covariance = self.exact(support)
        return 0.5 * (covariance.trace() + mean @ mean - 2 - covariance.logdet())


@dataclass(frozen=True)
class CoupledSimpa(Simpa):
    """SImPa whose KL compares w = G(z; λ) + s·noise with w = G(z; θ) + s·noise for the same z.

    KL[q ‖ p] ≤ E_z ‖G(z; λ) − G(z; θ)‖² / 2s², by the chain rule, with the networks of θ as the prior.
    """

    def coupled_kl(self, fit: Tensor, theta: Params, model: Model, level: Noise) -> Tensor:
        """(K,): the same noise on both, so their difference has none."""
        there = self.posterior(model).see(theta, level, SampleRequest(self.train_samples))["fit"]
        return (fit - there).square().sum(-1).mean(-1) / (2 * self.weight_noise**2)

    def _optimise_lower_level(
        self, theta: Params, meta: Parts, model: Model, support: Batch, noise: Noise, regularise: Tensor
    ) -> tuple[Params, Params]:
        family, request, generator = self.posterior(model), SampleRequest(self.train_samples), theta
        for step in range(self.inner_steps):
            level = {name: draws[step] for name, draws in noise.items() if name in ("z", "weights")}

            def bound(samples: Samples, level: Noise = level) -> Tensor:
                kl = self.coupled_kl(samples["fit"], theta, model, level)
                return self._theorem_1(self._losses(samples, model, support), kl, regularise).sum()

            samples, descend = family.generate(generator, level, request, first_order=self.first_order)
            generator = descend(torch.func.grad(bound)(samples), self.inner_lr, self.inner_clip_norm)
        return generator, {}

    def loss(self, meta: Parts, model: Model, task: Task, noise: Noise, stage: Stage) -> tuple[Tensor, Info]:
        regularise = (stage.update * stage.tasks >= self.warm_up_tasks).to(task.query.x.dtype)
        theta, kl_theta = self._draw_theta(meta, model, noise)
        generator, _ = self._optimise_lower_level(theta, meta, model, task.support, noise, regularise)
        level = {name: draws[-1] for name, draws in noise.items() if name in ("z", "weights")}
        samples = self.posterior(model).see(generator, level, SampleRequest(self.train_samples))
        kl = self.coupled_kl(samples["fit"], theta, model, level)
        losses = self._losses(samples, model, task.query)
        objective, info = self._theorem_2(losses, kl, kl_theta, stage.tasks, regularise)
        return objective.mean(), {name: term.mean() for name, term in info.items()}


SMALL: dict[str, Any] = {"latent": 32, "generator_hidden": (64, 128), "train_samples": 8, "first_order": True}
COUPLED = "SImPa, coupled KL"
METHODS: dict[str, tuple[str, dict[str, Any]]] = {
    "SImPa, critic KL": ("simpa", SMALL | {"kl": "critic", "kl_samples": 32, "critic_hidden": (32, 16)}),
    "SImPa, moment KL": ("simpa", SMALL | {"kl": "moment", "kl_samples": 16, "weight_noise": 0.1}),
    "SImPa, semi-implicit KL": ("simpa", SMALL | {"kl": "semi-implicit", "kl_samples": 16, "weight_noise": 0.1}),
    COUPLED: ("simpa", SMALL | {"kl": "none", "weight_noise": 0.1}),
    "SImPa-latent": ("simpa-latent", {}),
}
"""Name → the method and its options; the first is the estimate that the paper prints."""
UPDATES = {"simpa": 600, "simpa-latent": 1200}
PROBLEMS: dict[str, tuple[SineLine, MlpOptions]] = {
    "sine-line": (SineLine(shot=3, query=24), MlpOptions((20, 20))),
    "Gaussian lines": (GaussianLines(query=24), MlpOptions(())),
}


def planned(problem: str, name: str) -> Experiment:
    """What is trained: the quickstart's settings, with these options."""
    data, network = PROBLEMS[problem]
    method, options = METHODS[name]
    preset = load_preset("quickstart", method, "sine-line")
    training = dataclasses.replace(preset.training, updates=UPDATES[method], seed=SEED)
    base = CoupledSimpa(**vars(preset.algorithm)) if name == COUPLED else preset.algorithm
    algorithm = dataclasses.replace(base, **options)  # type: ignore[type-var]
    if method == "simpa-latent":
        network = dataclasses.replace(network, activation="silu")
    return Experiment(algorithm, data, network, training, "collapse")


def trained(experiment: Experiment) -> tuple[Parts, float]:
    """Meta-parameters, and the KL that the last updates logged."""
    meta = experiment.algorithm.init(experiment.model, streams.generator(SEED, "init"))
    update = MetaUpdate(experiment, meta, new_optimiser(meta, experiment.training, CPU), CPU)
    for number in range(experiment.training.updates):
        if number == experiment.training.updates - LAST:
            update.forget_means()
        update(number)
    return meta, update.means()["kl"]


def functions_of_unseen_tasks(experiment: Experiment, meta: Parts) -> dict[str, Tensor]:
    """Of each unseen task 32 functions at every point of the range, and their error at query points.

    `with noise` is the standard deviation of labels, less the true noise: a method may hold open in its noise what its
    functions agree on.
    """

    def score(predict: Predict, task: Task, facts: Facts, noise: Noise) -> dict[str, Tensor]:
        functions = predict(facts["grid"]).squeeze(-1)
        labels = label_std(predict.density(facts["grid"], experiment.data.noise_std))
        return {
            "functions": functions,
            "with noise": (labels.square() - experiment.data.noise_std**2).clamp(min=0).sqrt(),
            "error": (predict(task.query.x).mean(0) - task.query.y).square().mean(),
        }

    shared = shared_noise(experiment, SEED, "test", CPU)
    blocks = [unseen_block(experiment, index, SEED, "test", CPU) for index in range(BLOCKS)]
    return score_blocks(experiment, meta, shared, blocks, score, lambda done: None)


def exact_of_unseen_tasks(experiment: Experiment) -> dict[str, Tensor]:
    """Mean and standard deviation of the exact posterior at every point of the range, with the tasks themselves."""
    data, generator = experiment.data, streams.generator(SEED, "exact posterior")
    found: list[dict[str, Tensor]] = []
    for index in range(BLOCKS):
        block = unseen_block(experiment, index, SEED, "test", CPU)
        for number in range(len(block.task.support.x)):
            task, facts = take((block.task, block.facts), number)
            functions = data.exact_functions(task.support, facts["grid"], EXACT, generator).squeeze(-1)
            at_query = data.exact_functions(task.support, task.query.x, EXACT, generator)
            error = {"error": (at_query.mean(0) - task.query.y).square().mean()}
            kl = {"kl": data.exact_kl(task.support)} if isinstance(data, GaussianLines) else {}
            support = {"x": task.support.x.squeeze(-1), "y": task.support.y.squeeze(-1)}
            grid, truth = (facts[name].squeeze(-1) for name in ("grid", "truth"))
            both = {"grid": grid, "truth": truth, "mean": functions.mean(0), "std": functions.std(0)}
            found.append(support | both | error | kl)
    return {name: torch.stack([one[name] for one in found]) for name in found[0]}


def by_exact_spread(std: Tensor, exact: Tensor) -> list[float]:
    """The mean standard deviation where the exact one is between two edges."""
    between = [(exact >= low) & (exact < high) for low, high in pairwise(EDGES)]
    return [round(float(std[at].mean()), 4) for at in between]


def drawn(mean: Tensor, std: Tensor) -> dict[str, list[float]]:
    """One task's functions, for the figure."""
    return {name: [round(float(value), 3) for value in of[::THINNED]] for name, of in (("mean", mean), ("std", std))}


def problem_record(problem: str, names: list[str], earlier: Mapping[str, Any]) -> dict[str, Any]:
    """All that is measured on one kind of task."""
    exact = exact_of_unseen_tasks(planned(problem, "SImPa-latent"))
    lowest, highest = exact["std"].amin(1), exact["std"].amax(1)
    task = int(((lowest < EDGES[1]) & (highest > EDGES[-2])).nonzero()[0])  # the first of which both is to be seen
    shown = {name: [round(float(value), 3) for value in exact[name][task]] for name in ("x", "y")}
    shown |= {name: [round(float(value), 3) for value in exact[name][task, ::THINNED]] for name in ("grid", "truth")}
    record: dict[str, Any] = {
        "points": [int(((exact["std"] >= low) & (exact["std"] < high)).sum()) for low, high in pairwise(EDGES)],
        "exact": {
            "spread": by_exact_spread(exact["std"], exact["std"]),
            "kl": round(float(exact["kl"].mean()), 2) if "kl" in exact else None,
            "mse": round(float(exact["error"].mean()), 4),
            "drawn": drawn(exact["mean"][task], exact["std"][task]),
        },
        "task": shown,
        "methods": {},
    }
    for name in METHODS:
        if name not in names:
            if name in earlier.get(problem, {}).get("methods", {}):
                record["methods"][name] = earlier[problem]["methods"][name]
            continue
        began, experiment = time.process_time(), planned(problem, name)
        meta, kl = trained(experiment)
        seconds, found = time.process_time() - began, functions_of_unseen_tasks(experiment, meta)
        mean, std = found["functions"].mean(1), found["functions"].std(1)
        own_noise = experiment.algorithm.own_density
        scores = {
            "spread": by_exact_spread(std, exact["std"]),
            "with_noise": by_exact_spread(found["with noise"], exact["std"]) if own_noise else None,
            "kl": round(kl, 2),
            "mse": round(float(found["error"].mean()), 4),
            "updates": experiment.training.updates,
            "seconds": round(seconds, 1),
        }
        record["methods"][name] = scores | {"drawn": drawn(mean[task], std[task])}
        print(problem, name, scores, flush=True)
    return record


# The page


EXACT_NAME = "exact posterior"
TICKS = (0.1, 0.2, 0.5, 1.0, 2.0)
COLOURS = dict(zip(METHODS, (VERMILLION, ORANGE, PURPLE, BLUE, GREEN), strict=True))


def spread_table(record: Mapping[str, Any]) -> str:
    """The mean spread of functions, from points of which the support set says much to those of which it says little."""
    first = record["edges"]
    between = [f"{low:g} to {high:g}" for low, high in pairwise(first)] + [f"above {first[-1]:g}"]
    tables = []
    for problem, found in record["problems"].items():
        exact = found["exact"]
        headers = (problem, *between, "KL, nats", "squared error", "seconds")
        points = ("points", *(f"{count:,}" for count in found["points"]), *[ABSENT] * 3)
        kl = ABSENT if exact["kl"] is None else f"{exact['kl']:.1f}"
        rows = [points, (EXACT_NAME, *(f"{value:.2f}" for value in exact["spread"]), kl, f"{exact['mse']:.2f}", ABSENT)]
        for name, one in found["methods"].items():
            facts = (f"{one['kl']:,.1f}", f"{one['mse']:.2f}", f"{one['seconds']:.0f}")
            rows.append((name, *(f"{value:.2f}" for value in one["spread"]), *facts))
            if one["with_noise"] is not None:
                rows.append(
                    (f"{name}, with its noise", *(f"{value:.2f}" for value in one["with_noise"]), *[ABSENT] * 3)
                )
        tables.append(markdown_table(headers, rows))
    return "\n\n".join(tables)


def spread_figure(record: Mapping[str, Any]) -> Figure:
    """A method's spread over the exact one, for each kind of task."""
    figure = Figure(figsize=(WIDTH, 4.2), layout="constrained")
    panels = figure.subplots(1, len(record["problems"]), squeeze=False)[0]
    for axes, (problem, found) in zip(panels, record["problems"].items(), strict=True):
        exact = found["exact"]["spread"]
        axes.plot(exact, exact, "--", color="black", label=EXACT_NAME)
        for name, one in found["methods"].items():
            axes.plot(exact, one["spread"], "o-", color=COLOURS[name], label=name)
            if one["with_noise"] is not None:
                axes.plot(exact, one["with_noise"], ":", color=COLOURS[name], label=f"{name}, with its noise")
        axes.set(
            xscale="log", yscale="log", title=problem, xlabel="standard deviation of the exact posterior's functions"
        )
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_locator(FixedLocator(TICKS))
            axis.set_major_formatter(StrMethodFormatter("{x:g}"))
            axis.set_minor_formatter(NullFormatter())
        tidy(axes)
    panels[0].set_ylabel("standard deviation of functions")
    panels[0].legend(fontsize="small")
    return figure


def functions_figure(record: Mapping[str, Any]) -> Figure:
    """The functions of each method through the same points of a task of sine-line."""
    found = record["problems"]["sine-line"]
    task = found["task"]
    shown = {EXACT_NAME: found["exact"]} | found["methods"]
    figure = Figure(figsize=(WIDTH, 3.2), layout="constrained")
    panels = figure.subplots(1, len(shown), sharey=True)
    for axes, (name, one) in zip(panels, shown.items(), strict=True):
        mean, std = (np.array(one["drawn"][key]) for key in ("mean", "std"))
        colour = COLOURS.get(name, QUIET)
        axes.fill_between(task["grid"], mean - 2 * std, mean + 2 * std, color=colour, alpha=0.25, linewidth=0)
        axes.plot(task["grid"], mean, color=colour)
        axes.plot(task["grid"], task["truth"], "--", color="black", linewidth=1)
        axes.plot(task["x"], task["y"], "o", color="black", markersize=4)
        axes.set_title(name, fontsize="medium")
        tidy(axes)
    return figure


def main() -> None:
    """Train the methods that are named, or all, and write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("methods", nargs="*", metavar="METHOD", help=f"{', '.join(METHODS)}; all by default")
    names = parser.parse_args().methods or list(METHODS)
    torch.set_num_threads(1)
    earlier = json.loads(RESULTS.read_text(encoding="utf-8"))["problems"] if RESULTS.is_file() else {}
    began = time.perf_counter()
    problems = {problem: problem_record(problem, names, earlier) for problem in PROBLEMS}
    record = {
        "seed": SEED,
        "version": __version__,
        "device": "cpu",
        "seconds": round(time.perf_counter() - began, 1),
        "tasks": BLOCKS * 20,
        "edges": list(EDGES[:-1]),
        "problems": problems,
    }
    write_atomically(RESULTS, json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
