from __future__ import annotations

import pytest

from tests.experiments.loading import EXPERIMENTS, committed, script

run = script("amos2022/tensor_core_families")

FOLDER = EXPERIMENTS / "amos2022/tensor_core_families"


def test_the_results_are_as_expected() -> None:
    document = committed("amos2022/tensor_core_families")
    assert run.problems(document["rows"]) == []
    assert run.markdown(document) == (FOLDER / "results.md").read_text()


def test_a_count_that_is_not_as_expected_is_reported() -> None:
    (row,) = [
        r
        for r in committed("amos2022/tensor_core_families")["rows"]
        if (r["operator"], r["target"], r["constraints"]) == ("C2D", "mma_f16", "complete")
    ]
    assert run.problems([{**row, "families": [97, 98]}]) == [
        "C2D on mma_f16 under complete: 97 to 98 families, expected 98 to 98"
    ]


def test_four_axes_do_not_fit_an_extent_of_eight() -> None:
    assert [run.subsets(4, extent) for extent in (8, 16, 32)] == [14, 15, 15]
    assert run.expected("C3D", "wmma_f16_8x32x16", "relaxed") == (14 * 15, 14 * 15)
    assert run.expected("C3D", "mma_f16", "complete") == (15 * 15 + 14 * 15, 2 * 15 * 15)


def test_what_never_embeds_is_left_out() -> None:
    counts = {operator: len(numbers) for operator, numbers in run.layers().items()}
    assert sum(counts.values()) == 123
    assert counts["DEP"] == 6


@pytest.mark.quick(1)
@pytest.mark.parametrize("target", run.TARGETS)
def test_an_operator_counts_as_committed(target: str) -> None:
    """The operator with the fewest layers of those that have many families."""
    numbers = run.layers()["BCV"]
    rows = [
        r
        for r in committed("amos2022/tensor_core_families")["rows"]
        if (r["operator"], r["target"]) == ("BCV", target)
    ]
    assert run.measure({"BCV": numbers}, [target]) == rows
