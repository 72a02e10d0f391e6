"""Results that pass through main memory in every program, and combinations of matches."""

from __future__ import annotations

import itertools

import pytest

from benchmarks.act import BYTES, CHAIN, MATRIX, Kernel
from cpembed.accelerator.combinations import Combinations
from cpembed.accelerator.matching import match_statement
from cpembed.accelerator.operator_search import compulsory_bytes, crossing_tensors
from cpembed.hw.isa_reader import load_instruction_set

PRODUCTS = Kernel("A·B·C", "gemmini", BYTES, MATRIX, "ABC", "F", CHAIN[:4])


@pytest.mark.parametrize("target, expected", [("gemmini", {"E"}), ("tpu_like", set[str]())])
def test_gemmini_alone_has_no_way_from_its_accumulator_to_its_scratchpad(
    target: str, expected: set[str]
) -> None:
    machine = load_instruction_set(target)
    specification = PRODUCTS.specification()
    matchings = [match_statement(s, machine) for s in specification.statements]
    assert crossing_tensors(matchings, machine) == expected
    # Three inputs and the output cross once, and E twice.
    count = 4 + 2 * len(expected)
    assert compulsory_bytes(specification, matchings, machine) == count * 64 * 64


def test_combinations_of_a_match_agree_on_lanes_and_come_in_the_order_of_their_cycles() -> None:
    machine = load_instruction_set("tpu_like")
    specification = PRODUCTS.specification()
    matchings = [match_statement(s, machine) for s in specification.statements]
    combinations = Combinations(specification, matchings, machine, keeps_order=False)
    first = list(itertools.islice(next(iter(combinations)), 50))
    cycles = [sum(match.cycles for match in matches) for matches in first]
    assert len(first) > 4
    assert cycles == sorted(cycles)
    assert len({tuple(map(str, matches)) for matches in first}) == len(first)
