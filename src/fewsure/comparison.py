"""Two or more runs on the same tasks: which is better, and is it more than chance?"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from torch import Tensor

from fewsure.errors import FewsureError
from fewsure.metrics.paired import PairedTest, paired_t_test
from fewsure.training.runs import Run

SCORES = ("accuracy", "mse", "nll", "brier")
"""What has one value per task. Calibration errors are pooled over tasks, so they have no paired test."""
SAME = ("data", "way", "shot", "tasks", "stream", "seed")
SIGNIFICANT = 0.05


class Compared(NamedTuple):
    """One run against the first."""

    first: Run
    second: Run
    tasks: int
    transductive: tuple[bool, bool]
    """Whether each predicts a query set as a whole."""
    tests: Mapping[str, PairedTest]

    def record(self) -> dict[str, Any]:
        """As JSON values."""
        tests = {name: {**test, "significant": test["p_value"] < SIGNIFICANT} for name, test in self.tests.items()}
        return {
            "first": str(self.first.folder),
            "second": str(self.second.folder),
            "tasks": self.tasks,
            "transductive": list(self.transductive),
            "tests": tests,
        }


def compare_runs(runs: Sequence[Run]) -> list[Compared]:
    """Each run after the first against the first, by their evaluations, which must be of the same tasks."""
    if len(runs) < 2:
        raise FewsureError(f"expected two runs or more to compare, but got {len(runs)}")
    results = [_evaluation(run) for run in runs]
    return [_compared(runs[0], results[0], run, result) for run, result in zip(runs[1:], results[1:], strict=True)]


def _evaluation(run: Run) -> tuple[dict[str, Any], dict[str, Tensor]]:
    summary = run.evaluation()
    if summary is None:
        raise FewsureError(f"{run.folder} has not been evaluated; run `fewsure evaluate {run.folder}` first")
    return summary, run.evaluation_records()


def _compared(
    first: Run,
    one: tuple[dict[str, Any], dict[str, Tensor]],
    second: Run,
    two: tuple[dict[str, Any], dict[str, Tensor]],
) -> Compared:
    (summary, records), (other_summary, other_records) = one, two
    for name in SAME:
        if summary.get(name) != other_summary.get(name):
            raise FewsureError(
                f"a paired test needs the same tasks, but `{name}` is {summary.get(name)!r} in {first.folder} and "
                f"{other_summary.get(name)!r} in {second.folder}; run `fewsure evaluate` on both with the same options"
            )
    if not records["fingerprint"].allclose(other_records["fingerprint"], rtol=1e-9):
        raise FewsureError(
            f"{first.folder} and {second.folder} were evaluated on different tasks, for instance on a CPU and on a "
            "GPU; run `fewsure evaluate` on both on one machine"
        )
    tests = {name: paired_t_test(records[name], other_records[name]) for name in SCORES if name in records}
    transductive = (bool(summary["transductive"]), bool(other_summary["transductive"]))
    return Compared(first, second, summary["tasks"], transductive, tests)
