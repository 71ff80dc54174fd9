"""Files for the people and services around the project: workflows, forms, citation, and the promise of stability."""

import re
import tomllib
from pathlib import Path

import pytest
import yaml

import fewsure
from fewsure.training.runs import FORMAT

ROOT = Path(__file__).resolve().parents[1]
GITHUB = ROOT / ".github"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
REPOSITORY = PROJECT["urls"]["Source"]


def read(path: Path) -> dict:
    # GitHub reads `on` as a word, YAML 1.1 as a truth.
    return yaml.load(path.read_text(encoding="utf-8"), yaml.BaseLoader)


@pytest.mark.parametrize("path", sorted((GITHUB / "workflows").glob("*.yml")), ids=lambda path: path.stem)
def test_a_workflow_has_few_rights_and_calls_what_the_makefile_has(path: Path) -> None:
    workflow = read(path)
    assert set(workflow) >= {"name", "on", "jobs"}
    assert workflow["permissions"] == {"contents": "read"}
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    for job in workflow["jobs"].values():
        assert "runs-on" in job or (GITHUB.parent / job["uses"]).is_file()
        assert set(job.get("needs", "").split()) <= set(workflow["jobs"])
        for step in job.get("steps", []):
            assert ("uses" in step) != ("run" in step)
            assert "uses" not in step or re.fullmatch(r"[\w-]+/[\w-]+@(v\d+|release/v\d+)", step["uses"])
            assert set(re.findall(r"\bmake ([a-z-]+)", step.get("run", ""))) <= set(targets)


def test_every_python_of_the_classifiers_is_tested() -> None:
    tests = read(GITHUB / "workflows" / "tests.yml")["jobs"]["test"]
    named = [name.split(" :: ")[-1] for name in PROJECT["classifiers"] if re.search(r"Python :: 3\.\d+$", name)]
    assert tests["strategy"]["matrix"]["python"] == named
    assert PROJECT["requires-python"] == f">={named[0]}"


def test_a_release_needs_the_tests_and_no_password() -> None:
    jobs = read(GITHUB / "workflows" / "release.yml")["jobs"]
    assert (jobs["publish"]["needs"], jobs["build"]["needs"]) == ("build", "test")
    assert jobs["publish"]["permissions"] == {"id-token": "write"}
    assert "secrets." not in (GITHUB / "workflows" / "release.yml").read_text()


@pytest.mark.parametrize("name", ["bug", "own-data", "feature"])
def test_a_form_has_what_github_requires(name: str) -> None:
    form = read(GITHUB / "ISSUE_TEMPLATE" / f"{name}.yml")
    assert set(form) >= {"name", "description", "body"}
    names = [field["id"] for field in form["body"]]
    assert len(set(names)) == len(names) >= 2
    for field in form["body"]:
        assert field["type"] in ("input", "textarea", "dropdown")
        assert field["attributes"]["label"]
    assert any(field.get("validations", {}).get("required") == "true" for field in form["body"])


def test_the_citation_has_what_its_schema_requires() -> None:
    citation = read(ROOT / "CITATION.cff")
    assert set(citation) >= {"cff-version", "message", "title", "authors"}
    assert (citation["cff-version"], citation["type"]) == ("1.2.0", "software")
    assert (citation["version"], citation["license"]) == (fewsure.__version__, PROJECT["license"])
    assert citation["repository-code"] == REPOSITORY
    (paper,) = citation["references"]
    assert set(paper) >= {"type", "title", "authors", "year", "doi"}
    assert [author["family-names"] for author in paper["authors"]] == ["Nguyen", "Do", "Carneiro"]


def test_the_changelog_has_a_section_for_the_version_and_one_for_changes_since() -> None:
    sections = re.findall(r"^## \[(.*?)\](?: - \d{4}-\d\d-\d\d)?$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert sections[:2] == ["Unreleased", fewsure.__version__]


def test_links_into_the_repository_have_its_address() -> None:
    files = [path for path in GITHUB.rglob("*") if path.is_file()]
    links = [link for path in files for link in re.findall(r"https://github\.com/[^)\s]+", path.read_text())]
    assert links
    assert all(link.startswith(f"{REPOSITORY}/") for link in links)


def test_the_page_on_stability_names_what_is_public() -> None:
    page = (ROOT / "docs" / "reference" / "index.md").read_text(encoding="utf-8")
    (names,) = re.findall(r"^\| Python \| (.*) \|$", page, re.MULTILINE)
    assert set(re.findall(r"`(\w+)`", names)) - {"fewsure"} == set(fewsure.__all__)
    assert f"Format {FORMAT}, the number in `config.json`" in page
