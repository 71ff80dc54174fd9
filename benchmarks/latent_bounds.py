"""Theorem 1 of SImPa-latent on new sine-line tasks with 5, 20 and 100 examples, and how often it fails.

    .venv/bin/python benchmarks/latent_bounds.py [--run FOLDER] [--out results/latent-bounds.json]

trains `--preset bounds` to its end, or takes the run that is there, and goes on after an interruption. Then it bounds
the loss e/(1+e) of one drawn network on each new task, with probability 95 %. The expected loss is known: the
true function on a grid of inputs, and the noise by Gauss and Hermite's rule. Beside it:

    q = p     the bound of the prior itself, with a KL of 0
    oracle    it knows how tasks are made: the prior is many drawn functions, q ∝ p e^(−λ L̂) with the best λ for each
              task, and E_q L̂ and the KL are sums, without Monte-Carlo error
"""

import argparse
import json
import math
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fewsure.certification.theorem_1 import FORM, SHARE, network_losses
from fewsure.core import streams
from fewsure.core.devices import device_name
from fewsure.core.progress import ProgressLine
from fewsure.core.vectorise import count, draw_per_task, for_each, take
from fewsure.data.sets.sine_line import Functions, SineLine
from fewsure.evaluation.metrics.summary import mean_over_tasks
from fewsure.pipeline import start_run, train_run
from fewsure.report.tables import interval, markdown_table
from fewsure.theory.pac_bayes import theorem_1, theorem_1_of_draws
from fewsure.training.experiment import Experiment, load_preset
from fewsure.training.runs import Run
from fewsure.types import Facts, Noise, Parts, Task
from fewsure.version import __version__

ROOT = Path(__file__).resolve().parents[1]
SHOTS = (5, 20, 100)
DELTA = 0.05
TASKS, FEW = 10_000, 200
"""New tasks for the method; those of them for the oracle and for q = p."""
NETWORKS, JUDGES = 1000, 64
"""Networks behind a bound, and others behind the expected loss."""
FUNCTIONS = 100_000
"""Functions of the oracle's prior."""
NODES = 16
"""Of Gauss and Hermite's rule, for the noise on a label."""
BLOCK = 20
SEED = 0


PAGE = """# Results: Theorem 1

With this page you can see how much Theorem 1 guarantees about a new task. Beside it stands an oracle that knows how
tasks are made.

## Sine-line

The loss is {loss}.
Each bound holds with probability {confidence} for its own task, in the {form} form.

{table}

1. The bound is the mean over tasks. ± is a 95 % interval over tasks. q = p and the oracle have the first of the tasks.
2. A bound is violated where the expected loss exceeds it. The true function gives that loss. A share of {allowed} is
   allowed.
3. The bounds of SImPa-latent and of q = p pay for the error of {networks:,} drawn networks.
4. q = p is SImPa-latent's prior without a look at the examples.
5. The oracle's prior is {functions:,} functions, drawn as tasks are made. Its posterior is q ∝ p e^(−λ L̂) with the best
   λ for each task. With this prior no posterior has a smaller bound.
6. One run trains for all numbers of examples: `--preset bounds`, {updates:,} updates.
7. Seed {train_seed} for training and {seed} for the new tasks. Device: {device}. fewsure {version}. Training took
   {train_seconds:,.0f} s on one core of a shared machine, and measuring {seconds:,.0f} s of a core.

    .venv/bin/python benchmarks/latent_bounds.py    # about 20 minutes on one core

`fewsure certify RUN --shot 5 20 100` gives the same bounds of a run of your own.

{more}
[Guarantees](../guarantees.md#theorem-1-of-one-task) has the conditions and the proof.
"""


