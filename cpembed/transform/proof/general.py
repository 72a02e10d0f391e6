"""The obligations decided on the whole program: relations over all iterators at once.

This is slower than the lemmas but has no preconditions: it decides what they leave open and says
what does not hold. Every obligation is a function that returns messages, none if it holds.

All sets and relations are Presburger formulas (affine, with floors and moduli by constants), for
which isl decides emptiness, inclusion, equality and injectivity exactly.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property, lru_cache, reduce

import islpy as isl
import numpy as np
from numpy.typing import NDArray

from cpembed.hw.instruction import OperandMemory, StrideRule
from cpembed.ir.computation import Assignment, AxisKind, Computation
from cpembed.ir.expression import Access, Cast, Expression, Operation, zero_arguments
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
        """Iterators to the workload's point; padded points included."""
        return self.map([self.program.axis_map[axis.name] for axis in self.program.workload.axes])

    @cached_property
    def valid(self) -> isl.Set:
        """Iterators whose point is an original one that no sum has added before."""
        domain = box(self.program.workload.extents.values())
        valid = self.points.intersect_range(domain).domain().intersect(self.first)
        # A fused axis with gaps has points that are inside its extent and yet no original ones.
        for member in self.program.embedding.pitches:
            digit = self.program.member_digits[member].substitute(self.program.axis_map)
            inside = box([self.program.unfused.extents[member]])
            valid = valid.intersect(self.map([digit]).intersect_range(inside).domain())
        return valid

    @cached_property
    def first(self) -> isl.Set:
        """Iterators that repeat no point of a reduction axis that overlaps."""
        first = self.points.domain()
        for overlap in self.program.overlaps:
            # A spatial point that is repeated writes the same result again, which is no harm.
            if overlap.kind is not AxisKind.REDUCTION:
                continue
            index = self.program.axis_map[overlap.axis]
            position = [t for t in index.terms if t.iterator in self.inner]
            repeated = self.map([overlap.repeated(overlap.loop, IndexExpr.sum(position))])
            first = first.subtract(repeated.intersect_range(isl.Set("{ [1] }")).domain())
        return first

    @cached_property
    def inner(self) -> set[str]:
        """Names of the instruction axes."""
        return {axis.name for axis in self.program.instruction_axes}

    @cached_property
    def padding(self) -> isl.Set:
        """Iterators whose result must not count."""
        return self.points.domain().subtract(self.valid)

    def map(self, indices: Sequence[IndexExpr]) -> isl.Map:
        """``{ [iterators] -> [indices] }`` on the program's iteration domain."""
        return relation(indices, self.program.extents)

    def packed(self, operand: PackedOperand) -> isl.Map:
        """Iterators to the packed element that the program accesses."""
        return self.map(operand.access)

    def accessed(self, operand: PackedOperand) -> isl.Map:
        """Iterators to the original element behind the packed one that the program accesses."""
        return self.packed(operand).apply_range(source_relation(operand))

    def required(self, operand: PackedOperand) -> isl.Map:
        """Iterators to the original element that the workload accesses."""
        workload = self.program.workload
        access = relation(workload.access(operand.name).index, workload.extents, bounded=False)
        return self.points.apply_range(access)

    def workload_store(self, operand: PackedOperand) -> isl.Set:
        """Elements that an output port has to hold.

        They are all elements of a tensor with one port, else those that the workload writes
        through this port.
        """
        workload = self.program.workload
        port = workload.operand(operand.name)
        if sum(output.tensor == port.tensor for output in workload.outputs) == 1:
            return box(operand.original_shape)
        # Each of several ports writes its share: together they are the tensor.
        return self.required(operand).intersect_domain(self.valid).range()

    def outside(self, operand: PackedOperand) -> isl.Set:
        """Iterators whose element is outside the original operand, hence zero or dropped."""
        inside = self.accessed(operand).intersect_range(box(operand.original_shape))
        return self.points.domain().subtract(inside.domain())


def source_relation(operand: PackedOperand) -> isl.Map:
    """Return ``{ [packed] -> [original] }`` over the packed layout, without bounds on the range."""
    return relation(operand.source, {d.name: d.extent for d in operand.dimensions})


def coverage(relations: Relations) -> list[str]:
    """Check that loops and instruction axes reach every point of the padded domain, each once."""
    program = relations.program
    padded = box(program.padded_extents.values())
    failed: list[str] = []
    # The range of the map is what is reached; isl projects the iterators out exactly.
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
    """Check that every execution of a spatial point adds every point of the reduction once.

    The spatial point may then be executed again, with the same result.
    """
    program = relations.program
    kinds = {axis.name: axis.kind for axis in program.workload.axes}
    iterators = (*program.loops, *program.instruction_axes)
    spatial = [loop for loop in iterators if loop.kind is AxisKind.SPATIAL]
    names = {loop.name for loop in spatial}
    summed = [axis for axis, kind in kinds.items() if kind is AxisKind.REDUCTION]
    # Only if no iterator moves both kinds of axes does one value of the spatial iterators stand for
    # one execution of an output element, over which the others sum.
    separate = all(
        (set(program.axis_map[axis].iterators) <= names) is (kind is AxisKind.SPATIAL)
        for axis, kind in kinds.items()
        if program.axis_map[axis].iterators
    ) and not any(set(program.axis_map[axis].iterators) & names for axis in summed)
    if not separate:
        return ["coverage: a spatial axis and a reduction axis share an iterator"]
    loop_indices = [IndexExpr.iterator(loop.name) for loop in spatial]
    points = relations.map([*loop_indices, *(program.axis_map[axis] for axis in summed)])
    # Repeated points of a reduction are excluded: the obligation "neutral" has to show that they
    # add zero, since they are not in `valid`.
    once = points.intersect_domain(relations.first)
    sizes = [loop.extent for loop in spatial] + [program.padded_extents[axis] for axis in summed]
    failed: list[str] = []
    if not once.is_injective():
        failed.append("coverage: a point is added twice")
    if not once.range().is_equal(box(sizes)):
        failed.append("coverage: a sum is not whole")
    return failed


