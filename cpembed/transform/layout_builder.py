"""The common start of every layout: the original one, with fused axes made dimensions.

Where several axes index a dimension and some of them are mapped, its index is cut into a sum of
parts, each a dimension: the cut with the fewest elements (:func:`smallest_unrolling`).
"""

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
from cpembed.ir.accesses import JoinedRows, joined_dimensions, joined_index
from cpembed.ir.computation import AxisKind, Computation
from cpembed.ir.dtypes import size_bytes
from cpembed.ir.expression import Access
from cpembed.ir.index import IndexExpr, IndexTerm
from cpembed.transform.program import Overlap, PackedDimension, PackedOperand, Rewrite
from cpembed.transform.rewrites import Flatten, Pad, Part, Reorder, unroll

Treatment = Literal["in_place", "digit", "axis"]
"""Treatment of a mapped axis in an index of several axes: read in place, or moved to a separate
dimension, either its digit or the complete axis."""


@dataclass(frozen=True)
class IndexAxis:
    """A workload axis in an index.

    ``coordinate`` is the axis over loops and instruction axes. A mapped axis has the instruction
    axis that it ``feeds`` and the treatments to choose from.
    """

    name: str
    coefficient: int
    coordinate: IndexExpr
    feeds: str | None = None
    treatments: tuple[Treatment, ...] = ("in_place",)


@dataclass(frozen=True)
class Unrolling:
    """The parts of a dimension.

    If ``shared``, the first part is walked by all axes that were not moved. ``offset`` is added to
    the sum of the parts; ``moved`` are the axes that have a dimension each.
    """

    parts: tuple[Part, ...]
    shared: bool
    offset: int
    moved: tuple[str, ...]

    @property
    def elements(self) -> int:
        return math.prod(part.extent for part in self.parts)


# A cut depends on few values, so the layouts of an enumeration share it.
@lru_cache(1 << 14)
def smallest_unrolling(
    name: str, axes: tuple[IndexAxis, ...], extents: tuple[tuple[str, int], ...]
) -> Unrolling:
    """Find the unrolling of a dimension with the fewest elements.

    Parameters
    ----------
    name, axes : str, tuple of IndexAxis
        Name of the dimension, and axes of its index, in order.
    extents : tuple of (str, int)
        Extents of the iterators in the coordinates of these axes.
    """
    # There are at most three treatments of the few axes of an index, so all plans are compared.
    # Among equals the first one wins: in place before a digit before the complete axis.
    plans = itertools.product(*(axis.treatments for axis in axes))
    sizes = dict(extents)
    return min((_unrolling(name, axes, p, sizes) for p in plans), key=lambda u: u.elements)


def _unrolling(
    name: str, axes: Sequence[IndexAxis], plan: Sequence[Treatment], extents: Mapping[str, int]
) -> Unrolling:
    parts: list[Part] = []
    rest: list[IndexTerm] = []
    moved: list[str] = []
    for axis, treatment in zip(axes, plan, strict=True):
        if treatment == "axis":
            extent = axis.coordinate.bounds(extents)[1] + 1
            part = Part(f"{name}.{axis.name}", extent, axis.coefficient, axis.coordinate)
            parts.append(part)
            moved.append(axis.name)
            continue
        feeds = axis.feeds if treatment == "digit" else None
        for term in axis.coordinate.terms:
            scaled = term.times(axis.coefficient)
            if feeds is None or scaled.iterator != feeds:
                # Whatever is not moved shares one dimension, walked by all its iterators jointly.
                rest.append(scaled)
                continue
            digit = IndexExpr.sum([IndexTerm(feeds, 1, scaled.divisor, scaled.modulus)])
            extent = digit.bounds(extents)[1] + 1
            parts.append(Part(f"{axis.name}.i", extent, scaled.coefficient, digit, lane=feeds))
    shared, step, offset = normalised(IndexExpr.sum(rest), extents)
    if shared.terms:
        names = [a.name for a, t in zip(axes, plan, strict=True) if t != "axis"]
        high = shared.bounds(extents)[1]
        parts.insert(0, Part("+".join(names), high + 1, step, shared))
    return Unrolling(tuple(parts), bool(shared.terms), offset, tuple(moved))


