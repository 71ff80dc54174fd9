"""`fewsure train`."""

import inspect
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fewsure.algorithms import ALGORITHMS
from fewsure.cli.common import Command, Common, parse
from fewsure.cli.options import Parser, add_options, first_line, from_namespace
from fewsure.core.distributed import is_first, process_group
from fewsure.data import DATA
from fewsure.errors import FewsureError, require, require_known
from fewsure.pipeline import start_at_maml, start_run, train_run
from fewsure.posteriors.mixture import LAGGING, lagging_components
from fewsure.report.tables import training_table
from fewsure.report.terminal import print_tables
from fewsure.training.experiment import DEFAULT_PRESET, GROUPS, Experiment, load_preset
from fewsure.training.runs import Run


@dataclass(frozen=True, kw_only=True)
class Train(Common):
    """Train an algorithm on a task distribution, and keep everything about it in a run folder.

    examples:
      fewsure train simpa --out runs/simpa                       the recommended settings on sine-line
      fewsure train simpa --preset paper --out runs/literal      every value as the paper prints it
      fewsure train maml --updates 20000 --inner-lr 0.003 --out runs/maml
      fewsure train protonet --data omniglot --preset omniglot-cpu --out runs/omniglot
      fewsure train simpa --data cifar-fs --preset recommended-5-shot --device cuda --out runs/cifar-fs
      fewsure train simpa --data table --file my.csv --task-column group --target y --out runs/mine
      fewsure train simpa --out runs/simpa --resume              go on where it stopped
      torchrun --nproc-per-node=4 -m fewsure train simpa --out runs/simpa     four processes share the tasks
    """

    out: Path = Path("runs/last")
    """The run folder; it must not hold a run yet, unless --resume is given."""
    data: str = "sine-line"
    """The tasks to learn from: `sine-line`; `omniglot`, `cifar-fs`, `mini-imagenet`, `tiered-imagenet`, `tiny-tiered`;
    `mini-imagenet-leo`, `tiered-imagenet-leo`, `features`; of your own, `images`, `table`, `table-classes`."""
    preset: str = DEFAULT_PRESET
    """A named set of values for all options of the algorithm, the data, the network and the training; single options
    come on top. `recommended`; `paper` (but for `table`); of sine-line also `quickstart`, of classes
    `recommended-5-shot` and `paper-5-shot`, of omniglot `omniglot-cpu`."""
    resume: bool = False
    """Continue the run in --out from its last checkpoint, with the options it was started with; if there is none, start
    it."""
    checkpoint_every: int = 1000
    """Updates between two checkpoints."""
    keep_last: int = 1
    """Checkpoints that are kept; each can be evaluated by its number of updates."""
    keep_best: int = 0
    """Updates between two scores on validation tasks, by which the best checkpoint is kept, too; 0 for none."""
    max_skipped: int = 20
    """Updates in a row whose numbers are not finite, after which training stops. Each of them is skipped."""
    tensorboard: bool = False
    """Write what is logged as event files for TensorBoard, too, into `tensorboard` in the run folder."""
    from_maml: Path | None = None
    """Start a new platipus run at the weights of this MAML run."""


def _train(arguments: list[str]) -> None:
    command, experiment = _parse_experiment(arguments)
    for name in ("checkpoint_every", "keep_last", "max_skipped"):
        require(getattr(command, name) >= 1, name, "at least 1", getattr(command, name))
    require(command.keep_best >= 0, "keep_best", "at least 0", command.keep_best)
    with process_group(command.device) as device:
        meta = None
        if command.from_maml is not None:
            experiment, meta = start_at_maml(experiment, command.from_maml)
        run = start_run(command.out, experiment, resume=command.resume, meta=meta)
        last = train_run(
            run,
            device,
            quiet=command.json,
            checkpoint_every=command.checkpoint_every,
            keep_last=command.keep_last,
            keep_best=command.keep_best,
            max_skipped=command.max_skipped,
            tensorboard=command.tensorboard,
        )
        if command.json and is_first():
            print(json.dumps({"run": str(run.folder)} | last))
        elif is_first():
            print_tables([training_table(run.metrics())])
            _name_those_behind(run)
            print(f"trained {run.folder} in {last['seconds']:.0f} s; next: fewsure evaluate {run.folder}")


def _name_those_behind(run: Run) -> None:
    """Say which generators of a mixture have learned badly, and what may help."""
    numbers = ", ".join(map(str, lagging_components(run.metrics())))
    if numbers:
        print(
            f"fewsure: generators whose loss ended at more than {LAGGING:g} times that of the best: {numbers}; "
            "a larger --inner-lr or a lower --lr may help (docs/gotchas.md)",
            file=sys.stderr,
        )


def _parse_experiment(arguments: list[str]) -> tuple[Train, Experiment]:
    """Read `train`'s arguments: which options there are, and their defaults, depends on the first few of them."""
    if not arguments or arguments[0].startswith("-"):
        methods = "\n".join(f"  {name:<10}{first_line(kind)}" for name, kind in ALGORITHMS.items())
        more = "`fewsure train ALGORITHM --help` shows the options of an algorithm, its data and its training."
        parse("train ALGORITHM", Train, arguments, f"{inspect.cleandoc(Train.__doc__ or '')}\n\n{methods}\n\n{more}")
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
        if given.data not in DATA and Path(given.data).exists():
            what = "images --folder" if Path(given.data).is_dir() else "table --task-column … --target … --file"
            raise FewsureError(
                f"expected --data to be a name, but {given.data} is a path; give --data {what} {given.data}"
            )
        base = load_preset(given.preset, algorithm, given.data)
    parser = Parser(f"fewsure train {algorithm}", Train.__doc__ or "")
    add_options(parser, Train)
    kinds = {group: type(getattr(base, group)) for group in GROUPS}
    for group, kind in kinds.items():
        add_options(parser, kind, defaults=getattr(base, group), title=group)
    namespace = parser.parse_all(rest)
    groups: dict[str, Any] = {group: from_namespace(kind, namespace) for group, kind in kinds.items()}
    return from_namespace(Train, namespace), Experiment(**groups, preset=base.preset)


TRAIN = Command(Train, _train)
