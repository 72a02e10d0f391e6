"""Lower bounds on the elements of an operand's layout, from the digits on its axes alone.

The counterpart of :mod:`cpembed.transform.layout` for ranking: deriving a layout takes a
millisecond or two, and a search compares hundreds of thousands. Each dimension of the operand is
sized by itself. No layout is smaller; most have exactly this size.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from cpembed.embedding.digit_model import AxisMaps
from cpembed.embedding.embedding import Embedding
from cpembed.embedding.problem import EmbeddingProblem
from cpembed.hw.instruction import OperandMemory, StrideRule
from cpembed.ir.accesses import joined_dimensions, joined_index
from cpembed.ir.computation import Operand
from cpembed.ir.dtypes import size_bytes
from cpembed.ir.expression import Access
from cpembed.ir.index import IndexExpr, IndexTerm


@dataclass(frozen=True)
class Tile:
    """Digit on its workload axis: ``instruction_axis`` walks ``count`` steps of ``stride``.

    It is ``single`` if the instruction axis has no other digit.
    """

    instruction_axis: str
    count: int
    stride: int
    single: bool

    @property
    def block(self) -> int:
        return self.count * self.stride

    def blocks(self, extent: int) -> int:
        return -(-extent // self.block)

    def calls(self, extent: int) -> int:
        """Return the executions along an axis of this extent: blocks times interleaved phases."""
        return self.blocks(extent) * self.stride

    def padded(self, extent: int) -> int:
        return self.blocks(extent) * self.block


@dataclass(frozen=True)
class Fused:
    """Fused axis of ``extent`` points, ``members`` outermost first, that a tile walks."""

    members: tuple[str, ...]
    extent: int
    tile: Tile

    @property
    def padded(self) -> int:
        return self.tile.padded(self.extent)


_SEPARATE = Fused((), 1, Tile("", 1, 1, single=True))
"""State of a member whose fused axis has separate dimensions."""

State = Tile | Fused | None
"""State of a workload axis: walked by a digit, a member of a fused axis, or neither."""


@dataclass(frozen=True)
class Dimension:
    """Dimension of an operand: its index over the workload's ``axes``, whose extents these are.

    ``memory`` is the one from which the instruction reads the operand, ``smallest`` are the
    smallest extents of the instruction's axes. ``joined`` has dimensions that this one makes with
    its neighbours, by the members of the fused axis that walks them in memory
    (:mod:`cpembed.ir.accesses`).
    """

    index: IndexExpr
    extent: int
    memory: OperandMemory
    element_bytes: int
    axes: Mapping[str, int]
    smallest: Mapping[str, int]
    joined: Mapping[tuple[str, ...], Dimension] = field(default_factory=dict[Any, Any])

    def elements(self, states: Mapping[str, State]) -> int:
        """Return a lower bound on the dimension's factor in the size of the layout.

        A fused axis has a separate dimension, which is not counted here, unless it is ``joined``.
        """
        # A quotient or remainder has no linear span; one element is a bound of any dimension.
        if not self.index.is_affine:
            return 1
        fused = {a: s for a in self.index.iterators if isinstance(s := states.get(a), Fused)}
        if not fused:
            return self._sized(self.index, self.extent, states)
        factor = 1
        for group in fused.values():
            if group.members in self.joined:
                if len(fused) == 1:
                    joined = self.joined[group.members]
                    return joined.elements({**states, _fused_name(group.members): group.tile})
                factor *= group.padded
        rest = [t for t in self.index.terms if t.iterator not in fused]
        if not rest:
            return factor
        span, step = _span(steps for t in rest for steps in self._steps(t, states))
        terms = [IndexTerm(t.iterator, t.coefficient // step) for t in rest]
        return factor * self._sized(IndexExpr.sum(terms), span + 1, states)

    def relevant(self, states: Mapping[str, State], axes: Iterable[str]) -> tuple[State, ...]:
        """Return the states of some axes with all fused axes of separate dimensions made equal.

        They do not matter to the size of this dimension.
        """
        relevant = [states.get(axis) for axis in axes]
        for n, state in enumerate(relevant):
            if isinstance(state, Fused) and state.members not in self.joined:
                relevant[n] = _SEPARATE
        return tuple(relevant)

    def _sized(self, index: IndexExpr, extent: int, states: Mapping[str, State]) -> int:
        # A dimension that follows one axis is padded to blocks, whatever the layout does.
        if len(index.terms) == 1 and index.terms[0].coefficient == 1:
            return self._direct(index, extent, states)
        tiles = {a: s for a in index.iterators if isinstance(s := states.get(a), Tile)}
        # Which treatment the layout will choose is not known, so the smallest one bounds it.
        choices = [self._treatments(index.coefficient(a) * t.stride, t) for a, t in tiles.items()]
        return min(
            self._treated(index, extent, states, dict(zip(tiles, plan, strict=True)))
            for plan in itertools.product(*choices)
        )

    def _direct(self, index: IndexExpr, extent: int, states: Mapping[str, State]) -> int:
        """Return the size of a dimension that follows one axis, padded at both ends to blocks."""
        (axis,) = index.iterators
        tile = states.get(axis)
        block = tile.block if isinstance(tile, Tile) else 1
        before = max(0, -index.constant)
        before += -(index.constant + before) % block
        size = before + max(extent, index.constant + self._reach(axis, states))
        return size + -size % block

    def _reach(self, axis: str, states: Mapping[str, State]) -> int:
        """Return the padded extent of an axis."""
        tile = states.get(axis)
        return tile.padded(self.axes[axis]) if isinstance(tile, Tile) else self.axes[axis]

    def _treatments(self, step: int, tile: Tile) -> list[str]:
        # A digit, or its entire axis, can become a dimension; in place, the layout must suit the
        # instruction as it is.
        memory, axis = self.memory, tile.instruction_axis
        in_place = memory.stride_rule(axis) is StrideRule.ANY or (
            step == 1 and memory.reads_contiguously(axis, self.element_bytes, self.smallest)
        )
        return ["digit", "axis", *(["in_place"] if tile.single and in_place else [])]

    def _treated(
        self,
        index: IndexExpr,
        extent: int,
        states: Mapping[str, State],
        plan: Mapping[str, str],
    ) -> int:
        """Return the size if the plan's axes get a dimension for their digit or for all of them."""
        if all(treatment == "in_place" for treatment in plan.values()):
            low = high = index.constant
            for term in index.terms:
                moved = term.coefficient * (self._reach(term.iterator, states) - 1)
                low, high = low + min(moved, 0), high + max(moved, 0)
            return extent + max(0, -low) + max(0, high + 1 - extent)
        separate, shared = 1, list[tuple[int, int]]()
        for term in index.terms:
            treatment, tile = plan.get(term.iterator), states.get(term.iterator)
            if treatment == "axis" and isinstance(tile, Tile):
                separate *= self._reach(term.iterator, states)
            elif treatment == "digit" and isinstance(tile, Tile):
                separate *= tile.count
                # The digit has a dimension of its own, so that only its blocks and phases move the
                # rest.
                shared += self._steps(term, states)[:-1]
            else:
                shared += self._steps(term, states)
        span, _ = _span(shared)
        return separate * (span + 1)

    def _steps(self, term: IndexTerm, states: Mapping[str, State]) -> list[tuple[int, int]]:
        """Return (step, count) of each iterator that moves the term; the digit comes last."""
        step, extent = abs(term.coefficient), self.axes[term.iterator]
        tile = states.get(term.iterator)
        if not isinstance(tile, Tile):
            return [(step, extent)]
        return [
            (step * tile.block, tile.blocks(extent)),
            (step, tile.stride),
            (step * tile.stride, tile.count),
        ]


