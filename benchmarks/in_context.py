"""Methods that read the known examples, on sine-line: from the command line to the scores on 1,000 test tasks.

    .venv/bin/python benchmarks/in_context.py simpa-latent --seed 0      # minutes on one core
    .venv/bin/python benchmarks/in_context.py exact                      # the exact posterior on the same tasks
    make results                                                         # docs/results/sine-line.md from the JSON

The settings are the recommended ones, or the options of `fewsure train` that follow. The test tasks are those of the
record of `fewsure reproduce regression`. `benchmarks/own_tables.py` has the same methods on real tables.
"""

import argparse
import json
import resource
import tempfile
import time
from collections.abc import Sequence
from functools import partial
from itertools import groupby
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import torch

import fewsure
from fewsure.cli.main import main as command
from fewsure.core import streams
from fewsure.core.files import write_atomically
from fewsure.core.vectorise import take
from fewsure.evaluation.evaluate import BLOCK, unseen_block
from fewsure.evaluation.scoring.predict import Predict
from fewsure.evaluation.scoring.regression import RegressionScorer
from fewsure.report.styles import display_name
from fewsure.report.tables import ABSENT, interval, markdown_table
from fewsure.reproduce.targets import TARGETS
from fewsure.training.experiment import load_preset
from fewsure.version import __version__

RESULTS = Path(__file__).resolve().parents[1] / "results" / "in-context.json"
TASKS, SHOT = 1000, 5
EXACT, FUNCTIONS = "exact", 256
"""The name of the exact posterior, and the functions drawn from it for each task."""
SCORES = ("tasks", "shot", "mse", "nll", "crps", "coverage_90", "ece", "seconds")
SECTION = """## On one CPU core

{table}

1. {tasks:,} unseen test tasks of seed {test_seed}, the same for all rows. ± is a 95 % interval over tasks. With several
   seeds, scores and intervals are means over seeds, and sd is the standard deviation over seeds.
2. The exact posterior knows how tasks are made. {functions} functions of it are drawn for each task.
3. NLL, CRPS and coverage are those of labels, so each method's noise is in them.
4. Each method has its recommended settings. Training is in processor seconds of one core of a shared machine.

{runs}

    .venv/bin/python benchmarks/in_context.py METHOD --seed SEED        # minutes on one core
    .venv/bin/python benchmarks/in_context.py exact
"""

ENSEMBLES = """## Method or ensemble

`--members 3` trains a method three times and averages the predictions. `--components 3` is SImPa's mixture: three
generators in one training. Each step of a mixture costs as much as a step of every member.

{table}

The same {tasks:,} test tasks as above; ± is a 95 % interval over tasks. The settings are `--preset quickstart` with
fewer updates, so the rows are short of the figures above. Training is in processor seconds of one core.

With seed 0 one of the mixture's generators diverged. All share the one norm that `--clip-norm` limits, so the other two
hardly learned. Members have a norm each. With a mixture, look at `loss.1`, `loss.2` … in `metrics.jsonl`.

    .venv/bin/python benchmarks/in_context.py METHOD --preset quickstart OPTIONS --results results/members.json
"""


def measure(method: str, options: list[str], seed: int, run: Path) -> dict[str, Any]:
    """Train and score one method."""
    before = processor_seconds()
    if code := command(["train", method, *options, "--seed", str(seed), "--device", "cpu", "--out", str(run)]):
        raise SystemExit(code)
    spent, threads = round(processor_seconds() - before, 1), torch.get_num_threads()
    learner, test_seed = fewsure.load(run, device="cpu"), TARGETS["regression"].test_seed
    found, training = learner.evaluate(tasks=TASKS, seed=test_seed, shot=SHOT), learner.experiment.training
    return {
        "problem": "sine-line",
        "method": method,
        "options": options,
        "split": "test",
        "updates": training.updates,
        "training_tasks": training.tasks,
        "train_cpu_seconds": spent,
        "threads": threads,
        **{name: found[name] for name in SCORES},
        "test_seed": test_seed,
        "seed": seed,
        "version": __version__,
        "device": "cpu",
    }


