"""The page's HTML: pure functions from what is known of runs to text. Everything that is not ours is escaped."""

import base64
import hashlib
import json
from collections.abc import Mapping, Sequence
from html import escape
from importlib import resources
from typing import Any, NamedTuple
from xml.etree.ElementTree import Element

from fewsure.report.certificate_table import HEADERS, certificate_lines, certificate_notes, certificate_title
from fewsure.report.drawing import PAPER, Drawing, Point, svg_inside_page
from fewsure.report.facts import Problem, RunFacts
from fewsure.report.made import made_how
from fewsure.report.reference import Printed, PrintedAccuracy, printed_for
from fewsure.report.styles import DARK_GROUND, RunStyle, display_name
from fewsure.report.tables import Column, cell_text, columns_of, mean_cell, noise_results, setting
from fewsure.version import __version__

PROTOCOL = """
Every number in the tables is over tasks that training never saw. Intervals are 95 % intervals over tasks.
"""
REGRESSION = """
The headline protocol: each run adapts to a task's support points, then 32 functions are sampled from the task's
posterior (a point estimate has one); no observation noise is added to them, and there is no post-hoc scaling. MSE is
the error of their mean against noisy labels. Reliability is the share of noisy observations below each quantile of the
samples; ECE is the mean over the 11 levels of the distance between level and share, MCE the largest.
"""
OBSERVED = """
On data of your own nobody knows the truth without noise: reliability is the share of observed labels below each
quantile of what is predicted, which is the sampled functions with noise around them, of a standard deviation that was
given or learned from validation tasks. MSE and NLL are in the unit of the target. Rows without noise are of the
functions' quantiles alone.
"""
CLASSIFICATION = """
Classes are those of a split that training never saw. Class probabilities are averaged over 32 networks sampled from a
task's posterior (a point estimate has one). Calibration is pooled over the query points of all tasks, in 10 bins of
confidence: ECE is the mean distance between confidence and accuracy, weighted by the points in a bin, MCE the largest.
Transductive runs normalise a query set by its own statistics, take its mean off, or make its temperature depend on it,
so a prediction depends on the other queries.
"""
ESTIMATE = """
SImPa's reported bound is an estimate, not a guarantee: its KL divergence is estimated from samples and can be too low,
and a guarantee would need an upper bound of it.
"""
WITH_NOISE = """
Rows with noise show how easily calibration is gamed: noise of the observations' own size is added to the sampled
values, which can make even a point estimate look calibrated. They are no result of the method.
"""
DIFFERENT_TASKS = """
These evaluations differ in data, shot, number of tasks, seed or kind of device, so the runs were not judged on the same
tasks. Run fewsure evaluate on each with the same options to compare them fairly.
"""


BOLD = """
Bold: the best of a column, and every run that does not differ from it significantly (5 %) on the same tasks, by the
paired t-test over tasks, and for ECE and MCE by the paired bootstrap. (Under the paper's Table 1 it is the two best.)
"""
BESIDE = """
Below our figures, in small print, are those that the paper prints for the same method and kind of task, and ours less
the paper's. The paper's tasks, networks and training are its own.
"""


class Shown(NamedTuple):
    """A drawing as it stands on the page: its SVG element and the points that say something."""

    drawing: Drawing
    element: Element
    points: Sequence[Point]


class Section(NamedTuple):
    """What the page shows of runs on one kind of task."""

    title: str
    facts: Sequence[RunFacts]
    marked: Sequence[set[str]] | None
    """For each run the scores that are bold; none where there is no other run, or no other on the same tasks."""
    figures: Sequence[Shown]
    training: Sequence[Shown]
    """Learning curves."""


class Report(NamedTuple):
    """All that the page shows."""

    sections: Sequence[Section]
    problems: Sequence[Problem]
    command: str
    files: str
    """The name of the folder with the figures' files."""

    @property
    def facts(self) -> list[RunFacts]:
        return sorted((fact for section in self.sections for fact in section.facts), key=lambda fact: int(fact.owner))


def page(report: Report, *, without: frozenset[str] = frozenset()) -> str:
    """The whole report as one HTML file that refers to nothing outside itself.

    Figures named in `without` are left to their files.
    """
    facts = report.facts
    script = _resource("page.js")
    return "\n".join(
        [
            '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">',
            # Nothing can be loaded, and no script but this one can run.
            f'<meta http-equiv="Content-Security-Policy" content="{_policy(script)}">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{escape('fewsure: ' + ', '.join(fact.style.label for fact in facts))}</title>",
            f"<style>\n{_resource('page.css')}{_colours(facts)}</style>\n</head>\n<body>",
            "<h1>Few-shot learning: how good, and how sure</h1>",
            *_problems(report.problems),
            '<ul class="summary">',
            *(f'<li data-of="{fact.owner}">{_swatch(fact)}{escape(summary(fact))}</li>' for fact in facts),
            "</ul>",
            *_switches(report),
            *(_section(section, report.files, without) for section in report.sections),
            *_certificates(facts),
            "<h2>What the numbers mean</h2>",
            *(f"<p>{escape(note.strip())}</p>" for note in _notes(report)),
            "<h2>How this was made</h2>",
            *(_details(fact) for fact in facts),
            f"<p>The page: <code>{escape(report.command)}</code>. Every figure is in the folder {escape(report.files)} "
            "beside it, as PNG and SVG, with the numbers behind it as CSV.</p>",
            f"<footer>Made by fewsure {escape(__version__)}.</footer>",
            f"<script>{script}</script>\n</body>\n</html>\n",
        ]
    )


