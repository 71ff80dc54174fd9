"""Certificates of several runs: a list of objects in a JSON file, and a table of them inside a Markdown page."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fewsure.core.config import from_json
from fewsure.core.files import write_atomically
from fewsure.errors import FewsureError
from fewsure.report.certificate_table import Record, number, tasks_of, yes
from fewsure.report.styles import display_name
from fewsure.report.tables import setting

BEGIN, END = "<!-- certificates, made by `fewsure certify --page` -->", "<!-- end of certificates -->"
SAME = ("algorithm", "data", "way", "shot", "preset", "train_seed", "unit")
"""What names an object of the list: one with the same values is replaced."""


def require_place(page: Path) -> None:
    """Refuse a page that has no place for the table."""
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
    return "\n\n".join(
        _table(headers, [row for record in records for row in rows(record)])
        for headers, rows in (
            (("run", "tasks", "mean loss", "certificate", "loss on other tasks", "above it by"), _held_out),
            (("run", "sets for", "coverage wanted", "measured", "on", "mean size"), _coverage),
            (("run", "Theorem 2", "loss", "R_i", "R_0", "total", "rigorous", "vacuous"), _theorem),
            (("run", "environment", "unit", "preset", "δ", "seed", "device", "seconds", "version"), _made),
        )
    )


def _held_out(record: Record) -> list[tuple[str, ...]]:
    held_out, measured = record["held_out"], record.get("measured")
    cells = (_name(record), f"{held_out['tasks']:,}", f"{held_out['mean']:.4f}", f"{held_out['limit']:.4f}")
    if measured is None:
        return [(*cells, "–", "–")]
    seen = f"{measured['mean']:.4f} ± {measured['ci95']:.4f} ({tasks_of(measured)})"
    return [(*cells, seen, f"{held_out['limit'] - measured['mean']:.4f}")]


def _coverage(record: Record) -> list[tuple[str, ...]]:
    sets = record["conformal"]
    return [
        (
            _name(record),
            "labels" if sets["score"] == "probability" else "values",
            f"{1 - sets['alpha']:.4g}",
            f"{found['coverage']:.4f} ± {found['error']:.4f}",
            tasks_of(found),
            number(found["size"]),
        )
        for found in sets.get("measured", [])
    ]


def _theorem(record: Record) -> list[tuple[str, ...]]:
    return [
        (
            _name(record),
            f"{bound['form']} form",
            *(number(value) for value in bound["terms"].values()),
            number(bound["total"]),
            yes(bound["rigorous"]),
            yes(bound["vacuous"]),
        )
        for bound in record["theorem_2"].get("bounds", [])
    ]


def _made(record: Record) -> list[tuple[str, ...]]:
    facts = (record["environment"], record["unit"], record["preset"], f"{record['held_out']['delta']:.4g}")
    took = (str(record["seed"]), record["device"], f"{record['seconds']:.0f}", record["version"])
    return [(_name(record), *facts, *took)]


def _name(record: Record) -> str:
    return f"{display_name(record['algorithm'])}, {setting(record)}"


def _table(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (headers, ["---"] * len(headers), *rows))
