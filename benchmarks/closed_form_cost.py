"""What adapting and predicting costs with Gaussian processes: 1,000 tasks of 10 points, on one CPU core.

    .venv/bin/python benchmarks/closed_form_cost.py    # seconds; writes results/closed-form-cost.json
    make results                                       # docs/methods/closed-form.md from the JSON

Each task has 10 known points and 10 questions, and 3 inputs. Its density is given at the questions, and 32 functions
are drawn. Tasks are taken together, as `fewsure evaluate` takes them, or one after the other, as a Learner does.
"""

import json
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch

import fewsure
from fewsure.algorithms.gp import Gp
from fewsure.algorithms.linear import Ridge
from fewsure.algorithms.pacoh import Pacoh
from fewsure.core.files import write_atomically
from fewsure.core.vectorise import draw_per_task, for_each
from fewsure.evaluation.evaluate import SAMPLES
from fewsure.networks.losses import regression
from fewsure.networks.mlp import Mlp
from fewsure.report.styles import display_name
from fewsure.report.tables import ABSENT, markdown_table
from fewsure.types import Algorithm, Batch, Noise
from fewsure.version import __version__

RESULTS = Path(__file__).resolve().parents[1] / "results" / "closed-form-cost.json"
TASKS, POINTS, INPUTS, REPEATS, SEED = 1000, 10, 3, 3, 0
MODEL = regression(Mlp((INPUTS, 32, 32, 1)))
METHODS: dict[str, Algorithm] = {"gp": Gp(), "pacoh": Pacoh(), "ridge": Ridge()}


def together(algorithm: Algorithm, *, functions: bool) -> float:
    """Processor seconds of all tasks at once: of their densities alone, or of functions too."""
    generator = torch.Generator().manual_seed(SEED)
    meta = algorithm.init(MODEL, generator)
    x, at = (torch.randn(TASKS, POINTS, INPUTS, generator=generator) for _ in range(2))
    batch = Batch(x, x.sum(-1, keepdim=True))
    noise = draw_per_task(algorithm.prediction_noise(MODEL, SAMPLES, POINTS), TASKS, generator)

    def task(parts: tuple[Batch, torch.Tensor, Noise], meta: Any) -> Any:
        support, at, drawn = parts
        posterior = algorithm.adapt(meta, MODEL, support, {})
        density = algorithm.predictive(posterior, MODEL, at, drawn)
        return density.means, density.stds, *([algorithm.predict(posterior, MODEL, at, drawn)] if functions else [])

    return _median(lambda: for_each(task)((batch, at, noise), meta))


def one_by_one() -> float:
    """Processor seconds with a Learner that is fitted to lines."""
    random = np.random.default_rng(SEED)

    def line() -> tuple[Any, Any]:
        x = random.normal(size=(2 * POINTS, INPUTS))
        return x, x @ random.normal(size=INPUTS) + 0.1 * random.normal(size=len(x))

    learner = fewsure.Learner("gp", [line() for _ in range(30)], device="cpu").train(quiet=True)
    tasks = [line() for _ in range(TASKS)]

    def predicted() -> None:
        for x, y in tasks:
            _ = learner.adapt(x[:POINTS], y[:POINTS]).predict(x[POINTS:]).std

    return _median(predicted)


def _median(work: Callable[[], Any]) -> float:
    times = []
    with torch.no_grad():
        for _ in range(1 + REPEATS):
            began = time.process_time()
            work()
            times.append(time.process_time() - began)
    return median(times[1:])


def table(record: dict[str, Any]) -> str:
    """The table of docs/methods/closed-form.md."""
    headers = ("method", "densities", "densities and functions", "one after the other, with a Learner")
    rows = [
        (
            display_name(row["method"]),
            *(f"{row[key]:.2f} s" if key in row else ABSENT for key in ("density", "functions", "learner")),
        )
        for row in record["rows"]
    ]
    return markdown_table(headers, rows)


def main() -> None:
    """Measure, and keep everything in one record."""
    torch.set_num_threads(1)
    began, rows = time.process_time(), []
    for name, algorithm in METHODS.items():
        seconds = {"density": together(algorithm, functions=False), "functions": together(algorithm, functions=True)}
        rows.append({"method": name, **seconds} | ({"learner": one_by_one()} if name == "gp" else {}))
        print(json.dumps(rows[-1]), flush=True)
    facts: dict[str, Any] = {
        "device": "cpu",
        "threads": 1,
        "seed": SEED,
        "version": __version__,
        "torch": torch.__version__,
    }
    facts["seconds"] = round(time.process_time() - began, 1)
    sizes = {"tasks": TASKS, "points": POINTS, "inputs": INPUTS, "samples": SAMPLES, "repeats": REPEATS}
    write_atomically(RESULTS, json.dumps(facts | sizes | {"rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
