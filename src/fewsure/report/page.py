"""From run folders to a report: read the runs, draw, and write the page and its figures."""

import re
import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

import torch

from fewsure.core.devices import device_of
from fewsure.core.files import write_atomically
from fewsure.errors import FewsureError
from fewsure.evaluation.calibrate import calibrated
from fewsure.report.comparison import comparison_drawings
from fewsure.report.drawing import Drawing, figure_png, svg_file
from fewsure.report.gallery import Classified, gallery_drawings
from fewsure.report.html import Report, Section, report_html
from fewsure.report.learning_curves import learning_curves_drawings
from fewsure.report.own_data import ByShot, by_shot, by_shot_drawing, coverage_drawing, groups_drawing, predict_groups
from fewsure.report.predictions import Predicted, predictions_drawings
from fewsure.report.runs import Problem, ReportedRun, noted, read_runs
from fewsure.report.significance import best_and_tied
from fewsure.report.styles import setting
from fewsure.report.unseen_tasks import predict_unseen, predict_unseen_images

DRAWN_TASKS = 4
LARGEST_PAGE = 5_000_000
"""Bytes of a page; figures that would make it larger are left to their files."""


class Written(NamedTuple):
    """The files of a report, and the problems with its runs."""

    page: Path
    figures: list[Path]
    """PNG, SVG and CSV of each figure."""
    problems: list[Problem]


def write_report(
    folders: Sequence[Path], out: Path, device: torch.device, *, tasks: int, seed: int, baselines: bool = True
) -> Written:
    """Write the page `out` and its figures beside it.

    A run without an evaluation is evaluated on `tasks` unseen tasks, and on a user's own data its `baselines`, too.
    `seed` chooses these tasks, and the ones that are drawn.
    A run that is missing or damaged is named on the page, which shows the others; if there are none, it is an error.
    """
    if not folders:
        raise FewsureError("expected at least one run to report, but got none")
    if out.is_dir():
        raise FewsureError(f"expected --out to be a file such as report.html, but {out} is a folder")
    files = out.with_name(f"{out.stem}_files")
    with _writing(out):  # a wrong `out` is refused before a long evaluation
        files.mkdir(parents=True, exist_ok=True)
    runs, problems = read_runs(folders, device, tasks=tasks, seed=seed, baselines=baselines)
    if not runs:
        with suppress(OSError):  # earlier figures stay
            files.rmdir()
        raise FewsureError("; ".join(problem.says.removeprefix("left out: ") for problem in problems))
    command = shlex.join(["fewsure", "report", *map(str, folders), "--out", str(out), "--seed", str(seed)])
    report = Report(draw_sections(runs, seed, problems), problems, command, files.name)
    with _writing(out):
        figures = [path for drawing in report.figures for path in _write_figure(files, drawing)]
        write_atomically(out, small_enough(report))
    return Written(out, figures, problems)


def draw_sections(runs: Sequence[ReportedRun], seed: int, problems: list[Problem]) -> list[Section]:
    """A section for each kind of task, in the order in which they come first."""
    settings = list(dict.fromkeys(setting(run.result) for run in runs))
    ordered = sorted(runs, key=lambda run: settings.index(setting(run.result)))
    groups = groupby(ordered, key=lambda run: setting(run.result))
    return [_section(title, list(group), seed, problems) for title, group in groups]


def _section(title: str, runs: Sequence[ReportedRun], seed: int, problems: list[Problem]) -> Section:
    """How runs on one kind of task compare, and their predictions where these can be drawn."""
    name = re.sub(r"\W+", "_", title)
    results, styles = [run.result for run in runs], [run.style for run in runs]
    figures = [*comparison_drawings(name, title, results, styles), *_predictions(runs, name, title, seed, problems)]
    if "grouped_by" in results[0]:
        figures += _own_data(runs, name, title, seed, problems)
    training = learning_curves_drawings(
        name, title, [(run.style, run.metrics) for run in runs], scaled="mae" in results[0]
    )
    return Section(title, runs, _best(runs), figures, training)


def _best(runs: Sequence[ReportedRun]) -> dict[str, set[str]] | None:
    """A run's owner → its best scores; nothing is best of one, and None where the tasks differ."""
    records = [run.records for run in runs if run.records is not None]
    if len(runs) == 1:
        return {}
    best = best_and_tied([run.result for run in runs], records) if len(records) == len(runs) else None
    return None if best is None else {run.style.owner: one for run, one in zip(runs, best, strict=True)}


def _predictions(
    runs: Sequence[ReportedRun], name: str, title: str, seed: int, problems: list[Problem]
) -> list[Drawing]:
    predicted: list[Predicted] = []
    classified: list[Classified] = []
    for run in runs:
        meta = run.checkpoint.meta
        with noted(problems, run.run.folder, "without its predictions"):  # its data may not be here
            experiment = calibrated(run.run, device_of(meta))
            if experiment.data.truth_known:  # of one variable
                predicted.append((run.style, predict_unseen(experiment, meta, tasks=DRAWN_TASKS, seed=seed)))
            elif experiment.data.pictures and not experiment.data.fixed_classes:
                classified.append((run.style, predict_unseen_images(experiment, meta, seed=seed)))
    drawings = predictions_drawings(name, title, predicted)
    return drawings + (gallery_drawings(name, title, classified) if classified else [])


def _own_data(runs: Sequence[ReportedRun], name: str, title: str, seed: int, problems: list[Problem]) -> list[Drawing]:
    """The figures and tables of a user's own data, beside the scores."""
    rows = [run for run in runs if len(run.result.get("by_group", [])) > 1]
    drawings = [coverage_drawing(name, title, [(run.style, run.result) for run in rows])] if rows else []
    lines: list[ByShot] = []
    for run in runs:
        with noted(problems, run.run.folder, "without errors by the number of examples"):
            lines += [line for line in by_shot(run, seed) if line.label not in {known.label for known in lines}]
    drawings += [by_shot_drawing(name, title, runs[0].result, lines)] if lines else []
    for run in rows:
        with noted(problems, run.run.folder, "without predictions of its groups"):
            drawings.append(groups_drawing(name, title, run, predict_groups(run, seed)))
    return drawings


def _write_figure(folder: Path, drawing: Drawing) -> list[Path]:
    files: dict[str, bytes | str] = {
        "svg": svg_file(drawing.svg),
        "png": figure_png(drawing.figure),
        "csv": drawing.csv(),
    }
    for ending, content in files.items():
        write_atomically(folder / f"{drawing.name}.{ending}", content)
    return [folder / f"{drawing.name}.{ending}" for ending in files]


def small_enough(report: Report) -> str:
    """The page, without its largest figures if there is no room for them."""
    by_size = sorted(report.figures, key=lambda drawing: len(svg_file(drawing.svg)))
    left_out: set[str] = set()
    text = report_html(report)
    while len(text.encode()) > LARGEST_PAGE and by_size:
        left_out.add(by_size.pop().name)
        text = report_html(report, left_out=left_out)
    return text


@contextmanager
def _writing(out: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise FewsureError(f"the report cannot be written to {out} ({error.strerror}); choose another --out") from error
