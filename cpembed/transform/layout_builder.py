"""What every layout of an operand begins with: the original one, its fused axes made dimensions."""

from __future__ import annotations

import itertools
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Literal

from cpembed.embedding.embedding import Embedding
from cpembed.embedding.flatten import members_of
from cpembed.errors import TransformError
from cpembed.hw.instruction import OperandMemory, StrideRule
from cpembed.ir.computation import AxisKind, Computation
from cpembed.ir.dtypes import size_bytes
from cpembed.ir.expression import Access
from cpembed.ir.index import IndexExpr, IndexTerm
from cpembed.ir.joining import JoinedRows, joined_dimensions, joined_index
from cpembed.transform.program import Overlap, PackedDimension, PackedOperand, Rewrite
from cpembed.transform.rewrites import Flatten, Pad, Part, Reorder, unroll

Treatment = Literal["in_place", "digit", "axis"]
"""What becomes of a mapped axis in an index with several: read where it is, its digit in a
dimension of its own, or the whole axis in a dimension of its own."""


@dataclass(frozen=True)
class IndexAxis:
    """A workload axis in an index: its coefficient, its coordinate over loops and instruction
    axes, and for a mapped one the instruction axis that it ``feeds`` and the treatments to choose
    from."""

    name: str
    coefficient: int
    coordinate: IndexExpr
    feeds: str | None = None
    treatments: tuple[Treatment, ...] = ("in_place",)


@dataclass(frozen=True)
class Unrolling:
    """Parts of a dimension, the ``shared`` one first where there is one; ``offset`` is added to
    their sum, ``own`` are the axes with a dimension of their own."""

    parts: tuple[Part, ...]
    shared: bool
    offset: int
    own: tuple[str, ...]

    @property
    def elements(self) -> int:
        return math.prod(part.extent for part in self.parts)


@lru_cache(1 << 14)
def smallest_unrolling(
    name: str, axes: tuple[IndexAxis, ...], extents: tuple[tuple[str, int], ...]
) -> Unrolling:
    """The unrolling of dimension ``name`` with the fewest elements. ``axes`` are those of its index
    in order, ``extents`` those of the iterators in their coordinates."""
    plans = itertools.product(*(axis.treatments for axis in axes))
    sizes = dict(extents)
    return min((_unrolling(name, axes, p, sizes) for p in plans), key=lambda u: u.elements)


def _unrolling(
    name: str, axes: Sequence[IndexAxis], plan: Sequence[Treatment], extents: Mapping[str, int]
) -> Unrolling:
    parts: list[Part] = []
    rest: list[IndexTerm] = []
    own: list[str] = []
    for axis, treatment in zip(axes, plan, strict=True):
        if treatment == "axis":
            extent = axis.coordinate.bounds(extents)[1] + 1
            part = Part(f"{name}.{axis.name}", extent, axis.coefficient, axis.coordinate)
            parts.append(part)
            own.append(axis.name)
            continue
        ours = axis.feeds if treatment == "digit" else None
        for term in axis.coordinate.terms:
            moved = term.times(axis.coefficient)
            if ours is None or moved.iterator != ours:
                rest.append(moved)
                continue
            alone = IndexExpr.of([IndexTerm(ours, 1, moved.divisor, moved.modulus)])
            extent = alone.bounds(extents)[1] + 1
            parts.append(Part(f"{axis.name}.i", extent, moved.coefficient, alone, ours))
    shared, step, offset = normalised(IndexExpr.of(rest), extents)
    if shared.terms:
        together = [a.name for a, t in zip(axes, plan, strict=True) if t != "axis"]
        high = shared.bounds(extents)[1]
        parts.insert(0, Part("+".join(together), high + 1, step, shared))
    return Unrolling(tuple(parts), bool(shared.terms), offset, tuple(own))


