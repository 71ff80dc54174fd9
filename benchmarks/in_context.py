"""Methods that read the known examples, on sine-line: from the command line to the scores on 1,000 test tasks.

    .venv/bin/python benchmarks/in_context.py tnp        # minutes on one core; adds to results/in-context.json
    .venv/bin/python benchmarks/in_context.py exact      # the exact posterior on the same tasks
    make results                                         # docs/results/sine-line.md from the JSON

The settings are the recommended ones, or the options of `fewsure train` that follow. The test tasks are those of the
record of `fewsure reproduce regression`. `benchmarks/own_tables.py` has the same methods on real tables.
"""

import argparse
import json
import resource
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

import torch

import fewsure
from fewsure.cli.main import main as command
from fewsure.core import streams
from fewsure.core.files import write_atomically
from fewsure.core.vectorise import take
from fewsure.evaluation.evaluate import BLOCK, unseen_block
from fewsure.evaluation.scoring.predict import Predict
from fewsure.evaluation.scoring.regression import RegressionScorer
from fewsure.reproduce.targets import TARGETS
from fewsure.training.experiment import load_preset
from fewsure.version import __version__

RESULTS = Path(__file__).resolve().parents[1] / "results" / "in-context.json"
TASKS, SHOT = 1000, 5
EXACT, FUNCTIONS = "exact", 256
"""The name of the exact posterior, and the functions drawn from it for each task."""
SCORES = ("tasks", "shot", "mse", "nll", "crps", "coverage_90", "ece", "seconds")


def measure(method: str, options: list[str], seed: int, run: Path) -> dict[str, Any]:
    """Train and score one method."""
    before = processor_seconds()
    if code := command(["train", method, *options, "--seed", str(seed), "--device", "cpu", "--out", str(run)]):
        raise SystemExit(code)
    spent, threads = round(processor_seconds() - before, 1), torch.get_num_threads()
    learner, test_seed = fewsure.load(run, device="cpu"), TARGETS["regression"].test_seed
    found, training = learner.evaluate(tasks=TASKS, seed=test_seed, shot=SHOT), learner.experiment.training
    return {
        "problem": "sine-line",
        "method": method,
        "options": options,
        "split": "test",
        "updates": training.updates,
        "training_tasks": training.tasks,
        "train_cpu_seconds": spent,
        "threads": threads,
        **{name: found[name] for name in SCORES},
        "test_seed": test_seed,
        "seed": seed,
        "version": __version__,
        "device": "cpu",
    }


def exact() -> dict[str, Any]:
    """Score functions that are drawn as tasks are made, and weighted by their likelihood on the known examples."""
    began, test_seed, device = time.perf_counter(), TARGETS["regression"].test_seed, torch.device("cpu")
    experiment = load_preset("recommended", "simpa-latent", "sine-line").with_shot(SHOT)
    data, generator = experiment.data, streams.generator(test_seed, EXACT)
    scorer, records = RegressionScorer(data.noise_std), []
    for index in range(TASKS // BLOCK):
        block = unseen_block(experiment, index, test_seed, "test", device)
        for number in range(BLOCK):
            task, facts, noise = (take(part, number) for part in (block.task, block.facts, block.prediction_noise))
            functions = partial(data.exact_functions, task.support, size=FUNCTIONS, generator=generator)
            records.append(scorer.score(Predict(functions), task, facts, noise))
    found = scorer.summarise([{name: torch.stack([one[name] for one in records]) for name in records[0]}])
    own = {"tasks": TASKS, "shot": SHOT, "seconds": round(time.perf_counter() - began, 1)}
    return {
        "problem": "sine-line",
        "method": EXACT,
        "options": [],
        "split": "test",
        "functions": FUNCTIONS,
        **{name: (own | found)[name] for name in SCORES},
        "test_seed": test_seed,
        "seed": test_seed,
        "version": __version__,
        "device": "cpu",
    }


def processor_seconds() -> float:
    """Of this process so far."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def main() -> None:
    """Measure one method, and put its row in the place of an older one."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("method", help="or `exact`; options of `fewsure train` may follow")
    parser.add_argument("--seed", type=int, default=0, help="of the training")
    parser.add_argument("--results", type=Path, default=RESULTS, help="where the row goes")
    given, options = parser.parse_known_args()
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        row = exact() if given.method == EXACT else measure(given.method, options, given.seed, run)
    rows = json.loads(given.results.read_text(encoding="utf-8")) if given.results.is_file() else []
    rows = [other for other in rows if any(other[key] != row[key] for key in ("method", "options", "seed"))]
    write_atomically(given.results, json.dumps([*rows, row], indent=1) + "\n")
    print(json.dumps(row, indent=1))


if __name__ == "__main__":
    main()
