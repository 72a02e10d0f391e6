"""Dot products whose lanes are columns, with their sums in registers: the first factor's neighbours
feed every lane."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

from cpembed.errors import LoweringError
from cpembed.kernel.blocking import order_reductions, split_lanes
from cpembed.kernel.epilogue import Epilogue
from cpembed.kernel.nest import Borders, Nest
from cpembed.kernel.plan import KernelPlan
from cpembed.kernel.program_nest import kernel_nest
from cpembed.targets.cpu.register_blocks import RegisterModel, Scheduled
from cpembed.targets.cpu.roles import LaneRoles, lane_extent, lane_roles
from cpembed.targets.x86.dot_products import LANES, DotProduct, dot_plan, register_model
from cpembed.transform.program import DerivedProgram

_REGISTERS = 31
"""Of the 32; the last one is the compiler's (measured on Ice Lake, which loads little more than one
vector in the time of two products: UNIT's layers take 0.93 of the time that they take with blocks
of 24 registers, 6 x 4 instead of 4 x 4; on Zen 4 the same blocks are chosen)."""

_WAITS = 0.2
"""Of a line from beyond L1, what products wait for (measured on Zen 5: of blocks that take as long
by their loads from L1, 7 x 2 is 2 to 6 % faster than 4 x 4, which loads two lines of weights more
for about as many products)."""


def plan(dot: DotProduct, program: DerivedProgram, scheduled: Scheduled) -> KernelPlan:
    """A kernel on a dot product."""
    return dot_plan(dot, scheduled, lane_roles(program).column)


@cache
def registers(dot: DotProduct) -> RegisterModel:
    """What a block of its accumulators costs."""
    return register_model(dot, _REGISTERS, waits=_WAITS, streams=False)


def lane_nest(
    dot: DotProduct,
    program: DerivedProgram,
    epilogue: Epilogue | None = None,
    *,
    unpadded: bool = False,
) -> Nest:
    """Lanes in digits; raises :class:`LoweringError` where the layout does not suit the
    instruction; ``unpadded`` as in :func:`~cpembed.kernel.program_nest.kernel_nest`."""
    nest = split_lanes(kernel_nest(program, epilogue, unpadded=unpadded))
    dot.check(nest)
    _check_lanes(dot, nest, lane_roles(program))
    return replace(order_reductions(nest), borders=Borders.POINTS)


def _check_lanes(dot: DotProduct, nest: Nest, roles: LaneRoles) -> None:
    first, second, output = nest.operands
    if roles.row is not None or (
        lane_extent(nest, roles.column),
        lane_extent(nest, roles.depth),
    ) != (LANES, dot.depth):
        raise LoweringError(
            f"{dot.name} needs {LANES} lanes of {dot.depth} neighbours, each lane one digit"
        )
    wanted = (
        (first, roles.depth, 1),
        (second, roles.depth, 1),
        (second, roles.column, dot.depth),
        (output, roles.column, 1),
    )
    for operand, lane, stride in wanted:
        if operand.stride(lane) != stride:
            raise LoweringError(
                f"{dot.name} needs {lane} of operand {operand.parameter} at stride {stride}, "
                f"not {operand.stride(lane)}"
            )
