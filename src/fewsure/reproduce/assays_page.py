"""The results on FS-Mol as a table and as a Markdown page."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from matplotlib.figure import Figure

from fewsure.evaluation.metrics.paired import PairedScores
from fewsure.report.drawing import PANEL, QUIET, tidy
from fewsure.report.styles import display_name, run_styles
from fewsure.report.tables import ABSENT, Table, interval, markdown_table

Row = Mapping[str, Any]
REFERENCE = "random-forest"
REFERENCES = {REFERENCE: "random forest", "nearest-neighbours": "nearest neighbours"}
"""Methods that are fitted to the known molecules of an assay alone."""
PUBLISHED = {
    "knn": "nearest neighbours",
    "random-forest": "random forest",
    "gnn-st": "GNN, one task",
    "mat": "MAT",
    "gnn-mt": "GNN, multi-task",
    "maml-gnn": "MAML on a GNN",
    "protonet-gnn-ecfp": "ProtoNet on GNN + ECFP",
}
"""The methods of the authors' table."""
SCORES = {
    "NLL": "nll",
    "Brier": "brier",
    "ECE": "ece",
    "AUC": "auc",
    "actives in the top tenth": "top_tenth",
    "coverage of 90 % sets": "coverage",
    "size of sets": "set_size",
}

PAGE = """# Results: FS-Mol

With this page you can compare the methods on assays of molecules, see the limits of each figure, and run it again.

A task is a test assay: 16 to 128 molecules are known to be active or not, and all others are ranked. Inputs are the
2,048 bits of a fingerprint. [The page for chemists](../how-to/molecules.md).

## Ranking

ΔAUPRC: the area under the precision-recall curve, less the share of actives.

{ranking}

![ΔAUPRC by the number of known molecules, with the published methods](figures/fs-mol.png)

1. {assays} test assays, {draws} random stratified support sets of each size and assay, the same for each of our
   methods. The mean over support sets, then over assays. ± is a 95 % interval over assays.
2. *Published* rows are the authors' results on support sets of their own. Their inputs hold more than these bits:
   counts, and for some of them graphs and descriptors.
3. Options were chosen on validation assays and on training assays that were held out. Test assays were scored once.
4. The random forest has {trees} trees. Neighbours are the √m nearest of m by Tanimoto similarity. Both see an assay's
   known molecules alone.

## The best of ours, paired with each

{best} less the other method, assay by assay.

{paired}

## How sure, and how useful: {support} known molecules

{surety}

1. ECE pools the queries of all assays in 10 bins; brackets are a bootstrap's 95 % interval over assays, biased upwards.
2. A temperature, fitted on validation assays, divides the outputs of our methods. The votes of the random forest and of
   neighbours count as if there were one more for each class, so that no molecule is certain.
3. The top tenth holds the molecules of an assay with the highest chances. Its share of actives stands here, and
   {share:.3f} are active in all.
4. Sets should hold 90 % of the labels. Their threshold comes from the {validation} validation assays. A set of 2 says
   nothing.

{tops}

## Run it again

    fewsure reproduce fs-mol --seeds 1 --device cpu

Finished runs are kept, and `--only METHOD` does one of them. One training serves all numbers of known molecules.

## Single runs

{runs}
"""


def assays_table(rows: Sequence[Row]) -> Table:
    """ΔAUPRC by the number of known molecules, as it is printed."""
    supports = _supports(rows)
    headers = ("method", *(f"ΔAUPRC, {support} known" for support in supports))
    return Table("fs-mol", headers, _ranking(rows, supports))


