"""The runs of a report: read, checked, evaluated if need be. A problem with one is noted, not raised."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import NoneType
from typing import Any, NamedTuple

import torch

from fewsure.certification.predictor import checkpoint_digest
from fewsure.core.config import from_json
from fewsure.errors import FewsureError
from fewsure.evaluation.compare import SCORES
from fewsure.pipeline import evaluate_run
from fewsure.report.certificates import certificate_text
from fewsure.report.comparison import comparison_drawings
from fewsure.report.evaluation_tables import columns_of, evaluation_tables
from fewsure.report.reference import Result, printed_for
from fewsure.report.styles import RunStyle, run_styles, setting
from fewsure.selection.baselines import with_baselines
from fewsure.training.runs import Checkpoint, Run
from fewsure.types import Records

DAMAGED = (LookupError, TypeError, ValueError, AttributeError, ArithmeticError)
"""Raised by values that no version has written."""
LARGEST = 1e100
"""The largest number that can be drawn."""


class Problem(NamedTuple):
    """A problem with a run, and its consequence for the report."""

    folder: Path
    says: str


class ReportedRun(NamedTuple):
    """A run with everything that the page shows of it."""

    run: Run
    style: RunStyle
    checkpoint: Checkpoint
    metrics: Sequence[Mapping[str, Any]]
    """The logged lines."""
    result: Mapping[str, Any]
    """Its evaluation, labelled by its style."""
    records: Iterable[Records] | None
    """Scores of each task, shard by shard, if they can be read."""
    certificate: Mapping[str, Any] | None

    @property
    def last(self) -> Mapping[str, Any]:
        """The last logged line."""
        return self.metrics[-1] if self.metrics else {}

    @property
    def printed(self) -> Result | None:
        """The paper's figures for its method and tasks."""
        return printed_for(self.result)


@contextmanager
def noted(problems: list[Problem], folder: Path, consequence: str) -> Iterator[None]:
    """Note what goes wrong inside, and its consequence for the report."""
    try:
        yield
    except (FewsureError, OSError) as error:
        problems.append(Problem(folder, f"{consequence}: {error}"))


def read_runs(
    folders: Sequence[Path], device: torch.device, *, tasks: int, seed: int, baselines: bool = True
) -> tuple[list[ReportedRun], list[Problem]]:
    """Every run that can be shown, and the problems with the others or with parts of these.

    A run without an evaluation is evaluated on `tasks` unseen tasks of `seed`; so are its `baselines`, if it has any.
    """
    problems: list[Problem] = []
    opened: list[tuple[Run, Checkpoint]] = []
    for folder in {folder.resolve(): folder for folder in folders}.values():
        with noted(problems, folder, "left out"):
            run = Run.open(folder)
            opened.append((run, run.load(device, run.chosen)))
    shown: list[tuple[Run, Checkpoint, dict[str, Any]]] = []
    for run, checkpoint in opened:  # after all of them were read, since this may take long
        with noted(problems, run.folder, "left out"):
            shown.append((run, checkpoint, _result(run, device, tasks, seed, baselines)))
    runs = [run for run, _, _ in shown]
    styles = run_styles([run.experiment.algorithm_name for run in runs], [run.folder for run in runs])
    return [
        ReportedRun(
            run,
            style,
            checkpoint,
            _metrics(run, checkpoint.update, problems),
            result | {"label": style.label},
            _records(run, result, problems),
            read_certificate(run, problems),
        )
        for (run, checkpoint, result), style in zip(shown, styles, strict=True)
    ], problems


def _result(run: Run, device: torch.device, tasks: int, seed: int, baselines: bool) -> dict[str, Any]:
    found = _evaluated(run, device, tasks, seed)
    return with_baselines(run, found, device) if baselines and "baselines" not in found else found


def _evaluated(run: Run, device: torch.device, tasks: int, seed: int) -> dict[str, Any]:
    found = run.evaluation()
    if found is None:
        return evaluate_run(run, device, tasks=tasks, seed=seed)
    try:
        # An evaluation is whole if it has every column and can be written as a table and drawn.
        if not {column.key for column in columns_of(found)[1:]} <= found.keys():
            raise ValueError("some of its numbers are missing")
        evaluation_tables([found])
        comparison_drawings("", setting(found), [found], [RunStyle("", "#000000")])
        if not {"device", "version", "seed"} <= found.keys() or not _is_number(found["seconds"]):
            raise ValueError("it does not say how it was made")
        if found["algorithm"] != run.experiment.algorithm_name or not found["tasks"] >= 2 or not _finite(found):
            raise ValueError("its numbers are no evaluation's")
    except DAMAGED as error:
        path = run.folder / "evaluation.json"
        raise FewsureError(f"{path} is damaged ({error!r}); run `fewsure evaluate {run.folder}`") from error
    return found


def _finite(value: Any) -> bool:
    if isinstance(value, Mapping):
        return all(map(_finite, value.values()))
    if isinstance(value, list):
        return all(map(_finite, value))
    return isinstance(value, (str, bool, NoneType)) or abs(value) <= LARGEST


def _metrics(run: Run, update: int, problems: list[Problem]) -> list[dict[str, Any]]:
    """The logged lines, with the device and their numbers alone."""
    planned = run.experiment.training.updates
    if update < planned:
        says = f"unfinished: {update:,} of {planned:,} updates are made, and its numbers are of that checkpoint"
        problems.append(Problem(run.folder, says))
    lines = [
        {name: value for name, value in line.items() if _is_number(value) or name == "device"} for line in run.metrics()
    ]
    lines = [line for line in lines if {"update", "seconds"} <= line.keys()]
    last = lines[-1]["update"] if lines else 0
    if last < update:
        says = f"metrics.jsonl is missing or cut short: its lines end at update {last:,} of {update:,}"
        problems.append(Problem(run.folder, says))
    return lines


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) <= LARGEST


def _records(run: Run, result: Mapping[str, Any], problems: list[Problem]) -> Iterable[Records] | None:
    """The records of single tasks, if they are there and whole."""
    needed = {"fingerprint", "reliability", *(score for score in SCORES if score in result)}
    with noted(problems, run.folder, "without tests against other runs"):
        shards = run.evaluated_tasks()
        if all(needed <= records.keys() for records in shards):
            return shards
        raise FewsureError(f"its records are another evaluation's; run `fewsure evaluate {run.folder}`")
    return None


def read_certificate(run: Run, problems: list[Problem]) -> dict[str, Any] | None:
    """The certificate, if it is there and whole."""
    path = run.folder / "certificate.json"
    if not path.is_file():
        return None
    try:
        certificate = dict(from_json(path.read_text(encoding="utf-8")))
        certificate_text(certificate)  # it is whole if it can be written as a table
        if certificate["checkpoint"] != checkpoint_digest(run):
            raise ValueError("it belongs to another checkpoint")
    except (OSError, *DAMAGED) as error:
        says = f"without its certificate: {path.name} cannot be used ({error}); run `fewsure certify {run.folder}`"
        problems.append(Problem(run.folder, says))
        return None
    return certificate
