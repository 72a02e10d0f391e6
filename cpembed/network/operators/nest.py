"""Loops over the elements of a tensor, and where each operand's element then lies in memory.

An operand is a view: its layout, and its index as expressions in the axes of the loops. Axes that a
layout has in blocks are split likewise, so that most places are affine; loops that walk memory
without a gap in every operand are one.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from cpembed.errors import TransformError
from cpembed.graph.kinds.base import TensorType
from cpembed.ir.index import IndexExpr, IndexTerm
from cpembed.network.layout import Layout
from cpembed.network.operators.values import stored
from cpembed.transform.index_algebra import divide, simplify


@dataclass(frozen=True)
class View:
    """An operand: where its elements lie, and which one belongs to a point of the loops, an
    expression for each of its axes in the names of :func:`axis_name`."""

    layout: Layout
    index: tuple[IndexExpr, ...]


@dataclass(frozen=True)
class Loop:
    name: str
    extent: int


@dataclass(frozen=True)
class Nest:
    """``loops``, the outermost first; ``places``: of each operand the element in its flat buffer.
    ``points`` are the axes' indices, for what depends on more than places."""

    loops: tuple[Loop, ...]
    places: tuple[IndexExpr, ...]
    points: tuple[IndexExpr, ...] = ()

    @property
    def extents(self) -> dict[str, int]:
        return {loop.name: loop.extent for loop in self.loops}

    @property
    def size(self) -> int:
        """Points."""
        return math.prod(loop.extent for loop in self.loops)

    def step(self, operand: int, name: str) -> int:
        """Elements in memory between neighbours of a loop, at its beginning."""
        place, zero = self.places[operand], dict.fromkeys(self.extents, 0)
        return place.evaluate(zero | {name: 1}) - place.evaluate(zero)

    def is_affine(self, name: str) -> bool:
        """Whether every place and every point moves along a loop by a constant."""
        return not any(
            name in term.iterators and not term.is_affine
            for place in (*self.places, *self.points)
            for term in place.terms
        )


def axis_name(axis: int) -> str:
    return f"a{axis}"


def axes(rank: int) -> tuple[IndexExpr, ...]:
    """The axes' own indices."""
    return tuple(IndexExpr.iterator(axis_name(axis)) for axis in range(rank))


def constant(value: int) -> IndexExpr:
    return IndexExpr((), value)


def digit(index: IndexExpr, divisor: int, modulus: int | None) -> IndexExpr:
    """``index // divisor % modulus`` as it stands."""
    return IndexExpr.of([IndexTerm("", 1, divisor, modulus, index)])


def nest_over(
    shape: Sequence[int],
    views: Sequence[View],
    points: Sequence[int] = (),
    ordered_by: int = 0,
    apart: Sequence[int] = (),
) -> Nest:
    """Loops over all indices of a shape, in the order in which operand ``ordered_by`` lies in
    memory; ``points``: axes whose index is needed as such, which are not split;
    ``apart``: axes whose loops are not joined with those of others."""
    given = axes(len(shape))
    replaced: dict[str, IndexExpr] = {}
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
        replaced[name] = IndexExpr.of(terms)
    extents = {loop.name: loop.extent for loop in loops}
    places = [
        place_of(view.layout, [e.substitute(replaced) for e in view.index], extents)
        for view in views
    ]
    nest = Nest(tuple(loops), tuple(places), tuple(given[k].substitute(replaced) for k in points))
    ordered = sorted(loops, key=lambda loop: -abs(nest.step(ordered_by, loop.name)))
    return coalesced(replace(nest, loops=tuple(ordered)), {axis_name(axis) for axis in apart})


def axis_of_loop(name: str) -> str:
    """The axis that a loop belongs to."""
    return name.split("_", maxsplit=1)[0]


