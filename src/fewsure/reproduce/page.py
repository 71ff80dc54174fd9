"""The results of a reproduction as a Markdown page: our figures beside the paper's, and what they took."""

from collections.abc import Mapping, Sequence
from itertools import groupby
from statistics import mean, stdev
from typing import Any, NamedTuple

from fewsure.evaluation.temperature import Temperature
from fewsure.report.reference import printed_for
from fewsure.report.styles import display_name, setting
from fewsure.report.tables import ABSENT, interval, markdown_table
from fewsure.report.templating import templates
from fewsure.reproduce.targets import TARGETS, Target, read_trials
from fewsure.training.experiment import RANDOM_START

Row = Mapping[str, Any]
CPU = "cpu"
SCORES = {
    "mse": {"MSE": "mse", "NLL": "nll", "ECE": "ece", "MCE": "mce"},
    "accuracy": {"accuracy": "accuracy", "NLL": "nll", "ECE": "ece", "MCE": "mce", "Brier": "brier"},
}
"""By the score that comes first: the headers of scores and their names in a row."""
DIGITS = {"mse": 3, "accuracy": 4}
NEAREST = {"nearest_mean": "nearest class mean", "nearest_mean_centred": "nearest class mean, centred"}


class Part(NamedTuple):
    """The findings of one target."""

    target: str
    rows: Sequence[Row]
    unfinished: Sequence[Row] = ()
    exact: Row | None = None
    """The scores of the exact posterior, where it is known."""


def results_page(rows: Sequence[Row], unfinished: Sequence[Row], target: str) -> str:
    """The page of one target, as `fewsure reproduce` writes it."""
    return data_page(f"Results: {target}", [Part(target, rows, unfinished)])


def data_page(title: str, parts: Sequence[Part], more: str = "") -> str:
    """For each part scores by method, with notes; `more`; then commands, single runs and tuning trials of all parts."""
    known: list[str] = []
    contexts = []
    for part in parts:
        notes = _notes(part)
        contexts.append(_context(part) | {"notes": [note for note in notes if note not in known]})
        known += notes
    page = templates("fewsure.reproduce").get_template("results.md")
    return f"{page.render(title=title, parts=contexts, more=more)}\n"


def _context(part: Part) -> dict[str, Any]:
    """The values that a part's sections show."""
    rows, score = part.rows, _score(part.rows)
    entries = _entries(rows)
    tried = dict(sorted({_name(row): row for row in [*part.unfinished, *rows] if row["trials"]}.items()))
    return {
        "target": part.target,
        "heading": setting(rows[0]),
        "entries": _entries_table(entries, score, part.exact),
        "with_noise": _noise_table(entries, part.exact) if all("with_noise" in row for row in rows) else None,
        "commands": _commands(rows),
        "unfinished": _unfinished_table(part.unfinished) if part.unfinished else None,
        "tuning": _tuning_table(tried, score) if tried else None,
        "tuning_tasks": next((f"{row['trials'][0]['tasks']:,}" for row in tried.values()), None),
        "made_otherwise": [name for name, row in tried.items() if _made_otherwise(row, TARGETS[part.target])],
        "runs": _runs_table(rows, score),
    }


def _score(rows: Sequence[Row]) -> str:
    return "accuracy" if "accuracy" in rows[0] else "mse"


def _entries(rows: Sequence[Row]) -> list[tuple[str, list[Row]]]:
    """The rows of each method, the lowest NLL first."""
    entries = [(name, list(group)) for name, group in groupby(rows, key=_name)]
    return sorted(entries, key=lambda entry: mean(row["nll"]["mean"] for row in entry[1]))


