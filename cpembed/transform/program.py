"""The derived program: an instruction executed over outer loops on packed operands.

Everything a back end needs, as plain values: outer loops, the instruction's axes, the
workload point of each scalar operation, and per operand a packed layout with two maps, one from
packed elements to original elements (what packing does) and one from iterators to packed elements
(what the program reads or writes).
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
from cpembed.ir.index import IndexExpr, IndexTerm
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
    """A workload axis in blocks of which the last one ends at the axis's extent.

    It begins before the one ahead of it ends, and nothing is padded: the points that both have are
    executed twice. Where that would add to a sum twice, a factor holds zeros there.
    """

    axis: str
    loop: str
    """The iterator over the blocks."""
    block: int
    count: int
    extent: int
    kind: AxisKind

    @property
    def back(self) -> int:
        """Points that the last two blocks share."""
        return self.block * self.count - self.extent

    def start(self, loop: str | None = None) -> IndexExpr:
        """First point of a block, over the iterator of the blocks."""
        name = loop or self.loop
        last = IndexTerm("", -self.back, self.count, None, IndexExpr((IndexTerm(name),), 1))
        return IndexExpr.of([IndexTerm(name, self.block), last])

    def repeated(self, loop: str, position: IndexExpr) -> IndexExpr:
        """1 where the block before has this position of a block too, else 0.

        In the last block that is for ``position < back``. The sum below reaches twice the block
        just then.
        """
        turned = [term.times(-1) for term in position.terms]
        last = IndexTerm("", self.block, self.count, None, IndexExpr((IndexTerm(loop),), 1))
        low = self.block - 1 + self.back - position.constant
        inner = IndexExpr.of([*turned, last], low)
        return IndexExpr((IndexTerm("", 1, 2 * self.block, None, inner),))


@dataclass(frozen=True)
class PackedDimension:
    """A dimension of a packed operand; ``walked_by`` names the instruction axis whose tile
    dimension it is, None for a dimension that only outer loops walk."""

    name: str
    extent: int
    walked_by: str | None = None


@dataclass(frozen=True)
class PackedOperand:
    """An operand in the layout that the program needs, row-major over ``dimensions``.

    ``source`` has one expression per original dimension over the packed dimensions' names: packed
    element -> original element; where it lies outside ``original_shape`` the packed element is
    zero (an input) or is dropped (the output). ``access`` has one expression per packed dimension
    over the program's iterators (loops and instruction axes).
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
        shape = self.shape
        return tuple(math.prod(shape[k + 1 :]) for k in range(len(shape)))

    @cached_property
    def is_identity(self) -> bool:
        """Whether packing moves nothing: the packed bytes are the original bytes."""
        if self.elements != math.prod(self.original_shape):
            return False
        total = IndexExpr()
        step = 1
        for index, size in reversed(list(zip(self.source, self.original_shape, strict=True))):
            if index.constant:
                return False
            total = index.times(step) + total
            step *= size
        if not total.is_affine:
            # Digits of a fused dimension, which may be neighbours in memory too.
            sizes = {d.name: d.extent for d in self.dimensions}
            total = simplify(total, sizes)
        return total.is_affine and all(
            dimension.extent == 1 or total.coefficient(dimension.name) == stride
            for dimension, stride in zip(self.dimensions, self.strides, strict=True)
        )

    def axis_stride(self, axis: str) -> int | None:
        """Elements between steps of an instruction axis; None where that is no constant."""
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
    """One rewrite of one operand's layout; positions count the layout's current dimensions."""

    name: ClassVar[str]
    operand: str

    @abstractmethod
    def apply(self, layout: PackedOperand, extents: Mapping[str, int]) -> PackedOperand:
        """The rewritten layout; ``extents`` are those of the program's iterators.

        Raises :class:`TransformError` where the rewrite does not apply.
        """

    @abstractmethod
    def describe(self) -> dict[str, Any]:
        """Parameters for JSON, besides ``name`` and ``operand``."""

    def to_json(self) -> dict[str, Any]:
        return {"name": self.name, "operand": self.operand, **self.describe()}


