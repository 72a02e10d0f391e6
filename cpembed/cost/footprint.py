"""How many elements an operand's layout has at least, from the digits on its axes alone.

The counterpart of :mod:`cpembed.transform.layout` for ranking: deriving a layout takes a
millisecond or two, and a search compares hundreds of thousands. Each dimension of the operand is
sized by itself, in the ways that the layout may treat its axes, of which the smallest counts. No
layout is smaller; most have just this size.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from cpembed.hw.instruction import OperandMemory, StrideRule
from cpembed.ir.index import IndexExpr, IndexTerm


@dataclass(frozen=True)
class Tile:
    """What a digit does to its workload axis: ``lane`` walks ``count`` steps of ``stride``;
    ``alone``: it is the lane's only digit."""

    lane: str
    count: int
    stride: int
    alone: bool

    @property
    def block(self) -> int:
        return self.count * self.stride

    def blocks(self, extent: int) -> int:
        return -(-extent // self.block)

    def calls(self, extent: int) -> int:
        """How many executions walk an axis of this extent: blocks times interleaved phases."""
        return self.blocks(extent) * self.stride

    def padded(self, extent: int) -> int:
        return self.blocks(extent) * self.block


FUSED = "fused"
"""State of an axis that is a member of a fused one."""

State = Tile | str | None
"""A workload axis under an embedding: walked by a digit, fused, or neither."""


@dataclass(frozen=True)
class Dimension:
    """A dimension of an operand: its index over workload axes, and its extent."""

    index: IndexExpr
    extent: int
    memory: OperandMemory
    axes: Mapping[str, int]
    """Extents of the workload's axes."""

    def elements(self, states: Mapping[str, State]) -> int:
        """A lower bound of what the dimension contributes to the size of the layout.

        A fused axis has a dimension of its own: here only the other axes count.
        """
        if not self.index.is_affine:
            return 1
        rest = [t for t in self.index.terms if states.get(t.iterator) != FUSED]
        if len(rest) == len(self.index.terms):
            return self._sized(self.index, self.extent, states)
        if not rest:
            return 1
        span, step = _span(steps for t in rest for steps in self._steps(t, states))
        terms = [IndexTerm(t.iterator, t.coefficient // step) for t in rest]
        return self._sized(IndexExpr.of(terms), span + 1, states)

    def _sized(self, index: IndexExpr, extent: int, states: Mapping[str, State]) -> int:
        if len(index.terms) == 1 and index.terms[0].coefficient == 1:
            return self._direct(index, extent, states)
        tiles = {a: s for a in index.iterators if isinstance(s := states.get(a), Tile)}
        choices = [self._treatments(index.coefficient(a) * t.stride, t) for a, t in tiles.items()]
        return min(
            self._treated(index, extent, states, dict(zip(tiles, plan, strict=True)))
            for plan in itertools.product(*choices)
        )

    def _direct(self, index: IndexExpr, extent: int, states: Mapping[str, State]) -> int:
        """A dimension that follows one axis, padded at both ends to whole blocks."""
        (axis,) = index.iterators
        tile = states.get(axis)
        block = tile.block if isinstance(tile, Tile) else 1
        before = max(0, -index.constant)
        before += -(index.constant + before) % block
        size = before + max(extent, index.constant + self._reach(axis, states))
        return size + -size % block

    def _reach(self, axis: str, states: Mapping[str, State]) -> int:
        """The axis's extent, padded."""
        tile = states.get(axis)
        return tile.padded(self.axes[axis]) if isinstance(tile, Tile) else self.axes[axis]

    def _treatments(self, step: int, tile: Tile) -> list[str]:
        free = self.memory.stride_rule(tile.lane) is StrideRule.ANY
        return ["digit", "axis", *(["in_place"] if tile.alone and (free or step == 1) else [])]

    def _treated(
        self,
        index: IndexExpr,
        extent: int,
        states: Mapping[str, State],
        plan: Mapping[str, str],
    ) -> int:
        """The size where the plan's axes get a dimension for their digit, or for all of them."""
        if all(treatment == "in_place" for treatment in plan.values()):
            low = high = index.constant
            for term in index.terms:
                moved = term.coefficient * (self._reach(term.iterator, states) - 1)
                low, high = low + min(moved, 0), high + max(moved, 0)
            return extent + max(0, -low) + max(0, high + 1 - extent)
        own, shared = 1, list[tuple[int, int]]()
        for term in index.terms:
            treatment, tile = plan.get(term.iterator), states.get(term.iterator)
            if treatment == "axis" and isinstance(tile, Tile):
                own *= self._reach(term.iterator, states)
            elif treatment == "digit" and isinstance(tile, Tile):
                own *= tile.count
                shared += self._steps(term, states)[:-1]
            else:
                shared += self._steps(term, states)
        span, _ = _span(shared)
        return own * (span + 1)

    def _steps(self, term: IndexTerm, states: Mapping[str, State]) -> list[tuple[int, int]]:
        """(step, count) of each iterator that moves the term; the digit comes last."""
        step, extent = abs(term.coefficient), self.axes[term.iterator]
        tile = states.get(term.iterator)
        if not isinstance(tile, Tile):
            return [(step, extent)]
        return [
            (step * tile.block, tile.blocks(extent)),
            (step, tile.stride),
            (step * tile.stride, tile.count),
        ]


def _span(steps: Iterable[tuple[int, int]]) -> tuple[int, int]:
    """Distance from the first to the last element, in units of the step between neighbours, and
    that step."""
    moving = [(step, count) for step, count in steps if count > 1]
    unit = math.gcd(*(step for step, _ in moving)) or 1
    return sum(step * (count - 1) for step, count in moving) // unit, unit
