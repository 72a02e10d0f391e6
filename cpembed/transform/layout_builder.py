"""What every layout of an operand begins with: the original one, its fused axes made dimensions."""

from __future__ import annotations

import itertools
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field

from cpembed.embedding.embedding import Embedding
from cpembed.errors import TransformError
from cpembed.hw.instruction import OperandMemory, StrideRule
from cpembed.ir.computation import Computation
from cpembed.ir.dtypes import size_bytes
from cpembed.ir.expression import Access
from cpembed.ir.index import IndexExpr, IndexTerm
from cpembed.ir.joining import joined_dimensions, joined_index
from cpembed.transform.program import Overlap, PackedDimension, PackedOperand
from cpembed.transform.rewrites import Flatten, Part, Reorder, Rewrite, unroll
from cpembed.transform.unrolling import Treatment, normalised


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
    lanes: tuple[str, ...]
    embedding: Embedding
    axis_map: Mapping[str, IndexExpr]
    extents: Mapping[str, int]
    overlaps: Mapping[str, Overlap]
    applied: list[Rewrite] = field(default_factory=list[Rewrite])
    layout: PackedOperand = field(init=False)
    _lane_of: dict[str, str] = field(default_factory=dict[str, str])
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
        self._lane_of = {d.axis: lane for lane in reversed(self.lanes) for d in digits[lane]}

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
