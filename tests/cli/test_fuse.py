"""``cpembed fuse`` as a person or a script sees it."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.cli.calling import Caller
from tests.site.hooks import ROOT
from tests.unit.cost.fusion.test_fusion import TARGET


@pytest.fixture(name="files")
def _files(tmp_path: Path) -> tuple[str, str]:
    """Return the block of the page and a target that computes it."""
    page = (ROOT / "docs" / "fusion.md").read_text()
    match = re.search(r"```toml\n(.*?)```", page, re.DOTALL)
    assert match is not None
    block, target = tmp_path / "block.toml", tmp_path / "unit.toml"
    block.write_text(match[1])
    target.write_text(TARGET)
    return str(block), str(target)


SMALL = ("--set", "m=4", "--set", "g=4", "--set", "c=4", "--set", "j=4")


def test_the_block_of_the_page(cpembed: Caller, files: tuple[str, str]) -> None:
    block, target = files
    called = cpembed("fuse", block, "--target", target, *SMALL, "--objective", "energy", "--json")
    document = json.loads(called.out)
    assert document["block"] == "feed_forward"
    assert [operator["name"] for operator in document["operators"]] == ["up", "down"]
    assert document["least_cost"] <= document["fused"]["cost"] < document["unfused"]["cost"]
    # The intermediate of 16 bytes stays on chip: it is neither written nor read.
    assert document["unfused"]["bytes"] - document["fused"]["bytes"] >= 32
    assert document["fused"]["cost"] == pytest.approx(document["fused"]["energy_pj"])


def test_the_report_says_what_is_on_chip(cpembed: Caller, files: tuple[str, str]) -> None:
    block, target = files
    called = cpembed("fuse", block, "--target", target, *SMALL, "--objective", "bytes")
    assert "Schedule, and tensors in chip" in called.out
    assert re.search(r"up +\[.*T", called.out)


@pytest.mark.parametrize(
    "arguments, problem",
    [
        (("--set", "q=4"), "axes.q: no such axis"),
        (("--set", "m"), "write AXIS=EXTENT"),
        (("--machine", "none"), "no machine 'none'"),
    ],
)
def test_wrong_arguments_are_one_line(
    cpembed: Caller, files: tuple[str, str], arguments: tuple[str, ...], problem: str
) -> None:
    block, target = files
    cpembed("fuse", block, "--target", target, *SMALL, *arguments).is_one_line_error(2, problem)


def test_an_operator_that_fits_no_target_is_named(
    cpembed: Caller, files: tuple[str, str], tmp_path: Path
) -> None:
    _, target = files
    path = tmp_path / "wrong.toml"
    path.write_text(
        'name = "b"\naxes = { m = 4 }\n[[operators]]\nname = "copy"\nexpression = "T[m] = X[m]"\n'
    )
    cpembed("fuse", str(path), "--target", target).is_one_line_error(2, "b: copy: unit: ")