def normalised(index: IndexExpr, extents: Mapping[str, int]) -> tuple[IndexExpr, int, int]:
    """``(index - constant - low) / step`` from 0 up in steps of 1, with that step and low."""
    terms = IndexExpr.of(index.terms)
    low, _ = terms.bounds(extents)
    step = math.gcd(*(term.coefficient for term in terms.terms)) or 1
    scaled = [replace(term, coefficient=term.coefficient // step) for term in terms.terms]
    return IndexExpr.of(scaled, -(low // step)), step, low


def original_layout(
    workload: Computation, access: Access, axis_map: Mapping[str, IndexExpr]
) -> PackedOperand:
    """An operand before any rewrite, accessed as the program's iterators do.

    Axes that are fused have no place in ``axis_map``; their share of the access is left out until
    the flattening puts it in.
    """
    operand = workload.operand(access.operand)
    names = ["+".join(index.iterators) or f"#{k}" for k, index in enumerate(access.index)]
    names = [name if names.count(name) == 1 else f"{name}#{k}" for k, name in enumerate(names)]
    known = [
        IndexExpr.of((t for t in index.terms if t.iterator in axis_map), index.constant)
        for index in access.index
    ]
    return PackedOperand(
        operand.name,
        operand.dtype,
        operand.shape,
        tuple(PackedDimension(n, size) for n, size in zip(names, operand.shape, strict=True)),
        tuple(IndexExpr.iterator(name) for name in names),
        tuple(index.substitute(axis_map) for index in known),
    )


@dataclass
class LayoutBuilder(ABC):
    """Builds one operand's layout by applying rewrites to the original one."""

    workload: Computation
    access: Access
    memory: OperandMemory
    instruction_axes: tuple[str, ...]
    embedding: Embedding
    axis_map: Mapping[str, IndexExpr]
    extents: Mapping[str, int]
    overlaps: Mapping[str, Overlap]
    applied: list[Rewrite] = field(default_factory=list[Rewrite])
    layout: PackedOperand = field(init=False)
    _fed: dict[str, str] = field(default_factory=dict[str, str])
    """Workload axis -> the instruction axis that it feeds."""
    _joined: set[str] = field(default_factory=set[str])
    """Dimensions of the rows of an image, which are read in place."""
    _original_names: tuple[str, ...] = ()
    """Names of the dimensions before any rewrite."""
    _indices: dict[str, IndexExpr] = field(default_factory=dict[str, IndexExpr])
    """Dimension name -> its index over workload axes, as long as it has not been split."""

    @abstractmethod
    def derive(self) -> PackedOperand:
        """Apply the rewrites; ``applied`` lists them afterwards.

        Raises :class:`TransformError` where there is no such layout.
        """

    def __post_init__(self) -> None:
        self.layout = original_layout(self.workload, self.access, self.axis_map)
        names = [dimension.name for dimension in self.layout.dimensions]
        self._indices = dict(zip(names, self.access.index, strict=True))
        self._original_names = tuple(names)
        digits = self.embedding.digits
        self._fed = {d.axis: a for a in reversed(self.instruction_axes) for d in digits[a]}

    def _check_moves(self) -> None:
        """Every digit of the operand's instruction axes moves along the operand."""
        for axis in self.instruction_axes:
            for digit in self.embedding.digits[axis]:
                members = members_of(self.embedding.flattened, digit.axis)
                if not any(m in index.iterators for m in members for index in self.access.index):
                    raise TransformError(
                        f"{self.layout.name} has one element where the instruction takes "
                        f"{self.extents[axis]} along {axis}: no rewrite repeats it"
                    )

    def _apply(self, rewrite: Rewrite) -> None:
        self.layout = rewrite.apply(self.layout, self.extents)
        self.applied.append(rewrite)

    def _position(self, name: str) -> int:
        return [d.name for d in self.layout.dimensions].index(name)

    def _fresh(self, name: str) -> str:
        """A name for a new dimension, numbered where one has it: an axis may be called like the
        instruction's, and what is left of two sums may be the same axis."""
        names = {dimension.name for dimension in self.layout.dimensions}
        numbered = (f"{name}#{k}" for k in itertools.count(1))
        return next(n for n in itertools.chain([name], numbered) if n not in names)

    def _flatten(self) -> None:
        """Bring the members of each fused axis together and make them one dimension."""
        for name, members in self.embedding.flattened.items():
            if not any(members[0] in index.iterators for index in self._indices.values()):
                continue
            if self._joins(name, members) or self._joins_rows(name, members):
                continue
            parts = [self._own_dimension(member) for member in members]
            sizes = tuple(self.embedding.pitches.get(m, self.workload.extents[m]) for m in members)
            for part, size in zip(parts, sizes, strict=True):
                self._widen(part, 0, size - self.layout.dimensions[self._position(part)].extent)
            names = [d.name for d in self.layout.dimensions]
            start = min(names.index(part) for part in parts)
            kept = [n for n in names if n not in parts]
            at = sum(1 for n in names[:start] if n not in parts)
            self._reorder([*kept[:at], *parts, *kept[at:]])
            self._join(name, parts, at, IndexExpr.iterator(name), name, members)

    def _joins(self, name: str, members: tuple[str, ...]) -> bool:
        """Make one dimension of those that hold a fused axis as a window which the memory side
        reads in place; False where it does not, or another fused axis takes a share of them."""
        found = joined_dimensions(
            self.access.index, self.workload.operand(self.layout.name).shape,
            self.workload.extents, members,
        )  # fmt: skip
        if found is None:
            return False
        window = self.access.index[found.start]
        fused = {m for group in self.embedding.flattened.values() for m in group}
        if fused & set(window.iterators) != {members[0]}:
            return False
        old = [self._original_names[n] for n in found]
        index = joined_index([self._indices[n] for n in old], self._sizes(old), members, name)
        if "in_place" not in self._treatments(name, index):
            return False
        self._join(self._fresh("+".join(old)), old, self._position(old[0]), index, name, old)
        return True

    def _joins_rows(self, name: str, members: tuple[str, ...]) -> bool:
        """Make one dimension of two that are walked as windows; False where the fused axis has no
        gap, or the operand is not walked so."""
        if members[-1] not in self.embedding.pitches:
            return False
        shape = self.workload.operand(self.layout.name).shape
        found = JoinedRows.find(self.access.index, shape, self.workload.extents, members)
        if found is None or found.pitch != self.embedding.pitches[members[-1]]:
            return False
        ours = self._feeds(name)
        if ours is None or self.memory.stride_rule(ours) is not StrideRule.ANY:
            raise TransformError(f"{self.layout.name} does not hold {name} as it is read")
        rows, columns = (self._original_names[n] for n in (found.first, found.first + 1))
        walks = [a for part in (rows, columns) for a in self._indices[part].iterators]
        if any(self._feeds(axis) for axis in walks if axis not in members):
            raise TransformError(
                f"{self.layout.name}: another instruction axis walks the rows of {name}"
            )
        self._widen(columns, found.before, found.after)
        if found.phases > 1:
            rows = self._phases(rows, found.phases, members[0])
        old = [rows, columns]
        joined = self._fresh("+".join(old))
        self._joined.add(joined)
        indices = [self._indices[rows], self._indices[columns] + found.before]
        index = joined_index(indices, self._sizes(old), members, name, found.step)
        self._join(joined, old, self._position(rows), index, name, old)
        return True

    def _phases(self, name: str, phases: int, member: str) -> str:
        """Take rows apart by their number modulo ``phases``, which windows begin apart; the
        dimension of a phase's rows."""
        position = self._position(name)
        rest = self.layout.access[position]
        low = rest.bounds(self.extents)[0]
        rest = IndexExpr.of(rest.terms, rest.constant - low)
        high = rest.bounds(self.extents)[1]
        rows, phase = self._fresh(f"{name}.{member}"), self._fresh(f"{name}.phase")
        extent = self.workload.extents[member] + high // phases
        quotient = IndexExpr((IndexTerm("", 1, phases, None, rest),))
        remainder = IndexExpr((IndexTerm("", 1, 1, phases, rest),))
        parts = (
            Part(phase, min(phases, high + 1), 1, remainder),
            Part(rows, extent, phases, quotient),
        )
        size = self.layout.dimensions[position].extent
        self._apply(unroll(self.layout.name, position, size, low, parts, name))
        del self._indices[name]
        self._indices[rows] = IndexExpr.iterator(member)
        return rows

    def _sizes(self, dimensions: Sequence[str]) -> list[int]:
        return [self.layout.dimensions[self._position(name)].extent for name in dimensions]

    def _widen(self, dimension: str, before: int, after: int) -> None:
        """Zeros at the ends of a dimension."""
        if before or after:
            at = self._position(dimension)
            (extent,) = self._sizes([dimension])
            self._apply(Pad(self.layout.name, at, before, after, extent, dimension))

    def _join(
        self,
        joined: str,
        parts: Sequence[str],
        at: int,
        index: IndexExpr,
        fused: str,
        labels: Sequence[str],
    ) -> None:
        """Make one dimension of neighbours from position ``at`` on. ``index`` is what it is walked
        by: the fused axis, at some step, and what other axes walk of the parts."""
        sizes = tuple(d.extent for d in self.layout.dimensions[at : at + len(parts)])
        walked = self.axis_map[fused].times(index.coefficient(fused))
        self._apply(
            Flatten(self.layout.name, at, sizes, joined, labels=tuple(labels), index=walked)
        )
        for part in parts:
            del self._indices[part]
        self._indices[joined] = index

    def _own_dimension(self, member: str) -> str:
        """The dimension that is just this axis, of its extent; taken out of a sum where need be."""
        if sum(member in index.iterators for index in self.access.index) > 1:
            raise self._diagonal(member)
        name, index = next((n, i) for n, i in self._indices.items() if member in i.iterators)
        position = self._position(name)
        dimension = self.layout.dimensions[position]
        extent = self.workload.extents[member]
        if index.single_iterator == member and dimension.extent == extent:
            return name
        access = self.layout.access[position]
        own = f"{name}.{member}"
        parts = [Part(own, extent, index.coefficient(member), IndexExpr())]
        others = [term for term in index.terms if term.iterator != member]
        walked = [t.iterator for t in others if t.iterator in self.overlaps]
        if not all(map(self._begins_anywhere, walked)):
            raise self._shared_blocks()
        low = 0
        if others:
            shared, step, low = normalised(access, self.extents)
            label = self._fresh("+".join(term.iterator for term in others))
            high = shared.bounds(self.extents)[1]
            parts.insert(0, Part(label, high + 1, step, shared))
            terms = [IndexTerm(t.iterator, t.coefficient // step) for t in others]
            self._indices[label] = IndexExpr.of(terms)
        offset = low + access.constant
        self._apply(
            unroll(self.layout.name, position, dimension.extent, offset, tuple(parts), name)
        )
        del self._indices[name]
        self._indices[own] = IndexExpr.iterator(member)
        return own

    def _feeds(self, axis: str) -> str | None:
        """The instruction axis that a workload axis feeds, if any."""
        return self._fed.get(axis)

    def _treatments(self, axis: str, index: IndexExpr) -> tuple[Treatment, ...]:
        ours = self._feeds(axis)
        assert ours is not None
        digits = self.embedding.digits[ours]
        free = self.memory.stride_rule(ours) is StrideRule.ANY
        step = index.coefficient(axis) * digits[0].stride
        contiguous = step == 1 and self.memory.reads_contiguously(
            ours, size_bytes(self.layout.dtype), self.extents
        )
        if len(digits) == 1 and ((free and step > 0) or contiguous):
            return ("in_place", "digit", "axis")
        return ("digit", "axis")

    def _begins_anywhere(self, axis: str) -> bool:
        """Whether an axis has blocks that overlap and need no place of their own."""
        overlap, ours = self.overlaps.get(axis), self._feeds(axis)
        if overlap is None or ours is None or overlap.kind is not AxisKind.SPATIAL:
            return False
        return self.memory.stride_rule(ours) is StrideRule.ANY

    def _diagonal(self, axis: str) -> TransformError:
        return TransformError(
            f"{self.layout.name} is read along a diagonal: {axis} is in two of its indices, and "
            "no rewrite makes one dimension of both"
        )

    def _shared_blocks(self) -> TransformError:
        return TransformError(f"{self.layout.name} is walked by an overlapping axis and by others")

    def _reorder(self, order: list[str]) -> None:
        names = [d.name for d in self.layout.dimensions]
        if order != names:
            positions = tuple(names.index(name) for name in order)
            self._apply(Reorder(self.layout.name, positions, tuple(order)))
