"""The table of candidates on lines of any width."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from cpembed.driver.named import workload
from cpembed.driver.result import SolveResult
from cpembed.driver.solve import solve
from cpembed.report.solve import report


@pytest.fixture(scope="module")
def result() -> SolveResult:
    layer = workload("conv2d n=1 c=64 h=56 w=56 k=64 r=3 s=3 pad=1", target="amx_int8")
    return solve(layer, "amx_int8", top=3)


def printed(result: SolveResult, width: int) -> list[str]:
    """The lines of the table."""
    page = io.StringIO()
    console = Console(file=page, width=width, color_system=None)
    for part in report(result):
        console.print(part)
    lines = [line.rstrip() for line in page.getvalue().splitlines()]
    head = next(n for n, line in enumerate(lines) if line.startswith("rank"))
    return lines[head : lines.index("", head)]


def test_on_a_wide_line_everything_is_there(result: SolveResult) -> None:
    lines = printed(result, 100)
    assert len(lines) == 2 + 3
    for line, item in zip(lines[2:], result.embeddings, strict=True):
        assert "   y ← k:16   z ← c:64" in line
        assert line.endswith(item.candidate.embedding.identifier())


def test_on_80_columns_the_mapping_stays_on_one_line(result: SolveResult) -> None:
    lines = printed(result, 80)
    assert len(lines) == 2 + 3
    assert all(len(line) <= 80 for line in lines)
    assert all("← p:1" in line or "← q:14" in line for line in lines[2:])
    assert all(" z ← c:64" in line for line in lines[2:])


@pytest.mark.parametrize("width", [52, 60, 70])
def test_a_mapping_is_only_cut_between_instruction_axes(result: SolveResult, width: int) -> None:
    lines = printed(result, width)
    assert len(lines) > 2 + 3
    text = "\n".join(lines)
    assert text.count("y ← k:16") == text.count("z ← c:64") == 3


def test_the_room_is_used_to_the_last_column(result: SolveResult) -> None:
    full = printed(result, 200)
    width = max(len(line) for line in full)
    assert printed(result, width) == full
    assert printed(result, width - 1) != full
