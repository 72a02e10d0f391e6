"""Schedules (tiles, order of loops, buffers), the memory plans that follow, and their proof."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

from cpembed.errors import InvariantError, LoweringError
from cpembed.targets.scratchpad.boxes import Axis, Box, BoxProduct, Form
from cpembed.transform.proof.lemmas import covers_once

PLACED_BYTES = 32
"""Alignment of buffers in a scratchpad in bytes: a vector of 256 bits."""


@dataclass(frozen=True)
class Schedule:
    """Choices of a kernel."""

    tile: tuple[tuple[str, int], ...]
    """Points of each axis in a tile, in the workload's order of axes."""
    order: tuple[str, ...]
    """Loops over tiles, outermost first, reductions last."""
    buffers: int = 2
    """Number of buffers of what is transferred; with two, transfers overlap executions."""
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
        free = [0] * len(self.product.machine.memories)
        buffers: list[Buffer] = []
        for box in self.form.boxes:
            size = box.elements(self.pe_points) * box.operand.element_bytes
            aligned = -(-size // PLACED_BYTES) * PLACED_BYTES
            # What no loop moves is transferred once, so that it needs no second buffer.
            moves = any(axis.name in box.operand.axes for axis in self.loops)
            memory, count = box.operand.memory, self.schedule.buffers if moves else 1
            offsets = tuple(free[memory] + number * aligned for number in range(count))
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
    in each factor; an instruction of fixed size needs what its tile says.
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
            raise LoweringError(f"{x} is not contiguous in {c.operand.name}")
        for box, lane in ((a, x), (b, y)):
            if not is_unit(box, lane) and not is_unit(box, z):
                raise LoweringError(f"neither {lane} nor {z} is contiguous in {box.operand.name}")
        return
    memory = product.program.instruction.memory
    for box in form.boxes:
        for lane in memory[box.operand.role].axes:
            if memory[box.operand.role].stride_rule(lane).value == "any" or is_unit(box, lane):
                continue
            raise LoweringError(f"{lane} is not contiguous in {box.operand.name}")


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
    """Raise :class:`InvariantError` for what cannot be proven of a plan, a bug of this package.

    :mod:`cpembed.transform.proof` proves that the derived program is the workload. A plan adds:

    1. *tiles*: along each axis, tiles, parts of the mesh and places reach every point exactly once
       (decided by isl); so the iteration domain, their product, is covered exactly once.
    2. *boxes*: the place of a point in a box is the element that the workload's access names: both
       are the same affine function of tile, part and place, and every place is in the box.
    3. *stored once*: an output's box has an axis of its own for each dimension, so that what one PE
       stores of a tile no other stores (by 1).
    4. *padding*: a point beyond a reduction axis multiplies zero (checked when a program is
       lowered); one beyond another axis is a result that is not stored, as its place is beyond the
       output.
    """
    failed = [
        f"tiles of {axis.name}"
        for axis in plan.product.axes.values()
        if not covers_once(axis.extent, plan.tile[axis.name], axis.granule, axis.parts)
    ]
    for box in plan.form.boxes:
        proven = _has_own_dimensions(box) if box.tiled else _follows_access(box, plan)
        if not proven:
            failed.append(f"the box of {box.operand.name}")
    output = plan.form.boxes[2].operand
    axes = [index.single_iterator for index in output.index]
    if None in axes or len(set(axes)) < len(axes):
        failed.append(f"what is stored of {output.name}")
    if failed:
        workload = plan.product.workload.name
        raise InvariantError(f"{workload}, {plan.schedule}: not proven: {', '.join(failed)}")


def _follows_access(box: Box, plan: Plan) -> bool:
    """True if ``index(start + place) = first + step * box place`` for every axis."""
    for dimension, index in zip(box.dimensions, box.operand.index, strict=True):
        if dimension.constant != index.constant or set(dimension.starts) != set(index.iterators):
            return False
        for name, factor in dimension.starts.items():
            # The factor of a place is that of the index by the step, and an axis that the box does
            # not walk has one place.
            walked_factor = dimension.walks.get(name, 0) * dimension.step
            has_one_place = plan.pe_points[name] == 1
            if factor != index.coefficient(name) or not (walked_factor == factor or has_one_place):
                return False
        last = sum(f * (plan.pe_points[name] - 1) for name, f in dimension.walks.items())
        if dimension.places(plan.pe_points) != last + 1:
            return False
    return True


def _has_own_dimensions(box: Box) -> bool:
    """True if every axis of the operand is a dimension of its own, whose places are its points."""
    names = [tuple(dimension.starts.items()) for dimension in box.dimensions]
    return sorted(names) == sorted(((name, 1),) for name in box.operand.axes)
