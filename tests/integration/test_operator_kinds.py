"""What machines compute of each kind of operator: the table of ``docs/accelerators.md``."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.compilers import needs_executor
from tests.integration.operator_kinds import CASES, MACHINES, outcome

PAGE = Path(__file__).parents[2] / "docs" / "accelerators.md"


def documented() -> dict[tuple[str, str], str]:
    """Return the cells of the page's table by kind and machine."""
    head = f"| kind | {' | '.join(MACHINES)} |"
    lines = PAGE.read_text().split(head)[1].splitlines()[2:]
    cells: dict[tuple[str, str], str] = {}
    for line in lines:
        if not line.startswith("|"):
            break
        kind, *results = (cell.strip() for cell in line.strip("|").split("|"))
        cells.update({(kind, m): r for m, r in zip(MACHINES, results, strict=True)})
    return cells


def test_the_page_has_known_kinds() -> None:
    assert {kind for kind, _ in documented()} <= set(CASES)


QUICK = [("matrix product", "gemmini"), ("matrix product, scales per channel", "gemmini")]


@needs_executor
@pytest.mark.parametrize(
    "kind, machine",
    [
        pytest.param(k, m, marks=() if (k, m) in QUICK else pytest.mark.slow)
        for k, m in documented()
    ],
)
def test_machines_compute_what_the_page_says(kind: str, machine: str) -> None:
    assert outcome(kind, machine) == documented()[kind, machine]
