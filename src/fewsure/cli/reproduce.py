"""Run an experiment for all its methods: tune on validation tasks, train, evaluate on unseen tasks, write it up.

`regression` is section 5.1 and Figure 2 of the paper, the data sets are section 5.2, Table 1 and Figure 3. Methods
have the same number of updates and of tuning trials, but on mini-imagenet, where one body is pretrained first, in
runs/mini-imagenet-conv4, and most entries start there. Finished runs are kept, so an interrupted command goes on where
it stopped, and several may work on different methods of one folder.

experiments: regression, omniglot, cifar-fs, mini-imagenet, tiered-imagenet and mini-imagenet-features (LEO's),
features-cifar-fs (of `fewsure features`, in the data root's folder `features/cifar-fs`). Those of 1 and 5 shots can be
run one at a time: cifar-fs-1shot. fs-mol is not in the paper: it has the protocol of its data set. There
random-forest and nearest-neighbours see the known molecules of an assay alone.

examples:
  fewsure reproduce regression --device cuda --jobs 8              the full setting
  fewsure reproduce regression --budget 0.05 --seeds 1             a look at it on a CPU
  fewsure reproduce regression --only simpa maml --device cuda     some methods now, the others later
  fewsure reproduce omniglot --tasks 100000 --device cuda
"""

import json
from dataclasses import dataclass
from pathlib import Path

from fewsure.cli.common import Common, parse
from fewsure.errors import FewsureError, require, require_known


@dataclass(frozen=True, kw_only=True)
class Options(Common):
    """`fewsure reproduce`."""

    target: str
    """The experiment."""
    only: tuple[str, ...] = ()
    """Methods to run now; all if none is named."""
    collect: bool = False
    """Run nothing: write up what is finished in --out."""
    budget: float = 1.0
    """Multiplies the number of updates of every training; a body is pretrained in full."""
    seeds: int = 3
    """Trainings of each method, with seeds 0, 1, …"""
    jobs: int = 1
    """Trainings at a time, each in a process of its own; methods that are named first are finished first."""
    tasks: int = 1000
    """Test tasks; fs-mol has those of its protocol."""
    out: Path | None = None
    """Where the runs and the report go; `runs/TARGET` if none."""
    results: Path | None = None
    """Where the list of result objects of one experiment goes; `results.json` in --out if none. Objects that it has of
    methods and seeds not finished in --out are kept: it grows as methods are run, here or on other machines."""
    page: Path | None = None
    """Where they go as a Markdown page; `results.md` in --out if none."""


def main(arguments: list[str]) -> None:
    """Check everything, then run what is not finished, write it up and print it."""
    options = parse("reproduce", Options, arguments, __doc__)
    require(0 < options.budget < float("inf"), "budget", "a number above 0", options.budget)
    require(options.seeds >= 1, "seeds", "at least 1", options.seeds)
    require(options.jobs >= 1, "jobs", "at least 1", options.jobs)
    require(options.tasks >= 2, "tasks", "at least 2", options.tasks)
    from fewsure.core.devices import find_device
    from fewsure.report.tables import print_tables
    from fewsure.reproduce.assays import AssayReproduction
    from fewsure.reproduce.run import Reproduction
    from fewsure.reproduce.targets import SEVERAL, TARGETS

    require_known("target", options.target, [*TARGETS, *SEVERAL])
    targets = SEVERAL.get(options.target, (options.target,))
    if len(targets) > 1 and (options.out or options.results or options.page):
        raise FewsureError(
            f"{options.target} stands for several experiments; give --out, --results and --page to one of them: "
            f"{', '.join(targets)}"
        )
    device = find_device(options.device)
    checked = []
    for target in targets:
        out = options.out or Path("runs") / target
        results, page = options.results or out / "results.json", options.page or out / "results.md"
        kind = AssayReproduction if target == "fs-mol" else Reproduction
        reproduction = kind(target, out, device, options.budget, options.seeds, options.tasks)
        for method in options.only:
            require_known("only", method, reproduction.methods)
        reproduction.kept(results)
        checked.append((reproduction, results, page))
    rows, tables = [], []
    for reproduction, results, page in checked:
        methods = () if options.collect else options.only or reproduction.methods
        reproduction.run(methods, options.jobs)
        written = reproduction.write(results, page)
        rows += written
        tables += reproduction.tables(written)
    print(json.dumps(rows)) if options.json else print_tables(tables)
