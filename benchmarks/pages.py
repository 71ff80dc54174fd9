"""Write the pages of docs/results/ from results/*.json, and the tables of the README and of pages that hold more.

make results                 or: .venv/bin/python benchmarks/pages.py [--out FOLDER]
"""

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from math import hypot
from pathlib import Path
from statistics import mean
from typing import Any, NamedTuple

from fewsure.bench.page import bench_page
from fewsure.core.files import write_atomically
from fewsure.report.drawing import figure_png
from fewsure.report.reference import REFERENCE
from fewsure.report.styles import display_name, setting
from fewsure.report.tables import markdown_table
from fewsure.reproduce.assays_page import PUBLISHED, assays_figure, assays_page, top_table
from fewsure.reproduce.page import NEAREST, Part, data_page
from fewsure.reproduce.results import read_results
from fewsure.reproduce.run import results_figure

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "benchmarks"))
import closed_form_cost  # noqa: E402 (these are beside this file)
import everyday  # noqa: E402
import folds  # noqa: E402
import groups  # noqa: E402
import in_context  # noqa: E402
import intervals  # noqa: E402
import latent_bounds  # noqa: E402
import mini_imagenet  # noqa: E402
import omniglot_bound  # noqa: E402
import omniglot_cpu  # noqa: E402
import omniglot_latent  # noqa: E402
import own_tables  # noqa: E402
import photographs  # noqa: E402
import rounding  # noqa: E402
import task_cost  # noqa: E402
import unseen_groups  # noqa: E402
import vital_signs  # noqa: E402
from collapse import functions_figure, spread_figure, spread_table  # noqa: E402

RESULTS, README, COLLAPSE = ROOT / "results", ROOT / "README.md", ROOT / "docs" / "collapse.md"
LATENT = ROOT / "docs" / "methods" / "simpa-latent.md"
CLOSED_FORMS = ROOT / "docs" / "methods" / "closed-form.md"
MOLECULES = ROOT / "docs" / "how-to" / "molecules.md"
PAGES = {
    "sine-line": ("Results: sine-line", ("regression",)),
    "omniglot": ("Results: Omniglot", ("omniglot",)),
    "cifar-fs": (
        "Results: CIFAR-FS",
        ("cifar-fs-1shot", "cifar-fs-5shot", "features-cifar-fs-1shot", "features-cifar-fs-5shot"),
    ),
    "mini-imagenet": ("Results: mini-ImageNet", ("mini-imagenet-1shot", "mini-imagenet-5shot")),
}
"""Page → its title, and the targets of `fewsure reproduce` that it shows."""
POINTS = ("maml", "protonet")
"""Methods with one network for each task: the baselines where the paper and the exact posterior give none."""


class Score(NamedTuple):
    """One score of one method."""

    name: str
    mean: float
    ci95: float = 0.0
    """0 where no interval is printed."""

    def shown(self, digits: int) -> str:
        """With its interval."""
        interval = f" ± {self.ci95:.{digits}f}" if round(self.ci95, digits) else ""
        return f"{self.name} {self.mean:.{digits}f}{interval}"


MORE = {
    "sine-line": lambda: "\n".join([in_context.section(_read("in-context")), in_context.ensembles(_read("members"))]),
    "omniglot": lambda: "\n".join(
        [omniglot_cpu.section(_read("omniglot-cpu")), omniglot_latent.section(_read("omniglot-latent"))]
    ),
    "mini-imagenet": lambda: mini_imagenet.section(
        *(_read(name) if (RESULTS / f"{name}.json").is_file() else [] for name in mini_imagenet.NAMES)
    ),
}
"""Page → what follows the tables of its targets."""


def results_table(rows: Sequence[Sequence[str]]) -> str:
    """The README's table."""
    return markdown_table(("problem", "best of ours", "best baseline, or the paper", "better"), rows)


def worth(rows: Sequence[Sequence[str]]) -> str:
    """The same in a sentence.

    >>> worth([("", "", "", "ours"), ("", "", "", "the baseline"), ("", "", "", "ours")])
    'In [3 comparisons](#results) with the best baseline or the paper it is better in 2, worse in 1 and unclear in 0.'
    """
    better = [row[-1] for row in rows]
    counts = [better.count(name) for name in ("ours", "the baseline", "not clear")]
    return (
        f"In [{len(rows)} comparisons](#results) with the best baseline or the paper it is better in {counts[0]}, "
        f"worse in {counts[1]} and unclear in {counts[2]}."
    )


