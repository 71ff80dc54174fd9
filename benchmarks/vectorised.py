"""Vectorised over tasks against one task after another, on this machine's CPU: seconds per meta-gradient and ratios.

.venv/bin/python benchmarks/vectorised.py
"""

import time
from statistics import median

import torch

from fewsure import streams
from fewsure.algorithms import ALGORITHMS
from fewsure.experiment import load_preset
from fewsure.training.engine import Engine
from fewsure.types import Stage
from fewsure.vectorise import draw_noise

REPEATS = 5


def main() -> None:
    """Print one line per method: the quickstart's SImPa, the others as recommended."""
    for name in ALGORITHMS:
        experiment = load_preset("quickstart" if name == "simpa" else "recommended", name, "sine-line")
        algorithm, model, tasks = experiment.algorithm, experiment.model, 20
        generator = streams.generator(0, "benchmark")
        meta = algorithm.init(model, generator)
        batch, _ = experiment.data.sample(tasks, generator)
        noise = draw_noise(algorithm.noise(model), tasks, generator)
        seconds = {}
        for loop in (False, True):
            engine, times = Engine(algorithm, model, loop=loop), []
            for _ in range(REPEATS + 1):
                began = time.perf_counter()
                engine.gradient(meta, batch, *noise, Stage(torch.tensor(10_000), tasks))
                times.append(time.perf_counter() - began)
            seconds[loop] = median(times[1:])
        ratio = seconds[True] / seconds[False]
        print(
            f"{name:<10}vectorised {seconds[False]:.4f} s   loop {seconds[True]:.4f} s   ratio {ratio:.1f}", flush=True
        )


if __name__ == "__main__":
    main()
