"""The report in a browser, at the width of a desktop and of a phone: `make browser-test` installs Chromium first.

The screenshots land in `screenshots/`, to be looked at.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from fewsure.algorithms.platipus import Platipus
from fewsure.certification.certify import Request, certify_run
from fewsure.cli.main import main
from fewsure.training.runs import Run

from .browser import CHROMIUM, Browser
from .data_fixtures import REAL_DATA
from .report_runs import CPU, TINY_MAML, regression_run, report

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed; `make browser-test` installs it"),
]

SCREENSHOTS = Path(__file__).parents[1] / "screenshots"
SIZES = {"desktop": {"width": 1280, "height": 900}, "phone": {"width": 390, "height": 844, "mobile": True}}

OVERLAPS = """
Array.from(document.querySelectorAll("figure svg")).flatMap((picture) => {
  const frame = picture.getBoundingClientRect();
  const texts = Array.from(picture.querySelectorAll("text")).filter((text) => text.textContent.trim());
  const boxes = texts.map((text) => text.getBoundingClientRect());
  const found = [];
  const name = picture.closest("figure").id;
  boxes.forEach((one, i) => {
    const beside = one.left < frame.left - 1 || one.right > frame.right + 1;
    if (beside || one.top < frame.top - 1 || one.bottom > frame.bottom + 1)
      found.push(`${name}: ${texts[i].textContent} is cut off`);
    boxes.slice(i + 1).forEach((two, j) => {
      const width = Math.min(one.right, two.right) - Math.max(one.left, two.left);
      const height = Math.min(one.bottom, two.bottom) - Math.max(one.top, two.top);
      if (width > 1 && height > 2) found.push(`${name}: ${texts[i].textContent} / ${texts[i + 1 + j].textContent}`);
    });
  });
  return found;
})
"""
SMALLEST_TEXT = """
Math.min(...Array.from(document.querySelectorAll("figure svg text"), (text) => {
  const svg = text.ownerSVGElement;
  return parseFloat(getComputedStyle(text).fontSize) * svg.getBoundingClientRect().width / svg.viewBox.baseVal.width;
}))
"""
UNREADABLE = """
(() => {
  const luminance = (colour) => {
    const parts = colour.match(/[0-9.]+/g).slice(0, 3).map((part) => part / 255);
    const linear = parts.map((c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4));
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2];
  };
  const ground = luminance(getComputedStyle(document.body).backgroundColor);
  const contrast = (colour) => {
    const [low, high] = [luminance(colour), ground].sort((a, b) => a - b);
    return (high + 0.05) / (low + 0.05);
  };
  const texts = Array.from(document.querySelectorAll("p, td, th, li, dd, dt, figcaption, h1, h2, h3"));
  const low = texts.filter((text) => contrast(getComputedStyle(text).color) < 4.5);
  const labels = Array.from(document.querySelectorAll("figure svg text"));
  const faint = labels.filter((text) => contrast(getComputedStyle(text).fill) < 4.5);
  return low.concat(faint).map((text) => text.textContent);
})()
"""
ORDER = """
Array.from(document.querySelector("table.scores").tBodies[0].rows, (row) => {
  const value = row.cells[3].dataset.value;
  return value === undefined ? null : Number(value);
})
"""


@pytest.fixture(scope="module")
def page(sine_line_runs: list[Run], image_runs: list[Run], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report of all that a report can show: bands and lines, certificates, pictures, a run that is missing."""
    folder = tmp_path_factory.mktemp("browser")
    others = [
        regression_run(folder / "a-run-with-quite-a-long-name-<i>", TINY_MAML),
        regression_run(folder / "platipus", Platipus(inner_steps=1)),
        Run(folder / "missing", sine_line_runs[0].experiment, ""),
    ]
    certify_run(sine_line_runs[0], CPU, Request(tasks=40, bound_samples=4))
    return report([*sine_line_runs, *others, *image_runs], folder / "report.html").page


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with Browser(tmp_path_factory.mktemp("profile")) as browser:
        yield browser


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_is_whole_quiet_and_readable(browser: Browser, page: Path, size: str, scheme: str) -> None:
    browser.open(page, scheme=scheme, **SIZES[size])
    browser.screenshot(SCREENSHOTS / f"report-{size}-{scheme}.png")
    assert browser.complaints() == []
    assert [url for url in browser.requests() if not url.startswith("data:")] == [page.resolve().as_uri()]
    assert browser.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    assert browser.evaluate("document.querySelectorAll('table.scores').length") == 2
    assert browser.evaluate("document.querySelectorAll('table.statements').length") == 1
    assert browser.evaluate("document.querySelectorAll('figure svg').length") >= 16
    assert browser.evaluate("document.querySelectorAll('figure svg image').length") >= 8
    assert browser.evaluate(
        "Array.from(document.querySelectorAll('figure svg')).every((svg) => svg.getBoundingClientRect().height > 60)"
    )
    assert browser.evaluate(OVERLAPS) == []
    assert browser.evaluate(SMALLEST_TEXT) >= 7.5
    assert browser.evaluate(UNREADABLE) == []


