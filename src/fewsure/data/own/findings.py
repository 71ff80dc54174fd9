"""What `fewsure data check` finds, in a data set as in data of a user's own: the facts of a split, and all as text."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fewsure.errors import FewsureError

SHOWN = 10
"""Unusable files that are named in the text; --json has them all."""
Result = dict[str, Any]


def counted(examples: Mapping[str, int]) -> Result:
    """How many classes or tasks (units) a split has, and how many examples each of them.

    >>> counted({"oak": 7, "elm": 5})["smallest"]
    {'name': 'elm', 'examples': 5}
    """
    if not examples:
        raise FewsureError("expected examples for training, validation and testing, but one of them has none")
    ends = {
        "smallest": min(examples, key=lambda name: (examples[name], name)),
        "largest": max(examples, key=lambda name: examples[name]),
    }
    return {
        "units": len(examples),
        "examples": sum(examples.values()),
        **{end: {"name": name, "examples": examples[name]} for end, name in ends.items()},
        "median": int(np.median(list(examples.values()))),
    }


def check_text(result: Result) -> str:
    """For people."""
    unusable = result.get("unusable", [])
    lines = [f"{result['path']}: {result['what']}" + (f", {len(unusable)} unusable files" if unusable else "")]
    lines += [f"  {name}: {what}" for name, what in result.get("columns", {}).items()]
    if sizes := result.get("sizes"):
        first, *more = sizes
        lines.append(
            f"{first['images']} images of {first['width']}×{first['height']} pixels"
            + (f", and {len(more)} other sizes; all are resized to --image-size" if more else "")
        )
    if splits := result["splits"]:
        lines += [_splits(splits, result["unit"]), _possible(result)]
    else:
        lines.append(
            "name what to predict: --target COLUMN --task-column COLUMN for numbers, or --label COLUMN for classes"
        )
    if "files" in result:
        lines.append(f"{result['files_compared']} of {result['files']} files listed in SHA256SUMS, and as it says")
        has_groups = any(facts["groups"] for facts in splits.values())
        lines.append(f"groups in two splits: {len(result['groups_in_two_splits'])}" if has_groups else "no groups")
    lines += [f"warning: {warning}" for warning in result.get("warnings", [])]
    lines += [f"unusable: {item['file']}: {item['why']}" for item in unusable[:SHOWN]]
    hidden = len(unusable) - SHOWN
    return "\n".join([*lines, *([f"and {hidden} more; --json names them all"] if hidden > 0 else [])])


def _splits(splits: Mapping[str, Result], unit: str) -> str:
    rows = [["split", unit, "examples", "smallest", "largest"]]
    described = all("shape" in facts for facts in splits.values())
    rows[0] += ["example", "groups", "checksum"] if described else []
    for split, facts in splits.items():
        ends = [f"{facts[end]['examples']} ({facts[end]['name']})" for end in ("smallest", "largest")]
        row = [split, f"{facts['units']:,}", f"{facts['examples']:,}", *ends]
        if described:
            size = "×".join(map(str, facts["shape"]))
            row += [f"{size} {facts['dtype']}", str(facts["groups"] or "–"), facts["checksum"][:12]]
        rows.append(row)
    return laid_out(rows)


def _possible(result: Result) -> str:
    splits = result["splits"].values()
    most, typical = min(facts["smallest"]["examples"] for facts in splits), min(facts["median"] for facts in splits)
    one = "task" if result["unit"] == "tasks" else "class"
    sizes = f"shot and query together up to {most} for every {one}"
    if typical > most and "files" not in result:  # the classes of a published data set are all drawn from
        sizes += f", up to {typical} for half of them (smaller ones are left out)"
    way = result.get("classes_of_a_task") or min(facts["units"] for facts in splits)
    return f"possible: {sizes}" if one == "task" else f"possible: up to {way} classes a task (way); {sizes}"


def laid_out(rows: Sequence[Sequence[str]]) -> str:
    """Rows of cells, in columns."""
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )
