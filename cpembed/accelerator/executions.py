"""Executions of a statement: the loops around them, their sizes and their operands."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from cpembed.accelerator.addressing import Binding, Place, bind
from cpembed.accelerator.boxes import TileLoop, loop_extents, position, sizes, tile_size
from cpembed.accelerator.problem import Step
from cpembed.accelerator.program import Size
from cpembed.accelerator.template import Template
from cpembed.accelerator.tiling import Tiling
from cpembed.ir.index import IndexExpr, IndexTerm


def tile_loops(template: Template, tiling: Tiling) -> tuple[TileLoop, ...]:
    """Return the loops of a tiling over the tiles of the main statement."""
    spans = dict(template.extents)
    loops: list[TileLoop] = []
    for number, (axis, step) in enumerate(tiling.loops):
        loops.append(TileLoop(f"{axis}_{number}", axis, step, spans[axis]))
        spans[axis] = step
    return tuple(loops)


def granule_loops(
    template: Template, step: Step, outer: Sequence[TileLoop]
) -> tuple[TileLoop, ...]:
    """Return the loops over the executions of a statement inside of other loops.

    Parameters
    ----------
    template : Template
    step : Step
        The statement.
    outer : sequence of TileLoop
        The other loops.
    """
    loops: list[TileLoop] = []
    for axis in step.axes.values():
        span = tile_size(outer, axis, template.extent(step, axis))
        granule = min(step.granules[axis], span)
        if axis in step.padded:
            granule = step.granules[axis]
        if span > granule:
            loops.append(TileLoop(f"{axis}_g{step.number}", axis, granule, span))
    buffered = {
        a
        for b in template.buffers
        if b.role == "granule" and any(n == step.number for n, _ in b.uses)
        for a in b.axes
    }
    # What a granule's buffer holds changes as seldom as possible.
    return tuple(
        sorted(loops, key=lambda loop: (loop.axis not in buffered, loop.axis in step.reductions))
    )


@dataclass(frozen=True)
class Executions:
    """Executions of a statement's instruction in the iterations of the loops around it."""

    template: Template
    step: Step
    loops: Sequence[TileLoop]

    @cached_property
    def points(self) -> dict[str, IndexExpr]:
        """Value of each axis of the statement, over the loops and the instruction's axes."""
        step = self.step
        terms: dict[str, list[IndexTerm]] = {}
        for axis in step.match.axes:
            digits = step.digits(axis)
            inner = math.prod(d.count for d in digits)
            for place, d in enumerate(digits):
                inner //= d.count
                modulus = d.count if place else None
                terms.setdefault(d.axis, []).append(IndexTerm(axis, d.stride, inner, modulus))
        return {
            a.name: position(self.loops, step.axes[a.name]) + IndexExpr.sum(terms.get(a.name, []))
            for a in step.statement.computation.axes
        }

    def index(self, operand: str) -> tuple[IndexExpr, ...]:
        """Return the index of the element of its tensor that an operand has at each point."""
        return tuple(e.substitute(self.points) for e in self.step.access(operand).index)

    def bind(self, operand: str, place: Place) -> Binding | None:
        """Bind an operand to a place of its tensor; None if it cannot reach it."""
        step = self.step
        shrinking = frozenset(
            axis.name
            for axis in step.instruction.size_arguments
            for d in step.digits(axis.name)
            if len(self._sizes_along(step.axes[d.axis])) > 1
        )
        return bind(
            step.instruction,
            operand,
            self.index(operand),
            place,
            step.tensor(operand),
            self._largest_sizes(),
            loop_extents(self.loops),
            shrinking,
        )

    def sizes(self) -> dict[str, Size]:
        """Return the size of each axis that is an argument, in an iteration of the loops."""
        step = self.step
        arguments: dict[str, Size] = {}
        for axis in step.instruction.size_arguments:
            digits = step.digits(axis.name)
            if len(digits) != 1 or not axis.takes_any_size:
                count = math.prod(d.count for d in digits) if digits else axis.minimum
                arguments[axis.name] = (IndexExpr((), count),)
                continue
            (single,) = digits
            bounds = self._sizes_along(step.axes[single.axis])
            if bounds[0].constant > single.count:
                bounds = (IndexExpr((), single.count), *bounds[1:])
            arguments[axis.name] = bounds
        return arguments

    def _sizes_along(self, axis: str) -> Size:
        """Return the number of values of a shared axis in an iteration of the loops."""
        return sizes(self.loops, axis, self.template.extent(self.step, axis))

    def _largest_sizes(self) -> dict[str, int]:
        """Return the largest size of each axis of the instruction."""
        largest: dict[str, int] = {}
        for axis in self.step.instruction.axes:
            digits = self.step.digits(axis.name)
            count = math.prod(d.count for d in digits) if digits else axis.minimum
            if axis.is_fixed:
                count = axis.maximum
            elif len(digits) == 1 and axis.takes_any_size:
                shared = self.step.axes[digits[0].axis]
                extent = self.template.extent(self.step, shared)
                count = min(count, tile_size(self.loops, shared, extent))
            largest[axis.name] = count
        return largest
