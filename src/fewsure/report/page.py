"""From run folders to a report: gather what is known, draw, and write the page and its figures."""

import re
import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import torch

from fewsure.core.devices import device_of
from fewsure.core.files import write_atomically
from fewsure.errors import FewsureError
from fewsure.evaluation.calibrate import calibrated
from fewsure.report.curves import LoggedRun, learning_curves_drawings
from fewsure.report.drawing import Drawing, svg_file
from fewsure.report.facts import Problem, RunFacts, gather
from fewsure.report.figures import OwnedResult, comparison_drawings
from fewsure.report.gallery import Samples, gallery_drawings
from fewsure.report.markup import Report, Section, Shown, page
from fewsure.report.predictions import Predicted, predictions_drawings
from fewsure.report.tables import setting
from fewsure.report.ties import best_and_tied, same_tasks
from fewsure.report.unseen import predict_unseen, predict_unseen_images

DRAWN_TASKS = 4
LARGEST_PAGE = 5_000_000
"""Bytes of a page; figures that would make it larger are left to their files."""


class Written(NamedTuple):
    """What a report has written, and what it has to say."""

    page: Path
    figures: list[Path]
    """PNG, SVG and CSV of each figure."""
    problems: list[Problem]


def write_report(
    folders: Sequence[Path], out: Path, device: torch.device, *, tasks: int, seed: int, quiet: bool = False
) -> Written:
    """Write the page `out` and its figures beside it.

    A run without an evaluation is evaluated on `tasks` unseen tasks. `seed` chooses these, and the ones that are drawn.
    A run that is missing or damaged is named on the page, which shows the others; if there are none, it is an error.
    """
    if not folders:
        raise FewsureError("expected at least one run to report, but got none")
    if out.is_dir():
        raise FewsureError(f"expected --out to be a file such as report.html, but {out} is a folder")
    folder = out.with_name(f"{out.stem}_files")
    with _writing(out):  # what can go wrong with `out` goes wrong before a long evaluation
        folder.mkdir(parents=True, exist_ok=True)
    facts, problems = gather(folders, device, tasks=tasks, seed=seed, quiet=quiet)
    if not facts:
        with suppress(OSError):  # earlier figures stay
            folder.rmdir()
        raise FewsureError("; ".join(problem.says.removeprefix("left out: ") for problem in problems))
    sections = [_section(group, seed, problems) for group in _by_setting(facts)]
    command = shlex.join(["fewsure", "report", *map(str, folders), "--out", str(out), "--seed", str(seed)])
    report = Report(sections, problems, command, folder.name)
    text = _small_enough(report)
    with _writing(out):
        files = [path for shown in _all_shown(report) for path in _write_figure(folder, shown)]
        write_atomically(out, text)
    return Written(out, files, problems)


def _by_setting(facts: Sequence[RunFacts]) -> list[list[RunFacts]]:
    """The runs of each kind of task."""
    groups: dict[str, list[RunFacts]] = {}
    for fact in facts:
        groups.setdefault(setting(fact.result), []).append(fact)
    return list(groups.values())


def _section(facts: Sequence[RunFacts], seed: int, problems: list[Problem]) -> Section:
    """What is shown of runs on one kind of task: how they compare, and what they predict where that can be drawn."""
    title = setting(facts[0].result)
    name = re.sub(r"\W+", "_", title)
    results, records = [fact.result for fact in facts], [fact.records for fact in facts]
    known = [record for record in records if record is not None]
    paired = len(facts) > 1 and same_tasks(results, records)
    drawings = comparison_drawings(name, title, [OwnedResult(fact.result, fact.style, fact.owner) for fact in facts])
    drawings += _predictions(facts, name, title, seed, problems)
    marked = best_and_tied(results, known) if paired else None
    logged = [LoggedRun(fact.metrics, fact.style, fact.owner) for fact in facts]
    training = learning_curves_drawings(name, title, logged)
    return Section(title, facts, marked, list(map(_shown, drawings)), list(map(_shown, training)))


def _predictions(facts: Sequence[RunFacts], name: str, title: str, seed: int, problems: list[Problem]) -> list[Drawing]:
    predicted, seen = [], []
    for fact in facts:
        meta = fact.checkpoint.meta
        try:
            experiment = calibrated(fact.run, device_of(meta))
            if experiment.data.truth_known:
                unseen = predict_unseen(experiment, meta, tasks=DRAWN_TASKS, seed=seed)
                predicted.append(Predicted(unseen, fact.style, fact.owner))
            elif experiment.data.pictures:
                seen.append(Samples(predict_unseen_images(experiment, meta, seed=seed), fact.style, fact.owner))
        except (FewsureError, OSError) as error:  # its data may not be here
            problems.append(Problem(fact.run.folder, f"without its predictions: {error}"))
    drawings = predictions_drawings(name, title, predicted) if predicted else []
    return drawings + (gallery_drawings(name, title, seen) if seen else [])


def _shown(drawing: Drawing) -> Shown:
    return Shown(drawing, *drawing.svg())


def _all_shown(report: Report) -> list[Shown]:
    return [shown for section in report.sections for shown in (*section.figures, *section.training)]


def _write_figure(folder: Path, shown: Shown) -> list[Path]:
    drawing = shown.drawing
    contents: dict[str, bytes | str] = {"png": drawing.png(), "svg": svg_file(shown.element), "csv": drawing.csv()}
    paths = []
    for ending, content in contents.items():
        paths.append(folder / f"{drawing.name}.{ending}")
        write_atomically(paths[-1], content)
    return paths


def _small_enough(report: Report) -> str:
    """The page, without its largest figures if there is no room for them."""
    text = page(report)
    names = [shown.drawing.name for shown in _all_shown(report)]
    without: frozenset[str] = frozenset()
    while len(text.encode()) > LARGEST_PAGE and len(without) < len(names):
        parts = {name: text.split(f'<figure id="{name}"')[-1].split("</figure>")[0] for name in names}
        largest = max((name for name in names if name not in without), key=lambda name: len(parts[name]))
        without |= {largest}
        text = page(report, without=without)
    return text


@contextmanager
def _writing(out: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise FewsureError(f"the report cannot be written to {out} ({error.strerror}); choose another --out") from error
