"""Several processes: the numbers of one, one that writes, and an end with a message when one is killed."""

from typing import Any

import pytest
import torch

from fewsure.errors import FewsureError
from fewsure.training import distributed

from .reliability import short


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    return short.found(equality="ranks.equality((2, 4), updates=4)", killed="ranks.killed_fork(updates=100)")


@pytest.mark.parametrize("processes", [2, 4])
@pytest.mark.parametrize("method", ["simpa", "maml"])
def test_several_processes_train_evaluate_and_certify_as_one_does(
    found: dict[str, Any], method: str, processes: int
) -> None:
    difference = found["equality"][f"{method}, {processes} processes"]
    assert difference["weights"] < 1e-9  # Adam divides by small numbers
    assert difference["logged"] < 1e-12
    assert difference["evaluated_tasks"] < 1e-9
    assert difference["certificate"] < 1e-9


def test_the_others_end_soon_with_a_message_when_one_is_killed_and_all_can_be_resumed(found: dict[str, Any]) -> None:
    killed = found["killed"]
    assert killed["codes"] == [2, -9]
    assert killed["seconds"] < 60
    assert 0 < killed["stopped_at"] < 100
    assert killed["resumed"] == [0, 0]
    assert killed["equal"]


@pytest.mark.parametrize("processes", [1, 2, 3, 7])
def test_shares_cover_all_tasks_once(processes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(distributed, "processes", lambda: processes)
    taken: list[int] = []
    sizes = set()
    for number in range(processes):
        monkeypatch.setattr(distributed, "rank", lambda number=number: number)
        own = list(range(20))[distributed.share(20)]
        taken += own
        sizes.add(len(own))
    assert taken == list(range(20))
    assert max(sizes) - min(sizes) <= 1


def test_more_processes_than_tasks_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(distributed, "processes", lambda: 4)
    with pytest.raises(FewsureError, match="at least the number of processes, but got 3 and 4"):
        distributed.require_enough(3)


def test_one_process_needs_nobody() -> None:
    with distributed.together("cpu") as device:
        assert device == torch.device("cpu")
        assert distributed.is_first()
        tree = {"a": torch.ones(2)}
        assert distributed.weighted_sum(tree, 1.0) is tree
        assert (distributed.any_of(True), distributed.any_of(False), distributed.of_first(2.5)) == (True, False, 2.5)
        found = distributed.share_out([2, 1], int, lambda size: {"x": torch.full((size,), size)}, lambda done: None)
        assert found["x"].tolist() == [2, 2, 1]
