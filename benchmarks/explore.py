r"""Try options: train a preset with some of them changed, score it on validation tasks, add a row to what was tried.

    python benchmarks/explore.py "weight noise" simpa sine-line '{"algorithm": {"weight_noise": 0.1}}' --tasks 500
    python benchmarks/explore.py "Omniglot, small" simpa omniglot '{"training": {"lr": 2e-4}}' --tasks 100 \
        --common '{"network": {"filters": 16}, "training": {"tasks": 5, "updates": 3000}}'

`benchmarks/exploration_page.py` makes a page of the rows. Options that are `--common` to a stage are left out of a row:
the page's text names them. Many rows came from throw-away programs that did the same, some before there was this
script; they alone have the accuracy of one network.
"""

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

from fewsure import streams
from fewsure.algorithms.simpa import Simpa
from fewsure.devices import device_name, find_device
from fewsure.evaluation import evaluate
from fewsure.experiment import Experiment, load_preset
from fewsure.files import write_atomically
from fewsure.learned import with_learned
from fewsure.targets import changed
from fewsure.types import Parts
from fewsure.vectorise import draw_per_task
from fewsure.workflow import start_run, train_run

SAMPLES = 64
"""Of the generator, to be looked at."""
RESULTS = Path(__file__).resolve().parents[1] / "results" / "exploration.json"


def main() -> None:
    """One row."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("stage", "method", "data", "options"):
        parser.add_argument(name)
    parser.add_argument("--common", default="{}", help="options of all rows of the stage, as JSON")
    parser.add_argument("--tasks", type=int, default=500)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--results", type=Path, default=RESULTS)
    asked = parser.parse_args()
    options, device = json.loads(asked.options), find_device(asked.device)
    base = changed(load_preset("recommended", asked.method, asked.data), json.loads(asked.common), None)
    experiment = changed(base, options, None)
    with tempfile.TemporaryDirectory() as folder:
        run = start_run(Path(folder) / "run", experiment, resume=False)
        train_run(run, device)
        meta, loss = run.load(device).meta, run.metrics()[-1]["loss"]
        scores, _ = evaluate(with_learned(run, device), meta, tasks=asked.tasks, seed=0, stream="validation")
    row: dict[str, Any] = {
        "stage": asked.stage,
        "method": asked.method,
        "changed": {name: value for group in options.values() for name, value in group.items()},
        "updates": experiment.training.updates,
        "tasks": asked.tasks,
        "device": device_name(device),
        "seed": experiment.training.seed,
    }
    for score in ("mse", "accuracy", "ece", "mce", "nll"):
        if score in scores:
            row[score] = scores[score]["mean"] if isinstance(scores[score], dict) else scores[score]
    row |= {"loss": loss} | generated(experiment, meta)
    found = json.loads(asked.results.read_text(encoding="utf-8"))
    found["runs"].append(row)
    write_atomically(asked.results, json.dumps(found, indent=1) + "\n")
    print(json.dumps(row))


def generated(experiment: Experiment, meta: Parts) -> dict[str, float]:
    """What SImPa's generator, or the first of them, makes before adaptation.

    The root mean square of the weights' mean (`size`), their standard deviation relative to it (`spread`), and the
    share near the limits of tanh (`saturated`).
    """
    if not isinstance(experiment.algorithm, Simpa):
        return {}
    posterior = experiment.algorithm.posterior(experiment.model)
    device = next(iter(meta["generator"].values())).device
    noise = draw_per_task({"z": posterior.draw()}, SAMPLES, streams.generator(0, "explore", device=device))
    weights = posterior.means(meta["generator"], noise["z"])
    mean = weights.mean(0)
    return {
        "size": float(mean.square().mean().sqrt()),
        "spread": float((weights - mean).norm(dim=1).mean() / mean.norm()),
        "saturated": float((weights.abs() > 0.9).float().mean()),
    }


if __name__ == "__main__":
    main()
