"""`fewsure certify`."""

import json
import sys
from dataclasses import dataclass
from pathlib import Path

from fewsure.certification.certify import Request, certify_run
from fewsure.certification.environment import Unit
from fewsure.cli.common import Common, command
from fewsure.core.distributed import is_first, process_group
from fewsure.errors import FewsureError
from fewsure.report.certificate_page import keep, read_results, require_place
from fewsure.report.certificate_table import certificate_table
from fewsure.theory.concentration import Method
from fewsure.training.runs import Run


@dataclass(frozen=True, kw_only=True)
class Certify(Common):
    """Say what is guaranteed of a trained run on new tasks: its loss, prediction sets with coverage, Theorem 2.

    Fresh tasks, from random streams that neither training nor `evaluate` uses, give an upper limit on the expected
    loss, and the thresholds of sets and intervals with coverage, which are kept in the run folder. Theorem 2 of the
    paper is printed with every term, and with whether it is rigorous and whether it says anything. docs/guarantees.md
    says what each statement assumes. Choose all options before you look; the best of several certificates is not one.

    examples:
      fewsure certify runs/simpa
      fewsure certify runs/simpa --tasks 10000 --delta 0.01 --alpha 0.05
      fewsure certify runs/omniglot --unit new-tasks              what carries over to classes that nobody has seen
      fewsure certify runs/simpa --verify 20000                   the loss on so many other tasks beside the certificate
    """

    run: Path
    """A run folder."""
    tasks: int | None = None
    """N, fresh tasks; `none` for 1,000, or with --unit new-tasks for as many as there are, if they are fewer."""
    delta: float = 0.05
    """δ: the certificate, and Theorem 2, each hold with confidence 1 − δ."""
    alpha: float = 0.1
    """α: prediction sets and intervals hold the truth with probability 1 − α."""
    method: Method = "betting"
    """How the expected loss is bounded: `betting` adapts to the spread of the losses, `chernoff` is tight where a loss
    is 0 or 1, `both` pays for the better of the two with half of δ each."""
    unit: Unit | None = None
    """What a new task is: another draw of the same sampler, classes and groups (`tasks`), or one of new classes or of a
    new group (`new-tasks`), which assumes that they are a random sample, and has fewer tasks, since none may share a
    class or a group; `none` for new-tasks on data of your own, and tasks elsewhere."""
    bound_samples: int = 200
    """Draws of θ, adaptation noise and z behind Theorem 2."""
    verify: int = 0
    """Measure the loss on so many other tasks, too, and show it beside the certificate."""
    seed: int = 0
    """Chooses tasks and noise, and the one draw of θ that the statements are about."""
    results: Path | None = None
    """Put the result into the list of objects in this JSON file, too."""
    page: Path | None = None
    """Show the list of --results as tables in this Markdown page, between its lines for certificates."""


def _certify(command: Certify) -> None:
    request = Request(
        tasks=command.tasks,
        delta=command.delta,
        alpha=command.alpha,
        method=command.method,
        unit=command.unit,
        bound_samples=command.bound_samples,
        verify=command.verify,
        seed=command.seed,
    )
    if command.page is not None:
        if command.results is None:
            raise FewsureError("expected --page together with --results, whose list it shows; add --results FILE")
        require_place(command.page)
    if command.results is not None:
        read_results(command.results)  # what cannot be read is refused before the work
    with process_group(command.device) as device:
        record = certify_run(Run.open(command.run), device, request, quiet=command.json)
        if is_first():
            if record["updates"] < record["planned_updates"]:
                of = f"checkpoint at {record['updates']:,} of {record['planned_updates']:,} updates"
                print(f"fewsure: {of}", file=sys.stderr)
            if command.results is not None:
                keep(record, command.results, command.page)
            print(json.dumps(record) if command.json else certificate_table(record))


CERTIFY = command("certify", Certify, _certify)
