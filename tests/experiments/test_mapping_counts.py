from __future__ import annotations

import pytest

from cpembed.hw.loader import load_hardware_spec
from cpembed.workloads.suites import suite
from tests.experiments.loading import committed, script

run = script("amos2022/table6")


@pytest.mark.parametrize(
    "index", [0, 5, 10, 19, 42, 53, 56, 63, 81, 85, 95, 107, 119], ids=lambda i: f"amos:{i}"
)
def test_counts_are_amos_and_the_closed_form(index: int) -> None:
    layer = suite("amos")[index]
    counted = run.count(layer.workload(), load_hardware_spec(run.TARGET).instruction)
    assert counted["families"] == counted["closed_form"]
    assert counted["amos_rule"] == run.PAPER[layer.application]


@pytest.mark.slow
@pytest.mark.parametrize("index", [31, 70], ids=lambda i: f"amos:{i}")
def test_large_counts(index: int) -> None:
    test_counts_are_amos_and_the_closed_form(index)


@pytest.mark.parametrize("number", [0, 3, 9, 11])
def test_mapping_of_amos_is_a_family(number: int) -> None:
    layer = run.TABLE_5[number]
    _, found = run.families(layer.workload(), load_hardware_spec(run.TARGET).instruction)
    assert layer.family in found


def test_family_without_a_match_is_refused_by_amos_only() -> None:
    workload = suite("amos")[19].workload()
    instruction = load_hardware_spec(run.TARGET).instruction
    matches = list(run.single_axis_matches(workload, instruction.computation))
    assert {"x": "p", "y": "k", "z": "r"} not in matches

    def family(x: str, z: str) -> object:
        return (("x", frozenset(x)), ("y", frozenset("k")), ("z", frozenset(z)))

    _, found = run.families(workload, instruction)
    for x, z, accepted in (("p", "r", False), ("np", "r", False), ("pq", "rs", True)):
        assert family(x, z) in found
        assert run.amos_accepts(family(x, z), matches) is accepted


def test_committed_results_agree() -> None:
    document = committed("amos2022/table6")
    assert [row["operator"] for row in document["table_6"]] == list(run.PAPER)
    assert all(map(run.agrees, document["table_6"]))
    assert all(row["found"] for row in document["table_5"])
