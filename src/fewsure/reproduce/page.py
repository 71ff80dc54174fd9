"""The results of a reproduction as a Markdown page: our figures beside the paper's, and what they took."""

from collections.abc import Mapping, Sequence
from itertools import groupby
from statistics import mean, stdev
from typing import Any

from fewsure.evaluation.temperature import Temperature
from fewsure.report.reference import printed_for
from fewsure.report.styles import display_name
from fewsure.reproduce.targets import TARGETS, Target, read_trials

Row = Mapping[str, Any]
CPU = "cpu"
PROTOCOLS = {
    "mse": (
        "Headline protocol: quantiles of 32 sampled function values (BMAML: its particles; MAML: its one function), no",
        "observation noise, no scaling after training; squared error of the mean prediction against noisy labels.",
    ),
    "accuracy": (
        "Class probabilities are averaged over 32 sampled networks (BMAML: its particles; MAML, ProtoNet: one). ECE",
        "and MCE in 10 bins of confidence over the query points of all tasks. Transductive: a query set is predicted",
        "as a whole: it is normalised by its own statistics (as in the paper), its mean is taken off, or its",
        "temperature depends on it.",
    ),
}
"""By the score that comes first."""
JOINED = ("The full trainings take the validation classes too, once these have chosen the options.",)


def results_page(rows: Sequence[Row], unfinished: Sequence[Row], target: str) -> str:
    """A table over entries (mean ± standard deviation over seeds), and one over the single runs with what they took."""
    score = "accuracy" if "accuracy" in rows[0] else "mse"
    entries = [(name, list(group)) for name, group in groupby(rows, key=_name)]
    entries.sort(key=lambda entry: mean(row["nll"]["mean"] for row in entry[1]))
    tasks = " or ".join(f"{count:,}" for count in sorted({row["tasks"] for row in rows}))
    updates = " or ".join(f"{count:,}" for count in sorted({row["updates"] for row in rows}))
    caption = f"{'MSE' if score == 'mse' else 'accuracy or error'}, calibration and reliability beside the paper's"
    headers = ("entry", "seeds", "samples", *_scores(score), f"{' / '.join(_printed_scores(score))} in the paper")
    return "\n".join(
        [
            f"# Results: {target}",
            "",
            f"Made by `fewsure reproduce {target}`, together with the JSON of every figure; edit neither by hand.",
            "",
            f"{tasks} unseen test tasks, the same for every entry on one kind of device,",
            f"after {updates} updates. With several seeds: mean ± standard deviation over seeds.",
            "In the order of NLL, by which trials are chosen.",
            *PROTOCOLS[score],
            *JOINED * any(row.get("train_on_validation") for row in rows),
            "",
            *_table(headers, [_entry_row(name, group, score) for name, group in entries]),
            "",
            f"![{caption}](figures/{target}.png)",
            "",
            *_other_tasks(rows),
            *_predictors(rows),
            *_nearest_mean(rows),
            *_with_noise(entries),
            *_commands(rows, target),
            *_unfinished(unfinished),
            *_tuning([*unfinished, *rows], score, target),
            "## Single runs",
            "",
            "Intervals are 95 % over tasks, those of ECE and MCE by bootstrap.",
            "Training is the wall-clock time of the run's own process; where others shared the device, an upper bound.",
            "",
            *_table(
                ("entry", "seed", _scores(score)[0], "ECE", "MCE", *_of_classes(score, "temperature"), *_RUN_FACTS),
                [_run_row(row, score) for row in rows],
            ),
            "",
        ]
    )


_RUN_FACTS = ("updates", "training", "device", "preset", "version")


def _scores(score: str) -> tuple[str, ...]:
    return (
        ("accuracy", "ECE", "MCE", "NLL", "Brier", "transductive")
        if score == "accuracy"
        else ("MSE", "ECE", "MCE", "NLL")
    )


def _printed_scores(score: str) -> tuple[str, ...]:
    return _scores(score)[:3]


def _predictors(rows: Sequence[Row]) -> list[str]:
    """What the predictions are made with, where it is more than a method's plain posterior."""
    lines = [
        f"{_name(row)}'s posterior is a mixture of {row['components']} generators."
        for row in {_name(row): row for row in rows if row.get("components", 1) > 1}.values()
    ]
    temperatures = [_temperature(row) for row in rows]
    if any(temperature != Temperature() for temperature in temperatures):
        lines += [
            "A temperature, learned from validation tasks unless it was given, divides outputs before the softmax; its",
            "values are with the single runs.",
        ]
    if any(row.get("train_on_validation") and _temperature(row) != Temperature() for row in rows):
        lines += ["Of full trainings that take the validation classes too, it is the best trial's, which did not."]
    if any(temperature.of_mixture for temperature in temperatures):
        lines += ["Outputs are then the logarithms of class probabilities that are averaged over the sampled networks."]
    if any(temperature.exponent for temperature in temperatures):
        lines += [
            "Odds are the geometric mean of p / (1 − p) over a task's query points, with p the largest class",
            "probability: with an exponent below 0, where predictions are surer, they are made surer still; −1 is the",
            "lowest that is learned.",
        ]
    return [*lines, ""] if lines else []


