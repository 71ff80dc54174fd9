"""What a person waits for on a CPU: the first update, data, one new task, a thousand tasks to evaluate.

    FEWSURE_DATA=FOLDER .venv/bin/python benchmarks/everyday.py    # four minutes; writes results/everyday.json
    make results                                                   # docs/results/speed.md from the JSON

Trainings are short, since their lengths do not matter here. A table of sensors is drawn: each has a gain, an offset and
a bend of its own. Run it twice if the images of Omniglot and mini-ImageNet have not been decoded before.
"""

import contextlib
import io
import json
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch

import fewsure
from fewsure.bench.timing import initial_meta
from fewsure.core.files import write_atomically
from fewsure.report.tables import markdown_table
from fewsure.training.experiment import Experiment, load_preset
from fewsure.training.update import MetaUpdate, new_optimiser
from fewsure.version import __version__

RESULTS = Path(__file__).resolve().parents[1] / "results" / "everyday.json"
SEED, TASKS, SENSORS, READINGS, KNOWN = 0, 1000, 200, 20, 5
IMAGES = (("omniglot", "omniglot-cpu"), ("mini-imagenet", "recommended"))
LEARNERS: dict[str, dict[str, Any]] = {
    **{name: {} for name in ("mixed", "gp", "ridge", "boosting")},
    **{name: {"updates": 10} for name in ("maml", "tnp", "simpa-latent", "simpa")},
}
"""Methods for a table, and the options of their trainings."""
EVALUATED = (("maml", "sine-line"), ("simpa-latent", "sine-line"), ("protonet", "omniglot"))
CPU = torch.device("cpu")

Row = dict[str, Any]

SECTION = """## What one waits for

{table}

Seconds of one process on {threads} cores, from `benchmarks/everyday.py`. One task has {known} known rows. An evaluation
adapts to {tasks:,} tasks and draws 32 functions for each, with intervals.
"""


def sensor(random: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Readings of a sensor and the true temperatures."""
    gain, offset, middle = 1 + 0.1 * random.normal(), 5 * random.normal(), random.uniform(20, 60)
    true = random.uniform(-20, 60, size=READINGS)
    return gain * true + offset + 8 * np.tanh((true - middle) / 5), true + 0.5 * random.normal(size=READINGS)


def seconds_to_the_first_update(method: str, data: str, preset: str) -> float:
    """From the command to the first line of the log."""
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "run" / "metrics.jsonl"
        options = ["--data", data, "--preset", preset, "--updates", "1", "--device", "cpu", "--out", str(log.parent)]
        began = time.perf_counter()
        with subprocess.Popen(
            [sys.executable, "-m", "fewsure", "train", method, *options],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        ) as process:
            while not log.is_file() or not log.stat().st_size:
                if process.poll():
                    raise SystemExit(f"fewsure train {method} --data {data} failed")
                time.sleep(0.01)
            found = time.perf_counter() - began
            process.kill()  # which a checkpoint and the fit of a temperature would follow
    return found


def share_of_data(experiment: Experiment, updates: int = 8) -> float:
    """The share of an update that the sampling of its tasks takes."""
    experiment = experiment.at_known_precision()
    meta = initial_meta(experiment, CPU)
    make_update = MetaUpdate(experiment, meta, new_optimiser(meta, experiment.training, CPU), CPU)
    source, generator = experiment.data.tasks("train", CPU), torch.Generator().manual_seed(SEED)
    source = source.with_shot(experiment.data.training_shots[1])
    for update in range(5):
        make_update(update)
    numbers = iter(range(5, 10**9))

    def draw() -> None:
        source.sample(experiment.training.tasks, generator)

    both = [(_seconds(draw), _seconds(lambda: make_update(next(numbers)))) for _ in range(updates)]
    drawing, whole = (median(times) for times in zip(*both, strict=True))
    return drawing / whole


def _seconds(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def seconds_for_a_task(learner: fewsure.Learner, tasks: list[tuple[np.ndarray, np.ndarray]]) -> float:
    """Adapt to a task and predict its other rows: the median, without the first."""

    def one(x: np.ndarray, y: np.ndarray) -> None:
        learner.adapt(x[:KNOWN], y[:KNOWN]).predict(x[KNOWN:])

    return median([_seconds(lambda x=x, y=y: one(x, y)) for x, y in tasks][1:])


def seconds_to_evaluate(learner: fewsure.Learner) -> float:
    """Score the test tasks."""
    return _seconds(lambda: learner.evaluate(tasks=TASKS, seed=SEED))


def measurements() -> Iterator[tuple[str, str, Callable[[], float]]]:
    """(what, of what, the measurement) of all."""
    random = np.random.default_rng(SEED)
    sensors, new = ([sensor(random) for _ in range(count)] for count in (SENSORS, 31))
    learners = {name: fewsure.Learner(name, data=sensors, **options) for name, options in LEARNERS.items()}
    for method, data, preset in (("maml", "sine-line", "recommended"), *(("protonet", *images) for images in IMAGES)):
        start = partial(seconds_to_the_first_update, method, data, preset)
        yield "from `fewsure train` to the first update", f"{method}, {data}", start
    for data, preset in IMAGES:
        experiment = load_preset(preset, "protonet", data)
        yield "the data's share of training", f"protonet, {data}", lambda at=experiment: share_of_data(at)
    for name in ("maml", "simpa-latent"):
        yield "the data's share of training", f"{name}, a table", lambda at=name: share_of_data(learners[at].experiment)
    for name, learner in learners.items():
        learner.train()
        yield "adapt to a task of a table, and predict", name, lambda at=learner: seconds_for_a_task(at, new)
    for name in ("gp", "maml", "simpa-latent"):
        yield f"evaluate {TASKS:,} tasks", f"{name}, a table", lambda at=name: seconds_to_evaluate(learners[at])
    for method, data in EVALUATED:
        learner = fewsure.Learner(method, data=data, updates=2)
        learner.train()
        yield f"evaluate {TASKS:,} tasks", f"{method}, {data}", lambda at=learner: seconds_to_evaluate(at)


def section(record: Mapping[str, Any]) -> str:
    """The section of docs/results/speed.md."""
    shown = [(row["what"], row["of"], _shown(row)) for row in record["rows"]]
    table = markdown_table(("what", "of what", "takes"), shown)
    return SECTION.format(table=table, threads=record["threads"], known=KNOWN, tasks=TASKS)


def _shown(row: Mapping[str, Any]) -> str:
    value = row["value"]
    return f"{value:.1%}" if "share" in row["what"] else f"{1000 * value:.1f} ms" if value < 0.1 else f"{value:.1f} s"


def main() -> None:
    """Measure everything, and write the record."""
    warnings.simplefilter("ignore")  # short trainings have not converged
    rows: list[Row] = []
    began = time.perf_counter()
    for what, of, measure in measurements():
        with contextlib.redirect_stderr(io.StringIO()):
            value = measure()
        rows.append({"what": what, "of": of, "value": value})
        print(what, of, _shown(rows[-1]), sep=" | ", flush=True)
    facts = {"seed": SEED, "version": __version__, "torch": torch.__version__, "device": "cpu"}
    facts |= {"threads": torch.get_num_threads(), "seconds": round(time.perf_counter() - began, 1)}
    write_atomically(RESULTS, json.dumps(facts | {"rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
