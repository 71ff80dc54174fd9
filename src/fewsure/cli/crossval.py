"""Cross-validate on your own groups: each is predicted by a learner that has not seen it.

The groups (or classes) are divided into folds as scikit-learn's GroupKFold divides them. For each fold a learner is
trained on the others, and scored on tasks of the fold. Scores and intervals are over all groups. So are those of the
baselines on the same tasks. The folder holds a run for each fold. The same command with --resume goes on.

examples:
  fewsure crossval gp --data table --file my.csv --task-column group --target y --out runs/cv
  fewsure crossval auto --data table --file my.csv --task-column group --target y --budget 1m --out runs/cv
  fewsure crossval ridge --data table --file my.csv --task-column group --target y --folds none --out runs/each
"""

import json
from dataclasses import dataclass

from fewsure.cli.common import parse_groups, peek
from fewsure.cli.train import ExperimentSource, read_experiment
from fewsure.core.distributed import is_rank_zero, process_group
from fewsure.data import DATA
from fewsure.errors import require_known
from fewsure.report.evaluation_tables import class_table, evaluation_tables, worst_groups
from fewsure.report.tables import print_tables
from fewsure.selection.auto import BUDGET, candidates, read_budget
from fewsure.selection.auto import NAME as AUTO
from fewsure.selection.crossval import FOLDS, TASKS, Plan, cross_validate
from fewsure.training.experiment import Experiment, default_data


@dataclass(frozen=True, kw_only=True)
class Options(ExperimentSource):
    """`fewsure crossval`, beside those of the method, the data, the network and the training."""

    data: str = "table"
    """The tasks to learn from: your own `table` or `table-classes`."""
    folds: int | None = FOLDS
    """Folds of groups, or of classes; `none` for one of each group, whose learners together give intervals for a new
    one."""
    test_tasks: int = TASKS
    """Tasks to score, of all folds together; each group has about as many."""
    test_shot: int | None = None
    """Support examples of these tasks, or of each of their classes. `none` takes the middle of the training's range."""
    baselines: bool = True
    """Score baselines without meta-training on the same tasks."""


@dataclass(frozen=True, kw_only=True)
class AutoOptions(Options):
    """`fewsure crossval auto`, beside those of the data."""

    budget: str = BUDGET
    """The time of all trainings of a fold, such as 90s, 5m or 1h."""
    methods: tuple[str, ...] | None = None
    """The methods to choose from; `none` for all that suit the data."""
    seed: int = 0
    """Seed of initialisation, tasks and noise."""


def main(arguments: list[str]) -> None:
    """Train and score all folds, and show the scores."""
    options, plan = _read(arguments)
    with process_group(options.device) as device:
        summary = cross_validate(options.out, plan, device, resume=options.resume)
        if options.json and is_rank_zero():
            print(json.dumps(summary))
        elif is_rank_zero():
            print_tables([*evaluation_tables([summary]), *class_table(summary), *worst_groups(summary)])
            print(f"{summary['folds']} folds in {options.out}: no group was scored by a learner that had seen it")
            if "jackknife" in summary:
                print(
                    f"intervals for a new group: `fewsure predict {options.out} … --coverage 0.9` holds the truth with "
                    "probability 0.8 at least, 1 − 2α (jackknife+ over groups), and as a rule with 0.9"
                )


def _read(arguments: list[str]) -> tuple[Options, Plan]:
    if arguments[:1] != [AUTO]:
        options, experiment = read_experiment(arguments, "crossval", Options, __doc__)
        experiments, budget, seed = {experiment.algorithm_name: experiment}, None, experiment.training.seed
        return options, _plan(options, experiments, budget, seed)
    name = peek("crossval auto", AutoOptions, arguments[1:]).data
    require_known("data", name, list(DATA))
    chosen, groups = parse_groups("crossval auto", AutoOptions, arguments[1:], __doc__, data=default_data(name))
    found = candidates(name, groups["data"], methods=chosen.methods or (), seed=chosen.seed)
    return chosen, _plan(chosen, found, read_budget(chosen.budget), chosen.seed)


def _plan(options: Options, experiments: dict[str, Experiment], budget: float | None, seed: int) -> Plan:
    return Plan(
        experiments,
        budget=budget,
        folds=options.folds,
        tasks=options.test_tasks,
        seed=seed,
        shot=options.test_shot,
        baselines=options.baselines,
    )
