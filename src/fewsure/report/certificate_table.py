"""The certificates of a run as plain text: what each statement says, whether it is rigorous, whether it is vacuous."""

from collections.abc import Mapping
from typing import Any

from fewsure.report.tables import ABSENT, in_columns

Record = Mapping[str, Any]
"""An object as `fewsure.certification.certify.certify_run` returns it."""
Line = tuple[str, str, str, str, str]

HEADERS: Line = ("statement", "value", "rigorous", "vacuous", "")
APART = "Each statement holds on its own; they are not guaranteed jointly."
SCORES = {"probability": "1 − p", "scaled residual": "|y − mean| / spread", "residual": "|y − mean|"}


def certificate_table(record: Record) -> str:
    """The environment, the statements in columns, and why there is none, or why one is not rigorous."""
    title = "\n".join(certificate_title(record))
    return "\n".join([title, "", in_columns([HEADERS, *certificate_lines(record)]), "", *certificate_notes(record)])


def certificate_title(record: Record) -> list[str]:
    """What the statements are about."""
    return [record["environment"], f"assumed: {record['assumed']}", f"loss: {record['loss']}"]


def certificate_lines(record: Record) -> list[Line]:
    """The statements."""
    return [*_held_out(record), *_conformal(record["conformal"]), *_theorem(record["theorem_2"])]


def certificate_notes(record: Record) -> list[str]:
    """Why there is no statement of a kind, and why one is not rigorous."""
    notes = [str(record[part]["reason"]) for part in ("conformal", "theorem_2") if "reason" in record[part]]
    for bound in record["theorem_2"].get("bounds", [])[:1]:
        notes.append(f"Theorem 2 is {'rigorous' if bound['rigorous'] else 'not rigorous'}: {bound['reason']}")
    return [*notes, APART]


def _held_out(record: Record) -> list[Line]:
    held_out, measured = record["held_out"], record.get("measured")
    says = f"expected loss on a new task, with confidence {1 - held_out['delta']:.4g}; mean {held_out['mean']:.4f}"
    name = f"held-out certificate ({held_out['method']})"
    value = f"≤ {held_out['limit']:.4f}"
    lines = [(name, value, "yes", yes(held_out["vacuous"]), f"{says} of {held_out['tasks']:,} tasks")]
    if measured:
        value = f"{measured['mean']:.4f} ± {measured['ci95']:.4f}"
        lines.append(("  loss measured", value, ABSENT, ABSENT, f"95 % interval, {tasks_of(measured)}"))
    return lines


def _conformal(sets: Record) -> list[Line]:
    if "threshold" not in sets:
        return []
    what, size = ("sets", "labels in a set") if sets["score"] == "probability" else ("intervals", "mean width")
    says = (
        f"probability to hold the truth at a point of a new task; {SCORES[sets['score']]} ≤ {number(sets['threshold'])}"
    )
    lines = [(f"conformal {what}", f"≥ {1 - sets['alpha']:.4g}", "yes", yes(sets["vacuous"]), says)]
    for found in sets["measured"]:
        value = f"{found['coverage']:.4f} ± {found['error']:.4f}"
        says = f"standard error, {tasks_of(found)}; {number(found['size'])} {size}"
        lines.append(("  coverage measured", value, ABSENT, ABSENT, says))
    return lines


def _theorem(theorem: Record) -> list[Line]:
    lines = []
    for bound in theorem.get("bounds", []):
        terms = " + ".join(f"{name} {number(value)}" for name, value in bound["terms"].items())
        says = f"{terms}; T = {bound['tasks']}, m = {bound['examples']}, ε = {bound['epsilon']:.4g}"
        value = ("≤ " if bound["rigorous"] else "") + number(bound["total"])  # an estimate is not below anything
        lines.append((f"Theorem 2, {bound['form']} form", value, yes(bound["rigorous"]), yes(bound["vacuous"]), says))
    for name, reading in theorem["bounds"][0]["readings"].items() if lines else ():
        if name != "loss":  # which is among the terms
            lines.append((f"  {name}", number(reading["value"]), ABSENT, ABSENT, reading["worth"]))
    if "critic" in theorem:
        reading = theorem["critic"]
        noise = "" if reading["reliable"] else ", so this is noise"
        says = f"lower estimate, no KL; no more than ln(m_φ) = {reading['ceiling']:.2f} can be read{noise}"
        lines.append(("  critic's reading", number(reading["value"]), ABSENT, ABSENT, says))
    return lines


def tasks_of(measured: Record) -> str:
    """On how many tasks something was measured, and which.

    >>> tasks_of({"tasks": 1000, "on": "other tasks"}), tasks_of({"tasks": 1000, "on": "other classes"})
    ('1,000 other tasks', '1,000 tasks of other classes')
    """
    which = {"other tasks": "other tasks", "each left out": "tasks, each left out in turn"}.get(measured["on"])
    return f"{measured['tasks']:,} {which or 'tasks of ' + measured['on']}"


def number(value: float | None) -> str:
    """Four significant digits; null is infinite.

    >>> number(0.123456), number(1234567.0), number(None)
    ('0.1235', '1,234,567', '∞')
    """
    if value is None:
        return "∞"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def yes(fact: bool) -> str:
    """Or no."""
    return "yes" if fact else "no"
