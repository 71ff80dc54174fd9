"""Results on standard output: ruled tables in a terminal, plain text in a pipe, the same numbers in both."""

import os
import pty
import re
import sys
from contextlib import suppress

import pytest

from fewsure.cli.main import main
from fewsure.evaluation.compare import Compared, compare_runs
from fewsure.pipeline import evaluate_run
from fewsure.report.evaluation_tables import comparison_table, evaluation_tables, training_table
from fewsure.report.tables import Table, print_tables
from fewsure.training.runs import Run

from .report_runs import CPU, TINY_MAML, TINY_SIMPA, regression_run

STYLE = re.compile(r"\x1b\[[0-9;]*m")


def in_terminal(arguments: list[str], monkeypatch: pytest.MonkeyPatch, width: int) -> str:
    """What a command writes to a terminal of a width."""
    ours, theirs = pty.openpty()
    with monkeypatch.context() as patch, os.fdopen(theirs, "w", encoding="utf-8") as terminal:
        patch.setattr(sys, "stdout", terminal)
        patch.setenv("TERM", "xterm-256color")
        patch.setenv("COLUMNS", str(width))
        assert main(arguments) == 0
    parts = []
    with suppress(OSError):  # once all is read, since the other end is closed
        while part := os.read(ours, 65536):
            parts.append(part)
    os.close(ours)
    return b"".join(parts).decode()


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Run]:
    folder = tmp_path_factory.mktemp("runs")
    runs = [regression_run(folder / "simpa", TINY_SIMPA), regression_run(folder / "[bold]maml", TINY_MAML)]
    for run in runs:
        evaluate_run(run, CPU, tasks=20, seed=0)
    return runs


@pytest.mark.parametrize("command", ["evaluate", "compare", "train"])
def test_a_terminal_gets_a_ruled_table_and_a_pipe_plain_text_with_the_same_cells(
    runs: list[Run], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    arguments = {
        "evaluate": ["evaluate", str(runs[1].folder), "--tasks", "20", "--device", "cpu"],
        "compare": ["compare", *(str(run.folder) for run in runs)],
        "train": ["train", "maml", "--resume", "--out", str(runs[1].folder), "--device", "cpu"],
    }[command]
    capsys.readouterr()
    assert main(arguments) == 0
    piped = capsys.readouterr().out
    shown = in_terminal(arguments, monkeypatch, width=400)
    assert "\x1b" not in piped
    assert "─" not in piped
    assert "\x1b[" in shown
    assert "─" in shown
    plain = STYLE.sub("", shown)
    for line in piped.splitlines():
        for cell in re.split(r"\s{2,}", line.strip()):
            assert cell in plain


@pytest.mark.parametrize("width", [80, 100, 140, 400])
def test_no_number_is_lost_in_a_narrow_terminal(
    runs: list[Run], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, width: int
) -> None:
    tables = evaluation_tables([run.evaluation() or {} for run in runs])
    tables += [comparison_table(compare_runs(runs)[0])._replace(headers=("score", "simpa", "maml", "±", "t", "p", ""))]
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", str(width))
    print_tables(tables)
    shown = STYLE.sub("", capsys.readouterr().out)
    assert max(map(len, shown.splitlines())) <= width
    for cell in (cell for table in tables for row in table.rows for cell in row):
        assert cell.strip() in shown


def test_text_is_never_taken_for_markup(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "80")
    print_tables([Table("[red]title", ("[b]method",), (("[/b]run",),))], titled=True)
    shown = STYLE.sub("", capsys.readouterr().out)
    for text in ("[red]title", "[b]method", "[/b]run"):
        assert text in shown


def test_the_better_run_is_bold(runs: list[Run]) -> None:
    test = {
        "first": {"mean": 1.0, "ci95": 0.1},
        "second": {"mean": 2.0, "ci95": 0.1},
        "difference": {"mean": -1.0, "ci95": 0.1},
        "t": -9.0,
        "p_value": 0.001,
    }
    tied = test | {"p_value": 0.5}
    compared = Compared(runs[0], runs[1], 20, (True, False), {"accuracy": test, "mse": test, "nll": tied})  # type: ignore[dict-item]
    table = comparison_table(compared)
    assert "only the first predicts a query set as a whole" in table.title
    assert table.bold == {(0, 2), (1, 1), (2, 1), (2, 2)}
    assert [row[-1] for row in table.rows] == [
        "the second is better",
        "the first is better",
        "no significant difference",
    ]


def test_training_ends_with_its_first_and_last_line(runs: list[Run]) -> None:
    lines = runs[0].metrics()
    table = training_table(lines)
    assert table.headers[:3] == ("update", "seconds", "loss")
    assert [row[0] for row in table.rows] == ["1", "4"]
    assert [row[2] for row in table.rows] == [f"{line['loss']:.4g}" for line in (lines[0], lines[-1])]
    assert len(training_table(lines[:1]).rows) == 1
