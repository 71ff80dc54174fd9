"""The results of a reproduction as a Markdown page: our figures beside the paper's, and what they took."""

from collections.abc import Mapping, Sequence
from itertools import groupby
from statistics import mean, stdev
from typing import Any

from fewsure.evaluation.temperature import Temperature
from fewsure.report.reference import printed_for
from fewsure.report.styles import display_name
from fewsure.report.tables import ABSENT, markdown_table
from fewsure.report.templating import templates
from fewsure.reproduce.targets import TARGETS, Target, read_trials

Row = Mapping[str, Any]
CPU = "cpu"
SCORES = {
    "mse": {"MSE": "mse", "ECE": "ece", "MCE": "mce", "NLL": "nll"},
    "accuracy": {"accuracy": "accuracy", "ECE": "ece", "MCE": "mce", "NLL": "nll", "Brier": "brier"},
}
"""By the score that comes first: the headers of scores and their names in a row."""
DIGITS = {"mse": 3, "accuracy": 4}


def results_page(rows: Sequence[Row], unfinished: Sequence[Row], target: str) -> str:
    """A table over methods (mean ± standard deviation over seeds), and one over the single runs with what they took."""
    score = "accuracy" if "accuracy" in rows[0] else "mse"
    entries = [(name, list(group)) for name, group in groupby(rows, key=_name)]
    entries.sort(key=lambda entry: mean(row["nll"]["mean"] for row in entry[1]))
    tried = dict(sorted({_name(row): row for row in [*unfinished, *rows] if row["trials"]}.items()))
    temperatures = [_temperature(row) for row in rows]
    page = templates("fewsure.reproduce").get_template("results.md")
    text = page.render(
        target=target,
        classifies=score == "accuracy",
        tasks=_either(rows, "tasks"),
        updates=_either(rows, "updates"),
        joined=any(row["train_on_validation"] for row in rows),
        entries=_entries_table(entries, score),
        on_cpu=_on_another_device(rows),
        mixtures={_name(row): row["components"] for row in rows if row.get("components", 1) > 1},
        tempered=any(temperature != Temperature() for temperature in temperatures),
        of_mixture=any(temperature.of_mixture for temperature in temperatures),
        exponents=any(temperature.exponent for temperature in temperatures),
        nearest_means=[rows[0][name] for name in ("nearest_mean", "nearest_mean_centred") if name in rows[0]],
        interval=_interval,
        with_noise=_noise_table(entries) if all("with_noise" in row for row in rows) else None,
        commands=_commands(rows),
        unfinished=_unfinished_table(unfinished) if unfinished else None,
        tuning=_tuning_table(tried, score),
        tuning_tasks=next((row["trials"][0]["tasks"] for row in tried.values()), None),
        made_otherwise=[name for name, row in tried.items() if _made_otherwise(row, TARGETS[target])],
        runs=_runs_table(rows, score),
    )
    return f"{text}\n"


def _entries_table(entries: Sequence[tuple[str, Sequence[Row]]], score: str) -> str:
    names, classifies = list(SCORES[score]), score == "accuracy"
    transductive = ["transductive"] * classifies
    headers = ("entry", "seeds", "samples", *names, *transductive, f"{' / '.join(names[:3])} in the paper")
    cells = [
        (
            *(name, str(len(rows)), str(rows[0]["samples"])),
            *(_over_seeds(rows, key, DIGITS[score]) for key in SCORES[score].values()),
            *["yes" if rows[0]["transductive"] else "no"] * classifies,
            _in_the_paper(rows[0]),
        )
        for name, rows in entries
    ]
    return markdown_table(headers, cells)


def _in_the_paper(row: Row) -> str:
    printed = printed_for(row)
    if printed is None:
        return ABSENT
    if "mse" in printed:
        return f"{printed['mse']['mean']:.2f} / {printed['ece']:.3f} / {printed['mce']:.3f}"
    errors = " / ".join(f"{printed[error]:.4f}" if error in printed else ABSENT for error in ("ece", "mce"))
    return f"{printed['accuracy']['mean']:.4f} / {errors}"


def _runs_table(rows: Sequence[Row], score: str) -> str:
    classifies = score == "accuracy"
    facts = ("updates", "training", "device", "preset", "version")
    headers = ("entry", "seed", next(iter(SCORES[score])), "ECE", "MCE", *["temperature"] * classifies, *facts)
    cells = [
        (
            *(_name(row), str(row["train_seed"]), _interval(row[score], DIGITS[score])),
            *(f"{row[key]:.4f} [{row[f'{key}_ci95'][0]:.4f}, {row[f'{key}_ci95'][1]:.4f}]" for key in ("ece", "mce")),
            *[_formula(_temperature(row))] * classifies,
            *(f"{row['updates']:,}", f"{row['train_seconds']:,.0f} s", row["device"], row["preset"], row["version"]),
        )
        for row in rows
    ]
    return markdown_table(headers, cells)


def _on_another_device(rows: Sequence[Row]) -> list[str]:
    """The entries that are on other tasks than the rest: random numbers are those of a kind of device."""
    names = sorted({_name(row) for row in rows if row["device"] == CPU})
    return [] if all(row["device"] == CPU for row in rows) else names


def _noise_table(entries: Sequence[tuple[str, Sequence[Row]]]) -> str:
    cells = [
        (name, *(_over_seeds([row["with_noise"] for row in rows], error, 3) for error in ("ece", "mce")))
        for name, rows in entries
    ]
    return markdown_table(("entry", "ECE with noise", "MCE with noise"), cells)


def _commands(rows: Sequence[Row]) -> list[str]:
    """The options that train and evaluate each entry with as many seeds as it has here."""
    entries: dict[tuple[int, bool, float, int], list[str]] = {}
    for name, group in groupby(rows, key=lambda row: str(row["label"])):
        runs = list(group)
        seeds, on_gpu = 1 + max(row["train_seed"] for row in runs), runs[0]["device"] != CPU
        settings = (seeds, on_gpu, runs[0].get("budget", 1.0), max(row["tasks"] for row in runs))
        entries.setdefault(settings, []).append(name)
    return [
        f"--only {' '.join(names)} --seeds {seeds} --device {'cuda' if on_gpu else CPU}"
        + f" --budget {budget:g}" * (budget != 1)
        + f" --tasks {tasks}" * (tasks != 1000)
        for (seeds, on_gpu, budget, tasks), names in sorted(entries.items(), reverse=True)
    ]


def _unfinished_table(runs: Sequence[Row]) -> str:
    cells = [
        (_name(run), str(run["train_seed"]), f"{run['update']:,} of {run['updates']:,}", str(run["preset"]))
        for run in runs
    ]
    return markdown_table(("entry", "seed", "updates logged", "preset"), cells)


def _tuning_table(tried: Mapping[str, Row], score: str) -> str:
    """The trials of each entry, of which its rows are the best."""
    headers = ("entry", "trial", "options on top of the recommended ones", "NLL", next(iter(SCORES[score])), "ECE")
    cells = [
        (
            *(name, str(trial["trial"])),
            ", ".join(f"{option} = {value}" for group in trial["options"].values() for option, value in group.items()),
            *(f"{trial[key]['mean']:.{DIGITS[score]}f}" for key in ("nll", score)),
            f"{trial['ece']:.4f}",
        )
        for name, row in tried.items()
        for trial in row["trials"]
    ]
    return markdown_table(headers, cells)


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
