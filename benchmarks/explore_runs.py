r"""Add to what was tried what `fewsure reproduce` has run: trials, or results that newer ones take the place of.

    python benchmarks/explore_runs.py "Omniglot, steps" runs/omniglot/simpa/trial-*
    python benchmarks/explore_runs.py "Omniglot, first" results/omniglot.json --round "first results"

Of a file of results, before it is written anew, all rows are added, or those of the methods that `--only` names.
"""

import argparse
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from fewsure.files import write_atomically
from fewsure.records import from_json
from fewsure.reproduce import VALIDATION
from fewsure.results import read_results
from fewsure.targets import read_trials
from fewsure.training.runs import Run

RESULTS = Path(__file__).resolve().parents[1] / "results" / "exploration.json"


def main() -> None:
    """One row for each run or result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stage")
    parser.add_argument("source", nargs="+", type=Path, help="the folder of a trial, or a file of results")
    parser.add_argument("--only", nargs="*", default=(), help="methods")
    parser.add_argument("--round", default="an earlier round", help="what the page calls rows on test classes")
    parser.add_argument("--results", type=Path, default=RESULTS)
    asked = parser.parse_args()
    rows: list[dict[str, Any]] = []
    for source in asked.source:
        rows += [of_trial(source)] if source.is_dir() else of_results(source, asked.only, asked.round)
    found = json.loads(asked.results.read_text(encoding="utf-8"))
    found["runs"] += [{"stage": asked.stage} | row for row in rows]
    write_atomically(asked.results, json.dumps(found, indent=1) + "\n")
    print(json.dumps(rows))


def of_trial(folder: Path) -> dict[str, Any]:
    """A trial's scores on validation tasks, and its training loss: of a mixture, that of each generator, too."""
    run, scores = Run.open(folder), from_json((folder / VALIDATION).read_text(encoding="utf-8"))
    experiment, last = run.experiment, run.metrics()[-1]
    target, method, number = folder.parents[1].name, folder.parent.name, int(folder.name.removeprefix("trial-"))
    row = {
        "method": experiment.algorithm_name,
        "changed": _flat(read_trials(f"{target}.toml")[method][number]) | _temperature(scores),
        "updates": last["update"],
        "tasks": scores["tasks"],
        "device": last["device"],
        "seed": experiment.training.seed,
        **_scores(scores),
        "loss": last["loss"],
    }
    losses = [value for name, value in last.items() if name.startswith("loss.")]
    return row | ({"least": min(losses), "most": max(losses)} if losses else {})


def of_results(file: Path, only: Sequence[str], which: str) -> Iterator[dict[str, Any]]:
    """The rows of results on test classes, with the options of the trial that each is of."""
    for row in read_results(file):
        if only and row["label"] not in only:
            continue
        number = int(row["preset"].rsplit(" ", 1)[1])
        options = next(_flat(trial["options"]) for trial in row["trials"] if trial["trial"] == number)
        yield {
            "method": row["algorithm"],
            "changed": options | _temperature(row) | {"tasks": f"{row['tasks']:,} of the test classes, {which}"},
            "updates": row["updates"],
            "tasks": row["tasks"],
            "device": row["device"],
            "seed": row["train_seed"],
            **_scores(row),
        }


def _flat(options: dict[str, dict[str, Any]]) -> dict[str, Any]:
    return {name: value for group in options.values() for name, value in group.items()}


def _temperature(scores: dict[str, Any]) -> dict[str, float]:
    """What was learned of it, as the page's other rows have it."""
    none = {"softmax_temperature": 1.0, "temperature_exponent": 0.0}
    return {name: round(scores[name], 2) for name, value in none.items() if scores.get(name, value) != value}


def _scores(scores: dict[str, Any]) -> dict[str, float]:
    return {
        score: scores[score]["mean"] if isinstance(scores[score], dict) else scores[score]
        for score in ("accuracy", "ece", "mce", "nll")
    }


if __name__ == "__main__":
    main()
