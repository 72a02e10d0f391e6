"""Reasons why a match uses little of an instruction, with remedies that work when followed."""

from __future__ import annotations

import random
import re

import pytest

from cpembed.accelerator.cost import peak_share, unfilled
from cpembed.accelerator.matching import Match, match_statement
from cpembed.accelerator.specification import Statement
from cpembed.hw.isa_reader import load_instruction_set
from cpembed.workloads.naming import parse_workload

_FILL = re.compile(r"; (\d+) along (\w+) would fill it$")
_WHOLE = re.compile(r"^(\w+) of (\d+) takes \d+ x (\d+) places of \w+; multiples of (\d+) leave")


def matches(sizes: dict[str, int], target: str) -> list[Match]:
    words = ["gemm", *(f"{axis}={size}" for axis, size in sizes.items())]
    found = match_statement(Statement(parse_workload(words)), load_instruction_set(target))
    return [match for match in found.matches if "C" in match.instruction.places]


def same(match: Match, candidates: list[Match]) -> Match:
    """Return the match of the same instruction and axes in a layer of other sizes."""
    fed = {axis: [digit.axis for digit in digits] for axis, digits in match.axes.items()}
    return next(
        each
        for each in candidates
        if each.instruction.name == match.instruction.name
        and {axis: [d.axis for d in digits] for axis, digits in each.axes.items()} == fed
    )


@pytest.mark.parametrize("target", ["gemmini", "tpu_like", "nvdla_like"])
@pytest.mark.parametrize("seed", range(3))
def test_a_layer_that_follows_all_remedies_fills_the_instruction(target: str, seed: int) -> None:
    chance = random.Random(seed)
    sizes = {axis: chance.randint(2, 40) for axis in "mnk"}
    for match in matches(sizes, target):
        if not all(match.axes.values()):
            continue
        larger = dict(sizes)
        for reason in unfilled(match):
            if fill := _FILL.search(reason):
                larger[fill[2]] = int(fill[1])
            elif whole := _WHOLE.search(reason):
                assert sizes[whole[1]] == int(whole[2])
                larger[whole[1]] = -(-sizes[whole[1]] // int(whole[4])) * int(whole[4])
            else:
                pytest.fail(f"no remedy: {reason}")
        followed = same(match, matches(larger, target))
        assert not unfilled(followed)
        assert peak_share(match) <= peak_share(followed) == pytest.approx(1.0)


def test_a_share_is_of_the_cycles_at_the_largest_sizes() -> None:
    """3 rows of 20 x 40 products in 4 + 3 cycles, of 64 x 64 in each but 4 of 516 cycles."""
    (match, *_) = matches({"m": 3, "n": 20, "k": 40}, "tpu_like")
    assert match.instruction.name == "matmul"
    cycles = match.instruction.occupied_cycles
    most = 512 * 64 * 64 / float(cycles(match.instruction.extents))
    assert peak_share(match) == pytest.approx(3 * 20 * 40 / float(cycles(match.sizes)) / most)
    assert unfilled(match)[0] == "m fills 3 of 512 places of x; 512 along m would fill it"
