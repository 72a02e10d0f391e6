"""Addresses as what rows and the depth contribute, beside direct evaluation of random indices."""

from __future__ import annotations

import random

import pytest

from cpembed.ir.computation import AxisKind
from cpembed.ir.index import IndexExpr, IndexTerm
from cpembed.targets.cuda.lower import GlobalOperand
from cpembed.targets.cuda.multistage.separation import DepthWalk, separate
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
    layout = PackedOperand(
        name="I",
        dtype="float16",
        original_shape=shape,
        dimensions=tuple(PackedDimension(f"d{n}", size) for n, size in enumerate(shape)),
        source=tuple(IndexExpr.iterator(f"d{n}") for n in range(3)),
        access=access,
    )
    checked = tuple(
        n
        for n, (index, size) in enumerate(zip(access, shape, strict=True))
        for low, high in (index.bounds(extents),)
        if low < 0 or high >= size
    )
    return GlobalOperand(layout, checked, "z", 8), extents


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
