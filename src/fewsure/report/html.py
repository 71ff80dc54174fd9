"""The HTML of a report: the templates hold the markup, and escape everything that is put into them."""

import base64
import hashlib
import json
import shlex
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from markupsafe import Markup

from fewsure.report.certificates import certificate_notes, certificate_table, certificate_title
from fewsure.report.drawing import Drawing, svg_inside_page
from fewsure.report.evaluation_tables import (
    Column,
    baseline_notes,
    baseline_results,
    columns_of,
    group_notes,
    groups_of,
    mean_cell,
    noise_results,
    unit_cell,
)
from fewsure.report.runs import Problem, ReportedRun
from fewsure.report.styles import display_name, setting
from fewsure.report.templating import templates
from fewsure.report.train_command import train_command
from fewsure.version import __version__

COLOURS = {
    "#000000": "var(--text)",
    "#ffffff": "var(--ground)",
    "#dddddd": "var(--line)",
    "#666666": "var(--quiet)",
}
"""Colours of figures that belong to no run → those of the page, light or dark."""


class Section(NamedTuple):
    """The runs on one kind of task."""

    title: str
    runs: Sequence[ReportedRun]
    best: Mapping[str, set[str]] | None
    """A run's owner → the scores that are bold; None where several runs were not evaluated on the same tasks."""
    figures: Sequence[Drawing]
    training: Sequence[Drawing]
    """Learning curves."""


class Report(NamedTuple):
    """All that the page shows."""

    sections: Sequence[Section]
    problems: Sequence[Problem]
    command: str
    files: str
    """The name of the folder with the figures' files."""

    @property
    def figures(self) -> list[Drawing]:
        """The drawings of all sections."""
        return [drawing for section in self.sections for drawing in (*section.figures, *section.training)]


def report_html(report: Report, *, left_out: Collection[str] = ()) -> str:
    """The whole report as one HTML file that refers to nothing outside itself.

    Figures named in `left_out` are left to their files.
    """
    environment = templates("fewsure.report")
    script = environment.get_template("page.js").render()
    runs = [run for section in report.sections for run in section.runs]
    functions = (
        *(picture, points, summary, train_command, paper_note, columns_of, noise_results, group_notes),
        *(baseline_results, baseline_notes, certificate_title, certificate_table, certificate_notes),
    )
    return environment.get_template("report.html").render(
        {function.__name__: function for function in functions},
        quote=shlex.quote,
        report=report,
        runs=sorted(runs, key=lambda run: int(run.style.owner)),
        left_out=left_out,
        script=Markup(script),
        digest=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        version=__version__,
    )


def picture(drawing: Drawing, runs: Sequence[ReportedRun]) -> Markup:
    """A drawing in the colours of the page, which gives runs theirs."""
    of_runs = {run.style.colour.lower(): f"var(--run-{run.style.owner})" for run in runs}
    return Markup(svg_inside_page(drawing.svg, COLOURS | of_runs))


def points(drawing: Drawing) -> str:
    """The points of a drawing as the page's script reads them."""
    return json.dumps(drawing.points(), ensure_ascii=False, separators=(",", ":"))


def summary(run: ReportedRun) -> str:
    """One sentence: how good, how well calibrated, beside the paper, after how much training."""
    result, printed = run.result, run.printed or {}
    planned, done = run.run.experiment.training.updates, run.checkpoint.update
    progress = f"{done:,} updates" if done == planned else f"only {done:,} of {planned:,} updates"
    label, method = run.style.label, display_name(result["algorithm"])
    name = label if label == method else f"{label} ({method})"

    tasks = f"{result['tasks']:,} unseen tasks ({setting(result)})"
    tasks += f" of {groups_of(result)}" if "groups" in result else ""
    if "mae" in result:
        return (
            f"{name} has a mean absolute error of {unit_cell(result['mae'])} on {tasks}, after {progress}. Its 90 % "
            f"intervals hold {result['coverage_90']['mean']:.0%} of the values, and are "
            f"{unit_cell({'mean': result['width_90']['mean']})} wide on average."
        )
    if "accuracy" in result:
        accuracy = result["accuracy"]
        score = f"an accuracy of {accuracy['mean']:.2%}"
        score += f" ± {accuracy['ci95']:.2%}" if "ci95" in accuracy else ""
        score += f" (paper: {printed['accuracy']['mean']:.2%})" if "accuracy" in printed else ""
        surety = "; it predicts a query set as a whole (transductive)" if result["transductive"] else ""
    else:
        score = f"a mean squared error of {mean_cell(result['mse']).strip()}"
        score += f" (paper: {printed['mse']['mean']:.2f})" if "mse" in printed else ""
        surety = "" if result["samples"] > 1 else "; being a point estimate, it cannot say how sure it is"
    ece = f"an expected calibration error of {result['ece']:.4f}"
    ece += f" (paper: {printed['ece']:.4f})" if "ece" in printed else ""
    return f"{name} has {score} and {ece} on {tasks}, after {progress}{surety}."


def paper_note(column: Column, run: ReportedRun) -> str:
    """The paper's figure below ours, with the difference; empty where there is none."""
    ours, paper = column.value(run.result), column.value(run.printed or {})
    if ours is None or paper is None or column.is_count:
        return ""
    digits = 2 if column.key == "mse" else 4
    difference = f"{ours - paper:+.{digits}f}".replace("-", "−")
    return f"paper {paper:.{digits}f}, ours {difference}"
