"""An operand's layout: the rewrites of Table 2 that give an instruction its tiles.

The memory side of the instruction describes the tile of each operand. An instruction axis whose
elements may lie at any distance stays where its workload axis is; one that must be dense moves
innermost, in the tile's order. One that walks a dimension jointly with other iterators (an image
row) is read in place if the memory side can do so, else the dimension is unrolled. All other
dimensions keep the order of the original operand, so a channels-last operand yields a channels-last
layout; only in weights, which are packed ahead of time, dimensions that are summed over move
inwards.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from cpembed.embedding.embedding import Digit
from cpembed.errors import InvariantError, TransformError
from cpembed.hw.instruction import StrideRule
from cpembed.ir.computation import AxisKind
from cpembed.ir.dtypes import size_bytes
from cpembed.ir.index import IndexExpr, IndexTerm
from cpembed.transform.layout_builder import (
    IndexAxis,
    LayoutBuilder,
    Unrolling,
    smallest_unrolling,
    unpacked_operand,
)
from cpembed.transform.program import DerivedProgram, PackedOperand, Rewrite
from cpembed.transform.rewrites import (
    Flatten,
    Fuse,
    ImagePack,
    Overlapped,
    Pad,
    Split,
    StencilUnroll,
)


def _direct_axis(index: IndexExpr) -> str | None:
    """Return the axis that a dimension follows one to one, up to an offset."""
    if len(index.terms) == 1 and index.terms[0].coefficient == 1 and index.is_affine:
        return index.terms[0].iterator
    return None


@dataclass
class OperandLayout(LayoutBuilder):
    """The layout of least footprint that the memory side can read."""

    _direct: dict[str, str] = field(default_factory=dict[str, str])
    """Workload axis that each dimension follows one to one."""
    _digit_dimensions: dict[tuple[str, str], str] = field(
        default_factory=dict[tuple[str, str], str]
    )
    """Dimension that holds just the digit of (instruction axis, workload axis)."""
    _contiguous: list[str] = field(default_factory=list[str])
    """Dimensions that an instruction axis walks in place and that have to be innermost."""

    def derive(self) -> PackedOperand:
        # Table 2 in order. Fused axes come before all, because they are dimensions like others from
        # then on. Unrolling precedes padding, since it makes the dimensions that are padded to
        # whole blocks, and padding precedes splitting, which needs blocks that divide.
        self._check_moves()
        self._flatten()
        for name, index in self._indices.items():
            axis = _direct_axis(index)
            if axis is not None and name not in self._joined:
                self._direct[name] = axis
        self._unroll()
        self._pad()
        digits = self._split()
        # Only digits that must be dense move: a fused axis of several digits, or one of unit
        # stride. They are neighbours after gathering, which fusing requires.
        gathered = [
            axis
            for axis in dict.fromkeys(t.axis for t in self.memory.tile)
            if digits.get(axis) and not self._stays(axis, digits[axis])
        ]
        self._gather(gathered, digits)
        for axis in gathered:
            self._fuse(axis, digits[axis])
        self._tile(gathered)
        return self.layout

    def _unroll(self) -> None:
        """Move mapped axes of a shared index to separate dimensions, at the least footprint."""
        for name, index in list(self._indices.items()):
            if name in {*self._direct, *self._joined} or not any(map(self._feeds, index.iterators)):
                continue
            overlapping = set(self.overlaps) & set(index.iterators)
            if not all(map(self._begins_anywhere, overlapping)):
                raise self._shared_blocks()
            # Plain tuples, since the choice below is cached by them.
            axes = tuple([self._index_axis(term, index) for term in index.terms])
            iterators = dict.fromkeys(n for axis in axes for n in axis.coordinate.iterators)
            extents = tuple([(n, self.extents[n]) for n in iterators])
            self._apply_unrolling(name, smallest_unrolling(name, axes, extents))

    def _index_axis(self, term: IndexTerm, index: IndexExpr) -> IndexAxis:
        name, feeds = term.iterator, self._feeds(term.iterator)
        axis = IndexAxis(name, term.coefficient, self.axis_map[name])
        if feeds is None:
            return axis
        # Blocks that begin anywhere are no digits of the axis, so they cannot be moved.
        anywhere = self._begins_anywhere(name)
        treatments = ("in_place",) if anywhere else self._treatments(name, index)
        return replace(axis, feeds=feeds, treatments=treatments)

    def _apply_unrolling(self, name: str, unrolling: Unrolling) -> None:
        parts, moved = list(unrolling.parts), unrolling.moved
        offset = unrolling.offset + self.layout.access[self._position(name)].constant
        if unrolling.shared and parts[0].name != name:
            parts[0] = replace(parts[0], name=self._fresh(parts[0].name))
        digits = [part for part in parts if part.lane is not None]
        if moved or digits:
            self._unroll_dimension(name, offset, parts)
            for axis in moved:
                self._direct[f"{name}.{axis}"] = axis
        # Parts that are digits have the name of their workload axis with ".i".
        digit_parts = {part.name.removesuffix(".i"): part for part in digits}
        for axis, part in digit_parts.items():
            assert part.lane is not None
            if (part.lane, axis) in self._digit_dimensions:
                raise self._diagonal(axis)
            self._digit_dimensions[part.lane, axis] = part.name
        # Mapped axes that were not moved are read in place, in the part that all axes share.
        for axis in self._indices[name].iterators if parts else ():
            feeds = self._feeds(axis)
            if feeds is None or axis in moved or axis in digit_parts:
                continue
            if self.memory.stride_rule(feeds) is StrideRule.UNIT:
                if sum(axis in index.iterators for index in self.access.index) > 1:
                    raise self._diagonal(axis)
                self._contiguous.append(parts[0].name if moved or digits else name)

    def _pad(self) -> None:
        """Pad every dimension to the range that is read, in whole blocks if it will be split."""
        unrolled = any(isinstance(r, ImagePack | StencilUnroll) for r in self.applied)
        for k, dimension in enumerate(self.layout.dimensions):
            # The last block of an overlapping axis ends with the dimension.
            if self._direct.get(dimension.name) in self.overlaps:
                continue
            low, high = self.layout.access[k].bounds(self.extents)
            before = max(0, -low)
            block = self._block(dimension.name)
            # A split needs blocks that start at multiples of the block: pad an offset up to one.
            before += -(self.layout.access[k].constant + before) % block
            after = max(0, high + 1 - dimension.extent)
            after += -(before + dimension.extent + after) % block
            # The elements after a fused axis that was split off a sum exist in the original.
            clears = unrolled and dimension.name in self.embedding.flattened
            self._widen(dimension.name, before, after, clears=clears)

    def _block(self, name: str) -> int:
        """Return the number of elements of a block of a dimension that will be split, else 1."""
        axis, digits = self._direct.get(name), self.embedding.digits.values()
        blocks = (d.count * d.stride for part in digits for d in part if d.axis == axis)
        return next(blocks, 1)

    def _split(self) -> dict[str, list[str]]:
        """Split every dimension that follows a mapped axis.

        Returns the dimensions of each instruction axis's digits, outermost digit first.
        """
        dimensions: dict[str, list[str]] = {}
        for instruction_axis in self.instruction_axes:
            for digit in reversed(self.embedding.digits[instruction_axis]):
                separate = self._digit_dimensions.get((instruction_axis, digit.axis))
                direct = [name for name, axis in self._direct.items() if axis == digit.axis]
                if len(direct) + (separate is not None) > 1:
                    raise self._diagonal(digit.axis)
                if separate is not None:
                    dimensions.setdefault(instruction_axis, []).append(separate)
                for name in direct:
                    if not self._begins_anywhere(digit.axis):
                        part = self._split_digit(name, digit, instruction_axis)
                        dimensions.setdefault(instruction_axis, []).append(part)
        return dimensions

    def _split_digit(self, name: str, digit: Digit, instruction_axis: str) -> str:
        """Split a dimension at a digit and return the dimension that is the digit."""
        operand, dimension, inner = self.layout.name, self._position(name), f"{name}.i"
        block = digit.count * digit.stride
        if digit.axis in self.overlaps:
            overlap = self.overlaps[digit.axis]
            # Points of a reduction that two blocks share would be added twice.
            zeros = overlap.kind is AxisKind.REDUCTION
            parts = {"outer": f"{name}.o", "inner": inner, "lane": instruction_axis}
            self._apply(Overlapped(operand, dimension, overlap, **parts, zeros=zeros))
        elif digit.stride == 1:
            self._apply_split(name, block, (f"{name}.o", inner), lane=instruction_axis)
        else:
            # Steps of a digit are the outer part of a block, the phases between them the inner one.
            self._apply_split(name, block, (f"{name}.o", f"{name}.b"))
            phases = (inner, f"{name}.p")
            self._apply_split(f"{name}.b", digit.stride, phases, outer_lane=instruction_axis)
        return inner

    def _apply_split(
        self, name: str, factor: int, parts: tuple[str, str], **lanes: str | None
    ) -> None:
        """Split a dimension into an outer and an inner part, which has ``factor`` elements."""
        outer, inner = parts
        position = self._position(name)
        self._apply(Split(self.layout.name, position, factor, outer=outer, inner=inner, **lanes))

    def _stays(self, axis: str, digits: list[str]) -> bool:
        """True if an instruction axis has a single digit, which can stay where its axis is."""
        return self.memory.stride_rule(axis) is StrideRule.ANY and len(digits) == 1

    def _gather(self, axes: list[str], digits: Mapping[str, list[str]]) -> None:
        """Move the digits of these axes innermost, followed by contiguous dimensions."""
        tail = [name for axis in axes for name in digits[axis]] + self._contiguous
        outer = [d.name for d in self.layout.dimensions if d.name not in tail]
        # Only where packing costs nothing when the program runs.
        if axes and self._is_packed_ahead():
            outer.sort(key=self._is_summed_over)
        self._reorder(outer + tail)

    def _fuse(self, axis: str, digits: list[str]) -> None:
        """Fuse the digits of an instruction axis, which are neighbours by now."""
        first, sizes = self._position(digits[0]), tuple(self._sizes(digits))
        if len(digits) > 1:
            name, labels = self._fresh(axis), tuple(digits)
            self._apply(Fuse(self.layout.name, first, sizes, name, lane=axis, labels=labels))

    def _tile(self, axes: list[str]) -> None:
        """Split gathered axes as the tile's dimensions are, and reorder them as in the tile."""
        for axis in axes:
            divisors = {t.divisor for t in self.memory.tile if t.axis == axis}
            # From the outermost cut inwards, each divides what the one before has left.
            cuts = sorted(divisors - {1}, reverse=True)
            name = next(d.name for d in self.layout.dimensions if d.lane == axis)
            for cut in cuts:
                parts = f"{axis}/{cut}", f"{axis}%{cut}"
                self._apply_split(name, cut, parts, lane=axis)
                name = parts[1]
        # Axes of any stride go outside those that must be dense. A dimension that is read in place
        # contiguously must be dense as well, so it comes last.
        tiles = sorted(
            (tile for tile in self.memory.tile if tile.axis in axes),
            key=lambda tile: self.memory.stride_rule(tile.axis) is StrideRule.UNIT,
        )
        order = [self._tile_dimension(tile.axis, tile.divisor) for tile in tiles]
        tail = order + self._contiguous
        outer_names = [d.name for d in self.layout.dimensions if d.name not in tail]
        self._reorder(outer_names + tail)

    def _is_packed_ahead(self) -> bool:
        """True if the operand holds weights: the second input, unless it varies."""
        weights = self.workload.inputs[1:2]
        return any(w.name == self.layout.name and not w.varies for w in weights)

    def _is_summed_over(self, dimension: str) -> bool:
        """True if only reductions walk a dimension."""
        # With these innermost, all that a sum reads is contiguous. Rows of a matrix a multiple of
        # 4 KiB apart evict each other: measured on Zen 5, products by 512 x 512 and 1024 x 4096
        # weights are 1.08 to 1.15 times as fast.
        axes = {axis.name: axis.kind for axis in self.workload.axes}
        axes |= {name: axes[group[0]] for name, group in self.embedding.flattened.items()}
        kinds = {n: axes[axis] for axis, index in self.axis_map.items() for n in index.iterators}
        iterators = self.layout.access[self._position(dimension)].iterators
        return all(kinds.get(name) is AxisKind.REDUCTION for name in iterators)

    def _tile_dimension(self, axis: str, divisor: int) -> str:
        """Return the dimension that holds ``(axis // divisor) % ...``, by its weight."""
        digits = [d for d in self.layout.dimensions if d.lane == axis]
        weight = math.prod(d.extent for d in digits)
        for dimension in digits:
            weight //= dimension.extent
            if weight == divisor:
                return dimension.name
        raise InvariantError(f"no dimension of {self.layout.name} holds {axis}/{divisor}")


