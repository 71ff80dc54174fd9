"""Which runs are best, and which do not differ from the best significantly.

The paper tests its two best methods (under its Table 1). Here every run on the same tasks is tested against the best.
Means over tasks take the paired t-test. Calibration errors, which are pooled over tasks, take the paired bootstrap.
On a user's own data both go by what is independent: groups of rows, or classes.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from fewsure.evaluation.compare import SAME, SCORES, is_significant, same_fingerprints
from fewsure.evaluation.metrics.calibration import binned_errors, calibration_errors
from fewsure.evaluation.metrics.paired import PairedScores
from fewsure.evaluation.metrics.summary import TaskTotal
from fewsure.types import Records

ERRORS = ("ece", "mce")


def best_and_tied(results: Sequence[Mapping[str, Any]], records: Sequence[Iterable[Records]]) -> list[set[str]] | None:
    """For each run the scores in which it is best, or does not differ from the best (p ≥ 0.05) on the same tasks.

    None if the evaluations are of different tasks, which cannot be paired.
    """
    if any(result.get(name) != results[0].get(name) for result in results for name in SAME):
        return None
    best: dict[str, int] = {}
    for score in (*SCORES, *ERRORS):
        if all(score in result for result in results):
            values = [result[score] if score in ERRORS else result[score]["mean"] for result in results]
            best[score] = values.index(max(values) if score == "accuracy" else min(values))
    pairs = {(score, number): _Pair(score) for score in best for number in range(len(results)) if number != best[score]}
    for shards in zip(*records, strict=True):
        if not all(same_fingerprints(shards[0], shard) for shard in shards):
            return None
        for (score, number), pair in pairs.items():
            pair.add(shards[best[score]], shards[number])
    found = [
        {score for score in best if number == best[score] or pairs[score, number].may_be_equal()}
        for number in range(len(results))
    ]
    return [scores | ({"rmse"} if "mse" in scores else set()) for scores in found]


class _Pair:
    """One score of the best run and of another one."""

    def __init__(self, score: str) -> None:
        self._score = score
        self._values, self._reliability = PairedScores(), TaskTotal()

    def add(self, best: Records, other: Records) -> None:
        groups = best.get("groups")
        if self._score in ERRORS:
            both = torch.stack([best["reliability"].double(), other["reliability"].double()], dim=1)
            self._reliability.add(both, groups)
        else:
            self._values.add(best[self._score], other[self._score], groups)

    def may_be_equal(self) -> bool:
        """Whether p ≥ 0.05, or the 95 % interval of the difference of calibration errors, over resamples, holds 0.

        One group alone says nothing of others, and any two runs may be equal there.
        """
        if self._score not in ERRORS:
            return not is_significant(self._values.test())
        found = self._reliability.intervals(lambda mean: (self._error(mean[:, 0]) - self._error(mean[:, 1]),))
        return found is None or found[0][0] <= 0 <= found[0][1]

    def _error(self, mean: Tensor) -> Tensor:
        # Classification has bins (…, 3), regression the shares at each level.
        errors = binned_errors(mean) if mean.dim() == 3 else calibration_errors(mean)
        return errors[ERRORS.index(self._score)]
