"""mini-ImageNet, conv4 with 32 filters: what decides accuracy and calibration, and Theorem 1, on two CPU cores.

    FEWSURE_DATA=FOLDER .venv/bin/python benchmarks/mini_imagenet.py decides BODY [NAME …]     validation classes alone
    FEWSURE_DATA=FOLDER .venv/bin/python benchmarks/mini_imagenet.py bounds RUN …              Theorem 1 on test tasks
    make results                            # docs/results/mini-imagenet.md from the JSON

BODY is what `fewsure features --data mini-imagenet --network conv4` has made. `decides` trains short variants of one
training, which differ in one thing each. RUN is a run of SImPa-latent. A row takes the place of an older one.
"""

import argparse
import dataclasses
import json
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from fewsure.certification.environment import FreshTasks
from fewsure.certification.theorem_1 import bounds_of_tasks
from fewsure.core.devices import device_name
from fewsure.core.files import write_atomically
from fewsure.data.pools import Split
from fewsure.evaluation.calibrate import calibrated
from fewsure.evaluation.evaluate import evaluate
from fewsure.features.start import start_at_features
from fewsure.pipeline import start_run, train_run
from fewsure.report.tables import ABSENT, interval, markdown_table
from fewsure.reproduce.targets import changed
from fewsure.training.experiment import load_preset
from fewsure.training.runs import Run
from fewsure.version import __version__

