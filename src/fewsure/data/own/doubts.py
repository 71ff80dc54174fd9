"""Doubts about a user's own data: each in one line, with what to do. Nothing is refused here."""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from fewsure.data.own.rows import ALPHA, NEEDED, Rows
from fewsure.data.pools import Split

FEW = 10
"""So few groups or classes, fewer than this, are named."""
FAR = 1e6
"""A value so many spreads away from the others is named."""


def doubts_about_rows(rows: Rows) -> list[str]:
    """Rows that are there twice, and values that are far from all others."""
    if rows.x.ndim != 2:
        return []
    found = []
    parts = [rows.x.astype(np.float64), *(_numbers(part)[:, None] for part in (rows.y, rows.task) if part is not None)]
    different = len(np.unique(np.concatenate(parts, 1), axis=0))
    if different < len(rows.x):
        found.append(
            f"{rows.where}: {len(rows.x) - different:,} of {len(rows.x):,} rows are copies of others of their task; an "
            "example could be known and predicted at once, so leave the copies out"
        )
    columns = {name: rows.x[:, index] for index, name in enumerate(rows.columns or map(str, range(rows.x.shape[1])))}
    if rows.y.dtype.kind == "f":
        columns |= {"the target": rows.y}
        if len(np.unique(rows.y)) == 1:
            found.append(f"{rows.where}: the target is {rows.y[0]:g} in all rows, so there is nothing to learn")
    for name, values in columns.items():
        middle, spread = np.median(values), _spread(values)
        far = np.flatnonzero(np.abs(values - middle) > FAR * spread)
        if spread and len(far):
            found.append(
                f"{rows.where}: `{name}` has {values[far[0]]:g} in row {far[0] + 1}, over a million times the spread "
                f"of the others ({spread:.3g}) from them; leave the row out if it is a missing value"
            )
    return found


def doubts_about_splits(sizes: Mapping[Split, int], what: str, independent: int | None = None) -> list[str]:
    """Too few groups or classes (`what`) in all, or `independent` tasks to test on."""
    total, found = sum(sizes.values()), []
    if total < FEW:
        found.append(
            f"{total} {what} in all, {sizes['train']} of them to learn from and {sizes['test']} to test on: so few say "
            "little about a new one; add more"
        )
    if independent is not None and independent < NEEDED:
        most = f"they hold up to {100 * independent / (independent + 1):.0f} %" if independent > 1 else "there are none"
        found.append(
            f"{sizes['test']} {what} to test on make {independent} independent tasks: sets with coverage "
            f"{100 * (1 - ALPHA):g} % need {NEEDED}, {most}; hold out more with --shares, use `fewsure crossval`, or "
            f"add {what}"
        )
    return found


def _numbers(values: NDArray[np.generic]) -> NDArray[np.float64]:
    """Names as numbers, the same for the same."""
    return values.astype(np.float64) if values.dtype.kind == "f" else np.unique(values, return_inverse=True)[1]


def _spread(values: NDArray[np.float64]) -> float:
    low, high = np.quantile(values, [0.25, 0.75])
    return float(high - low) or float(np.median(np.abs(values - values.mean())))
