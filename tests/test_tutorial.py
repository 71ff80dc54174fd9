"""The tutorial runs block by block, with fewer updates than it asks for; `make tutorial-test` runs all of it."""

import re
from itertools import pairwise
from pathlib import Path

import pytest

from .tutorial import blocks, differences, execute, in_this_process, with_outputs

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "tutorial.md"
README = ROOT / "README.md"


def quicker(page: str) -> str:
    """The same blocks with at most 10 updates and 40 tasks."""

    def fewer(found: re.Match[str]) -> str:
        most = 10 if "updates" in found[1] else 40
        return f"{found[1]}{min(int(found[2]), most)}"

    return re.sub(r"(updates=|--updates |--tasks )(\d+)", fewer, page)


@pytest.fixture(scope="module")
def printed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Block → what it printed."""
    page = quicker(PAGE.read_text(encoding="utf-8"))
    outputs = execute(page, tmp_path_factory.mktemp("tutorial"), in_this_process)
    return {block.code: output for block, output in zip(blocks(page), outputs, strict=True) if block.kind != "text"}


def output_of(printed: dict[str, str], part: str) -> str:
    (output,) = (output for code, output in printed.items() if part in code)
    return output


@pytest.mark.slow
def test_every_block_runs_and_says_what_the_page_says(printed: dict[str, str]) -> None:
    assert "mean error" in output_of(printed, "learner.adapt(reading[:5]")
    assert "the same predictions: True" in output_of(printed, "learner.save")
    assert "sensor: text, 200 different" in output_of(printed, "fewsure data check")
    assert "quantile_05" in output_of(printed, "fewsure data check")
    assert "noise on the labels" in output_of(printed, "def spread")
    errors = [float(re.sub(r".*: ([0-9.]+).*", r"\1", line)) for line in output_of(printed, "polyfit").splitlines()]
    assert len(errors) == 4
    assert errors[-1] == min(errors)
    assert "lower,upper" in output_of(printed, "--coverage 0.9")
    assert "are right; of the" in output_of(printed, "x_support")


@pytest.mark.slow
def test_the_example_of_the_readme_runs_and_prints_as_many_lines_as_it_says(tmp_path: Path) -> None:
    page = quicker(README.read_text(encoding="utf-8"))
    printed, _ = execute(page, tmp_path)
    (_, shown) = blocks(page)
    assert [line.split("[")[0] for line in printed.splitlines()] == [
        line.split("[")[0] for line in shown.code.splitlines()
    ]


def test_what_was_printed_stands_below_its_block() -> None:
    page = "```python\nprint(1)\n```\n\n```text\nold\n```\nend\n"
    assert with_outputs(page, ["1\n", ""]) == "```python\nprint(1)\n```\n\n```text\n1\n```\nend\n"
    assert differences(page, ["1\n", ""]) == ["-old", "+1"]
    assert differences(page, ["old\n", ""]) == []


@pytest.mark.parametrize("page", [PAGE, README], ids=lambda page: page.name)
def test_every_output_block_follows_what_it_is_the_output_of(page: Path) -> None:
    found = blocks(page.read_text(encoding="utf-8"))
    for before, block in pairwise(found):
        assert block.kind != "text" or before.kind in ("python", "bash")
    for block in found:
        assert block.kind != "text" or block.code.strip(), "run `make tutorial` to write the outputs"
