"""Pages of explorations: complete, self-contained, and harmless whatever names hold."""

from __future__ import annotations

import re

import pytest

from cpembed.errors import InvariantError
from cpembed.report.axes import scale
from cpembed.report.exploration_page import page
from tests.unit.report.exploration_documents import NASTY, document
from tests.unit.report.test_network_page import Elements


@pytest.mark.parametrize("text", ["x ← p:8", *NASTY])
def test_a_page_is_well_formed_and_loads_nothing(text: str) -> None:
    elements = Elements(page(document(text)).replace("<br>", " "))
    assert not elements.wrong
    assert [name for name in elements.open if name != "br"] == []
    assert len(elements.named("script")) == 1
    assert not elements.named("img")
    for name, attributes in elements.elements:
        assert not [key for key in attributes if key.startswith("on")], name
        for key in ("src", "href"):
            assert attributes.get(key, "#").startswith(("#", "data:"))


def test_points_link_to_cards_that_name_parameters_layers_and_mappings() -> None:
    text = page(document())
    elements = Elements(text)
    places = {e["id"] for e in elements.named("article")}
    links = [e["href"] for e in elements.named("a") if "data-point" in e]
    assert {link.removeprefix("#") for link in links} == places
    assert places == {f"point-{n}" for n in (1, 2, 3, 4)}
    titles = [e["aria-label"] for e in elements.named("a") if "point" in e.get("class", "").split()]
    assert any("instruction.axes.x = 1" in title and "time (µs): 30" in title for title in titles)
    texts = "\n".join(elements.texts)
    for words in (
        "98,765 read", "4,321 written", "x ← p:8", "1,234 executions, 50.0% used under boxes",
        "buffer: p.o:3, loops around it, innermost first: p.o q.o, 2 units",
        "packing A: 1.5 µs", "layer 1 x ← p:8: no axis feeds z", "read from dram",
        "best of the tilings that were compared",
    ):  # fmt: skip
        assert words in texts


def test_times_of_layers_are_those_of_one_execution() -> None:
    # 100 * 30 / 3 cycles at 100 MHz.
    assert '<td class="number">10</td>' in page(document())


def test_axes_have_units_thousands_and_logarithms_of_wide_spans() -> None:
    text = page(document())
    assert "time (µs), logarithmic" in text
    assert ">area (mm²)<" in text
    assert ">1,000,000<" in text


def test_marks_lie_where_their_values_are() -> None:
    """The mark of the least area lies lowest, that of the longest time farthest to the right."""
    marks = {
        int(number): (float(x), float(y))
        for number, x, y in re.findall(
            r'data-point="(\d+)" aria-label.*?<circle cx="([\d.]+)" cy="([\d.]+)"', page(document())
        )
    }
    assert sorted(marks, key=lambda n: marks[n][0]) == [4, 1, 3, 2]
    assert sorted(marks, key=lambda n: -marks[n][1]) == [2, 1, 3, 4]


def test_one_objective_is_drawn_over_the_points() -> None:
    rows = [{**row, "objectives": {"time_us": 5.0}} for row in document()["rows"]]
    text = page(document(objectives=["time_us"], rows=rows))
    assert "number of the point" in text


def test_an_exploration_without_points_has_a_page() -> None:
    text = page(document(rows=[], front=[], status="infeasible"))
    assert "No evaluated point is within the limits." in text


def test_another_document_is_an_error() -> None:
    with pytest.raises(InvariantError, match="page of an exploration"):
        page({"network": 1})


@pytest.mark.parametrize(
    "low, high", [(0, 0), (5, 5), (-3, 12), (1e-9, 1), (0.2, 0.3), (999, 1001), (3, 59), (1, 1e12)]
)
def test_ticks_are_round_and_around_the_values(low: float, high: float) -> None:
    axis = scale(low, high)
    assert axis.first <= low <= high <= axis.last
    assert (axis.first, axis.last) == (axis.ticks[0], axis.ticks[-1])
    assert 2 <= len(axis.ticks) <= 14
    assert 0 <= axis.share(low) <= axis.share(high) <= 1
    for tick in axis.ticks:
        digits = f"{abs(tick):.3e}".split("e")[0].rstrip("0").rstrip(".")
        assert len(digits.replace(".", "")) <= 4