@pytest.mark.parametrize("size", SIZES)
def test_tables_sort(browser: Browser, page: Path, size: str) -> None:
    browser.open(page, **SIZES[size])
    head = "document.querySelectorAll('table.scores')[0].tHead.rows[0].cells[3]"
    before = [value for value in browser.evaluate(ORDER) if value is not None]
    for direction, reverse in (("ascending", False), ("descending", True)):
        browser.evaluate(f"{head}.querySelector('button').click()")
        assert browser.evaluate(f"{head}.getAttribute('aria-sort')") == direction
        found = browser.evaluate(ORDER)
        values = [value for value in found if value is not None]  # rows with noise have no MSE, and come last
        assert values == sorted(before, reverse=reverse)
        assert found[: len(values)] == values
    assert browser.complaints() == []


@pytest.mark.parametrize("size", SIZES)
def test_methods_can_be_switched_off_and_on(browser: Browser, page: Path, size: str) -> None:
    browser.open(page, **SIZES[size])

    def visible(owner: str) -> int:
        return int(
            browser.evaluate(
                f"Array.from(document.querySelectorAll('[data-of~=\"{owner}\"]'))"
                ".filter((part) => part.getClientRects().length > 0).length"
            )
        )

    before = {owner: visible(owner) for owner in ("0", "1", "paper")}
    assert min(before.values()) > 0
    for owner, other in (("0", "1"), ("paper", "1")):
        button = f"document.querySelector('[data-switch=\"{owner}\"] button')"
        browser.evaluate(f"{button}.click()")
        assert browser.evaluate(f"{button}.getAttribute('aria-pressed')") == "false"
        assert visible(owner) == 0
        assert visible(other) > 0
        browser.evaluate(f"{button}.click()")
    assert {owner: visible(owner) for owner in before} == before
    assert browser.complaints() == []


def test_the_value_under_the_pointer_is_shown(browser: Browser, page: Path) -> None:
    browser.open(page, **SIZES["desktop"])
    figures = browser.evaluate(
        """Array.from(document.querySelectorAll("figure[data-points]"), (figure) =>
             [figure.id, JSON.parse(figure.dataset.points)[0]])"""
    )
    assert len(figures) >= 16
    for name, (at_x, at_y, _, says) in figures:
        x, y = browser.evaluate(
            f"""(() => {{ const svg = document.getElementById({name!r}).querySelector("svg");
                  const scale = svg.getBoundingClientRect().width / svg.viewBox.baseVal.width;
                  scrollBy(0, svg.getBoundingClientRect().top + {at_y} * scale - innerHeight / 2);
                  const box = svg.getBoundingClientRect();
                  return [box.left + {at_x} * scale, box.top + {at_y} * scale]; }})()"""
        )
        browser.move_pointer(x, y)
        assert browser.evaluate("document.querySelector('.tip').hidden") is False
        assert browser.evaluate("document.querySelector('.tip').textContent") == says
        box = browser.evaluate("JSON.parse(JSON.stringify(document.querySelector('.tip').getBoundingClientRect()))")
        assert box["left"] >= 0
        assert box["right"] <= 1280
        assert box["top"] >= 0
    browser.screenshot(SCREENSHOTS / "report-pointer.png")
    browser.move_pointer(1, 1)
    assert browser.evaluate("document.querySelector('.tip').hidden") is True


def test_without_scripts_the_page_is_whole(browser: Browser, page: Path) -> None:
    browser.call("Emulation.setScriptExecutionDisabled", value=True)
    try:
        browser.open(page, **SIZES["desktop"])
        browser.screenshot(SCREENSHOTS / "report-without-scripts.png")
        root = browser.call("DOM.getDocument")["root"]["nodeId"]

        def count(selector: str) -> int:
            return len(browser.call("DOM.querySelectorAll", nodeId=root, selector=selector)["nodeIds"])

        assert count("button") == 0  # nothing is offered that would not work
        assert count("figure svg") >= 16
        assert count("table.scores tbody tr") >= 6
        assert count(".off") == 0
        assert browser.complaints() == []
    finally:
        browser.call("Emulation.setScriptExecutionDisabled", value=False)


@pytest.mark.skipif(not REAL_DATA.is_dir(), reason="the real data sets are not beside the project (shared/data)")
def test_real_images_are_seen(browser: Browser, real_data: Path, tmp_path: Path) -> None:
    run = tmp_path / "omniglot"
    options = ["--data", "omniglot", "--preset", "omniglot-cpu", "--updates", "20", "--device", "cpu"]
    assert main(["train", "protonet", *options, "--out", str(run), "--json"]) == 0
    assert main(["report", str(run), "--tasks", "20", "--out", str(tmp_path / "report.html"), "--json"]) == 0
    for size, metrics in SIZES.items():
        browser.open(tmp_path / "report.html", **metrics)
        browser.screenshot(SCREENSHOTS / f"omniglot-{size}.png")
        assert browser.complaints() == []
        assert browser.evaluate(OVERLAPS) == []
    assert browser.evaluate("document.querySelectorAll('figure svg image').length") == 5 + 6 + 2 * 4
