"""A derived program as a machine sees it: loops over executions, and what tiles of them touch.

A tile is so many consecutive iterations of each loop. Sizes are arrays, one element for each of
many tilings, so that they are compared in one go.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from cpembed.cost.machine.padding import executed_share
from cpembed.hw.machine import Layouts
from cpembed.ir.computation import AxisKind
from cpembed.ir.dtypes import size_bytes
from cpembed.ir.index import IndexExpr, IndexTerm
from cpembed.transform.program import DerivedProgram, Loop, PackedOperand

Floats = NDArray[np.float64]

Sizes = Mapping[str, Floats]
"""Iterations by loop; instruction axes, which are always whole, are among them."""


@dataclass(frozen=True)
class TileOperand:
    """An operand of the nest: an index and an extent for each dimension, row-major.

    ``scope`` is the memory that the instruction takes it from, where an element has
    ``held_bytes``; everywhere else it has ``element_bytes``. ``loops`` are those that move it.
    """

    name: str
    scope: str
    element_bytes: int
    held_bytes: int
    dimensions: tuple[tuple[IndexExpr, int], ...]
    loops: frozenset[str]
    is_output: bool

    def elements(self, sizes: Sizes) -> Floats:
        """Elements of the box that a tile touches: exact for affine indices whose loops appear in
        one dimension each, else not fewer."""
        total = np.ones(1)
        for index, extent in self.dimensions:
            total = total * _touched(index, extent, sizes)[0]
        return total

    def moved_bytes(self, sizes: Sizes, granule: int) -> Floats:
        """Bytes of whole granules that hold what a tile touches; a contiguous piece begins at a
        granule. Gaps that are shorter than one are moved too."""
        pieces, piece = np.ones(1), np.full(1, float(self.element_bytes))
        whole = np.ones(1, bool)
        for index, extent in reversed(self.dimensions):
            count, span = _touched(index, extent, sizes)
            gap = piece * (span - count) / np.maximum(count - 1, 1.0)
            joins = whole & (gap < granule)
            piece = np.where(joins, piece * span, piece)
            pieces = np.where(joins, pieces, pieces * count)
            whole = joins & (span >= extent)
        return pieces * np.ceil(piece / granule) * granule


@dataclass(frozen=True)
class TileNest:
    """The loops around an instruction, those of more than one iteration, and its operands.

    ``axes`` are the extents of the instruction's axes; ``executed`` is the share of the iterations
    that multiply more than padding.
    """

    loops: tuple[Loop, ...]
    axes: Mapping[str, int]
    operands: tuple[TileOperand, ...]
    executed: float = 1.0

    @property
    def calls(self) -> float:
        """Executions of the instruction."""
        return self.executed * math.prod(loop.extent for loop in self.loops)

    @cached_property
    def fixed(self) -> dict[str, Floats]:
        """Sizes of what no tiling changes."""
        return {name: np.full(1, float(extent)) for name, extent in self.axes.items()}

    @cached_property
    def single(self) -> dict[str, Floats]:
        """Sizes of the tile of one execution."""
        return {**self.fixed, **{loop.name: np.ones(1) for loop in self.loops}}

    def execution_bytes(self, operand: TileOperand, granule: int) -> Floats:
        """Bytes of whole granules that hold what one execution touches; computed once."""
        key = self.operands.index(operand), granule
        if key not in self._executions:
            self._executions[key] = operand.moved_bytes(self.single, granule)
        return self._executions[key]

    @cached_property
    def _executions(self) -> dict[tuple[int, int], Floats]:
        return {}

    @property
    def has_reduction(self) -> bool:
        """Whether executions add to the same outputs."""
        return any(loop.kind is AxisKind.REDUCTION for loop in self.loops)


def tile_nest(program: DerivedProgram, layouts: Layouts = Layouts.PACKED) -> TileNest:
    """The nest of a program, on its packed operands or on the workload's own."""
    loops = tuple(loop for loop in program.loops if loop.extent > 1)
    single = {loop.name: 1 for loop in program.loops if loop.extent == 1}
    axes = {**{axis.name: axis.extent for axis in program.instruction_axes}, **single}
    computation = program.instruction.computation
    outputs = {operand.name for operand in computation.outputs}
    operands: list[TileOperand] = []
    for ours in computation.operands:
        packed = program.role(ours.name)
        dimensions = _dimensions(program, packed, layouts)
        moving = {name for index, _ in dimensions for name in index.iterators}
        operands.append(
            TileOperand(
                packed.name,
                program.instruction.memory[ours.name].scope,
                size_bytes(packed.dtype),
                max(size_bytes(packed.dtype), size_bytes(ours.dtype)),
                dimensions,
                frozenset(moving & {loop.name for loop in loops}),
                ours.name in outputs,
            )
        )
    return TileNest(loops, axes, tuple(operands), executed_share(program))


def _dimensions(
    program: DerivedProgram, packed: PackedOperand, layouts: Layouts
) -> tuple[tuple[IndexExpr, int], ...]:
    if layouts is Layouts.PACKED:
        return tuple(zip(packed.access, packed.shape, strict=True))
    access = program.workload.access(packed.name)
    indices = [index.substitute(program.axis_map) for index in access.index]
    return tuple(zip(indices, program.workload.operand(packed.name).shape, strict=True))


def _touched(index: IndexExpr, extent: int, sizes: Sizes) -> tuple[Floats, Floats]:
    """Positions along a dimension that a tile touches, and how far they reach, ends included."""
    terms = sorted(index.terms, key=lambda term: abs(term.coefficient))
    pairs = [(abs(term.coefficient), _values(term, sizes)) for term in terms]
    span = np.ones(1)
    for step, values in pairs:
        span = span + step * (values - 1)
    span = np.minimum(span, extent)
    return np.minimum(_sums(pairs), span), span


def _sums(pairs: Sequence[tuple[int, Floats]]) -> Floats:
    """Different sums of multiples of steps, each so many: exact for two steps, and for more where
    the sums of the smaller ones are without gaps, or smaller than the next step; else not fewer."""
    total, reach, step = np.ones(1), np.zeros(1), np.ones(1, np.int64)
    for larger, values in pairs:
        # Of n multiples of a and m of b, without a common factor, sums are equal that differ by b
        # of the first and a of the second.
        common = np.gcd(step, larger)
        twice = np.maximum(total - larger // common, 0) * np.maximum(values - step // common, 0)
        even = (total - 1) * step == reach
        step = np.where(total == 1, larger, np.where(values == 1, step, common))
        total = total * values - np.where(even, twice, 0.0)
        reach = reach + larger * (values - 1)
    return total


def _values(term: IndexTerm, sizes: Sizes) -> Floats:
    """Values that a digit takes in a tile that begins at a multiple of its divisor."""
    if term.inner is None:
        reach = sizes[term.iterator]
    else:
        reach = np.ones(1)
        for part in term.inner.terms:
            reach = reach + abs(part.coefficient) * (_values(part, sizes) - 1)
    if term.divisor != 1:
        reach = np.ceil(reach / term.divisor)
    return reach if term.modulus is None else np.minimum(reach, term.modulus)
