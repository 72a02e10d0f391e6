from __future__ import annotations

import math
from typing import Any

import pytest

from cpembed.hw.loader import load_hardware_spec
from tests.experiments.loading import committed, script

run = script("rieber2021/footprints")
CASES = {case.label: case for case in run.cases()}


def rows() -> list[dict[str, Any]]:
    return committed("rieber2021/footprints")["rows"]


def check(label: str) -> None:
    """The row as committed, and not above the paper unless known."""
    case = CASES[label]
    (row,) = (r for r in rows() if (r["table"], r["row"]) == (case.table, case.row))
    naive = run.naive_padding(case, load_hardware_spec(case.target).instruction)
    found = run.search(case, "relaxed", naive)
    assert found["refused"] == 0
    for which in ("best", "smallest"):
        sizes = ("data", "weights", "total", "macs")
        assert [found[which][s] for s in sizes] == [row["relaxed"][which][s] for s in sizes]


@pytest.mark.parametrize(
    "label", ["table 3/4, row 4", "table 3/4, row 8", "table 3/4, row 10", "table 3/4, row 13"]
)
def test_footprints_are_those_in_the_results(label: str) -> None:
    check(label)


@pytest.mark.slow
@pytest.mark.parametrize("label", CASES)
def test_all_footprints_are_those_in_the_results(label: str) -> None:
    check(label)


def test_committed_results_are_above_the_paper_only_where_known() -> None:
    assert len(rows()) == len(CASES) == 24
    assert run.above(rows()) == run.EXPECTED_ABOVE


def test_paper_adds_up_but_for_one_row() -> None:
    wrong = {label for label, case in CASES.items() if not case.add_up(case.smallest)}
    assert wrong == {"table 5, row 8"}


def test_table_4_row_14_stores_each_element_once_and_none_else() -> None:
    """Above the paper's figure, and yet no layout is smaller: the reference differs."""
    (row,) = (r for r in rows() if (r["table"], r["row"]) == ("3/4", 14))
    image, weights = (CASES["table 3/4, row 14"].workload.operand(name) for name in "IW")
    stored = row["relaxed"]["smallest"]["elements"]
    assert stored == {"data": math.prod(image.shape), "weights": math.prod(weights.shape)}


def test_table_5_row_8_states_a_total_below_the_image_itself() -> None:
    case = CASES["table 5, row 8"]
    data, weights = case.reference
    most = (case.smallest.total + case.half_unit) * (data + weights) - weights
    assert most < math.prod(case.workload.operand("I").shape)
