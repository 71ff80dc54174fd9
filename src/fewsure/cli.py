"""The command line: parse, call, print. Results go to standard output, progress and errors to standard error."""

import inspect
import json
import os
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from fewsure.algorithms import ALGORITHMS
from fewsure.devices import find_device
from fewsure.errors import FewsureError, require, require_known
from fewsure.experiment import DEFAULT_PRESET, GROUPS, Experiment, load_preset
from fewsure.options import Parser, add_options, first_line, from_namespace
from fewsure.quickstart import quickstart
from fewsure.report.page import write_report
from fewsure.report.tables import evaluation_table
from fewsure.reproduce import TARGETS, Reproduction
from fewsure.training.runs import Run
from fewsure.version import __version__
from fewsure.workflow import Stopped, evaluate_run, start_at_maml, start_run, train_run

BAD_INPUT = 2


@dataclass(frozen=True, kw_only=True)
class Common:
    """What every command takes."""

    device: str = "auto"
    """`cpu`, `cuda`, `cuda:1` …; `auto` takes a GPU if there is one."""
    json: bool = False
    """Print the result as JSON on standard output, and no progress."""
    debug: bool = False
    """Show the traceback of an error."""


@dataclass(frozen=True, kw_only=True)
class Train(Common):
    """Train an algorithm on a task distribution, and keep everything about it in a run folder.

    examples:
      fewsure train simpa --out runs/simpa                       the recommended settings on sine-line
      fewsure train simpa --preset paper --out runs/literal      every value as the paper prints it
      fewsure train maml --updates 20000 --inner-lr 0.003 --out runs/maml
      fewsure train simpa --out runs/simpa --resume              go on where it stopped
    """

    out: Path = Path("runs/last")
    """The run folder; it must not hold a run yet, unless --resume is given."""
    data: str = "sine-line"
    """The tasks to learn from."""
    preset: str = DEFAULT_PRESET
    """A named set of values for all options of the algorithm, the data, the network and the training; single options
    come on top."""
    resume: bool = False
    """Continue the run in --out from its last checkpoint, with the options it was started with; if there is none, start
    it."""
    checkpoint_every: int = 1000
    """Updates between two checkpoints."""
    from_maml: Path | None = None
    """Start a new platipus run at the weights of this MAML run."""


@dataclass(frozen=True, kw_only=True)
class Evaluate(Common):
    """Adapt a trained run to unseen tasks and score its predictions: error, likelihood, calibration.

    Runs that are evaluated with the same --seed see the same tasks. The result is kept in the run folder.

    examples:
      fewsure evaluate runs/simpa
      fewsure evaluate runs/simpa --tasks 10000 --json
    """

    run: Path
    """A run folder."""
    tasks: int = 1000
    """Unseen tasks."""
    seed: int = 0
    """Chooses tasks and noise. Test tasks have a random stream of their own, apart from training's."""


