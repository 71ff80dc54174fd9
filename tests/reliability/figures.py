"""The parts at full length, and where their figures go."""

import json
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from fewsure.core.devices import device_name
from fewsure.core.files import write_atomically
from fewsure.version import __version__

from . import faults, fuzz, ranks
from .soak import soak

RESULTS = faults.ROOT / "results" / "reliability.json"
PAGE = faults.ROOT / "docs" / "reliability.md"
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


def _fuzz(inputs: int) -> dict[str, Any]:
    return fuzz.fuzz(inputs, SEED) | {"guided": fuzz.guided(inputs)}


def _all_resumed(found: dict[str, Any]) -> bool:
    rows = [row for row in (found, *found.values()) if isinstance(row, dict) and "trials" in row]
    return all(row["torn_files"] == 0 and row["ended_as_if_nothing_had_happened"] == row["trials"] for row in rows)


def _processes_hold(found: dict[str, Any]) -> bool:
    names = ("weights", "logged", "evaluated_tasks", "certificate")
    rows = [(row, TOLERANCE[kind]) for kind in TOLERANCE for row in _pairs(found[kind]).values()]
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
    rounds = [one for one in (found, found["guided"]) if isinstance(one, dict)]
    return all(one["crashes"] == one["done_outside"] == 0 for one in rounds)


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
    "fuzz": Part(lambda size: _fuzz(int(size or INPUTS)), _fuzz_holds),
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
    tables = {
        "kills": _faults_table,
        "terminated": _terminated_line,
        "full_disk": _faults_table,
        "power_cuts": _faults_table,
        "processes": _processes_table,
        "fuzz": _fuzz_table,
        "soak": _soak_table,
    }
    parts = [
        f"### {TITLES[name]}\n\n{_command(name, results[name]['made'])}\n\n{tables[name](results[name])}"
        for name in PARTS
        if name in results
    ]
    return "\n\n".join(parts)


def _command(name: str, made: dict[str, Any]) -> str:
    """How the figures were made."""
    where = f"fewsure {made['version']}, torch {made['torch']}, {made['device']}, seed {made['seed']}"
    return f"`python -m tests.reliability {name} --keep` ({where}, {made['seconds']:,.0f} s)"


TITLES = {
    "kills": "Kill −9",
    "terminated": "SIGTERM",
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


def _terminated_line(found: dict[str, Any]) -> str:
    return (
        f"`fewsure train` stopped at update {found['stopped_at']} of {found['updates']} with exit code "
        f"{found['exit_code']} and {found['torn_files']} torn files. Resumed, it ended in the same bytes: "
        f"{_yes(found['equal'])}."
    )


def _pairs(found: dict[str, Any]) -> dict[str, Any]:
    """The rows of `ranks.equality`."""
    return {name: row for name, row in found.items() if isinstance(row, dict)}


def _processes_table(found: dict[str, Any]) -> str:
    names = ("weights", "critic_offset", "logged", "evaluated_tasks", "certificate")
    header = ["largest difference to one process", "weights", "critic's offset"]
    header += ["logged", "evaluated tasks", "certificate"]
    rows = [
        [f"{pair}, {kind}", *(f"{row[name]:.1e}" for name in names)]
        for kind in TOLERANCE
        for pair, row in _pairs(found[kind]).items()
    ]
    killed, again, stopped = found["killed"], found["killed"]["restarted_by_torchrun"], found["terminated"]
    return (
        f"{found['float64']['updates']} updates of {found['float64']['tasks']} tasks. Weights are all tensors of the "
        "checkpoint but one: a constant added to SImPa's critic changes nothing, so the gradient of that offset is "
        f"rounding alone, and Adam makes full steps of it. Nothing else depends on it.\n\n{_table(header, rows)}\n\n"
        f"A process of two killed with −9: the job ended after {killed['seconds_until_it_ended']} s with exit code "
        f"{killed['exit_code']} and the message `{killed['message']}`. Resumed, it ended in the same bytes: "
        f"{_yes(killed['equal'])}. With `--max-restarts=1`, torchrun restarted it by itself, to the same bytes: "
        f"{_yes(again['equal'])}. SIGTERM to torchrun: all stopped with a checkpoint at update {stopped['stopped_at']} "
        f"of {stopped['updates']}, torchrun ended with exit code {stopped['exit_code']}, and the job resumed to the "
        f"same bytes: {_yes(stopped['equal'])}."
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