def _cuts(name: str, size: int, views: Sequence[View]) -> list[int]:
    """Where an axis is split: each divides the next, and the size."""
    found: set[int] = set()
    for view in views:
        if view.layout.block == 1:
            continue
        index = view.index[1]
        if index.coefficient(name) == 1:
            offset = index.constant + view.layout.halo[1]
            found.add(math.gcd(view.layout.block, offset, size))
            if offset % view.layout.block == 0 and size % view.layout.block == 0:
                found.add(view.layout.block)
    chain: list[int] = []
    for cut in sorted(found):
        if chain and cut % chain[-1]:
            chain = [math.gcd(cut, *chain)]
        else:
            chain.append(cut)
    return [cut for cut in dict.fromkeys(chain) if 1 < cut < size]


def place_of(layout: Layout, index: Sequence[IndexExpr], extents: Mapping[str, int]) -> IndexExpr:
    """The place of an element in a layout's flat buffer."""
    physical = layout.physical_shape
    steps = [math.prod(physical[k + 1 :]) for k in range(len(physical))]
    total = IndexExpr()
    for place, axis in enumerate(layout.order):
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
    """``(index // factor, index % factor)``; where these are not affine, what is contiguous inside
    a block stays so."""
    if index.is_affine:
        try:
            return divide(index, factor, extents)
        except TransformError:
            pass
        for step in sorted((s for s in range(2, factor) if factor % s == 0), reverse=True):
            try:
                outer, inner = divide(index, step, extents)
            except TransformError:
                continue
            if outer.is_affine and inner.is_affine:
                whole = factor // step
                return digit(outer, whole, None), digit(outer, 1, whole).times(step) + inner
    return digit(index, factor, None), digit(index, 1, factor)


def coalesced(nest: Nest, apart: Collection[str] = ()) -> Nest:
    """Neighbouring loops as one wherever every operand goes on without a gap, and both or neither
    are of axes ``apart``; loops of one point are left out."""
    loops = [loop for loop in nest.loops if loop.extent > 1]
    affine = {loop.name: nest.is_affine(loop.name) for loop in loops}
    done: list[Loop] = []
    places, points = list(nest.places), list(nest.points)
    for loop in reversed(loops):
        inner = done[-1] if done else None
        if (
            inner is not None
            and (axis_of_loop(loop.name) in apart) == (axis_of_loop(inner.name) in apart)
            and affine[loop.name]
            and affine[inner.name]
            and all(
                p.coefficient(loop.name) == inner.extent * p.coefficient(inner.name)
                for p in (*places, *points)
            )
        ):
            done[-1] = Loop(inner.name, inner.extent * loop.extent)
            places = [_without(p, loop.name) for p in places]
            points = [_without(p, loop.name) for p in points]
        else:
            done.append(loop)
    return Nest(tuple(reversed(done)), tuple(places), tuple(points))


def _without(index: IndexExpr, name: str) -> IndexExpr:
    return IndexExpr.of([t for t in index.terms if name not in t.iterators], index.constant)


@dataclass(frozen=True)
class Placed:
    """A tensor of a ``type`` whose elements lie as ``layout`` says; ``fill``: what the elements of
    its halo hold. Kernels neither write nor read the halo."""

    type: TensorType
    layout: Layout
    fill: int | float = 0

    @classmethod
    def plain(cls, type: TensorType) -> Placed:
        """Row-major."""
        return cls(type, Layout.plain(type.shape))

    @property
    def shape(self) -> tuple[int, ...]:
        return self.type.shape

    @property
    def dtype(self) -> str:
        return self.type.dtype

    @property
    def stored(self) -> str:
        """The element type in memory."""
        return stored(self.dtype)

    @property
    def bytes(self) -> int:
        """Of the elements, without the halo."""
        return self.type.elements * np.dtype(self.stored).itemsize

    @property
    def is_row_major(self) -> bool:
        """Whether elements lie in the order of their indices with nothing between them."""
        layout = self.layout
        return layout.same_memory(Layout.plain(layout.shape))

    def parameter(self, name: str) -> str:
        """A flat buffer of the kernel."""
        return f'{name}: T.Buffer(({max(1, self.layout.elements)},), "{self.stored}")'


def row_major_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Elements from one index of each axis to the next.

    >>> row_major_strides((2, 3, 4))
    (12, 4, 1)
    """
    return tuple(math.prod(shape[k + 1 :]) for k in range(len(shape)))
