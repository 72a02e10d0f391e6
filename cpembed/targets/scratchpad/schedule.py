"""Schedules (tiles, order of loops, buffers), the memory plans that follow, and their proof."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from cpembed.errors import InvariantError, LoweringError
from cpembed.ir.index import IndexExpr
from cpembed.targets.scratchpad.boxes import Axis, Box, BoxDimension, BoxProduct
from cpembed.targets.scratchpad.forms import Form, with_last
from cpembed.targets.scratchpad.machine import ScratchpadMachine
from cpembed.transform.proof.lemmas import covers_once

PLACED_BYTES = 32
"""Alignment of buffers in a scratchpad in bytes: a vector of 256 bits."""


def placed_bytes(machine: ScratchpadMachine, box: Box) -> int:
    """Return the alignment of an operand's buffers in bytes: also whole rows of its memory."""
    row_bytes = box.operand.bytes_of(machine.row_elements[box.operand.role])
    return math.lcm(PLACED_BYTES, row_bytes or 1)


@dataclass(frozen=True)
class Schedule:
    """Choices of a kernel."""

    tile: tuple[tuple[str, int], ...]
    """Points of each axis in a tile, in the workload's order of axes."""
    order: tuple[str, ...]
    """Loops over tiles, outermost first, reductions last."""
    buffers: int = 2
    """Number of buffers of a transferred operand; with two, transfers overlap executions."""
    ahead: bool = True
    """True if constant operands are packed in tiles ahead of time."""

    def __str__(self) -> str:
        sizes = " ".join(f"{name}:{points}" for name, points in self.tile if points > 1)
        words = [f"tiles of {sizes or 'one point'}", f"loops {' '.join(self.order) or 'none'}"]
        words.append("double-buffered" if self.buffers == 2 else "one buffer each")
        return ", ".join(words + (["weights in tiles ahead"] if self.ahead else []))


@dataclass(frozen=True)
class Buffer:
    """Memory of an operand's boxes in a scratchpad: bytes of a box, and the offset of each."""

    box: Box
    bytes: int
    offsets: tuple[int, ...]


