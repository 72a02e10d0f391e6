"""The layout rewrites of Table 2 (Rieber et al. 2021), each with its effect on layout and access.

A rewrite is a function from a packed operand to a packed operand; no data is moved until the
resulting layout is packed (docs/embedding.md, "Rewrites"). Order matters:
:mod:`cpembed.transform.layout` applies them in the order of the table.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from cpembed.errors import TransformError
from cpembed.ir.index import IndexExpr, IndexTerm
from cpembed.transform.index_algebra import (
    divide,
    shifted,
    simplify,
    substitute_digit,
    substitute_split,
)
from cpembed.transform.program import Overlap, PackedDimension, PackedOperand, Rewrite


@dataclass(frozen=True)
class Part:
    """A dimension that takes over a share of an index.

    The index is the sum of ``coefficient * part`` over all parts and an offset. ``access`` is the
    part over the program's iterators.
    """

    name: str
    extent: int
    coefficient: int
    access: IndexExpr
    lane: str | None = None


@dataclass(frozen=True)
class _Unrolled(Rewrite):
    """Replace a dimension by several: element ``sum coefficient * part + offset`` of the old one.

    Elements outside the old extent are zero. An element that several parts reach is copied.
    """

    dimension: int
    extent: int
    offset: int
    parts: tuple[Part, ...]
    label: str = ""

    def apply(self, layout: PackedOperand, extents: Mapping[str, int]) -> PackedOperand:
        old = layout.dimensions[self.dimension]
        if old.extent != self.extent:
            raise TransformError(f"{self.name}: {old.name} has extent {old.extent}")
        index = IndexExpr.sum(
            (IndexTerm(part.name, part.coefficient) for part in self.parts), self.offset
        )
        dimensions = tuple(PackedDimension(p.name, p.extent, p.lane) for p in self.parts)
        accesses = tuple(part.access for part in self.parts)
        return replace(
            layout,
            dimensions=_spliced(layout.dimensions, self.dimension, 1, dimensions),
            access=_spliced(layout.access, self.dimension, 1, accesses),
            source=tuple(source.substitute({old.name: index}) for source in layout.source),
        )

    def describe(self) -> dict[str, Any]:
        parts = {p.name: {"extent": p.extent, "step": p.coefficient} for p in self.parts}
        return {"axes": [self.label], "offset": self.offset, "parts": parts}


@dataclass(frozen=True)
class StencilUnroll(_Unrolled):
    """``[S, I] -> [S, I, K]``, access ``[n, i+k] -> [n, i, k]``: im2col on just the mapped axes."""

    name: ClassVar[str] = "stencil_unroll"


@dataclass(frozen=True)
class ImagePack(_Unrolled):
    """``[S, I] -> [S*s, I/s]``: independent sub-images, no element twice."""

    name: ClassVar[str] = "image_pack"


def unroll(
    operand: str, dimension: int, extent: int, offset: int, parts: tuple[Part, ...], label: str
) -> Rewrite:
    """Make a stencil unroll, or an image pack if the parts never reach an element twice.

    Parameters
    ----------
    operand, label : str
        Names of the operand, and of the dimension in reports.
    dimension, extent, offset : int
        Position and extent of the dimension, and constant of the index.
    parts : tuple of Part
        Dimensions that replace it, outermost first.
    """
    # Sorted by step, parts number elements apart if each one steps over all that the shorter ones
    # reach. That is sufficient; other sums may be injective too and are called a stencil then.
    reach = 0
    overlap = False
    for part in sorted(parts, key=lambda part: abs(part.coefficient)):
        overlap |= abs(part.coefficient) <= reach and part.extent > 1
        reach += abs(part.coefficient) * (part.extent - 1)
    kind = StencilUnroll if overlap else ImagePack
    return kind(operand, dimension, extent, offset=offset, parts=parts, label=label)


@dataclass(frozen=True)
class Pad(Rewrite):
    """``[S, I] -> [S, before + I + after]`` with zeros."""

    # `clears` is set for a dimension that was split off a sum.
    name: ClassVar[str] = "pad"
    dimension: int
    before: int
    after: int
    extent: int
    label: str = ""
    clears: bool = False

    def apply(self, layout: PackedOperand, extents: Mapping[str, int]) -> PackedOperand:
        dimensions, access = list(layout.dimensions), list(layout.access)
        old = dimensions[self.dimension]
        if old.extent != self.extent:
            raise TransformError(f"pad: {old.name} has extent {old.extent}, not {self.extent}")
        dimensions[self.dimension] = replace(old, extent=self.before + old.extent + self.after)
        access[self.dimension] += self.before
        source = [shifted(index, old.name, -self.before) for index in layout.source]
        if self.clears and self.after and not self.before:
            # By their indices, elements after a dimension that was split off a sum would be
            # original ones: past a window's last row comes the image's next row. So the index of
            # the outermost digit is moved out of its dimension.
            steps = [
                max((t.divisor for t in index.terms if t.iterator == old.name), default=0)
                for index in source
            ]
            position = steps.index(max(steps))
            low = source[position].bounds({d.name: d.extent for d in dimensions})[0]
            shift = IndexTerm(old.name, layout.original_shape[position] - low, self.extent)
            source[position] = source[position] + IndexExpr.sum([shift])
        return replace(
            layout, dimensions=tuple(dimensions), access=tuple(access), source=tuple(source)
        )

    def describe(self) -> dict[str, Any]:
        to = self.before + self.extent + self.after
        return {"axes": [self.label], "before": self.before, "after": self.after, "to": to}


@dataclass(frozen=True)
class Split(Rewrite):
    """``[S, I] -> [S, I/t, t]``; ``outer`` and ``inner`` name the new dimensions."""

    name: ClassVar[str] = "split"
    dimension: int
    factor: int
    outer: str
    inner: str
    lane: str | None = None
    outer_lane: str | None = None

    def apply(self, layout: PackedOperand, extents: Mapping[str, int]) -> PackedOperand:
        old = layout.dimensions[self.dimension]
        if old.extent % self.factor:
            raise TransformError(f"split: {self.factor} does not divide {old.name} ({old.extent})")
        # Exact only if the access is a sum of multiples of the factor and a rest below it; `divide`
        # rejects others.
        quotient, rest = divide(layout.access[self.dimension], self.factor, extents)
        blocks = old.extent // self.factor
        new = (
            PackedDimension(self.outer, blocks, self.outer_lane or old.lane),
            PackedDimension(self.inner, self.factor, self.lane or old.lane),
        )
        return replace(
            layout,
            dimensions=_spliced(layout.dimensions, self.dimension, 1, new),
            access=_spliced(layout.access, self.dimension, 1, (quotient, rest)),
            source=tuple(
                substitute_split(index, old.name, self.factor, self.outer, self.inner)
                for index in layout.source
            ),
        )

    def describe(self) -> dict[str, Any]:
        return {"axes": [self.outer.split(".")[0]], "factor": self.factor}


@dataclass(frozen=True)
class Overlapped(Rewrite):
    """``[S, I] -> [S, ceil(I/t), t]``: blocks of ``t``, the last of which ends with the dimension.

    With ``zeros``, elements that the previous block has too are zero in the last block.
    """

    name: ClassVar[str] = "overlap"
    dimension: int
    overlap: Overlap
    outer: str
    inner: str
    lane: str | None = None
    zeros: bool = False

    def apply(self, layout: PackedOperand, extents: Mapping[str, int]) -> PackedOperand:
        old, overlap = layout.dimensions[self.dimension], self.overlap
        if old.extent != overlap.extent:
            raise TransformError(f"overlap: {old.name} has extent {old.extent}")
        rest = layout.access[self.dimension] + overlap.start().times(-1)
        if rest.bounds(extents) != (0, overlap.block - 1):
            raise TransformError(f"overlap: {old.name} is not walked in blocks of {overlap.block}")
        new = (
            PackedDimension(self.outer, overlap.count, old.lane),
            PackedDimension(self.inner, overlap.block, self.lane or old.lane),
        )
        element = overlap.start(self.outer) + IndexExpr.iterator(self.inner)
        if self.zeros:
            repeated = overlap.repeated(self.outer, IndexExpr.iterator(self.inner))
            # Elements beyond the dimension read as zero.
            element = element + repeated.times(overlap.extent)
        blocks = IndexExpr.iterator(overlap.loop)
        return replace(
            layout,
            dimensions=_spliced(layout.dimensions, self.dimension, 1, new),
            access=_spliced(layout.access, self.dimension, 1, (blocks, rest)),
            source=tuple(index.substitute({old.name: element}) for index in layout.source),
        )

    def describe(self) -> dict[str, Any]:
        overlap = self.overlap
        return {"axes": [overlap.axis], "factor": overlap.block, "shared": overlap.back}


@dataclass(frozen=True)
class Reorder(Rewrite):
    """``[S, I] -> [I, S]``: dimension ``order[i]`` becomes dimension ``i``."""

    name: ClassVar[str] = "reorder"
    order: tuple[int, ...]
    labels: tuple[str, ...] = ()

    def apply(self, layout: PackedOperand, extents: Mapping[str, int]) -> PackedOperand:
        if sorted(self.order) != list(range(len(layout.dimensions))):
            raise TransformError(f"reorder: {self.order} is not a permutation of the dimensions")
        return replace(
            layout,
            dimensions=tuple(layout.dimensions[i] for i in self.order),
            access=tuple(layout.access[i] for i in self.order),
        )

    def describe(self) -> dict[str, Any]:
        return {"axes": list(self.labels), "order": list(self.order)}


@dataclass(frozen=True)
class Fuse(Rewrite):
    """``[S, I] -> [S*I]``: fuse neighbouring dimensions."""

    name: ClassVar[str] = "fuse"
    dimension: int
    extents: tuple[int, ...]
    fused: str
    lane: str | None = None
    labels: tuple[str, ...] = ()

    def apply(self, layout: PackedOperand, extents: Mapping[str, int]) -> PackedOperand:
        count = len(self.extents)
        old = layout.dimensions[self.dimension : self.dimension + count]
        if tuple(d.extent for d in old) != self.extents:
            raise TransformError(f"fuse: dimensions {self.labels} have other extents")
        source = layout.source
        total = layout.access[self.dimension]
        for position, (name, extent) in enumerate((d.name, d.extent) for d in old):
            weight, outermost = math.prod(self.extents[position + 1 :]), position == 0
            source = tuple(
                substitute_digit(index, name, self.fused, weight, extent, outermost=outermost)
                for index in source
            )
            if position:
                total = total.times(extent) + layout.access[self.dimension + position]
        fused = (PackedDimension(self.fused, math.prod(self.extents), self.lane),)
        return replace(
            layout,
            dimensions=_spliced(layout.dimensions, self.dimension, count, fused),
            access=_spliced(layout.access, self.dimension, count, (simplify(total, extents),)),
            source=source,
        )

    def describe(self) -> dict[str, Any]:
        return {"axes": list(self.labels), "to": math.prod(self.extents)}


@dataclass(frozen=True)
class Flatten(Fuse):
    """``[I, J] -> [I*J]`` for a fused axis, ``index`` over the program's iterators (section 5)."""

    name: ClassVar[str] = "flatten"
    index: IndexExpr = field(default_factory=IndexExpr)

    def apply(self, layout: PackedOperand, extents: Mapping[str, int]) -> PackedOperand:
        fused = super().apply(layout, extents)
        # So far the access has the terms of other axes that share the dimensions. The coordinates
        # of the members are digits of the fused axis and do not occur in the program.
        index = fused.access[self.dimension] + self.index
        return replace(fused, access=_spliced(fused.access, self.dimension, 1, (index,)))


def _spliced(
    items: tuple[Any, ...], start: int, count: int, new: tuple[Any, ...]
) -> tuple[Any, ...]:
    return (*items[:start], *new, *items[start + count :])
