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
from fewsure.comparison import compare_runs
from fewsure.data.cache import load
from fewsure.data.command import check_data, check_text, get_data, get_text, list_data, list_text
from fewsure.data.datasets import DATA_SETS
from fewsure.data.places import DATA_VARIABLE
from fewsure.data.pools import SPLITS
from fewsure.devices import find_device
from fewsure.errors import FewsureError, require, require_known
from fewsure.experiment import DEFAULT_PRESET, GROUPS, Experiment, load_preset
from fewsure.features.classifier import Recipe
from fewsure.features.workflow import check_out, describe, make_features, recorded_recipe
from fewsure.options import Parser, add_options, first_line, from_namespace
from fewsure.quickstart import quickstart
from fewsure.report.page import write_report
from fewsure.report.tables import comparison_table, evaluation_table
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
    data_root: Path | None = None
    """Where data sets are looked for, each in a folder of its name; `none` for $FEWSURE_DATA, or the platform's folder
    for data."""

    def __post_init__(self) -> None:
        if self.data_root is not None:  # the one place where the option takes effect
            os.environ[DATA_VARIABLE] = str(self.data_root)


@dataclass(frozen=True, kw_only=True)
class Train(Common):
    """Train an algorithm on a task distribution, and keep everything about it in a run folder.

    examples:
      fewsure train simpa --out runs/simpa                       the recommended settings on sine-line
      fewsure train simpa --preset paper --out runs/literal      every value as the paper prints it
      fewsure train maml --updates 20000 --inner-lr 0.003 --out runs/maml
      fewsure train protonet --data omniglot --preset omniglot-cpu --out runs/omniglot
      fewsure train simpa --data cifar-fs --preset paper-5-shot --device cuda --out runs/cifar-fs
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
class Compare(Common):
    """Test whether runs differ: a paired t-test of each score over the same unseen tasks, against the first run.

    Evaluate the runs first, with the same --tasks and --seed and on the same kind of device. Calibration errors are
    pooled over tasks, so they have no paired test; `fewsure report` shows them with their intervals.

    examples:
      fewsure compare runs/simpa runs/maml
      fewsure compare runs/simpa runs/maml runs/protonet --json
    """

    runs: tuple[Path, ...]
    """Run folders, two or more; each after the first is compared with the first."""


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


@dataclass(frozen=True, kw_only=True)
class Features(Common):
    """Train a residual network on the training classes of an image data set, and store its features of all splits.

    It is trained as a plain classifier of the training classes; images of the other classes are only passed through it
    afterwards. The folder can then be trained on with `--data features`.

    examples:
      fewsure features --data cifar-fs --out features/cifar-fs
      fewsure features --data tiny-tiered --network wrn-28-10 --jitter 0.4 --out features/tiny-tiered
      fewsure features --data cifar-fs --out features/cifar-fs --resume
    """

    data: str = "cifar-fs"
    """A data set of images."""
    out: Path = Path("features")
    """Where features, weights and the record go; it must not hold anything yet. It appears when it is complete."""
    resume: bool = False
    """Go on with the training for --out that was interrupted, with the options it was started with; if there is none,
    start it."""


@dataclass(frozen=True, kw_only=True)
class Data(Common):
    """List the data sets, fetch one from its official source, or read one and say what is in it.

    `check` takes a folder of features as well. A data set is decoded once, into a cache.

    examples:
      fewsure data list
      fewsure data get omniglot
      fewsure data check omniglot --json
      fewsure data check cifar-fs --data-root data
    """


@dataclass(frozen=True, kw_only=True)
class NamedData(Data):
    """`fewsure data get` and `fewsure data check`."""

    name: str
    """The data set."""


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


def _compare(command: Compare) -> None:
    compared = compare_runs([Run.open(folder) for folder in command.runs])
    text = "\n\n".join(comparison_table(comparison) for comparison in compared)
    print(json.dumps([comparison.record() for comparison in compared]) if command.json else text)


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


def _features(arguments: list[str]) -> None:
    peek = Parser("fewsure features", "", add_help=False)
    add_options(peek, Features)
    given = from_namespace(Features, peek.parse_known_args(arguments)[0])
    base = (recorded_recipe(given.out) if given.resume else None) or Recipe()
    parser = Parser("fewsure features", Features.__doc__ or "")
    add_options(parser, Features)
    add_options(parser, Recipe, defaults=base, title="recipe")
    namespace = parser.parse_all(arguments)
    command, recipe = from_namespace(Features, namespace), from_namespace(Recipe, namespace)
    require_known("data", command.data, [name for name, data_set in DATA_SETS.items() if len(data_set.shape) == 3])
    device = find_device(command.device)
    check_out(command.out, resume=command.resume)  # before minutes of decoding
    pools = {split: load(DATA_SETS[command.data], split, quiet=command.json) for split in SPLITS}
    record = make_features(command.out, command.data, pools, recipe, device, resume=command.resume, quiet=command.json)
    print(json.dumps({"out": str(command.out)} | record) if command.json else describe(record, command.out))


def _data(arguments: list[str]) -> None:
    if not arguments or arguments[0].startswith("-"):
        _parse("data list | get NAME | check NAME", Data, arguments)
        raise FewsureError("expected `data` to be followed by list, get NAME or check NAME")
    action, *rest = arguments
    require_known("action", action, ["list", "get", "check"])
    if action == "list":
        command = _parse("data list", Data, rest)
        result, text = list_data(), list_text
    else:
        command = named = _parse(f"data {action}", NamedData, rest, Data.__doc__)
        call, text = {"get": (get_data, get_text), "check": (check_data, check_text)}[action]
        result = call(named.name, quiet=named.json)
    print(json.dumps(result) if command.json else text(result))


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
    "compare": (Compare, _parsed("compare", Compare, _compare)),
    "report": (Report, _parsed("report", Report, _report)),
    "reproduce": (Reproduce, _parsed("reproduce", Reproduce, _reproduce)),
    "data": (Data, _data),
    "features": (Features, _features),
}