def _notes(part: Part) -> list[str]:
    """The caveats of a part's table."""
    rows, classifies = part.rows, _score(part.rows) == "accuracy"
    temperatures = [_temperature(row) for row in rows]
    mixtures = {_name(row): row["components"] for row in rows if row.get("components", 1) > 1}
    on_cpu = _on_another_device(rows)
    notes = [
        f"{_either(rows, 'tasks')} unseen test tasks, the same for each method on one kind of device; "
        f"{_either(rows, 'updates')} updates. The lowest NLL comes first.",
        "± and brackets are 95 % intervals over tasks. With several seeds, scores and intervals are means over seeds; "
        "sd is the standard deviation of the first score over seeds. The ECE's interval is a bootstrap's, biased "
        "upwards: it never holds an error of 0.",
        "Training time is the wall-clock time of one run; it is an upper bound where runs shared the device.",
    ]
    if classifies:
        notes += [
            "Class probabilities are means over 32 sampled networks (BMAML: its particles; MAML, ProtoNet: one). ECE "
            "and MCE use 10 bins of confidence over the query points of all tasks.",
            "Transductive: a prediction depends on the other queries, through normalisation (as in the paper), "
            "centring or a temperature for each task.",
        ]
    else:
        notes.append(
            "Quantiles of 32 sampled function values (BMAML: its particles; MAML: its one function), without "
            "observation noise and without scaling after training. MSE compares the mean with noisy labels."
        )
    if starts := sorted({str(row["start"]) for row in rows if _is_pretrained(row)}):
        notes.append(f"Pretrained: the blocks start as a plain classifier has trained them ({'; '.join(starts)}).")
    if part.exact is not None:
        notes.append(
            f"The exact posterior knows how tasks are made; it was scored on {part.exact['tasks']:,} tasks of its own. "
            "Labels have noise on top of its functions, so its ECE is above 0 in this protocol. A lower ECE means "
            "functions that vary more than the exact posterior's."
        )
    if any(row["train_on_validation"] for row in rows):
        notes.append(
            "Final runs also train on the validation classes. They take their temperature from the best trial, which "
            "did not train on validation classes."
        )
    if on_cpu:
        notes.append(f"Evaluated on a CPU, and so on other test tasks: {', '.join(on_cpu)}.")
    if mixtures:
        sizes = ", ".join(f"{name} {components}" for name, components in mixtures.items())
        notes.append(f"Mixtures of generators: {sizes}.")
    if any(temperature != Temperature() for temperature in temperatures):
        notes.append("A temperature, fitted on validation tasks unless given, divides outputs before the softmax.")
    if any(temperature.of_mixture for temperature in temperatures):
        notes.append("The temperature applies to the logarithm of the mean probabilities of the sampled networks.")
    if any(temperature.exponent for temperature in temperatures):
        notes.append(
            "Odds are the geometric mean of p / (1 − p) over a task's query points, with p the largest class "
            "probability. An exponent below 0 makes confident predictions more confident; −1 is the lowest fitted."
        )
    if nearest := rows[0].get("nearest_mean"):
        notes.append(
            f"The nearest class mean uses the same features, scaled to length 1, on {nearest['tasks']:,} test tasks "
            "of its own. Centred: without the mean of each set, as in the networks here."
        )
    return notes


def _entries_table(entries: Sequence[tuple[str, Sequence[Row]]], score: str, exact: Row | None) -> str:
    digits, classifies = DIGITS[score], score == "accuracy"
    reference = any(printed_for(rows[0]) for _, rows in entries)
    names, pretrained = list(SCORES[score]), any(map(_is_pretrained, (rows[0] for _, rows in entries)))
    plain = any("untempered" in rows[0] for _, rows in entries)
    headers = (
        *("method", *names, *["without a temperature: NLL / ECE / MCE"] * plain, *["transductive"] * classifies),
        *(*["start"] * pretrained, "seeds", "training"),
        *[f"paper: {' / '.join([names[0], 'ECE', 'MCE'])}"] * reference,
    )

    def scores(rows: Sequence[Row]) -> list[str]:
        return [_averaged(rows, key, digits) for key in SCORES[score].values()]

    cells = [
        (
            *(name, *scores(rows), *[_untempered(rows)] * plain),
            *["yes" if rows[0]["transductive"] else "no"] * classifies,
            *(*["pretrained" if _is_pretrained(rows[0]) else "random"] * pretrained, _seeds(rows, score)),
            *(f"{mean(row['train_seconds'] for row in rows):,.0f} s", *[_in_the_paper(rows[0])] * reference),
        )
        for name, rows in entries
    ]
    if exact is not None:
        cells.append(("exact posterior", *scores([exact]), *[ABSENT] * (len(headers) - len(names) - 1)))
    first = entries[0][1][0]
    for key, name in NEAREST.items():
        if key in first:
            accuracy, others = interval(first[key]["accuracy"], digits), [ABSENT] * (len(names) - 1)
            transductive = "yes" if key == "nearest_mean_centred" else "no"
            left = [ABSENT] * (len(headers) - len(names) - plain - 2)
            cells.append((name, accuracy, *others, *[ABSENT] * plain, transductive, *left))
    return markdown_table(headers, cells)


