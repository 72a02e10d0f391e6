"""The derived program: an instruction executed over outer loops on packed operands.

A :class:`DerivedProgram` has all that a back end needs, as plain values: outer loops, the
instruction's axes, the workload point of each scalar operation, and per operand a
:class:`PackedOperand`, a layout with two maps: from packed elements to original elements (what
packing does) and from iterators to packed elements (what the program reads or writes).
:func:`pack` and :func:`unpack` say in numpy what a layout means for data.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from cpembed.embedding.embedding import Embedding
from cpembed.embedding.flatten import member_digits
from cpembed.hw.instruction import Instruction
from cpembed.ir.computation import AxisKind, Computation
from cpembed.ir.index import IndexExpr, IndexTerm, flat_index, row_major_strides
from cpembed.transform.index_algebra import simplify

Array = NDArray[Any]


@dataclass(frozen=True)
class Loop:
    """An iterator of the derived program: an outer loop or an instruction axis."""

    name: str
    extent: int
    kind: AxisKind


@dataclass(frozen=True)
class Overlap:
    """A workload axis in blocks, the last of which is moved back to end with the axis.

    Nothing is padded. Instead, the last two blocks overlap, and the points that they share are
    executed twice; where that would add to a sum twice, a factor holds zeros.

    >>> rows = Overlap("p", "p.o", block=4, count=3, extent=10, kind=AxisKind.SPATIAL)
    >>> rows.back, [rows.start().evaluate({"p.o": number}) for number in range(3)]
    (2, [0, 4, 6])

    Attributes
    ----------
    axis, loop : str
        The workload axis, and the iterator over its blocks.
    block, count, extent : int
        Points of a block, number of blocks, and points of the axis.
    kind : AxisKind
        Role of the axis.
    """

    axis: str
    loop: str
    block: int
    count: int
    extent: int
    kind: AxisKind

    @property
    def back(self) -> int:
        """Number of points that the last two blocks share."""
        return self.block * self.count - self.extent

    def start(self, loop: str | None = None) -> IndexExpr:
        """First point of a block, over the iterator of the blocks."""
        # (number + 1) // count is 1 in the last block alone, which moves back.
        name = loop or self.loop
        last = IndexTerm.digit(
            IndexExpr.iterator(name) + 1, coefficient=-self.back, divisor=self.count
        )
        return IndexExpr.sum([IndexTerm(name, self.block), last])

    def repeated(self, loop: str, position: IndexExpr) -> IndexExpr:
        """Index that is 1 where the previous block has this position of a block too, else 0."""
        # It does in the last block for position < back: just then the sum below reaches twice the
        # block, so that its quotient is 1.
        negated = [term.times(-1) for term in position.terms]
        last = IndexTerm.digit(
            IndexExpr.iterator(loop) + 1, coefficient=self.block, divisor=self.count
        )
        low = self.block - 1 + self.back - position.constant
        inner = IndexExpr.sum([*negated, last], low)
        return IndexExpr((IndexTerm.digit(inner, divisor=2 * self.block),))


@dataclass(frozen=True)
class PackedDimension:
    """A dimension of a packed operand.

    ``lane`` names the instruction axis to whose tile it belongs; None if only outer loops walk the
    dimension.
    """

    name: str
    extent: int
    lane: str | None = None


@dataclass(frozen=True)
class PackedOperand:
    """An operand in the layout that the program needs, row-major over ``dimensions``.

    Attributes
    ----------
    name, dtype : str
        The workload operand and its element type.
    original_shape : tuple of int
        Shape before packing.
    dimensions : tuple of PackedDimension
        Packed dimensions, outermost first.
    source : tuple of IndexExpr
        One expression per original dimension over the names of packed dimensions: the original
        element of a packed element. Where that is outside ``original_shape``, the packed element is
        zero (an input) or dropped (an output).
    access : tuple of IndexExpr
        One expression per packed dimension over the program's iterators (loops and instruction
        axes): the element that a point of the program accesses.
    """

    name: str
    dtype: str
    original_shape: tuple[int, ...]
    dimensions: tuple[PackedDimension, ...]
    source: tuple[IndexExpr, ...]
    access: tuple[IndexExpr, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(dimension.extent for dimension in self.dimensions)

    @property
    def elements(self) -> int:
        return math.prod(self.shape)

    @cached_property
    def strides(self) -> tuple[int, ...]:
        """Row-major strides in elements."""
        return row_major_strides(self.shape)

    @cached_property
    def is_identity(self) -> bool:
        """True if packing moves nothing: the packed bytes are the original bytes."""
        if self.elements != math.prod(self.original_shape):
            return False
        # Flat index of the original over the packed dimensions: they are the same memory if its
        # coefficients are the packed strides.
        if any(index.constant for index in self.source):
            return False
        total = flat_index(self.source, row_major_strides(self.original_shape))
        if not total.is_affine:
            # Neighbouring digits of a fused dimension may add up to an affine index.
            sizes = {d.name: d.extent for d in self.dimensions}
            total = simplify(total, sizes)
        return total.is_affine and all(
            dimension.extent == 1 or total.coefficient(dimension.name) == stride
            for dimension, stride in zip(self.dimensions, self.strides, strict=True)
        )

    def axis_stride(self, axis: str) -> int | None:
        """Distance in elements of steps of an instruction axis; None if it is not constant."""
        total = 0
        for index, stride in zip(self.access, self.strides, strict=True):
            for term in index.terms:
                if term.iterator == axis:
                    if not term.is_affine:
                        return None
                    total += term.coefficient * stride
        return total


@dataclass(frozen=True)
class Rewrite(ABC):
    """A rewrite of one operand's layout; positions count the dimensions of the current layout."""

    name: ClassVar[str]
    operand: str

    @abstractmethod
    def apply(self, layout: PackedOperand, extents: Mapping[str, int]) -> PackedOperand:
        """Rewrite a layout; ``extents`` are those of the program's iterators.

        Raises :class:`~cpembed.errors.TransformError` if the rewrite does not apply.
        """

    @abstractmethod
    def describe(self) -> dict[str, Any]:
        """Parameters for JSON, in addition to ``name`` and ``operand``."""

    def to_json(self) -> dict[str, Any]:
        return {"name": self.name, "operand": self.operand, **self.describe()}


