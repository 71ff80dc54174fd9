"""Theorem 1 for new Omniglot tasks, 5-way 5-shot: the error of a classifier that is drawn from a finite posterior.

    FEWSURE_DATA=FOLDER .venv/bin/python benchmarks/omniglot_bound.py RUN [--tasks N] [--results FILE]
    make results                            # docs/results/bounds.md from the JSON

RUN is a run of SImPa-latent on Omniglot (`benchmarks/omniglot_latent.py`), whose embedding is taken as it is. Each of M
heads has the means of five random training classes. The number of heads is chosen on validation tasks. A task has

    prior       p(j, π) = 1/(M · C!) for head j of M and a numbering π, which names a cell of the head for each class
    posterior   q(j, π) ∝ p(j, π) exp(−λ m L(j, π)),   L(j, π) = share of errors on the m support examples
                KL[q ‖ p] = Σ q ln q + ln(M · C!)

Everything is exact: there are no draws, and no errors of draws. C! grows fast, so this is for a few classes.
"""

import argparse
import json
import math
import time
from collections.abc import Mapping
from itertools import permutations
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from fewsure.core import streams
from fewsure.core.devices import precision
from fewsure.core.files import write_atomically
from fewsure.core.vectorise import take
from fewsure.evaluation.metrics.summary import mean_over_tasks
from fewsure.report.tables import interval, markdown_table
from fewsure.theory.pac_bayes import theorem_1
from fewsure.training.experiment import Experiment
from fewsure.training.runs import Run
from fewsure.types import Parts
from fewsure.version import __version__

RESULTS = Path(__file__).resolve().parents[1] / "results" / "omniglot-bound.json"
DEVICE = torch.device("cpu")
WAY, SHOT = 5, 5
DELTA = 0.05
HEADS = (512, 2048, 8192)
STRENGTHS = (8.0, 12.0, 18.0, 25.0, 35.0, 50.0)
"""λ m that are tried on each task. The theorem holds for all posteriors at once, so the best costs nothing."""
VALIDATION_TASKS = 100

SECTION = """## Omniglot, {way}-way {shot}-shot

The loss is 1 for an error in the class, and 0 otherwise, of one drawn classifier. The bound takes the
{examples} support examples, holds with probability {confidence} for its own task, and is in the {form} form.

{table}

1. A classifier is a linear head above an embedding, and a numbering of its cells by classes. A head has the means of
   {way} random training classes. The prior is uniform over {heads:,} heads and all numberings.
2. The posterior is q ∝ p e^(−λ L̂) with the best λ for each task. E_q L̂ and the KL are sums, so nothing is estimated.
3. To number the classes costs ln {way}! nats alone. No error and no other price would leave a bound of {floor:.2f}.
4. The number of heads was chosen on {validation_tasks} validation tasks: {tried}.
5. {tasks:,} unseen test tasks of seed {seed}. ± is a 95 % interval over tasks. The error on query examples exceeds the
   bound in {violated} of tasks. Device: {device}. fewsure {version}. It took {seconds:.0f} s on one core.

    .venv/bin/python benchmarks/omniglot_bound.py runs/omniglot    # a run of benchmarks/omniglot_latent.py
"""


class Gibbs(NamedTuple):
    """The Gibbs posterior of one task."""

    weights: Tensor
    """q(j, π) of M heads and C! numberings."""
    kl: Tensor

    def mean(self, losses: Tensor) -> Tensor:
        """E_q of a loss of each classifier."""
        return (self.weights * losses).sum()


def numbered_errors(cells: Tensor, y: Tensor, classes: int) -> Tensor:
    """The share of errors of each head under each numbering; `cells` (M, N) are those that the heads put examples into.

    The classes must have equally many examples.
    """
    of_class = functional.one_hot(y, classes).to(torch.get_default_dtype())
    in_cell = functional.one_hot(cells, classes).to(of_class.dtype)
    shares = torch.einsum("nc,mnk->mck", of_class, in_cell) / len(y)
    numberings = torch.tensor(list(permutations(range(classes))))
    named = functional.one_hot(numberings, classes).to(of_class)
    return 1 - shares.flatten(1) @ named.flatten(1).T


def gibbs_posterior(losses: Tensor, strength: float) -> Gibbs:
    """The posterior that weighs losses with λ m = `strength`."""
    log_weights = (-strength * losses).flatten().log_softmax(0).view_as(losses)
    weights = log_weights.exp()
    return Gibbs(weights, (weights * log_weights).sum() + math.log(losses.numel()))