def summary(fact: RunFacts) -> str:
    """One sentence: how good, how well calibrated, beside the paper, after how much training."""
    result, printed = fact.result, printed_for(fact.result)
    surety = "" if result["samples"] > 1 else "; being a point estimate, it cannot say how sure it is"
    if "accuracy" in result:
        surety = "; it predicts a query set as a whole (transductive)" if result["transductive"] else ""
    planned = fact.run.experiment.training.updates
    progress = (
        f"{fact.checkpoint.update:,} updates"
        if fact.checkpoint.update == planned
        else f"only {fact.checkpoint.update:,} of {planned:,} updates"
    )
    label, method = fact.style.label, display_name(result["algorithm"])
    name = label if label == method else f"{label} ({method})"
    paper_ece = f" (paper: {printed.ece:.4f})" if printed and printed.ece is not None else ""
    return (
        f"{name} has {_score(result, printed)} and an expected calibration error of {result['ece']:.4f}{paper_ece} on "
        f"{result['tasks']:,} unseen tasks ({setting(result)}), after {progress}{surety}."
    )


def _score(result: Mapping[str, Any], printed: Printed | PrintedAccuracy | None) -> str:
    if "accuracy" in result:
        accuracy = result["accuracy"]
        known = isinstance(printed, PrintedAccuracy) and printed.accuracy is not None
        paper = f" (paper: {printed.accuracy:.2%})" if known else ""  # type: ignore[union-attr]
        return f"an accuracy of {accuracy['mean']:.2%} ± {accuracy['ci95']:.2%}{paper}"
    paper = f" (paper: {printed.mse:.2f})" if isinstance(printed, Printed) else ""
    return f"a mean squared error of {mean_cell(result['mse']).strip()}{paper}"


def _resource(name: str) -> str:
    return (resources.files("fewsure.report") / name).read_text(encoding="utf-8")


def _policy(script: str) -> str:
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"


def _colours(facts: Sequence[RunFacts]) -> str:
    """Each run's colour, and a lighter one for a dark page where its own could not be seen."""
    light = "".join(f"  --run-{fact.owner}: {fact.style.colour};\n" for fact in facts)
    dark = "".join(
        f"    --run-{fact.owner}: {DARK_GROUND.get(fact.style.colour, fact.style.colour)};\n" for fact in facts
    )
    return f":root {{\n{light}}}\n@media (prefers-color-scheme: dark) {{\n  :root {{\n{dark}  }}\n}}\n"


def _notes(report: Report) -> list[str]:
    facts = report.facts
    notes = [PROTOCOL]
    notes += [BOLD] if any(section.marked for section in report.sections) else []
    notes += [BESIDE] if any(printed_for(fact.result) for fact in facts) else []
    notes += [REGRESSION] if any("with_noise" in fact.result for fact in facts) else []
    notes += [OBSERVED] if any("without_noise" in fact.result for fact in facts) else []
    notes += [CLASSIFICATION] if any("accuracy" in fact.result for fact in facts) else []
    notes += [WITH_NOISE] if any("with_noise" in fact.result for fact in facts) else []
    notes += [ESTIMATE] if any("bound" in fact.last for fact in facts) else []
    return notes


def _problems(problems: Sequence[Problem]) -> list[str]:
    lines = [f"<li><code>{escape(str(problem.folder))}</code>: {escape(problem.says)}.</li>" for problem in problems]
    return ['<div class="notice" id="problems"><ul>', *lines, "</ul></div>"] if lines else []


def _switches(report: Report) -> list[str]:
    """The legend of the page; its script makes switches of it."""
    facts = report.facts
    switches = [f'<li data-switch="{fact.owner}">{_swatch(fact)}{escape(fact.style.label)}</li>' for fact in facts]
    if any(printed_for(fact.result) for fact in facts):
        switches.append(f'<li data-switch="{PAPER}"><span class="swatch hatched"></span>the paper</li>')
    return ['<ul class="switches" aria-label="Methods">', *switches, "</ul>"]


def _swatch(fact: RunFacts) -> str:
    return f'<span class="swatch" style="background: var(--run-{fact.owner})"></span>'


def _section(section: Section, files: str, without: frozenset[str]) -> str:
    lines = [f"<h2>{escape(section.title)}</h2>"]
    if len(section.facts) > 1 and section.marked is None:
        lines.append(f'<p class="notice">{escape(DIFFERENT_TASKS.strip())}</p>')
    styles = _styles(section.facts)
    lines += [_table(section), *_figures(section.figures, styles, files, without)]
    if section.training:
        lines += ["<h3>Training</h3>", *_figures(section.training, styles, files, without)]
    return "\n".join(lines)


