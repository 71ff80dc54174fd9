"""The page's HTML: pure functions from what is known of runs to text. Everything that is not ours is escaped."""

import base64
from collections.abc import Mapping, Sequence
from html import escape
from importlib import resources
from typing import Any, NamedTuple

from fewsure.report.reference import Printed, PrintedAccuracy, printed_for
from fewsure.report.styles import RunStyle, display_name
from fewsure.report.tables import Table, evaluation_tables, mean_cell, setting
from fewsure.training.runs import Checkpoint, Run
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
Transductive runs normalise a query set by its own statistics, so a prediction depends on the other queries.
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


class RunFacts(NamedTuple):
    """What the page tells of a run."""

    run: Run
    style: RunStyle
    checkpoint: Checkpoint
    metrics: Sequence[Mapping[str, Any]]
    result: Mapping[str, Any]
    """Its evaluation."""


class PageFigure(NamedTuple):
    """A figure as it stands on the page and beside it."""

    name: str
    png: bytes
    caption: str


def page(facts: Sequence[RunFacts], figures: Sequence[PageFigure]) -> str:
    """The whole report as one HTML file that refers to nothing outside itself."""
    style = (resources.files("fewsure.report") / "page.css").read_text(encoding="utf-8")
    title = "fewsure: " + ", ".join(fact.style.label for fact in facts)
    notes = [PROTOCOL]
    notes += [REGRESSION] if any("with_noise" in fact.result for fact in facts) else []
    notes += [OBSERVED] if any("without_noise" in fact.result for fact in facts) else []
    notes += [CLASSIFICATION] if any("accuracy" in fact.result for fact in facts) else []
    notes += [WITH_NOISE] if any("with_noise" in fact.result for fact in facts) else []
    notes += [ESTIMATE] if any("bound" in _last(fact) for fact in facts) else []
    return "\n".join(
        [
            '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{escape(title)}</title>\n<style>\n{style}</style>\n</head>\n<body>",
            "<h1>Few-shot learning: how good, and how sure</h1>",
            "<ul>",
            *(f"<li>{_swatch(fact.style)}{escape(summary(fact))}</li>" for fact in facts),
            "</ul>",
            *([f'<p class="notice">{escape(DIFFERENT_TASKS.strip())}</p>'] if _tasks_differ(facts) else []),
            "<h2>Comparison</h2>",
            *_tables([{**fact.result, "label": fact.style.label} for fact in facts]),
            *(f"<p>{escape(note.strip())}</p>" for note in notes),
            *(_figure(figure) for figure in figures),
            "<h2>How this was made</h2>",
            *(_details(fact) for fact in facts),
            f"<footer>Made by fewsure {escape(__version__)}.</footer>\n</body>\n</html>\n",
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
        paper = f" (paper: {printed.accuracy:.2%})" if isinstance(printed, PrintedAccuracy) else ""
        return f"an accuracy of {accuracy['mean']:.2%} ± {accuracy['ci95']:.2%}{paper}"
    paper = f" (paper: {printed.mse:.2f})" if isinstance(printed, Printed) else ""
    return f"a mean squared error of {mean_cell(result['mse']).strip()}{paper}"


def _tasks_differ(facts: Sequence[RunFacts]) -> bool:
    # A CPU and a GPU draw different numbers from the same seed.
    seen = {
        (str(fact.run.experiment.data), fact.result["tasks"], fact.result["seed"], fact.result["device"] == "cpu")
        for fact in facts
    }
    return len(seen) > 1


def _swatch(style: RunStyle) -> str:
    return f'<span class="swatch" style="background: {style.colour}"></span>'


def _tables(results: Sequence[Mapping[str, Any]]) -> list[str]:
    tables = evaluation_tables(results)
    titles = [f"<h3>{escape(table.title)}</h3>\n" if len(tables) > 1 else "" for table in tables]
    return [title + _table(table) for title, table in zip(titles, tables, strict=True)]


def _table(table: Table) -> str:
    def cells(tag: str, row: Sequence[str]) -> str:
        kinds = (' class="count"' if table.is_count(column) else "" for column in range(len(row)))
        return "".join(f"<{tag}{kind}>{escape(cell.strip())}</{tag}>" for kind, cell in zip(kinds, row, strict=True))

    lines = ['<div class="wide">', "<table>", f"<thead><tr>{cells('th', table.headers)}</tr></thead>", "<tbody>"]
    for row in table.rows:
        opening = "<tr>" if row.is_headline else '<tr class="aside">'
        lines.append(f"{opening}{cells('td', row.cells)}</tr>")
    return "\n".join([*lines, "</tbody>", "</table>", "</div>"])


def _figure(figure: PageFigure) -> str:
    data = base64.b64encode(figure.png).decode()
    image = f'<img alt="{escape(figure.caption)}" src="data:image/png;base64,{data}">'
    return f'<figure>\n<div class="wide">{image}</div>\n<figcaption>{escape(figure.caption)}</figcaption>\n</figure>'


def _details(fact: RunFacts) -> str:
    facts = _made_how(fact) | _options(fact.run.experiment.record())
    lines = [f"<dt>{escape(name)}</dt><dd>{escape(value)}</dd>" for name, value in facts.items()]
    summary_line = f"<summary>{_swatch(fact.style)}{escape(fact.style.label)}</summary>"
    return "\n".join(["<details>", summary_line, "<dl>", *lines, "</dl>", "</details>"])


def _made_how(fact: RunFacts) -> dict[str, str]:
    result, last, training = fact.result, _last(fact), fact.run.experiment.training
    facts = {
        "run folder": str(fact.run.folder),
        "preset": fact.run.experiment.preset,
        "updates": f"{fact.checkpoint.update:,} of {training.updates:,}",
        "training seed": str(training.seed),
        "training": f"{last['seconds']:,.0f} s on {last['device']}, fewsure {fact.run.version}"
        if last
        else "not logged",
        "evaluation": f"{result['tasks']:,} tasks, seed {result['seed']}, {result['seconds']:,.1f} s on "
        f"{result['device']}, fewsure {result['version']}",
    }
    if "bound" in last:
        verdict = "vacuous, since above 1" if last["bound"] >= 1 else "below 1"
        terms = f"{last['clipped_loss']:.3g} (clipped loss) + {last['R_i']:.3g} (R_i) + {last['R_0']:.3g} (R_0)"
        facts["estimated bound"] = f"{last['bound']:.3g} = {terms}; {verdict}; mean over the last logged updates"
    return facts


def _options(record: Mapping[str, Any]) -> dict[str, str]:
    """The options of each group on one line."""
    groups = {group: values for group, values in record.items() if isinstance(values, Mapping)}
    return {
        f"{group} options": ", ".join(
            f"{name} = {value}" for name, value in values.items() if not isinstance(value, Mapping)
        )
        for group, values in groups.items()
    }


def _last(fact: RunFacts) -> Mapping[str, Any]:
    return fact.metrics[-1] if fact.metrics else {}
