"""Documents: pages are what their commands write from the results of today, and links lead somewhere."""

import json
import re
import runpy
from pathlib import Path
from typing import Any

import pytest

from fewsure.algorithms import ALGORITHMS
from fewsure.report.certificates import BEGIN, END, certificates_section
from fewsure.reproduce.assays_page import REFERENCES
from fewsure.reproduce.results import read_results
from fewsure.reproduce.targets import TARGETS
from fewsure.training.experiment import load_preset

ROOT = Path(__file__).resolve().parents[1]
DOCS, RESULTS = ROOT / "docs", ROOT / "results"
MEASURED = [name for name in TARGETS if (RESULTS / f"{name}.json").is_file()]
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *sorted(DOCS.rglob("*.md"))]
ORIGIN = {"seed", "version", "device", "seconds"}


def section(text: str, begin: str, end: str) -> str:
    return text.split(begin)[1].split(end)[0].strip()


@pytest.fixture(scope="module")
def pages() -> dict[str, Any]:
    """The script of `make results`."""
    return runpy.run_path(str(ROOT / "benchmarks" / "pages.py"), run_name="benchmark")


def test_pages_of_results_are_what_make_results_writes(
    pages: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(pages["write"].__globals__, "figure_png", lambda figure: b"")
    pages["write"](tmp_path)
    written = {path.name: path.read_text() for path in tmp_path.glob("*.md")}
    assert written == {path.name: path.read_text() for path in (DOCS / "results").glob("*.md")}
    assert {path.name for path in (tmp_path / "figures").iterdir()} == {
        path.name for path in (DOCS / "results" / "figures").iterdir()
    }
    shown = [target for _, targets in pages["PAGES"].values() for target in targets]
    assert sorted([*shown, "fs-mol"]) == sorted(MEASURED)  # which has a page of its own kind


def test_the_readme_has_the_results_that_make_results_writes(pages: dict[str, Any]) -> None:
    readme = (ROOT / "README.md").read_text()
    assert pages["filled"](readme) == readme
    assert len(readme.splitlines()) <= 120
    rows = pages["comparisons"]()
    assert len(rows) <= 9
    assert {row[-1] for row in rows} <= {"ours", "the baseline", "not clear"}


@pytest.mark.parametrize("target", MEASURED)
def test_results_are_of_the_best_trials_and_of_the_test_tasks_that_the_command_draws(target: str) -> None:
    for row in read_results(RESULTS / f"{target}.json"):
        assert row["seed"] == TARGETS[target].test_seed
        if row["label"] in REFERENCES:
            continue
        listed = TARGETS[target].trials(row["label"])
        if len(listed) == 1:  # options that were chosen before, and nothing to tune
            assert len(row["trials"]) <= 1
            continue
        best = min(row["trials"], key=lambda trial: trial["nll"]["mean"])
        assert row["preset"].endswith(f", trial {best['trial']}")
        assert len(row["trials"]) == len(listed)


@pytest.mark.parametrize(
    ("page", "fill"),
    [
        ("collapse.md", "filled_collapse"),
        ("methods/simpa-latent.md", "filled_latent"),
        ("methods/closed-form.md", "filled_closed_forms"),
        ("how-to/molecules.md", "filled_molecules"),
        ("how-to/patients.md", "filled_patients"),
        ("how-to/schools.md", "filled_schools"),
    ],
)
def test_a_page_with_more_than_results_has_the_tables_that_make_results_writes(
    pages: dict[str, Any], page: str, fill: str
) -> None:
    text = (DOCS / page).read_text()
    assert pages[fill](text) == text


def test_the_section_on_certificates_is_what_its_command_writes() -> None:
    certificates = json.loads((RESULTS / "certificates.json").read_text())
    assert section((DOCS / "guarantees.md").read_text(), BEGIN, END) == certificates_section(certificates)


@pytest.mark.parametrize("file", sorted(RESULTS.glob("*.json")), ids=lambda file: file.stem)
def test_results_say_where_they_come_from(file: Path) -> None:
    found = json.loads(file.read_text())
    parts = found if isinstance(found, list) else [found]
    expected = ORIGIN - {"seed"} if file.stem.startswith("bench-") else ORIGIN  # timings have none
    assert parts
    assert all(expected <= set(part) for part in parts)


@pytest.mark.parametrize("method", ["abml", "vampire", "platipus"])
def test_the_page_of_a_gaussian_method_says_what_its_presets_leave_of_the_kl(method: str) -> None:
    text = (DOCS / "methods" / "gaussian.md").read_text()
    page = text.split(f"\n## {method.upper()}\n")[1].split("\n## ")[0]
    for data in ("omniglot", "features", "cifar-fs"):
        weight = load_preset("recommended", method, data).algorithm.kl_weight  # type: ignore[attr-defined]
        assert {1e-6: "1e-6", 1e-4: "1e-4", 1.0: "it is 1."}[weight] in page


@pytest.mark.parametrize("data", ["sine-line", "omniglot"])
def test_the_papers_presets_have_the_numbers_of_its_appendix_and_its_discussion(data: str) -> None:
    for method in ("abml", "vampire"):
        assert load_preset("paper", method, data).algorithm.train_samples == 4  # type: ignore[attr-defined]
    assert load_preset("paper", "simpa", data).algorithm.warm_up_tasks == 1000  # type: ignore[attr-defined]


def test_the_readme_has_a_row_for_each_method() -> None:
    methods = (ROOT / "README.md").read_text().split("## Methods")[1].split("## Results")[0]
    assert [name for name in ALGORITHMS if f"`{name}`" not in methods] == []


def test_the_readme_says_what_its_results_do_not_show() -> None:
    results = (ROOT / "README.md").read_text().split("## Results")[1]
    for fact in ("no KL", "ensemble", "transductive", "`tnp` is slightly ahead"):
        assert fact in results


def anchors(page: Path) -> set[str]:
    """The names of a page's headings, as GitHub and MkDocs make them."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", DOCUMENTS, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    for link in re.findall(r"(?:\]\(|src=\")([^)\s\"]+)", page.read_text()):
        if "://" in link:
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link