def _is_pretrained(row: Row) -> bool:
    return str(row.get("start", RANDOM_START)) != RANDOM_START


def _untempered(rows: Sequence[Row]) -> str:
    """NLL, ECE and MCE without a temperature, of entries that have one."""
    if "untempered" not in rows[0]:
        return ABSENT
    found = [row["untempered"] for row in rows]
    errors = " / ".join(f"{mean(one[error] for one in found):.4f}" for error in ("ece", "mce"))
    return f"{mean(one['nll']['mean'] for one in found):.4f} / {errors}"


def _averaged(rows: Sequence[Row], key: str, digits: int) -> str:
    """A score with its interval over tasks, both averaged over seeds; MCE goes without."""
    found = [row[key] for row in rows]
    if isinstance(found[0], Mapping):
        return interval({part: mean(one[part] for one in found) for part in ("mean", "ci95")}, digits)
    if key == "mce":
        return f"{mean(found):.4f}"
    low, high = (mean(row[f"{key}_ci95"][end] for row in rows) for end in (0, 1))
    return f"{mean(found):.4f} [{low:.4f}, {high:.4f}]"


def _seeds(rows: Sequence[Row], score: str) -> str:
    spread = f" (sd {stdev(row[score]['mean'] for row in rows):.{DIGITS[score]}f})" if len(rows) > 1 else ""
    return f"{len(rows)}{spread}"


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
    headers = ("method", "seed", next(iter(SCORES[score])), "ECE", "MCE", *["temperature"] * classifies, *facts)
    cells = [
        (
            *(_name(row), str(row["train_seed"]), interval(row[score], DIGITS[score]), f"{row['ece']:.4f}"),
            f"{row['mce']:.4f} [{row['mce_ci95'][0]:.4f}, {row['mce_ci95'][1]:.4f}]",
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


def _noise_table(entries: Sequence[tuple[str, Sequence[Row]]], exact: Row | None) -> str:
    shown = [*entries, *([("exact posterior", [exact])] if exact else [])]
    cells = [
        (name, *(f"{mean(row['with_noise'][error] for row in rows):.4f}" for error in ("ece", "mce")))
        for name, rows in shown
    ]
    return markdown_table(("method", "ECE with noise", "MCE with noise"), cells)


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
    return markdown_table(("method", "seed", "updates logged", "preset"), cells)


def _tuning_table(tried: Mapping[str, Row], score: str) -> str:
    """The trials of each entry, of which its rows are the best."""
    headers = ("method", "trial", "options on top of the recommended ones", "NLL", next(iter(SCORES[score])), "ECE")
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
    """Whether the present commands give a row other trials, temperatures, classes or another length."""
    listed = dict(enumerate(read_trials(target.listed)[row["label"]]))
    planned = target.trials(row["label"])[0].training.updates * row.get("budget", 1.0)
    untempered = {"softmax_temperature": 1.0, "temperature_exponent": 0.0}
    return (
        row["updates"] != round(planned)
        or row["train_on_validation"] != target.joins_validation
        or any(trial["options"] != listed.get(trial["trial"]) for trial in row["trials"])
        or any(
            row.get(name, plain) != plain and row["trials"] and all(trial.get(name) == plain for trial in row["trials"])
            for name, plain in untempered.items()
        )
    )


def _temperature(row: Row) -> Temperature:
    """1 for regression."""
    of_mixture = row.get("temperature_of") == "mixture"
    return Temperature(row.get("softmax_temperature", 1.0), row.get("temperature_exponent", 0.0), of_mixture)


def _formula(temperature: Temperature) -> str:
    """The divisor of outputs.

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
