"""The obligations decided on the whole program: relations over all iterators at once.

Slower than the lemmas and without their preconditions: it decides what they leave open and says
in words what does not hold.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property, lru_cache, reduce

import islpy as isl
import numpy as np
from numpy.typing import NDArray

from cpembed.hw.instruction import OperandMemory, StrideRule
from cpembed.ir.computation import Assignment, AxisKind, Computation
from cpembed.ir.expression import Access, Cast, Expression, Operation
from cpembed.ir.index import IndexExpr
from cpembed.ir.polyhedral import box, relation
from cpembed.transform.program import DerivedProgram, PackedOperand

Coordinates = NDArray[np.int64]


class Relations:
    """The program's relations from iterators to points, packed and original elements."""

    def __init__(self, program: DerivedProgram) -> None:
        self.program = program

    @cached_property
    def points(self) -> isl.Map:
        """Iterators to the workload's point."""
        return self.map([self.program.axis_map[axis.name] for axis in self.program.workload.axes])

    @cached_property
    def valid(self) -> isl.Set:
        """Iterators whose point is an original one, and not one that a sum has already."""
        domain = box(self.program.workload.extents.values())
        found = self.points.intersect_range(domain).domain().intersect(self.first)
        for member in self.program.embedding.pitches:
            digit = self.program.member_digits[member].substitute(self.program.axis_map)
            inside = box([self.program.unfused.extents[member]])
            found = found.intersect(self.map([digit]).intersect_range(inside).domain())
        return found

    @cached_property
    def first(self) -> isl.Set:
        """Iterators that repeat nothing along a reduction axis that overlaps."""
        found = self.points.domain()
        for overlap in self.program.overlaps:
            if overlap.kind is not AxisKind.REDUCTION:
                continue
            index = self.program.axis_map[overlap.axis]
            position = [t for t in index.terms if t.iterator in self.inner]
            again = self.map([overlap.repeated(overlap.loop, IndexExpr.of(position))])
            found = found.subtract(again.intersect_range(isl.Set("{ [1] }")).domain())
        return found

    @cached_property
    def inner(self) -> set[str]:
        return {axis.name for axis in self.program.instruction_axes}

    @cached_property
    def padding(self) -> isl.Set:
        return self.points.domain().subtract(self.valid)

    def map(self, indices: Sequence[IndexExpr]) -> isl.Map:
        """``{ [iterators] -> [indices] }`` on the program's iteration domain."""
        return relation(indices, self.program.extents)

    def packed(self, operand: PackedOperand) -> isl.Map:
        return self.map(operand.access)

    def named(self, operand: PackedOperand) -> isl.Map:
        """Iterators to the original element that packing put where the program reads."""
        return self.packed(operand).apply_range(source_relation(operand))

    def wanted(self, operand: PackedOperand) -> isl.Map:
        """Iterators to the original element that the workload's access map names."""
        workload = self.program.workload
        access = relation(workload.access(operand.name).index, workload.extents, bounded=False)
        return self.points.apply_range(access)

    def workload_store(self, operand: PackedOperand) -> isl.Set:
        """Elements that an output port has to hold: all of a tensor with one port, else those that
        the workload writes through it."""
        workload = self.program.workload
        port = workload.operand(operand.name)
        if sum(other.tensor == port.tensor for other in workload.outputs) == 1:
            return box(operand.original_shape)
        return self.wanted(operand).intersect_domain(self.valid).range()

    def outside(self, operand: PackedOperand) -> isl.Set:
        """Iterators whose element lies outside the original operand: zero, or dropped."""
        inside = self.named(operand).intersect_range(box(operand.original_shape))
        return self.points.domain().subtract(inside.domain())


def source_relation(operand: PackedOperand) -> isl.Map:
    """``{ [packed] -> [original] }`` over the whole packed layout, unbounded on the right."""
    return relation(operand.source, {d.name: d.extent for d in operand.dimensions})


