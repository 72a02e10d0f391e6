"""Pages of networks in a real browser: no errors, no overflow on a phone, both colour schemes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cpembed.report.network_page import write_page
from tests.integration.browser import NAMES, Browser, executable
from tests.unit.report.network_documents import attention, document, residual
from tests.unit.report.test_network_page import nasty

pytestmark = pytest.mark.skipif(executable() is None, reason=f"no browser: {NAMES[0]}")

PHONE = 360
DOCUMENTS: dict[str, dict[str, Any]] = {
    "residual": residual(6),
    "attention": attention(24),
    "nasty": nasty(),
    "long": residual(2, name="x" * 300),
    "empty": document([]),
}


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    path = executable()
    assert path is not None
    with Browser(path, tmp_path_factory.mktemp("profile")) as found:
        yield found


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("pages")
    found = {name: folder / f"{name}.html" for name in DOCUMENTS}
    for name, path in found.items():
        write_page(DOCUMENTS[name], path)
    return found


@pytest.fixture
def show(browser: Browser, pages: dict[str, Path]) -> Iterator[Any]:
    """Opens a page; at the end nothing may have been reported or loaded from elsewhere."""
    browser.problems.clear()
    browser.requests.clear()

    def opened(name: str, width: int = 1200, **how: Any) -> Browser:
        browser.open(pages[name], width, **how)
        return browser

    yield opened
    assert browser.problems == []
    assert set(browser.requests) <= {path.as_uri() for path in pages.values()}


@pytest.mark.quick(4)
@pytest.mark.parametrize("scripts", [True, False])
@pytest.mark.parametrize("name", list(DOCUMENTS))
def test_a_phone_scrolls_no_page_sideways(show: Any, name: str, scripts: bool) -> None:
    page = show(name, PHONE, height=740, scripts=scripts)
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE
    wide = page.evaluate(
        "[...document.querySelectorAll('body *')].filter(e => !e.closest('.scroll') && "
        "!e.matches('.skip') && e.getBoundingClientRect().right > innerWidth + 1)"
        ".map(e => e.outerHTML.slice(0, 80))"
    )
    assert wide == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_system_decides_light_or_dark_and_the_button_changes_it(show: Any, scheme: str) -> None:
    page = show("residual", scheme=scheme)
    colour = "getComputedStyle(document.body).backgroundColor"
    own = {"light": "rgb(255, 255, 255)", "dark": "rgb(15, 20, 26)"}
    other = next(name for name in own if name != scheme)
    page.evaluate("localStorage.clear(); delete document.documentElement.dataset.theme")
    assert page.evaluate(colour) == own[scheme]
    page.click("#theme")
    assert page.evaluate(colour) == own[other]
    page.click("#theme")
    assert page.evaluate(colour) == own[scheme]
    page.evaluate("localStorage.clear()")


def test_a_click_shows_what_is_known_and_escape_closes_it(show: Any) -> None:
    page = show("residual")
    number = 3
    page.click(f"a.node[data-op='{number}']")
    text = page.evaluate("document.querySelector('#details.open').innerText")
    assert DOCUMENTS["residual"]["operators"][number]["name"] in text
    assert "generated kernel" in text
    assert page.evaluate("document.querySelectorAll('path.lit').length") >= 2
    assert page.evaluate("document.querySelector('tr.chosen').dataset.op") == str(number)
    page.press("Escape")
    assert page.evaluate("document.querySelector('#details.open')") is None


def test_keys_walk_along_edges(show: Any) -> None:
    page = show("residual")
    page.evaluate("document.querySelector('a.node').focus()")
    page.press("ArrowDown")
    assert page.evaluate("document.activeElement.dataset.op") == "1"
    page.press("Enter")
    operators = DOCUMENTS["residual"]["operators"]
    shown = "document.querySelector('#details.open h3').textContent"
    assert page.evaluate(shown) == operators[1]["name"]
    page.press("ArrowDown")
    assert page.evaluate(shown) == operators[2]["name"]
    page.press("ArrowUp")
    page.press("ArrowUp")
    assert page.evaluate(shown) == operators[0]["name"]
    # One stop of the tab key for the whole picture.
    assert page.evaluate("document.querySelectorAll('a.node[tabindex=\"0\"]').length") == 1


def test_columns_sort_by_what_they_hold(show: Any) -> None:
    page = show("residual")
    operators = DOCUMENTS["residual"]["operators"]
    times = [each["measured_us"] for each in operators]
    shown = (
        "[...document.querySelectorAll('#layers tbody tr')].map(r => Number(r.cells[7]."
        "dataset.value))"
    )
    page.click("#layers th:nth-child(8) button")
    assert page.evaluate(shown) == sorted(times, reverse=True)
    assert page.evaluate("document.querySelector('th[aria-sort]').ariaSort") == "descending"
    page.click("#layers th:nth-child(8) button")
    assert page.evaluate(shown) == sorted(times)
    names = "[...document.querySelectorAll('#layers tbody tr')].map(r => r.cells[1].innerText)"
    page.click("#layers th:nth-child(1) button")
    found = [name.removesuffix(" slowest") for name in page.evaluate(names)]
    assert found == [each["name"] for each in operators]
    # Sorting leaves rows and operators together.
    page.click("#layers th:nth-child(8) button")
    page.click("#layers tbody tr a")
    slowest = operators[times.index(max(times))]["name"]
    assert page.evaluate("document.querySelector('#details.open h3').textContent") == slowest


def test_what_is_not_known_comes_last(show: Any) -> None:
    page = show("residual")
    used = "[...document.querySelectorAll('#layers tbody tr')].map(r => r.cells[4].dataset.value)"
    for _ in range(2):
        page.click("#layers th:nth-child(5) button")
        known = [value != "" for value in page.evaluate(used)]
        assert known == sorted(known, reverse=True)


def test_without_scripts_everything_is_there_to_read(show: Any) -> None:
    page = show("residual", scripts=False)
    # What is asked of the page is evaluated all the same.
    assert page.evaluate("document.documentElement.classList.contains('js')") is False
    assert page.evaluate("document.querySelector('.cards').offsetHeight") > 0
    cards = page.evaluate("[...document.querySelectorAll('.card h3')].map(h => h.innerText)")
    assert cards == [each["name"] for each in DOCUMENTS["residual"]["operators"]]
    assert page.evaluate("document.querySelector('#theme').offsetHeight") == 0


def test_texts_of_nodes_stay_inside(show: Any) -> None:
    """In the fonts of this machine."""
    page = show("attention")
    outside = page.evaluate(
        "[...document.querySelectorAll('a.node')].filter(a => { const b = a.querySelector("
        "'.body').getBBox(); return [...a.querySelectorAll('text')].some(t => { const c = "
        "t.getBBox(); return c.x < b.x || c.x + c.width > b.x + b.width; }); }).length"
    )
    assert outside == 0


def test_a_large_network_is_fitted_and_found(show: Any) -> None:
    page = show("attention", PHONE, height=740)
    page.click("#fit")
    assert (
        page.evaluate("document.getElementById('picture').getBoundingClientRect().width") <= PHONE
    )
    page.click("#slowest")
    assert page.evaluate("document.querySelector('#details.open h3') !== null")


def test_what_can_be_pressed_has_a_name_for_those_who_hear_the_page(show: Any) -> None:
    page = show("residual")
    page.click("a.node")
    nodes = page.send("Accessibility.getFullAXTree")["nodes"]
    roles = {"link", "button", "region", "heading", "columnheader", "status"}
    named: dict[str, list[str]] = {role: [] for role in roles}
    for node in nodes:
        role = node.get("role", {}).get("value")
        if role in roles and not node.get("ignored"):
            named[role].append(node.get("name", {}).get("value", ""))
    assert all(names for names in named.values()), named
    unnamed = {role for role, names in named.items() if role != "status" and not all(names)}
    assert not unnamed
    first = DOCUMENTS["residual"]["operators"][0]["name"]
    assert f"{first}, conv2d, embedded, 310 µs" in named["link"]


def test_names_that_are_scripts_do_nothing(show: Any) -> None:
    page = show("nasty")
    page.click("a.node[data-op='0']")
    shown = page.evaluate("document.querySelector('#details.open h3').textContent")
    assert shown == "<script>alert(1)</script>"
    assert page.evaluate("document.scripts.length") == 1
    assert page.evaluate("document.images.length") == 0
