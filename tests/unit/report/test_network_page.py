"""Pages of networks: whole, self-contained, and harmless whatever a model's names hold."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

from cpembed.errors import InvariantError
from cpembed.report.network_page import page, write_page
from cpembed.report.network_page.document import State, read
from cpembed.report.network_page.picture import edges, html
from tests.unit.report.network_documents import attention, document, operator, product, residual

VOID = {"meta", "link", "br", "path", "rect", "input"}
"""Elements without an end; those of SVG have one where they hold a title."""

NASTY = [
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "' onmouseover='alert(1)",
    "</title></style></script><svg onload=alert(1)>",
    "javascript:alert(1)",
    "\x00\x1b[31m\u202e\ud800",
    "&lt;b&gt;",
    "[bold]x[/bold]",
    "",
]


class Elements(HTMLParser):
    """Elements with their attributes, their texts; mismatched ends are noted."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str]]] = []
        self.texts: list[str] = []
        self.open: list[str] = []
        self.wrong: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, {name: value or "" for name, value in attrs}))
        if tag not in ("meta", "link"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, {name: value or "" for name, value in attrs}))

    def handle_endtag(self, tag: str) -> None:
        if not self.open or self.open.pop() != tag:
            self.wrong.append(tag)

    def handle_data(self, data: str) -> None:
        self.texts.append(data)

    def named(self, tag: str) -> list[dict[str, str]]:
        return [attributes for name, attributes in self.elements if name == tag]


def nasty() -> dict[str, Any]:
    """Every text of a document is one that breaks out where it can."""
    operators = [
        product(
            name, [f"{name}.in"], [f"{name}.out"],
            label=name, kind=name, workload=name or "w", embedded_on=name or "t", embedding=name,
            family=name, reason=name,
        )
        for name in NASTY
    ]  # fmt: skip
    found = document(operators, NASTY[0], provenance=NASTY[1], target=NASTY[3])
    for name, tensor in zip(NASTY * 3, found["tensors"].values(), strict=False):
        tensor |= {"dtype": name, "layout": name, "conversions": [{"to": name, "us": 1.0}]}
    found["machine"] = {name: {name: [name]} for name in NASTY}
    return found


@pytest.mark.parametrize(
    "given", [residual(4), attention(2), nasty(), document([])], ids=["a", "b", "nasty", "empty"]
)
def test_a_page_is_well_formed_and_its_links_lead_somewhere(given: dict[str, Any]) -> None:
    found = Elements(page(given))
    assert not found.wrong
    assert not found.open
    names = [attributes["id"] for _, attributes in found.elements if "id" in attributes]
    assert len(names) == len(set(names))
    links = [a["href"] for a in found.named("a")]
    assert all(link.startswith("#") and link[1:] in names for link in links)


def test_nothing_is_loaded_from_elsewhere() -> None:
    found = Elements(page(residual(3)))
    loading = [
        (tag, attributes)
        for tag, attributes in found.elements
        if {"src", "srcset", "data", "xlink:href"} & set(attributes)
        or (tag == "link" and not attributes["href"].startswith("data:"))
    ]
    assert not loading
    style = files("cpembed.report").joinpath("page.css").read_text()
    assert "url(" not in style
    assert "@import" not in style


def test_names_are_shown_and_never_run() -> None:
    found = Elements(page(nasty()))
    assert len(found.named("script")) == 1
    assert not found.named("img")
    handlers = [n for _, attributes in found.elements for n in attributes if n.startswith("on")]
    assert not handlers
    text = "".join(found.texts)
    assert "<script>alert(1)</script>" in text
    assert '"><img src=x onerror=alert(1)>' in text
    page(nasty()).encode("utf-8")


