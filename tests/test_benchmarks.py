"""The scripts of benchmarks/ fit the library they measure."""

import json
import runpy
import sys
from pathlib import Path

import pytest

SCRIPTS = sorted((Path(__file__).resolve().parents[1] / "benchmarks").glob("*.py"))


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_what_a_script_asks_for_is_there(script: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])  # a script may add to it
    assert callable(runpy.run_path(str(script), run_name="benchmark")["main"])


def test_the_page_on_samples_of_the_kl_is_what_the_command_writes(tmp_path: Path) -> None:
    script, root = runpy.run_path(str(SCRIPTS[0].parent / "kl_samples.py"), run_name="benchmark"), SCRIPTS[0].parents[1]
    record = json.loads((root / "results" / "kl-samples.json").read_text())
    script["write_page"](record, tmp_path / "page.md")
    assert (tmp_path / "page.md").read_text() == (root / "docs" / "kl-samples.md").read_text()
    last = record["rows"][-1]
    assert abs(last["bias"]) < 0.01  # the corrected estimate is right on average
    errors = [row["gradient_error"] for row in record["rows"]]
    assert errors == sorted(errors, reverse=True)  # and only more samples make its gradient less noisy
