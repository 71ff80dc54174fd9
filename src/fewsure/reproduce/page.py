"""The results of a reproduction as a Markdown page: our figures beside the paper's, and what they took."""

from collections.abc import Mapping, Sequence
from itertools import groupby
from statistics import mean, stdev
from typing import Any

from fewsure.evaluation.temperature import Temperature
from fewsure.report.reference import printed_for
from fewsure.report.styles import display_name
from fewsure.report.tables import markdown_table
from fewsure.reproduce.targets import TARGETS, Target, read_trials

Row = Mapping[str, Any]
CPU = "cpu"
SCORES = {
    "mse": {"MSE": "mse", "ECE": "ece", "MCE": "mce", "NLL": "nll"},
    "accuracy": {"accuracy": "accuracy", "ECE": "ece", "MCE": "mce", "NLL": "nll", "Brier": "brier"},
}
"""By the score that comes first: the headers of scores and their names in a row."""
DIGITS = {"mse": 3, "accuracy": 4}
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


def results_page(rows: Sequence[Row], unfinished: Sequence[Row], target: str) -> str:
    """A table over methods (mean ± standard deviation over seeds), and one over the single runs with what they took."""
    score = "accuracy" if "accuracy" in rows[0] else "mse"
    entries = [(name, list(group)) for name, group in groupby(rows, key=_name)]
    entries.sort(key=lambda entry: mean(row["nll"]["mean"] for row in entry[1]))
    transductive = ["transductive"] * (score == "accuracy")
    printed = f"{' / '.join(list(SCORES[score])[:3])} in the paper"
    caption = f"{'MSE' if score == 'mse' else 'accuracy or error'}, calibration and reliability beside the paper's"
    joined = ["The full trainings take the validation classes too, once these have chosen the options."]
    return "\n".join(
        [
            f"# Results: {target}",
            "",
            f"Made by `fewsure reproduce {target}`, together with the JSON of every figure; edit neither by hand.",
            "",
            f"{_either(rows, 'tasks')} unseen test tasks, the same for every entry on one kind of device,",
            f"after {_either(rows, 'updates')} updates. With several seeds: mean ± standard deviation over seeds.",
            "In the order of NLL, by which trials are chosen.",
            *PROTOCOLS[score],
            *joined * any(row["train_on_validation"] for row in rows),
            "",
            markdown_table(
                ("entry", "seeds", "samples", *SCORES[score], *transductive, printed),
                [_entry_cells(name, group, score) for name, group in entries],
            ),
            "",
            f"![{caption}](figures/{target}.png)",
            "",
            *_tasks_of_a_cpu(rows),
            *_predictors(rows),
            *_nearest_means(rows[0]),
            *_with_noise(entries),
            *_commands(rows, target),
            *_unfinished(unfinished),
            *_tuning([*unfinished, *rows], score, TARGETS[target]),
            "## Single runs",
            "",
            "Intervals are 95 % over tasks, those of ECE and MCE by bootstrap.",
            "Training is the wall-clock time of the run's own process; where others shared the device, an upper bound.",
            "",
            markdown_table(
                (
                    *("entry", "seed", next(iter(SCORES[score])), "ECE", "MCE"),
                    *["temperature"] * (score == "accuracy"),
                    *("updates", "training", "device", "preset", "version"),
                ),
                [_run_cells(row, score) for row in rows],
            ),
            "",
        ]
    )


def _entry_cells(name: str, rows: Sequence[Row], score: str) -> list[str]:
    scores = [_over_seeds(rows, key, DIGITS[score]) for key in SCORES[score].values()]
    transductive = ["yes" if rows[0]["transductive"] else "no"] * (score == "accuracy")
    return [name, str(len(rows)), str(rows[0]["samples"]), *scores, *transductive, _in_the_paper(rows[0])]


def _in_the_paper(row: Row) -> str:
    printed = printed_for(row)
    if printed is None:
        return "–"
    if "mse" in printed:
        return f"{printed['mse']['mean']:.2f} / {printed['ece']:.3f} / {printed['mce']:.3f}"
    errors = " / ".join(f"{printed[error]:.4f}" if error in printed else "–" for error in ("ece", "mce"))
    return f"{printed['accuracy']['mean']:.4f} / {errors}"