def test_the_policy_allows_the_one_script() -> None:
    """Its digest by another way than the page's."""
    import base64
    import hashlib

    text = page(nasty())
    (script,) = re.findall(r"<script>(.*?)</script>", text, re.S)
    digest = base64.b64encode(hashlib.sha256(script.encode("utf-8")).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in text
    assert "default-src 'none'" in text


def test_every_operator_has_a_node_a_row_and_a_card() -> None:
    given = attention(3)
    count = len(given["operators"])
    found = Elements(page(given))
    nodes = [a for a in found.named("a") if "node" in a.get("class", "").split()]
    assert [int(a["data-op"]) for a in nodes] == list(range(count))
    assert len(found.named("article")) == count
    rows = [a for a in found.named("tr") if "data-op" in a]
    assert len(rows) == count
    assert sum("slowest" in a["class"] for a in rows) >= 1


def test_states_are_told_apart() -> None:
    network = read(residual(3))
    found = [network.state(each) for each in network.operators]
    assert set(found) == set(State)
    by_name = {each.name: network.state(each) for each in network.operators}
    assert by_name["/stem/Conv"] is State.EMBEDDED
    assert by_name["/layer1/layer1.1/odd/Conv"] is State.UNMATCHED
    assert by_name["/layer1/layer1.2/downsample/Conv"] is State.ALTERNATIVE
    assert by_name["/layer1/layer1.0/Add"] is State.GENERATED


def test_edges_are_the_tensors_between_operators() -> None:
    operators = [
        operator("a", ["input", "weights"], ["x"]),
        operator("b", ["x", "x"], ["y", "z"]),
        operator("c", ["x", "z"], ["w"]),
    ]
    found = [(e.source, e.target, e.tensor, e.first) for e in edges(read(document(operators)))]
    assert found == [(0, 1, "x", True), (0, 2, "x", False), (1, 2, "z", True)]


def test_conversions_are_marks_with_their_times() -> None:
    text = page(residual(1))
    assert "a0 is copied to NCHW16c in 3.25 µs" in text
    assert Elements(text).named("g")[2]["class"] == "conversion"


def test_the_edge_to_who_reads_the_copy_has_the_mark() -> None:
    operators = [
        operator("a", ["input"], ["x"], layouts=["NCHW", "NHWC"]),
        operator("b", ["x"], ["y"], layouts=["NHWC", "NHWC"]),
        operator("c", ["x"], ["z"], layouts=["NCHW16c", "NHWC"]),
    ]
    given = document(operators)
    copy = {"to": "NCHW16c", "us": 3.0}
    given["tensors"]["x"] |= {"layout": "NHWC", "conversions": [copy]}
    network = read(given)
    found = {e.target: e.conversions(network.tensor(e.tensor)) for e in edges(network)}
    assert [c.to for c in found[2]] == ["NCHW16c"]
    assert found[1] == ()
    assert page(given).count('class="conversion"') == 1


def test_what_is_not_known_is_left_out() -> None:
    """A document with the least there can be, and with numbers that are none."""
    bare = {"network": "n", "target": "t", "operators": [{"name": "a"}, {"name": "b"}]}
    assert "NaN" not in page(bare)
    odd = residual(1)
    odd["totals"]["measured_us"] = float("nan")
    odd["operators"][0]["measured_us"] = float("inf")
    odd["assignment"] = None
    text = page(odd)
    assert "Choice of layouts" not in text
    assert "nan" not in text
    assert "inf " not in text


def test_families_are_mappings_too() -> None:
    given = document([product("a", [], ["x"], family={"y": ["k"], "z": ["c", "r"], "x": []})])
    assert "y ← k   z ← c r   x ← ·" in page(given)


def test_what_is_no_document_is_said() -> None:
    with pytest.raises(InvariantError, match="document of a network"):
        read({"target": "t"})
    with pytest.raises(InvariantError, match="document of a network"):
        read({"network": "n", "target": "t", "operators": [{"name": "a", "macs": "many"}]})


def test_the_page_is_written_whole(tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    write_page(residual(1), path)
    assert path.read_text(encoding="utf-8") == page(residual(1))


def test_names_keep_their_letters() -> None:
    assert html("größe/卷积 ✓") == "größe/卷积 ✓"


# ------------------------------------------------------------------------------------- contrast


def luminance(colour: str) -> float:
    """As WCAG 2 defines it."""
    parts = [int(colour[k : k + 2], 16) / 255 for k in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(first: str, second: str) -> float:
    high, low = sorted((luminance(first), luminance(second)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def themes() -> list[dict[str, str]]:
    """The light colours and the dark ones."""
    style = files("cpembed.report").joinpath("page.css").read_text()
    found = re.findall(r"--([\w-]+): light-dark\((#\w{6}), (#\w{6})\);", style)
    return [{name: pair[number] for name, *pair in found} for number in (0, 1)]


@pytest.mark.parametrize("number", [0, 1])
def test_texts_stand_out_from_what_is_behind_them(number: int) -> None:
    theme = themes()[number]
    pairs = [(front, back) for front in ("text", "dim") for back in ("page", "panel")]
    pairs += [("link", "page"), ("link", "panel"), ("mark", "page"), ("mark", "panel")]
    for state in State:
        pairs += [(front, f"{state}-fill") for front in ("text", "dim", str(state))]
        pairs += [(str(state), "page"), (str(state), "panel")]
    low = {pair: contrast(theme[pair[0]], theme[pair[1]]) for pair in pairs}
    assert {pair: ratio for pair, ratio in low.items() if ratio < 4.5} == {}
    # Shapes need less.
    for front, back in (("line", "page"), ("bar", "page"), ("bar", "panel")):
        assert contrast(theme[front], theme[back]) >= 3
