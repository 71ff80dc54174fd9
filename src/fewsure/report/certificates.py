"""The certificates of a run: each statement, whether it is rigorous, whether it is vacuous.

Those of several runs are a list of objects in a JSON file, and tables inside a Markdown page.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fewsure.core.config import from_json
from fewsure.core.files import write_atomically
from fewsure.errors import FewsureError
from fewsure.report.styles import display_name, setting
from fewsure.report.tables import ABSENT, Table, interval
from fewsure.report.templating import templates

Record = Mapping[str, Any]
"""An object as `fewsure.certification.certify.certify_run` returns it."""
Line = tuple[str, str, str, str, str]

HEADERS: Line = ("statement", "value", "rigorous", "vacuous", "")
APART = "Each statement holds on its own; they are not guaranteed jointly."
SCORES = {"probability": "1 − p", "scaled residual": "|y − mean| / spread", "residual": "|y − mean|"}
BEGIN, END = "<!-- certificates, made by `fewsure certify --page` -->", "<!-- end of certificates -->"
SAME = ("algorithm", "data", "way", "shot", "preset", "train_seed", "unit")
"""The names of an object in the list, which replaces one with the same values."""


# One run


def certificate_text(record: Record) -> str:
    """The environment, the statements in columns, and why one is missing or not rigorous."""
    title, table, notes = certificate_title(record), certificate_table(record).text(), certificate_notes(record)
    return "\n".join([*title, "", table, "", *notes])


def certificate_title(record: Record) -> list[str]:
    """The environment, the assumption and the loss of the statements."""
    return [record["environment"], f"assumed: {record['assumed']}", f"loss: {record['loss']}"]


def certificate_table(record: Record) -> Table:
    """The statements; measured values are indented below the statement that they check."""
    return Table(
        "", HEADERS, [*_held_out(record), *_conformal(record), *_single_tasks(record), *_theorem(record["theorem_2"])]
    )


def certificate_notes(record: Record) -> list[str]:
    """Why there is no statement of a kind, and why one is not rigorous."""
    notes = [str(record[part]["reason"]) for part in ("conformal", "theorem_2") if "reason" in record[part]]
    judged = [("The certificate", record["fresh"])]
    judged += [("Theorem 1", record["theorem_1"])] if "theorem_1" in record else []
    judged += [("Theorem 2", bound) for bound in record["theorem_2"].get("bounds", [])[:1]]
    for name, one in judged:
        notes.append(f"{name} is {'rigorous' if one['rigorous'] else 'not rigorous'}: {one['reason']}")
    return [*notes, APART]


def _held_out(record: Record) -> list[Line]:
    held_out, measured = record["held_out"], record.get("measured")
    own = "grouped_by" in record
    mean, limit = (number(held_out[key]) if own else f"{held_out[key]:.4f}" for key in ("mean", "limit"))
    says = f"expected loss on a new task, with confidence {1 - held_out['delta']:.4g}; mean {mean}"
    name, value = f"held-out certificate ({held_out['method']})", f"≤ {limit}"
    rigorous = yes(record["fresh"]["rigorous"])
    lines = [(name, value, rigorous, yes(held_out["vacuous"]), f"{says} of {held_out['tasks']:,} tasks")]
    if measured:
        lines.append(_reading("loss measured", interval(measured), f"95 % interval, {tasks_of(measured)}"))
    return lines


def _conformal(record: Record) -> list[Line]:
    sets, rigorous = record["conformal"], yes(record["fresh"]["rigorous"])
    if "threshold" not in sets:
        return []
    kind, size = ("sets", "labels in a set") if sets["score"] == "probability" else ("intervals", "mean width")
    limit = f"{SCORES[sets['score']]} ≤ {number(sets['threshold'])}"
    says = f"probability to hold the truth at a point of a new task; {limit}"
    lines = [(f"conformal {kind}", f"≥ {1 - sets['alpha']:.4g}", rigorous, yes(sets["vacuous"]), says)]
    for found in sets["measured"]:
        says = f"standard error, {tasks_of(found)}; {number(found['size'])} {size}"
        lines.append(_reading("coverage measured", coverage(found), says))
    return lines


def _single_tasks(record: Record) -> list[Line]:
    """Theorem 1, which bounds each task by itself: the mean over tasks, and for how many it says something."""
    if "theorem_1" not in record:
        return []
    found = record["theorem_1"]
    vacuous = f"{1 - found['not_vacuous']:.2%} of tasks"
    says = (
        f"mean over {found['tasks']:,} tasks, each with confidence {1 - found['delta']:.4g}; loss of one drawn "
        f"network, {found['loss']}; m = {found['examples']}, ε = {found['epsilon']:.4g}"
    )
    most, *_, least = found["quantiles"].values()
    drawn = f"mean over tasks, {found['samples']} networks each"
    return [
        (f"Theorem 1, {found['form']} form", number(found["bound"]["mean"]), yes(found["rigorous"]), vacuous, says),
        _reading("of most tasks", f"{number(most)} – {number(least)}", "5 % and 95 % quantiles over tasks"),
        _reading("KL[q ‖ p]", interval(found["kl"]), "nats, mean over tasks; upper bound"),
        _reading("loss on support", interval(found["support_loss"]), drawn),
        _reading("loss on queries", interval(found["query_loss"]), drawn),
    ]


def _theorem(theorem: Record) -> list[Line]:
    lines = []
    for bound in theorem.get("bounds", []):
        terms = " + ".join(f"{name} {number(value)}" for name, value in bound["terms"].items())
        says = f"{terms}; T = {bound['tasks']}, m = {bound['examples']}, ε = {bound['epsilon']:.4g}"
        value = ("≤ " if bound["rigorous"] else "") + number(bound["total"])  # an estimate is not below anything
        lines.append((f"Theorem 2, {bound['form']} form", value, yes(bound["rigorous"]), yes(bound["vacuous"]), says))
    for name, reading in theorem["bounds"][0]["readings"].items() if lines else ():
        if name != "loss":  # which is among the terms
            lines.append(_reading(name, number(reading["value"]), reading["worth"]))
    if "critic" in theorem:
        reading = theorem["critic"]
        noise = "" if reading["reliable"] else ", so this is noise"
        says = f"lower estimate, no KL; no more than ln(m_φ) = {reading['ceiling']:.2f} can be read{noise}"
        lines.append(_reading("critic's reading", number(reading["value"]), says))
    return lines


def _reading(name: str, value: str, says: str) -> Line:
    """A line below a statement; it claims nothing."""
    return f"  {name}", value, ABSENT, ABSENT, says


def tasks_of(measured: Record) -> str:
    """On how many tasks something was measured, and which.

    >>> tasks_of({"tasks": 1000, "on": "other tasks"}), tasks_of({"tasks": 1000, "on": "other classes"})
    ('1,000 other tasks', '1,000 tasks of other classes')
    """
    which = {"other tasks": "other tasks", "each left out": "tasks, each left out in turn"}.get(measured["on"])
    return f"{measured['tasks']:,} {which or 'tasks of ' + measured['on']}"


def number(value: float | None) -> str:
    """Four significant digits; None is infinite.

    >>> number(0.123456), number(1234567.0), number(None)
    ('0.1235', '1,234,567', '∞')
    """
    if value is None:
        return "∞"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def coverage(found: Record) -> str:
    """The measured coverage of sets and its standard error."""
    return f"{found['coverage']:.4f}" + (f" ± {found['error']:.4f}" if "error" in found else "")


def yes(fact: bool) -> str:
    """A fact in a cell: yes or no."""
    return "yes" if fact else "no"


# Several runs


def require_place(page: Path) -> None:
    """Refuse a page that has no place for the tables."""
    if not page.is_file() or page.read_text(encoding="utf-8").count(BEGIN) != 1 or END not in page.read_text():
        raise FewsureError(f"expected {page} to be a page with the lines `{BEGIN}` and `{END}`; write them into it")


def read_results(path: Path) -> list[dict[str, Any]]:
    """The list of objects in a file; empty if there is none yet."""
    if not path.is_file():
        return []
    try:
        return [dict(record) for record in from_json(path.read_text(encoding="utf-8"))]
    except (ValueError, TypeError) as error:
        raise FewsureError(f"{path} cannot be read ({error}); choose another --results") from error


def keep(record: Record, results: Path, page: Path | None) -> None:
    """Put an object into the list, in place of the one with the same names, and the list into the page."""
    names = [record.get(name) for name in SAME]
    others = [other for other in read_results(results) if [other.get(name) for name in SAME] != names]
    records = sorted([*others, dict(record)], key=lambda one: [str(one.get(name)) for name in SAME])
    results.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(results, json.dumps(records, indent=1) + "\n")
    if page is not None:
        text = page.read_text(encoding="utf-8")
        before, rest = text.split(BEGIN)
        write_atomically(page, f"{before}{BEGIN}\n\n{certificates_section(records)}\n\n{END}{rest.split(END, 1)[1]}")


def certificates_section(records: Sequence[Record]) -> str:
    """The tables: held-out certificates, coverage, Theorem 2, and what they took."""
    functions = (display_name, setting, tasks_of, number, interval, coverage, yes)
    template = templates("fewsure.report").get_template("certificates.md")
    return template.render({function.__name__: function for function in functions}, records=records).strip()