def _run_cells(row: Row, score: str) -> list[str]:
    return [
        *(_name(row), str(row["train_seed"]), _interval(row[score], DIGITS[score])),
        *(f"{row[name]:.4f} [{row[f'{name}_ci95'][0]:.4f}, {row[f'{name}_ci95'][1]:.4f}]" for name in ("ece", "mce")),
        *[_formula(_temperature(row))] * (score == "accuracy"),
        *(f"{row['updates']:,}", f"{row['train_seconds']:,.0f} s", row["device"], row["preset"], row["version"]),
    ]


def _tasks_of_a_cpu(rows: Sequence[Row]) -> list[str]:
    """Which entries are on other tasks than the rest: random numbers are those of a kind of device."""
    names = sorted({_name(row) for row in rows if row["device"] == CPU})
    if not names or all(row["device"] == CPU for row in rows):
        return []
    return [f"On a CPU, and so on other tasks than the others, though as many: {', '.join(names)}.", ""]


def _predictors(rows: Sequence[Row]) -> list[str]:
    """How predictions are made, where it takes more than a method's plain posterior."""
    temperatures = [_temperature(row) for row in rows]
    joined = any(row["train_on_validation"] and _temperature(row) != Temperature() for row in rows)
    mixtures = {_name(row): row["components"] for row in rows if row.get("components", 1) > 1}
    lines = [f"{name}'s posterior is a mixture of {components} generators." for name, components in mixtures.items()]
    if any(temperature != Temperature() for temperature in temperatures):
        lines += [
            "A temperature divides outputs before the softmax. It is fitted on validation tasks unless it was given.",
            "Its values are with the single runs.",
        ]
    if joined:
        lines += ["Final runs take their temperature from the best trial, which did not train on validation classes."]
    if any(temperature.of_mixture for temperature in temperatures):
        lines += ["Outputs are then the logarithms of class probabilities that are averaged over the sampled networks."]
    if any(temperature.exponent for temperature in temperatures):
        lines += [
            "Odds are the geometric mean of p / (1 − p) over a task's query points, with p the largest class",
            "probability. An exponent below 0 makes confident predictions more confident; −1 is the lowest fitted.",
        ]
    return [*lines, ""] if lines else []


def _nearest_means(row: Row) -> list[str]:
    if "nearest_mean" not in row:
        return []
    alone, centred = row["nearest_mean"], row.get("nearest_mean_centred")
    tasks = f"{alone['tasks']:,} test tasks of its own"
    lines = [
        "The nearest class mean of the same features, scaled to length 1: "
        f"{_interval(alone['accuracy'], 4)} on {tasks}."
    ]
    if centred is not None:
        lines.append(
            "With the mean of each set taken off, as in the networks here (`--centred`): "
            f"{_interval(centred['accuracy'], 4)}."
        )
    return [*lines, ""]


def _with_noise(entries: Sequence[tuple[str, Sequence[Row]]]) -> list[str]:
    if not all("with_noise" in row for _, group in entries for row in group):
        return []
    return [
        "The same functions with N(0, noise²) added to each sampled value: not the headline protocol, and shown",
        "because it makes anything look calibrated.",
        "",
        markdown_table(
            ("entry", "ECE with noise", "MCE with noise"),
            [
                (name, *(_over_seeds([row["with_noise"] for row in group], error, 3) for error in ("ece", "mce")))
                for name, group in entries
            ],
        ),
        "",
    ]


