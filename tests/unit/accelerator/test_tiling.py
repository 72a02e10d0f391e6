"""The tiling search against enumerations that share no code with it."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Sequence
from dataclasses import replace

import pytest

from cpembed.accelerator.bounds import bounds
from cpembed.accelerator.matching import match_statement
from cpembed.accelerator.problem import OperatorProblem
from cpembed.accelerator.template import Template, exact_template
from cpembed.accelerator.tiling_grid import tile_counts
from cpembed.accelerator.tiling_search import TilingSearch
from cpembed.hw.isa import InstructionSet, Synchronization
from tests.unit.accelerator.toys import plans, product, systolic

LANES = 4
SIZES = (12, 8, 16)


def by_bytes(rows: int, sums: int) -> InstructionSet:
    """A machine on which only bytes cost cycles."""
    base = systolic(rows, sums)
    free = {n: replace(i, cycles=(((), 0.0),)) for n, i in base.instructions.items()}
    return replace(base, instructions=free, synchronization=Synchronization.IN_ORDER)


def template(rows: int, sums: int) -> Template:
    specification = product(*SIZES, bias=False)
    target = by_bytes(rows, sums)
    order = ["matmul", "mvout"]
    matches = tuple(
        next(
            m
            for m in match_statement(s, target).matches
            if m.instruction.name == name and all(len(d) == 1 for d in m.axes.values())
        )
        for s, name in zip(specification.statements, order, strict=True)
    )
    return exact_template(OperatorProblem(specification, matches), target)


def best_bytes(rows: int, sums: int) -> float:
    """Return the bytes of the first tiling of the search."""
    candidate = TilingSearch(template(rows, sums)).next()
    assert candidate is not None
    return candidate.bytes_moved


Loops = Sequence[tuple[str, int]]


def walk(loops: Loops) -> Iterator[dict[str, tuple[int, int]]]:
    """Yield the range of each axis in every iteration of loops over tiles."""

    def inner(
        loops: Loops, ranges: dict[str, tuple[int, int]]
    ) -> Iterator[dict[str, tuple[int, int]]]:
        if not loops:
            yield ranges
            return
        (axis, step), *rest = loops
        first, end = ranges[axis]
        for at in range(first, end, step):
            yield from inner(rest, {**ranges, axis: (at, min(at + step, end))})

    yield from inner(loops, {a: (0, e) for a, e in zip("ijk", SIZES, strict=True)})


def loaded(loops: Loops, depth: int, axes: str) -> int:
    """Return the bytes that are loaded of an operand that has a buffer at a depth."""
    total, before = 0, None
    for ranges in walk(loops[:depth]):
        box = tuple(ranges[a] for a in axes)
        if box != before:
            total += (box[0][1] - box[0][0]) * (box[1][1] - box[1][0])
            before = box
    return total


def rows(loops: Loops, depth: int, axes: str) -> int:
    """Return the rows of the largest box at a depth: the second axis is in the lanes."""
    size: dict[str, int] = dict(zip("ijk", SIZES, strict=True))
    for axis, step in loops[:depth]:
        size[axis] = min(size[axis], step)
    return size[axes[0]] * -(-size[axes[1]] // LANES)


def least_bytes(tilings: Iterator[tuple[Loops, int, int, int]], capacity: int, sums: int) -> int:
    """Return the fewest bytes of A and B of the tilings that fit."""
    best = 1 << 40
    for loops, a, b, c in tilings:
        if any(axis == "k" for axis, _ in loops[:c]) or rows(loops, c, "ij") > sums:
            continue
        if rows(loops, a, "ik") + rows(loops, b, "kj") > capacity:
            continue
        best = min(best, loaded(loops, a, "ik") + loaded(loops, b, "kj"))
    return best


def one_level() -> Iterator[tuple[Loops, int, int, int]]:
    sizes = [range(LANES, e + 1, LANES) for e in SIZES]
    for steps in itertools.product(*sizes):
        for order in itertools.permutations(zip("ijk", steps, strict=True)):
            for depths in itertools.product(range(4), repeat=3):
                a, b, c = depths
                yield order, a, b, c


def two_levels(seed: int, count: int) -> Iterator[tuple[Loops, int, int, int]]:
    generator = random.Random(seed)
    for _ in range(count):
        loops: list[tuple[str, int]] = []
        for axis, extent in zip("ijk", SIZES, strict=True):
            outer = generator.randrange(LANES, extent + 1, LANES)
            inner = generator.randrange(LANES, outer + 1, LANES)
            loops += [(axis, outer), (axis, inner)]
        order = generator.sample(range(6), 6)
        mixed = [loops[n] for n in order]
        # The larger tile of an axis comes first.
        for axis in "ijk":
            at = [n for n, (a, _) in enumerate(mixed) if a == axis]
            steps = sorted((mixed[n][1] for n in at), reverse=True)
            for n, step in zip(at, steps, strict=True):
                mixed[n] = axis, step
        a, b, c = (generator.randrange(7) for _ in range(3))
        yield mixed, a, b, c


@pytest.mark.parametrize("capacity, sums", [(8, 4), (12, 8), (20, 12), (28, 24), (64, 8)])
def test_no_tiling_moves_fewer_bytes(capacity: int, sums: int) -> None:
    m, n, _ = SIZES
    found = best_bytes(capacity, sums) - m * n
    enumerated = itertools.chain(one_level(), two_levels(1, 1500))
    assert found <= least_bytes(enumerated, capacity, sums)
    assert found >= bounds(template(capacity, sums))[1] - m * n


def test_more_rows_move_no_more_bytes() -> None:
    moved = [best_bytes(rows, sums) for rows, sums in
             itertools.product((8, 12, 16, 32, 64), (4, 8, 24))]  # fmt: skip
    by_rows = [moved[n : n + 3] for n in range(0, len(moved), 3)]
    for smaller, larger in itertools.pairwise(by_rows):
        assert all(b <= a for a, b in zip(smaller, larger, strict=True))
    for line in by_rows:
        assert line == sorted(line, reverse=True)


def test_searches_compare_the_sizes_that_are_least_for_their_number() -> None:
    for count in range(1, 60):
        expected = {min(s for s in range(1, count + 1) if -(-count // s) == -(-count // t))
                    for t in range(1, count + 1)}  # fmt: skip
        assert tile_counts(count) == sorted(expected)


def test_plans_trade_rows_for_cycles() -> None:
    front = plans(product(40, 24, 32, bias=False), systolic(128, 48))
    capacities = [
        sum(p.machine.memories[name].row_bytes * rows for name, rows in p.rows.items())
        for p in front
    ]
    assert capacities == sorted(capacities, reverse=True)
    assert [p.cycles for p in front] == sorted(p.cycles for p in front)
    for plan in front:
        assert plan.cycles >= plan.cycles_bound
        assert plan.cost.moved["dram", "written"] >= 40 * 24