@dataclass(frozen=True)
class DerivedProgram:
    """``for loops: instruction`` equal to the workload, operation by operation.

    ``loops`` are outermost first (spatial before reduction, in the workload's order);
    ``instruction_axes`` have the extents used. ``axis_map`` gives each workload axis's
    coordinate over both; coordinates at or beyond the workload's extent are padding.
    Workload and instruction are in port form (:mod:`cpembed.ir.ports`). ``operands`` follows the
    instruction's operand order (inputs, then the outputs); ``roles`` maps
    instruction operand to workload operand. ``rewrites`` lists what was applied to the
    layouts, in order.
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
    """The workload before flattening, where that differs from ``workload``."""
    overlaps: tuple[Overlap, ...] = ()
    in_place: tuple[str, ...] = ()
    """Operands that keep the layout they come in, whatever the least footprint would be."""

    @property
    def unfused(self) -> Computation:
        """The workload before its axes were fused."""
        return self.original or self.workload

    @cached_property
    def member_digits(self) -> dict[str, IndexExpr]:
        """Coordinates of the members of fused axes as digits of these; at or beyond a member's
        extent the point is padding."""
        embedding = self.embedding
        return member_digits(self.unfused, embedding.flattened, embedding.pitches)

    @cached_property
    def extents(self) -> dict[str, int]:
        """Extent of every iterator, loops then instruction axes."""
        return {loop.name: loop.extent for loop in (*self.loops, *self.instruction_axes)}

    @property
    def padded_extents(self) -> dict[str, int]:
        """Each workload axis's extent after padding."""
        whole = {overlap.axis: overlap.extent for overlap in self.overlaps}
        return {
            axis: whole.get(axis) or e.bounds(self.extents)[1] + 1
            for axis, e in self.axis_map.items()
        }

    @property
    def calls(self) -> int:
        """Executions of the instruction."""
        return math.prod(loop.extent for loop in self.loops)

    def operand(self, name: str) -> PackedOperand:
        """The packed operand of a workload operand, by its name."""
        for operand in self.operands:
            if operand.name == name:
                return operand
        raise KeyError(name)

    def role(self, instruction_operand: str) -> PackedOperand:
        return self.operand(self.roles[instruction_operand])


def source_elements(operand: PackedOperand) -> tuple[list[NDArray[np.int64]], NDArray[np.bool_]]:
    """For every packed element, the original index (clipped) and whether it exists.

    Arrays have the packed shape.
    """
    grid = dict(zip((d.name for d in operand.dimensions), np.indices(operand.shape), strict=True))
    inside = np.ones(operand.shape, np.bool_)
    indices: list[NDArray[np.int64]] = []
    for index, size in zip(operand.source, operand.original_shape, strict=True):
        at = np.broadcast_to(np.asarray(index.evaluate(grid), np.int64), operand.shape)
        inside &= (at >= 0) & (at < size)
        indices.append(np.clip(at, 0, size - 1))
    return indices, inside


def pack(operand: PackedOperand, data: Array) -> Array:
    """Original data in the packed layout, zero where a packed element has no original."""
    indices, inside = source_elements(operand)
    return np.where(inside, data[tuple(indices)], np.zeros((), data.dtype))


def unpack(operand: PackedOperand, packed: Array, program: DerivedProgram) -> Array:
    """The original output from its packed form; only elements that the program writes count."""
    written = np.zeros(operand.shape, np.bool_)
    written[accessed(operand, program)] = True
    indices, inside = source_elements(operand)
    keep = inside & written
    result = np.zeros(operand.original_shape, packed.dtype)
    # The ellipsis lets a scalar, which has no index, take its one element.
    result[(*(index[keep] for index in indices), ...)] = packed[keep]
    return result


def accessed(operand: PackedOperand, program: DerivedProgram) -> tuple[Array, ...]:
    """The packed element that each point of the program's loops and axes accesses."""
    grid = iterators(program)
    shape = tuple(program.extents.values())
    return tuple(np.broadcast_to(index.evaluate(grid), shape) for index in operand.access)


def iterators(program: DerivedProgram) -> dict[str, NDArray[np.int64]]:
    """Each iterator's value, of shapes that broadcast to the program's box."""
    arrays = np.indices(tuple(program.extents.values()), sparse=True)
    return dict(zip(program.extents, arrays, strict=True))