@dataclass(frozen=True, kw_only=True)
class Report(Common):
    """Draw runs: predictions on unseen tasks, errors, reliability and calibration beside the paper's, learning curves.

    Writes one self-contained HTML page, and its figures as PNG files beside it. A run that has not been evaluated yet
    is evaluated first.

    examples:
      fewsure report runs/simpa runs/maml --out report.html
    """

    runs: tuple[Path, ...]
    """Run folders."""
    out: Path = Path("report.html")
    """The page; its figures land in a folder beside it, report_files."""
    tasks: int = 1000
    """Unseen tasks for runs that have not been evaluated."""
    seed: int = 0
    """Chooses those tasks, and the ones that are drawn."""


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

    `regression` is section 5.1 and Figure 2 of the paper: every method with the same number of updates and of tuning
    trials. `ablation` changes one part of SImPa's recipe at a time. What is finished is not done again, so an
    interrupted command goes on where it stopped, and several may work on different entries of one folder.

    examples:
      fewsure reproduce regression --device cuda                       the full setting
      fewsure reproduce regression --budget 0.05 --seeds 1             a look at it on a CPU
      fewsure reproduce regression --only simpa maml --device cuda     some methods now, the others later
    """

    target: str
    """The experiment: `regression` or `ablation`."""
    only: tuple[str, ...] = ()
    """Methods (or variants) to run now; all if none is named."""
    collect: bool = False
    """Run nothing: write up what is finished in --out."""
    budget: float = 1.0
    """Multiplies the number of updates of every training."""
    seeds: int = 3
    """Trainings of each entry, with seeds 0, 1, …"""
    tasks: int = 1000
    """Test tasks."""
    out: Path | None = None
    """Where the runs and the report go; `runs/TARGET` if none."""
    results: Path | None = None
    """Where the list of result objects goes; `results.json` in --out if none."""
    page: Path | None = None
    """Where the results go as a Markdown page; `results.md` in --out if none."""


def main(arguments: list[str] | None = None) -> int:
    """Run a command; the exit code."""
    arguments = sys.argv[1:] if arguments is None else arguments
    try:
        return _dispatch(arguments)
    except FewsureError as error:
        if "--debug" in arguments:
            raise
        print(f"fewsure: {' '.join(str(error).split())}", file=sys.stderr)
        return BAD_INPUT
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except (OSError, RuntimeError) as error:
        # torch says that memory ran out with a RuntimeError; any other is a fault of ours, and shows where.
        if "--debug" in arguments or not (isinstance(error, OSError) or "memory" in str(error)):
            raise
        print(f"fewsure: {' '.join(str(error).split())}; check the paths and sizes that were given", file=sys.stderr)
        return BAD_INPUT
    except KeyboardInterrupt:
        print("fewsure: interrupted", file=sys.stderr)
        return 128 + signal.SIGINT
    except Stopped as stopped:
        print(f"fewsure: {stopped}", file=sys.stderr)
        return stopped.exit_code


def _dispatch(arguments: list[str]) -> int:
    if not arguments or arguments[0] in ("-h", "--help"):
        lines = [f"  {name:<12}{first_line(kind)}" for name, (kind, _) in COMMANDS.items()]
        print("usage: fewsure COMMAND …\n\nFew-shot learning that knows how sure it is.\n")
        print("\n".join(lines))
        print("\n`fewsure COMMAND --help` explains each. A good first one is `fewsure quickstart`.")
        return 0 if arguments else BAD_INPUT
    if arguments[0] == "--version":
        print(f"fewsure {__version__}")
        return 0
    name, *rest = arguments
    require_known("command", name, list(COMMANDS))
    _, call = COMMANDS[name]
    call(rest)
    return 0


def _train(arguments: list[str]) -> None:
    command, experiment = _parse_experiment(arguments)
    require(command.checkpoint_every >= 1, "checkpoint_every", "at least 1", command.checkpoint_every)
    device = find_device(command.device)
    meta = None
    if command.from_maml is not None:
        experiment, meta = start_at_maml(experiment, command.from_maml)
    run = start_run(command.out, experiment, resume=command.resume, meta=meta)
    last = train_run(run, device, quiet=command.json, checkpoint_every=command.checkpoint_every)
    if command.json:
        print(json.dumps({"run": str(run.folder)} | last))
    else:
        print(f"trained {run.folder} in {last['seconds']:.0f} s; next: fewsure evaluate {run.folder}")


def _parse_experiment(arguments: list[str]) -> tuple[Train, Experiment]:
    """Read `train`'s arguments: which options there are, and their defaults, depends on the first few of them."""
    if not arguments or arguments[0].startswith("-"):
        methods = "\n".join(f"  {name:<10}{first_line(kind)}" for name, kind in ALGORITHMS.items())
        more = "`fewsure train ALGORITHM --help` shows the options of an algorithm, its data and its training."
        _parse("train ALGORITHM", Train, arguments, f"{inspect.cleandoc(Train.__doc__ or '')}\n\n{methods}\n\n{more}")
        raise FewsureError(f"expected `train` to be followed by an algorithm, one of {', '.join(ALGORITHMS)}")
    algorithm, *rest = arguments
    require_known("algorithm", algorithm, list(ALGORITHMS))
    peek = Parser("fewsure train", "", add_help=False)
    add_options(peek, Train)
    given = from_namespace(Train, peek.parse_known_args(rest)[0])
    if given.resume and (given.out / "config.json").exists():
        base = Run.open(given.out).experiment
        if base.algorithm_name != algorithm:
            raise FewsureError(
                f"{given.out} is a run of {base.algorithm_name}, but got {algorithm}; choose another --out"
            )
    else:
        base = load_preset(given.preset, algorithm, given.data)
    parser = Parser(f"fewsure train {algorithm}", Train.__doc__ or "")
    add_options(parser, Train)
    kinds = {group: type(getattr(base, group)) for group in GROUPS}
    for group, kind in kinds.items():
        add_options(parser, kind, defaults=getattr(base, group), title=group)
    namespace = parser.parse_all(rest)
    groups: dict[str, Any] = {group: from_namespace(kind, namespace) for group, kind in kinds.items()}
    return from_namespace(Train, namespace), Experiment(**groups, preset=base.preset)