RESULTS = Path(__file__).resolve().parents[1] / "results"
NAMES = ("mini-imagenet-decides", "mini-imagenet-bounds")
DECIDES, BOUNDS = (RESULTS / f"{name}.json" for name in NAMES)
DEVICE = torch.device("cpu")
UPDATES, TASKS, SEED = 500, 2000, 7
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "as the preset": ("simpa-latent", {}),
    "no pretrained body": ("simpa-latent", {}),
    "images not shifted, not mirrored": ("simpa-latent", {"data": {"train_shift": 0, "train_flip": False}}),
    "episodes of 5 ways": ("simpa-latent", {"data": {"train_way": 5}, "training": {"tasks": 8}}),
    "ensemble of 2, half the updates each": ("simpa-latent", {"training": {"updates": UPDATES // 2, "members": 2}}),
    "ProtoNet": ("protonet", {}),
    "ProtoNet, norm of the batch (transductive)": ("protonet", {"network": {"norm": "batch"}}),
}
"""Name → method, and the options on top of `--preset pretrained`."""
FROM_SCRATCH = "no pretrained body"
KL_FACTORS = (0.125, 0.35, 1.0, 2.8, 8.0)
"""Weights of the KL that a run of SImPa-latent is scored at, as multiples of its preset's."""
DELTA, NETWORKS, BOUND_TASKS, CHOICE_TASKS = 0.05, 200, 1000, 200

DECIDES_SECTION = """## What decides

Short trainings of {updates:,} updates, 5-way 1-shot, on {tasks:,} tasks of the validation classes. Each row changes one
thing of the first. No test class was looked at.

{table}

1. ± is a 95 % interval over tasks. The temperature is fitted on other tasks of the validation classes.
2. Training is in processor seconds of {threads} threads. One seed ({seed}). Device: {device}. fewsure {version}.

    .venv/bin/python benchmarks/mini_imagenet.py decides BODY
"""
BOUNDS_SECTION = """## Theorem 1

The bound is on the error of one drawn network, from the support examples of its task alone. It holds for each task by
itself with probability {confidence}. It is in the kl form.

{table}

1. ± is a 95 % interval over {tasks:,} test tasks that training has not seen. A bound of 1 or more says nothing.
2. One training serves all weights of the KL, here {weights}. The one that is taken has the smallest mean bound on
   {choice} validation tasks.
3. The prior has seen the training classes alone. The bound pays for the error of {networks} drawn networks.

    .venv/bin/python benchmarks/mini_imagenet.py bounds RUN
"""


def variant(name: str, body: Path, folder: Path) -> list[dict[str, Any]]:
    """Train one variant and score it on validation tasks; the first one at several weights of the KL."""
    method, options = VARIANTS[name]
    training = {"updates": UPDATES} | options.get("training", {})
    experiment, start = changed(load_preset("pretrained", method, "mini-imagenet"), options, None), None
    experiment = changed(experiment, {"training": training}, None)
    if name != FROM_SCRATCH:
        experiment, start = start_at_features(experiment, body)
    run, began = start_run(folder, experiment, resume=False, start=start), time.process_time()
    train_run(run, DEVICE)
    facts: dict[str, Any] = {"updates": UPDATES, "threads": torch.get_num_threads()}
    facts |= {"train_cpu_seconds": round(time.process_time() - began, 1)}
    ready, meta = calibrated(run, DEVICE), run.load(DEVICE, run.chosen).meta
    found, _ = evaluate(ready, meta, tasks=TASKS, seed=SEED, stream="validation")
    return [{"name": name} | facts | found]


def decides(body: Path, names: Sequence[str], file: Path) -> None:
    """Make the rows of these variants, and keep the others."""
    for name in names or VARIANTS:
        with tempfile.TemporaryDirectory() as folder:
            rows = variant(name, body, Path(folder) / "run")
        kept = [row for row in _rows(file) if row["name"] not in {row["name"] for row in rows}]
        order = list(VARIANTS)
        found = sorted([*kept, *rows], key=lambda row: order.index(row["name"]))
        write_atomically(file, json.dumps(found, indent=1) + "\n")


def _rows(file: Path) -> list[dict[str, Any]]:
    return json.loads(file.read_text(encoding="utf-8")) if file.is_file() else []


def _fresh(run: Run, stream: Split, kl_weight: float, tasks: int) -> dict[str, Any]:
    """Theorem 1 on tasks of a split, at a weight of the KL."""
    algorithm: Any = run.experiment.algorithm
    experiment = dataclasses.replace(run.experiment, algorithm=algorithm.at_kl_weight(kl_weight))
    fresh = FreshTasks(stream, experiment.data.tasks(stream, DEVICE))
    meta = run.load(DEVICE, run.chosen).meta
    return bounds_of_tasks(experiment, meta, fresh, tasks=tasks, delta=DELTA, samples=NETWORKS, seed=SEED)


def bounds(run: Run) -> dict[str, Any]:
    """Choose the weight of the KL on validation tasks, and bound test tasks at it."""
    began = time.process_time()
    algorithm: Any = run.experiment.algorithm
    weights = [factor * algorithm.kl_weight for factor in KL_FACTORS]
    tried = {weight: _fresh(run, "validation", weight, CHOICE_TASKS)["bound"]["mean"] for weight in weights}
    best = min(tried, key=lambda weight: tried[weight])
    data, training = run.experiment.data, run.experiment.training
    return {
        "shot": data.test_shot,
        "train_seed": training.seed,
        "updates": training.updates,
        "preset": run.experiment.preset,
        "start": run.experiment.start,
        "kl_weight": best,
        "validation": [{"kl_weight": weight, "bound": bound} for weight, bound in tried.items()],
        **_fresh(run, "test", best, BOUND_TASKS),
        "seed": SEED,
        "version": __version__,
        "device": device_name(DEVICE),
        "seconds": round(time.process_time() - began, 1),
    }


def section(decided: Sequence[Mapping[str, Any]], bounded: Sequence[Mapping[str, Any]]) -> str:
    """The sections of docs/results/mini-imagenet.md below its tables."""
    return "\n".join(
        [*([_decides_section(decided)] if decided else []), *([_bounds_section(bounded)] if bounded else [])]
    )


def _decides_section(rows: Sequence[Mapping[str, Any]]) -> str:
    headers = ("training", "accuracy", "NLL", "ECE", "ECE without a temperature", "KL, nats", "training")
    cells = [
        (
            str(row["name"]),
            *(interval(row[key]) for key in ("accuracy", "nll")),
            f"{row['ece']:.4f}",
            f"{row['untempered']['ece']:.4f}" if "untempered" in row else ABSENT,
            f"{row['kl']['mean']:.1f}" if "kl" in row else ABSENT,
            f"{row['train_cpu_seconds']:,.0f} s",
        )
        for row in rows
    ]
    return DECIDES_SECTION.format(**rows[0], table=markdown_table(headers, cells))


def _bounds_section(rows: Sequence[Mapping[str, Any]]) -> str:
    headers = ("shot", "error of a drawn network", "bound", "bounds below 1", "KL, nats", "weight of the KL")
    cells = [
        (
            f"{row['shot']} ({row['examples']} examples)",
            *(interval(row[key]) for key in ("query_loss", "bound")),
            f"{row['not_vacuous']:.0%}",
            f"{row['kl']['mean']:.1f}",
            f"{row['kl_weight']:g}",
        )
        for row in rows
    ]
    weights = " to ".join(f"{rows[0]['validation'][end]['kl_weight']:.2g}" for end in (0, -1))
    facts = {"confidence": 1 - DELTA, "weights": weights, "choice": CHOICE_TASKS, "networks": NETWORKS}
    return BOUNDS_SECTION.format(**rows[0], **facts, table=markdown_table(headers, cells))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("decides", "bounds"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*", help="variants of `decides`, or more runs of `bounds`")
    arguments = parser.parse_args()
    if arguments.what == "decides":
        decides(arguments.folder, arguments.names, DECIDES)
        return
    found = [bounds(Run.open(folder)) for folder in (arguments.folder, *map(Path, arguments.names))]
    write_atomically(BOUNDS, json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
