"""`fewsure quickstart` and `fewsure reproduce`: whole experiments from one command."""

import dataclasses
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from fewsure.cli.common import Common, command
from fewsure.core.devices import find_device
from fewsure.core.processes import side_by_side
from fewsure.core.progress import ProgressLine
from fewsure.errors import FewsureError, require, require_known
from fewsure.report.tables import evaluation_tables
from fewsure.report.terminal import print_tables
from fewsure.reproduce.quickstart import quickstart
from fewsure.reproduce.run import Job, Reproduction
from fewsure.reproduce.targets import SEVERAL, TARGETS


@dataclass(frozen=True, kw_only=True)
class Quickstart(Common):
    """Train SImPa and MAML on sine-line, compare them on unseen tasks, draw the figures: minutes on two CPU cores.

    examples:
      fewsure quickstart
      fewsure quickstart --out somewhere --seed 1
    """

    out: Path = Path("quickstart")
    """Where runs, results and figures go. What is there already is continued."""
    tasks: int = 1000
    """Unseen tasks for the comparison."""
    seed: int = 0
    """Seed of training and of the unseen tasks."""


@dataclass(frozen=True, kw_only=True)
class Reproduce(Common):
    """Run an experiment for all its entries: tune on validation tasks, train, evaluate on unseen tasks, write it up.

    `regression` is section 5.1 and Figure 2 of the paper, the data sets are section 5.2, Table 1 and Figure 3: every
    method with the same number of updates and of tuning trials. What is finished is not done again, so an interrupted
    command goes on where it stopped, and several may work on different entries of one folder.

    experiments: regression, omniglot, cifar-fs, mini-imagenet, tiered-imagenet and mini-imagenet-features (LEO's),
    features-cifar-fs (of `fewsure features`, in the data root's folder `features/cifar-fs`). Those of 1 and 5 shots
    can be run one at a time: cifar-fs-1shot.

    examples:
      fewsure reproduce regression --device cuda --jobs 8              the full setting
      fewsure reproduce regression --budget 0.05 --seeds 1             a look at it on a CPU
      fewsure reproduce regression --only simpa maml --device cuda     some methods now, the others later
      fewsure reproduce omniglot --tasks 100000 --device cuda
    """

    target: str
    """The experiment."""
    only: tuple[str, ...] = ()
    """Methods to run now; all if none is named."""
    collect: bool = False
    """Run nothing: write up what is finished in --out."""
    budget: float = 1.0
    """Multiplies the number of updates of every training."""
    seeds: int = 3
    """Trainings of each entry, with seeds 0, 1, …"""
    jobs: int = 1
    """Trainings at a time, each in a process of its own; of methods, those that are named first are finished first."""
    tasks: int = 1000
    """Test tasks."""
    out: Path | None = None
    """Where the runs and the report go; `runs/TARGET` if none."""
    results: Path | None = None
    """Where the list of result objects of one experiment goes; `results.json` in --out if none."""
    page: Path | None = None
    """Where they go as a Markdown page; `results.md` in --out if none."""
    beside: Path | None = None
    """Results of the same experiment that an earlier --results holds: what they have of entries and seeds that are not
    finished in --out is written up, too. So a file of results grows as entries are run, here or on other machines."""


def _quickstart(command: Quickstart) -> None:
    require(command.tasks >= 2, "tasks", "at least 2", command.tasks)
    device = find_device(command.device)
    results = quickstart(command.out, device, tasks=command.tasks, seed=command.seed, quiet=command.json)
    print(json.dumps(results)) if command.json else print_tables(evaluation_tables(results))
    if not command.json:
        print(_what_next(command.out))


def _what_next(out: Path) -> str:
    steps = {
        "fewsure train simpa --out runs/simpa": "the recommended settings: best on a GPU",
        "fewsure train simpa --preset paper --out runs/literal": "every value as the paper prints it",
        f"fewsure evaluate {out}/simpa --tasks 10000": "tighter intervals",
        "fewsure reproduce regression --budget 0.05 --seeds 1": "all six methods, at a small part of the budget",
        "fewsure train simpa --help": "every option, explained",
    }
    width = max(map(len, steps)) + 2
    files = f"figures  {out}/report.html and {out}/report_files/\nresults  {out}/results.json"
    return "\n".join(["", files, "", "what to try next", *(f"  {step:<{width}}{why}" for step, why in steps.items())])


def _reproduce(command: Reproduce) -> None:
    require_known("target", command.target, [*TARGETS, *SEVERAL])
    require(0 < command.budget < float("inf"), "budget", "a number above 0", command.budget)
    require(command.seeds >= 1, "seeds", "at least 1", command.seeds)
    require(command.jobs >= 1, "jobs", "at least 1", command.jobs)
    require(command.tasks >= 2, "tasks", "at least 2", command.tasks)
    targets = SEVERAL.get(command.target, (command.target,))
    if len(targets) > 1 and (command.out or command.results or command.page or command.beside):
        raise FewsureError(
            f"{command.target} stands for several experiments; give --out, --results, --page and --beside to one of "
            f"them: {', '.join(targets)}"
        )
    for target in targets:
        for entry in command.only:
            require_known("only", entry, TARGETS[target].entries)
    device = find_device(command.device)
    asked = [_of_target(target, command, device) for target in targets]  # all is checked before anything is trained
    rows = []
    for reproduction, results, page, earlier in asked:
        if not command.collect:
            _run(reproduction, _entries(reproduction.target, command), command)
        rows += reproduction.write(results, page, earlier)
    print(json.dumps(rows)) if command.json else print_tables(evaluation_tables(rows))


def _entries(target: str, command: Reproduce) -> Sequence[str]:
    """What is to be run."""
    return () if command.collect else command.only or TARGETS[target].entries


def _of_target(
    target: str, command: Reproduce, device: torch.device
) -> tuple[Reproduction, Path, Path, list[dict[str, Any]]]:
    """An experiment, where its results and its page go, and the earlier results beside it."""
    out = command.out or Path("runs") / target
    results, page = command.results or out / "results.json", command.page or out / "results.md"
    reproduction = Reproduction(target, out, device, command.budget, command.seeds, command.tasks, command.json)
    earlier = reproduction.earlier(command.beside) if command.beside else []
    reproduction.check(results, earlier, _entries(target, command))
    return reproduction, results, page, earlier


def _run(reproduction: Reproduction, entries: Sequence[str], command: Reproduce) -> None:
    """All that is not finished yet."""
    chains = [reproduction.stages(entry) for entry in entries]
    if command.jobs == 1:
        for job in (job for stages in chains for stage in stages for job in stage):
            reproduction.do(job)
        return
    count, finished = sum(len(stage) for stages in chains for stage in stages), 0
    with ProgressLine(f"{command.jobs} trainings at a time", quiet=command.json) as line:

        def show(job: Job) -> None:
            nonlocal finished
            finished += 1
            line.show(finished, count, f"{job.entry}, {job.kind} {job.number} is done")

        quiet = dataclasses.replace(reproduction, quiet=True)
        side_by_side(quiet.do, chains, command.jobs, show)


QUICKSTART = command("quickstart", Quickstart, _quickstart)
REPRODUCE = command("reproduce", Reproduce, _reproduce)
