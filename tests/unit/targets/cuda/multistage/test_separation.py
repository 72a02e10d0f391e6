"""Addresses as what rows and the depth contribute, beside direct evaluation of random indices."""

from __future__ import annotations

import itertools
import math
import random

import pytest

from cpembed.ir.computation import AxisKind
from cpembed.ir.index import IndexExpr, IndexTerm
from cpembed.targets.cuda.lower import GlobalOperand
from cpembed.targets.cuda.multistage.separation import (
    DepthWalk,
    Positions,
    linear_limits,
    separate,
)
from cpembed.transform.program import Loop, PackedDimension, PackedOperand


def random_walk(rng: random.Random) -> DepthWalk:
    extents = [rng.randint(2, 5) for _ in range(rng.randint(1, 4))]
    loops = tuple(Loop(f"d{n}", e, AxisKind.REDUCTION) for n, e in enumerate(extents))
    return DepthWalk(loops, rng.choice((1, 2, 4)))


@pytest.mark.parametrize("seed", range(40))
def test_a_walk_moves_digits_and_addresses_by_constants(seed: int) -> None:
    rng = random.Random(seed)
    walk = random_walk(rng)
    weights = [rng.randint(-9, 9) for _ in walk.loops]
    index = IndexExpr.sum(
        [IndexTerm(loop.name, w) for loop, w in zip(walk.loops, weights, strict=True)]
    )
    movement = walk.movement(index)
    assert movement is not None
    added, carried = movement
    number = rng.randint(0, 3)
    digits, total, rest = list[int](), 1, number
    for loop in reversed(walk.loops):
        total *= loop.extent
        digits.append(rest % loop.extent if loop is not walk.loops[0] else rest)
        rest //= loop.extent
    address = sum(w * d for w, d in zip(reversed(weights), digits, strict=True))
    while number + walk.increment < total:
        number += walk.increment
        address += added
        for level, increment in enumerate(walk.increments):
            digits[level] += increment
            if level < len(digits) - 1 and digits[level] >= walk.extents[level]:
                digits[level] -= walk.extents[level]
                digits[level + 1] += 1
                address += carried[level]
        expected, inner = 0, number
        for loop, weight in zip(reversed(walk.loops), reversed(weights), strict=True):
            expected += weight * (inner % loop.extent)
            inner //= loop.extent
        assert address == expected


def operand_of(
    access: tuple[IndexExpr, ...], shape: tuple[int, ...], checked: tuple[int, ...]
) -> GlobalOperand:
    layout = PackedOperand(
        name="I",
        dtype="float16",
        original_shape=shape,
        dimensions=tuple(PackedDimension(f"d{n}", size) for n, size in enumerate(shape)),
        source=tuple(IndexExpr.iterator(f"d{n}") for n in range(len(shape))),
        access=access,
    )
    return GlobalOperand(layout, checked, "z", 8)


def random_operand(rng: random.Random) -> tuple[GlobalOperand, dict[str, int]]:
    """A padded image: rows p, q of an output, taps r, s, and channels."""
    extents = {"p": 6, "x": 4, "r": rng.randint(1, 4), "s": rng.randint(1, 4), "c": 2, "z": 8}
    stride, dilation, pad = rng.randint(1, 3), rng.randint(1, 3), rng.randint(0, 4)
    fused = IndexExpr.sum([IndexTerm("p", 4), IndexTerm("x")])
    row, column = IndexTerm.digit(fused, divisor=5), IndexTerm.digit(fused, modulus=5)
    access = (
        IndexExpr.sum([row.times(stride), IndexTerm("r", dilation)], -pad),
        IndexExpr.sum([column.times(stride), IndexTerm("s", -dilation)], pad),
        IndexExpr.sum([IndexTerm("c", 8), IndexTerm("z")]),
    )
    shape = (rng.randint(3, 9), rng.randint(3, 9), 16)
    checked = tuple(
        n
        for n, (index, size) in enumerate(zip(access, shape, strict=True))
        for low, high in (index.bounds(extents),)
        if low < 0 or high >= size
    )
    return operand_of(access, shape, checked), extents


