"""Train an algorithm on a task distribution, and keep everything about it in a run folder.

`fewsure train auto` tries the methods that suit your data and selects one; see `fewsure train auto --help`.

examples:
  fewsure train auto --data table --file my.csv --task-column group --target y --out runs/mine
  fewsure train simpa --out runs/simpa                       the recommended settings on sine-line
  fewsure train simpa --preset paper --out runs/literal      every value as the paper prints it
  fewsure train maml --updates 20000 --inner-lr 0.003 --out runs/maml
  fewsure train protonet --data omniglot --preset omniglot-cpu --out runs/omniglot
  fewsure train simpa --data cifar-fs --preset recommended-5-shot --device cuda --out runs/cifar-fs
  fewsure train protonet --data mini-imagenet --preset pretrained --from features/conv4 --out runs/mini-imagenet
  fewsure train simpa --data table --file my.csv --task-column group --target y --out runs/mine
  fewsure train simpa --out runs/simpa --resume              go on where it stopped
  torchrun --nproc-per-node=4 -m fewsure train simpa --out runs/simpa     four processes share the tasks
"""

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from fewsure.algorithms import ALGORITHMS
from fewsure.cli.common import Common, parse, parse_groups, peek
from fewsure.cli.options import first_line
from fewsure.core.distributed import is_rank_zero, process_group
from fewsure.data import DATA
from fewsure.errors import FewsureError, require, require_known
from fewsure.features.start import start_at_features
from fewsure.features.workflow import RECORD
from fewsure.pipeline import start_at_maml, start_run, train_run
from fewsure.posteriors.mixture import LAGGING, lagging_components
from fewsure.report.evaluation_tables import training_table
from fewsure.report.tables import print_tables
from fewsure.selection.auto import NAME as AUTO
from fewsure.training.experiment import DEFAULT_PRESET, GROUPS, Experiment, load_preset
from fewsure.training.runs import Run
from fewsure.training.tensorboard import require_tensorboard


@dataclass(frozen=True, kw_only=True)
class ExperimentSource(Common):
    """Where the options of an experiment come from."""

    out: Path = Path("runs/last")
    """The run folder; it must not hold a run yet, unless --resume is given."""
    data: str = "sine-line"
    """The tasks to learn from: `sine-line`; `omniglot`, `cifar-fs`, `mini-imagenet`, `tiered-imagenet`;
    `mini-imagenet-leo`, `tiered-imagenet-leo`, `features`; `fs-mol`; your own `images`,
    `image-features`, `table`, `table-classes`."""
    preset: str = DEFAULT_PRESET
    """A named set of values for all options of the algorithm, the data, the network and the training; single options
    come on top. `recommended`; `paper` (but for `table` and `fs-mol`). Sine-line also has `quickstart` and, for
    simpa-latent, `bounds`; classes have `recommended-5-shot` and `paper-5-shot`, omniglot has `omniglot-cpu`.
    Photographs have `pretrained` and `pretrained-5-shot`, for --from."""
    resume: bool = False
    """Continue the run in --out from its last checkpoint, with the options it was started with; if there is none, start
    it."""


Source = TypeVar("Source", bound=ExperimentSource)


@dataclass(frozen=True, kw_only=True)
class Options(ExperimentSource):
    """`fewsure train`, beside those of the method, the data, the network and the training."""

    checkpoint_every: int = 1000
    """Updates between two checkpoints."""
    keep_last: int = 1
    """Checkpoints that are kept; each can be evaluated by its number of updates."""
    max_skipped: int = 20
    """Updates in a row whose numbers are not finite, after which training stops. Each of them is skipped."""
    tensorboard: bool = False
    """Write what is logged as event files for TensorBoard, too, into `tensorboard` in the run folder. Needs
    `pip install "fewsure[track]"`."""
    from_: Path | None = None
    """Start a new run at what this folder has learned. From `fewsure features --network conv4` the blocks of any
    method's base network start as they were trained on the training classes. From a MAML run, platipus starts."""