def assays_page(rows: Sequence[Row]) -> str:
    """The page."""
    supports = _supports(rows)
    support, best = supports[0], _ordered(rows)[0]
    shown = [row for row in rows if row["support"] == support]
    values = {
        "ranking": markdown_table(
            ("method", *map(str, supports)), [*_ranking(rows, supports), *_published(rows, supports)]
        ),
        "best": _name(best),
        "paired": _paired(rows, best, supports),
        "surety": _surety(sorted(shown, key=lambda row: row["nll"]["mean"])),
        "tops": _tops(rows, supports),
        "support": support,
        "share": shown[0]["auprc"]["mean"] - shown[0]["delta_auprc"]["mean"],
        "runs": _runs(rows),
        **{name: rows[0][name] for name in ("assays", "draws")},
    }
    return PAGE.format(**values, trees=100, validation=39)


def assays_figure(rows: Sequence[Row]) -> Figure:
    """ΔAUPRC of each method by the number of known molecules; the published ones are dashed."""
    supports, ordered = _supports(rows), _ordered(rows)
    figure = Figure(figsize=(PANEL, 4.2), layout="constrained")
    axes = figure.subplots()
    styles = run_styles([row["label"] for row in ordered], [Path(_name(row)) for row in ordered])
    for row, style in zip(ordered, styles, strict=True):
        found = [one for support in supports if (one := _same(rows, row, support))]
        mean, width = ([one["delta_auprc"].get(part, 0) for one in found] for part in ("mean", "ci95"))
        sizes = [one["support"] for one in found]
        axes.errorbar(sizes, mean, width, fmt="o-", capsize=2, color=style.colour, label=_name(row))
    theirs = {row["support"]: row["against"] for row in rows}
    for method, name in PUBLISHED.items():
        sizes = [support for support in supports if method in theirs[support]]
        values = [theirs[support][method]["delta_auprc"]["mean"] for support in sizes]
        axes.plot(sizes, values, "--", color=QUIET, linewidth=0.8)
        if sizes:
            end = (sizes[-1], values[-1])
            axes.annotate(name, end, xytext=(6, -2), textcoords="offset points", fontsize=6, color=QUIET)
    axes.set(xlabel="known molecules", ylabel="ΔAUPRC", xscale="log", xticks=supports, xticklabels=supports)
    axes.minorticks_off()
    axes.legend(fontsize=7)
    tidy(axes)
    return figure


def top_table(rows: Sequence[Row]) -> str:
    """The share of actives in the tenth that the best method and the random forest rank first, and in all."""
    best, cells = _ordered(rows)[0], []
    reference = next(row for row in _ordered(rows) if row["label"] == REFERENCE)
    for support in _supports(rows):
        ours, theirs = (_same(rows, row, support) for row in (best, reference))
        if ours and theirs:
            share = ours["auprc"]["mean"] - ours["delta_auprc"]["mean"]
            gain = _difference(rows, best, reference, support, "top_tenth")
            cells.append(
                (str(support), _percent(share), *(_percent(one["top_tenth"]["mean"]) for one in (theirs, ours)), gain)
            )
    headers = (
        "known molecules",
        "active in all",
        "in the random forest's tenth",
        f"in the tenth of {_name(best)}",
        "gain",
    )
    return markdown_table(headers, cells)


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def _supports(rows: Sequence[Row]) -> list[int]:
    return sorted({row["support"] for row in rows})


def _ordered(rows: Sequence[Row]) -> list[Row]:
    """One row of each method and seed, at the fewest known molecules, the highest ΔAUPRC first."""
    fewest = [row for row in rows if row["support"] == _supports(rows)[0]]
    return sorted(fewest, key=lambda row: -row["delta_auprc"]["mean"])


def _name(row: Row) -> str:
    seed = f", seed {row['train_seed']}" if row["train_seed"] else ""
    return f"{REFERENCES.get(row['label']) or display_name(row['label'])}{seed}"


def _same(rows: Sequence[Row], row: Row, support: int) -> Row | None:
    """The row of the same run at another number of known molecules."""
    key = (row["label"], row["train_seed"], support)
    return next((one for one in rows if (one["label"], one["train_seed"], one["support"]) == key), None)


