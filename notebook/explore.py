r"""Try options, and add a row to what was tried.

`try` trains a preset with some of its options changed and scores it on validation tasks. Options that are `--common` to
a stage are left out of a row: the page's text names them.

    python notebook/explore.py try "weight noise" simpa sine-line '{"algorithm": {"weight_noise": 0.1}}' --tasks 500
    python notebook/explore.py try "Omniglot, small" maml omniglot '{"training": {"lr": 1e-3}}' --tasks 100 \
        --common '{"network": {"filters": 16}, "data": {"train_query": 5}, "training": {"tasks": 5, "updates": 3000}}'

`add` takes what `fewsure reproduce` has run: trials, or results that newer ones are about to take the place of.

    python notebook/explore.py add "Omniglot, steps" runs/omniglot/simpa/trial-*
    python notebook/explore.py add "Omniglot, first" results/omniglot.json --round "first results"

`notebook/exploration_page.py` makes a page of the rows. Many came from throw-away programs that did the same, some
before there was this script; they alone have the accuracy of one network. Presets have changed since the first of them.
"""

import argparse
import json
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from fewsure.algorithms.simpa import Simpa
from fewsure.core import streams
from fewsure.core.config import from_json
from fewsure.core.devices import device_name, find_device
from fewsure.core.files import write_atomically
from fewsure.core.vectorise import draw_per_task
from fewsure.evaluation.calibrate import calibrated
from fewsure.evaluation.evaluate import evaluate
from fewsure.pipeline import start_run, train_run
from fewsure.posteriors.mixture import logged_losses
from fewsure.reproduce.results import read_results
from fewsure.reproduce.run import VALIDATION
from fewsure.reproduce.targets import TARGETS, changed, read_trials
from fewsure.training.experiment import Experiment, load_preset
from fewsure.training.runs import Run
from fewsure.types import Parts

SAMPLES = 64
"""Of the generator, to be looked at."""
RESULTS = Path(__file__).resolve().parent / "exploration.json"
Row = dict[str, Any]