def _other_tasks(rows: Sequence[Row]) -> list[str]:
    """Which entries are not on the same tasks as the others: random numbers are those of a kind of device."""
    of_cpu, of_gpu = ({_name(row) for row in rows if (row["device"] == CPU) is on_cpu} for on_cpu in (True, False))
    if not (of_cpu and of_gpu):
        return []
    return [f"On a CPU, and so on other tasks than the others, though as many: {', '.join(sorted(of_cpu))}.", ""]


def _of_classes(score: str, *cells: str) -> tuple[str, ...]:
    """Cells that rows of regression do not have."""
    return cells if score == "accuracy" else ()


def _nearest_mean(rows: Sequence[Row]) -> list[str]:
    with_it = next((row for row in rows if "nearest_mean" in row), None)
    if with_it is None:
        return []
    alone, centred = with_it["nearest_mean"], with_it.get("nearest_mean_centred")

    def accuracy(found: Row) -> str:
        return f"{found['accuracy']['mean']:.4f} ± {found['accuracy']['ci95']:.4f}"

    tasks = f"{alone['tasks']:,} test tasks of its own"
    lines = [f"The nearest class mean of the same features, scaled to length 1: {accuracy(alone)} on {tasks}."]
    if centred is not None:
        lines.append(
            f"With the mean of each set taken off, as in the networks here (`--centred`): {accuracy(centred)}."
        )
    return [*lines, ""]


def _with_noise(entries: Sequence[tuple[str, Sequence[Row]]]) -> list[str]:
    if not all("with_noise" in row for _, group in entries for row in group):
        return []
    lines = [(name, *(_over_seeds(group, "with_noise", error) for error in ("ece", "mce"))) for name, group in entries]
    return [
        "The same functions with N(0, noise²) added to each sampled value: not the headline protocol, and shown",
        "because it makes anything look calibrated.",
        "",
        *_table(("entry", "ECE with noise", "MCE with noise"), lines),
        "",
    ]


def _commands(rows: Sequence[Row], target: str) -> list[str]:
    """What trains and evaluates each entry with as many seeds as it has here, and writes this page."""
    command = f"    fewsure reproduce {target}"
    asked: dict[tuple[int, bool, float, int], list[str]] = {}
    for name, group in groupby(rows, key=lambda row: str(row["label"])):
        of_entry = list(group)
        seeds = 1 + max(row["train_seed"] for row in of_entry)
        on_gpu = of_entry[0]["device"] != CPU
        what = (seeds, on_gpu, of_entry[0].get("budget", 1.0), max(row["tasks"] for row in of_entry))
        asked.setdefault(what, []).append(name)
    lines = [
        f"{command} --only {' '.join(names)} --seeds {seeds} --device {'cuda' if on_gpu else CPU}"
        + f" --budget {budget:g}" * (budget != 1)
        + f" --tasks {tasks}" * (tasks != 1000)
        for (seeds, on_gpu, budget, tasks), names in sorted(asked.items(), reverse=True)
    ]
    return [
        "## Commands",
        "",
        "With `--jobs 8` several are trained at a time; what is finished is not done again.",
        "",
        *lines,
        f"{command} --collect --results FILE.json --page FILE.md",
        "",
    ]


def _unfinished(runs: Sequence[Row]) -> list[str]:
    if not runs:
        return []
    note = "Started, and not in the tables above: interrupted, or stopped because their numbers were no longer finite."
    lines = [
        (_name(run), str(run["train_seed"]), f"{run['update']:,} of {run['updates']:,}", str(run["preset"]))
        for run in runs
    ]
    return ["## Unfinished runs", "", note, "", *_table(("entry", "seed", "updates logged", "preset"), lines), ""]


def _tuning(rows: Sequence[Row], score: str, target: str) -> list[str]:
    """The trials of each entry, of which its rows are the best."""
    entries = {_name(row): row for row in rows if row.get("trials")}
    if not entries:
        return []
    lines = [
        (
            name,
            str(trial["trial"]),
            ", ".join(f"{option} = {value}" for group in trial["options"].values() for option, value in group.items()),
            f"{trial['nll']['mean']:.{_digits(score)}f}",
            f"{trial[score]['mean']:.{_digits(score)}f}",
            f"{trial['ece']:.4f}",
        )
        for name, row in sorted(entries.items())
        for trial in row["trials"]
    ]
    headers = ("entry", "trial", "options on top of the recommended ones", "NLL", _scores(score)[0], "ECE")
    tasks = next(iter(entries.values()))["trials"][0]["tasks"]
    notes = [f"On {tasks:,} validation tasks; the lowest NLL of an entry was trained in full."]
    ways = {name: _scored_otherwise(row) for name, row in sorted(entries.items())}
    for way in sorted({way for way in ways.values() if way}):
        notes.append(f"Scored {way}: {', '.join(name for name in ways if ways[name] == way)}.")
    for change, was_made in CHANGES.items():
        before = [name for name, row in sorted(entries.items()) if was_made(row, TARGETS[target])]
        if before:
            notes.append(f"{change}: {', '.join(before)}.")
    return ["## Tuning", "", *notes, "", *_table(headers, lines), ""]


