"""Results on standard output: ruled tables in a terminal, plain text in a pipe, the same numbers in both."""

import os
import pty
import re
import sys
from contextlib import suppress

import pytest

from fewsure.cli.main import main
from fewsure.evaluation.compare import Compared, compare_runs
from fewsure.report.evaluation_tables import comparison_table, evaluation_tables, training_table
from fewsure.report.tables import Table, print_tables
from fewsure.training.runs import Run


def unstyled(text: str) -> str:
    return re.sub(r"\x1b\[[0-9;]*m", "", text)


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


@pytest.mark.parametrize("command", ["evaluate", "compare", "train"])
def test_a_terminal_gets_a_ruled_table_and_a_pipe_plain_text_with_the_same_cells(
    sine_line_runs: list[Run], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    simpa, maml = (str(run.folder) for run in sine_line_runs)
    arguments = {
        "evaluate": ["evaluate", maml, "--tasks", "20", "--device", "cpu"],
        "compare": ["compare", simpa, maml],
        "train": ["train", "maml", "--resume", "--out", maml, "--device", "cpu"],
    }[command]
    capsys.readouterr()
    assert main(arguments) == 0
    piped = capsys.readouterr().out
    shown = in_terminal(arguments, monkeypatch, width=400)
    for mark in ("\x1b[", "─"):
        assert mark in shown
        assert mark not in piped
    cells = [cell for line in piped.splitlines() for cell in re.split(r"\s{2,}", line.strip())]
    assert all(cell in unstyled(shown) for cell in cells)


@pytest.mark.parametrize("width", [80, 100, 140, 400])
def test_no_number_is_lost_in_a_narrow_terminal_and_no_text_is_taken_for_markup(
    sine_line_runs: list[Run], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, width: int
) -> None:
    tables = evaluation_tables([run.evaluation() or {} for run in sine_line_runs])
    (compared,) = compare_runs(sine_line_runs)
    tables += [comparison_table(compared)._replace(headers=("score", "simpa", "maml", "±", "t", "p", ""))]
    tables += [Table("[red]title", ("[b]method",), (("[/b]run",),))]
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", str(width))
    print_tables(tables)
    shown = unstyled(capsys.readouterr().out)
    assert max(map(len, shown.splitlines())) <= width
    cells = [cell for table in tables for row in (table.headers, *table.rows) for cell in row]
    assert all(cell.strip() in shown for cell in (*cells, "[red]title"))


def test_the_better_run_is_bold(sine_line_runs: list[Run]) -> None:
    means = {"first": {"mean": 1.0, "ci95": 0.1}, "second": {"mean": 2.0, "ci95": 0.1}}
    test = {**means, "difference": {"mean": -1.0, "ci95": 0.1}, "t": -9.0, "p_value": 0.001}
    tests = {"accuracy": test, "mse": test, "nll": test | {"p_value": 0.5}}
    table = comparison_table(Compared(*sine_line_runs, 20, {}, (True, False), tests))  # type: ignore[arg-type]
    assert "only the first predicts a query set as a whole" in table.title
    assert table.bold == {(0, 2), (1, 1), (2, 1), (2, 2)}
    verdicts = ["the second is better", "the first is better", "no significant difference"]
    assert [row[-1] for row in table.rows] == verdicts


def test_training_ends_with_its_first_and_last_line(sine_line_runs: list[Run]) -> None:
    lines = sine_line_runs[0].metrics()
    table = training_table(lines)
    assert table.headers[:3] == ("update", "seconds", "loss")
    assert [row[0] for row in table.rows] == ["1", "4"]
    assert [row[2] for row in table.rows] == [f"{line['loss']:.4g}" for line in (lines[0], lines[-1])]
    assert len(training_table(lines[:1]).rows) == 1