def coverage(relations: Relations) -> list[str]:
    """Loops and instruction axes reach every point of the padded iteration domain, each once."""
    program = relations.program
    padded = box(program.padded_extents.values())
    failed: list[str] = []
    if not relations.points.range().is_equal(padded):
        failed.append("coverage: the loops do not reach every point")
    if not box(program.workload.extents.values()).is_subset(padded):
        failed.append("coverage: an axis was cut short")
    if program.overlaps:
        failed += _sums(relations)
    elif not relations.points.is_injective():
        failed.append("coverage: a point is executed twice")
    return failed


def _sums(relations: Relations) -> list[str]:
    """Every execution of a spatial point sums over the whole reduction, each point once: it may be
    executed again, with the same result."""
    program = relations.program
    kinds = {axis.name: axis.kind for axis in program.workload.axes}
    iterators = (*program.loops, *program.instruction_axes)
    spatial = [it for it in iterators if it.kind is AxisKind.SPATIAL]
    names = {it.name for it in spatial}
    summed = [axis for axis, kind in kinds.items() if kind is AxisKind.REDUCTION]
    apart = all(
        (set(program.axis_map[axis].iterators) <= names) is (kind is AxisKind.SPATIAL)
        for axis, kind in kinds.items()
        if program.axis_map[axis].iterators
    ) and not any(set(program.axis_map[axis].iterators) & names for axis in summed)
    if not apart:
        return ["coverage: a spatial axis and a reduction axis share an iterator"]
    whole = [IndexExpr.iterator(it.name) for it in spatial]
    points = relations.map([*whole, *(program.axis_map[axis] for axis in summed)])
    once = points.intersect_domain(relations.first)
    every = [it.extent for it in spatial] + [program.padded_extents[axis] for axis in summed]
    failed: list[str] = []
    if not once.is_injective():
        failed.append("coverage: a point is added twice")
    if not once.range().is_equal(box(every)):
        failed.append("coverage: a sum is not whole")
    return failed


def access(relations: Relations, operand: PackedOperand) -> list[str]:
    """On every original point the program touches the element that the workload names."""
    failed: list[str] = []
    if not relations.packed(operand).range().is_subset(box(operand.shape)):
        failed.append(f"access: {operand.name} is accessed outside its layout")
    named = relations.named(operand).intersect_domain(relations.valid)
    wanted = relations.wanted(operand).intersect_domain(relations.valid)
    if not named.is_equal(wanted):
        failed.append(f"access: {operand.name} holds another element than the workload names")
    return failed


def neutral(relations: Relations) -> list[str]:
    """A padded point adds zero or its result is dropped."""
    if relations.padding.is_empty():
        return []
    if all(
        relations.padding.is_subset(_harmless(relations, statement))
        for statement in relations.program.workload.statements
    ):
        return []
    return ["neutral: a padded point changes the result"]


def _harmless(relations: Relations, statement: Assignment) -> isl.Set:
    """Iterators at which a statement adds zero or its result is dropped."""
    harmless = relations.outside(relations.program.operand(statement.store.operand))
    if statement.reduction == "add":
        harmless = harmless.union(zeros(relations, statement.value))
    return harmless


def zeros(relations: Relations, value: Expression) -> isl.Set:
    """Iterators at which the value is zero because of operands outside their shape."""
    everywhere = relations.points.domain()
    if isinstance(value, Access):
        return relations.outside(relations.program.operand(value.operand))
    if isinstance(value, Cast):
        return zeros(relations, value.arg)
    if not isinstance(value, Operation):
        return everywhere if value.value == 0 else everywhere.subtract(everywhere)
    parts = [zeros(relations, arg) for arg in value.args]
    if value.op == "shr":
        return parts[0]
    return reduce(isl.Set.union if value.op == "mul" else isl.Set.intersect, parts)


def absorbing(workload: Computation) -> tuple[str, ...]:
    """Operands that undo a point where their element is out of shape: the output, which drops it,
    and in a sum each input whose zero makes the point's value zero. None where there are several
    results, which need not share one."""
    if len(workload.statements) > 1:
        return ()
    statement = workload.statement
    inputs = _factors(statement.value) if statement.reduction == "add" else ()
    return (workload.output.name, *inputs)


