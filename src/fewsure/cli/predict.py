"""`fewsure predict`."""

import math
import sys
from dataclasses import dataclass
from pathlib import Path

from fewsure.cli.common import Common, command
from fewsure.errors import FewsureError, require
from fewsure.learner import load
from fewsure.learner.adapted import require_coverage
from fewsure.learner.files import Files, predictions, write_file, write_records
from fewsure.theory.conformal import Calibration


@dataclass(frozen=True, kw_only=True)
class Predict(Common):
    """Adapt a trained run to a few labelled examples, and predict others: CSV, or JSON with --json.

    For numbers: mean, standard deviation and an interval. For classes: the label, all probabilities, and how much of
    the uncertainty more examples would remove (mutual_information) or not (expected_entropy). For images, the support
    set is a folder of class folders, and the query an image or a folder. Query points are predicted in batches.

    examples:
      fewsure predict runs/mine --support new-group.csv --query unknown.csv
      fewsure predict runs/mine --support labelled/ --query photos/ --out predicted.csv
      fewsure predict runs/mine --support labelled/ --query photos/ --coverage 0.9 --json
    """

    run: Path
    """A run folder."""
    support: Path | None = None
    """The labelled examples: a CSV or Parquet file, or a folder with a folder of images for each class."""
    query: Path | None = None
    """What to predict: a CSV or Parquet file, an image, or a folder of images."""
    out: Path | None = None
    """Where the predictions go; `none` for standard output. A name that ends in .json gives JSON."""
    coverage: float | None = None
    """Print sets or intervals that hold the truth with this probability; `fewsure certify RUN` comes first."""
    target: str | None = None
    """The column of the support file with the label or number; `none` for that of the training data, or `label`, or
    `y`."""
    batch_size: int = 256
    """Query points that are predicted at once. Predictions do not depend on it."""


def _predict(command: Predict) -> None:
    require(command.batch_size >= 1, "batch_size", "at least 1", command.batch_size)
    require_coverage(command.coverage)
    for name in ("support", "query"):
        path = getattr(command, name)
        if path is None or not path.exists():
            came = "got none" if path is None else f"{path} is not there"
            raise FewsureError(f"expected --{name} to be a file or a folder of examples, but {came}")
    assert command.support is not None
    assert command.query is not None
    learner = load(command.run, device=command.device)
    files = Files(learner.experiment, command.target)
    adapted = learner.adapt(*files.support(command.support))
    if adapted.transductive:
        balance = "; their classes should be in balance" if adapted.model.network.transductive else ""
        print(f"fewsure: this run is transductive: all query points are predicted together{balance}", file=sys.stderr)
    if command.coverage is not None:
        _say_what_is_covered(adapted.require_calibration(), command.coverage)
    records = predictions(adapted, files, command.query, coverage=command.coverage, batch_size=command.batch_size)
    if command.out is None:
        write_records(records, sys.stdout, as_json=command.json)
    else:
        as_json = command.json or command.out.suffix.lower() == ".json"
        count = write_file(records, command.out, as_json=as_json)
        if not command.json:
            print(f"predicted {count:,} points: {command.out}", file=sys.stderr)


def _say_what_is_covered(calibration: Calibration, coverage: float) -> None:
    print(f"fewsure: coverage {coverage:g} is that of a new task like {calibration.environment}", file=sys.stderr)
    if math.isinf(calibration.threshold(round(1 - coverage, 12))):
        everything = "sets hold every label" if calibration.way else "intervals have no ends"
        few = f"{calibration.tasks} calibration tasks are too few for coverage {coverage:g}: {everything}"
        print(f"fewsure: {few}", file=sys.stderr)


PREDICT = command("predict", Predict, _predict)
