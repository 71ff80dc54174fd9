"""How much slower a training on a CPU becomes while another one runs, with and without spinning threads.

    .venv/bin/python benchmarks/busy_machine.py

Trains the quickstart's SImPa for a few seconds, once and twice at a time; prints seconds per update and their ratios.
"""

import json
import os
import subprocess
import sys
import time

SECONDS = 8.0
SPIN_BY_DEFAULT = "300000"
"""What libgomp does where GOMP_SPINCOUNT is not set and threads do not outnumber cores."""


def seconds_per_update() -> float:
    """Of the quickstart's SImPa, in this process."""
    import torch

    from fewsure.core import streams
    from fewsure.training.experiment import load_preset
    from fewsure.training.optimiser import Optimiser
    from fewsure.training.update import MetaUpdate

    experiment = load_preset("quickstart", "simpa", "sine-line")
    meta = experiment.algorithm.init(experiment.model, streams.generator(0, "init"))
    make_update = MetaUpdate(experiment, meta, Optimiser(meta, torch.device("cpu")), torch.device("cpu"))
    for update in range(3):
        make_update(update)
    began, count = time.perf_counter(), 0
    while time.perf_counter() - began < SECONDS:
        make_update(count)
        count += 1
    return (time.perf_counter() - began) / count


def measured(spin: str, *, trainings: int) -> float:
    """The slowest of so many trainings at once, each in a process of its own."""
    environment = {**os.environ, "GOMP_SPINCOUNT": spin}
    command = [sys.executable, __file__, "--measure"]
    started = [subprocess.Popen(command, env=environment, stdout=subprocess.PIPE) for _ in range(trainings)]
    return max(float(json.loads(process.communicate()[0])) for process in started)


def main() -> None:
    """Print the table."""
    for name, spin in (("spinning (OpenMP's default)", SPIN_BY_DEFAULT), ("sleeping (fewsure's default)", "0")):
        alone, beside = measured(spin, trainings=1), measured(spin, trainings=2)
        print(
            f"{name:<30}one training {alone:.3f} s   two at once {beside:.3f} s   ratio {beside / alone:.1f}",
            flush=True,
        )


if __name__ == "__main__":
    print(json.dumps(seconds_per_update())) if "--measure" in sys.argv else main()