def normalised(index: IndexExpr, extents: Mapping[str, int]) -> tuple[IndexExpr, int, int]:
    """Return ``(index - constant - low) / step``, which counts from 0 by 1, then step and low."""
    # All terms are multiples of the step, so elements between are never read and need no place.
    terms = IndexExpr.sum(index.terms)
    low, _ = terms.bounds(extents)
    step = math.gcd(*(term.coefficient for term in terms.terms)) or 1
    scaled = [replace(term, coefficient=term.coefficient // step) for term in terms.terms]
    return IndexExpr.sum(scaled, -(low // step)), step, low


def unpacked_operand(
    workload: Computation, access: Access, axis_map: Mapping[str, IndexExpr]
) -> PackedOperand:
    """Describe an operand before any rewrite, accessed over the program's iterators.

    Parameters
    ----------
    workload : Computation
        The workload before its axes are fused.
    access : Access
        The operand's access.
    axis_map : mapping of str to IndexExpr
        Coordinates of the workload axes over the program's iterators. Members of fused axes have
        none: flattening adds their share of the access later.
    """
    operand = workload.operand(access.operand)
    # Names are told apart, since rewrites find dimensions by name: A[x, x] is A[x#0, x#1].
    names = ["+".join(index.iterators) or f"#{k}" for k, index in enumerate(access.index)]
    names = [name if names.count(name) == 1 else f"{name}#{k}" for k, name in enumerate(names)]
    mapped = [
        IndexExpr.sum((t for t in index.terms if t.iterator in axis_map), index.constant)
        for index in access.index
    ]
    return PackedOperand(
        name=operand.name,
        dtype=operand.dtype,
        original_shape=operand.shape,
        dimensions=tuple(map(PackedDimension, names, operand.shape)),
        source=tuple(map(IndexExpr.iterator, names)),
        access=tuple(index.substitute(axis_map) for index in mapped),
    )


@dataclass(kw_only=True)
class LayoutBuilder(ABC):
    """Builder of one operand's layout, which applies rewrites to the original one.

    ``applied`` lists the rewrites afterwards. ``axis_map`` and ``extents`` are those of the derived
    program, ``instruction_axes`` the axes on which the instruction's operand depends.
    """

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
    """Instruction axis that each mapped workload axis feeds."""
    _joined: set[str] = field(default_factory=set[str])
    """Dimensions of the rows of an image, which are read in place."""
    _original_names: tuple[str, ...] = ()
    """Names of the dimensions before any rewrite."""
    _indices: dict[str, IndexExpr] = field(default_factory=dict[str, IndexExpr])
    """Index over workload axes of each dimension that has not been split."""

    @abstractmethod
    def derive(self) -> PackedOperand:
        """Apply the rewrites; raise :class:`TransformError` if there is no such layout."""

    def __post_init__(self) -> None:
        self.layout = unpacked_operand(self.workload, self.access, self.axis_map)
        names = [dimension.name for dimension in self.layout.dimensions]
        self._indices = dict(zip(names, self.access.index, strict=True))
        self._original_names = tuple(names)
        digits = self.embedding.digits
        # Where two instruction axes have digits of one workload axis, the first one counts.
        self._fed = {d.axis: a for a in reversed(self.instruction_axes) for d in digits[a]}

    def _check_moves(self) -> None:
        """Check that the operand's index depends on every digit of its instruction axes.

        Raises :class:`TransformError` otherwise: the instruction would need repeated elements,
        which no rewrite produces.
        """
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
        """Return a name for a new dimension, with a number if it is taken."""
        # A workload axis may have the name of an instruction axis, and two sums may leave the same
        # axis.
        names = {dimension.name for dimension in self.layout.dimensions}
        numbered = (f"{name}#{k}" for k in itertools.count(1))
        return next(n for n in itertools.chain([name], numbered) if n not in names)

    def _flatten(self) -> None:
        """Make the members of each fused axis neighbours and fuse them."""
        for name, members in self.embedding.flattened.items():
            if not any(members[0] in index.iterators for index in self._indices.values()):
                continue
            # First the ways that copy nothing: the axis lies in memory as it is.
            if self._join_window(name, members) or self._join_rows(name, members):
                continue
            parts = [self._own_dimension(member) for member in members]
            sizes = tuple(self.embedding.pitches.get(m, self.workload.extents[m]) for m in members)
            for part, size in zip(parts, sizes, strict=True):
                self._widen(part, 0, size - self.layout.dimensions[self._position(part)].extent)
            names = [d.name for d in self.layout.dimensions]
            start = min(names.index(part) for part in parts)
            rest = [n for n in names if n not in parts]
            self._reorder([*rest[:start], *parts, *rest[start:]])
            self._join(name, parts, IndexExpr.iterator(name), fused=name, labels=members)

    def _join_window(self, name: str, members: tuple[str, ...]) -> bool:
        """Join the dimensions that hold a fused axis as a window.

        Returns False if there are none, if the memory side cannot read the window in place, or if
        another fused axis shares the dimensions.
        """
        shape = self.workload.operand(self.layout.name).shape
        dimensions = joined_dimensions(self.access.index, shape, self.workload.extents, members)
        if dimensions is None:
            return False
        window = self.access.index[dimensions.start]
        fused = {m for group in self.embedding.flattened.values() for m in group}
        if fused & set(window.iterators) != {members[0]}:
            return False
        old = [self._original_names[n] for n in dimensions]
        index = joined_index([self._indices[n] for n in old], self._sizes(old), members, name)
        if "in_place" not in self._treatments(name, index):
            return False
        self._join(self._fresh("+".join(old)), old, index, fused=name, labels=old)
        return True

    def _join_rows(self, name: str, members: tuple[str, ...]) -> bool:
        """Join the rows and columns that hold a fused axis with a gap.

        Returns False if the axis has no gap, or the operand does not hold it as rows.
        """
        if members[-1] not in self.embedding.pitches:
            return False
        shape = self.workload.operand(self.layout.name).shape
        joint = JoinedRows.find(self.access.index, shape, self.workload.extents, members)
        if joint is None or joint.pitch != self.embedding.pitches[members[-1]]:
            return False
        instruction_axis = self._feeds(name)
        if (
            instruction_axis is None
            or self.memory.stride_rule(instruction_axis) is not StrideRule.ANY
        ):
            raise TransformError(f"{self.layout.name} does not hold {name} as it is read")
        rows, columns = (self._original_names[n] for n in (joint.first, joint.first + 1))
        walks = [a for part in (rows, columns) for a in self._indices[part].iterators]
        if any(self._feeds(axis) for axis in walks if axis not in members):
            raise TransformError(
                f"{self.layout.name}: another instruction axis walks the rows of {name}"
            )
        self._widen(columns, joint.before, joint.after)
        # Windows two rows apart: even and odd rows become images, in which they are neighbours.
        if joint.phases > 1:
            rows = self._split_phases(rows, joint.phases, members[0])
        old = [rows, columns]
        joined = self._fresh("+".join(old))
        self._joined.add(joined)
        indices = [self._indices[rows], self._indices[columns] + joint.before]
        index = joined_index(indices, self._sizes(old), members, name, step=joint.step)
        self._join(joined, old, index, fused=name, labels=old)
        return True

    def _split_phases(self, name: str, phases: int, member: str) -> str:
        """Separate rows by their number modulo ``phases``, the distance of windows.

        Returns the dimension of the rows of a phase.
        """
        position = self._position(name)
        rest = self.layout.access[position]
        low = rest.bounds(self.extents)[0]
        rest = IndexExpr.sum(rest.terms, rest.constant - low)
        high = rest.bounds(self.extents)[1]
        rows, phase = self._fresh(f"{name}.{member}"), self._fresh(f"{name}.phase")
        extent = self.workload.extents[member] + high // phases
        quotient = IndexExpr((IndexTerm.digit(rest, divisor=phases),))
        remainder = IndexExpr((IndexTerm.digit(rest, modulus=phases),))
        parts = (
            Part(phase, min(phases, high + 1), 1, remainder),
            Part(rows, extent, phases, quotient),
        )
        self._unroll_dimension(name, low, parts)
        del self._indices[name]
        self._indices[rows] = IndexExpr.iterator(member)
        return rows

    def _sizes(self, dimensions: Sequence[str]) -> list[int]:
        return [self.layout.dimensions[self._position(name)].extent for name in dimensions]

    def _widen(self, name: str, before: int, after: int, *, clears: bool = False) -> None:
        """Add zeros at the ends of a dimension, if any; ``clears`` as in :class:`Pad`."""
        if before or after:
            pad = Pad(
                operand=self.layout.name,
                dimension=self._position(name),
                before=before,
                after=after,
                extent=self._sizes([name])[0],
                label=name,
                clears=clears,
            )
            self._apply(pad)

    def _unroll_dimension(self, name: str, offset: int, parts: Sequence[Part]) -> None:
        """Replace a dimension by parts whose sum and offset are its index."""
        position, (extent,) = self._position(name), self._sizes([name])
        self._apply(unroll(self.layout.name, position, extent, offset, tuple(parts), label=name))

    def _join(
        self,
        joined: str,
        parts: Sequence[str],
        index: IndexExpr,
        *,
        fused: str,
        labels: Sequence[str],
    ) -> None:
        """Join neighbouring dimensions to one, whose index is the fused axis and further axes."""
        start, sizes = self._position(parts[0]), tuple(self._sizes(parts))
        coordinate = self.axis_map[fused].times(index.coefficient(fused))
        name, labels = self.layout.name, tuple(labels)
        self._apply(Flatten(name, start, sizes, joined, labels=labels, index=coordinate))
        for part in parts:
            del self._indices[part]
        self._indices[joined] = index

    def _own_dimension(self, member: str) -> str:
        """Return the dimension that this axis alone walks; split it off a sum if necessary."""
        if sum(member in index.iterators for index in self.access.index) > 1:
            raise self._diagonal(member)
        name, index = next((n, i) for n, i in self._indices.items() if member in i.iterators)
        position = self._position(name)
        dimension = self.layout.dimensions[position]
        extent = self.workload.extents[member]
        if index.single_iterator == member and dimension.extent == extent:
            return name
        access = self.layout.access[position]
        dimension_name = f"{name}.{member}"
        parts = [Part(dimension_name, extent, index.coefficient(member), IndexExpr())]
        rest = [term for term in index.terms if term.iterator != member]
        overlapping = [t.iterator for t in rest if t.iterator in self.overlaps]
        if not all(map(self._begins_anywhere, overlapping)):
            raise self._shared_blocks()
        low = 0
        if rest:
            shared, step, low = normalised(access, self.extents)
            label = self._fresh("+".join(term.iterator for term in rest))
            high = shared.bounds(self.extents)[1]
            parts.insert(0, Part(label, high + 1, step, shared))
            terms = [IndexTerm(t.iterator, t.coefficient // step) for t in rest]
            self._indices[label] = IndexExpr.sum(terms)
        self._unroll_dimension(name, low + access.constant, parts)
        del self._indices[name]
        self._indices[dimension_name] = IndexExpr.iterator(member)
        return dimension_name

    def _feeds(self, axis: str) -> str | None:
        """Return the instruction axis that a workload axis feeds, if any."""
        return self._fed.get(axis)

    def _treatments(self, axis: str, index: IndexExpr) -> tuple[Treatment, ...]:
        """Return the possible treatments of a mapped axis in an index of several axes."""
        instruction_axis = self._feeds(axis)
        assert instruction_axis is not None
        digits = self.embedding.digits[instruction_axis]
        free = self.memory.stride_rule(instruction_axis) is StrideRule.ANY
        step = index.coefficient(axis) * digits[0].stride
        contiguous = step == 1 and self.memory.reads_contiguously(
            instruction_axis, size_bytes(self.layout.dtype), self.extents
        )
        # Several digits of one instruction axis have no constant distance in a shared dimension.
        if len(digits) == 1 and ((free and step > 0) or contiguous):
            return ("in_place", "digit", "axis")
        return ("digit", "axis")

    def _begins_anywhere(self, axis: str) -> bool:
        """True if an axis has overlapping blocks that the memory side reads from any position."""
        overlap, instruction_axis = self.overlaps.get(axis), self._feeds(axis)
        if overlap is None or instruction_axis is None or overlap.kind is not AxisKind.SPATIAL:
            return False
        return self.memory.stride_rule(instruction_axis) is StrideRule.ANY

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