def exact() -> dict[str, Any]:
    """Score functions that are drawn as tasks are made, and weighted by their likelihood on the known examples."""
    began, test_seed, device = time.perf_counter(), TARGETS["regression"].test_seed, torch.device("cpu")
    experiment = load_preset("recommended", "simpa-latent", "sine-line").with_shot(SHOT)
    data, generator = experiment.data, streams.generator(test_seed, EXACT)
    scorer, records = RegressionScorer(data.noise_std), []
    for index in range(TASKS // BLOCK):
        block = unseen_block(experiment, index, test_seed, "test", device)
        for number in range(BLOCK):
            task, facts, noise = (take(part, number) for part in (block.task, block.facts, block.prediction_noise))
            functions = partial(data.exact_functions, task.support, size=FUNCTIONS, generator=generator)
            records.append(scorer.score(Predict(functions), task, facts, noise))
    found = scorer.summarise([{name: torch.stack([one[name] for one in records]) for name in records[0]}])
    own = {"tasks": TASKS, "shot": SHOT, "seconds": round(time.perf_counter() - began, 1)}
    return {
        "problem": "sine-line",
        "method": EXACT,
        "options": [],
        "split": "test",
        "functions": FUNCTIONS,
        **{name: (own | found)[name] for name in SCORES},
        "test_seed": test_seed,
        "seed": test_seed,
        "version": __version__,
        "device": "cpu",
    }


def entries(rows: Sequence[dict[str, Any]]) -> list[tuple[str, list[dict[str, Any]]]]:
    """(name, rows of all seeds) of each method with its options; the exact posterior first, then the lowest NLL."""

    def name(row: dict[str, Any]) -> str:
        known = "exact posterior" if row["method"] == EXACT else display_name(row["method"])
        return " ".join([known, *row["options"]])

    found = [(key, list(group)) for key, group in groupby(sorted(rows, key=name), key=name)]
    return sorted(found, key=lambda entry: (entry[1][0]["method"] != EXACT, averaged(entry[1], "nll")["mean"]))


def averaged(rows: Sequence[dict[str, Any]], key: str) -> dict[str, float]:
    """A score and its interval over tasks, both averaged over seeds."""
    return {part: mean(row[key][part] for row in rows) for part in ("mean", "ci95")}


def section(rows: Sequence[dict[str, Any]]) -> str:
    """The section of docs/results/sine-line.md."""
    names = {"mse": "MSE", "nll": "NLL", "crps": "CRPS", "coverage_90": "coverage of 90 %"}

    def cell(found: Sequence[dict[str, Any]], key: str) -> str:
        spread = f" (sd {stdev(row[key]['mean'] for row in found):.3f})" if len(found) > 1 else ""
        return interval(averaged(found, key), 3) + spread

    def training(found: Sequence[dict[str, Any]]) -> tuple[str, ...]:
        if found[0]["method"] == EXACT:
            return (ABSENT,) * 3
        seconds = mean(row["train_cpu_seconds"] for row in found)
        return str(len(found)), f"{found[0]['updates']:,}", f"{seconds:,.0f} s"

    known = entries(rows)
    table = [(name, *(cell(found, key) for key in names), *training(found)) for name, found in known]
    runs = [
        (name, str(row["seed"]), *(f"{row[key]['mean']:.3f}" for key in names), f"{row['train_cpu_seconds']:,.0f} s")
        for name, found in known[1:]
        for row in sorted(found, key=lambda row: row["seed"])
    ]
    return SECTION.format(
        **known[0][1][0],
        table=markdown_table(("", *names.values(), "seeds", "updates", "training"), table),
        runs=markdown_table(("run", "seed", *names.values(), "training"), runs),
    )


def ensembles(rows: Sequence[dict[str, Any]]) -> str:
    """The section on ensembles of docs/results/sine-line.md."""
    names = {"mse": "MSE", "nll": "NLL", "crps": "CRPS", "coverage_90": "coverage of 90 %"}
    table = [
        (
            " ".join([display_name(row["method"]), *row["options"][2:]]),
            str(row["seed"]),
            *(interval(row[key], 3) for key in names),
            f"{row['train_cpu_seconds']:,.0f} s",
        )
        for row in sorted(rows, key=lambda row: (row["method"], row["options"], row["seed"]))
    ]
    return ENSEMBLES.format(**rows[0], table=markdown_table(("", "seed", *names.values(), "training"), table))


def processor_seconds() -> float:
    """Of this process so far."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def main() -> None:
    """Measure one method, and put its row in the place of an older one."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("method", help="or `exact`; options of `fewsure train` may follow")
    parser.add_argument("--seed", type=int, default=0, help="of the training")
    parser.add_argument("--results", type=Path, default=RESULTS, help="where the row goes")
    given, options = parser.parse_known_args()
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        row = exact() if given.method == EXACT else measure(given.method, options, given.seed, run)
    rows = json.loads(given.results.read_text(encoding="utf-8")) if given.results.is_file() else []
    rows = [other for other in rows if any(other[key] != row[key] for key in ("method", "options", "seed"))]
    write_atomically(given.results, json.dumps([*rows, row], indent=1) + "\n")
    print(json.dumps(row, indent=1))


if __name__ == "__main__":
    main()