@dataclass(frozen=True)
class DerivedProgram:
    """A program ``for loops: instruction`` that equals the workload, operation by operation.

    Attributes
    ----------
    workload, instruction : Computation, Instruction
        Both in port form (:mod:`cpembed.ir.accesses`).
    embedding : Embedding
        The embedding from which the program was derived.
    loops : tuple of Loop
        Outer loops, outermost first: spatial before reduction loops, in the workload's order.
    instruction_axes : tuple of Loop
        Axes of the instruction with the extents in use.
    axis_map : mapping of str to IndexExpr
        Coordinate of each workload axis over loops and instruction axes; coordinates at or beyond
        the axis's extent are padding.
    operands : tuple of PackedOperand
        Packed operands in the order of the instruction's operands (inputs, then outputs).
    roles : mapping of str to str
        Workload operand of each instruction operand.
    rewrites : tuple of Rewrite
        Rewrites of the layouts, in the order of their application.
    original : Computation or None
        The workload before axes were fused; None if none were.
    overlaps : tuple of Overlap
        Axes in blocks of which the last two overlap.
    in_place : tuple of str
        Workload operands that keep the layout of the caller, whatever the least footprint is.
    """

    workload: Computation
    instruction: Instruction
    embedding: Embedding
    loops: tuple[Loop, ...]
    instruction_axes: tuple[Loop, ...]
    axis_map: Mapping[str, IndexExpr]
    operands: tuple[PackedOperand, ...]
    roles: Mapping[str, str]
    rewrites: tuple[Rewrite, ...] = ()
    original: Computation | None = None
    overlaps: tuple[Overlap, ...] = ()
    in_place: tuple[str, ...] = ()

    @property
    def unfused(self) -> Computation:
        """The workload before its axes were fused."""
        return self.original or self.workload

    @cached_property
    def member_digits(self) -> dict[str, IndexExpr]:
        """Coordinates of the members of fused axes, as digits of these.

        A point with a coordinate at or beyond its member's extent is padding.
        """
        embedding = self.embedding
        return member_digits(self.unfused, embedding.flattened, embedding.pitches)

    @cached_property
    def extents(self) -> dict[str, int]:
        """Extent of every iterator, loops then instruction axes."""
        return {loop.name: loop.extent for loop in (*self.loops, *self.instruction_axes)}

    @property
    def padded_extents(self) -> dict[str, int]:
        """Extent of each workload axis after padding."""
        unpadded = {overlap.axis: overlap.extent for overlap in self.overlaps}
        return {
            axis: unpadded.get(axis) or index.bounds(self.extents)[1] + 1
            for axis, index in self.axis_map.items()
        }

    @property
    def calls(self) -> int:
        """Number of executions of the instruction."""
        return math.prod(loop.extent for loop in self.loops)

    def operand(self, name: str) -> PackedOperand:
        """Return the packed operand of a workload operand."""
        for operand in self.operands:
            if operand.name == name:
                return operand
        raise KeyError(name)

    def role(self, instruction_operand: str) -> PackedOperand:
        """Return the packed operand of an instruction operand."""
        return self.operand(self.roles[instruction_operand])


