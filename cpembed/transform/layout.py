"""One operand's layout: the rewrites of Table 2 that give an instruction its tiles.

The tile of each operand is described by the instruction's memory side. A lane (an instruction axis)
whose elements may lie at any distance stays where its workload axis is; a lane that must be dense
moves innermost, in the tile's order. A lane that walks a dimension with several iterators (an
image row) is read in place where the memory side can, else the dimension is unrolled. All other
dimensions keep the order of the original operand, so a channels-last operand yields a
channels-last layout.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from cpembed.embedding.embedding import Digit, Embedding
from cpembed.errors import InvariantError, TransformError
from cpembed.hw.instruction import OperandMemory, StrideRule
from cpembed.ir.computation import AxisKind, Computation
from cpembed.ir.dtypes import size_bytes
from cpembed.ir.expression import Access
from cpembed.ir.index import IndexExpr, IndexTerm
from cpembed.ir.joining import joined_dimensions, joined_index
from cpembed.transform.program import Overlap, PackedDimension, PackedOperand
from cpembed.transform.rewrites import (
    Flatten,
    Fuse,
    Overlapped,
    Pad,
    Part,
    Reorder,
    Rewrite,
    Split,
    unroll,
)
from cpembed.transform.unrolling import (
    IndexAxis,
    Treatment,
    Unrolling,
    normalised,
    smallest_unrolling,
)


def digits_on(embedding: Embedding, axis: str) -> list[Digit]:
    return [d for digits in embedding.digits.values() for d in digits if d.axis == axis]


def _direct_axis(index: IndexExpr) -> str | None:
    """The axis that a dimension follows one to one, up to an offset."""
    if len(index.terms) == 1 and index.terms[0].coefficient == 1 and index.is_affine:
        return index.terms[0].iterator
    return None


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
class OperandLayout:
    """Builds one operand's layout by applying rewrites to the original one."""

    workload: Computation
    access: Access
    memory: OperandMemory
    lanes: tuple[str, ...]
    embedding: Embedding
    axis_map: Mapping[str, IndexExpr]
    extents: Mapping[str, int]
    overlaps: Mapping[str, Overlap] = field(default_factory=dict[str, Overlap])
    applied: list[Rewrite] = field(default_factory=list[Rewrite])
    layout: PackedOperand = field(init=False)
    _direct: dict[str, str] = field(default_factory=dict[str, str])
    """Dimension name -> the workload axis it follows one to one."""
    _digit_dimensions: dict[tuple[str, str], str] = field(
        default_factory=dict[tuple[str, str], str]
    )
    """(lane, workload axis) -> the dimension that is just this digit."""
    _contiguous: list[str] = field(default_factory=list[str])
    """Dimensions that a lane walks in place and must find innermost."""

    _lane_of: dict[str, str] = field(default_factory=dict[str, str])
    _original_names: tuple[str, ...] = ()
    """Names of the dimensions before any rewrite."""
    _indices: dict[str, IndexExpr] = field(default_factory=dict[str, IndexExpr])
    """Dimension name -> its index over workload axes, as long as it has not been split."""

    def __post_init__(self) -> None:
        self.layout = original_layout(self.workload, self.access, self.axis_map)
        names = [dimension.name for dimension in self.layout.dimensions]
        self._indices = dict(zip(names, self.access.index, strict=True))
        self._original_names = tuple(names)
        digits = self.embedding.digits
        self._lane_of = {d.axis: lane for lane in reversed(self.lanes) for d in digits[lane]}

    def derive(self) -> PackedOperand:
        """Apply the rewrites; ``applied`` lists them afterwards."""
        self._check_moves()
        self._flatten()
        for name, index in self._indices.items():
            axis = _direct_axis(index)
            if axis is not None:
                self._direct[name] = axis
        self._unroll()
        self._pad()
        digits = self._split()
        gathered = [
            lane
            for lane in dict.fromkeys(t.axis for t in self.memory.tile)
            if digits.get(lane) and not self._stays(lane, digits[lane])
        ]
        self._gather(gathered, digits)
        for lane in gathered:
            self._fuse(lane, digits[lane])
        self._tile(gathered)
        return self.layout

    def in_place(self) -> PackedOperand:
        """The original layout, fused axes joined, with zeros around it where it is read outside.

        Raises :class:`TransformError` where the memory side cannot take its lanes from there.
        """
        self._check_moves()
        self._flatten()
        if any(type(done) is not Flatten for done in self.applied) and not self.layout.is_identity:
            raise TransformError(f"{self.layout.name} does not hold the fused axes as they are")
        padded = {
            axis: self.overlaps[axis].extent if axis in self.overlaps else self._reach(index)
            for axis, index in self.axis_map.items()
        }
        for k, dimension in enumerate(self.layout.dimensions):
            low, high = self._indices[dimension.name].bounds(padded)
            before, after = max(0, -low), max(0, high + 1 - dimension.extent)
            if before or after:
                name = self.layout.name
                self._apply(Pad(name, k, before, after, dimension.extent, dimension.name))
        for lane in self.lanes:
            if self.extents[lane] > 1 and not self._walks(lane):
                raise TransformError(
                    f"{self.layout.name} lies in another order than the instruction takes {lane}"
                )
        return self.layout

    def _reach(self, index: IndexExpr) -> int:
        return index.bounds(self.extents)[1] + 1

    def _walks(self, lane: str) -> bool:
        """Whether the memory side takes a lane from where it lies."""
        if any(
            lane in t.iterators and t.inner for index in self.layout.access for t in index.terms
        ):
            return False
        step = self.layout.lane_stride(lane)
        if step is None or step <= 0:
            return False
        if self.memory.stride_rule(lane) is StrideRule.ANY:
            return True
        size = size_bytes(self.layout.dtype)
        return step == 1 and self.memory.reads_contiguously(lane, size, self.extents)

    def _check_moves(self) -> None:
        """Every digit of the operand's lanes moves along the operand."""
        for lane in self.lanes:
            for digit in self.embedding.digits[lane]:
                members = self.embedding.flattened.get(digit.axis, (digit.axis,))
                if not any(m in index.iterators for m in members for index in self.access.index):
                    raise TransformError(
                        f"{self.layout.name} has one element where the instruction takes "
                        f"{self.extents[lane]} along {lane}: no rewrite repeats it"
                    )

    def _apply(self, rewrite: Rewrite) -> None:
        self.layout = rewrite.apply(self.layout, self.extents)
        self.applied.append(rewrite)

    def _position(self, name: str) -> int:
        return [d.name for d in self.layout.dimensions].index(name)

    def _fresh(self, name: str) -> str:
        """A name for a new dimension, numbered where one has it: an axis may be called like a lane,
        and what is left of two sums may be the same axis."""
        names = {dimension.name for dimension in self.layout.dimensions}
        numbered = (f"{name}#{k}" for k in itertools.count(1))
        return next(n for n in itertools.chain([name], numbered) if n not in names)

    def _flatten(self) -> None:
        """Bring the members of each fused axis together and make them one dimension."""
        for name, members in self.embedding.flattened.items():
            if not any(members[0] in index.iterators for index in self._indices.values()):
                continue
            if self._joins(name, members):
                continue
            parts = [self._own_dimension(member) for member in members]
            names = [d.name for d in self.layout.dimensions]
            start = min(names.index(part) for part in parts)
            kept = [n for n in names if n not in parts]
            at = sum(1 for n in names[:start] if n not in parts)
            self._reorder([*kept[:at], *parts, *kept[at:]])
            sizes = tuple(self.workload.extents[member] for member in members)
            fused = Flatten(
                self.layout.name, at, sizes, name, labels=members, index=self.axis_map[name]
            )
            self._apply(fused)
            for part in parts:
                del self._indices[part]
            self._indices[name] = IndexExpr.iterator(name)

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
        sizes = tuple([self.layout.dimensions[self._position(n)].extent for n in old])
        index = joined_index(window, members[0], math.prod(sizes[1:]), name)
        if "in_place" not in self._treatments(name, index):
            return False
        joined = self._fresh("+".join(old))
        at, axis = self._position(old[0]), self.axis_map[name]
        self._apply(Flatten(self.layout.name, at, sizes, joined, labels=tuple(old), index=axis))
        for part in old:
            del self._indices[part]
        self._indices[joined] = index
        return True

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
        if any(term.iterator in self.overlaps for term in others):
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

    def _unroll(self) -> None:
        """Give mapped axes of a shared index dimensions of their own, at the least footprint."""
        for name, index in list(self._indices.items()):
            if name in self._direct or not any(map(self._lane, index.iterators)):
                continue
            if set(self.overlaps) & set(index.iterators):
                raise self._shared_blocks()
            axes = tuple([self._index_axis(term, index) for term in index.terms])
            walked = dict.fromkeys(n for axis in axes for n in axis.coordinate.iterators)
            extents = tuple([(n, self.extents[n]) for n in walked])
            self._apply_unrolling(name, smallest_unrolling(name, axes, extents))

    def _index_axis(self, term: IndexTerm, index: IndexExpr) -> IndexAxis:
        axis, lane = term.iterator, self._lane(term.iterator)
        if lane is None:
            return IndexAxis(axis, term.coefficient, self.axis_map[axis])
        treatments = self._treatments(axis, index)
        return IndexAxis(axis, term.coefficient, self.axis_map[axis], lane, treatments)

    def _lane(self, axis: str) -> str | None:
        """The lane that a workload axis feeds, if any."""
        return self._lane_of.get(axis)

    def _treatments(self, axis: str, index: IndexExpr) -> tuple[Treatment, ...]:
        lane = self._lane(axis)
        assert lane is not None
        digits = self.embedding.digits[lane]
        free = self.memory.stride_rule(lane) is StrideRule.ANY
        step = index.coefficient(axis) * digits[0].stride
        contiguous = step == 1 and self.memory.reads_contiguously(
            lane, size_bytes(self.layout.dtype), self.extents
        )
        if len(digits) == 1 and ((free and step > 0) or contiguous):
            return ("in_place", "digit", "axis")
        return ("digit", "axis")

    def _apply_unrolling(self, name: str, found: Unrolling) -> None:
        position = self._position(name)
        dimension, access = self.layout.dimensions[position], self.layout.access[position]
        parts, own, offset = list(found.parts), found.own, found.offset + access.constant
        if found.shared and parts[0].name != name:
            parts[0] = replace(parts[0], name=self._fresh(parts[0].name))
        lanes = [part for part in parts if part.lane is not None]
        if own or lanes:
            rewrite = unroll(
                self.layout.name, position, dimension.extent, offset, tuple(parts), name
            )
            self._apply(rewrite)
            for axis in own:
                self._direct[f"{name}.{axis}"] = axis
        moved = {part.name.removesuffix(".i"): part for part in lanes}
        for axis, part in moved.items():
            assert part.lane is not None
            if (part.lane, axis) in self._digit_dimensions:
                raise self._diagonal(axis)
            self._digit_dimensions[part.lane, axis] = part.name
        # What is neither: read in place, in the part that the other axes share.
        for axis in self._indices[name].iterators if parts else ():
            lane = self._lane(axis)
            if lane is None or axis in own or axis in moved:
                continue
            if self.memory.stride_rule(lane) is StrideRule.UNIT:
                if sum(axis in index.iterators for index in self.access.index) > 1:
                    raise self._diagonal(axis)
                self._contiguous.append(parts[0].name if own or lanes else name)

    def _diagonal(self, axis: str) -> TransformError:
        return TransformError(
            f"{self.layout.name} is read along a diagonal: {axis} is in two of its indices, and "
            "no rewrite makes one dimension of both"
        )

    def _shared_blocks(self) -> TransformError:
        return TransformError(f"{self.layout.name} is walked by an overlapping axis and by others")

    def _pad(self) -> None:
        for k, dimension in enumerate(self.layout.dimensions):
            if self._direct.get(dimension.name) in self.overlaps:
                continue
            low, high = self.layout.access[k].bounds(self.extents)
            before = max(0, -low)
            block = self._block(dimension.name)
            # A split needs its blocks to start at a multiple of the block: shift an offset there.
            before += -(self.layout.access[k].constant + before) % block
            after = max(0, high + 1 - dimension.extent)
            after += -(before + dimension.extent + after) % block
            if before or after:
                name = self.layout.name
                self._apply(Pad(name, k, before, after, dimension.extent, dimension.name))

    def _block(self, name: str) -> int:
        """Elements of one block of a dimension that will be split; 1 where it will not."""
        axis = self._direct.get(name)
        digits = [] if axis is None else digits_on(self.embedding, axis)
        return digits[0].count * digits[0].stride if digits else 1

    def _split(self) -> dict[str, list[str]]:
        """Split every dimension that follows a mapped axis; lane -> its digit dimensions,
        outermost digit first."""
        found: dict[str, list[str]] = {}
        for lane in self.lanes:
            for digit in reversed(self.embedding.digits[lane]):
                own = self._digit_dimensions.get((lane, digit.axis))
                direct = [name for name, axis in self._direct.items() if axis == digit.axis]
                if len(direct) + (own is not None) > 1:
                    raise self._diagonal(digit.axis)
                if own is not None:
                    found.setdefault(lane, []).append(own)
                for name in direct:
                    found.setdefault(lane, []).append(self._split_digit(name, digit, lane))
        return found

    def _split_digit(self, name: str, digit: Digit, lane: str) -> str:
        operand, dimension, inner = self.layout.name, self._position(name), f"{name}.i"
        block = digit.count * digit.stride
        if digit.axis in self.overlaps:
            overlap = self.overlaps[digit.axis]
            zeros = overlap.kind is AxisKind.REDUCTION
            self._apply(
                Overlapped(operand, dimension, overlap, f"{name}.o", inner, lane, zeros=zeros)
            )
            return inner
        if digit.stride == 1:
            self._apply(Split(operand, dimension, block, f"{name}.o", inner, lane))
            return inner
        self._apply(Split(operand, dimension, block, f"{name}.o", f"{name}.b"))
        phases = Split(operand, dimension + 1, digit.stride, inner, f"{name}.p", outer_lane=lane)
        self._apply(phases)
        return inner

    def _stays(self, lane: str, digits: list[str]) -> bool:
        """Whether a lane's only digit can stay beside its outer dimension."""
        return self.memory.stride_rule(lane) is StrideRule.ANY and len(digits) == 1

    def _gather(self, lanes: list[str], digits: Mapping[str, list[str]]) -> None:
        tail = [name for lane in lanes for name in digits[lane]] + self._contiguous
        names = [d.name for d in self.layout.dimensions]
        order = [name for name in names if name not in tail] + tail
        self._reorder(order)

    def _reorder(self, order: list[str]) -> None:
        names = [d.name for d in self.layout.dimensions]
        if order != names:
            positions = tuple(names.index(name) for name in order)
            self._apply(Reorder(self.layout.name, positions, tuple(order)))

    def _fuse(self, lane: str, digits: list[str]) -> None:
        first = self._position(digits[0])
        if len(digits) > 1:
            sizes = tuple(d.extent for d in self.layout.dimensions[first : first + len(digits)])
            fused = self._fresh(lane)
            self._apply(Fuse(self.layout.name, first, sizes, fused, lane, tuple(digits)))

    def _tile(self, lanes: list[str]) -> None:
        """Split gathered lanes as the tile's dimensions do, and put them in the tile's order."""
        for lane in lanes:
            parts = [t for t in self.memory.tile if t.axis == lane]
            cuts = sorted({t.divisor for t in parts if t.divisor > 1}, reverse=True)
            name = next(d.name for d in self.layout.dimensions if d.lane == lane)
            for cut in cuts:
                outer, inner = f"{lane}/{cut}", f"{lane}%{cut}"
                self._apply(Split(self.layout.name, self._position(name), cut, outer, inner, lane))
                name = inner
        # Lanes that may lie anywhere go outside those that must be dense, which a dimension read in
        # place contiguously is, too.
        tiles = sorted(
            (tile for tile in self.memory.tile if tile.axis in lanes),
            key=lambda tile: self.memory.stride_rule(tile.axis) is StrideRule.UNIT,
        )
        order = [self._tile_dimension(tile.axis, tile.divisor) for tile in tiles]
        tail = order + self._contiguous
        kept = [d.name for d in self.layout.dimensions if d.name not in tail]
        self._reorder(kept + tail)

    def _tile_dimension(self, lane: str, divisor: int) -> str:
        """The dimension that holds ``(lane // divisor) % ...``, found by its weight."""
        found = [d for d in self.layout.dimensions if d.lane == lane]
        weight = math.prod(d.extent for d in found)
        for dimension in found:
            weight //= dimension.extent
            if weight == divisor:
                return dimension.name
        raise InvariantError(f"no dimension of {self.layout.name} holds {lane}/{divisor}")
