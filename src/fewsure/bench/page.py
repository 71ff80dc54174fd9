"""Measurements of `fewsure bench` as a table, and as a page with figures."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from fewsure.bench.cases import headline_cases
from fewsure.core.files import write_atomically
from fewsure.report.drawing import WIDTH, figure_png, tidy
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
    more += [
        f"simpa under {curve['precision']}: MSE {curve['mse']:.3f}, ECE {curve['ece']:.4f}, NLL {curve['nll']:.2f} "
        f"after {curve['updates'][-1]:,} updates"
        for curve in record["curves"]
    ]
    more += [
        f"{found['method']}: {found['tasks']:,} tasks evaluated in {found['seconds']:,.1f} s"
        for found in record["evaluations"]
    ]
    return "\n".join([head, "", table, *(["", *more] if more else [])])


def bench_page(record: Row, page: Path, on_cpu: Row | None = None) -> None:
    """Write the page, and its figures into `figures/` beside it; with the times of `benchmarks/vectorised.py`."""
    figures = page.parent / "figures"
    figures.mkdir(parents=True, exist_ok=True)
    if record["scaling"]:
        write_atomically(figures / "scaling.png", figure_png(_scaling_figure(record["scaling"])))
    if record["curves"]:
        write_atomically(figures / "precision.png", figure_png(_curves_figure(record["curves"])))
    text = (
        templates("fewsure.bench")
        .get_template("speed.md")
        .render(
            record=record,
            table=markdown_table,
            cases=_by_kind(record["cases"], _updates),
            counted=_by_kind(record["cases"], _counted),
            several=len({row["T"] for row in record["cases"]}) > 1,
            scaling=list(map(_scaling, record["scaling"])),
            curves=list(map(_curve, record["curves"])),
            evaluations=list(map(_evaluation, record["evaluations"])),
            on_cpu=on_cpu,
            cpu_cases=[_on_cpu(row) for row in on_cpu["cases"]] if on_cpu else [],
        )
    )
    write_atomically(page, text)


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


Shown = Callable[[Row, Row | None], str | None]
"""(measurements, MAML's on the same tasks) → a cell."""


def _by_kind(rows: Sequence[Row], shown: Shown) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Headers and lines of a table with a line for each method and a column for each kind of task."""
    kinds = list(dict.fromkeys(row["tasks"] for row in rows))
    several = len({row["T"] for row in rows}) > 1
    lines: dict[str, dict[str, str]] = {}
    for row in rows:
        name = row["method"] + (f", {row['precision']}" if row["precision"] != "tf32" else "")
        if cell := shown(row, _maml_beside(row, rows)):
            lines.setdefault(name + (f", T = {row['T']}" if several else ""), {})[row["tasks"]] = cell
    return ("method", *kinds), [(name, *(cells.get(kind, ABSENT) for kind in kinds)) for name, cells in lines.items()]


def _updates(row: Row, maml: Row | None) -> str:
    ratio = f" ({maml['updates_per_second'] / row['updates_per_second']:.2f})" if maml else ""
    faster = f", {row['speed_up']:,.0f}×" if row["reference_updates_per_second"] is not None else ""
    memory = f", {row['memory_gib']:.1f} GiB" if row["memory_gib"] is not None else ""
    return f"{row['updates_per_second']:,.1f}{ratio}{faster}{memory}"


def _counted(row: Row, maml: Row | None) -> str | None:
    """Measurements beside the paper's count, for the methods that it counts, relative to MAML."""
    cases = {(case.method, case.tasks): case for case in headline_cases()}
    case = cases.get((row["method"], row["tasks"]))
    if case is None or case.formula is None or maml is None or row["precision"] == "bf16" or row["method"] == "maml":
        return None
    counted = (at.with_options("training", tasks=row["T"]) for at in (case, cases["maml", row["tasks"]]))
    ours, mamls = (at.paper_count() for at in counted)
    ratios = (
        ours / mamls,
        row["operations"] / maml["operations"],
        maml["updates_per_second"] / row["updates_per_second"],
    )
    return " / ".join(f"{ratio:,.{1 if ratio < 100 else 0}f}" for ratio in ratios)


def _on_cpu(row: Row) -> tuple[str, ...]:
    times = (f"{1000 * row[way]:,.1f}" for way in ("vectorised", "loop"))
    return row["tasks"], row["method"], str(row["T"]), *times, f"{row['loop'] / row['vectorised']:.2f}", row["chosen"]


def _scaling(curve: Row) -> tuple[str, ...]:
    slopes = (f"{curve['slope']:.2f}", f"{curve['paper_slope']:.2f}")
    return curve["method"], curve["varied"], ", ".join(map(str, curve["values"])), *slopes


def _curve(curve: Row) -> tuple[str, ...]:
    scores = (f"{curve['mse']:.3f}", f"{curve['ece']:.4f}", f"{curve['nll']:.2f}")
    losses = (f"{median(curve['loss']):.2f}", f"{max(curve['loss']):.2f}")
    return curve["precision"], *scores, *losses, *_first_and_last(curve["memory_gib"])


def _evaluation(found: Row) -> tuple[str, ...]:
    sizes = (f"{found['tasks']:,}", str(found["samples"]))
    speed = (f"{found['seconds']:,.1f}", f"{found['tasks_per_second']:,.0f}")
    return found["method"], *sizes, *speed, *_first_and_last(found["memory_gib"])


def _first_and_last(memory: Sequence[float | None]) -> list[str]:
    return [ABSENT if value is None else f"{value:.4f}" for value in (memory[0], memory[-1])]


def _curves_figure(curves: Sequence[Mapping[str, Any]]) -> Figure:
    figure = Figure(figsize=(WIDTH, 3.5), layout="constrained")
    axes = figure.subplots()
    for curve in curves:
        axes.plot(curve["updates"], curve["loss"], label=curve["precision"])
    axes.set(yscale="log", xlabel="updates", ylabel="training loss")
    axes.legend(frameon=False)
    tidy(axes)
    return figure


def _scaling_figure(curves: Sequence[Mapping[str, Any]]) -> Figure:
    varied = list(dict.fromkeys(curve["varied"] for curve in curves))
    figure = Figure(figsize=(WIDTH, 6.5), layout="constrained")
    panels = figure.subplots(2, (len(varied) + 1) // 2, squeeze=False, sharey=True).flatten()
    for axes, name in zip(panels, varied, strict=False):
        for curve in curves:
            if curve["varied"] == name:
                milliseconds = [1000 * seconds for seconds in curve["seconds"]]
                axes.plot(curve["values"], milliseconds, "o-", label=f"{curve['method']}, slope {curve['slope']:.2f}")
        axes.set(xscale="log", yscale="log", xlabel=name)
        values = next(curve["values"] for curve in curves if curve["varied"] == name)
        axes.set_xticks(values, [str(value) for value in values])
        axes.xaxis.set_minor_locator(NullLocator())
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.yaxis.set_minor_locator(NullLocator())
        axes.legend(fontsize="small", frameon=False)
        tidy(axes)
    for axes in panels[len(varied) :]:
        axes.set_visible(False)
    figure.supylabel("ms per update")
    return figure
