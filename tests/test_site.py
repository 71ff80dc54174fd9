"""The documentation site in a browser, read from the disk, where `make docs` has built it."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from .browser import CHROMIUM, PATIENCE, Browser

SITE = Path(__file__).resolve().parents[1] / "build" / "site"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed (`make browser-test` installs it)"),
    pytest.mark.skipif(not (SITE / "index.html").exists(), reason="the site is not built (`make docs` builds it)"),
]


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with Browser(tmp_path_factory.mktemp("chromium")) as browser:
        yield browser


@pytest.mark.parametrize("width", [1300, 390])
def test_pages_fit_complain_of_nothing_and_ask_no_one(browser: Browser, width: int) -> None:
    pages = sorted(path for path in SITE.rglob("*.html") if "reference/fewsure/" not in path.as_posix())
    pages.remove(SITE / "404.html")  # of servers: its links begin at their root
    for page in [*pages, SITE / "reference" / "fewsure" / "learner" / "learner.html"]:
        browser.open(page, width=width, height=900, mobile=width < 500)
        assert browser.evaluate("document.documentElement.scrollWidth") <= width, page
        assert browser.evaluate("[...document.images].every(image => image.naturalWidth > 0)"), page
        assert browser.complaints() == [], page
        assert [url for url in browser.requests() if not url.startswith(("file:", "data:"))] == [], page


def test_the_search_finds_without_a_server(browser: Browser) -> None:
    browser.call("Page.navigate", url=f"{(SITE / 'index.html').as_uri()}?q=conformal")
    results = "[...document.querySelectorAll('.md-search-result__link')].map(link => link.getAttribute('href'))"
    until = time.monotonic() + PATIENCE
    while not (found := browser.evaluate(results)) and time.monotonic() < until:
        time.sleep(0.2)
    assert any("guarantees.html" in link for link in found)
