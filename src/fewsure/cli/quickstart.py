"""Train SImPa-latent and MAML on sine-line, compare them on unseen tasks, draw the figures: minutes on two CPU cores.

examples:
  fewsure quickstart
  fewsure quickstart --out somewhere --seed 1
"""

import json
from dataclasses import dataclass
from pathlib import Path

from fewsure.cli.common import Common, parse
from fewsure.errors import require

NEXT = """
figures  {out}/report.html and {out}/report_files/
results  {out}/results.json

what to try next
  fewsure train simpa-latent --out runs/latent             the recommended settings, minutes on one CPU core
  fewsure train simpa --preset quickstart --out runs/simpa the paper's own SImPa, as large as a CPU allows
  fewsure train simpa --preset paper --out runs/literal    every value as the paper prints it
  {evaluate:<55}  tighter intervals
  fewsure reproduce regression --budget 0.05 --seeds 1     all six methods, at a small part of the budget
  fewsure train simpa --help                               every option, explained"""


@dataclass(frozen=True, kw_only=True)
class Options(Common):
    """`fewsure quickstart`."""

    out: Path = Path("quickstart")
    """Where runs, results and figures go. Runs that are there are continued."""
    tasks: int = 1000
    """Unseen tasks for the comparison."""
    seed: int = 0
    """Seed of training and of the unseen tasks."""


def main(arguments: list[str]) -> None:
    """Train, compare, draw, and say what to try next."""
    options = parse("quickstart", Options, arguments, __doc__)
    require(options.tasks >= 2, "tasks", "at least 2", options.tasks)
    from fewsure.core.devices import find_device
    from fewsure.report.evaluation_tables import evaluation_tables
    from fewsure.report.tables import print_tables
    from fewsure.reproduce.quickstart import quickstart

    results = quickstart(options.out, find_device(options.device), tasks=options.tasks, seed=options.seed)
    if options.json:
        print(json.dumps(results))
    else:
        print_tables(evaluation_tables(results))
        evaluate = f"fewsure evaluate {options.out}/simpa-latent --tasks 10000"
        print(NEXT.format(out=options.out, evaluate=evaluate))
