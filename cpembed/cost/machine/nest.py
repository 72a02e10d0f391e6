"""Derived programs for a machine model: loops over executions, and footprints of their tiles.

A tile is a number of consecutive iterations of each loop. Sizes are arrays with an element per
tiling, so that many tilings are compared at once.

This nest keeps the dimensions of its operands, because the bytes of a box depend on them; the nest
of a kernel (:mod:`cpembed.codegen.nest`) has one index into a flat buffer.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from cpembed.errors import TransformError
from cpembed.hw.machine import Hierarchy, Layouts, Link, Memory, TransferUnit
from cpembed.ir.computation import AxisKind
from cpembed.ir.dtypes import element_bytes
from cpembed.ir.expression import Operation
from cpembed.ir.index import IndexExpr, IndexTerm
from cpembed.transform.program import DerivedProgram, Loop, PackedOperand

Floats = NDArray[np.float64]

Sizes = Mapping[str, Floats]
"""Iterations by loop, with the instruction axes in full."""


@dataclass(frozen=True)
class TileOperand:
    """Operand of the nest: an index and an extent for each dimension, row-major.

    ``scope`` is the memory from which the instruction reads it, where an element has
    ``held_bytes``; elsewhere it has ``element_bytes``. ``loops`` are those that move it. ``home``
    is the memory that has the operand in full before and after the program, if that is not main
    memory. ``bypassed`` are memories on its way that it passes by.
    """

    name: str
    scope: str
    element_bytes: float
    held_bytes: float
    dimensions: tuple[tuple[IndexExpr, int], ...]
    loops: frozenset[str]
    is_output: bool
    home: str = ""
    bypassed: frozenset[str] = frozenset()

    def links(self, machine: Hierarchy) -> list[Link]:
        """Return the links through which tiles of the operand move, the innermost first."""
        links = list[Link]()
        memory, *path = machine.path(self.scope)
        for parent in path:
            if memory.name == self.home:
                break
            if parent.name not in self.bypassed:
                links.append(Link(memory, parent))
                memory = parent
        return links

    def passes(self, memory: Memory, machine: Hierarchy) -> bool:
        """Return True if tiles of the operand move into a memory from one farther out."""
        return any(link.memory == memory for link in self.links(machine))

    def elements(self, sizes: Sizes) -> Floats:
        """Return the elements of the box that a tile touches.

        Exact for affine indices whose loops appear in one dimension each, else an upper bound.
        """
        total = np.ones(1)
        for index, extent in self.dimensions:
            total = total * _touched(index, extent, sizes)[0]
        return total

    def least_elements(self, sizes: Sizes) -> Floats:
        """Return a lower bound on the elements of the box that a tile touches.

        Exact where :meth:`elements` is.
        """
        names = [name for index, _ in self.dimensions for name in index.iterators]
        total, counted = np.ones(1), set[str]()
        for index, extent in self.dimensions:
            if _is_exact(index) and all(names.count(name) == 1 for name in index.iterators):
                total = total * _touched(index, extent, sizes)[0]
                continue
            # Positions that differ in one iterator alone differ; an iterator counts in one
            # dimension only.
            most = np.ones(1)
            for term in index.terms:
                # Values of a digit of an expression may have gaps.
                if term.inner is None and not counted & {term.iterator}:
                    most = np.maximum(most, np.minimum(_values(term, sizes), extent))
            counted |= set(index.iterators)
            total = total * most
        return total

    def moved_bytes(self, sizes: Sizes, granule: int) -> Floats:
        """Return a tile's footprint in bytes of full granules.

        A contiguous piece begins at a granule. Gaps that are shorter than one are moved too.
        """
        pieces, piece = np.ones(1), np.full(1, float(self.element_bytes))
        contiguous = np.ones(1, bool)
        # From the innermost dimension outwards, pieces join while dimensions are touched in full.
        for index, extent in reversed(self.dimensions):
            count, span = _touched(index, extent, sizes)
            # Gaps that are shorter than a granule are moved too, so that the piece goes on behind
            # them.
            joins = contiguous & (piece * _least_gap(index, sizes) < granule)
            piece = np.where(joins, piece * span, piece)
            pieces = np.where(joins, pieces, pieces * count)
            contiguous = joins & (span >= extent)
        return pieces * np.ceil(piece / granule) * granule

    def keeps_overlap(self, name: str, sizes: Sizes) -> NDArray[np.bool_]:
        """Return True where tiles that a loop moves share elements with the next one alone.

        Then the elements that each tile shares with the one before are all that it has in common
        with any: there are no gaps in a tile, in which elements would be that later tiles share.

        Parameters
        ----------
        name : str
            Loop that moves the tile.
        sizes : mapping of str to array
            Sizes of the tile.
        """
        keeps = np.ones(1, bool)
        for index, extent in self.dimensions:
            if name not in index.iterators:
                continue
            step = np.zeros(1, np.int64)
            for term in index.terms:
                several = np.asarray(_values(term, sizes) > 1) | (name in term.iterators)
                step = np.gcd(step, np.where(several, term.coefficient, 0))
            count, span = _touched(index, extent, sizes)
            keeps = keeps & (count == (span - 1) // step + 1)
        return keeps


@dataclass(frozen=True)
class ExecutionNest:
    """Loops of several iterations around an instruction, and its operands.

    ``axes`` are the extents of the instruction's axes; ``executed`` is the share of the iterations
    that multiply more than padding.
    """

    loops: tuple[Loop, ...]
    axes: Mapping[str, int]
    operands: tuple[TileOperand, ...]
    executed: float = 1.0

    @property
    def calls(self) -> float:
        """Number of executions of the instruction."""
        return self.executed * math.prod(loop.extent for loop in self.loops)

    @cached_property
    def fixed(self) -> dict[str, Floats]:
        """Sizes of the instruction axes, which no tiling changes."""
        return {name: np.full(1, float(extent)) for name, extent in self.axes.items()}

    @cached_property
    def single(self) -> dict[str, Floats]:
        """Sizes of the tile of one execution."""
        return {**self.fixed, **{loop.name: np.ones(1) for loop in self.loops}}

    def execution_bytes(self, operand: TileOperand, granule: int) -> Floats:
        """Return one execution's footprint in bytes of full granules; cached."""
        key = self.operands.index(operand), granule
        if key not in self._executions:
            self._executions[key] = operand.moved_bytes(self.single, granule)
        return self._executions[key]

    @cached_property
    def _executions(self) -> dict[tuple[int, int], Floats]:
        return {}

    def operands_in(self, memory: Memory, machine: Hierarchy) -> list[TileOperand]:
        """Return the operands that pass through a memory."""
        return [o for o in self.operands if o.passes(memory, machine)]

    def links(
        self, machine: Hierarchy, memories: Sequence[Memory]
    ) -> dict[str, tuple[Link, list[TileOperand]]]:
        """Return the links of memories to those that fill them, by name, with their operands.

        Each memory has the link to its parent, whether or not an operand uses it.
        """
        links: dict[str, tuple[Link, list[TileOperand]]] = {}
        for memory in memories:
            links[memory.name] = Link(memory, machine.memories[memory.parent or ""]), []
            for operand in self.operands:
                for link in operand.links(machine):
                    if link.memory == memory:
                        links.setdefault(link.name, (link, []))[1].append(operand)
        return links

    def execution_tiles(self, operand: TileOperand, sizes: Sizes) -> Floats:
        """Return the number of different tiles of single executions in a tile of many."""
        return operand.elements({**dict.fromkeys(self.axes, np.ones(1)), **sizes})

    def filled_bytes(self, memory: Memory, operands: Sequence[TileOperand], sizes: Sizes) -> Floats:
        """Return the bytes of a memory that a tile of these operands occupies."""
        total = np.zeros(1)
        for operand in operands:
            total = total + self.occupied_bytes(memory, operand, sizes)
        return total

    def occupied_bytes(self, memory: Memory, operand: TileOperand, sizes: Sizes) -> Floats:
        """Return the bytes of a memory that a tile of one operand occupies."""
        if memory.transfer_unit is not TransferUnit.REGION:
            each = self.execution_bytes(operand, memory.granule_bytes)
            return self.execution_tiles(operand, sizes) * each
        in_registers = operand.scope == memory.name
        element = operand.held_bytes if in_registers else operand.element_bytes
        return operand.elements({**self.fixed, **sizes}) * element

    def windowed(self, operand: TileOperand) -> tuple[str, ...]:
        """Return the loops whose consecutive tiles of an operand can overlap.

        They share a dimension with another iterator, as rows and taps of a convolution do.
        """
        extents = {**self.axes, **{loop.name: loop.extent for loop in self.loops}}
        loops: dict[str, None] = {}
        for index, _ in operand.dimensions:
            moving = [term for term in index.terms if any(extents[n] > 1 for n in term.iterators)]
            if len(moving) > 1:
                loops |= dict.fromkeys(name for term in moving for name in term.iterators)
        return tuple(name for name in loops if name in operand.loops)

    @property
    def has_reduction(self) -> bool:
        """True if executions add to the same outputs."""
        return any(loop.kind is AxisKind.REDUCTION for loop in self.loops)


