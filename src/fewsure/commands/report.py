"""`fewsure report`."""

import json
from dataclasses import dataclass
from pathlib import Path

from fewsure.commands.common import Common, command
from fewsure.devices import find_device
from fewsure.errors import require
from fewsure.report.page import write_report
from fewsure.training.runs import Run


@dataclass(frozen=True, kw_only=True)
class Report(Common):
    """Draw runs: predictions on unseen tasks, errors, reliability and calibration beside the paper's, learning curves.

    Writes one self-contained HTML page, and its figures as PNG files beside it. A run that has not been evaluated yet
    is evaluated first.

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
        [Run.open(folder) for folder in command.runs],
        command.out,
        find_device(command.device),
        tasks=command.tasks,
        seed=command.seed,
        quiet=command.json,
    )
    print(json.dumps({"files": [str(path) for path in written]}) if command.json else "\n".join(map(str, written)))


REPORT = command("report", Report, _report)
