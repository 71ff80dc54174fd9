"""The parts at full length, and where their figures go."""

import json
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch

from fewsure.core.devices import device_name
from fewsure.core.files import write_atomically
from fewsure.version import __version__

from . import faults, fuzz, ranks
from .soak import soak

RESULTS = faults.ROOT / "results" / "reliability.json"
PAGE = faults.ROOT / "docs" / "how-to" / "long-runs.md"
BEGIN, END = "<!-- reliability: begin -->", "<!-- reliability: end -->"
POINTS, INPUTS, MINUTES = 30, 120_000, 30.0

SEED = 0
TOLERANCE = {"float64": 1e-9, "float32": 1e-3}
"""Between one process and several: rounding, which Adam enlarges where it divides by small numbers."""
SLOPE = 20.0
"""MiB per hour: a leak of one checkpoint in each of a thousand would be more."""


class Part(NamedTuple):
    """One part."""

    measure: Callable[[float | None], dict[str, Any]]
    """At full length, or at another size."""
    holds: Callable[[dict[str, Any]], bool]
    """Whether what was found is as it should be."""


def _processes() -> dict[str, Any]:
    equal = {"float64": ranks.equality(), "float32": ranks.equality(double=False)}
    return equal | {"killed": ranks.killed_rank(), "terminated": ranks.terminated_job()}


def _all_resumed(found: dict[str, Any]) -> bool:
    rows = [row for row in (found, *found.values()) if isinstance(row, dict) and "trials" in row]
    return all(row["torn_files"] == 0 and row["ended_as_if_nothing_had_happened"] == row["trials"] for row in rows)


def _processes_hold(found: dict[str, Any]) -> bool:
    names = ("weights", "logged", "evaluated_tasks", "certificate")
    rows = [
        (row, tolerance)
        for kind, tolerance in TOLERANCE.items()
        for row in found[kind].values()
        if isinstance(row, dict)
    ]
    killed, again, terminated = found["killed"], found["killed"]["restarted_by_torchrun"], found["terminated"]
    return (
        all(row[name] < tolerance for row, tolerance in rows for name in names)
        and killed["seconds_until_it_ended"] < 60
        and killed["exit_code"] != 0
        and bool(killed["message"])
        and again["exit_code"] == 0
        and all(one["equal"] for one in (killed, again, terminated))
    )


def _fuzz_holds(found: dict[str, Any]) -> bool:
    return bool(found["crashes"] == found["done_outside"] == 0)


def _soak_holds(found: dict[str, Any]) -> bool:
    files = found["descriptors"]
    flat = abs(found["slope_mib_per_hour"]) < max(SLOPE, 3 * found["slope_standard_error"])
    return flat and files["last"] <= files["first"] and found["exit_code"] == found["expected_exit_code"]


PARTS: dict[str, Part] = {
    "kills": Part(lambda size: faults.kills(int(size or POINTS), seed=SEED), _all_resumed),
    "terminated": Part(lambda size: faults.terminated(), lambda found: found["equal"] and found["exit_code"] == 143),
    "full_disk": Part(lambda size: faults.full_disk(), _all_resumed),
    "power_cuts": Part(lambda size: faults.power_cuts(), _all_resumed),
    "processes": Part(lambda size: _processes(), _processes_hold),
    "fuzz": Part(lambda size: fuzz.fuzz(int(size or INPUTS), SEED), _fuzz_holds),
    "soak": Part(lambda size: soak(size or MINUTES), _soak_holds),
}


def keep(name: str, found: dict[str, Any], seconds: float) -> None:
    """Put what a part has found into the results, and all of them into the page."""
    results = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.is_file() else {}
    device = device_name(torch.device("cpu"))
    made = {"version": __version__, "torch": torch.__version__, "device": device, "seed": SEED, "seconds": seconds}
    results[name] = found | {"made": made}
    write_atomically(RESULTS, json.dumps({part: results[part] for part in PARTS if part in results}, indent=1) + "\n")
    text = PAGE.read_text(encoding="utf-8")
    before, rest = text.split(BEGIN, 1)
    write_atomically(PAGE, f"{before}{BEGIN}\n\n{section(results)}\n\n{END}{rest.split(END, 1)[1]}")


def section(results: dict[str, Any]) -> str:
    """The figures as tables."""
    return "\n\n".join(
        f"### {TITLES[name]}\n\n{_command(name, results[name]['made'])}\n\n{_tables(results[name])}"
        for name in PARTS
        if name in results
    )


TITLES = {
    "kills": "Kill −9",
    "terminated": "SIGTERM to `fewsure train`",
    "full_disk": "Full disk",
    "power_cuts": "Power cut after each system call, with four states of the disk",
    "processes": "Largest difference of several processes (gloo) to one; a process killed, torchrun terminated",
    "fuzz": "Bad input",
    "soak": "A long run",
}


def _command(name: str, made: dict[str, Any]) -> str:
    """How the figures were made."""
    where = f"fewsure {made['version']}, torch {made['torch']}, {made['device']}, seed {made['seed']}"
    return f"`python -m tests.reliability {name} --keep` ({where}, {made['seconds']:,.0f} s)"


def _tables(found: dict[str, Any]) -> str:
    """A table for all objects with the same keys, which become its columns."""
    tables: dict[tuple[str, ...], list[list[str]]] = {}
    for name, record in _records("", found):
        tables.setdefault(tuple(record), []).append([name, *map(_shown, record.values())])
    return "\n\n".join(
        _table(["", *(column.replace("_", " ") for column in columns)], rows) for columns, rows in tables.items()
    )


def _records(path: str, found: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """The plain values of an object, and those of the objects in it, each with the names that lead to it."""
    plain = {name: value for name, value in found.items() if not isinstance(value, dict)}
    if plain:
        yield path, plain
    for name, value in found.items():
        if isinstance(value, dict) and name != "made":
            yield from _records(", ".join(filter(None, (path, name.replace("_", " ")))), value)


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return ", ".join(map(_shown, value))
    return f"{value:,}" if isinstance(value, int) else f"{value:.3g}" if isinstance(value, float) else str(value)


def _table(header: list[str], rows: list[list[str]]) -> str:
    lines = [header, ["---"] + ["---:"] * (len(header) - 1), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)