def check_one_execution(nest: ExecutionNest, machine: Hierarchy) -> None:
    """Raise :class:`TransformError` if a memory is too small for one execution."""
    ones = {loop.name: np.ones(1) for loop in nest.loops}
    for memory in machine.memories.values():
        operands = nest.operands_in(memory, machine)
        needed = float(nest.filled_bytes(memory, operands, ones)[0])
        if memory.parent is not None and needed > memory.tile_capacity:
            raise TransformError(
                f"one execution takes {needed:,.0f} bytes of {memory.name}, which has room for "
                f"{memory.tile_capacity:,.0f}"
            )


def execution_nest(program: DerivedProgram, layouts: Layouts = Layouts.PACKED) -> ExecutionNest:
    """Return the nest of a program, on its packed operands or on the workload's."""
    loops = tuple(loop for loop in program.loops if loop.extent > 1)
    # Loops of one iteration move nothing: they count as axes of extent 1, so that indices still
    # have all iterators.
    single = {loop.name: 1 for loop in program.loops if loop.extent == 1}
    axes = {**{axis.name: axis.extent for axis in program.instruction_axes}, **single}
    computation = program.instruction.computation
    outputs = {operand.name for operand in computation.outputs}
    operands: list[TileOperand] = []
    for role in computation.operands:
        packed = program.role(role.name)
        dimensions = _dimensions(program, packed, layouts)
        moving = {name for index, _ in dimensions for name in index.iterators}
        operands.append(
            TileOperand(
                name=packed.name,
                scope=program.instruction.memory[role.name].scope,
                element_bytes=element_bytes(packed.dtype),
                # An operand may be narrower in memory than in the registers of the instruction.
                held_bytes=max(element_bytes(packed.dtype), element_bytes(role.dtype)),
                dimensions=dimensions,
                loops=frozenset(moving & {loop.name for loop in loops}),
                is_output=role.name in outputs,
            )
        )
    return ExecutionNest(loops, axes, tuple(operands), executed_share(program))