def _styles(facts: Sequence[RunFacts]) -> dict[str, RunStyle]:
    return {fact.owner: fact.style for fact in facts}


def _table(section: Section) -> str:
    columns = columns_of(section.facts[0].result)
    heads = "".join(f'<th{_kind(column)} scope="col">{escape(column.header)}</th>' for column in columns)
    lines = ['<div class="wide">', '<table class="scores">', f"<thead><tr>{heads}</tr></thead>", "<tbody>"]
    for number, fact in enumerate(section.facts):
        result = {**fact.result, "label": fact.style.label}
        bold = section.marked[number] if section.marked else set()
        cells = [_swatch(fact) + escape(fact.style.label)]
        cells += [_cell(column, result, column.score in bold) for column in columns[1:]]
        lines.append(_row(columns, result, cells, f'data-of="{fact.owner}"'))
        for noisy in noise_results(result):
            plain = [escape(cell_text(column, noisy).strip()) for column in columns]
            lines.append(_row(columns, noisy, plain, f'class="aside" data-of="{fact.owner}"'))
    return "\n".join([*lines, "</tbody>", "</table>", "</div>"])


def _kind(column: Column) -> str:
    return ' class="count"' if column.is_count else ""


def _row(columns: Sequence[Column], result: Mapping[str, Any], cells: Sequence[str], attributes: str) -> str:
    parts = []
    for column, cell in zip(columns, cells, strict=True):
        value = column.value(result)
        exact = "" if value is None else f' data-value="{value!r}"'
        parts.append(f"<td{_kind(column)}{exact}>{cell}</td>")
    return f"<tr {attributes}>{''.join(parts)}</tr>"


def _cell(column: Column, result: Mapping[str, Any], bold: bool) -> str:
    """Our figure, bold if it is among the best, and below it the paper's with the difference."""
    ours, paper = column.value(result), column.printed(printed_for(result))
    text = escape(column.text(result).strip())
    text = f"<strong>{text}</strong>" if bold else text
    if ours is None or paper is None:
        return text
    digits = 2 if column.score == "mse" else 4
    difference = f"{ours - paper:+.{digits}f}".replace("-", "−")
    return f'{text}<span class="paper" data-of="{PAPER}">paper {paper:.{digits}f}, ours {difference}</span>'


def _figures(
    figures: Sequence[Shown], styles: Mapping[str, RunStyle], files: str, without: frozenset[str]
) -> list[str]:
    lines = [_figure(shown, styles, files, shown.drawing.name in without) for shown in figures]
    return ['<div class="figures">', *lines, "</div>"] if lines else []


def _figure(shown: Shown, styles: Mapping[str, RunStyle], files: str, elsewhere: bool) -> str:
    name, caption = shown.drawing.name, escape(shown.drawing.caption)
    if elsewhere:
        where = f"{escape(files)}/{escape(name)}.svg"
        return (
            f"<figure><p>Left out to keep the page small; see {where}.</p><figcaption>{caption}</figcaption></figure>"
        )
    colours = {
        "#000000": "var(--text)",
        "#ffffff": "var(--ground)",
        "#dddddd": "var(--line)",
        "#666666": "var(--quiet)",
        **{style.colour.lower(): f"var(--run-{owner})" for owner, style in styles.items()},
    }
    points = json.dumps([list(point) for point in shown.points], ensure_ascii=False, separators=(",", ":"))
    picture = svg_inside_page(shown.element, name, colours)
    return (
        f'<figure id="{escape(name)}" data-points="{escape(points)}">\n'
        f'<div class="picture" role="img" aria-label="{caption}">{picture}</div>\n'
        f"<figcaption>{caption}</figcaption>\n</figure>"
    )


def _certificates(facts: Sequence[RunFacts]) -> list[str]:
    lines = []
    for fact in facts:
        if fact.certificate is not None:
            heads = "".join(f'<th scope="col">{escape(header)}</th>' for header in (*HEADERS[:-1], "what it says"))
            title = "; ".join(certificate_title(fact.certificate))
            lines += [f"<h3>{_swatch(fact)}{escape(fact.style.label)}</h3>", f"<p>{escape(title)}.</p>"]
            lines += ['<div class="wide">', '<table class="statements">', f"<thead><tr>{heads}</tr></thead>", "<tbody>"]
            for line in certificate_lines(fact.certificate):
                part = ' class="part"' if line[0].startswith(" ") else ""
                cells = "".join(f"<td>{escape(cell.strip())}</td>" for cell in line)
                lines.append(f"<tr{part}>{cells}</tr>")
            notes = " ".join(note.rstrip(".") + "." for note in certificate_notes(fact.certificate))
            lines += ["</tbody>", "</table>", "</div>", f"<p>{escape(notes)}</p>"]
    return ["<h2>Certificates and coverage</h2>", *lines] if lines else []


def _details(fact: RunFacts) -> str:
    lines = [f"<dt>{escape(name)}</dt><dd>{escape(value)}</dd>" for name, value in made_how(fact).items()]
    summary_line = f"<summary>{_swatch(fact)}{escape(fact.style.label)}</summary>"
    return "\n".join(["<details open>", summary_line, "<dl>", *lines, "</dl>", "</details>"])