def access(relations: Relations, operand: PackedOperand) -> list[str]:
    """Check that on every original point the program accesses the workload's element."""
    # Equality of two single-valued maps on one domain is equality of what they access everywhere.
    failed: list[str] = []
    if not relations.packed(operand).range().is_subset(box(operand.shape)):
        failed.append(f"access: {operand.name} is accessed outside its layout")
    accessed = relations.accessed(operand).intersect_domain(relations.valid)
    required = relations.required(operand).intersect_domain(relations.valid)
    if not accessed.is_equal(required):
        failed.append(f"access: {operand.name} holds another element than the workload names")
    return failed


def neutral(relations: Relations) -> list[str]:
    """Check that a padded point adds zero or its result is dropped."""
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
    groups = (
        reduce(isl.Set.intersect, (parts[i] for i in group)) for group in zero_arguments(value)
    )
    return reduce(isl.Set.union, groups, everywhere.subtract(everywhere))


def absorbing(workload: Computation) -> tuple[str, ...]:
    """Return the operands that cancel a point where their element is out of shape.

    They are the output, which drops the result, and in a sum each input whose zero makes the
    point's value zero. A workload of several statements has none, because these need not agree.
    """
    if len(workload.statements) > 1:
        return ()
    statement = workload.statement
    inputs = _factors(statement.value) if statement.reduction == "add" else ()
    return (workload.output.name, *inputs)


def _factors(value: Expression) -> tuple[str, ...]:
    """Return the operands whose zero makes the value zero, through products and casts."""
    if isinstance(value, Access):
        return (value.operand,)
    if isinstance(value, Cast):
        return _factors(value.arg)
    if isinstance(value, Operation) and value.op == "mul":
        return tuple(name for arg in value.args for name in _factors(arg))
    return ()


def output(relations: Relations, name: str) -> list[str]:
    """Check that each element that the workload writes is read back from one packed element."""
    # Unpacking is the map back. On what is written and kept it has to be injective, or the order of
    # copying would matter, and onto the elements that the workload stores.
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
    """Check that instruction axes address memory as the memory side requires."""
    # Addresses are enumerated, since a tile is small.
    failed: list[str] = []
    extents = {axis.name: axis.extent for axis in program.instruction_axes}
    for name, memory in program.instruction.memory.items():
        operand = program.role(name)
        tile_axes = {tile.axis for tile in memory.tile}
        sizes = [extents[name] for name in sorted(tile_axes)]
        grid = dict(zip(sorted(tile_axes), np.indices(sizes), strict=True)) if sizes else {}
        address = np.zeros(sizes, np.int64)
        for index, stride in zip(operand.access, operand.strides, strict=True):
            inner = [term for term in index.terms if term.iterator in extents]
            if any(term.iterator not in tile_axes for term in inner):
                failed.append(f"tile: {operand.name} depends on an axis its tile does not have")
                return failed
            address = address + IndexExpr.sum(inner).evaluate(grid) * stride
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
    """Return the addresses that the memory side requires.

    They are dense in the order of the tile; axes of any stride keep their stride.
    """
    total: Coordinates | int = 0
    weight = 1
    for dimension in reversed(memory.tile):
        extent = extents[dimension.axis]
        if memory.stride_rule(dimension.axis) is StrideRule.ANY:
            stride = operand.axis_stride(dimension.axis)
            if stride is None:
                # No address is negative, so the comparison fails.
                return -1
            total = total + grid[dimension.axis] * stride
            continue
        size = dimension.size(extent)
        total = total + (grid[dimension.axis] // dimension.divisor) % size * weight
        weight *= size
    return total


def flattening(program: DerivedProgram) -> list[str]:
    """Check that points over fused axes number the original points once each, with equal accesses.

    Points in the gaps of a fused axis (:attr:`Embedding.pitches`) count as padding.
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
    # This does not depend on layouts, so the programs of an enumeration share the decision.
    points = relation(coordinates, flat.extents)
    failed: list[str] = []
    domain = box(original.extents.values())
    # A one-to-one map onto the original domain renames points and changes no sum.
    if gaps:
        points = points.intersect_range(domain)
    if not (points.is_bijective() and points.range().is_equal(domain)):
        failed.append("flatten: fused points do not number the original ones")
    for fused, access in zip(
        (*flat.reads, *flat.stores), (*original.reads, *original.stores), strict=True
    ):
        required = points.apply_range(relation(access.index, original.extents))
        accessed = relation(fused.index, flat.extents).intersect_domain(points.domain())
        if fused.operand != access.operand or not required.is_equal(accessed):
            failed.append(f"flatten: {fused.operand} is accessed elsewhere")
    return tuple(failed)