def _tuned_otherwise(row: Row, target: Target) -> bool:
    """Whether a trial of a row is none of those that are listed today."""
    listed = dict(enumerate(read_trials(target.listed)[row["label"]]))
    return any(trial["options"] != listed.get(trial["trial"]) for trial in row["trials"])


def _trained_otherwise(row: Row, target: Target) -> bool:
    """Whether a row is of a training of another length than today's, or on other classes."""
    planned = target.trials(row["label"])[0].training.updates * row.get("budget", 1.0)
    joined = row.get("train_on_validation", False)
    return bool(row["updates"] != round(planned) or joined != target.joins_validation)


CHANGES = {
    "Tuned among other options than the commands above try today": _tuned_otherwise,
    "Trained for longer or shorter, or on other classes, than by the commands above today": _trained_otherwise,
}
"""What may be said of rows that an earlier version has made."""


def _scored_otherwise(row: Row) -> str | None:
    """What of a run's temperature its trials were scored without."""

    def tried_without(name: str, none: float) -> bool:
        return row.get(name, none) != none and all(trial.get(name) == none for trial in row["trials"])

    if tried_without("softmax_temperature", 1.0):
        return "without a temperature"
    return "with one temperature for all tasks" if tried_without("temperature_exponent", 0.0) else None


def _temperature(row: Row) -> Temperature:
    """Of rows of regression, or of a version without, none."""
    of_mixture = row.get("temperature_of") == "mixture"
    return Temperature(row.get("softmax_temperature", 1.0), row.get("temperature_exponent", 0.0), of_mixture)


def _in_words(temperature: Temperature) -> str:
    """What outputs are divided by, as a formula.

    >>> _in_words(Temperature(0.876)), _in_words(Temperature(0.876, 0.25))
    ('0.88', '0.88 · odds^−0.25')
    """
    if not temperature.exponent:
        return f"{temperature.at_even_odds:.2f}"
    return f"{temperature.at_even_odds:.2f} · odds^{-temperature.exponent:.2f}".replace("-", "−")


def _name(row: Row) -> str:
    label = str(row.get("label", row["algorithm"]))
    return display_name(label) if label == row["algorithm"] else label


def _digits(score: str) -> int:
    return 4 if score == "accuracy" else 3


def _entry_row(name: str, rows: Sequence[Row], score: str) -> tuple[str, ...]:
    keys = [(score, "mean"), ("ece",), ("mce",), ("nll", "mean")]
    more: tuple[str, ...] = ()
    if score == "accuracy":
        keys.append(("brier", "mean"))
        more = ("yes" if rows[0]["transductive"] else "no",)
    scores = (_over_seeds(rows, *key, digits=_digits(score)) for key in keys)
    return (name, str(len(rows)), str(rows[0]["samples"]), *scores, *more, _paper(name, rows[0]))


def _paper(name: str, row: Row) -> str:
    """What the paper prints for the method."""
    printed = printed_for(row)
    if printed is None:
        return "–"
    if "mse" in printed:
        return f"{printed['mse']['mean']:.2f} / {printed['ece']:.3f} / {printed['mce']:.3f}"
    errors = " / ".join(f"{printed[error]:.4f}" if error in printed else "–" for error in ("ece", "mce"))
    return f"{printed['accuracy']['mean']:.4f} / {errors}"


def _run_row(row: Row, score: str) -> tuple[str, ...]:
    digits = _digits(score)
    return (
        _name(row),
        str(row["train_seed"]),
        f"{row[score]['mean']:.{digits}f} ± {row[score]['ci95']:.{digits}f}",
        *(f"{row[name]:.4f} [{row[f'{name}_ci95'][0]:.4f}, {row[f'{name}_ci95'][1]:.4f}]" for name in ("ece", "mce")),
        *_of_classes(score, _in_words(_temperature(row))),
        f"{row['updates']:,}",
        f"{row['train_seconds']:,.0f} s",
        str(row["device"]),
        str(row["preset"]),
        str(row["version"]),
    )


def _over_seeds(rows: Sequence[Row], *keys: str, digits: int = 3) -> str:
    values = []
    for row in rows:
        value: Any = row
        for key in keys:
            value = value[key]
        values.append(float(value))
    spread = f" ± {stdev(values):.{digits}f}" if len(values) > 1 else ""
    return f"{mean(values):.{digits}f}{spread}"


def _table(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    return [f"| {' | '.join(cells)} |" for cells in (headers, ["---"] * len(headers), *rows)]