@dataclass(frozen=True)
class Plan:
    """A product with its schedule."""

    product: BoxProduct
    schedule: Schedule

    @cached_property
    def tile(self) -> dict[str, int]:
        return dict(self.schedule.tile)

    @cached_property
    def form(self) -> Form:
        single = frozenset(name for name, points in self.pe_points.items() if points == 1)
        return Form(self.product, single, self.schedule.ahead)

    @cached_property
    def loops(self) -> tuple[Axis, ...]:
        """Loops over more than one tile, outermost first."""
        axes = self.product.axes
        return tuple(axes[n] for n in self.schedule.order if self.count(axes[n]) > 1)

    def count(self, axis: Axis) -> int:
        """Return the number of tiles along an axis."""
        return -(-axis.extent // self.tile[axis.name])

    @cached_property
    def pe_points(self) -> dict[str, int]:
        """Points of a full tile that a PE holds, by axis."""
        axes = self.product.axes
        return {
            name: axes[name].points_per_pe(min(points, axes[name].extent))
            for name, points in self.tile.items()
        }

    @cached_property
    def buffers(self) -> tuple[Buffer, Buffer, Buffer]:
        """Buffers of the operands, one after the other in each memory."""
        product = self.product
        free = [0] * len(product.machine.memories)
        buffers: list[Buffer] = []
        for box in self.form.boxes:
            size = box.operand.bytes_of(box.elements(self.pe_points))
            placed = placed_bytes(product.machine, box)
            aligned = -(-size // placed) * placed
            # What no loop moves is transferred once, so that it needs no second buffer.
            moves = any(axis.name in box.operand.axes for axis in self.loops)
            memory, count = box.operand.memory, self.schedule.buffers if moves else 1
            first = -(-free[memory] // placed) * placed
            offsets = tuple(first + number * aligned for number in range(count))
            free[memory] = offsets[-1] + aligned
            buffers.append(Buffer(box, size, offsets))
        return buffers[0], buffers[1], buffers[2]

    @cached_property
    def used(self) -> tuple[int, ...]:
        """Bytes used of each memory of a PE."""
        ends = [0] * len(self.product.machine.memories)
        for buffer in self.buffers:
            memory = buffer.box.operand.memory
            ends[memory] = max(ends[memory], buffer.offsets[-1] + buffer.bytes)
        return tuple(ends)


def check(plan: Plan) -> Plan:
    """Return the plan, if the product and the machine have it.

    Raises :class:`LoweringError` otherwise.
    """
    product, schedule = plan.product, plan.schedule
    axes, machine = product.axes, product.machine
    if list(plan.tile) != list(axes) or sorted(schedule.order) != sorted(axes):
        raise LoweringError(f"{schedule}: tiles and loops are of {' '.join(axes)}")
    for name, points in schedule.tile:
        granule = axes[name].granule
        if points < 1 or points % granule:
            raise LoweringError(f"{schedule}: {name} is tiled in multiples of {granule}")
    if schedule.buffers not in (1, 2):
        raise LoweringError(f"{schedule}: one buffer or two")
    # False sorts before True: all reductions have to be inside.
    kinds = [axes[name].reduction for name in schedule.order]
    if kinds != sorted(kinds):
        raise LoweringError(
            f"{schedule}: put the reduction loops inside all spatial loops, because a PE keeps "
            "its partial sums until they are complete"
        )
    check_form(plan.form)
    for lane, largest in machine.largest.items():
        chain = plan.form.chains.get(lane, ())
        size = machine.parts(lane) * math.prod(plan.pe_points[a.name] for a in chain)
        if size > largest:
            raise LoweringError(f"{schedule}: {size} of {lane} in one execution; at most {largest}")
    for name, used, room in zip(machine.memories, plan.used, machine.capacities, strict=True):
        if used > room:
            raise LoweringError(f"{schedule}: takes {used:,} bytes of {name}, which has {room:,}")
    return plan


def check_form(form: Form) -> None:
    """Raise :class:`LoweringError` if the instruction cannot walk the boxes.

    A primitive of any size needs a contiguous vectorised dimension in C, and a contiguous dimension
    in each factor; an instruction of fixed size needs what its tile says, into which boxes are cut.
    """
    product, chains = form.product, form.chains
    x, y, z = product.lanes
    a, b, c = form.boxes

    def is_unit(box: Box, lane: str) -> bool:
        chain = chains.get(lane, ())
        return not chain or box.is_unit(chain[0].name)

    if product.machine.sized:
        # gemm of scratchpad.h vectorises along x.
        if not is_unit(c, x):
            raise LoweringError(
                f"{x} is not contiguous in {c.operand.name}, and the primitive computes vectors "
                f"along it: {with_last(c.operand, chains[x][0].name)} would do"
            )
        for box, lane in ((a, x), (b, y)):
            if not is_unit(box, lane) and not is_unit(box, z):
                remedy = with_last(box.operand, chains[lane][0].name)
                raise LoweringError(
                    f"neither {lane} nor {z} is contiguous in {box.operand.name}, and the "
                    f"primitive takes rows or columns: {remedy} would do"
                )


def loop_orders(product: BoxProduct) -> tuple[tuple[str, ...], ...]:
    """Return the orders that differ in which factor stays in the scratchpad."""
    # Batch, rows, columns, or columns before rows: the inner one of these loops reuses the box of
    # the other factor. Reductions are last, so that sums stay until they are complete.
    x, y, _ = product.lanes
    names = list(product.axes)
    spatial = [n for n in names if not product.axes[n].reduction]
    reductions = [n for n in names if product.axes[n].reduction]
    batch, rows, columns = (
        [n for n in spatial if product.lane_of(n) == lane] for lane in (None, x, y)
    )
    orders = [(*batch, *rows, *columns, *reductions), (*batch, *columns, *rows, *reductions)]
    return tuple(dict.fromkeys(orders))


def require_proven(plan: Plan) -> None:
    """Raise :class:`InvariantError` unless a plan is proven, which would be a bug of this package.

    :mod:`cpembed.transform.proof` proves that the derived program is the workload. A plan adds:

    1. *tiles*: along each axis, tiles, parts of the mesh and places reach every point exactly once
       (decided by isl); so the iteration domain, their product, is covered exactly once.
    2. *boxes*: the place of a point in a box is the element that the workload's access names: both
       are the same affine function of tile, part and place, and every place is in the box. An axis
       that is cut into blocks has a place for each of its blocks and for each point of a block.
    3. *stored once*: an output's box has an axis of its own for each dimension, so that what one PE
       stores of a tile no other stores (by 1).
    4. *padding*: a point beyond a reduction axis multiplies zero (checked when a program is
       lowered); one beyond another axis is a result that is not stored, as its place is beyond the
       output.
    5. *distances*: along each axis of a tile whose distance the instruction fixes, neighbours in
       the box are that far apart, whatever the tile's size.
    """
    failed = [
        f"tiles of {axis.name}"
        for axis in plan.product.axes.values()
        if not covers_once(axis.extent, plan.tile[axis.name], axis.granule, axis.parts)
    ]
    for box in plan.form.boxes:
        proven = _has_own_dimensions(box, plan) if box.tiled else _follows_access(box, plan)
        if not proven:
            failed.append(f"the box of {box.operand.name}")
        failed += [f"the distance of {lane} in {box.operand.name}" for lane in _far(box, plan)]
    output = plan.form.boxes[2].operand
    axes = [index.single_iterator for index in output.index]
    if None in axes or len(set(axes)) < len(axes):
        failed.append(f"what is stored of {output.name}")
    if failed:
        workload = plan.product.workload.name
        raise InvariantError(f"{workload}, {plan.schedule}: not proven: {', '.join(failed)}")


def _follows_access(box: Box, plan: Plan) -> bool:
    """True if ``index(start + place) = first + step * box place`` for every axis."""
    by_number: dict[int, list[BoxDimension]] = {}
    for dimension in box.dimensions:
        if dimension.starts or not dimension.within:
            by_number.setdefault(dimension.number, []).append(dimension)
    return len(by_number) == len(box.operand.index) and all(
        _follows_index(by_number[number], index, plan)
        for number, index in enumerate(box.operand.index)
    )


def _follows_index(dimensions: Sequence[BoxDimension], index: IndexExpr, plan: Plan) -> bool:
    """True if the dimensions of a box that come from one of the operand are its places."""
    first = dimensions[0]
    if len(dimensions) == 2 and not _is_cut(dimensions[0], dimensions[1], plan):
        return False
    if len(dimensions) > 2 or (len(dimensions) == 1 and (first.blocked or first.within)):
        return False
    if first.constant != index.constant or set(first.starts) != set(index.iterators):
        return False
    for name, factor in first.starts.items():
        # The factor of a place is that of the index by the step, and an axis that the box does
        # not walk has one place.
        walked_factor = first.walks.get(name, 0) * first.step
        has_one_place = plan.pe_points[name] == 1
        if factor != index.coefficient(name) or not (walked_factor == factor or has_one_place):
            return False
    last = sum(f * (plan.pe_points[name] - 1) for name, f in first.walks.items())
    return math.prod(d.places(plan.pe_points) for d in dimensions) == last + 1


def _is_cut(blocks: BoxDimension, within: BoxDimension, plan: Plan) -> bool:
    """True if two dimensions are the blocks of one axis and the points of a block."""
    same = replace(blocks, blocked=0) == replace(within, within=0, room=0)
    if not same or list(blocks.walks.values()) != [1]:
        return False
    (name,) = blocks.walks
    granule = plan.product.axes[name].granule
    return blocks.blocked == within.within == granule and plan.pe_points[name] % granule == 0


def _has_own_dimensions(box: Box, plan: Plan) -> bool:
    """True if every axis of the operand has dimensions of its own, whose places are its points."""
    by_axis: dict[str, list[BoxDimension]] = {}
    for dimension in box.dimensions:
        if not dimension.starts and dimension.within == 1:
            continue
        if list(dimension.starts.values()) != [1]:
            return False
        by_axis.setdefault(next(iter(dimension.starts)), []).append(dimension)
    return sorted(by_axis) == sorted(box.operand.axes) and all(
        _is_cut(dimensions[0], dimensions[1], plan)
        if len(dimensions) == 2
        else len(dimensions) == 1 and not (dimensions[0].blocked or dimensions[0].within)
        for dimensions in by_axis.values()
    )


def _far(box: Box, plan: Plan) -> list[str]:
    """Return the instruction axes along which neighbours have another distance than they need."""
    machine, axes = plan.product.machine, plan.product.axes
    if machine.sized:
        return []
    failed: list[str] = []
    # A distance is a product of places, which grow with a tile: the same in the least and in the
    # full one, it is the same in all.
    full = plan.pe_points
    least = {name: min(points, axes[name].granule) for name, points in full.items()}
    for lane, distance in machine.distances[box.operand.role].items():
        chain = plan.form.chains.get(lane, ())
        if distance is None or not chain:
            continue
        distances = {box.stride(chain[0].name, box.places(points)) for points in (least, full)}
        if distances != {distance}:
            failed.append(lane)
    return failed