def _evaluate(command: Evaluate) -> None:
    require(command.tasks >= 2, "tasks", "at least 2", command.tasks)
    run = Run.open(command.run)
    summary = evaluate_run(run, find_device(command.device), tasks=command.tasks, seed=command.seed, quiet=command.json)
    print(json.dumps(summary) if command.json else evaluation_table([summary]))


def _report(command: Report) -> None:
    require(command.tasks >= 2, "tasks", "at least 2", command.tasks)
    written = write_report(
        [Run.open(folder) for folder in command.runs],
        command.out,
        find_device(command.device),
        tasks=command.tasks,
        seed=command.seed,
        quiet=command.json,
    )
    print(json.dumps({"files": [str(path) for path in written]}) if command.json else "\n".join(map(str, written)))


def _quickstart(command: Quickstart) -> None:
    require(command.tasks >= 2, "tasks", "at least 2", command.tasks)
    device = find_device(command.device)
    results = quickstart(command.out, device, tasks=command.tasks, seed=command.seed, quiet=command.json)
    print(json.dumps(results) if command.json else evaluation_table(results))
    if not command.json:
        print(_what_next(command.out))


def _reproduce(command: Reproduce) -> None:
    require_known("target", command.target, list(TARGETS))
    require(0 < command.budget < float("inf"), "budget", "a number above 0", command.budget)
    require(command.seeds >= 1, "seeds", "at least 1", command.seeds)
    require(command.tasks >= 2, "tasks", "at least 2", command.tasks)
    entries, compare = TARGETS[command.target]
    for entry in command.only:
        require_known("only", entry, list(entries()))
    out = command.out or Path("runs") / command.target
    device = find_device(command.device)
    reproduction = Reproduction(out, device, command.budget, command.seeds, command.tasks, command.json)
    for entry in () if command.collect else command.only or entries():
        compare(reproduction, entry)
    rows = reproduction.write(
        command.target, command.results or out / "results.json", command.page or out / "results.md"
    )
    print(json.dumps(rows) if command.json else evaluation_table(rows))


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


Command = TypeVar("Command", bound=Common)


def _parse(name: str, kind: type[Command], arguments: list[str], description: str | None = None) -> Command:
    parser = Parser(f"fewsure {name}", description or kind.__doc__ or "")
    add_options(parser, kind)
    return from_namespace(kind, parser.parse_all(arguments))


def _parsed(name: str, kind: type[Command], call: Callable[[Command], None]) -> Callable[[list[str]], None]:
    return lambda arguments: call(_parse(name, kind, arguments))


COMMANDS: dict[str, tuple[type[Common], Callable[[list[str]], None]]] = {
    "quickstart": (Quickstart, _parsed("quickstart", Quickstart, _quickstart)),
    "train": (Train, _train),
    "evaluate": (Evaluate, _parsed("evaluate", Evaluate, _evaluate)),
    "report": (Report, _parsed("report", Report, _report)),
    "reproduce": (Reproduce, _parsed("reproduce", Reproduce, _reproduce)),
}