@dataclass
class InPlaceLayout(LayoutBuilder):
    """The original layout, with fused axes joined and zeros where it is read outside of it."""

    def derive(self) -> PackedOperand:
        self._check_moves()
        self._flatten()
        # Reordered or unrolled dimensions would be another layout than the caller's.
        unmoved = all(type(rewrite) in (Flatten, Pad) for rewrite in self.applied)
        if not (unmoved or self.layout.is_identity):
            raise TransformError(f"{self.layout.name} does not hold the fused axes as they are")
        padded = {
            axis: self.overlaps[axis].extent if axis in self.overlaps else self._reach(index)
            for axis, index in self.axis_map.items()
        }
        for dimension in self.layout.dimensions:
            low, high = self._indices[dimension.name].bounds(padded)
            self._widen(dimension.name, max(0, -low), max(0, high + 1 - dimension.extent))
        for axis in self.instruction_axes:
            if self.extents[axis] > 1 and not self._walks(axis):
                raise TransformError(
                    f"{self.layout.name} lies in another order than the instruction takes {axis}"
                )
        return self.layout

    def _reach(self, index: IndexExpr) -> int:
        return index.bounds(self.extents)[1] + 1

    def _walks(self, axis: str) -> bool:
        """True if the memory side can read an instruction axis in place."""
        # A digit of a sum steps by no constant distance.
        if any(
            axis in t.iterators and t.inner for index in self.layout.access for t in index.terms
        ):
            return False
        step = self.layout.axis_stride(axis)
        if step is None or step <= 0:
            return False
        if self.memory.stride_rule(axis) is StrideRule.ANY:
            return True
        size = size_bytes(self.layout.dtype)
        return step == 1 and self.memory.reads_contiguously(axis, size, self.extents)


