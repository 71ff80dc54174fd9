"""The results of a reproduction as a Markdown page: our figures beside the paper's, and what they took."""

from collections.abc import Mapping, Sequence
from itertools import groupby
from statistics import mean, stdev
from typing import Any

from fewsure.report.reference import Printed, printed_for
from fewsure.report.styles import display_name

Row = Mapping[str, Any]
STREAMS = {"regression": "test", "ablation": "validation"}
CAPTIONS = {
    "regression": "MSE, calibration and reliability of the first seed of each method beside the paper's",
    "ablation": "MSE and ECE of every variant: each seed, and the mean with its 95 % interval over seeds",
}
HEADERS = ("entry", "seeds", "samples", "MSE", "ECE", "MCE", "NLL", "MSE / ECE / MCE in the paper")


def results_page(rows: Sequence[Row], tuning: Sequence[Row], unfinished: Sequence[Row], target: str) -> str:
    """A table over entries (mean ± standard deviation over seeds), and one over the single runs with what they took."""
    entries = [(name, list(group)) for name, group in groupby(rows, key=_name)]
    entries.sort(key=lambda entry: mean(row["ece"] for row in entry[1]))
    tasks = " or ".join(f"{count:,}" for count in sorted({row["tasks"] for row in rows}))
    updates = " or ".join(f"{count:,}" for count in sorted({row["updates"] for row in rows}))
    return "\n".join(
        [
            f"# Results: {target}",
            "",
            f"Made by `fewsure reproduce {target}`, together with the JSON of every figure; edit neither by hand.",
            "",
            f"{tasks} unseen {STREAMS[target]} tasks, the same for every entry on one kind of device, after {updates}",
            "updates. Headline protocol: quantiles of 32 sampled function values (BMAML: its particles; MAML: its one",
            "function), no observation noise, no scaling after training; squared error of the mean prediction against",
            "noisy labels. With several seeds: mean ± standard deviation over seeds.",
            "",
            *_table(HEADERS, [_entry_row(name, group) for name, group in entries]),
            "",
            f"![{CAPTIONS[target]}](figures/{target}.png)",
            "",
            "The same functions with N(0, noise²) added to each sampled value: not the headline protocol, and shown",
            "because it makes anything look calibrated.",
            "",
            *_table(
                ("entry", "ECE with noise", "MCE with noise"),
                [
                    (
                        name,
                        _over_seeds(group, "with_noise", "ece"),
                        _over_seeds(group, "with_noise", "mce"),
                    )
                    for name, group in entries
                ],
            ),
            "",
            *_unfinished(unfinished),
            *_tuning(tuning),
            "## Single runs",
            "",
            "The interval of the MSE is 95 % over tasks, those of ECE and MCE are bootstrap intervals over tasks.",
            "Training is the wall-clock time of the run's own process; where others shared the device, an upper bound.",
            "",
            *_table(
                ("entry", "seed", "MSE", "ECE", "MCE", "updates", "training", "device", "preset", "version"),
                [_run_row(row) for row in rows],
            ),
            "",
        ]
    )


def _unfinished(runs: Sequence[Row]) -> list[str]:
    if not runs:
        return []
    note = "Started, and not in the tables above: interrupted, or stopped because their numbers were no longer finite."
    lines = [
        (_name(run), str(run["train_seed"]), f"{run['update']:,} of {run['updates']:,}", str(run["preset"]))
        for run in runs
    ]
    return ["## Unfinished runs", "", note, "", *_table(("entry", "seed", "updates logged", "preset"), lines), ""]


def _tuning(trials: Sequence[Row]) -> list[str]:
    if not trials:
        return []
    lines = [
        (
            display_name(str(row["algorithm"])),
            str(row["trial"]),
            ", ".join(f"{name} = {value}" for group in row["options"].values() for name, value in group.items()),
            f"{row['nll']['mean']:.2f}",
            f"{row['mse']['mean']:.3f}",
            f"{row['ece']:.4f}",
        )
        for row in trials
    ]
    headers = ("entry", "trial", "options on top of the recommended ones", "NLL", "MSE", "ECE")
    note = f"On {trials[0]['tasks']:,} validation tasks; the lowest NLL of an entry was trained in full."
    return ["## Tuning", "", note, "", *_table(headers, lines), ""]


def _name(row: Row) -> str:
    label = str(row.get("label", row["algorithm"]))
    return display_name(label) if label == row["algorithm"] else label


def _entry_row(name: str, rows: Sequence[Row]) -> tuple[str, ...]:
    printed = printed_for(rows[0]) if name == display_name(rows[0]["algorithm"]) else None
    paper = f"{printed.mse:.2f} / {printed.ece:.3f} / {printed.mce:.3f}" if isinstance(printed, Printed) else "–"
    scores = (_over_seeds(rows, *key) for key in (("mse", "mean"), ("ece",), ("mce",), ("nll", "mean")))
    return (name, str(len(rows)), str(rows[0]["samples"]), *scores, paper)


def _run_row(row: Row) -> tuple[str, ...]:
    return (
        _name(row),
        str(row["train_seed"]),
        f"{row['mse']['mean']:.3f} ± {row['mse']['ci95']:.3f}",
        *(f"{row[name]:.4f} [{row[f'{name}_ci95'][0]:.4f}, {row[f'{name}_ci95'][1]:.4f}]" for name in ("ece", "mce")),
        f"{row['updates']:,}",
        f"{row['train_seconds']:,.0f} s",
        str(row["device"]),
        str(row["preset"]),
        str(row["version"]),
    )


def _over_seeds(rows: Sequence[Row], *keys: str) -> str:
    values = []
    for row in rows:
        value: Any = row
        for key in keys:
            value = value[key]
        values.append(float(value))
    spread = f" ± {stdev(values):.3f}" if len(values) > 1 else ""
    return f"{mean(values):.3f}{spread}"


def _table(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    return [f"| {' | '.join(cells)} |" for cells in (headers, ["---"] * len(headers), *rows)]
