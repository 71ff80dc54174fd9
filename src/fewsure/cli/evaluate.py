"""Adapt a trained run to unseen tasks and score its predictions: error, likelihood, calibration.

Runs that are evaluated with the same --seed see the same tasks. The result is kept in the run folder, with the scores
of each task. On data of your own, intervals go by what is independent: groups of rows, or classes. Baselines that
need no meta-training are scored on the same tasks. Scores are kept after every 2,000 tasks. The same command goes on
where it was interrupted, or where an evaluation of fewer tasks ended, and ends in the same numbers. Memory does not
grow with --tasks.

examples:
  fewsure evaluate runs/simpa
  fewsure evaluate runs/simpa --tasks 100000 --json
  fewsure evaluate runs/simpa --shot 3                        with other numbers of examples
  fewsure evaluate runs/simpa --checkpoint best               what `fewsure train --keep-best` has kept
  torchrun --nproc-per-node=4 -m fewsure evaluate runs/simpa --tasks 10000
"""

import json
from dataclasses import dataclass
from pathlib import Path

from fewsure.cli.common import Common, parse
from fewsure.errors import require


@dataclass(frozen=True, kw_only=True)
class Options(Common):
    """`fewsure evaluate`."""

    run: Path
    """A run folder."""
    tasks: int = 1000
    """Unseen tasks."""
    seed: int = 0
    """Chooses tasks and noise. Test tasks have a random stream of their own, apart from training's."""
    checkpoint: str | None = None
    """`last`, `best`, or the number of updates of a checkpoint that was kept. `none` takes the best where the run
    keeps it, and else the last."""
    baselines: bool = True
    """On data of your own, score baselines without meta-training on the same tasks, and say whether the run beats
    them."""
    shot: int | None = None
    """Support examples of a task, or of each of its classes. `none` takes the number of the training, or the middle of
    its range."""
    kl_weight: float | None = None
    """The weight of the KL, of a run of simpa-latent that was trained over several (`--kl-weight-spread`). A small one
    is more accurate, a large one costs fewer nats. `none` takes the run's own."""


def main(arguments: list[str]) -> None:
    """Evaluate and print."""
    options = parse("evaluate", Options, arguments, __doc__)
    require(options.tasks >= 2, "tasks", "at least 2", options.tasks)
    require(options.shot is None or options.shot >= 1, "shot", "at least 1 example", options.shot)
    from fewsure.core.distributed import is_rank_zero, process_group
    from fewsure.pipeline import evaluate_run
    from fewsure.report.evaluation_tables import class_table, evaluation_tables, worst_groups
    from fewsure.report.tables import print_tables
    from fewsure.selection.baselines import with_baselines
    from fewsure.training.runs import Run

    run = Run.open(options.run)
    with process_group(options.device) as device:
        summary = evaluate_run(
            run,
            device,
            tasks=options.tasks,
            seed=options.seed,
            checkpoint=options.checkpoint,
            shot=options.shot,
            kl_weight=options.kl_weight,
        )
        if options.baselines:
            summary = with_baselines(run, summary, device)
        if is_rank_zero():
            tables = [*evaluation_tables([summary]), *class_table(summary), *worst_groups(summary)]
            print(json.dumps(summary)) if options.json else print_tables(tables)