# ------------------------------------------------------------- names of layouts, step by step


@dataclass(frozen=True)
class Layout:
    """Dimensions of a layout by name, outermost first, with the instruction axes that walk them."""

    names: tuple[str, ...]
    shape: tuple[int, ...]
    lanes: tuple[tuple[str, ...], ...]

    def __str__(self) -> str:
        return f"[{', '.join(self.names)}] ({', '.join(map(str, self.shape))})"

    def to_json(self) -> dict[str, Any]:
        return {"dimensions": list(self.names), "shape": list(self.shape)}


@dataclass(frozen=True)
class Step:
    """One rewrite with the layout before and after it."""

    rewrite: Rewrite
    before: Layout
    after: Layout


def layout(program: DerivedProgram, operand: PackedOperand) -> Layout:
    """Return an operand's dimensions by name, with the instruction axes that walk them."""
    walking = {lane.name for lane in program.instruction_axes if lane.extent > 1}
    return Layout(
        tuple(d.name for d in operand.dimensions),
        operand.shape,
        tuple(tuple(n for n in index.iterators if n in walking) for index in operand.access),
    )


def original_layout(program: DerivedProgram, name: str) -> Layout:
    """Return the layout of an operand before any rewrite."""
    return layout(program, _unpacked(program, name))


def replay(program: DerivedProgram, name: str) -> tuple[Step, ...]:
    """Replay the rewrites of one operand from its original layout to the packed one."""
    current = _unpacked(program, name)
    steps: list[Step] = []
    for rewrite in program.rewrites:
        if rewrite.operand == name:
            after = rewrite.apply(current, program.extents)
            steps.append(Step(rewrite, layout(program, current), layout(program, after)))
            current = after
    replayed, packed = layout(program, current), layout(program, program.operand(name))
    if replayed != packed:
        raise InvariantError(f"the rewrites of {name} lead to {replayed}, not to {packed}")
    return tuple(steps)


def _unpacked(program: DerivedProgram, name: str) -> PackedOperand:
    """Return the operand before any rewrite; its dimensions have the names of their axes."""
    workload = program.unfused
    return unpacked_operand(workload, workload.access(name), program.axis_map)