def comparisons() -> list[tuple[str, ...]]:
    """On each problem the best of ours beside the best baseline."""
    on_a_core = dict(in_context.entries(_read("in-context")))
    sine, exact, tnp = (
        {key: Score(name, **in_context.averaged(on_a_core[name], key)) for key in ("mse", "nll")}
        for name in ("SImPa-latent", "exact posterior", "TNP")
    )
    problem = "Sine and line, 5 examples"
    rows = [
        _row(f"{problem}: squared error", sine["mse"], exact["mse"], "sine-line", lowest=True),
        _row(f"{problem}: NLL", sine["nll"], tnp["nll"], "sine-line", lowest=True),
    ]
    for problem, page in (("Omniglot", "omniglot"), ("mini-ImageNet", "mini-imagenet")):
        for target in PAGES[page][1]:
            found = _rows(target)
            printed = [entry for entry in REFERENCE[setting(found[0])].items() if "accuracy" in entry[1]]
            name, best = max(printed, key=lambda entry: entry[1]["accuracy"]["mean"])
            paper = Score(f"{display_name(name)} in the paper", **best["accuracy"])
            kind = f"{problem}, 5-way {found[0]['shot']}-shot: accuracy"
            rows.append(_row(kind, _best(found, "accuracy"), paper, page))
    for target in PAGES["cifar-fs"][1][2:]:  # of features; images are shown by mini-ImageNet's
        found = _rows(target)
        ours = _best([row for row in found if row["algorithm"] not in POINTS], "accuracy")
        baselines = [_best([row for row in found if row["algorithm"] in POINTS], "accuracy")]
        baselines += [Score(name, **found[0][key]["accuracy"]) for key, name in NEAREST.items() if key in found[0]]
        problem = f"CIFAR-FS features, 5-way {found[0]['shot']}-shot: accuracy"
        rows.append(_row(problem, ours, max(baselines, key=lambda score: score.mean), "cifar-fs"))
    rows.append(_row("FS-Mol, 16 known molecules: ΔAUPRC", *_on_molecules(), "fs-mol"))
    tables = _read("own-tables")
    ours, others = (
        min(_over_tables(tables, kinds), key=lambda score: score.mean) for kinds in (("learner",), ("baseline", "peer"))
    )
    apart = _differ(tables, ours, others)
    rows.append(_row("Four tables of groups: mean NLL", ours, others, "tables", lowest=True, apart=apart))
    return rows


def _on_molecules() -> tuple[Score, Score]:
    """ΔAUPRC of our best method, and of the best that its data set's authors have published."""
    rows = [row for row in _rows("fs-mol") if row["support"] == 16]
    ours = max(rows, key=lambda row: row["delta_auprc"]["mean"])
    method, found = max(ours["against"].items(), key=lambda entry: entry[1]["delta_auprc"]["mean"])
    return Score(display_name(ours["label"]), **ours["delta_auprc"]), Score(PUBLISHED[method], **found["delta_auprc"])


def _over_tables(rows: Sequence[Mapping[str, Any]], kinds: Sequence[str]) -> list[Score]:
    """The NLL of each method of these kinds, averaged over the tables, whose test groups are independent."""
    found: dict[str, list[Mapping[str, float]]] = {}
    for row in rows:
        if row["kind"] in kinds and "nll" in row:
            found.setdefault(row["method"], []).append(row["nll"])
    return [
        Score(f"`{name}`", mean(one["mean"] for one in scores), hypot(*(one["ci95"] for one in scores)) / len(scores))
        for name, scores in found.items()
        if len(scores) == len(own_tables.PROBLEMS)
    ]


def _differ(rows: Sequence[Mapping[str, Any]], one: Score, other: Score) -> bool:
    """Whether two methods differ by more than chance over the same groups of all tables."""
    found = {(row["table"], f"`{row['method']}`"): row for row in rows}
    differences = [
        own_tables.difference(found[table, one.name], found[table, other.name], "nll") for table in own_tables.PROBLEMS
    ]
    return abs(sum(found["mean"] for found in differences)) > hypot(*(found["ci95"] for found in differences))


def _best(rows: Sequence[Mapping[str, Any]], key: str) -> Score:
    """The best method by a score that is averaged over seeds, as are the intervals."""
    scores = []
    for label in sorted({row["label"] for row in rows}):
        found = [row[key] for row in rows if row["label"] == label]
        scores.append(
            Score(display_name(label), mean(one["mean"] for one in found), mean(one["ci95"] for one in found))
        )
    return (min if key == "mse" else max)(scores, key=lambda score: score.mean)


def _row(
    problem: str, ours: Score, other: Score, page: str, *, lowest: bool = False, apart: bool | None = None
) -> tuple[str, ...]:
    """The better of two is named where their intervals do not meet; or where they are known to be `apart`."""
    if apart is None:
        apart = abs(ours.mean - other.mean) > ours.ci95 + other.ci95
    ours_wins = (ours.mean < other.mean) is lowest
    better = ("ours" if ours_wins else "the baseline") if apart else "not clear"
    digits = 3 if lowest else 4
    return f"[{problem}](docs/results/{page}.md)", ours.shown(digits), other.shown(digits), better


