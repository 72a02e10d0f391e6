"""From an embedding to a program: loops, axis map, and every operand's layout (embedding.md, 7).

The instruction's tile of each operand is described by its memory side. A lane (an instruction
axis) whose elements may lie at any distance stays where its workload axis is; a lane that must be
dense moves innermost, in the tile's order. A lane that walks a dimension with several iterators
(an image row) is read in place. All other dimensions keep the order of the original operand, so a
channels-last operand yields a channels-last layout.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from cpembed.embedding.embedding import Digit, Embedding
from cpembed.errors import InvariantError, TransformError
from cpembed.hw.instruction import Instruction, OperandMemory, StrideRule
from cpembed.ir.computation import AxisKind, Computation
from cpembed.ir.expression import Access
from cpembed.ir.index import IndexExpr, IndexTerm
from cpembed.transform.program import DerivedProgram, Loop, PackedDimension, PackedOperand
from cpembed.transform.rewrites import Fuse, Pad, Reorder, Rewrite, Split


def derive(workload: Computation, instruction: Instruction, embedding: Embedding) -> DerivedProgram:
    """The program that executes the instruction over all translations of the embedded box.

    Raises :class:`TransformError` where the operands need a rewrite that is not available.
    """
    if any(embedding.origin.values()):
        raise TransformError(
            "the embedding is a translation of the one at the origin: derive that one instead"
        )
    loops, axis_map = _iteration(workload, embedding)
    lanes = tuple(
        Loop(axis.name, embedding.extents[axis.name], instruction.loop_axis(axis.name).kind)
        for axis in instruction.axes
    )
    extents = {loop.name: loop.extent for loop in (*loops, *lanes)}
    operands: list[PackedOperand] = []
    rewrites: list[Rewrite] = []
    for ours in instruction.computation.operands:
        layout = _Layout(
            workload,
            workload.access(embedding.operands[ours.name]),
            instruction.memory[ours.name],
            tuple(
                name
                for index in instruction.computation.access(ours.name).index
                for name in index.iterators
            ),
            embedding,
            axis_map,
            extents,
        )
        operands.append(layout.derive())
        rewrites += layout.applied
    return DerivedProgram(
        workload,
        instruction,
        embedding,
        loops,
        lanes,
        axis_map,
        tuple(operands),
        dict(embedding.operands),
        tuple(rewrites),
    )


def _iteration(
    workload: Computation, embedding: Embedding
) -> tuple[tuple[Loop, ...], dict[str, IndexExpr]]:
    """Outer loops over the translations, and each workload axis over loops and lanes.

    A digit of count c and stride s covers blocks of c*s; the loop ``axis.o`` walks blocks and,
    where s > 1, ``axis.p`` the s interleaved phases.
    """
    loops: list[Loop] = []
    axis_map: dict[str, IndexExpr] = {}
    for kind in (AxisKind.SPATIAL, AxisKind.REDUCTION):
        for axis in workload.axes:
            if axis.kind is not kind:
                continue
            digits = digits_on(embedding, axis.name)
            if len(digits) > 1:
                raise TransformError(f"axis {axis.name} feeds several digits: not derivable yet")
            count, stride = (digits[0].count, digits[0].stride) if digits else (1, 1)
            block = count * stride
            loops.append(Loop(f"{axis.name}.o", -(-axis.extent // block), kind))
            terms = [IndexTerm(f"{axis.name}.o", block)]
            if stride > 1:
                loops.append(Loop(f"{axis.name}.p", stride, kind))
                terms.append(IndexTerm(f"{axis.name}.p"))
            axis_map[axis.name] = IndexExpr.of([*terms, *embedding.offset(axis.name).terms])
    return tuple(loops), {axis.name: axis_map[axis.name] for axis in workload.axes}


def digits_on(embedding: Embedding, axis: str) -> list[Digit]:
    return [d for digits in embedding.digits.values() for d in digits if d.axis == axis]


def _direct_axis(index: IndexExpr) -> str | None:
    """The axis that a dimension follows one to one, up to an offset."""
    if len(index.terms) == 1 and index.terms[0].coefficient == 1 and index.is_affine:
        return index.terms[0].iterator
    return None


@dataclass
class _Layout:
    """Builds one operand's layout by applying rewrites to the original one."""

    workload: Computation
    access: Access
    memory: OperandMemory
    lanes: tuple[str, ...]
    embedding: Embedding
    axis_map: Mapping[str, IndexExpr]
    extents: Mapping[str, int]
    applied: list[Rewrite] = field(default_factory=list[Rewrite])
    layout: PackedOperand = field(init=False)

    def __post_init__(self) -> None:
        operand = self.workload.operand(self.access.operand)
        names = ["+".join(index.iterators) or f"#{k}" for k, index in enumerate(self.access.index)]
        names = [name if names.count(name) == 1 else f"{name}#{k}" for k, name in enumerate(names)]
        self.layout = PackedOperand(
            operand.name,
            operand.dtype,
            operand.shape,
            tuple(PackedDimension(n, size) for n, size in zip(names, operand.shape, strict=True)),
            tuple(IndexExpr.iterator(name) for name in names),
            tuple(index.substitute(self.axis_map) for index in self.access.index),
        )

    def derive(self) -> PackedOperand:
        self._pad()
        digits = self._split()
        in_place = self._lanes_in_place()
        gathered = [
            lane
            for lane in dict.fromkeys(t.axis for t in self.memory.tile)
            if digits.get(lane) and not self._stays(lane, digits[lane])
        ]
        self._gather(gathered, digits, in_place)
        for lane in gathered:
            self._fuse(lane, digits[lane])
        self._tile(gathered)
        return self.layout

    def _apply(self, rewrite: Rewrite) -> None:
        self.layout = rewrite.apply(self.layout, self.extents)
        self.applied.append(rewrite)

    def _position(self, name: str) -> int:
        return [d.name for d in self.layout.dimensions].index(name)

    def _pad(self) -> None:
        for k, dimension in enumerate(self.layout.dimensions):
            low, high = self.layout.access[k].bounds(self.extents)
            before = max(0, -low)
            # A split needs its blocks to start at a multiple of the block: shift an offset there.
            before += -(self.layout.access[k].constant + before) % self._block(k)
            after = max(0, high + 1 - dimension.extent)
            if (before + dimension.extent + after) % self._block(k):
                after += -(before + dimension.extent + after) % self._block(k)
            if before or after:
                name = self.layout.name
                self._apply(Pad(name, k, before, after, dimension.extent, dimension.name))

    def _block(self, k: int) -> int:
        """Elements of one block of a dimension that will be split; 1 where it will not."""
        axis = _direct_axis(self.access.index[k])
        digits = [] if axis is None else digits_on(self.embedding, axis)
        return digits[0].count * digits[0].stride if digits else 1

    def _split(self) -> dict[str, list[str]]:
        """Split every dimension that a single mapped axis indexes; lane -> its digit dimensions,
        outermost digit first."""
        found: dict[str, list[str]] = {}
        for lane in self.lanes:
            for digit in reversed(self.embedding.digits[lane]):
                for k, index in enumerate(self.access.index):
                    if _direct_axis(index) == digit.axis:
                        name = self._split_digit(self._original(k), digit, lane)
                        found.setdefault(lane, []).append(name)
        return found

    def _original(self, k: int) -> str:
        return "+".join(self.access.index[k].iterators)

    def _split_digit(self, axis: str, digit: Digit, lane: str) -> str:
        operand = self.layout.name
        dimension = self._position(axis)
        inner = f"{axis}.i"
        block = digit.count * digit.stride
        if digit.stride == 1:
            self._apply(Split(operand, dimension, block, f"{axis}.o", inner, lane))
            return inner
        self._apply(Split(operand, dimension, block, f"{axis}.o", f"{axis}.b"))
        split = Split(operand, dimension + 1, digit.stride, inner, f"{axis}.p")
        self._apply(split)
        dimensions = list(self.layout.dimensions)
        dimensions[dimension + 1] = PackedDimension(inner, digit.count, lane)
        self.layout = PackedOperand(
            self.layout.name,
            self.layout.dtype,
            self.layout.original_shape,
            tuple(dimensions),
            self.layout.source,
            self.layout.access,
        )
        return inner

    def _lanes_in_place(self) -> list[str]:
        """Dimensions that a lane walks together with other iterators and must walk contiguously."""
        found: list[str] = []
        for lane in self.lanes:
            for digit in self.embedding.digits[lane]:
                for k, index in enumerate(self.access.index):
                    if digit.axis not in index.iterators or _direct_axis(index) == digit.axis:
                        continue
                    self._require_in_place(lane, digit)
                    if self.memory.stride_rule(lane) is StrideRule.UNIT:
                        found.append(self.layout.dimensions[self._compound(k)].name)
        return found

    def _require_in_place(self, lane: str, digit: Digit) -> None:
        """Without a copy a lane can walk a stencil dimension as one digit only: at any stride
        where the memory side takes one, else as the innermost dimension of the tile."""
        last = self.memory.tile[-1]
        contiguous = last.axis == lane and last.divisor == 1 and last.modulus is None
        free = self.memory.stride_rule(lane) is StrideRule.ANY
        if len(self.embedding.digits[lane]) > 1 or not (free or contiguous):
            raise TransformError(
                f"{self.layout.name} cannot be read in place along {digit.axis}: "
                f"it needs a copy that unrolls the stencil"
            )

    def _compound(self, k: int) -> int:
        name = "+".join(self.access.index[k].iterators)
        names = [d.name for d in self.layout.dimensions]
        return names.index(name) if name in names else names.index(f"{name}#{k}")

    def _stays(self, lane: str, digits: list[str]) -> bool:
        """Whether a lane's only digit can stay beside its outer dimension."""
        return self.memory.stride_rule(lane) is StrideRule.ANY and len(digits) == 1

    def _gather(
        self, lanes: list[str], digits: Mapping[str, list[str]], in_place: list[str]
    ) -> None:
        tail = [name for lane in lanes for name in digits[lane]] + in_place
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
            self._apply(Fuse(self.layout.name, first, sizes, lane, lane, tuple(digits)))

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
        order = [
            self._tile_dimension(tile.axis, tile.divisor)
            for tile in self.memory.tile
            if tile.axis in lanes
        ]
        kept = [d.name for d in self.layout.dimensions if d.name not in order]
        self._reorder(kept + order)

    def _tile_dimension(self, lane: str, divisor: int) -> str:
        """The dimension that holds ``(lane // divisor) % ...``, found by its weight."""
        found = [d for d in self.layout.dimensions if d.lane == lane]
        weight = math.prod(d.extent for d in found)
        for dimension in found:
            weight //= dimension.extent
            if weight == divisor:
                return dimension.name
        raise InvariantError(f"no dimension of {self.layout.name} holds {lane}/{divisor}")
