"""Pages of explorations in a real browser: no errors, no overflow, points that open their cards."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cpembed.report.exploration_page import page
from tests.integration.browser import NAMES, Browser, executable
from tests.unit.report.exploration_documents import NASTY, document

pytestmark = pytest.mark.skipif(executable() is None, reason=f"no browser: {NAMES[0]}")

PHONE = 360
DOCUMENTS: dict[str, dict[str, Any]] = {
    "plain": document(),
    "nasty": document("".join(NASTY)),
    "long": document("x" * 300),
    "empty": document(rows=[], front=[], status="infeasible"),
}


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    path = executable()
    assert path is not None
    with Browser(path, tmp_path_factory.mktemp("profile")) as opened:
        yield opened


@pytest.fixture
def show(browser: Browser, tmp_path: Path) -> Iterator[Any]:
    """Opens a page; at the end nothing may have been reported or loaded from elsewhere."""
    browser.problems.clear()
    browser.requests.clear()

    def opened(name: str, width: int = 1200, **options: Any) -> Browser:
        path = tmp_path / f"{name}.html"
        path.write_text(page(DOCUMENTS[name]))
        browser.open(path, width, **options)
        return browser

    yield opened
    assert browser.problems == []
    assert all(url.startswith("file:") for url in browser.requests)


@pytest.mark.parametrize("width", [PHONE, 1200])
@pytest.mark.parametrize("name", DOCUMENTS)
def test_pages_fit_their_window(show: Any, name: str, width: int) -> None:
    browser = show(name, width)
    assert browser.evaluate("document.documentElement.scrollWidth") <= width


def test_a_click_on_a_mark_shows_its_card(show: Any) -> None:
    browser = show("plain")
    browser.click('a.point[data-point="2"] circle')
    assert browser.evaluate("document.querySelector('#details.open h3').textContent") == "Point 2"
    assert "x ← p:8" in browser.evaluate("document.querySelector('#details').textContent")
    browser.press("Escape")
    assert browser.evaluate("document.querySelector('#details.open')") is None


def test_a_mark_below_the_pointer_is_named(show: Any) -> None:
    browser = show("plain")
    browser.evaluate("document.querySelector('a.point[data-point=\"1\"]').focus()")
    assert "instruction.axes.x = 1" in browser.evaluate(
        "document.getElementById('hover').textContent"
    )


def test_cards_are_there_without_scripts(show: Any) -> None:
    browser = show("plain", scripts=False)
    assert browser.evaluate("getComputedStyle(document.querySelector('.cards')).display") != "none"
