"""Event files hold what metrics.jsonl holds, as TensorBoard itself reads them."""

import json
from pathlib import Path
from typing import Any

import pytest

from fewsure.cli.main import main
from fewsure.training.tensorboard import FOLDER

MAML = ["train", "maml", "--device", "cpu", "--json"]
TINY = ["--updates", "6", "--tasks", "2", "--checkpoint-every", "2", "--hidden", "4"]


def read(run: Path) -> Any:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    return EventAccumulator(str(run / FOLDER)).Reload()


def lines(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def test_events_hold_the_logged_numbers_and_a_resumed_run_none_twice(tmp_path: Path) -> None:
    run = tmp_path / "run"
    assert main([*MAML, *TINY, "--tensorboard", "--out", str(run)]) == 0
    logged, found = lines(run), read(run)
    names = set(logged[0]) - {"update", "device"}
    assert set(found.Tags()["scalars"]) == names
    assert [line["update"] for line in logged] == [2, 4, 6]
    for name in names:
        assert [(point.step, point.value) for point in found.Scalars(name)] == [
            (line["update"], pytest.approx(line[name], rel=1e-6)) for line in logged
        ]
    # Without its checkpoint the run starts anew: what was written before is forgotten.
    (run / "checkpoint.safetensors").unlink()
    assert main([*MAML, "--resume", "--checkpoint-every", "3", "--tensorboard", "--out", str(run)]) == 0
    assert [point.step for point in read(run).Scalars("loss")] == [line["update"] for line in lines(run)] == [3, 6]


def test_without_the_option_there_are_none(tmp_path: Path) -> None:
    assert main([*MAML, *TINY, "--out", str(tmp_path / "run")]) == 0
    assert not (tmp_path / "run" / FOLDER).exists()


def test_a_missing_package_is_one_line_and_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("fewsure.training.tensorboard.find_spec", lambda name: None)
    assert main([*MAML, *TINY, "--tensorboard", "--out", str(tmp_path / "run")]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith('run `pip install "fewsure[track]"`')
    assert not (tmp_path / "run").exists()
