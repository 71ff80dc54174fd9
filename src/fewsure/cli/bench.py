"""Time the meta-updates of every method: updates and tasks a second, memory, arithmetic, and how the cost grows.

Each update draws fresh tasks and does all that training does. Beside it stands a straightforward program: one task
after another, kernel by kernel, with a copy of everything for each task. All ratios are of one run on one machine.

examples:
  fewsure bench --kinds sine-line --seconds 2
  fewsure bench --device cpu --kinds sine-line "conv4 28x28" --peers --scaling \
      --results results/bench-cpu.json
  fewsure bench --device cuda --precisions tf32 bf16 --scaling \
      --results results/bench-h200.json --page docs/results/speed.md
"""

import json
from dataclasses import dataclass
from pathlib import Path

from fewsure.bench.measure import Plan, measure
from fewsure.bench.page import bench_page, bench_table
from fewsure.cli.common import Common, parse_groups
from fewsure.core.devices import find_device


@dataclass(frozen=True, kw_only=True)
class Options(Common):
    """`fewsure bench`, beside those of the plan."""

    results: Path | None = None
    """Where the measurements go as JSON."""
    page: Path | None = None
    """Where they go as a Markdown page."""


def main(arguments: list[str]) -> None:
    """Measure, write the page, and print the figures."""
    options, groups = parse_groups("bench", Options, arguments, __doc__, plan=Plan())
    record = measure(groups["plan"], find_device(options.device), options.results)
    if options.page is not None:
        bench_page([record], options.page)
    print(json.dumps(record) if options.json else bench_table(record))
