"""What can be chosen: the points of a tile, the order of tiles, double buffering; and what follows:
the memory plan."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from cpembed.errors import LoweringError
from cpembed.targets.scratchpad.boxes import Box, Form
from cpembed.targets.scratchpad.lower import Axis, BoxProduct

PLACED_BYTES = 32
"""Buffers in a scratchpad begin at multiples of it: a vector of 256 bits."""


@dataclass(frozen=True)
class Schedule:
    """Points of each axis in a tile, in the workload's order of axes; loops over tiles, outermost
    first, reductions last; ``buffers`` of what is transferred, two to compute beside transfers;
    whether constant operands are laid out in tiles ahead of time."""

    tile: tuple[tuple[str, int], ...]
    order: tuple[str, ...]
    buffers: int = 2
    ahead: bool = True

    def __str__(self) -> str:
        sizes = " ".join(f"{name}:{points}" for name, points in self.tile if points > 1)
        words = [f"tiles of {sizes or 'one point'}", f"loops {' '.join(self.order) or 'none'}"]
        words.append("double-buffered" if self.buffers == 2 else "one buffer each")
        return ", ".join(words + (["weights in tiles ahead"] if self.ahead else []))


@dataclass(frozen=True)
class Buffer:
    """Where in a scratchpad the boxes of an operand lie: ``offsets`` of as many as there are."""

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
        single = frozenset(name for name, points in self.held.items() if points == 1)
        return Form(self.product, single, self.schedule.ahead)

    @cached_property
    def loops(self) -> tuple[Axis, ...]:
        """Over tiles, outermost first, those of more than one."""
        axes = self.product.axes
        return tuple(axes[n] for n in self.schedule.order if self.count(axes[n]) > 1)

    def count(self, axis: Axis) -> int:
        """Tiles along an axis."""
        return -(-axis.extent // self.tile[axis.name])

    @cached_property
    def held(self) -> dict[str, int]:
        """Points of a whole tile that a PE holds."""
        axes = self.product.axes
        return {
            name: axes[name].held(min(points, axes[name].extent))
            for name, points in self.tile.items()
        }

    @cached_property
    def buffers(self) -> tuple[Buffer, Buffer, Buffer]:
        """One after the other in each memory."""
        free = [0] * len(self.product.machine.memories)
        found: list[Buffer] = []
        for box in self.form.boxes:
            size = box.elements(self.held) * box.operand.element_bytes
            room = -(-size // PLACED_BYTES) * PLACED_BYTES
            moves = any(axis.name in box.operand.axes for axis in self.loops)
            memory = box.operand.memory
            offsets = [
                free[memory] + n * room for n in range(self.schedule.buffers if moves else 1)
            ]
            free[memory] = offsets[-1] + room
            found.append(Buffer(box, size, tuple(offsets)))
        return found[0], found[1], found[2]

    @cached_property
    def used(self) -> tuple[int, ...]:
        """Bytes of each memory of a PE."""
        most = [0] * len(self.product.machine.memories)
        for buffer in self.buffers:
            memory = buffer.box.operand.memory
            most[memory] = max(most[memory], buffer.offsets[-1] + buffer.bytes)
        return tuple(most)


def check(plan: Plan) -> Plan:
    """The plan; raises :class:`LoweringError` for one that the product or the machine has not."""
    product, schedule = plan.product, plan.schedule
    axes = product.axes
    if list(plan.tile) != list(axes) or sorted(schedule.order) != sorted(axes):
        raise LoweringError(f"{schedule}: tiles and loops are of {' '.join(axes)}")
    for name, points in schedule.tile:
        granule = axes[name].granule
        if points < 1 or points % granule:
            raise LoweringError(f"{schedule}: {name} is tiled in multiples of {granule}")
    if schedule.buffers not in (1, 2):
        raise LoweringError(f"{schedule}: one buffer or two")
    kinds = [axes[name].reduction for name in schedule.order]
    if kinds != sorted(kinds):
        raise LoweringError(f"{schedule}: sums stay until they are complete: reductions are last")
    check_form(plan.form)
    for lane, largest in product.machine.largest.items():
        held = math.prod(plan.held[a.name] for a in plan.form.chains.get(lane, ()))
        size = product.machine.parts(lane) * held
        if size > largest:
            raise LoweringError(f"{schedule}: {size} of {lane} in one execution; at most {largest}")
    for name, used, room in zip(
        product.machine.memories, plan.used, product.machine.capacities, strict=True
    ):
        if used > room:
            raise LoweringError(f"{schedule}: takes {used:,} bytes of {name}, which has {room:,}")
    return plan


def check_form(form: Form) -> None:
    """Raises :class:`LoweringError` where the instruction cannot walk the boxes: its vectorised
    dimension is contiguous in C, and one dimension of a factor is; of an instruction of fixed size,
    what its tile says."""
    product = form.product
    x, y, z = product.lanes
    chains: Mapping[str, tuple[Axis, ...]] = form.chains
    one, other, result = form.boxes

    def unit(box: Box, lane: str) -> bool:
        chain = chains.get(lane, ())
        return not chain or box.is_unit(chain[0].name)

    if product.machine.sized:
        if not unit(result, x):
            raise LoweringError(f"{x} is not contiguous in {result.operand.name}")
        for box, lanes in ((one, (x, z)), (other, (y, z))):
            if not any(unit(box, lane) for lane in lanes):
                raise LoweringError(
                    f"neither {lanes[0]} nor {z} is contiguous in {box.operand.name}"
                )
        return
    memory = product.program.instruction.memory
    for box in form.boxes:
        for lane in memory[box.operand.role].axes:
            if memory[box.operand.role].stride_rule(lane).value == "any" or unit(box, lane):
                continue
            raise LoweringError(f"{lane} is not contiguous in {box.operand.name}")


def loop_orders(product: BoxProduct) -> tuple[tuple[str, ...], ...]:
    """Orders that differ in which factor stays: batch, rows, columns, or columns before rows;
    reductions last."""
    x, y, _ = product.lanes
    names = list(product.axes)
    spatial = [n for n in names if not product.axes[n].reduction]
    last = [n for n in names if product.axes[n].reduction]
    batch = [n for n in spatial if product.class_of(n) is None]
    rows = [n for n in spatial if n not in batch and product.class_of(n) == x]
    columns = [n for n in spatial if n not in batch and product.class_of(n) == y]
    found = [(*batch, *rows, *columns, *last), (*batch, *columns, *rows, *last)]
    return tuple(dict.fromkeys(found))
