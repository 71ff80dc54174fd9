"""What a task costs in training with SImPa-latent, its KL included, beside MAML on the same tasks.

    .venv/bin/python benchmarks/task_cost.py    # a minute on one core; writes results/task-cost.json
    make results                                # docs/methods/simpa-latent.md from the JSON

A meta-update draws its tasks and does all that a training does, with the settings that each method recommends. All
have the same number of tasks, examples and queries. Their updates take turns, and each is timed in processor seconds of
one thread. Images are random pixels: as costly as real ones, and nothing to download.
"""

import json
import time
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import torch

from fewsure.bench.cases import SyntheticImages
from fewsure.core.files import write_atomically
from fewsure.networks.conv4 import Conv4Options
from fewsure.report.tables import markdown_table
from fewsure.training.experiment import Experiment, load_preset
from fewsure.training.update import MetaUpdate, new_optimiser
from fewsure.version import __version__

RESULTS = Path(__file__).resolve().parents[1] / "results" / "task-cost.json"
REPEATS, WARM_UP, SEED = 9, 2, 0
OWN = "simpa-latent"
STEPS: dict[str, Any] = {"inner_steps": 5, "first_order": True}
"""MAML's in the comparisons of speed."""


class Tasks(NamedTuple):
    """Tasks that all methods are trained on."""

    name: str
    data: str
    shot: int
    query: int
    number: int
    images: SyntheticImages | None = None

    def experiment(self, method: str, **options: Any) -> Experiment:
        """A method with its recommended settings, and images with the paper's network and without cuts."""
        found = load_preset("recommended", method, self.data)
        if self.images is not None:
            options |= {"cuts": 0} if method == OWN else {}
            found = replace(found, data=self.images, network=Conv4Options(norm=found.network.norm))
        return replace(
            found,
            data=replace(found.data, shot=self.shot, query=self.query),
            algorithm=replace(found.algorithm, **options),
            training=replace(found.training, tasks=self.number),
        )


TASKS = (
    Tasks("sine-line", "sine-line", 5, 24, 20),
    Tasks("sine-line", "sine-line", 5, 24, 128),
    Tasks("conv4 28×28, 5-way", "omniglot", 1, 15, 10, SyntheticImages()),
)


def medians(experiments: list[Experiment]) -> list[float]:
    """Processor seconds of an update of each, taken in turns after a warm-up."""
    device, updates = torch.device("cpu"), []
    for experiment in experiments:
        meta = experiment.algorithm.init(experiment.training_model, torch.Generator().manual_seed(SEED))
        updates.append(MetaUpdate(experiment, meta, new_optimiser(meta, experiment.training, device), device))
    times: list[list[float]] = [[] for _ in updates]
    for number in range(WARM_UP + REPEATS):
        for update, found in zip(updates, times, strict=True):
            began = time.process_time()
            update(number)
            found.append(time.process_time() - began)
    return [median(found[WARM_UP:]) for found in times]


def measured(tasks: Tasks) -> dict[str, Any]:
    """Seconds of a task with each method."""
    own, maml = tasks.experiment(OWN), tasks.experiment("maml")
    entries = {OWN: own, maml_name(maml): maml}
    short = tasks.experiment("maml", **STEPS)
    entries[maml_name(short)] = short
    found = dict(zip(entries, medians(list(entries.values())), strict=True))
    facts = {"tasks": tasks.name, "shot": tasks.shot, "query": tasks.query, "T": tasks.number}
    return facts | {"recommended": maml_name(maml), "seconds": {name: s / tasks.number for name, s in found.items()}}


def maml_name(experiment: Experiment) -> str:
    """MAML with its steps."""
    maml = experiment.algorithm
    return f"MAML, {maml.inner_steps} steps, {'first' if maml.first_order else 'second'} order"


def table(record: dict[str, Any]) -> str:
    """The table of docs/methods/simpa-latent.md."""
    rows = []
    for row in record["rows"]:
        own, *others = row["seconds"].values()
        for name, seconds in zip(list(row["seconds"])[1:], others, strict=True):
            recommended = " (recommended)" if name == row["recommended"] else ""
            size = str(row["shot"]), str(row["query"]), str(row["T"])
            times = f"{1000 * own:.2f} ms", f"{1000 * seconds:.2f} ms", f"{own / seconds:.2f}"
            rows.append((row["tasks"], *size, name + recommended, *times))
    return markdown_table(("tasks", "shot", "queries", "T", "beside", "SImPa-latent", "MAML", "ratio"), rows)


def main() -> None:
    """Measure, and keep everything in one record."""
    torch.set_num_threads(1)
    began, rows = time.process_time(), []
    for tasks in TASKS:
        rows.append(measured(tasks))
        print(json.dumps(rows[-1], ensure_ascii=False), flush=True)
    facts = {"device": "cpu", "threads": 1, "seed": SEED, "version": __version__, "torch": torch.__version__}
    record = facts | {"repeats": REPEATS, "seconds": round(time.process_time() - began, 1), "rows": rows}
    write_atomically(RESULTS, json.dumps(record, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