def _factors(value: Expression) -> tuple[str, ...]:
    """Operands whose zero makes the value zero, seen through products and casts."""
    if isinstance(value, Access):
        return (value.operand,)
    if isinstance(value, Cast):
        return _factors(value.arg)
    if isinstance(value, Operation) and value.op == "mul":
        return tuple(name for arg in value.args for name in _factors(arg))
    return ()


def output(relations: Relations, name: str) -> list[str]:
    """Each element that the workload writes is read back from exactly one packed element."""
    operand = relations.program.operand(name)
    original = relations.workload_store(operand)
    written = relations.packed(operand).range()
    back = source_relation(operand).intersect_domain(written)
    back = back.intersect_range(box(operand.original_shape))
    failed: list[str] = []
    if not back.is_injective():
        failed.append("output: an element is written to two places")
    if not back.range().is_equal(original):
        failed.append("output: an element is never written")
    return failed


def tile(program: DerivedProgram) -> list[str]:
    """Instruction axes address memory as the memory side asks: enumerated, a tile is small."""
    failed: list[str] = []
    extents = {axis.name: axis.extent for axis in program.instruction_axes}
    for ours in program.instruction.computation.operands:
        operand = program.role(ours.name)
        memory = program.instruction.memory[ours.name]
        walked = {tile.axis for tile in memory.tile}
        sizes = [extents[name] for name in sorted(walked)]
        grid = dict(zip(sorted(walked), np.indices(sizes), strict=True)) if sizes else {}
        address = np.zeros(sizes, np.int64)
        for index, stride in zip(operand.access, operand.strides, strict=True):
            inner = [term for term in index.terms if term.iterator in extents]
            if any(term.iterator not in walked for term in inner):
                failed.append(f"tile: {operand.name} depends on an axis its tile does not have")
                return failed
            address = address + IndexExpr.of(inner).evaluate(grid) * stride
        expected = np.zeros(sizes, np.int64) + _tile_address(memory, extents, operand, grid)
        if not np.array_equal(address, expected):
            failed.append(f"tile: {operand.name} is not laid out as {program.instruction.name}'s")
    return failed


def _tile_address(
    memory: OperandMemory,
    extents: Mapping[str, int],
    operand: PackedOperand,
    grid: Mapping[str, Coordinates],
) -> Coordinates | int:
    """Addresses that the memory side expects: dense in the tile's order, free axes as they are."""
    total: Coordinates | int = 0
    weight = 1
    for dimension in reversed(memory.tile):
        extent = extents[dimension.axis]
        if memory.stride_rule(dimension.axis) is StrideRule.ANY:
            stride = operand.axis_stride(dimension.axis)
            if stride is None:
                return -1
            total = total + grid[dimension.axis] * stride
            continue
        size = dimension.size(extent)
        total = total + (grid[dimension.axis] // dimension.divisor) % size * weight
        weight *= size
    return total


def flattening(program: DerivedProgram) -> list[str]:
    """Failures of the obligation: fused points number the original points once each, with the same
    accesses.

    Points in the gaps of a fused axis (:attr:`Embedding.pitches`) are none of them.
    """
    original, flat = program.unfused, program.workload
    coordinates = tuple(
        program.member_digits.get(axis.name, IndexExpr.iterator(axis.name))
        for axis in original.axes
    )
    return list(
        _flattening_failures(original, flat, coordinates, gaps=bool(program.embedding.pitches))
    )


@lru_cache(maxsize=1 << 10)
def _flattening_failures(
    original: Computation, flat: Computation, coordinates: tuple[IndexExpr, ...], *, gaps: bool
) -> tuple[str, ...]:
    points = relation(coordinates, flat.extents)
    failed: list[str] = []
    domain = box(original.extents.values())
    if gaps:
        points = points.intersect_range(domain)
    if not (points.is_bijective() and points.range().is_equal(domain)):
        failed.append("flatten: fused points do not number the original ones")
    for mine, theirs in zip(
        (*flat.reads, *flat.stores), (*original.reads, *original.stores), strict=True
    ):
        through = points.apply_range(relation(theirs.index, original.extents))
        found = relation(mine.index, flat.extents).intersect_domain(points.domain())
        if mine.operand != theirs.operand or not through.is_equal(found):
            failed.append(f"flatten: {mine.operand} is accessed elsewhere")
    return tuple(failed)