def main() -> None:
    """One row, or several."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ways = parser.add_subparsers(dest="way", required=True)
    trying, adding = ways.add_parser("try"), ways.add_parser("add")
    for way in (trying, adding):
        way.add_argument("stage")
        way.add_argument("--results", type=Path, default=RESULTS)
    for name in ("method", "data", "options"):
        trying.add_argument(name)
    trying.add_argument("--common", default="{}", help="options of all rows of the stage, as JSON")
    trying.add_argument("--tasks", type=int, default=500)
    trying.add_argument("--device", default="auto")
    adding.add_argument("source", nargs="+", type=Path, help="the folder of a trial, or a file of results")
    adding.add_argument("--only", nargs="*", default=(), help="methods of the results; all if none is named")
    adding.add_argument("--round", default="an earlier round", help="what the page calls rows on test classes")
    asked = parser.parse_args()
    if asked.way == "try":
        common = json.loads(asked.common)
        rows = [tried(asked.method, asked.data, json.loads(asked.options), common, asked.tasks, asked.device)]
    else:
        rows = [row for source in asked.source for row in added(source, asked.only, asked.round)]
    found = json.loads(asked.results.read_text(encoding="utf-8"))
    found["runs"] += [{"stage": asked.stage} | row for row in rows]
    write_atomically(asked.results, json.dumps(found, indent=1) + "\n")
    print(json.dumps(rows))


def tried(method: str, data: str, options: Row, common: Row, tasks: int, on: str) -> Row:
    """A training, and its scores on validation tasks."""
    device = find_device(on)
    base = changed(load_preset("recommended", method, data), common, None)
    experiment = changed(base, options, None)
    with tempfile.TemporaryDirectory() as folder:
        run = start_run(Path(folder) / "run", experiment, resume=False)
        train_run(run, device)
        meta, loss = run.load(device).meta, losses(run)
        scores, _ = evaluate(calibrated(run, device), meta, tasks=tasks, seed=0, stream="validation")
    facts = {"updates": experiment.training.updates, "tasks": tasks, "device": device_name(device)}
    row = {"method": method, "changed": _flat(options)} | facts | {"seed": experiment.training.seed}
    return row | figures(scores) | loss | generated(experiment, meta)


def added(source: Path, only: Sequence[str], which: str) -> Iterator[Row]:
    """The trial in a folder, or the rows of a file of results, each with the options of the trial that it is of."""
    if source.is_dir():
        yield of_trial(source)
        return
    for row in read_results(source):
        if not only or row["label"] in only:
            if not row.get("trials"):
                raise SystemExit(f"expected results of methods with tuning trials, but {row['label']} has none")
            number = int(row["preset"].rsplit(" ", 1)[1])
            options = next(_flat(trial["options"]) for trial in row["trials"] if trial["trial"] == number)
            options |= _temperature(row) | {"tasks": f"{row['tasks']:,} of the test classes, {which}"}
            facts = {name: row[name] for name in ("updates", "tasks", "device")} | {"seed": row["train_seed"]}
            yield {"method": row["algorithm"], "changed": options} | facts | figures(row)


def of_trial(folder: Path) -> Row:
    """A trial with those of its options that its list names."""
    run, scores = Run.open(folder), from_json((folder / VALIDATION).read_text(encoding="utf-8"))
    target, entry, number = folder.parents[1].name, folder.parent.name, int(folder.name.removeprefix("trial-"))
    record, listed = run.experiment.record(), read_trials(TARGETS[target].listed)[entry][number]
    options = {name: record[group][name] for group, names in listed.items() for name in names} | _temperature(scores)
    facts = {
        "updates": run.experiment.training.updates,
        "tasks": scores["tasks"],
        "device": run.metrics()[-1]["device"],
    }
    row = {"method": run.experiment.algorithm_name, "changed": options} | facts
    return row | {"seed": run.experiment.training.seed} | figures(scores) | losses(run)


def figures(scores: Mapping[str, Any]) -> dict[str, float]:
    """The scores that the page shows, without their intervals."""
    return {
        name: scores[name]["mean"] if isinstance(scores[name], Mapping) else scores[name]
        for name in ("mse", "accuracy", "ece", "mce", "nll")
        if name in scores
    }


def losses(run: Run) -> dict[str, float]:
    """The training loss at the end and, of a mixture, that of its best and of its worst generator."""
    last = run.metrics()[-1]
    each = logged_losses(last)
    return {"loss": last["loss"]} | ({"least": min(each), "most": max(each)} if each else {})


def generated(experiment: Experiment, meta: Parts) -> dict[str, float]:
    """What SImPa's generator, or the first of them, makes before adaptation.

    The root mean square of the weights' mean (`size`), their standard deviation relative to it (`spread`), and the
    share near the limits of tanh (`saturated`).
    """
    if not isinstance(experiment.algorithm, Simpa):
        return {}
    posterior = experiment.algorithm.posterior(experiment.model)
    device = next(iter(meta["generator"].values())).device
    noise = draw_per_task({"z": posterior.draws()["z"]}, SAMPLES, streams.generator(0, "explore", device=device))
    weights = posterior.sample(meta["generator"], noise)[0]
    mean = weights.mean(0)
    return {
        "size": float(mean.square().mean().sqrt()),
        "spread": float((weights - mean).norm(dim=1).mean() / mean.norm()),
        "saturated": float((weights.abs() > 0.9).float().mean()),
    }


def _flat(options: Mapping[str, Mapping[str, Any]]) -> Row:
    return {name: value for group in options.values() for name, value in group.items()}


def _temperature(scores: Mapping[str, Any]) -> dict[str, float]:
    """What was learned of it."""
    none = {"softmax_temperature": 1.0, "temperature_exponent": 0.0}
    return {name: round(scores[name], 2) for name, value in none.items() if scores.get(name, value) != value}


if __name__ == "__main__":
    main()
