"""The parts at full length, and where their figures go."""

import json
from collections.abc import Callable
from typing import Any

import torch

from fewsure.devices import device_name
from fewsure.files import write_atomically
from fewsure.version import __version__

from . import faults, fuzz, ranks
from .soak import soak

RESULTS = faults.ROOT / "results" / "reliability.json"
PAGE = faults.ROOT / "docs" / "reliability.md"
BEGIN, END = "<!-- reliability: begin -->", "<!-- reliability: end -->"
POINTS, INPUTS, MINUTES = 30, 120_000, 30.0

PARTS: dict[str, Callable[[float | None], dict[str, Any]]] = {
    "kills": lambda size: faults.kills(int(size or POINTS)),
    "full_disk": lambda size: faults.full_disk(),
    "power_cuts": lambda size: faults.power_cuts(),
    "processes": lambda size: ranks.equality() | {"killed": ranks.killed_rank()},
    "fuzz": lambda size: fuzz.fuzz(int(size or INPUTS)) | {"guided": fuzz.guided(int(size or INPUTS))},
    "soak": lambda size: soak(size or MINUTES),
}
"""Name → what it does at full length, or at another size."""


def keep(name: str, found: dict[str, Any]) -> None:
    """Put what a part has found into the results, and all of them into the page."""
    results = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.is_file() else {}
    made = {"version": __version__, "torch": torch.__version__, "device": device_name(torch.device("cpu"))}
    results[name] = found | {"made": made}
    write_atomically(RESULTS, json.dumps({part: results[part] for part in PARTS if part in results}, indent=1) + "\n")
    text = PAGE.read_text(encoding="utf-8")
    before, rest = text.split(BEGIN, 1)
    write_atomically(PAGE, f"{before}{BEGIN}\n\n{section(results)}\n\n{END}{rest.split(END, 1)[1]}")


def section(results: dict[str, Any]) -> str:
    """The figures as tables."""
    tables = {
        "kills": _faults_table,
        "full_disk": _faults_table,
        "power_cuts": _faults_table,
        "processes": _processes_table,
        "fuzz": _fuzz_table,
        "soak": _soak_table,
    }
    parts = [
        f"### {TITLES[name]}\n\n`python -m tests.reliability {name} --keep`\n\n{tables[name](results[name])}"
        for name in PARTS
        if name in results
    ]
    return "\n\n".join(parts)


TITLES = {
    "kills": "Kill −9",
    "full_disk": "Full disk",
    "power_cuts": "Power cut",
    "processes": "Several processes (gloo)",
    "fuzz": "Bad input",
    "soak": "A long run",
}
FAULTS = {
    "random": "killed at a random moment",
    "at_a_write": "broken at a system call that writes",
    "size_limit": "limit on the size of files",
    "small_file_system": "tmpfs of 1 MiB, nearly full, by `fewsure train`",
}


def _faults_table(found: dict[str, Any]) -> str:
    rows = {FAULTS[name]: found[name] for name in FAULTS if isinstance(found.get(name), dict)}
    if "trials" in found:
        rows = {"after each system call, four states of the disk": found}
    header = [
        "",
        "trials",
        "interrupted",
        "torn files",
        "unfinished last log lines",
        "ended as if nothing had happened",
    ]
    names = ("trials", "interrupted", "torn_files", "unfinished_last_lines", "ended_as_if_nothing_had_happened")
    return _table(header, [[title, *(str(row[name]) for name in names)] for title, row in rows.items()])


def _processes_table(found: dict[str, Any]) -> str:
    names = ("weights", "logged", "evaluated_tasks", "certificate")
    header = ["largest difference to one process", "weights", "logged", "evaluated tasks", "certificate"]
    pairs = {name: row for name, row in found.items() if isinstance(row, dict) and "weights" in row}
    table = _table(header, [[pair, *(f"{row[name]:.1e}" for name in names)] for pair, row in pairs.items()])
    killed, again = found["killed"], found["killed"]["restarted_by_torchrun"]
    return (
        f"{found['updates']} updates of {found['tasks']} tasks in {found['precision']}.\n\n{table}\n\n"
        f"A process of two killed with −9: the job ended after {killed['seconds_until_it_ended']} s with exit code "
        f"{killed['exit_code']} and the message `{killed['message']}`. Resumed, it ended in the same bytes: "
        f"{_yes(killed['equal'])}. With `--max-restarts=1`, torchrun restarted it by itself, to the same bytes: "
        f"{_yes(again['equal'])}."
    )


def _fuzz_table(found: dict[str, Any]) -> str:
    guided = found["guided"] if isinstance(found["guided"], dict) else {"readers": {}}
    rows = []
    for name, counts in found["readers"].items():
        other = guided["readers"].get(name, {})
        shown = [f"{counts[kind]:,}" for kind in ("read", "refused", "crashed")]
        rows.append([name, *shown, f"{other.get('inputs', 0):,}", str(other.get("crashed", "–"))])
    table = _table(["reader", "read", "refused", "crashed", "guided inputs", "crashed"], rows)
    total = f"{found['inputs']:,} files changed at random: {found['crashes']} crashes, {found['done_outside']} files "
    total += "written, programs run or connections made outside the target."
    if guided["readers"]:
        total += f" {guided['inputs']:,} more from atheris, which follows the coverage: {guided['crashes']} crashes, "
        total += f"{guided['done_outside']} outside."
    return f"{total}\n\n{table}"


def _soak_table(found: dict[str, Any]) -> str:
    memory, files = found["memory_mib"], found["descriptors"]
    rows = [
        ["minutes", f"{found['minutes']:.1f}"],
        ["updates", f"{found['updates']:,}"],
        ["memory after the warm-up, at the end, at most", ", ".join(f"{value:.1f} MiB" for value in memory.values())],
        [
            "slope of the memory",
            f"{found['slope_mib_per_hour']:.2f} ± {found['slope_standard_error']:.2f} MiB per hour",
        ],
        ["open files after the warm-up, at the end, at most", ", ".join(str(value) for value in files.values())],
        ["exit code after SIGTERM", str(found["exit_code"])],
    ]
    return _table(["", ""], rows)


def _table(header: list[str], rows: list[list[str]]) -> str:
    lines = [header, ["---"] + ["---:"] * (len(header) - 1), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def _yes(fact: bool) -> str:
    return "yes" if fact else "no"
