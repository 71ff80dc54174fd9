"""Say what is guaranteed of a trained run on new tasks: its loss, prediction sets with coverage, Theorems 1 and 2.

Fresh tasks, from random streams that neither training nor `evaluate` uses, give an upper limit on the expected loss.
They also give the thresholds of sets and intervals with coverage, which are kept in the run folder. Theorem 1 bounds
the loss on each task for a method whose KL is finite (simpa-latent); Theorem 2 is of SImPa. Each is printed with its
terms, with whether it is rigorous and whether it says anything. docs/guarantees.md says what each statement assumes.
Choose all options before you look; the best of several certificates is not one.

examples:
  fewsure certify runs/simpa
  fewsure certify runs/simpa --tasks 10000 --delta 0.01 --alpha 0.05
  fewsure certify runs/omniglot --unit new-tasks              what carries over to classes that nobody has seen
  fewsure certify runs/simpa --shot 3 5 10                    for several numbers of examples
  fewsure certify runs/simpa --verify 20000                   the loss on so many other tasks beside the certificate
"""

import json
import sys
from dataclasses import dataclass
from pathlib import Path

from fewsure.certification.certify import Request, certify_run
from fewsure.cli.common import Common, parse_groups
from fewsure.core.distributed import is_rank_zero, process_group
from fewsure.errors import FewsureError
from fewsure.report.certificates import certificate_text, keep, read_results, require_place
from fewsure.training.runs import Run


@dataclass(frozen=True, kw_only=True)
class Options(Common):
    """`fewsure certify`, beside those of the certificate."""

    run: Path
    """A run folder."""
    results: Path | None = None
    """Put the result into the list of objects in this JSON file, too."""
    page: Path | None = None
    """Show the list of --results as tables in this Markdown page, between its lines for certificates."""


def main(arguments: list[str]) -> None:
    """Certify and print."""
    options, groups = parse_groups("certify", Options, arguments, __doc__, certificate=Request())
    if options.page is not None:
        if options.results is None:
            raise FewsureError("expected --page together with --results, whose list it shows; add --results FILE")
        require_place(options.page)
    if options.results is not None:
        read_results(options.results)  # what cannot be read is refused before the work
    with process_group(options.device) as device:
        record = certify_run(Run.open(options.run), device, groups["certificate"])
        if is_rank_zero():
            if record["updates"] < record["planned_updates"]:
                of = f"checkpoint at {record['updates']:,} of {record['planned_updates']:,} updates"
                print(f"fewsure: {of}", file=sys.stderr)
            records = [record, *record.get("also", [])]
            if options.results is not None:
                for one in records:
                    keep(one, options.results, options.page)
            print(json.dumps(record) if options.json else "\n\n".join(map(certificate_text, records)))
