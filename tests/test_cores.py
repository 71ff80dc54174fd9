"""Cores: small operations are done by one, whatever torch may use."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from fewsure.core.cores import LARGE, cores_that_pay, on_cores
from fewsure.training.update import MetaUpdate

from .helpers import assert_close
from .test_cpu_graph import trained


@pytest.fixture(autouse=True)
def two_threads() -> Iterator[None]:
    with on_cores(2):
        yield


@pytest.mark.parametrize(("numbers", "cores"), [(LARGE - 1, 1), (LARGE, 2)])
def test_the_largest_result_decides(numbers: int, cores: int) -> None:
    assert cores_that_pay(lambda: torch.ones(numbers).sum()) == cores
    assert torch.get_num_threads() == 2


def test_a_small_training_uses_one_and_ends_in_the_same_numbers_interrupted_or_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    used, make = set(), MetaUpdate._make_precisely

    def noted(self: MetaUpdate, size: object) -> None:
        used.add(torch.get_num_threads())
        make(self, size)  # type: ignore[arg-type]

    monkeypatch.setattr(MetaUpdate, "_make_precisely", noted)
    whole = trained(tmp_path / "whole")
    trained(tmp_path / "interrupted", stop_after=3)
    assert_close(trained(tmp_path / "interrupted"), whole, 0)
    assert used == {1}
    assert torch.get_num_threads() == 2
