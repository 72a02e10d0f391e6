"""Executions of a statement: the loops around them, their sizes and their operands."""

from __future__ import annotations

import math
from collections.abc import Sequence

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


def points(step: Step, loops: Sequence[TileLoop]) -> dict[str, IndexExpr]:
    """Return the value of each axis of a statement, over loops and the instruction's axes."""
    traversed: dict[str, list[IndexTerm]] = {}
    for axis in step.match.axes:
        digits = step.digits(axis)
        inner = math.prod(d.count for d in digits)
        for place, d in enumerate(digits):
            inner //= d.count
            modulus = d.count if place else None
            traversed.setdefault(d.axis, []).append(IndexTerm(axis, d.stride, inner, modulus))
    return {
        a.name: position(loops, step.axes[a.name]) + IndexExpr.sum(traversed.get(a.name, []))
        for a in step.statement.computation.axes
    }


def axis_sizes(template: Template, step: Step, loops: Sequence[TileLoop]) -> dict[str, int]:
    """Return the largest size of each axis of a statement's instruction.

    Parameters
    ----------
    template : Template
    step : Step
        The statement.
    loops : sequence of TileLoop
        The loops around the instruction.
    """
    largest: dict[str, int] = {}
    for axis in step.instruction.axes:
        digits = step.digits(axis.name)
        count = math.prod(d.count for d in digits) if digits else axis.minimum
        if axis.is_fixed:
            count = axis.maximum
        elif len(digits) == 1 and axis.takes_any_size:
            shared = step.axes[digits[0].axis]
            count = min(count, tile_size(loops, shared, template.extent(step, shared)))
        largest[axis.name] = count
    return largest


def bind_operand(
    template: Template, step: Step, operand: str, place: Place, loops: Sequence[TileLoop]
) -> Binding | None:
    """Bind an operand of a statement's instruction; None if it cannot reach the place.

    Parameters
    ----------
    template : Template
    step : Step
        The statement.
    operand : str
        Operand of its instruction.
    place : InMain or InRows
        Where its tensor lies.
    loops : sequence of TileLoop
        The loops around the instruction.
    """
    values = points(step, loops)
    index = [e.substitute(values) for e in step.access(operand).index]
    largest = axis_sizes(template, step, loops)
    shrinking = frozenset(
        axis.name
        for axis in step.instruction.size_arguments
        for d in step.digits(axis.name)
        if len(sizes(loops, step.axes[d.axis], template.extent(step, step.axes[d.axis]))) > 1
    )
    return bind(
        step.instruction,
        operand,
        index,
        place,
        step.tensor(operand),
        largest,
        loop_extents(loops),
        shrinking,
    )


def execution_sizes(template: Template, step: Step, loops: Sequence[TileLoop]) -> dict[str, Size]:
    """Return the size of each axis that is an argument, in an iteration of loops.

    Parameters
    ----------
    template : Template
    step : Step
        The statement.
    loops : sequence of TileLoop
        The loops around the instruction.
    """
    arguments: dict[str, Size] = {}
    for axis in step.instruction.size_arguments:
        digits = step.digits(axis.name)
        if len(digits) != 1 or not axis.takes_any_size:
            count = math.prod(d.count for d in digits) if digits else axis.minimum
            arguments[axis.name] = (IndexExpr((), count),)
            continue
        (single,) = digits
        shared = step.axes[single.axis]
        bounds = sizes(loops, shared, template.extent(step, shared))
        if bounds[0].constant > single.count:
            bounds = (IndexExpr((), single.count), *bounds[1:])
        arguments[axis.name] = bounds
    return arguments
