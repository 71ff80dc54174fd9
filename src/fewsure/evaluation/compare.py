"""Two or more runs on the same tasks: which is better, and is it more than chance?"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from fewsure.errors import FewsureError
from fewsure.evaluation.metrics.paired import PairedScores, PairedTest
from fewsure.training.runs import Run
from fewsure.types import Records

SCORES = ("accuracy", "mae", "mse", "nll", "crps", "brier")
"""Scores with one value per task. Calibration errors are pooled over tasks, so they have no paired test."""
SAME = ("data", "way", "shot", "tasks", "stream", "seed")
SIGNIFICANT = 0.05


class Compared(NamedTuple):
    """One run against the first."""

    first: Run
    second: Run
    tasks: int
    groups: Mapping[str, Any]
    """How many `groups` the tasks are drawn from, and what is `grouped_by`; empty where tasks are independent."""
    transductive: tuple[bool, bool]
    """Whether each predicts a query set as a whole."""
    tests: Mapping[str, PairedTest]

    def record(self) -> dict[str, Any]:
        """As JSON values."""
        tests = {name: {**test, "significant": is_significant(test)} for name, test in self.tests.items()}
        return {
            "first": str(self.first.folder),
            "second": str(self.second.folder),
            "tasks": self.tasks,
            **self.groups,
            "transductive": list(self.transductive),
            "tests": tests,
        }


def compare_runs(runs: Sequence[Run]) -> list[Compared]:
    """Each run after the first against the first, by their evaluations, which must be of the same tasks."""
    if len(runs) < 2:
        raise FewsureError(f"expected two runs or more to compare, but got {len(runs)}")
    summaries = [_evaluation(run) for run in runs]
    return [
        _compared(runs[0], summaries[0], run, summary) for run, summary in zip(runs[1:], summaries[1:], strict=True)
    ]


def _evaluation(run: Run) -> dict[str, Any]:
    summary = run.evaluation()
    if summary is None:
        raise FewsureError(f"{run.folder} has not been evaluated; run `fewsure evaluate {run.folder}` first")
    return summary


def _compared(first: Run, one: Mapping[str, Any], second: Run, two: Mapping[str, Any]) -> Compared:
    for name in SAME:
        if one.get(name) != two.get(name):
            raise FewsureError(
                f"a paired test needs the same tasks, but `{name}` is {one.get(name)!r} in {first.folder} and "
                f"{two.get(name)!r} in {second.folder}; run `fewsure evaluate` on both with the same options"
            )
    scores = {name: PairedScores() for name in SCORES if name in one}
    for records, others in zip(first.evaluated_tasks(), second.evaluated_tasks(), strict=True):
        if not same_fingerprints(records, others):
            raise FewsureError(
                f"{first.folder} and {second.folder} were evaluated on different tasks, for instance on a CPU and on a "
                "GPU; run `fewsure evaluate` on both on one machine"
            )
        for run, found in ((first, records), (second, others)):
            if not scores.keys() <= found.keys():
                raise FewsureError(
                    f"the records in {run.folder} are another evaluation's; run `fewsure evaluate {run.folder}`"
                )
        for name, score in scores.items():
            score.add(records[name], others[name], records.get("groups"))
    transductive = (bool(one["transductive"]), bool(two["transductive"]))
    tests = {name: score.test() for name, score in scores.items()}
    groups = {name: one[name] for name in ("groups", "grouped_by") if name in one}
    return Compared(first, second, one["tasks"], groups, transductive, tests)


def is_significant(test: PairedTest) -> bool:
    """Whether chance alone would rarely give such a difference; never where nothing is known of chance."""
    return test["p_value"] is not None and test["p_value"] < SIGNIFICANT


def same_fingerprints(records: Records, others: Records) -> bool:
    """Whether records are of the same tasks."""
    one, two = records["fingerprint"], others["fingerprint"]
    return one.shape == two.shape and one.allclose(two, rtol=1e-9)