def _dimensions(
    program: DerivedProgram, packed: PackedOperand, layouts: Layouts
) -> tuple[tuple[IndexExpr, int], ...]:
    if layouts is Layouts.PACKED:
        return tuple(zip(packed.access, packed.shape, strict=True))
    access = program.workload.access(packed.name)
    indices = [index.substitute(program.axis_map) for index in access.index]
    return tuple(zip(indices, program.workload.operand(packed.name).shape, strict=True))


def _touched(index: IndexExpr, extent: int, sizes: Sizes) -> tuple[Floats, Floats]:
    """Return the positions along a dimension that a tile touches, and their span, ends included."""
    if len(index.terms) == 1:
        values = _values(index.terms[0], sizes)
        span = np.minimum(1.0 + abs(index.terms[0].coefficient) * (values - 1), extent)
        return np.minimum(values, span), span
    terms = sorted(index.terms, key=lambda term: abs(term.coefficient))
    pairs = [(abs(term.coefficient), _values(term, sizes)) for term in terms]
    span = np.ones(1)
    for step, values in pairs:
        span = span + step * (values - 1)
    span = np.minimum(span, extent)
    return np.minimum(_sums(pairs), span), span


def _least_gap(index: IndexExpr, sizes: Sizes) -> Floats:
    """Return the positions between a run along a dimension that a tile touches and the next run.

    0 where there is one run.
    """
    run, gap = np.ones(1), np.zeros(1)
    for term in sorted(index.terms, key=lambda term: abs(term.coefficient)):
        step, values = abs(term.coefficient), _values(term, sizes)
        gap = np.where((gap == 0) & (values > 1) & (step > run), step - run, gap)
        run = np.where(gap == 0, run + step * (values - 1), run)
    return gap


def _is_exact(index: IndexExpr) -> bool:
    """True if the positions that an index touches are counted exactly."""
    return len(index.terms) <= 2 and all(term.is_affine for term in index.terms)


