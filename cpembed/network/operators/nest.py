"""Loop nests over the elements of tensors in layouts.

An operand is a view: its layout, and its index as expressions in the axes of the loops. Axes that a
layout stores in blocks are split into the same blocks, so that most positions in memory are affine.
Neighbouring loops that pass through memory without a gap in every operand are joined.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from cpembed.codegen.values import storage_type
from cpembed.errors import TransformError
from cpembed.graph.kinds.base import TensorType
from cpembed.ir.index import IndexExpr, IndexTerm, row_major_strides
from cpembed.network.layout import Layout
from cpembed.transform.index_algebra import divide, simplify


@dataclass(frozen=True)
class View:
    """Operand of a nest: its layout, and the element that belongs to a point of the loops.

    ``index`` has one expression per axis of the operand, in the names of :func:`axis_name`.
    """

    layout: Layout
    index: tuple[IndexExpr, ...]


@dataclass(frozen=True)
class Loop:
    """Loop from 0 to its extent."""

    name: str
    extent: int


@dataclass(frozen=True)
class Nest:
    """Loops, the outermost first, and the elements that each operand has at their points.

    Attributes
    ----------
    loops : tuple of Loop
        Loops, the outermost first.
    places : tuple of IndexExpr
        Position of each operand's element in its flat buffer.
    points : tuple of IndexExpr
        Indices of the axes that a kernel needs besides the places.
    """

    loops: tuple[Loop, ...]
    places: tuple[IndexExpr, ...]
    points: tuple[IndexExpr, ...] = ()

    @property
    def extents(self) -> dict[str, int]:
        """Extent of each loop by its name."""
        return {loop.name: loop.extent for loop in self.loops}

    def step(self, operand: int, name: str) -> int:
        """Return the distance in memory between the first two iterations of a loop."""
        place, zero = self.places[operand], dict.fromkeys(self.extents, 0)
        return place.evaluate(zero | {name: 1}) - place.evaluate(zero)

    def is_affine(self, name: str) -> bool:
        """True if every place and point changes by a constant per iteration of a loop."""
        return not any(
            name in term.iterators and not term.is_affine
            for place in (*self.places, *self.points)
            for term in place.terms
        )


def axis_name(axis: int) -> str:
    """Return the name of an axis in index expressions."""
    return f"a{axis}"


def axes(rank: int) -> tuple[IndexExpr, ...]:
    """Return the indices of the axes themselves."""
    return tuple(IndexExpr.iterator(axis_name(axis)) for axis in range(rank))


def constant(value: int) -> IndexExpr:
    """Return an index without iterators."""
    return IndexExpr((), value)


def div_mod(index: IndexExpr, divisor: int, modulus: int | None) -> IndexExpr:
    """Return ``index // divisor % modulus`` without simplifying it.

    Parameters
    ----------
    index : IndexExpr
    divisor : int
    modulus : int or None
        None for the quotient alone.
    """
    return IndexExpr.sum([IndexTerm("", 1, divisor, modulus, index)])


def nest_over(
    shape: Sequence[int],
    views: Sequence[View],
    points: Sequence[int] = (),
    ordered_by: int = 0,
    separate: Sequence[int] = (),
) -> Nest:
    """Return loops over all indices of a shape, in the order in which an operand lies in memory.

    Parameters
    ----------
    shape : sequence of int
    views : sequence of View
        Operands, whose places the nest has in this order.
    points : sequence of int, default none
        Axes whose index the kernel needs; they are not split.
    ordered_by : int, default 0
        Position of the view whose memory gives the order.
    separate : sequence of int, default none
        Axes whose loops are not joined with those of others.
    """
    indices = axes(len(shape))
    index_of: dict[str, IndexExpr] = {}
    loops: list[Loop] = []
    for axis, size in enumerate(shape):
        name = axis_name(axis)
        cuts = [] if axis in points else _cuts(name, size, views)
        steps = [*cuts, size]
        terms: list[IndexTerm] = []
        for number, (step, following) in enumerate(zip([1, *cuts], steps, strict=True)):
            part = f"{name}_{number}" if cuts else name
            if following // step > 1:
                terms.append(IndexTerm(part, step))
                loops.append(Loop(part, following // step))
        index_of[name] = IndexExpr.sum(terms)
    extents = {loop.name: loop.extent for loop in loops}
    places = [
        _place_of(view.layout, [e.substitute(index_of) for e in view.index], extents)
        for view in views
    ]
    nest = Nest(tuple(loops), tuple(places), tuple(indices[k].substitute(index_of) for k in points))
    # The loop with the smallest step in memory becomes the innermost one.
    ordered = sorted(loops, key=lambda loop: -abs(nest.step(ordered_by, loop.name)))
    return _coalesced(replace(nest, loops=tuple(ordered)), {axis_name(axis) for axis in separate})


def axis_of_loop(name: str) -> str:
    """Return the name of the axis that a loop belongs to."""
    return name.split("_", maxsplit=1)[0]


def _cuts(name: str, size: int, views: Sequence[View]) -> list[int]:
    """Return the sizes at which an axis is split; each divides the next, and the axis's size."""
    candidates: set[int] = set()
    for view in views:
        if view.layout.block == 1:
            continue
        # Blocks begin where index and offset reach a multiple of their size.
        index = view.index[1]
        if index.coefficient(name) == 1:
            offset = index.constant + view.layout.halo[1]
            candidates.add(math.gcd(view.layout.block, offset, size))
            if offset % view.layout.block == 0 and size % view.layout.block == 0:
                candidates.add(view.layout.block)
    # Sizes that do not divide each other are replaced by their common divisor.
    chain: list[int] = []
    for cut in sorted(candidates):
        if chain and cut % chain[-1]:
            chain = [math.gcd(cut, *chain)]
        else:
            chain.append(cut)
    return [cut for cut in dict.fromkeys(chain) if 1 < cut < size]


