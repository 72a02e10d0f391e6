"""The drawing of a candidate: well-formed, by itself, and true to the program."""

from __future__ import annotations

import itertools
import re
import stat
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import pytest

from cpembed.driver.explain import explain
from cpembed.driver.named import workload
from cpembed.driver.result import Explanation
from cpembed.errors import CpembedError
from cpembed.files import write_whole
from cpembed.report import drawing
from cpembed.report.drawing import covered
from cpembed.report.explain import rewrite_text

SVG = "{http://www.w3.org/2000/svg}"

CASES = {
    "padded": ("conv2d n=1 c=12 h=10 w=10 k=20 r=3 s=3 pad=1", "amx_int8", "in_place_padded", 1),
    "stencil": ("conv2d n=1 c=3 h=12 w=12 k=16 r=3 s=5", "vta_1x16x16", "relaxed", 1),
    "strided": ("conv1d n=2 c=6 w=27 k=20 s=5 stride=2", "vta_8x8x8", "relaxed", 20),
    "fused": ("conv2d n=1 c=3 h=12 w=12 k=16 r=7 s=7", "vta_1x16x16", "flattened", 1),
    "scalar": ("dot k=64", "dot", "in_place_padded", 1),
}


@pytest.fixture(scope="module", params=CASES)
def explanation(request: pytest.FixtureRequest) -> Explanation:
    return _explanation(request.param)


def _explanation(name: str) -> Explanation:
    words, target, constraints, rank = CASES[name]
    found = explain(workload(words, target), target, constraints=constraints, rank=rank)
    assert isinstance(found, Explanation)
    return found


def parsed(text: str) -> ElementTree.Element:
    return ElementTree.fromstring(text.removeprefix("<!DOCTYPE html>"))


@pytest.mark.parametrize("make", [drawing.svg, drawing.html])
def test_the_document_stands_alone(
    explanation: Explanation, make: Callable[[Explanation], str]
) -> None:
    text = make(explanation)
    root = parsed(text)
    ids = [element.attrib["id"] for element in root.iter() if "id" in element.attrib]
    assert ids == ["hatch"]
    assert re.findall(r"url\((.*?)\)", text) == ["#hatch"]
    outside = text.replace("http://www.w3.org/2000/svg", "")
    assert not re.search(r"https?:|//|src=|href=|@import|<script", re.sub(r"\w//\d", "", outside))
    assert "prefers-color-scheme:dark" in text


def test_every_class_has_a_look(explanation: Explanation) -> None:
    text = drawing.svg(explanation)
    styled = set(re.findall(r"\.(\w+)[ {]", re.search(r"<style>(.*?)</style>", text)[1]))
    used = {name for element in parsed(text).iter() for name in element.get("class", "").split()}
    assert used <= styled


def test_nothing_is_drawn_outside_of_the_sheet(explanation: Explanation) -> None:
    root = parsed(drawing.svg(explanation))
    width, height = float(root.attrib["width"]), float(root.attrib["height"])

    def walk(element: ElementTree.Element, x: float, y: float) -> None:
        move = re.fullmatch(r"translate\((\S+) (\S+)\)", element.get("transform", ""))
        if move:
            x, y = x + float(move[1]), y + float(move[2])
        if element.tag in (f"{SVG}rect", f"{SVG}text"):
            left, top = x + float(element.attrib["x"]), y + float(element.attrib["y"])
            assert -1 <= left <= left + float(element.get("width", 0)) <= width
            assert -1 <= top <= top + float(element.get("height", 0)) <= height
        for child in element:
            walk(child, x, y)

    walk(root, 0, 0)


def test_a_curve_for_each_digit(explanation: Explanation) -> None:
    paths = parsed(drawing.svg(explanation)).iter(f"{SVG}path")
    curves = [path for path in paths if "feed" in path.attrib["class"].split()]
    digits = explanation.program.embedding.digits
    assert len(curves) == sum(map(len, digits.values()))


def test_a_bar_shows_what_one_execution_covers(explanation: Explanation) -> None:
    program = explanation.program
    extents = {lane.name: range(lane.extent) for lane in program.instruction_axes}
    for axis, index in program.axis_map.items():
        # The first execution: all outer loops at zero.
        coordinates = {0}
        for term in index.terms:
            lanes = extents.get(term.iterator, range(1))
            digits = {lane // term.divisor % (term.modulus or len(lanes)) for lane in lanes}
            coordinates = {at + term.coefficient * d for at in coordinates for d in digits}
        runs = covered(program, axis)
        assert {at for first, last in runs for at in range(first, last)} == coordinates
        assert all(a[1] < b[0] for a, b in itertools.pairwise(runs))


def test_padding_is_hatched_where_it_is() -> None:
    boxes = list(parsed(drawing.svg(_explanation("padded"))).iter(f"{SVG}rect"))
    hints = [box.findtext(f"{SVG}title") for box in boxes if "padding" in box.attrib["class"]]
    assert "k is padded from 20 to 32" in hints
    assert any(hint and re.fullmatch(r"1 padded", hint) for hint in hints)


def test_each_rewrite_is_a_strip(explanation: Explanation) -> None:
    root = parsed(drawing.html(explanation))
    shown = ["".join(element.itertext()) for element in root.iter(f"{SVG}text")]
    assert shown.count("original") == len(explanation.program.roles)
    steps = [step for steps in explanation.steps.values() for step in steps]
    drawn = sum(rewrite_text(step) in shown for step in steps)
    assert drawn == len(explanation.program.rewrites)
    for operand in explanation.program.operands:
        assert all(dimension.name in shown for dimension in operand.dimensions)


def test_a_file_is_replaced_whole(tmp_path: Path) -> None:
    path = tmp_path / "a.svg"
    path.write_text("before")
    link = tmp_path / "link.svg"
    link.symlink_to(path)
    write_whole(link, "ä")
    assert (path.read_text(encoding="utf-8"), link.is_symlink()) == ("ä", True)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.svg", "link.svg"]
    assert stat.S_IMODE(path.stat().st_mode) & 0o400


def test_a_failed_write_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.svg"
    path.write_text("before")

    def fail(self: Path, target: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", fail)
    with pytest.raises(CpembedError, match=r"a\.svg cannot be written: No space left on device"):
        write_whole(path, "after")
    assert path.read_text() == "before"
    assert list(tmp_path.iterdir()) == [path]


def test_a_device_is_written_to_and_stays_one() -> None:
    write_whole(Path("/dev/null"), "text")
    assert stat.S_ISCHR(Path("/dev/null").stat().st_mode)
