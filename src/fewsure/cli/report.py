"""Draw runs on one page: how good and how sure they are, beside each other and beside the paper.

Writes one self-contained HTML page, and its figures beside it as PNG and SVG files with the numbers as CSV. A run that
has not been evaluated yet is evaluated first. A run that is missing or damaged is named, and the others are shown.

examples:
  fewsure report runs/simpa runs/maml --out report.html
"""

import json
import sys
from dataclasses import dataclass
from pathlib import Path

from fewsure.cli.common import Common, parse
from fewsure.errors import require


@dataclass(frozen=True, kw_only=True)
class Options(Common):
    """`fewsure report`."""

    runs: tuple[Path, ...]
    """Run folders."""
    out: Path = Path("report.html")
    """The page; its figures land in a folder beside it, report_files."""
    tasks: int = 1000
    """Unseen tasks for runs that have not been evaluated."""
    baselines: bool = True
    """On data of your own, score what needs no meta-training on the same tasks, and say whether a run beats it."""
    seed: int = 0
    """Chooses those tasks, and the ones that are drawn."""


def main(arguments: list[str]) -> None:
    """Write the report and say where it is."""
    options = parse("report", Options, arguments, __doc__)
    require(options.tasks >= 2, "tasks", "at least 2", options.tasks)
    from fewsure.core.devices import find_device
    from fewsure.report.page import write_report

    device = find_device(options.device)
    written = write_report(
        options.runs, options.out, device, tasks=options.tasks, seed=options.seed, baselines=options.baselines
    )
    problems = [f"{problem.folder}: {problem.says}" for problem in written.problems]
    if options.json:
        files = [str(path) for path in (written.page, *written.figures)]
        print(json.dumps({"files": files, "problems": problems}))
        return
    for problem in problems:
        print(f"fewsure: {problem}", file=sys.stderr)
    figures = written.figures
    print(written.page)
    print(f"{len(figures)} files of figures in {figures[0].parent}" if figures else "no figures")
