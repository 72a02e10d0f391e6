from __future__ import annotations

import re
from typing import Any

import pytest

from tests.experiments.loading import EXPERIMENTS, committed, script

run = script("studies/shapes")
FOLDER = EXPERIMENTS / "studies/shapes"


def stored() -> list[dict[str, Any]]:
    return committed("studies/shapes")["rows"]


def timeless(row: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in row.items() if key != "seconds"}


@pytest.mark.parametrize("constraints", run.SETS)
def test_the_stored_figures_are_those_of_today(constraints: str) -> None:
    row = run.examine("resnet50", 256, constraints)
    (kept,) = [
        r
        for r in stored()
        if (r["suite"], r["macs"], r["constraints"]) == ("resnet50", 256, constraints)
    ]
    assert timeless(row) == timeless(kept)


def test_every_answer_is_proven_and_no_better_than_the_ideal() -> None:
    rows = stored()
    assert len(rows) == len(run.SUITES) * len(run.MACS) * len(run.SETS)
    for row in rows:
        costs = [found["executions"] for found in row["best"]]
        assert all(found["proven"] for found in row["best"])
        assert row["ideal"] <= costs[2] <= costs[1] <= costs[0]


def test_freer_sets_need_no_more() -> None:
    """Each set has the embeddings of the one before it, but for those that exchange factors where
    nothing else fits."""
    for suite in run.SUITES:
        for macs in run.MACS:
            rows = {
                r["constraints"]: r["best"][0]["executions"]
                for r in stored()
                if (r["suite"], r["macs"]) == (suite, macs)
            }
            least = [rows[name] for name in run.SETS]
            assert least == sorted(least, reverse=True)


def test_the_page_has_the_medians_of_the_results() -> None:
    page = (FOLDER / "README.md").read_text(encoding="utf-8")
    rows = [line for line in page.splitlines() if "none fits" in line]
    found = [[float(text) for text in re.findall(r"x(\d+\.\d+)", line)] for line in rows]
    expected = [
        [
            round(r["maximal"]["median"], 3)
            for r in stored()
            if (r["suite"], r["macs"]) == (suite, macs) and r["constraints"] != "strict"
        ]
        for suite in ("resnet50", "deepbench", "gemm", "mobilenet")
        for macs in run.MACS
    ]
    assert found == expected


def test_nothing_is_better_than_what_takes_layouts_into_account() -> None:
    """Its choice is proven the best of all, so that no other one may cost less."""
    document = committed("studies/shapes/layouts")
    assert len(document["rows"]) == 8
    for row in document["rows"]:
        assert row["layouts"]["proven"]
        least = row["layouts"]["cost"]
        assert all(row[way]["cost"] >= least for way in ("executions", "packing"))
