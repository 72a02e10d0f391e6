"""What a plan moves and executes, counted tile by tile, and what its accesses need, by isl."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import islpy as isl

from cpembed.ir.index import IndexExpr
from cpembed.ir.polyhedral import box as extents_box
from cpembed.ir.polyhedral import relation
from cpembed.targets.scratchpad.executor import part_of
from cpembed.targets.scratchpad.schedule import Plan

Points = Mapping[str, range]
"""The points that a PE holds, by axis; in whole granules, so some may be beyond the axis."""


@dataclass(frozen=True)
class Tile:
    """The first point of each axis, and how many a PE holds."""

    first: Mapping[str, int]
    held: Mapping[str, int]


def tiles(plan: Plan) -> Iterator[Tile]:
    """In the order of the loops."""
    axes = plan.product.axes
    order = plan.schedule.order
    firsts = [range(0, axes[name].extent, plan.tile[name]) for name in order]
    for chosen in itertools.product(*firsts):
        first = dict(zip(order, chosen, strict=True))
        held = {
            name: axis.points_per_pe(min(plan.tile[name], axis.extent - first[name]))
            for name, axis in axes.items()
        }
        yield Tile(first, held)


def moved_boxes(plan: Plan, number: int) -> Iterator[tuple[Tile, Points]]:
    """Boxes of an operand that are transferred, one for each PE: whenever the tile's is another."""
    operand = plan.product.operands[number]
    before: list[int] | None = None
    for tile in tiles(plan):
        now = [tile.first[name] for name in operand.axes]
        if now != before:
            before = now
            for row, column in itertools.product(
                range(plan.product.machine.rows), range(plan.product.machine.columns)
            ):
                yield tile, _points(plan, number, tile, row, column)


def _points(plan: Plan, number: int, tile: Tile, row: int, column: int) -> Points:
    box = plan.form.boxes[number]
    found: dict[str, range] = {}
    for name in box.operand.axes:
        axis, held = plan.product.axes[name], tile.held[name]
        first = tile.first[name] + held * part_of(box, axis, row, column)
        found[name] = range(first, first + held)
    return found


def lattice(plan: Plan, index: IndexExpr, points: Points) -> range:
    """The places between the least and the greatest that an index takes, in steps of the greatest
    common divisor of the factors of the axes of which a tile has several points."""
    factors = {name: index.coefficient(name) for name in index.iterators}
    first = index.constant + sum(f * points[name].start for name, f in factors.items())
    last = first + sum(f * (len(points[name]) - 1) for name, f in factors.items())
    step = math.gcd(*(f for name, f in factors.items() if plan.pe_points[name] > 1)) or 1
    return range(first, last + 1, step)


def moved_elements(plan: Plan, number: int, points: Points) -> int:
    """Of one box: as it lies in main memory, what is inside of the operand; in tiles, all of it."""
    box = plan.form.boxes[number]
    if box.tiled:
        return math.prod(map(len, points.values()))
    places = 1
    for index, size in zip(box.operand.index, box.operand.shape, strict=True):
        places *= sum(0 <= place < size for place in lattice(plan, index, points))
    return places


def needed_elements(plan: Plan, number: int, points: Points) -> int:
    """Elements of the operand in the image of the access relation on these points (isl)."""
    operand = plan.product.operands[number]
    extents = {name: len(points[name]) for name in points}
    access = relation(operand.index, extents, bounded=False)
    image = _domain(points).apply(access).intersect(extents_box(operand.shape))
    return int(image.count_val().to_python())


def has_gaps(plan: Plan, number: int, points: Points) -> bool:
    """Whether the lattices of the indices hold places that no point takes, or two indices walk the
    same axis, so that the box is more than a diagonal of it."""
    operand = plan.product.operands[number]
    walked = [name for index in operand.index for name in index.iterators if len(points[name]) > 1]
    if len(set(walked)) < len(walked):
        return True
    extents = {name: len(points[name]) for name in points}
    for index in operand.index:
        image = _domain(points).apply(relation([index], extents, bounded=False))
        if int(image.count_val().to_python()) != len(lattice(plan, index, points)):
            return True
    return False


def _domain(points: Points) -> isl.Set:
    names = [f"i{n}" for n in range(len(points))]
    bounds = [
        f"{each.start} <= {name} < {each.stop}"
        for name, each in zip(names, points.values(), strict=True)
    ]
    return isl.Set(f"{{ [{', '.join(names)}] : {' and '.join(bounds) or 'true'} }}")


def executions(plan: Plan) -> Counter[tuple[int, int, int]]:
    """Calls by the sizes along the instruction's axes, of the whole mesh; of an instruction of
    fixed size those of all PEs."""
    product, form = plan.product, plan.form
    found: Counter[tuple[int, int, int]] = Counter()
    machine = product.machine
    for tile in tiles(plan):
        if not machine.sized:
            extents = product.program.instruction.extents
            sizes = [extents.get(lane, 1) for lane in product.lanes]
            calls = math.prod(tile.held[name] // axis.grain for name, axis in product.axes.items())
            found[sizes[0], sizes[1], sizes[2]] += calls * machine.elements
            continue
        m, n, k = (
            machine.parts(lane) * math.prod(tile.held[axis.name] for axis in form.chains[lane])
            for lane in product.lanes
        )
        found[m, n, k] += math.prod(tile.held[axis.name] for axis in form.repeated)
    return found
