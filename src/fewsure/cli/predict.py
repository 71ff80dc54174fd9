"""Adapt a trained run to a few labelled examples, and predict others: CSV, or JSON with --json.

For numbers: mean, standard deviation and an interval. For classes: the label, all probabilities, and how much of the
uncertainty more examples would remove (mutual_information) or not (expected_entropy). For images, the support set is a
folder of class folders, and the query an image or a folder. Query points are predicted in batches.

With --group-column, both files have rows of many groups. Each group adapts to its rows of the support file, in
vectorised batches, and memory does not grow with the files. The same command goes on after an interruption.

examples:
  fewsure predict runs/mine --support new-group.csv --query unknown.csv
  fewsure predict runs/mine --support labelled/ --query photos/ --out predicted.csv
  fewsure predict runs/mine --support labelled/ --query photos/ --coverage 0.9 --json
  fewsure predict runs/mine --support known.parquet --query new.parquet --group-column shop --out predicted.parquet
"""

import json
import math
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from fewsure.cli.common import Common, parse, require_examples
from fewsure.errors import FewsureError, require

if TYPE_CHECKING:
    from fewsure.learner import Learner


@dataclass(frozen=True, kw_only=True)
class Options(Common):
    """`fewsure predict`."""

    run: Path
    """A run folder; or that of `fewsure crossval --folds none`, for intervals of all its learners together."""
    support: Path | None = None
    """The labelled examples: a CSV or Parquet file, or a folder with a folder of images for each class."""
    query: Path | None = None
    """The points to predict: a CSV or Parquet file, an image, or a folder of images."""
    out: Path | None = None
    """Where the predictions go; `none` for standard output. A name that ends in .json gives JSON."""
    coverage: float | None = None
    """Print sets or intervals that hold the truth with this probability; `fewsure certify RUN` comes first."""
    target: str | None = None
    """The column of the support file with the label or number; `none` for that of the training data, or `label`, or
    `y`."""
    group_column: str | None = None
    """Predict many groups: the column of both files with the group of each row; --out names the file for them."""
    engine: Literal["local", "ray"] = "local"
    """With --group-column: `ray` runs on a cluster of Ray, from Parquet files to a folder of Parquet files."""
    batch_size: int = 256
    """Query points that are predicted at once. Predictions do not depend on it."""


def main(arguments: list[str]) -> None:
    """Adapt, predict, write."""
    options = parse("predict", Options, arguments, __doc__)
    require(options.batch_size >= 1, "batch_size", "at least 1", options.batch_size)
    support, query = require_examples("support", options.support), require_examples("query", options.query)
    from fewsure.core.devices import find_device
    from fewsure.learner import load
    from fewsure.learner.adapted import require_coverage
    from fewsure.learner.files import Files, predictions
    from fewsure.learner.left_out import left_out_runs, predictions_left_out, promise_left_out, required_coverage

    require_coverage(options.coverage)
    runs = left_out_runs(options.run)
    if runs:
        require(options.group_column is None, "group_column", "none for learners that each left out one group", "one")
        coverage = required_coverage(runs, options.coverage)
        _note(promise_left_out(runs, coverage))
        device, size = find_device(options.device), options.batch_size
        _write(predictions_left_out(runs, device, options.target, support, query, coverage, size), options)
        return
    learner = load(options.run, device=options.device)
    if options.group_column is not None:
        _predict_groups(learner, options, support, query)
        return
    require(options.engine == "local", "engine", "local without --group-column", options.engine)
    files = Files(learner.experiment, options.target)
    adapted = learner.adapt(*files.support(support))
    if adapted.transductive:
        balance = "; their classes should be in balance" if adapted.model.network.transductive else ""
        _note(f"this run is transductive: all query points are predicted together{balance}")
    if options.coverage is not None:
        task, calibration = adapted.certified()
        if task is not adapted:
            each = "" if adapted.labels is None else " of each class"
            _note(f"sets and intervals come from {task.counts[0]} of the examples{each}, the number that is certified")
        _note(f"coverage {options.coverage:g} is that of a new task like {calibration.environment}")
        if math.isinf(calibration.threshold(round(1 - options.coverage, 12))):
            everything = "sets hold every label" if calibration.way else "intervals have no ends"
            few = f"{calibration.tasks} calibration tasks are too few for coverage {options.coverage:g}"
            _note(f"{few}: {everything}")
    records = predictions(adapted, files, query, coverage=options.coverage, batch_size=options.batch_size)
    _write(records, options)


def _write(records: Iterable[dict[str, Any]], options: Options) -> None:
    from fewsure.learner.files import write_file, write_records

    if options.out is None:
        write_records(records, sys.stdout, as_json=options.json)
        return
    count = write_file(records, options.out, as_json=options.json or options.out.suffix.lower() == ".json")
    if not options.json:
        print(f"predicted {count:,} points: {options.out}", file=sys.stderr)


def _predict_groups(learner: "Learner", options: Options, support: Path, query: Path) -> None:
    if options.out is None:
        raise FewsureError("expected --out with --group-column, the file for all predictions, but got none")
    count = learner.predict_groups(
        support,
        query,
        group=options.group_column,
        target=options.target,
        coverage=options.coverage,
        out=options.out,
        engine=options.engine,
        quiet=options.json,
    )
    if options.json:
        print(json.dumps({"out": str(options.out), "rows": count}))
    else:
        print(f"predicted {count:,} rows: {options.out}", file=sys.stderr)


def _note(text: str) -> None:
    print(f"fewsure: {text}", file=sys.stderr)