def _place_of(layout: Layout, index: Sequence[IndexExpr], extents: Mapping[str, int]) -> IndexExpr:
    """Return the position of an element in a layout's flat buffer."""
    steps = row_major_strides(layout.physical_shape)
    total = IndexExpr()
    for place, axis in enumerate(layout.order):
        # Element 0 lies behind the halo.
        moved = index[axis] + layout.halo[axis]
        if axis == 1 and layout.block > 1:
            block, inside = _split(moved, layout.block, extents)
            total = total + block.times(steps[place]) + inside
        else:
            total = total + moved.times(steps[place])
    return simplify(total, extents) if total.is_affine else total


def _split(
    index: IndexExpr, factor: int, extents: Mapping[str, int]
) -> tuple[IndexExpr, IndexExpr]:
    """Return ``(index // factor, index % factor)``, affine if possible."""
    if index.is_affine:
        try:
            return divide(index, factor, extents)
        except TransformError:
            pass
        # A divisor of the block may still divide the index: then runs of so many elements stay
        # contiguous, although the number of the block is not affine.
        for step in sorted((s for s in range(2, factor) if factor % s == 0), reverse=True):
            try:
                outer, inner = divide(index, step, extents)
            except TransformError:
                continue
            if outer.is_affine and inner.is_affine:
                count = factor // step
                return div_mod(outer, count, None), div_mod(outer, 1, count).times(step) + inner
    return div_mod(index, factor, None), div_mod(index, 1, factor)


def _coalesced(nest: Nest, separate: Collection[str] = ()) -> Nest:
    """Join neighbouring loops if every operand continues without a gap; drop loops of one point.

    Loops of the axes in ``separate`` are joined with each other only: a reduction may treat them
    differently.
    """
    loops = [loop for loop in nest.loops if loop.extent > 1]
    affine = {loop.name: nest.is_affine(loop.name) for loop in loops}
    joined: list[Loop] = []
    places, points = list(nest.places), list(nest.points)
    for loop in reversed(loops):
        inner = joined[-1] if joined else None
        if (
            inner is not None
            and (axis_of_loop(loop.name) in separate) == (axis_of_loop(inner.name) in separate)
            and affine[loop.name]
            and affine[inner.name]
            # A step of the outer loop has to be as far as the inner loop goes, for every operand.
            and all(
                p.coefficient(loop.name) == inner.extent * p.coefficient(inner.name)
                for p in (*places, *points)
            )
        ):
            joined[-1] = Loop(inner.name, inner.extent * loop.extent)
            places = [_without_iterator(p, loop.name) for p in places]
            points = [_without_iterator(p, loop.name) for p in points]
        else:
            joined.append(loop)
    return Nest(tuple(reversed(joined)), tuple(places), tuple(points))


def _without_iterator(index: IndexExpr, name: str) -> IndexExpr:
    return IndexExpr.sum([t for t in index.terms if name not in t.iterators], index.constant)


@dataclass(frozen=True)
class PlacedTensor:
    """Tensor in a layout; kernels neither read nor write ``fill``, the value in its halo."""

    type: TensorType
    layout: Layout
    fill: int | float = 0

    @classmethod
    def plain(cls, type: TensorType) -> PlacedTensor:
        """Return a row-major tensor."""
        return cls(type, Layout.plain(type.shape))

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape without the halo."""
        return self.type.shape

    @property
    def dtype(self) -> str:
        """Element type of the network's tensor."""
        return self.type.dtype

    @property
    def storage_dtype(self) -> str:
        """Element type in memory: Booleans are bytes, bfloat16 is uint16."""
        return storage_type(self.dtype)

    @property
    def bytes(self) -> int:
        """Size in bytes, without the halo."""
        return self.type.elements * np.dtype(self.storage_dtype).itemsize

    @property
    def is_row_major(self) -> bool:
        """True if elements lie in the order of their indices without gaps."""
        layout = self.layout
        return layout.same_memory(Layout.plain(layout.shape))

    def parameter(self, name: str) -> str:
        """Return the declaration of the flat buffer in the kernel."""
        return f'{name}: T.Buffer(({max(1, self.layout.elements)},), "{self.storage_dtype}")'


Tensors = Sequence[PlacedTensor]
"""Inputs or outputs of an operator, each in its layout."""


def broadcast_index(shape: Sequence[int], rank: int) -> tuple[IndexExpr, ...]:
    """Return the index of a broadcast tensor's element at a point of ``rank`` axes."""
    last = axes(rank)[rank - len(shape) :]
    return tuple(constant(0) if size == 1 else e for size, e in zip(shape, last, strict=True))


def broadcast_nest(tensors: Tensors, ordered_by: int = 0, separate: Sequence[int] = ()) -> Nest:
    """Return loops over the elements of the first tensor, to which the others broadcast.

    Parameters
    ----------
    tensors : sequence of PlacedTensor
        Operands of the nest.
    ordered_by, separate
        As for :func:`nest_over`.
    """
    shape = tensors[0].shape
    views = [View(x.layout, broadcast_index(x.shape, len(shape))) for x in tensors]
    return nest_over(shape, views, ordered_by=ordered_by, separate=separate)
