"""Measurements of `fewsure bench` as a table, and as a page."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from fewsure.bench.cases import headline_cases
from fewsure.core.files import write_atomically
from fewsure.report.tables import ABSENT, Table, markdown_table
from fewsure.report.templating import templates

Row = Mapping[str, Any]

HEADERS = (
    *("tasks", "method", "precision", "T", "updates/s", "time ÷ MAML's", "tasks/s", "GiB"),
    *("TFLOP/s", "of peak", "plain program", "faster by"),
)


def bench_table(record: Row) -> str:
    """As text."""
    head = f"{record['device']}, torch {record['torch']}, {record['matrix_rate'] / 1e12:.2f} TFLOP/s in a large product"
    table = Table("", HEADERS, _cases(record), right=frozenset(range(3, len(HEADERS)))).text()
    more = [
        f"{curve['method']}: grows with {curve['varied']} by the power {curve['slope']:.2f} "
        f"(the paper's count: {curve['paper_slope']:.2f})"
        for curve in record["scaling"]
    ]
    return "\n".join([head, "", table, *(["", *more] if more else [])])


def bench_page(records: Sequence[Row], page: Path, sections: Sequence[str] = ()) -> None:
    """Write the page, with a part for each record, and other sections behind the first."""
    text = (
        templates("fewsure.bench")
        .get_template("speed.md")
        .render(table=markdown_table, parts=[_part(record) for record in records], sections=sections)
    )
    page.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(page, text)


def _part(record: Row) -> dict[str, Any]:
    """The precision that was timed first stands for each method on each kind of task."""
    cases = {(row["method"], row["tasks"], row["T"]): row for row in reversed(record["cases"])}
    rows = [row for row in record["cases"] if row in cases.values()]
    peers = record.get("peers", [])
    title = f"CPU, {record['threads']} cores" if record["device"] == "cpu" else record["device"]
    return {
        "title": title,
        "cases": _by_kind(rows),
        "notes": list(_notes(record, rows)),
        "peers": [_peer(row) for row in peers],
    }


def _notes(record: Row, rows: Sequence[Row]) -> Iterator[str]:
    """How it was measured, and a sentence or two on each other measurement."""
    sizes = {row["T"] for row in rows}
    yield (
        "Updates per second, and memory. An update draws fresh tasks and does all that training does, with 5 inner "
        "steps, first order."
    )
    precisions = " and ".join(dict.fromkeys(row["precision"] for row in rows))
    tasks = f", T = {rows[0]['T']} tasks an update" if len(sizes) == 1 else ""
    yield f"fewsure {record['version']}, torch {record['torch']}, {precisions}{tasks}. Medians after a warm-up."
    if times := [row["speed_up"] for row in rows if row["speed_up"] is not None]:
        yield (
            f"A plain program takes {min(times):,.2g} to {max(times):,.0f} times as long. It takes one task after "
            "another, kernel by kernel, and copies everything for each task."
        )
    if record["device"] == "cpu":
        yield from _share_of_peak(record, rows)
    if counted := [(row["method"], *found) for row in rows if (found := _counted(row, rows))]:
        name, count, operations, time = max(counted, key=lambda found: found[2])
        yield (
            f"The paper's complexity appendix counts {count:,.0f} times MAML's operations for {name}. "
            f"Measured are {operations:,.0f} times the operations and {time:,.0f} times the time."
        )
    if curves := [curve for curve in record["scaling"] if curve["varied"] == "T"]:
        powers = " and ".join(f"{curve['slope']:.2f} ({curve['method']})" for curve in curves)
        yield f"Time grows with T by the power {powers}. Below 1, a device that is not full does more in the same time."


def _share_of_peak(record: Row, rows: Sequence[Row]) -> Iterator[str]:
    """The share of the rate of large products for small networks, and of large convolutions for the others."""
    for kind in dict.fromkeys(row["tasks"] for row in rows):
        convolves = kind.startswith("conv")
        peak = record["convolution_rate" if convolves else "matrix_rate"]
        shares = [row["operations_per_second"] / peak for row in rows if row["tasks"] == kind]
        what = "large convolutions" if convolves else "large matrix products"
        yield f"On {kind}, methods reach {min(shares):.0%} to {max(shares):.0%} of the rate of {what} on this machine."


def _peer(row: Row) -> tuple[str, ...]:
    if "ours_images_per_second" in row:
        cells = [f"{row[f'{whose}_images_per_second']:,.0f} images/s" for whose in ("ours", "peer")]
    else:
        cells = [f"{1000 * row[f'{whose}_seconds']:,.3g} ms" for whose in ("ours", "peer")]
    return row["work"], row["peer"], *cells, f"{row['ratio']:.2f}×"


def _cases(record: Row) -> list[tuple[str, ...]]:
    return [_case(row, _maml_beside(row, record["cases"]), record["matrix_rate"]) for row in record["cases"]]


def _case(row: Row, maml: Row | None, roof: float) -> tuple[str, ...]:
    memory, reference = row["memory_gib"], row["reference_updates_per_second"]
    return (
        *(row["tasks"], row["method"], row["precision"], str(row["T"])),
        f"{row['updates_per_second']:,.1f}",
        ABSENT if maml is None else f"{maml['updates_per_second'] / row['updates_per_second']:.2f}",
        f"{row['tasks_per_second']:,.0f}",
        ABSENT if memory is None else f"{memory:.2f}",
        f"{row['operations_per_second'] / 1e12:.3f}",
        f"{row['operations_per_second'] / roof:.1%}",
        ABSENT if reference is None else f"{reference:,.2f}",
        ABSENT if reference is None else f"{row['speed_up']:,.1f}×",
    )


def _maml_beside(row: Row, rows: Sequence[Row]) -> Row | None:
    """MAML on the same tasks at the same precision; beside `bf16`, which does not change it, at that of the first."""
    maml = [
        other for other in rows if (other["method"], other["tasks"], other["T"]) == ("maml", row["tasks"], row["T"])
    ]
    alike = [other for other in maml if other["precision"] == row["precision"]]
    found = alike or (maml if row["precision"] == "bf16" else [])
    return found[0] if found else None


def _by_kind(rows: Sequence[Row]) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Headers and lines of a table with a line for each method and a column for each kind of task."""
    kinds = list(dict.fromkeys(row["tasks"] for row in rows))
    several = len({row["T"] for row in rows}) > 1
    lines: dict[str, dict[str, str]] = {}
    for row in rows:
        name = row["method"] + (f", T = {row['T']}" if several else "")
        memory = f", {row['memory_gib']:.1f} GiB" if row["memory_gib"] is not None else ""
        lines.setdefault(name, {})[row["tasks"]] = f"{row['updates_per_second']:,.4g}{memory}"
    return ("method", *kinds), [(name, *(cells.get(kind, ABSENT) for kind in kinds)) for name, cells in lines.items()]


def _counted(row: Row, rows: Sequence[Row]) -> tuple[float, float, float] | None:
    """The paper's count, the measured operations and the time of a method that it counts, relative to MAML."""
    cases = {(case.method, case.tasks): case for case in headline_cases()}
    case, maml = cases.get((row["method"], row["tasks"])), _maml_beside(row, rows)
    if case is None or case.formula is None or maml is None or row["precision"] == "bf16" or row["method"] == "maml":
        return None
    counted = (at.with_options("training", tasks=row["T"]) for at in (case, cases["maml", row["tasks"]]))
    ours, mamls = (at.paper_count() for at in counted)
    time = maml["updates_per_second"] / row["updates_per_second"]
    return ours / mamls, row["operations"] / maml["operations"], time
