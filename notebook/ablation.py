"""Which parts of SImPa's recipe matter: variants of `ablation.toml`, trained and scored on validation tasks.

python notebook/ablation.py runs/ablation --device cuda        trains, and writes ablation.json and the page
python notebook/ablation.py --page                             writes the page from the results that are there
"""

import argparse
import dataclasses
import json
import math
import tomllib
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import torch
from matplotlib.figure import Figure
from scipy import stats

from fewsure.core.devices import find_device
from fewsure.core.files import write_atomically
from fewsure.pipeline import evaluate_run, start_run, train_run
from fewsure.report.drawing import QUIET, WIDTH, figure_png, plain, tidy
from fewsure.report.styles import VERMILLION
from fewsure.reproduce.targets import changed
from fewsure.training.experiment import Experiment, load_preset

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "ablation.json"
TASKS = 1000
SCORES = ("mse", "ece", "mce", "nll")
Row = dict[str, Any]


def main() -> None:
    """Train the variants unless the page alone is asked for, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, nargs="?", help="where the runs go")
    parser.add_argument("--page", action="store_true")
    parser.add_argument("--updates", type=int, default=900)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--device", default="auto")
    asked = parser.parse_args()
    if not asked.page:
        if asked.runs is None:
            parser.error("expected a folder for the runs, or --page")
        device = find_device(asked.device)
        rows = [
            scored(asked.runs / name, variant, asked.updates, seed, device)
            for name, variant in variants().items()
            for seed in range(asked.seeds)
        ]
        write_atomically(RESULTS, json.dumps(rows, indent=1) + "\n")
    rows = json.loads(RESULTS.read_text(encoding="utf-8"))
    write_atomically(HERE / "figures" / "ablation.png", figure_png(figure(rows)))
    write_atomically(HERE / "ablation.md", page(rows))


def variants() -> dict[str, Experiment]:
    """The recommended SImPa with the options of all variants, and then a variant's own, on top."""
    tables = tomllib.loads((HERE / "ablation.toml").read_text(encoding="utf-8"))
    base = changed(load_preset("recommended", "simpa", "sine-line"), tables.pop("every-variant"), "ablation")
    return {name: changed(base, options, name) for name, options in tables.items()}


def scored(folder: Path, variant: Experiment, updates: int, seed: int, device: torch.device) -> Row:
    """A trained variant's scores on validation tasks."""
    training = dataclasses.replace(variant.training, updates=updates, seed=seed)
    run = start_run(folder / f"seed-{seed}", dataclasses.replace(variant, training=training), resume=True)
    train_run(run, device)
    found = evaluate_run(run, device, tasks=TASKS, seed=0, stream="validation")
    facts = {"label": folder.name, "train_seed": seed, "updates": updates, "preset": variant.preset}
    return found | facts | {"train_seconds": run.metrics()[-1]["seconds"]}


def page(rows: Sequence[Row]) -> str:
    """The scores of each variant: mean ± standard deviation over seeds, in the order of ECE."""
    first = rows[0]
    lines = [
        "# Which parts of SImPa's recipe matter",
        "",
        "Made by `python notebook/ablation.py` from `ablation.json`; edit neither by hand.",
        "",
        f"{first['tasks']:,} validation tasks of {first['data']}, {first['updates']:,} updates on {first['device']},",
        f"version {first['version']}. Mean ± standard deviation over seeds, in the order of ECE. Each variant of",
        "`ablation.toml` changes one part of the base, which has 5 inner steps and no clipping.",
        "",
        f"| variant | seeds | {' | '.join(score.upper() for score in SCORES)} | seconds of a training |",
        f"|{' --- |' * (len(SCORES) + 3)}",
    ]
    for label, group in by_variant(rows):
        cells = [over_seeds([value(row, score) for row in group]) for score in SCORES]
        seconds = mean(row["train_seconds"] for row in group)
        lines.append(f"| {label} | {len(group)} | {' | '.join(cells)} | {seconds:.0f} |")
    caption = "MSE and ECE of every variant: each seed, and the mean with its 95 % interval over seeds"
    return "\n".join([*lines, "", f"![{caption}](figures/ablation.png)", ""])


def figure(rows: Sequence[Row]) -> Figure:
    """Every seed as a ring, their mean as a dot with its 95 % interval (of the logarithm for the MSE)."""
    groups = by_variant(rows)
    drawn = Figure(figsize=(WIDTH, 0.32 * len(groups) + 1.8), layout="constrained")
    error, calibration = drawn.subplots(1, 2, sharey=True)
    for position, (label, group) in enumerate(groups):
        colour = VERMILLION if label == "base" else QUIET
        errors = [math.log10(row["mse"]["mean"]) for row in group]
        for axes, values in ((error, errors), (calibration, [row["ece"] for row in group])):
            reach = 0.0
            if len(values) > 1:
                reach = stats.t.ppf(0.975, len(values) - 1) * stdev(values) / math.sqrt(len(values))
            axes.errorbar(mean(values), position, xerr=reach, fmt="o", color=colour, elinewidth=1.5, capsize=3)
            axes.plot(values, [position] * len(values), "o", markerfacecolor="none", color=colour, markersize=4)
    ticks = range(-1, 5)
    error.set_xticks(ticks, [f"{10.0**tick:g}" for tick in ticks])
    error.set(xlim=(-0.5, 4), title="Error (lower is better)", xlabel="mean squared error")
    error.set_yticks(range(len(groups)), [plain(label) for label, _ in groups])
    error.invert_yaxis()
    calibration.set(xlim=(0.1, 0.55), title="Calibration (lower is better)", xlabel="ECE")
    for axes in (error, calibration):
        tidy(axes)
    return drawn


def by_variant(rows: Sequence[Row]) -> list[tuple[str, list[Row]]]:
    """In the order of their mean ECE."""
    groups = [(label, list(group)) for label, group in groupby(rows, key=lambda row: str(row["label"]))]
    return sorted(groups, key=lambda entry: mean(row["ece"] for row in entry[1]))


def value(row: Row, score: str) -> float:
    """Of a row, as a number."""
    found = row[score]
    return float(found["mean"] if isinstance(found, dict) else found)


def over_seeds(values: Sequence[float]) -> str:
    """Mean ± standard deviation."""
    return f"{mean(values):.3f}" + (f" ± {stdev(values):.3f}" if len(values) > 1 else "")


if __name__ == "__main__":
    main()
