"""What is known of the runs of a report: read, checked, evaluated if need be. What is wrong is said, not raised."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import NoneType
from typing import Any, NamedTuple

import torch

from fewsure.certification.predictor import checkpoint_digest
from fewsure.core.config import from_json
from fewsure.errors import FewsureError
from fewsure.evaluation.compare import SCORES
from fewsure.pipeline import evaluate_run
from fewsure.report.certificate_table import certificate_table
from fewsure.report.figures import OwnedResult, comparison_drawings
from fewsure.report.styles import RunStyle, run_styles
from fewsure.report.tables import evaluation_tables, setting
from fewsure.training.runs import Checkpoint, Run
from fewsure.types import Records

DAMAGED = (LookupError, TypeError, ValueError, AttributeError, ArithmeticError)
"""What goes wrong with values that no version has written."""
LARGEST = 1e100
"""Of numbers that can be drawn."""


class Problem(NamedTuple):
    """What is wrong with a run, and what the report does about it."""

    folder: Path
    says: str


class RunFacts(NamedTuple):
    """What the page tells of a run."""

    run: Run
    style: RunStyle
    owner: str
    """Its number in the report, from 0."""
    checkpoint: Checkpoint
    metrics: Sequence[Mapping[str, Any]]
    result: Mapping[str, Any]
    """Its evaluation."""
    records: Iterable[Records] | None
    """What the evaluation found of each task, shard by shard, if that can be read."""
    certificate: Mapping[str, Any] | None

    @property
    def last(self) -> Mapping[str, Any]:
        """The last logged line."""
        return self.metrics[-1] if self.metrics else {}


class _Read(NamedTuple):
    run: Run
    checkpoint: Checkpoint


def gather(
    folders: Sequence[Path], device: torch.device, *, tasks: int, seed: int, quiet: bool
) -> tuple[list[RunFacts], list[Problem]]:
    """The facts of every run that can be shown, and what is wrong with the others, or with parts of these.

    A run without an evaluation is evaluated on `tasks` unseen tasks of `seed`.
    """
    problems: list[Problem] = []
    read: list[_Read] = []
    for folder in {folder.resolve(): folder for folder in folders}.values():
        try:
            run = Run.open(folder)
            read.append(_Read(run, run.load(device)))
        except (FewsureError, OSError) as error:
            problems.append(Problem(folder, f"left out: {error}"))
    shown: list[tuple[_Read, dict[str, Any]]] = []
    for one in read:  # after all of them were read, since this may take long
        try:
            shown.append((one, _result(one.run, device, tasks, seed, quiet)))
        except (FewsureError, OSError) as error:
            problems.append(Problem(one.run.folder, f"left out: {error}"))
    runs = [one.run for one, _ in shown]
    styles = run_styles([run.experiment.algorithm_name for run in runs], [run.folder for run in runs])
    facts = [
        RunFacts(
            one.run,
            style,
            str(number),
            one.checkpoint,
            _metrics(one, problems),
            result,
            _records(one.run, result, problems),
            _certificate(one.run, problems),
        )
        for number, ((one, result), style) in enumerate(zip(shown, styles, strict=True))
    ]
    return facts, problems


def evaluated_how(result: Mapping[str, Any]) -> dict[str, str]:
    """Name → what is said of an evaluation."""
    took = f"{result['tasks']:,} tasks in {result['seconds']:,.1f} s on {result['device']}"
    return {
        "evaluation": f"{took}, fewsure {result['version']}",
        "data checksum": str(result.get("data_checksum") or "none: the tasks are generated from the seed"),
    }


def _result(run: Run, device: torch.device, tasks: int, seed: int, quiet: bool) -> dict[str, Any]:
    found = run.evaluation()
    if found is None:
        return evaluate_run(run, device, tasks=tasks, seed=seed, quiet=quiet)
    try:
        # What can be written as a table and drawn is whole.
        evaluation_tables([found])
        comparison_drawings("", setting(found), [OwnedResult(found, RunStyle("", "#000000"), "")])
        evaluated_how(found)
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


def _metrics(one: _Read, problems: list[Problem]) -> list[dict[str, Any]]:
    """The logged lines, with the device and their numbers alone."""
    run, update, planned = one.run, one.checkpoint.update, one.run.experiment.training.updates
    if update < planned:
        says = f"unfinished: {update:,} of {planned:,} updates are made, and its numbers are of that checkpoint"
        problems.append(Problem(run.folder, says))
    lines = [
        {name: value for name, value in line.items() if _is_number(value) or name == "device"}
        for line in run.metrics()
        if _is_number(line["update"]) and _is_number(line["seconds"])
    ]
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
    try:
        shards = run.evaluated_tasks()
        if not all(needed <= records.keys() for records in shards):
            raise FewsureError(f"its records are another evaluation's; run `fewsure evaluate {run.folder}`")
    except FewsureError as error:
        problems.append(Problem(run.folder, f"without tests against other runs: {error}"))
        return None
    return shards


def _certificate(run: Run, problems: list[Problem]) -> dict[str, Any] | None:
    """The certificate, if it is there and whole."""
    path = run.folder / "certificate.json"
    if not path.is_file():
        return None
    try:
        certificate = dict(from_json(path.read_text(encoding="utf-8")))
        certificate_table(certificate)  # what can be written as a table is whole
        if certificate["checkpoint"] != checkpoint_digest(run):
            raise ValueError("it belongs to another checkpoint")
    except (OSError, *DAMAGED) as error:
        says = f"without its certificate: {path.name} cannot be used ({error}); run `fewsure certify {run.folder}`"
        problems.append(Problem(run.folder, says))
        return None
    return certificate
