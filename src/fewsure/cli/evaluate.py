"""`fewsure evaluate` and `fewsure compare`."""

import json
from dataclasses import dataclass
from pathlib import Path

from fewsure.cli.common import Common, command
from fewsure.core.distributed import is_first, process_group
from fewsure.errors import require
from fewsure.evaluation.compare import compare_runs
from fewsure.pipeline import evaluate_run
from fewsure.report.tables import comparison_table, evaluation_tables
from fewsure.report.terminal import print_tables
from fewsure.training.runs import LAST, Run


@dataclass(frozen=True, kw_only=True)
class Evaluate(Common):
    """Adapt a trained run to unseen tasks and score its predictions: error, likelihood, calibration.

    Runs that are evaluated with the same --seed see the same tasks. The result is kept in the run folder, with what was
    found of each task. Every 2,000 tasks are kept as they are done: the same command goes on where it was interrupted,
    or where an evaluation of fewer tasks ended, to the numbers of one that was not. Memory does not grow with --tasks.

    examples:
      fewsure evaluate runs/simpa
      fewsure evaluate runs/simpa --tasks 100000 --json
      fewsure evaluate runs/simpa --checkpoint best               what `fewsure train --keep-best` has kept
      torchrun --nproc-per-node=4 -m fewsure evaluate runs/simpa --tasks 10000
    """

    run: Path
    """A run folder."""
    tasks: int = 1000
    """Unseen tasks."""
    seed: int = 0
    """Chooses tasks and noise. Test tasks have a random stream of their own, apart from training's."""
    checkpoint: str = LAST
    """`last`, `best`, or the number of updates of a checkpoint that was kept."""


@dataclass(frozen=True, kw_only=True)
class Compare(Common):
    """Test whether runs differ: a paired t-test of each score over the same unseen tasks, against the first run.

    Evaluate the runs first, with the same --tasks and --seed and on the same kind of device. Calibration errors are
    pooled over tasks, so they have no paired t-test; `fewsure report` compares them by resampling the tasks.

    examples:
      fewsure compare runs/simpa runs/maml
      fewsure compare runs/simpa runs/maml runs/protonet --json
    """

    runs: tuple[Path, ...]
    """Run folders, two or more; each after the first is compared with the first."""


def _evaluate(command: Evaluate) -> None:
    require(command.tasks >= 2, "tasks", "at least 2", command.tasks)
    run = Run.open(command.run)
    with process_group(command.device) as device:
        summary = evaluate_run(
            run, device, tasks=command.tasks, seed=command.seed, checkpoint=command.checkpoint, quiet=command.json
        )
        if is_first():
            print(json.dumps(summary)) if command.json else print_tables(evaluation_tables([summary]))


def _compare(command: Compare) -> None:
    compared = compare_runs([Run.open(folder) for folder in command.runs])
    if command.json:
        print(json.dumps([comparison.record() for comparison in compared]))
    else:
        print_tables([comparison_table(comparison) for comparison in compared], titled=True)


EVALUATE = command("evaluate", Evaluate, _evaluate)
COMPARE = command("compare", Compare, _compare)