def _rows(target: str) -> list[dict[str, Any]]:
    return read_results(RESULTS / f"{target}.json")


def _is_recorded(name: str) -> bool:
    return (RESULTS / f"{name}.json").is_file()


def _read(name: str) -> Any:
    return json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))


def filled(text: str) -> str:
    """The README with its sentence and its table of results."""
    rows = comparisons()
    return _filled(text, {"worth": worth(rows), "results": f"\n{results_table(rows)}\n"})


def filled_collapse(text: str) -> str:
    """The page on SImPa's collapse with its tables."""
    return _filled(text, {"spread": f"\n{spread_table(_read('collapse'))}\n"})


def filled_latent(text: str) -> str:
    """The page on SImPa-latent with its costs."""
    return _filled(text, {"cost": f"\n{task_cost.table(_read('task-cost'))}\n"})


def filled_closed_forms(text: str) -> str:
    """The page on closed forms with their costs."""
    return _filled(text, {"cost": f"\n{closed_form_cost.table(_read('closed-form-cost'))}\n"})


def filled_molecules(text: str) -> str:
    """The page on molecules with the worth of a list."""
    return _filled(text, {"top": f"\n{top_table(_rows('fs-mol'))}\n"})


def filled_patients(text: str) -> str:
    """The page for those who have patients, with its tables."""
    record = _read("patients")
    return _filled(text, {name: f"\n{vital_signs.table(record, name)}\n" for name in vital_signs.SIGNS})


def filled_schools(text: str) -> str:
    """The page for those who have schools, with its tables."""
    parts = {"folds": folds.table(_read("folds")), "coverage": unseen_groups.table(_read("coverage"))}
    return _filled(text, {name: f"\n{part}\n" for name, part in parts.items()})


PROBLEMS = {
    MOLECULES: filled_molecules,
    ROOT / "docs" / "how-to" / "patients.md": filled_patients,
    ROOT / "docs" / "how-to" / "schools.md": filled_schools,
}
"""Pages for those who have a problem."""


def _filled(text: str, parts: Mapping[str, str]) -> str:
    for name, part in parts.items():
        begin, end = f"<!-- {name} -->", f"<!-- /{name} -->"
        before, rest = text.split(begin)
        text = f"{before}{begin}\n{part}\n{end}{rest.split(end)[1]}"
    return text


def main() -> None:
    """Write everything; with `--out`, without the README."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="a folder instead of docs/results, and nothing in the README")
    write(parser.parse_args().out)


def write(out: Path | None = None) -> None:
    """The pages with their figures, and the README's table if no folder is named."""
    folder = out or ROOT / "docs" / "results"
    (folder / "figures").mkdir(parents=True, exist_ok=True)
    for page, (title, targets) in PAGES.items():
        exact = _read("exact_posterior") if targets == ("regression",) else None
        parts = [Part(target, _rows(target), exact=exact) for target in targets]
        write_atomically(folder / f"{page}.md", data_page(title, parts, MORE[page]() if page in MORE else ""))
        for part in parts:
            write_atomically(folder / "figures" / f"{part.target}.png", figure_png(results_figure(part.rows)))
    figures = {
        "collapse-spread": spread_figure(_read("collapse")),
        "collapse-functions": functions_figure(_read("collapse")),
        "fs-mol": assays_figure(_rows("fs-mol")),
        "omniglot-latent": omniglot_latent.frontier_figure(_read("omniglot-latent")),
        "patients": vital_signs.figure(_read("patients")),
        "coverage": unseen_groups.figure(_read("coverage")),
    }
    for name, figure in figures.items():
        write_atomically(folder / "figures" / f"{name}.png", figure_png(figure))
    of_intervals = intervals.section(_read("intervals"))
    write_atomically(folder / "groups.md", groups.page(_read("groups")))
    write_atomically(folder / "photographs.md", photographs.page(_read("photographs")))
    write_atomically(folder / "tables.md", own_tables.page(_read("own-tables"), of_intervals))
    of_classes = omniglot_bound.section(_read("omniglot-bound"))
    write_atomically(folder / "bounds.md", latent_bounds.page(_read("latent-bounds"), of_classes))
    write_atomically(folder / "fs-mol.md", assays_page(_rows("fs-mol")))
    of_speed = {"everyday": everyday.section, "rounding": rounding.section}
    sections = [section(_read(name)) for name, section in of_speed.items() if _is_recorded(name)]
    records = [_read(name) for name in ("bench-cpu", "bench-h200") if _is_recorded(name)]
    bench_page(records, folder / "speed.md", sections)
    if out is None:
        pages = ((README, filled), (COLLAPSE, filled_collapse), (LATENT, filled_latent))
        for path, fill in (*pages, (CLOSED_FORMS, filled_closed_forms), *PROBLEMS.items()):
            write_atomically(path, fill(path.read_text(encoding="utf-8")))


if __name__ == "__main__":
    main()