@pytest.mark.parametrize("seed", range(40))
def test_masks_say_where_rows_are_outside(seed: int) -> None:
    rng = random.Random(seed)
    operand, extents = random_operand(rng)
    separation = separate(operand, {"r", "s", "c", "z"}, extents)
    assert separation is not None
    for _ in range(300):
        values = {name: rng.randrange(extent) for name, extent in extents.items()}
        inside = all(
            0 <= operand.layout.access[n].evaluate(values) < operand.layout.shape[n]
            for n in operand.checked
        )
        valid = True
        for window in separation.windows:
            number, rest = divmod(window.check.depth.evaluate(values) - window.low, window.step)
            # What has no bit is refused by a check of the depth.
            valid &= rest == 0 and 0 <= number < window.count
            sum_ = window.check.rows.evaluate(values) + window.low + window.step * number
            valid &= 0 <= sum_ < window.check.size
        for check in (*separation.row_checks, *separation.depth_checks):
            total = check.rows.evaluate(values) + check.depth.evaluate(values)
            valid &= 0 <= total < check.size
        assert valid == inside
        address = separation.rows.evaluate(values) + separation.depth.evaluate(values)
        assert address == operand.address.evaluate(values)


def test_what_moves_with_both_is_not_separable() -> None:
    operand, extents = random_operand(random.Random(1))
    mixed = IndexTerm.digit(IndexExpr.sum([IndexTerm("p"), IndexTerm("r")]), divisor=2)
    access = (IndexExpr((mixed,)), *operand.layout.access[1:])
    layout = PackedOperand(**{**operand.layout.__dict__, "access": access})
    changed = GlobalOperand(layout, operand.checked, "z", 8)
    assert separate(changed, {"r", "s", "c", "z"}, extents) is None


def random_positions(rng: random.Random, name: str) -> Positions:
    extents = [rng.choice((1, 2, 3, 5)) for _ in range(rng.randint(0, 3))]
    loops = tuple(Loop(f"{name}{n}", e, AxisKind.SPATIAL) for n, e in enumerate(extents))
    return Positions(f"{name}x", rng.choice((8, 16)), loops)


def random_index(rng: random.Random, directions: list[Positions]) -> IndexExpr:
    """Of positions times a number, or of digits with weights of their own."""
    terms: list[IndexTerm] = []
    for direction in directions:
        step, place = rng.randint(0, 3), direction.extent
        terms.append(IndexTerm(direction.axis, step))
        for loop in reversed(direction.loops):
            weight = step * place if rng.random() < 0.8 else rng.randint(0, 40)
            terms.append(IndexTerm(loop.name, weight))
            place *= loop.extent
    return IndexExpr.sum(terms, rng.randint(0, 5))


def values_at(direction: Positions, position: int) -> dict[str, int]:
    tile, lane = divmod(position, direction.extent)
    values = {direction.axis: lane}
    for loop in reversed(direction.loops):
        values[loop.name] = tile % loop.extent
        tile //= loop.extent
    return values


def count_of(direction: Positions) -> int:
    return direction.extent * math.prod(loop.extent for loop in direction.loops)


@pytest.mark.parametrize("seed", range(60))
def test_addresses_that_are_linear_are_told_from_others(seed: int) -> None:
    """Beside direct evaluation at every position."""
    rng = random.Random(seed)
    directions = [random_positions(rng, name) for name in "rd"]
    index = random_index(rng, directions)
    zero = {name: 0 for direction in directions for name in direction.names}
    for direction in directions:
        row = [index.evaluate(zero | values_at(direction, n)) for n in range(count_of(direction))]
        slope = direction.slope(index)
        steps = {after - before for before, after in itertools.pairwise(row)}
        assert (len(steps) == 1) == (slope is not None)
        assert slope is None or steps == {slope}


@pytest.mark.parametrize("seed", range(60))
def test_limits_are_the_positions_inside(seed: int) -> None:
    rng = random.Random(seed)
    directions = [random_positions(rng, name) for name in "rd"]
    coordinates = tuple(random_index(rng, [direction]) for direction in directions)
    sizes = tuple(rng.randint(1, 60) for _ in directions)
    linear = linear_limits(operand_of(coordinates, sizes, (0, 1)), directions)
    zero = {name: 0 for direction in directions for name in direction.names}
    for number, direction in enumerate(directions):
        row = [
            coordinates[number].evaluate(zero | values_at(direction, n))
            for n in range(count_of(direction))
        ]
        if linear is None:
            continue
        limit = linear[number][1]
        assert limit is not None
        assert [n < limit for n in range(len(row))] == [value < sizes[number] for value in row]
    assert linear is not None or any(
        direction.slope(index) in (None, 0)
        for direction, index in zip(directions, coordinates, strict=True)
    )
