"""Methods that read the known examples, on sine-line: from the command line to the scores on 1,000 test tasks.

    .venv/bin/python benchmarks/in_context.py tnp        # minutes on one core; adds to results/in-context.json
    make results                                         # docs/results/sine-line.md from the JSON

The settings are the recommended ones, or the options of `fewsure train` that follow. The test tasks are those of the
record of `fewsure reproduce regression`. `benchmarks/own_tables.py` has the same methods on real tables.
"""

import argparse
import json
import resource
import tempfile
from pathlib import Path
from typing import Any

import torch

import fewsure
from fewsure.cli.main import main as command
from fewsure.core.files import write_atomically
from fewsure.reproduce.targets import TARGETS
from fewsure.version import __version__

RESULTS = Path(__file__).resolve().parents[1] / "results" / "in-context.json"
SEED, TASKS, SHOT = 0, 1000, 5
SCORES = ("tasks", "shot", "mse", "nll", "crps", "coverage_90", "ece", "seconds")


def measure(method: str, options: list[str], run: Path) -> dict[str, Any]:
    """Train and score one method."""
    before = processor_seconds()
    if code := command(["train", method, *options, "--seed", str(SEED), "--device", "cpu", "--out", str(run)]):
        raise SystemExit(code)
    spent, threads = round(processor_seconds() - before, 1), torch.get_num_threads()
    learner, seed = fewsure.load(run, device="cpu"), TARGETS["regression"].test_seed
    found, training = learner.evaluate(tasks=TASKS, seed=seed, shot=SHOT), learner.experiment.training
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
        "test_seed": seed,
        "seed": SEED,
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
    parser.add_argument("method", help="options of `fewsure train` may follow")
    parser.add_argument("--results", type=Path, default=RESULTS, help="where the row goes")
    given, options = parser.parse_known_args()
    with tempfile.TemporaryDirectory() as folder:
        row = measure(given.method, options, Path(folder) / "run")
    rows = json.loads(given.results.read_text(encoding="utf-8")) if given.results.is_file() else []
    rows = [other for other in rows if (other["method"], other["options"]) != (row["method"], row["options"])]
    write_atomically(given.results, json.dumps([*rows, row], indent=1) + "\n")
    print(json.dumps(row, indent=1))


if __name__ == "__main__":
    main()
