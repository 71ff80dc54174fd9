"""Vectorised over tasks against one task after another, on this machine's CPU: seconds per meta-gradient and ratios.

    .venv/bin/python benchmarks/vectorised.py

The rule of `fewsure.core.vectorise.better_looped`, by which training takes one or the other, rests on them. They are
kept in results/bench-vectorised.json.
"""

import json
import time
from pathlib import Path
from statistics import median
from typing import Any

import torch

from fewsure.bench.cases import Case, headline_cases
from fewsure.core import streams
from fewsure.core.files import write_atomically
from fewsure.core.vectorise import draw_noise
from fewsure.training.engine import Engine
from fewsure.training.experiment import load_preset
from fewsure.types import Stage
from fewsure.version import __version__

RESULTS = Path(__file__).resolve().parents[1] / "results" / "bench-vectorised.json"
REPEATS = 5
CONV_TASKS = 10
CPU = torch.device("cpu")


def seconds(case: Case, *, loop: bool, repeats: int) -> float:
    """The median of a few meta-gradients of the same tasks, after one that warms up."""
    experiment = case.experiment
    algorithm, model, tasks = experiment.algorithm, experiment.training_model, experiment.training.tasks
    generator = streams.generator(0, "benchmark")
    meta = algorithm.init(model, generator)
    batch, _ = experiment.data.tasks("train", CPU).sample(tasks, generator)
    noise = draw_noise(algorithm.noise(model, 5, 10), tasks, generator)
    engine, times = Engine(algorithm, model, loop=loop), []
    for _ in range(repeats + 1):
        began = time.perf_counter()
        engine.gradient(meta, batch, *noise, Stage(torch.tensor(10_000), tasks))
        times.append(time.perf_counter() - began)
    return median(times[1:])


def main() -> None:
    """Print one line per case: the quickstart's SImPa and SImPa-latent, the others with five first-order steps."""
    quickstart = [
        Case(f"{method}, quickstart", "sine-line", load_preset("quickstart", method, "sine-line"))
        for method in ("simpa", "simpa-latent")
    ]
    sine_line = [case for case in headline_cases(("sine-line",)) if not case.method.startswith("simpa")]
    conv4 = [
        case.with_options("training", tasks=CONV_TASKS)
        for kind in ("conv4 28×28", "conv4 84×84")
        for case in headline_cases((kind,))[:2]
    ]
    began, rows = time.perf_counter(), []
    for case in (*quickstart, *sine_line, *conv4):
        row = measured(case)
        rows.append(row)
        print(
            f"{row['tasks']:<12} {row['method']:<18} T {row['T']:<3} vectorised {row['vectorised']:7.4f} s  "
            f"loop {row['loop']:7.4f} s  ratio {row['loop'] / row['vectorised']:5.2f}  training takes: {row['chosen']}",
            flush=True,
        )
    facts = {"device": "cpu", "version": __version__, "torch": torch.__version__, "threads": torch.get_num_threads()}
    record = facts | {"seconds": round(time.perf_counter() - began, 1), "cases": rows}
    write_atomically(RESULTS, json.dumps(record, indent=1) + "\n")


def measured(case: Case) -> dict[str, Any]:
    """Both ways, and which of them training takes."""
    repeats = REPEATS if case.tasks == "sine-line" else 1
    vectorised, looped = (seconds(case, loop=loop, repeats=repeats) for loop in (False, True))
    algorithm, model = case.experiment.algorithm, case.experiment.training_model
    chosen = "loop" if Engine.fastest(algorithm, model, CPU, None).loop else "vectorised"
    tasks = case.experiment.training.tasks
    found = {"vectorised": vectorised, "loop": looped, "chosen": chosen}
    return {"tasks": case.tasks, "method": case.method, "T": tasks, **found}


if __name__ == "__main__":
    main()