def _sums(pairs: Sequence[tuple[int, Floats]]) -> Floats:
    """Return the number of different sums of multiples of steps, from pairs of step and count.

    Exact for two steps, and for more if the sums of the smaller ones are without gaps, or smaller
    than the next step; else an upper bound.
    """
    total, reach, step = np.ones(1), np.zeros(1), np.ones(1, np.int64)
    for larger, values in pairs:
        # For coprime a and b, sums of n multiples of a and m of b are equal if they differ by b of
        # the first and a of the second.
        common = np.gcd(step, larger)
        twice = np.maximum(total - larger // common, 0) * np.maximum(values - step // common, 0)
        even = (total - 1) * step == reach
        step = np.where(total == 1, larger, np.where(values == 1, step, common))
        total = total * values - np.where(even, twice, 0.0)
        reach = reach + larger * (values - 1)
    return total


def _values(term: IndexTerm, sizes: Sizes) -> Floats:
    """Return the number of values of a digit in a tile that begins at a multiple of its divisor."""
    if term.inner is None:
        reach = sizes[term.iterator]
    else:
        reach = np.ones(1)
        for part in term.inner.terms:
            reach = reach + abs(part.coefficient) * (_values(part, sizes) - 1)
    if term.divisor != 1:
        reach = np.ceil(reach / term.divisor)
    return reach if term.modulus is None else np.minimum(reach, term.modulus)


# ------------------------------------------------------------------- executions on padding alone


_POSITIONS = 2**20
"""Maximum number of iterations that are enumerated; of more, none are assumed to be left out."""

Coordinate = tuple[IndexExpr, int]
"""Coordinate of an original dimension over the program's iterators, and the dimension's size."""


def executed_share(program: DerivedProgram) -> float:
    """Return the share of a program's executions in which no factor consists of padding.

    Kernels leave the others out. The share is 1 unless the workload is a product-sum, in which
    padding adds nothing.
    """
    if len(program.workload.statements) != 1:
        return 1.0
    statement = program.workload.statement
    value = statement.value
    if statement.reduction != "add" or not isinstance(value, Operation) or value.op != "mul":
        return 1.0
    share, decided = 1.0, set[str]()
    loops = {loop.name for loop in program.loops}
    inputs = {operand.name for operand in program.workload.inputs}
    for operand in program.operands:
        if operand.name not in inputs:
            continue
        places = dict(zip((d.name for d in operand.dimensions), operand.access, strict=True))
        coordinates = [
            (source.substitute(places), size)
            for source, size in zip(operand.source, operand.original_shape, strict=True)
        ]
        # Coordinates that share an iterator are enumerated together; others are independent.
        for group in _groups([c for c in coordinates if _leaves(c, program)]):
            names = {name for index, _ in group for name in index.iterators}
            # Coordinates that share a loop depend on each other, so their shares do not multiply;
            # the first factor's alone is an upper bound of the rest.
            if not names & decided:
                share *= _inside(group, names, program)
                decided |= names & loops
    return share


def _leaves(coordinate: Coordinate, program: DerivedProgram) -> bool:
    index, size = coordinate
    low, high = index.bounds(program.extents)
    return low < 0 or high >= size


def _groups(coordinates: Sequence[Coordinate]) -> Iterator[list[Coordinate]]:
    """Yield coordinates that share iterators, directly or through further ones."""
    remaining = list(coordinates)
    while remaining:
        group, names = [remaining.pop()], set[str]()
        while True:
            names |= {name for index, _ in group for name in index.iterators}
            more = [c for c in remaining if names & set(c[0].iterators)]
            if not more:
                break
            group += more
            remaining = [c for c in remaining if c not in more]
        yield group


def _inside(group: Sequence[Coordinate], names: set[str], program: DerivedProgram) -> float:
    """Return the share of the loops' iterations with an element inside."""
    loops = [loop for loop in program.loops if loop.name in names]
    inner = [axis for axis in program.instruction_axes if axis.name in names]
    extents = [iterator.extent for iterator in itertools.chain(loops, inner)]
    if math.prod(extents) > _POSITIONS:
        return 1.0
    grid = np.ogrid[tuple(slice(extent) for extent in extents)]
    values = dict(zip((i.name for i in itertools.chain(loops, inner)), grid, strict=True))
    inside = np.ones(extents, bool)
    for index, size in group:
        at = np.asarray(index.evaluate(values))
        inside &= (at >= 0) & (at < size)
    # One element inside is enough for an execution to be needed.
    axes = tuple(range(len(loops), len(extents)))
    return float(inside.any(axis=axes).mean())