def main(arguments: list[str]) -> None:
    """Train, and show how it went."""
    if arguments[:1] == [AUTO]:
        from fewsure.cli.auto import main as select

        select(arguments[1:])
        return
    options, experiment = read_arguments(arguments)
    for name in ("checkpoint_every", "keep_last", "max_skipped"):
        require(getattr(options, name) >= 1, name, "at least 1", getattr(options, name))
    if options.tensorboard:
        require_tensorboard()
    with process_group(options.device) as device:
        start = None
        if options.from_ is not None:
            start_at = start_at_features if (options.from_ / RECORD).is_file() else start_at_maml
            experiment, start = start_at(experiment, options.from_)
        run = start_run(options.out, experiment, resume=options.resume, start=start)
        last = train_run(
            run,
            device,
            checkpoint_every=options.checkpoint_every,
            keep_last=options.keep_last,
            max_skipped=options.max_skipped,
            tensorboard=options.tensorboard,
        )
        if options.json and is_rank_zero():
            print(json.dumps({"run": str(run.folder)} | last))
        elif is_rank_zero():
            print_tables([training_table(run.metrics())])
            _name_lagging_components(run)
            _say_which_predicts(run, last)
            print(f"trained {run.folder} in {last['seconds']:.0f} s; next: fewsure evaluate {run.folder}")


def _say_which_predicts(run: Run, last: Mapping[str, Any]) -> None:
    """Say which checkpoint predicts, and whether training stopped before its last update."""
    training = run.experiment.training
    if "best_update" in last:
        early = last["update"] < training.updates
        since = f", after {training.patience} scores without a better one" if early else ""
        print(f"trained for {last['update']:,} of {training.updates:,} updates{since}")
        print(f"the checkpoint at {last['best_update']:,} predicts: validation NLL {last['best_validation_nll']:.4g}")


def _name_lagging_components(run: Run) -> None:
    """Say which generators of a mixture have learned badly, and what may help."""
    numbers = ", ".join(map(str, lagging_components(run.metrics())))
    if numbers:
        print(
            f"fewsure: generators whose loss ended at more than {LAGGING:g} times that of the best: {numbers}; "
            "a larger --inner-lr or a lower --lr may help (docs/gotchas.md)",
            file=sys.stderr,
        )


def read_arguments(arguments: list[str]) -> tuple[Options, Experiment]:
    """Read `train`'s arguments."""
    return read_experiment(arguments, "train", Options, __doc__)


def read_experiment(
    arguments: list[str], command: str, kind: type[Source], document: str | None
) -> tuple[Source, Experiment]:
    """Read a command's arguments: which options there are, and their defaults, depends on the first few of them."""
    if not arguments or arguments[0].startswith("-"):
        methods = "\n".join(f"  {name:<10}{first_line(method)}" for name, method in ALGORITHMS.items())
        more = f"`fewsure {command} ALGORITHM --help` shows the options of an algorithm, its data and its training."
        parse(f"{command} ALGORITHM", kind, arguments, f"{document}\n{methods}\n\n{more}")
        raise FewsureError(f"expected `{command}` to be followed by an algorithm, one of {', '.join(ALGORITHMS)}")
    algorithm, *rest = arguments
    require_known("algorithm", algorithm, list(ALGORITHMS))
    base = _defaults(algorithm, peek(command, kind, rest))
    groups = {group: getattr(base, group) for group in GROUPS}
    options, groups = parse_groups(f"{command} {algorithm}", kind, rest, document, **groups)
    return options, Experiment(**groups, preset=base.preset)


def _defaults(algorithm: str, options: ExperimentSource) -> Experiment:
    """The experiment of the run that is resumed, or of the preset."""
    if options.resume and (options.out / "config.json").exists():
        base = Run.open(options.out).experiment
        if base.algorithm_name != algorithm:
            raise FewsureError(
                f"{options.out} is a run of {base.algorithm_name}, but got {algorithm}; choose another --out"
            )
        return base
    if options.data not in DATA and Path(options.data).exists():
        instead = "images --folder" if Path(options.data).is_dir() else "table --task-column … --target … --file"
        raise FewsureError(
            f"expected --data to be a name, but {options.data} is a path; give --data {instead} {options.data}"
        )
    return load_preset(options.preset, algorithm, options.data)