def _commands(rows: Sequence[Row], target: str) -> list[str]:
    """What trains and evaluates each entry with as many seeds as it has here, and writes this page."""
    command = f"    fewsure reproduce {target}"
    entries: dict[tuple[int, bool, float, int], list[str]] = {}
    for name, group in groupby(rows, key=lambda row: str(row["label"])):
        runs = list(group)
        seeds, on_gpu = 1 + max(row["train_seed"] for row in runs), runs[0]["device"] != CPU
        settings = (seeds, on_gpu, runs[0].get("budget", 1.0), max(row["tasks"] for row in runs))
        entries.setdefault(settings, []).append(name)
    return [
        "## Commands",
        "",
        "With `--jobs 8` several are trained at a time; what is finished is not done again.",
        "",
        *(
            f"{command} --only {' '.join(names)} --seeds {seeds} --device {'cuda' if on_gpu else CPU}"
            + f" --budget {budget:g}" * (budget != 1)
            + f" --tasks {tasks}" * (tasks != 1000)
            for (seeds, on_gpu, budget, tasks), names in sorted(entries.items(), reverse=True)
        ),
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
    return [
        "## Unfinished runs",
        "",
        note,
        "",
        markdown_table(("entry", "seed", "updates logged", "preset"), lines),
        "",
    ]


def _tuning(rows: Sequence[Row], score: str, target: Target) -> list[str]:
    """The trials of each entry, of which its rows are the best."""
    entries = {_name(row): row for row in rows if row["trials"]}
    if not entries:
        return []
    lines = [
        (
            name,
            str(trial["trial"]),
            ", ".join(f"{option} = {value}" for group in trial["options"].values() for option, value in group.items()),
            *(f"{trial[key]['mean']:.{DIGITS[score]}f}" for key in ("nll", score)),
            f"{trial['ece']:.4f}",
        )
        for name, row in sorted(entries.items())
        for trial in row["trials"]
    ]
    headers = ("entry", "trial", "options on top of the recommended ones", "NLL", next(iter(SCORES[score])), "ECE")
    tasks = next(iter(entries.values()))["trials"][0]["tasks"]
    notes = [f"On {tasks:,} validation tasks; the lowest NLL of an entry was trained in full."]
    otherwise = [name for name, row in sorted(entries.items()) if _made_otherwise(row, target)]
    if otherwise:
        notes.append(f"Today the commands above tune or train otherwise: {', '.join(otherwise)}.")
    return ["## Tuning", "", *notes, "", markdown_table(headers, lines), ""]


def _made_otherwise(row: Row, target: Target) -> bool:
    """Whether the commands of today give a row other trials, other temperatures, another length or other classes."""
    listed = dict(enumerate(read_trials(target.listed)[row["label"]]))
    planned = target.trials(row["label"])[0].training.updates * row.get("budget", 1.0)
    untempered = {"softmax_temperature": 1.0, "temperature_exponent": 0.0}
    return (
        row["updates"] != round(planned)
        or row["train_on_validation"] != target.joins_validation
        or any(trial["options"] != listed.get(trial["trial"]) for trial in row["trials"])
        or any(
            row.get(name, plain) != plain and all(trial.get(name) == plain for trial in row["trials"])
            for name, plain in untempered.items()
        )
    )


def _temperature(row: Row) -> Temperature:
    """1 for regression."""
    of_mixture = row.get("temperature_of") == "mixture"
    return Temperature(row.get("softmax_temperature", 1.0), row.get("temperature_exponent", 0.0), of_mixture)


def _formula(temperature: Temperature) -> str:
    """What outputs are divided by.

    >>> _formula(Temperature(0.876)), _formula(Temperature(0.876, 0.25))
    ('0.88', '0.88 · odds^−0.25')
    """
    if not temperature.exponent:
        return f"{temperature.at_even_odds:.2f}"
    return f"{temperature.at_even_odds:.2f} · odds^{-temperature.exponent:.2f}".replace("-", "−")


def _name(row: Row) -> str:
    return display_name(row["label"])


def _either(rows: Sequence[Row], name: str) -> str:
    """The counts that rows have."""
    return " or ".join(f"{count:,}" for count in sorted({row[name] for row in rows}))


def _interval(score: Mapping[str, float], digits: int) -> str:
    return f"{score['mean']:.{digits}f} ± {score['ci95']:.{digits}f}"


def _over_seeds(rows: Sequence[Row], key: str, digits: int) -> str:
    values = [float(row[key]["mean"] if isinstance(row[key], Mapping) else row[key]) for row in rows]
    spread = f" ± {stdev(values):.{digits}f}" if len(values) > 1 else ""
    return f"{mean(values):.{digits}f}{spread}"
