"""Which runs are best, and which are as good as the best as far as the tasks can tell.

The paper tests its two best methods (under its Table 1). Here every run on the same tasks is tested against the best:
means over tasks by the paired t-test, calibration errors, which are pooled over tasks, by the paired bootstrap.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from fewsure.comparison import SCORES, SIGNIFICANT
from fewsure.metrics.calibration import binned_errors, calibration_errors
from fewsure.metrics.paired import paired_t_test
from fewsure.metrics.summary import bootstrap_intervals

ERRORS = ("ece", "mce")
SAME = ("data", "way", "shot", "tasks", "stream", "seed")

Records = Mapping[str, Tensor]


def same_tasks(results: Sequence[Mapping[str, Any]], records: Sequence[Records | None]) -> bool:
    """Whether evaluations are of the same tasks, so that they can be paired."""
    if any(result.get(name) != results[0].get(name) for result in results for name in SAME):
        return False
    prints = [record["fingerprint"] for record in records if record is not None]
    return len(prints) == len(records) and all(
        one.shape == prints[0].shape and one.allclose(prints[0], rtol=1e-9) for one in prints
    )


def best_and_tied(results: Sequence[Mapping[str, Any]], records: Sequence[Records]) -> list[set[str]]:
    """For each run the scores in which it is best, or does not differ from the best (p ≥ 0.05) on the same tasks."""
    marked: list[set[str]] = [set() for _ in results]
    for score in SCORES:
        if all(score in result and score in record for result, record in zip(results, records, strict=True)):
            means = [float(result[score]["mean"]) for result in results]
            best = means.index(max(means) if score == "accuracy" else min(means))
            for number, record in enumerate(records):
                if number == best or _t_test(records[best][score], record[score]) >= SIGNIFICANT:
                    marked[number].add(score)
    for place, error in enumerate(ERRORS):
        errors = [float(result[error]) for result in results]
        best = errors.index(min(errors))
        for number, record in enumerate(records):
            if number == best or _may_be_equal(records[best]["reliability"], record["reliability"], place):
                marked[number].add(error)
    return marked


def _t_test(first: Tensor, second: Tensor) -> float:
    return paired_t_test(first, second)["p_value"]


def _may_be_equal(first: Tensor, second: Tensor, place: int) -> bool:
    """Whether the 95 % interval of the difference of two calibration errors, over resampled tasks, holds 0."""
    tasks = len(first)

    def errors(total: Tensor) -> Tensor:
        # Classification adds up bins (…, 3); regression averages the shares at each level.
        binned = total.dim() == 3
        return binned_errors(total)[place] if binned else calibration_errors(total / tasks)[place]

    both = torch.stack([first.double(), second.double()], dim=1)
    (interval,) = bootstrap_intervals(both, lambda total: (errors(total[:, 0]) - errors(total[:, 1]),))
    return interval[0] <= 0 <= interval[1]
