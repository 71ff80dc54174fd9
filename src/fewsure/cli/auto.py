"""Fit and train the methods that suit your data, and let the validation groups select one of them.

The closed-form methods are fitted first, in seconds; then each of the others gets an equal part of what is left of the
budget. The least mean negative log-likelihood on validation tasks is selected. The run folder is then that of the
selected method, for `evaluate`, `certify`, `predict` and `export`. Inside it, `baselines` holds all methods, and
auto.json the whole table.

examples:
  fewsure train auto --data table --file my.csv --task-column group --target y --out runs/mine
  fewsure train auto --data images --folder photos --budget 20m --out runs/photos
  fewsure train auto --data table --file my.csv --task-column group --target y --methods gp ridge mixed
"""

import json
from dataclasses import dataclass
from pathlib import Path

from fewsure.cli.common import Common, parse_groups, peek
from fewsure.core.distributed import is_rank_zero, process_group
from fewsure.data import DATA
from fewsure.errors import require_known
from fewsure.report.evaluation_tables import selection_table
from fewsure.report.tables import print_tables
from fewsure.selection.auto import BUDGET, candidates, read_budget, select
from fewsure.training.experiment import default_data


@dataclass(frozen=True, kw_only=True)
class Options(Common):
    """`fewsure train auto`, beside those of the data."""

    out: Path = Path("runs/last")
    """The run folder; it must be new or empty, unless --resume is given."""
    data: str = "table"
    """The tasks to learn from: your own `table`, `table-classes`, `images` or `features`, or a published data set."""
    budget: str = BUDGET
    """The time of all trainings together, such as 90s, 5m or 1h. Methods of closed form are fitted in any case."""
    methods: tuple[str, ...] | None = None
    """The methods to choose from; `none` for all that suit the data."""
    seed: int = 0
    """Seed of initialisation, training tasks and noise."""
    resume: bool = False
    """Go on in --out where it stopped."""


def main(arguments: list[str]) -> None:
    """Select, and show the table."""
    name = peek("train auto", Options, arguments).data
    require_known("data", name, list(DATA))
    options, groups = parse_groups("train auto", Options, arguments, __doc__, data=default_data(name))
    budget = read_budget(options.budget)
    experiments = candidates(name, groups["data"], methods=options.methods or (), seed=options.seed)
    with process_group(options.device) as device:
        run, table = select(options.out, experiments, device, budget=budget, resume=options.resume)
        if options.json and is_rank_zero():
            print(json.dumps({"run": str(run.folder)} | table))
        elif is_rank_zero():
            print_tables([selection_table(table)])
            print(f"{run.folder} is the run of {table['selected']}; next: fewsure evaluate {run.folder}")
