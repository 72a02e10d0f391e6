"""Rows, bytes and cycles of all tilings of an operator at once, in numpy."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from cpembed.accelerator.allocation import moments
from cpembed.accelerator.buffer_specs import BufferSpec
from cpembed.accelerator.copy_cost import CopyCost, Lengths, copy_costs, copy_cycles
from cpembed.accelerator.problem import Step
from cpembed.accelerator.template import Template, element_bits
from cpembed.accelerator.tiling_grid import Grid, Key, LoopOrder
from cpembed.hw.isa import IsaInstruction, MemoryKind, Synchronization


@dataclass
class Costs:
    """Rows, bytes and cycles of every tiling of a grid."""

    template: Template
    order: LoopOrder
    grid: Grid
    count: int
    unit_cycles: dict[str, Any] = field(default_factory=dict[str, Any])
    transfer_cycles: dict[Key, Any] = field(default_factory=dict[Key, Any])
    bytes_moved: Any = 0.0
    chain_cycles: Any = 0.0
    chain_latency: float = 0.0
    latency: dict[Key, float] = field(default_factory=dict[Key, float])
    first: dict[Key, Any] = field(default_factory=dict[Key, Any])
    chain_first: Any = 0.0
    rounding: dict[Key, dict[int, int]] = field(default_factory=dict[Key, dict[int, int]])
    waits: dict[Key, Any] = field(default_factory=dict[Key, Any])
    _needed: dict[Key, tuple[Any, Any]] = field(default_factory=dict[Key, tuple[Any, Any]])
    _lived: Mapping[Key, range] = field(default_factory=dict[Key, range])
    _moments: Sequence[int] = (0,)

    def __post_init__(self) -> None:
        if self.template.problem.reuses_rows:
            self._lived = moments(self.template)
            self._moments = sorted({lived.start for lived in self._lived.values()})
        else:
            self._lived = {spec.key: range(1) for spec in self.template.buffers}
        self.bytes_moved = np.zeros(self.count)
        for spec in self.template.buffers:
            if spec.is_home:
                continue
            for path, is_store in ((spec.load, False), (spec.store, True)):
                if path:
                    self._add_transfer(spec, (path[-2], path[-1]), is_store)
        for step in self.template.steps:
            self._add_statement(step)

    def _levels(self, depth: int, axis: str) -> int:
        """Return the number of loops of an axis outside of a depth."""
        return sum(slot.axis == axis for slot in self.order.loops[:depth])

    def _depth(self, spec: BufferSpec) -> int:
        if spec.role == "main":
            return self.order.depths[spec.key]
        return self.order.output_depth

    def _box(self, spec: BufferSpec, depth: int) -> list[Any]:
        """Return the largest size of a buffer's box along each dimension."""
        if spec.role == "granule":
            granules = self.template.steps[spec.first_use].granules
            return [
                1 + sum(t.coefficient * (granules[t.iterator] - 1) for t in e.terms)
                for e in spec.index
            ]
        return [
            1
            + sum(
                t.coefficient * (self.grid.size(t.iterator, self._levels(depth, t.iterator)) - 1)
                for t in e.terms
            )
            for e in spec.index
        ]

    def _rows(self, spec: BufferSpec) -> Any:
        lanes = dict(spec.lanes)
        rounding = self.rounding.get(spec.key, {})
        rows: Any = 1
        for dimension, largest in enumerate(self._box(spec, self._depth(spec))):
            unit = lanes.get(dimension, 1)
            step = spec.steps.get(dimension, 1)
            chunk = rounding.get(dimension, 1)
            size = -(-largest // chunk) * chunk
            rows = rows * (-(-size // unit)) if step == 1 else rows * (-(-size // step) * step)
        return rows

    def rows(self, copies: Mapping[Key, int]) -> dict[str, Any]:
        """Return the rows that all buffers need of each memory."""
        groups = self.template.bank_groups
        needed: dict[tuple[str, int], Any] = {}
        for moment in self._moments:
            total: dict[tuple[str, int], Any] = {}
            for spec in self.template.buffers:
                if spec.is_home:
                    continue
                rows, has_second = self._needs(spec)
                is_doubled = copies.get(spec.key, 1) > 1
                if is_doubled:
                    # A buffer that is filled once has no second copy.
                    rows = rows * has_second
                if not is_doubled and moment not in self._lived[spec.key]:
                    rows = rows * (self._visits(spec) < self._output_tiles())
                group = spec.memory, groups[spec.key]
                total[group] = total.get(group, 0) + rows
            for group, rows in total.items():
                needed[group] = np.maximum(needed.get(group, 0), rows)
        totals: dict[str, Any] = {}
        # Each group begins at a bank, so that all but the last one take whole banks.
        for memory, number in sorted(needed):
            bank = self.template.machine.memories[memory].bank_rows
            start = totals.get(memory, 0)
            totals[memory] = needed[memory, number] + (-(-start // bank) * bank if number else 0)
        return totals

    def _needs(self, spec: BufferSpec) -> tuple[Any, Any]:
        """Return the rows of a buffer, and by how many copies it is multiplied if it has two."""
        if spec.key not in self._needed:
            rows = self._rows(spec) + np.zeros(self.count, np.int64)
            self._needed[spec.key] = rows, np.where(self._visits(spec) > 1, 2, 1)
        return self._needed[spec.key]

    def _visits(self, spec: BufferSpec) -> Any:
        """Return how often a buffer gets new contents."""
        if spec.role == "granule":
            step = self.template.steps[spec.first_use]
            granules = step.granules
            return math.prod(
                -(-self.template.extents[a] // granules[a]) for a in step.axes.values()
            )
        depth = self._depth(spec)
        is_read = spec.role == "main" or bool(spec.load)
        counts = self._counts(spec, depth, is_read)
        return math.prod(counts.values()) + np.zeros(self.count)

    def _counts(self, spec: BufferSpec, depth: int, hoists: bool) -> dict[str, Any]:
        """Return for each axis by how many of its tiles the number of visits is multiplied."""
        counts: dict[str, Any] = {}
        inside = np.zeros(self.count, bool)
        for slot in reversed(self.order.loops[:depth]):
            levels = slot.level + 1
            tiles = self.grid.count(slot.axis, levels) + np.zeros(self.count, np.int64)
            outer = self.grid.count(slot.axis, levels - 1)
            if slot.axis in spec.axes or not hoists:
                inside |= tiles > outer
                counts.setdefault(slot.axis, tiles)
            else:
                # The innermost of an axis's loops that repeat the visit has all of its tiles.
                repeated = np.where(inside, tiles, 1)
                before = counts.get(slot.axis)
                counts[slot.axis] = (
                    repeated if before is None else np.where(before > 1, before, repeated)
                )
        return counts

    def _add_transfer(self, spec: BufferSpec, memories: tuple[str, str], is_store: bool) -> None:
        depth = self._depth(spec)
        if spec.role == "granule":
            lengths, repeats = self._granule_lengths(spec)
        else:
            lengths, repeats = self._lengths(spec, depth, not is_store)
        bytes_each = element_bits(spec.dtype) / 8
        elements = repeats * math.prod(length.total for length in lengths)
        moved = elements * bytes_each
        bandwidth = math.inf
        main = self.template.machine.main
        if main.name in memories:
            self.bytes_moved = self.bytes_moved + moved
            bandwidth = main.bytes_per_cycle
        costs = copy_costs(self.template, spec, memories)
        if not costs:
            return
        self._round(spec, costs)
        cycles = repeats * functools.reduce(
            np.minimum, (copy_cycles(cost, lengths, spec.steps) for cost in costs)
        )
        cost = costs[0]
        unit = "|".join(dict.fromkeys(c.instruction.unit for c in costs))
        self.unit_cycles[unit] = self.unit_cycles.get(unit, 0.0) + np.maximum(
            cycles, moved / bandwidth
        )
        slow = np.maximum(cycles, moved / bandwidth)
        self.transfer_cycles[spec.key] = self.transfer_cycles.get(spec.key, 0.0) + slow
        self.latency[spec.key] = cost.instruction.latency_cycles
        if memories[0] == main.name:
            self.latency[spec.key] += main.latency_cycles
        visits = np.maximum(1, self._visits(spec))
        self.waits[spec.key] = visits * self.latency[spec.key]
        first = slow / visits + (main.latency_cycles if main.name in memories else 0.0)
        self.first[spec.key] = self.first.get(spec.key, 0.0) + first

    def _round(self, spec: BufferSpec, costs: Sequence[CopyCost]) -> None:
        """Give a buffer room for whole chunks, where copies have axes of fixed sizes."""
        fixed = {a.name: a.maximum for a in costs[0].instruction.axes if a.is_fixed}
        self.rounding[spec.key] = {
            dimension: fixed[a] for a, (dimension, _) in costs[0].walks.items() if a in fixed
        }

    def _lengths(self, spec: BufferSpec, depth: int, hoists: bool) -> tuple[list[Lengths], Any]:
        """Return the lengths of all boxes of a buffer, and by how much the visits of each repeat.

        What repeats visits are the tiles of axes that the box does not depend on.
        """
        counts = self._counts(spec, depth, hoists)
        lengths = [
            Lengths.of_index(
                e, {a: self.grid.parts(a, self._levels(depth, a)) for a in e.iterators}
            )
            for e in spec.index
        ]
        return lengths, math.prod(v for a, v in counts.items() if a not in spec.axes)

    def _granule_lengths(self, spec: BufferSpec) -> tuple[list[Lengths], Any]:
        step = self.template.steps[spec.first_use]
        lengths = [
            Lengths.of_index(
                e,
                {
                    a: self.grid.parts(a, self._levels_around(step, a), step.granules[a])
                    for a in e.iterators
                },
            )
            for e in spec.index
        ]
        repeats: Any = 1
        for axis in step.axes.values():
            if axis not in spec.axes:
                levels = self._levels_around(step, axis)
                repeats = repeats * self.grid.count(axis, levels)
        return lengths, repeats

    def _levels_around(self, step: Step, axis: str) -> int:
        """Return the number of tile loops of an axis around a statement's executions."""
        if step.number == self.template.main:
            return self.levels_of(axis)
        return self._levels(self.order.output_depth, axis)

    def levels_of(self, axis: str) -> int:
        """Return the number of tile loops of an axis."""
        return self._levels(len(self.order.loops), axis)

    def _add_statement(self, step: Step) -> None:
        depth = self.order.output_depth
        factors: dict[str, tuple[Any, Any]] = {}
        repeats: Any = 1
        is_main = step.number == self.template.main
        step_axes = set(step.axes.values())
        for axis in {slot.axis for slot in self.order.loops} - step_axes:
            if not is_main and self._levels(depth, axis):
                repeats = repeats * self.grid.count(axis, self._levels(depth, axis))
        for axis in step_axes:
            extent = self.template.extent(step, axis)
            granule = step.granules[axis]
            levels = self._levels_around(step, axis)
            factors[axis] = self.grid.executions(axis, levels, granule), extent
        first = {a: (1, np.minimum(step.granules[a], self._tile(a))) for a in step.reductions}
        cycles = repeats * reduced_cycles(self.template, step, factors, first)
        moved: Any = 0.0
        main = self.template.machine.main
        for operand, place in step.instruction.places.items():
            memory = self.template.machine.memories.get(place.memory)
            if memory is not None and memory.kind is MemoryKind.MAIN and place.dimensions:
                moved = moved + repeats * _direct_bytes(step, operand, factors)
        self.bytes_moved = self.bytes_moved + moved
        cycles = np.maximum(cycles, moved / main.bytes_per_cycle) + np.zeros(self.count)
        unit = step.instruction.unit
        self.unit_cycles[unit] = self.unit_cycles.get(unit, 0.0) + cycles
        if is_main:
            self.main_cycles = cycles
        else:
            self.chain_cycles = self.chain_cycles + cycles
            self.chain_latency += step.instruction.latency_cycles
            if _reads_main(self.template, step):
                self.chain_latency += main.latency_cycles
            self.chain_first = self.chain_first + cycles / self._output_tiles()

    def _tile(self, axis: str) -> Any:
        """Return the size of an axis inside of all of its loops."""
        return self.grid.size(axis, self.levels_of(axis))

    def busy_cycles(self) -> Any:
        """Return the cycles of the busiest unit, or of the path to main memory, of every tiling."""
        path = self.bytes_moved / self.template.machine.main.bytes_per_cycle
        if self.template.machine.synchronization is Synchronization.IN_ORDER:
            return sum(self.unit_cycles.values()) + np.zeros(self.count)
        return functools.reduce(np.maximum, (path, *self.unit_cycles.values()))

    def cycles(self, copies: Mapping[Key, int]) -> Any:
        """Return the cycles of every tiling with these numbers of copies."""
        machine = self.template.machine
        path = self.bytes_moved / machine.main.bytes_per_cycle
        if machine.synchronization is Synchronization.IN_ORDER:
            return sum(self.unit_cycles.values()) + np.zeros(self.count)
        # A buffer without a second copy is filled while nothing uses it. With two, a fill has to
        # wait for the use of the fill before the last one: two rounds take at least a fill, its
        # latency and a use. Their first fill is ahead of all uses.
        fill: Any = 0.0
        serial, both, latency = self.main_cycles, self.main_cycles, np.zeros(self.count)
        outputs_alternate = False
        for spec in self.template.buffers:
            is_single = copies.get(spec.key, 1) == 1
            if spec.role in ("output", "chain"):
                outputs_alternate |= not is_single
            if spec.key not in self.transfer_cycles:
                continue
            waits = self.waits[spec.key]
            if is_single:
                serial = serial + self.transfer_cycles[spec.key] + waits
            else:
                fill = fill + self.first[spec.key]
            both = both + self.transfer_cycles[spec.key]
            latency = np.maximum(latency, waits)
        tiles = self._output_tiles()
        chain = self.chain_cycles + tiles * self.chain_latency
        if not outputs_alternate:
            serial = serial + chain
        else:
            fill = fill + self.chain_first
        both = both + self.chain_cycles
        latency = np.maximum(latency, tiles * self.chain_latency)
        # What no tiling changes is a number, not an array.
        busiest = functools.reduce(
            np.maximum, (path, serial, (both + latency) / 2, *self.unit_cycles.values())
        )
        return busiest + fill + np.zeros(self.count)

    def _output_tiles(self) -> Any:
        """Return the number of tiles of the main statement's output."""
        depth = self.order.output_depth
        axes = {slot.axis for slot in self.order.loops}
        return math.prod(self.grid.count(a, self._levels(depth, a)) for a in axes)


def reduced_cycles(
    template: Template,
    step: Step,
    factors: Mapping[str, tuple[Any, Any]],
    first: Mapping[str, tuple[Any, Any]],
) -> Any:
    """Return the cycles of all executions of a statement, the first of each sum among them.

    Parameters
    ----------
    template : Template
    step : Step
        Statement with its instruction.
    factors, first : mapping of str to (count, length)
        Number of executions along each axis, and the sum of their sizes; of the reductions also for
        the first executions of the sums alone.
    """
    instruction = step.instruction
    cycles = statement_cycles(step, instruction, factors)
    reduction = step.statement.computation.statement.reduction
    if reduction is None or step.statement.accumulates:
        return cycles
    alternative = template.variant(instruction, not instruction.accumulates)
    if alternative is None or alternative.cycles == instruction.cycles:
        return cycles
    begins, goes_on = (
        (alternative, instruction) if instruction.accumulates else (instruction, alternative)
    )
    beginning = {**factors, **first}
    return (
        statement_cycles(step, goes_on, factors)
        - statement_cycles(step, goes_on, beginning)
        + statement_cycles(step, begins, beginning)
    )


def statement_cycles(
    step: Step, instruction: IsaInstruction, factors: Mapping[str, tuple[Any, Any]]
) -> Any:
    """Return the cycles of all executions of a statement: a sum over the unit's polynomial.

    Parameters
    ----------
    step : Step
        Statement with its match.
    instruction : IsaInstruction
        Instruction that computes it.
    factors : mapping of str to (count, length)
        Number of executions along each axis, and the sum of their sizes.
    """
    total: Any = 0.0
    for axes, coefficient in instruction.cycles:
        product: Any = coefficient
        traversed = set[str]()
        for name in axes:
            digits = step.digits(name)
            axis = next(a for a in step.instruction.axes if a.name == name)
            shared = [step.axes[d.axis] for d in digits]
            if axis.is_fixed or len(digits) != 1:
                size = axis.maximum if axis.is_fixed else math.prod(d.count for d in digits)
                product = product * max(1, size)
            elif shared[0] not in traversed:
                product = product * factors[shared[0]][1]
                traversed.add(shared[0])
        for shared, (count, _) in factors.items():
            if shared not in traversed:
                product = product * count
        total = total + product
    return total


def _reads_main(template: Template, step: Step) -> bool:
    """True if a statement's instruction reads main memory."""
    main = template.machine.main.name
    return any(step.instruction.places[o].memory == main for o in step.instruction.inputs)


def _direct_bytes(step: Step, operand: str, factors: Mapping[str, tuple[Any, Any]]) -> Any:
    """Return the bytes that all executions move of an operand in main memory."""
    place = step.instruction.places[operand]
    step_axes = step.instruction.computation.access(operand).index
    elements: Any = element_bits(place.dtype) / 8
    traversed = set[str]()
    extents = step.instruction.extents
    for e in step_axes:
        name = e.single_iterator
        digits = step.digits(name or "")
        axis = next((a for a in step.instruction.axes if a.name == name), None)
        if axis is None or axis.is_fixed or len(digits) != 1:
            size = 1 + e.bounds(extents)[1]
            elements = elements * (
                1 if axis is not None and not axis.is_fixed and not digits else size
            )
        else:
            shared = step.axes[digits[0].axis]
            elements = elements * factors[shared][1]
            traversed.add(shared)
    for shared, (count, _) in factors.items():
        if shared not in traversed:
            elements = elements * count
    return elements