def embedded(experiment: Experiment, meta: Parts, images: Tensor) -> Tensor:
    """Images in the run's embedding, each with mean 0 and variance 1 over its numbers."""
    network = experiment.model.network.with_outputs(experiment.algorithm.embedding)
    with torch.no_grad(), precision(experiment.training.precision):
        found = [network(meta["embedding"], part) for part in images.split(500)]
    return functional.layer_norm(torch.cat(found), found[0].shape[-1:])


def heads(experiment: Experiment, meta: Parts, count: int, seed: int) -> Tensor:
    """(M, 5, f): the means of five training classes each."""
    pool = experiment.data.pool("train")
    images = embedded(experiment, meta, pool.examples.float() / 255)
    means = torch.stack([part.mean(0) for part in images.split(pool.counts.tolist())])
    means = functional.layer_norm(means, means.shape[-1:])
    keys = torch.rand(count, len(means), generator=streams.generator(seed, "heads"))
    return means[keys.argsort(-1)[:, :WAY]]


def bounds(experiment: Experiment, meta: Parts, prior: Tensor, stream: str, tasks: int, seed: int) -> dict[str, Any]:
    """The bounds of new tasks, with the terms behind them and the error on query examples."""
    sampler = experiment.data.with_shot(SHOT).tasks(stream, DEVICE)
    drawn, _ = sampler.sample(tasks, streams.generator(seed, stream, "finite"))
    rows = []
    for number in range(tasks):
        task = take(drawn, number)
        known, unknown = (
            numbered_errors(torch.einsum("mkf,nf->mnk", prior, embedded(experiment, meta, x)).argmax(-1), y, WAY)
            for x, y in (task.support, task.query)
        )
        found = []
        for strength in STRENGTHS:
            posterior = gibbs_posterior(known, strength)
            loss, kl = posterior.mean(known), posterior.kl
            total = theorem_1(loss.double(), kl.double(), examples=len(task.support.y), epsilon=DELTA, form="kl").total
            found.append(torch.stack([total, loss.double(), kl.double(), posterior.mean(unknown).double()]))
        rows.append(min(found, key=lambda row: float(row[0])))
    bound, loss, kl, risk = torch.stack(rows).unbind(-1)
    scores = {"bound": bound, "support_error": loss, "kl": kl, "query_error": risk}
    means = {name: mean_over_tasks(values) for name, values in scores.items()}
    return {
        "heads": len(prior),
        "stream": stream,
        "tasks": tasks,
        **means,
        "above": float((risk > bound).double().mean()),
    }


def section(record: Mapping[str, Any]) -> str:
    """The section of docs/results/bounds.md."""
    examples = record["way"] * record["shot"]
    numbering, none = torch.tensor(math.lgamma(record["way"] + 1)), torch.tensor(0.0)
    floor = theorem_1(none, numbering, examples=examples, epsilon=record["delta"], form="kl").total
    headers = ("bound", "error on support examples", "error on query examples", "KL, nats")
    row = (
        *(interval(record[key], 3) for key in ("bound", "support_error", "query_error")),
        interval(record["kl"], 1),
    )
    facts = {
        "examples": examples,
        "confidence": f"{100 * (1 - record['delta']):.0f} %",
        "floor": float(floor),
        "violated": f"{100 * record['above']:.1f} %",
        "tried": ", ".join(f"{found['bound']['mean']:.3f} with {found['heads']:,}" for found in record["validation"]),
        "validation_tasks": record["validation"][0]["tasks"],
    }
    return SECTION.format(**record, **facts, table=markdown_table(headers, [row]))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("run", type=Path)
    parser.add_argument("--tasks", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--results", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    began = time.process_time()
    run = Run.open(arguments.run)
    experiment, meta = run.experiment, run.load(DEVICE).meta
    tried = []
    for count in HEADS:
        prior = heads(experiment, meta, count, arguments.seed)
        tried.append(bounds(experiment, meta, prior, "validation", VALIDATION_TASKS, arguments.seed))
        print(f"validation: {count:,} heads, bound {tried[-1]['bound']['mean']:.4f}", flush=True)
    best = min(tried, key=lambda found: found["bound"]["mean"])["heads"]
    prior = heads(experiment, meta, best, arguments.seed)
    found = bounds(experiment, meta, prior, "test", arguments.tasks, arguments.seed)
    print(json.dumps(found))
    record = {
        **found,
        "validation": tried,
        "way": WAY,
        "shot": SHOT,
        "delta": DELTA,
        "form": "kl",
        "seed": arguments.seed,
        "version": __version__,
        "device": "cpu",
        "seconds": round(time.process_time() - began, 1),
        "data_checksum": experiment.data.checksum("test"),
    }
    write_atomically(arguments.results, json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
