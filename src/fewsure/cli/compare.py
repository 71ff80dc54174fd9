"""Test whether runs differ: a paired t-test of each score over the same unseen tasks, against the first run.

Evaluate the runs first, with the same --tasks and --seed and on the same kind of device. Calibration errors are pooled
over tasks, so they have no paired t-test; `fewsure report` compares them by resampling the tasks.

examples:
  fewsure compare runs/simpa runs/maml
  fewsure compare runs/simpa runs/maml runs/protonet --json
"""

import json
from dataclasses import dataclass
from pathlib import Path

from fewsure.cli.common import Common, parse


@dataclass(frozen=True, kw_only=True)
class Options(Common):
    """`fewsure compare`."""

    runs: tuple[Path, ...]
    """Run folders, two or more; each after the first is compared with the first."""


def main(arguments: list[str]) -> None:
    """Compare and print."""
    options = parse("compare", Options, arguments, __doc__)
    from fewsure.evaluation.compare import compare_runs
    from fewsure.report.evaluation_tables import comparison_table
    from fewsure.report.tables import print_tables
    from fewsure.training.runs import Run

    compared = compare_runs([Run.open(folder) for folder in options.runs])
    if options.json:
        print(json.dumps([comparison.record() for comparison in compared]))
    else:
        print_tables([comparison_table(comparison) for comparison in compared], titled=True)
