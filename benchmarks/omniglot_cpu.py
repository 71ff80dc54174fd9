"""Omniglot 5-way 1-shot on a CPU, from the archive to the result: ProtoNet, MAML, SImPa with `--preset omniglot-cpu`.

    FEWSURE_DATA=FOLDER .venv/bin/python benchmarks/omniglot_cpu.py [METHOD …] [--results FILE]

Decodes into a cache of its own, trains, evaluates, and prints each method's accuracy with the seconds that all of it
took. `--results` writes the objects of `fewsure evaluate --json` with these seconds.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

TASKS = {"protonet": 1000, "maml": 1000, "simpa": 100}
"""SImPa predicts with 32 networks where the others have one."""


def measured(method: str, folder: Path) -> dict[str, Any]:
    """Train and evaluate in processes of their own, as a user would."""
    environment = os.environ | {"FEWSURE_CACHE": str(folder / "cache" / method)}
    command = [sys.executable, "-m", "fewsure"]
    run = str(folder / method)
    began = time.perf_counter()
    train = ["train", method, "--data", "omniglot", "--preset", "omniglot-cpu", "--device", "cpu", "--out", run]
    subprocess.run([*command, *train], check=True, env=environment, stdout=subprocess.DEVNULL)
    trained = time.perf_counter() - began
    evaluate = ["evaluate", run, "--tasks", str(TASKS[method]), "--device", "cpu", "--json"]
    printed = subprocess.run([*command, *evaluate], check=True, env=environment, stdout=subprocess.PIPE).stdout
    seconds = {"train_seconds": round(trained, 1), "total_seconds": round(time.perf_counter() - began, 1)}
    return json.loads(printed) | {"preset": "omniglot-cpu", "cores": os.cpu_count()} | seconds


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("methods", nargs="*", default=list(TASKS))
    parser.add_argument("--results", type=Path)
    arguments = parser.parse_args()
    results = []
    with tempfile.TemporaryDirectory() as folder:
        for method in arguments.methods:
            result = measured(method, Path(folder))
            results.append(result)
            accuracy = result["accuracy"]
            print(
                f"{method:<10} accuracy {accuracy['mean']:.4f} ± {accuracy['ci95']:.4f} on {result['tasks']:,} tasks, "
                f"{result['total_seconds']:.0f} s in all, {result['train_seconds']:.0f} s to the end of training"
            )
    if arguments.results is not None:
        arguments.results.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