def source_elements(operand: PackedOperand) -> tuple[list[NDArray[np.int64]], NDArray[np.bool_]]:
    """Return the original index (clipped) of every packed element, and a mask of those that exist.

    The indices are one array per original dimension; all arrays have the packed shape.
    """
    # Clipped, so that elements outside can be gathered with the others and masked afterwards.
    grid = dict(zip((d.name for d in operand.dimensions), np.indices(operand.shape), strict=True))
    inside = np.ones(operand.shape, np.bool_)
    indices: list[NDArray[np.int64]] = []
    for index, size in zip(operand.source, operand.original_shape, strict=True):
        position = np.broadcast_to(np.asarray(index.evaluate(grid), np.int64), operand.shape)
        inside &= (position >= 0) & (position < size)
        indices.append(np.clip(position, 0, size - 1))
    return indices, inside


def pack(operand: PackedOperand, data: Array) -> Array:
    """Pack original data; packed elements without an original are zero.

    >>> indices = IndexExpr.sum([IndexTerm("o", 2), IndexTerm("i")])
    >>> pairs = PackedOperand(
    ...     name="A", dtype="int8", original_shape=(3,), source=(indices,), access=(),
    ...     dimensions=(PackedDimension("o", 2), PackedDimension("i", 2)),
    ... )
    >>> pack(pairs, np.array([1, 2, 3]))
    array([[1, 2],
           [3, 0]])
    """
    # Positions depend on few dimensions each: gathered from arrays that broadcast, they need a
    # fraction of the memory and time of arrays of the packed shape.
    grid = dict(
        zip(
            (d.name for d in operand.dimensions),
            np.indices(operand.shape, sparse=True),
            strict=True,
        )
    )
    inside: Array = np.array(True)
    indices: list[NDArray[np.int64]] = []
    for index, size in zip(operand.source, operand.original_shape, strict=True):
        position = np.asarray(index.evaluate(grid), np.int64)
        valid = (position >= 0) & (position < size)
        if not valid.all():
            inside = inside & valid
        indices.append(np.clip(position, 0, size - 1))
    gathered = data[tuple(indices)]
    packed = gathered if inside.all() else np.where(inside, gathered, np.zeros((), data.dtype))
    if packed.shape != operand.shape:
        return np.broadcast_to(packed, operand.shape).copy()
    return np.asarray(packed, order="C")


def unpack(operand: PackedOperand, packed: Array, program: DerivedProgram) -> Array:
    """Return an output in its original shape, zero where nothing is written.

    Parameters
    ----------
    operand, packed : PackedOperand, array
        Layout of the output, and the packed output in its shape.
    program : DerivedProgram
        Program that wrote it; only elements that it writes are read back.
    """
    written = np.zeros(operand.shape, np.bool_)
    written[accessed(operand, program)] = True
    indices, inside = source_elements(operand)
    valid = inside & written
    result = np.zeros(operand.original_shape, packed.dtype)
    # The ellipsis lets a scalar, which has no index, take its only element.
    result[(*(index[valid] for index in indices), ...)] = packed[valid]
    return result


def accessed(operand: PackedOperand, program: DerivedProgram) -> tuple[Array, ...]:
    """Return the packed element that each point of the program's loops and axes accesses."""
    grid = iterators(program)
    shape = tuple(program.extents.values())
    return tuple(np.broadcast_to(index.evaluate(grid), shape) for index in operand.access)


def iterators(program: DerivedProgram) -> dict[str, NDArray[np.int64]]:
    """Return the values of each iterator, in shapes that broadcast to the program's box."""
    arrays = np.indices(tuple(program.extents.values()), sparse=True)
    return dict(zip(program.extents, arrays, strict=True))
