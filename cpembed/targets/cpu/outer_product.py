"""Dot products whose lanes are columns, with their sums in registers: the first factor's neighbours
feed every lane."""

from __future__ import annotations

from dataclasses import replace
from functools import cache, partial

from cpembed.codegen.epilogue import Epilogue
from cpembed.codegen.nest import Nest, Peeling
from cpembed.codegen.passes import order_reductions, split_axes
from cpembed.codegen.plan import KernelPlan
from cpembed.codegen.program_nest import kernel_nest
from cpembed.errors import LoweringError
from cpembed.targets.cpu.build import BackEnd
from cpembed.targets.cpu.dot_products import DotProduct, dot_plan, register_model
from cpembed.targets.cpu.figures import figures
from cpembed.targets.cpu.register_blocks import RegisterModel
from cpembed.targets.cpu.roles import LaneRoles, lane_extent, lane_roles
from cpembed.transform.program import DerivedProgram


def back_end(dot: DotProduct) -> BackEnd:
    """The code generator of a dot product whose lanes are columns."""
    nest = partial(lane_nest, dot)
    return BackEnd(nest, lambda _: registers(dot), partial(plan, dot), partial(nest, unpadded=True))


def plan(dot: DotProduct, program: DerivedProgram, nest: Nest) -> KernelPlan:
    """A kernel on a dot product."""
    roles = lane_roles(program)
    apart = 0 if roles.row is None else nest.operands[0].stride(roles.row)
    return dot_plan(dot, nest, roles.column, apart=apart)


@cache
def registers(dot: DotProduct) -> RegisterModel:
    """What a block of its accumulators costs."""
    return register_model(
        dot, dot.registers.count - figures().spare_registers, waits=figures().waits, streams=False
    )


def lane_nest(
    dot: DotProduct,
    program: DerivedProgram,
    epilogue: Epilogue | None = None,
    *,
    unpadded: bool = False,
) -> Nest:
    """Lanes in digits; raises :class:`LoweringError` where the layout does not suit the
    instruction; ``unpadded`` as in :func:`~cpembed.codegen.program_nest.kernel_nest`."""
    nest = split_axes(kernel_nest(program, epilogue, unpadded=unpadded))
    dot.check(nest)
    _check_lanes(dot, nest, lane_roles(program))
    # Tiles of several rows would have many bodies at the halo, and each takes long to compile.
    peeling = Peeling.POINTS if dot.rows == 1 else Peeling.STEPS
    return replace(order_reductions(nest), peeling=peeling)


def _check_lanes(dot: DotProduct, nest: Nest, roles: LaneRoles) -> None:
    first, second, output = nest.operands
    extents = [lane_extent(nest, lane) for lane in (roles.row, roles.column, roles.depth)]
    if (roles.row is None) != (dot.rows == 1) or extents != [dot.rows, dot.lanes, dot.depth]:
        rows = f"{dot.rows} rows, " if dot.rows > 1 else ""
        raise LoweringError(
            f"{dot.name} needs {rows}{dot.lanes} lanes of {dot.depth} neighbours, each lane one "
            "digit"
        )
    wanted = (
        (first, roles.depth, 1),
        (second, roles.depth, 1),
        (second, roles.column, dot.depth),
        (output, roles.column, 1),
    )
    for operand, lane, stride in wanted:
        if lane is not None and operand.stride(lane) != stride:
            raise LoweringError(
                f"{dot.name} needs {lane} of operand {operand.parameter} at stride {stride}, "
                f"not {operand.stride(lane)}"
            )
    if roles.row is not None and first.stride(roles.row) < 0:
        raise LoweringError(f"{dot.name} needs the rows of operand {first.parameter} in order")
