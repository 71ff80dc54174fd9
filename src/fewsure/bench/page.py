"""Measurements of `fewsure bench` as a table, and as a page with figures."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from fewsure.bench.cases import headline_cases
from fewsure.bench.scaling import paper_count
from fewsure.core.files import write_atomically
from fewsure.report.drawing import WIDTH, figure_png, tidy
from fewsure.report.tables import Table, markdown_table

HEADERS = (
    *("tasks", "method", "precision", "T", "updates/s", "time ÷ MAML's", "tasks/s", "GiB"),
    *("TFLOP/s", "of peak", "plain program", "faster by"),
)


def bench_table(record: Mapping[str, Any]) -> str:
    """As text."""
    head = f"{record['device']}, torch {record['torch']}, {record['matrix_rate'] / 1e12:.2f} TFLOP/s in a large product"
    table = Table("", HEADERS, _rows(record), right=frozenset(range(3, len(HEADERS)))).text()
    more = [_growth_line(curve) for curve in record["scaling"]]
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


def bench_page(record: Mapping[str, Any], page: Path) -> None:
    """Write the page, and its figures into `figures/` beside it."""
    page.parent.mkdir(parents=True, exist_ok=True)
    lines = [
        "# Speed",
        "",
        f"Made by `fewsure bench` in {record['seconds']:,.0f} s on {record['device']} (fewsure {record['version']}, "
        f"torch {record['torch']}),",
        "together with the JSON of every figure; edit neither by hand.",
        "",
        "Every update draws fresh tasks and does all that training does: sampling, adaptation (5 steps, first order),",
        "meta-gradient, Adam. Medians over windows of updates, after a warm-up. TFLOP/s counts matrix products and",
        f"convolutions alone. The peak of all rows is a large product in `tf32`: {record['matrix_rate'] / 1e12:.1f}.",
        "The plain program runs one task after another, kernel by kernel, and copies everything for each task.",
        "",
        *markdown_table(HEADERS, _rows(record)),
        "",
    ]
    lines += _counted(record["cases"])
    if record["scaling"]:
        figures = page.parent / "figures"
        figures.mkdir(exist_ok=True)
        write_atomically(figures / "scaling.png", figure_png(_scaling_figure(record["scaling"])))
        lines += [
            "## How the cost grows",
            "",
            "Slopes of ln seconds over ln value: 1 is proportional. The last column is the slope of the count in the",
            "paper's complexity appendix over the same values; it counts work, and a GPU that is not full hides some.",
            "",
            *markdown_table(
                ("method", "varied", "values", "slope", "the paper's count"),
                [
                    (
                        curve["method"],
                        curve["varied"],
                        ", ".join(map(str, curve["values"])),
                        f"{curve['slope']:.2f}",
                        f"{curve['paper_slope']:.2f}",
                    )
                    for curve in record["scaling"]
                ],
            ),
            "",
            "![milliseconds of an update over T, inner steps, samples and width](figures/scaling.png)",
            "",
        ]
    write_atomically(page, "\n".join(lines + _curves(record, page) + _evaluations(record)))


def _counted(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """What the paper counts beside what is measured, of the methods that it counts, relative to MAML."""
    counted = ("maml", "abml", "vampire", "simpa, no KL", "simpa, moment KL", "simpa, critic KL")
    cases = {(case.method, case.tasks): case for case in headline_cases()}
    found = []
    for row in rows:
        case, base = cases.get((row["method"], row["tasks"])), _maml_beside(row, rows)
        if case is None or base is None or row["precision"] == "bf16" or not row["method"].startswith(counted):
            continue
        counts = [
            paper_count(at.with_options("training", tasks=row["T"])) for at in (case, cases["maml", row["tasks"]])
        ]
        ratios = (
            counts[0] / counts[1],
            row["operations"] / base["operations"],
            base["updates_per_second"] / row["updates_per_second"],
        )
        names = (row["tasks"], row["method"], row["precision"], str(row["T"]))
        found.append((*names, *(f"{ratio:,.2f}" for ratio in ratios)))
    return [
        "## The paper's count",
        "",
        "The paper's complexity appendix counts 100 n for a deterministic method, 440 n for a Gaussian posterior and",
        "125 n′ for SImPa in its practical setting, n the weights of the base network, n′ those of the generator. The",
        "same formulas at the settings above, beside the operations and the time that were measured, all relative to",
        "MAML's. It takes a pass over the generator for each example and for each sample of the KL.",
        "",
        *markdown_table(("tasks", "method", "precision", "T", "the paper's count", "operations", "time"), found),
        "",
    ]


def _curves(record: Mapping[str, Any], page: Path) -> list[str]:
    """Training under each precision: the curves, what they score, and the memory."""
    if not record["curves"]:
        return []
    figures = page.parent / "figures"
    figures.mkdir(exist_ok=True)
    write_atomically(figures / "precision.png", figure_png(_curves_figure(record["curves"])))
    rows = [
        (
            curve["precision"],
            f"{curve['mse']:.3f}",
            f"{curve['ece']:.4f}",
            f"{curve['nll']:.2f}",
            f"{median(curve['loss']):.2f}",
            f"{max(curve['loss']):.2f}",
            *(["–", "–"] if None in curve["memory_gib"] else _first_and_last(curve["memory_gib"])),
        )
        for curve in record["curves"]
    ]
    first = record["curves"][0]
    losses = ("training loss, median", "largest")
    headers = ("precision", "MSE", "ECE", "NLL", *losses, "GiB in use, early", "at the end")
    return [
        "## Precision",
        "",
        f"SImPa with the moment KL (64 samples) on sine-line, {first['updates'][-1]:,} updates from one seed, scored",
        f"on {first['validation_tasks']} validation tasks. `bf16` rounds SImPa's matrices alone. One seed each:",
        "what differs is chance as much as rounding. The training loss is a mean over tasks since the last point;",
        "inner gradients are not limited here, and a task that runs away shows as a peak.",
        "",
        *markdown_table(headers, rows),
        "",
        "![training loss under float32, tf32 and bf16](figures/precision.png)",
        "",
    ]


def _evaluations(record: Mapping[str, Any]) -> list[str]:
    if not record["evaluations"]:
        return []
    rows = [
        (
            found["method"],
            f"{found['tasks']:,}",
            str(found["samples"]),
            f"{found['seconds']:,.1f}",
            f"{found['tasks_per_second']:,.0f}",
            *(["–", "–"] if None in found["memory_gib"] else _first_and_last(found["memory_gib"])),
        )
        for found in record["evaluations"]
    ]
    headers = ("method", "tasks", "samples", "seconds", "tasks/s", "GiB in use, first shard", "last shard")
    return ["## Evaluation", "", *markdown_table(headers, rows), "", ""]


def _first_and_last(memory: Sequence[float]) -> list[str]:
    return [f"{memory[0]:.4f}", f"{memory[-1]:.4f}"]


def _curves_figure(curves: Sequence[Mapping[str, Any]]) -> Figure:
    figure = Figure(figsize=(WIDTH, 3.5), layout="constrained")
    axes = figure.subplots()
    for curve in curves:
        axes.plot(curve["updates"], curve["loss"], label=curve["precision"])
    axes.set(yscale="log", xlabel="updates", ylabel="training loss")
    axes.legend(frameon=False)
    tidy(axes)
    return figure


def _rows(record: Mapping[str, Any]) -> list[tuple[str, ...]]:
    return [_cells(row, _maml_beside(row, record["cases"]), record["matrix_rate"]) for row in record["cases"]]


def _maml_beside(row: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """MAML on the same tasks at the same precision; beside `bf16`, which does not change it, at that of the first."""
    maml = [other for other in rows if other["method"] == "maml" and _where(other) == _where(row)]
    alike = [other for other in maml if other["precision"] == row["precision"]]
    found = alike or (maml if row["precision"] == "bf16" else [])
    return found[0] if found else None


def _where(row: Mapping[str, Any]) -> tuple[Any, ...]:
    return row["tasks"], row["T"]


def _cells(row: Mapping[str, Any], maml: Mapping[str, Any] | None, roof: float) -> tuple[str, ...]:
    memory, reference = row["memory_gib"], row["reference_updates_per_second"]
    return (
        row["tasks"],
        row["method"],
        row["precision"],
        str(row["T"]),
        f"{row['updates_per_second']:,.1f}",
        "–" if maml is None else f"{maml['updates_per_second'] / row['updates_per_second']:.2f}",
        f"{row['tasks_per_second']:,.0f}",
        "–" if memory is None else f"{memory:.2f}",
        f"{row['operations_per_second'] / 1e12:.3f}",
        f"{row['operations_per_second'] / roof:.1%}",
        "–" if reference is None else f"{reference:,.2f}",
        "–" if reference is None else f"{row['speed_up']:,.1f}×",
    )


def _growth_line(curve: Mapping[str, Any]) -> str:
    return (
        f"{curve['method']}: grows with {curve['varied']} by the power {curve['slope']:.2f} "
        f"(the paper's count: {curve['paper_slope']:.2f})"
    )


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