def _dimensions(
    access: Access, operand: Operand, memory: OperandMemory,
    axes: Mapping[str, int], smallest: Mapping[str, int],
    groups: Iterable[tuple[str, ...]],
) -> tuple[Dimension, ...]:  # fmt: skip
    """Return the dimensions of an operand, with those that fused axes of ``groups`` walk."""
    place = memory, size_bytes(operand.dtype)
    dimensions = [
        Dimension(index, extent, *place, axes=axes, smallest=smallest)
        for index, extent in zip(access.index, operand.shape, strict=True)
    ]
    for members in groups:
        window = joined_dimensions(access.index, operand.shape, axes, members)
        if window is None:
            continue
        inner = math.prod(operand.shape[window.start + 1 : window.stop])
        name = _fused_name(members)
        first = dimensions[window.start]
        places = slice(window.start, window.stop)
        index = joined_index(access.index[places], operand.shape[places], members, name)
        extents = {**axes, name: math.prod(axes[member] for member in members)}
        joined = Dimension(index, first.extent * inner, *place, axes=extents, smallest=smallest)
        dimensions[window.start] = replace(first, joined={**first.joined, members: joined})
    return tuple(dimensions)


def _fused_name(members: Sequence[str]) -> str:
    """Return a name for a fused axis that no axis has."""
    return " ".join(members)


def _span(steps: Iterable[tuple[int, int]]) -> tuple[int, int]:
    """Return the steps between neighbours from the first to the last element, and their size."""
    # Elements lie at multiples of the greatest common step only.
    moving = [(step, count) for step, count in steps if count > 1]
    unit = math.gcd(*(step for step, _ in moving)) or 1
    return sum(step * (count - 1) for step, count in moving) // unit, unit


@dataclass(frozen=True)
class Port:
    """Workload operand that fills one operand of the instruction, with its indexed dimensions."""

    operand: Operand
    dimensions: tuple[Dimension, ...]

    @property
    def elements(self) -> int:
        return math.prod(self.operand.shape)

    def has_dimension(self, fused: Fused) -> bool:
        """Return True if a fused axis is counted as a separate dimension."""
        member = fused.members[0]
        indexed = any(member in d.index.iterators for d in self.dimensions)
        return indexed and not any(fused.members in d.joined for d in self.dimensions)


def ports_of(problem: EmbeddingProblem, groups: Collection[tuple[str, ...]]) -> list[Port]:
    """Return the workload's operands with their dimensions, in the instruction's order."""
    workload, instruction = problem.workload, problem.instruction
    smallest = {axis.name: axis.minimum for axis in instruction.axes}
    ports: list[Port] = []
    for role in instruction.computation.operands:
        operand = workload.operand(problem.roles[role.name])
        access, memory = workload.access(operand.name), instruction.memory[role.name]
        dimensions = _dimensions(access, operand, memory, workload.extents, smallest, groups)
        ports.append(Port(operand, dimensions))
    return ports


def states_of(
    axis_map: AxisMaps | Embedding, extents: Mapping[str, int]
) -> tuple[dict[str, State], list[Fused]]:
    """Return the states of the workload axes under a map, and its fused axes."""
    states: dict[str, State] = {}
    fused: list[Fused] = []
    for instruction_axis, digits in axis_map.digits.items():
        for digit in digits:
            tile = Tile(instruction_axis, digit.count, digit.stride, len(digits) == 1)
            members = axis_map.flattened.get(digit.axis)
            if members is None:
                states[digit.axis] = tile
                continue
            group = Fused(members, math.prod(extents[member] for member in members), tile)
            fused.append(group)
            states |= dict.fromkeys(members, group)
    return states, fused
