"""`fewsure report`."""

import json
import sys
from dataclasses import dataclass
from pathlib import Path

from fewsure.cli.common import Common, command
from fewsure.core.devices import find_device
from fewsure.errors import require
from fewsure.report.page import write_report


@dataclass(frozen=True, kw_only=True)
class Report(Common):
    """Draw runs on one page: how good and how sure they are, beside each other and beside the paper.

    Writes one self-contained HTML page, and its figures beside it as PNG and SVG files with the numbers as CSV. A run
    that has not been evaluated yet is evaluated first. A run that is missing or damaged is named, and the others are
    shown.

    examples:
      fewsure report runs/simpa runs/maml --out report.html
    """

    runs: tuple[Path, ...]
    """Run folders."""
    out: Path = Path("report.html")
    """The page; its figures land in a folder beside it, report_files."""
    tasks: int = 1000
    """Unseen tasks for runs that have not been evaluated."""
    seed: int = 0
    """Chooses those tasks, and the ones that are drawn."""


def _report(command: Report) -> None:
    require(command.tasks >= 2, "tasks", "at least 2", command.tasks)
    written = write_report(
        command.runs,
        command.out,
        find_device(command.device),
        tasks=command.tasks,
        seed=command.seed,
        quiet=command.json,
    )
    problems = [(str(problem.folder), problem.says) for problem in written.problems]
    if command.json:
        files = [str(path) for path in (written.page, *written.figures)]
        print(json.dumps({"files": files, "problems": [f"{folder}: {says}" for folder, says in problems]}))
        return
    for folder, says in problems:
        print(f"fewsure: {folder}: {says}", file=sys.stderr)
    count = (
        f"{len(written.figures)} files of figures in {written.figures[0].parent}" if written.figures else "no figures"
    )
    print(f"{written.page}\n{count}")


REPORT = command("report", Report, _report)