def main() -> None:
    """Train if need be, measure, and write the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", type=Path, default=ROOT / "build" / "latent-bounds", help="its run folder")
    parser.add_argument("--out", type=Path, default=ROOT / "results" / "latent-bounds.json")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    run = trained(arguments.run)
    arguments.out.write_text(json.dumps(measured(run), indent=1) + "\n", encoding="utf-8")


def trained(folder: Path) -> Run:
    """The run in a folder, trained to its end."""
    device = torch.device("cpu")
    there = (folder / "config.json").is_file()
    run = (
        Run.open(folder)
        if there
        else start_run(folder, load_preset("bounds", "simpa-latent", "sine-line"), resume=True)
    )
    train_run(run, device)
    return run


def measured(run: Run, tasks: int = TASKS, few: int = FEW, functions: int = FUNCTIONS) -> dict[str, Any]:
    """The figures for each number of examples, as JSON values."""
    began, device = time.process_time(), torch.device("cpu")
    checkpoint = run.load(device)
    rows = []
    for shot in SHOTS:
        experiment = run.experiment.with_shot(shot)
        with torch.no_grad(), ProgressLine(f"{shot} examples") as line:
            found, prior, oracle = [], [], []
            for number, (task, facts) in enumerate(blocks(experiment, tasks)):
                found.append(bounds(experiment, checkpoint.meta, task, facts, number))
                if number * BLOCK < few:
                    prior.append(bounds(experiment, checkpoint.meta, task, facts, number, of_prior=True))
                    oracle.append(oracle_bounds(experiment.data, task, facts, functions))
                line.show(min(tasks, (number + 1) * BLOCK), tasks, "tasks")
        entries = {"simpa-latent": found, "q = p": prior, "oracle": oracle}
        rows.append({"shot": shot} | {name: summary(each) for name, each in entries.items()})
    training = run.experiment.training
    return {
        "rows": rows,
        "delta": DELTA,
        "form": FORM,
        "loss": "e/(1+e) of one drawn network, e its squared error",
        "networks": NETWORKS,
        "functions": functions,
        "preset": run.experiment.preset,
        "updates": training.updates,
        "train_seed": training.seed,
        "train_seconds": run.metrics()[-1]["seconds"],
        "seed": SEED,
        "version": __version__,
        "device": device_name(device),
        "seconds": round(time.process_time() - began, 1),
    }


def summary(blocks: list[dict[str, Tensor]]) -> dict[str, Any]:
    """Means over tasks, and the share of tasks whose expected loss is above their bound."""
    found = {name: torch.cat([block[name] for block in blocks]) for name in blocks[0]}
    violated = (found["risk"] > found["bound"]).double()
    return {
        "tasks": len(violated),
        **{name: mean_over_tasks(values) for name, values in found.items()},
        "violated": float(violated.mean()),
    }


def blocks(experiment: Experiment, tasks: int) -> Iterator[tuple[Task, Facts]]:
    """New tasks, a block at a time, from random streams that nothing else uses."""
    sampler = experiment.data.tasks("test", torch.device("cpu"))
    for first in range(0, tasks, BLOCK):
        drawn = sampler.sample(BLOCK, streams.generator(SEED, "latent-bounds", experiment.data.test_shot, first))
        yield take(drawn, slice(0, tasks - first))


def bounds(
    experiment: Experiment, meta: Parts, task: Task, facts: Facts, number: int, *, of_prior: bool = False
) -> dict[str, Tensor]:
    """The bound of each task of a block, its terms, and the expected loss by other networks."""
    algorithm, model = experiment.algorithm, experiment.model
    examples = task.support.x.shape[1]
    generator = streams.generator(SEED, "latent-bounds", "networks", examples, number)
    noise, judges = (
        draw_per_task(algorithm.prediction_noise(model, networks, examples), count(task), generator)
        for networks in (NETWORKS, JUDGES)
    )

    def one_task(parts: tuple[Task, Facts, Noise, Noise], meta: Parts) -> tuple[Tensor, ...]:
        task, facts, noise, judges = parts
        posterior = algorithm.adapt(meta, model, task.support, {})
        if of_prior:
            nothing = {name: torch.zeros_like(value) for name, value in posterior["latent"].items()}
            posterior = posterior | {"latent": nothing}  # N(0, I)
        losses = network_losses(model, algorithm.predict(posterior, model, task.support.x, noise), task.support.y)
        at_grid = algorithm.predict(posterior, model, facts["grid"], judges)
        risk = expected_loss(at_grid.squeeze(-1), facts["truth"].squeeze(-1), experiment.data.noise_std).mean()
        return losses, risk, algorithm.posterior_kl(posterior)

    losses, risk, kl = for_each(one_task)((task, facts, noise, judges), meta)
    bound = theorem_1_of_draws(losses, kl, examples=examples, delta=DELTA, share=SHARE, form=FORM)
    return {"bound": bound.total, "loss": losses.mean(1), "limit": bound.loss, "kl": kl, "risk": risk}


def expected_loss(values: Tensor, truth: Tensor, noise_std: float) -> Tensor:
    """E e/(1+e) (S,) of functions (S, N) on an even grid over all inputs, over inputs and the noise on labels."""
    nodes, weights = (torch.from_numpy(part).float() for part in np.polynomial.hermite_e.hermegauss(NODES))
    error = (values.unsqueeze(-1) - truth.unsqueeze(-1) - noise_std * nodes).square()
    at_input = (error / (1 + error)) @ (weights / weights.sum())
    return (at_input.sum(-1) - (at_input[..., 0] + at_input[..., -1]) / 2) / (values.shape[-1] - 1)


def oracle_bounds(data: SineLine, task: Task, facts: Facts, functions: int) -> dict[str, Tensor]:
    """The least bound that a tempered posterior over functions of the true distribution has, for each task."""
    generator = streams.generator(SEED, "latent-bounds", "oracle")
    prior = data.functions(functions, generator)
    each = []
    for number in range(count(task)):
        (x, y), truth, grid = (
            [part.squeeze(-1) for part in take(batch, number)]
            for batch in (task.support, [facts["truth"]], [facts["grid"]])
        )
        each.append(oracle_bound(prior, x, y, truth[0], grid[0], data.noise_std, generator))
    return {name: torch.stack([one[name] for one in each]) for name in each[0]}


def oracle_bound(
    prior: Functions, x: Tensor, y: Tensor, truth: Tensor, grid: Tensor, noise_std: float, generator: torch.Generator
) -> dict[str, Tensor]:
    """q ∝ e^(−λ L̂), the least KL for its loss; the best λ of a grid, since the theorem holds for all q at once."""
    functions, examples = len(prior.slope), len(x)
    error = (prior(x.expand(functions, -1)) - y).square()
    losses = (error / (1 + error)).mean(1).double()
    lambdas = torch.logspace(0, math.log10(30 * examples), 40, dtype=torch.float64)

    def posterior(strength: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        log_q = (-strength * losses).log_softmax(0)
        q = log_q.exp()
        return (q * losses).sum(), (q * log_q).sum() + math.log(functions), q

    terms = [posterior(strength)[:2] for strength in lambdas]
    loss, kl = (torch.stack(part) for part in zip(*terms, strict=True))
    bound = theorem_1(loss, kl, examples=examples, epsilon=DELTA, form=FORM).total
    best = int(bound.argmin())
    chosen = torch.multinomial(posterior(lambdas[best])[2], JUDGES, replacement=True, generator=generator)
    drawn = Functions(*(parameter[chosen] for parameter in prior))
    risk = expected_loss(drawn(grid.expand(JUDGES, -1)), truth, noise_std).mean()
    return {"bound": bound[best], "loss": loss[best], "kl": kl[best], "risk": risk}


def page(record: Mapping[str, Any], more: str) -> str:
    """docs/results/bounds.md, with `more` behind the section of sine-line."""
    headers = ("examples", "posterior", "bound", "loss on them", "expected loss", "KL, nats", "violated")
    rows = [
        (
            str(row["shot"]),
            {"simpa-latent": "SImPa-latent"}.get(name, name),
            interval(found["bound"], 3),
            *(f"{found[key]['mean']:.3f}" for key in ("loss", "risk")),
            f"{found['kl']['mean']:.2f}",
            f"{100 * found['violated']:.2f} % of {found['tasks']:,}",
        )
        for row in record["rows"]
        for name, found in row.items()
        if name != "shot"
    ]
    shares = {"allowed": record["delta"], "confidence": 1 - record["delta"]}
    values = record | {name: f"{100 * share:.0f} %" for name, share in shares.items()}
    return PAGE.format(**values, table=markdown_table(headers, rows), more=more)


if __name__ == "__main__":
    main()