def _ranking(rows: Sequence[Row], supports: Sequence[int]) -> list[tuple[str, ...]]:
    def cell(row: Row, support: int) -> str:
        found = _same(rows, row, support)
        return ABSENT if found is None else interval(found["delta_auprc"], 3)

    return [(_name(row), *(cell(row, support) for support in supports)) for row in _ordered(rows)]


def _published(rows: Sequence[Row], supports: Sequence[int]) -> list[tuple[str, ...]]:
    theirs = {row["support"]: row["against"] for row in rows}
    return [
        (f"*published:* {name}", *(interval(theirs[support][method]["delta_auprc"], 3) for support in supports))
        for method, name in PUBLISHED.items()
        if all(method in theirs[support] for support in supports)
    ]


def _paired(rows: Sequence[Row], best: Row, supports: Sequence[int]) -> str:
    """The differences of one of our methods to the other ones, and to the published ones."""
    own = [row for row in _ordered(rows) if row is not best]
    lines = [
        (_name(row), *(_difference(rows, best, row, support, "delta_auprc") for support in supports)) for row in own
    ]
    for method, name in PUBLISHED.items():
        found = [(_same(rows, best, support) or {}).get("against", {}).get(method) for support in supports]
        if all(found):
            lines.append((f"*published:* {name}", *(_signed(one["difference"]) for one in found if one)))
    return markdown_table(("ΔAUPRC less that of", *map(str, supports)), lines)


def _difference(rows: Sequence[Row], first: Row, second: Row, support: int, score: str) -> str:
    pair = [_same(rows, row, support) for row in (first, second)]
    values = [torch.tensor(row["of_assays"][score]) for row in pair if row is not None]
    if len(values) < 2:
        return ABSENT
    scores = PairedScores()
    scores.add(*values)
    return _signed(scores.test()["difference"])


def _signed(mean: Mapping[str, Any]) -> str:
    """A difference with its sign, and its interval if there is one."""
    return f"{'+' if mean['mean'] >= 0 else ''}{interval(mean, 3)}".replace("-", "−")


def _surety(rows: Sequence[Row]) -> str:
    def cell(row: Row, score: str) -> str:
        if score != "ece":
            return interval(row[score], 3)
        ends = " [{:.3f}, {:.3f}]".format(*row["ece_ci95"]) if "ece_ci95" in row else ""
        return f"{row['ece']:.3f}{ends}"

    return markdown_table(
        ("method", *SCORES), [(_name(row), *(cell(row, score) for score in SCORES.values())) for row in rows]
    )


def _tops(rows: Sequence[Row], supports: Sequence[int]) -> str:
    """Actives in the top tenth at each number of known molecules, and the gain on the random forest."""
    reference = next((row for row in _ordered(rows) if row["label"] == REFERENCE), None)

    def cell(row: Row, support: int) -> str:
        found = _same(rows, row, support)
        if found is None or reference is None:
            return ABSENT
        gain = ABSENT if row is reference else _difference(rows, row, reference, support, "top_tenth")
        return f"{found['top_tenth']['mean']:.3f}" + f" ({gain})" * (gain != ABSENT)

    lines = [(_name(row), *(cell(row, support) for support in supports)) for row in _ordered(rows)]
    return markdown_table(("actives in the top tenth (less the random forest's)", *map(str, supports)), lines)


def _runs(rows: Sequence[Row]) -> str:
    headers = ("method", "seed", "updates", "training", "prediction", "device", "preset", "version")
    lines = []
    for row in _ordered(rows):
        seconds = sum(one["seconds"] for support in _supports(rows) if (one := _same(rows, row, support)))
        facts = (row["device"], row.get("preset", ABSENT), row["version"])
        times = (f"{row['updates']:,}", f"{row['train_seconds']:,.0f} s", f"{seconds:,.0f} s")
        lines.append((_name(row), str(row["train_seed"]), *times, *facts))
    return markdown_table(headers, lines)
