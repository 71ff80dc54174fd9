"""Evaluations as a table: plain text for a terminal or a pipe, and the rows that the page shows."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from fewsure.report.reference import PRINTED_TASKS, Printed, printed_once

HEADERS = ("method", "tasks", "samples", "MSE ± 95 %", "NLL ± 95 %", "ECE [95 %]", "MCE [95 %]")
ABSENT = "–"
_ABSENT_MEAN = f"{ABSENT:>3}"
COUNTS = slice(1, 3)
"""The columns of whole numbers."""


class TableRow(NamedTuple):
    """The cells of a row, padded so that decimal points stand below each other."""

    cells: tuple[str, ...]
    is_headline: bool = False
    """Measured here by the headline protocol; else it is the paper's, or has observation noise added."""


def evaluation_table(results: Sequence[Mapping[str, Any]]) -> str:
    """Objects as `evaluate` returns them, one row each, and below it the same with noise, and the paper's figures.

    A result's `label`, if it has one, names its row; else its algorithm does.
    """
    rows = [HEADERS, *(row.cells for row in evaluation_rows(results))]
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    counts = range(len(HEADERS))[COUNTS]
    lines = (
        "  ".join(
            cell.rjust(width) if column in counts else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    )
    return "\n".join(lines)


def evaluation_rows(results: Sequence[Mapping[str, Any]]) -> list[TableRow]:
    """The table below its headers."""
    rows = []
    for result, printed in zip(results, printed_once(results), strict=True):
        rows.append(_headline_row(result))
        if "with_noise" in result:
            rows.append(_noise_row(result))
        if printed is not None:
            rows.append(_paper_row(printed))
    return rows


def mean_cell(mean: Mapping[str, float]) -> str:
    """A mean over tasks and the half-width of its interval.

    >>> mean_cell({"mean": 2.0, "ci95": 0.1})
    '  2.000 ± 0.100'
    """
    return f"{mean['mean']:7.3f} ± {mean['ci95']:.3f}"


def _headline_row(result: Mapping[str, Any]) -> TableRow:
    cells = (
        _name(result),
        f"{result['tasks']:,}",
        f"{result['samples']:,}",
        mean_cell(result["mse"]),
        mean_cell(result["nll"]),
        _interval_cell(result["ece"], result["ece_ci95"]),
        _interval_cell(result["mce"], result["mce_ci95"]),
    )
    return TableRow(cells, is_headline=True)


def _noise_row(result: Mapping[str, Any]) -> TableRow:
    noisy = result["with_noise"]
    errors = (_interval_cell(noisy[name], noisy[f"{name}_ci95"]) for name in ("ece", "mce"))
    return TableRow((f"{_name(result)} + noise", f"{result['tasks']:,}", ABSENT, _ABSENT_MEAN, _ABSENT_MEAN, *errors))


def _name(result: Mapping[str, Any]) -> str:
    return str(result.get("label", result["algorithm"]))


def _paper_row(printed: Printed) -> TableRow:
    name, mse = f"paper: {printed.name}", f"{printed.mse:6.2f}"
    ece, mce = f"{printed.ece:.4f}", f"{printed.mce:.4f}"
    return TableRow((name, f"{PRINTED_TASKS:,}", ABSENT, mse, _ABSENT_MEAN, ece, mce))


def _interval_cell(value: float, interval: Sequence[float]) -> str:
    low, high = interval
    return f"{value:.4f} [{low:.4f}, {high:.4f}]"
