"""Dot products along rows, whose 16 lanes are parts of one sum.

For products of few columns, which leave most lanes of a matrix instruction idle: both factors are
read as they lie, once, and the lanes of a sum are added up when it is whole.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache

from cpembed.errors import LoweringError
from cpembed.hw.instruction import HardwareSpec
from cpembed.ir.computation import AxisKind
from cpembed.ir.index import IndexExpr, IndexTerm
from cpembed.kernel.blocking import order_reductions, split_lanes
from cpembed.kernel.epilogue import Epilogue
from cpembed.kernel.nest import Borders, KernelOperand, Nest
from cpembed.kernel.plan import KernelPlan
from cpembed.kernel.program_nest import kernel_nest, lane_name
from cpembed.targets.cpu.register_blocks import RegisterModel, Scheduled
from cpembed.targets.x86.dot_products import LANES, DotProduct, dot_plan, register_model
from cpembed.transform.program import DerivedProgram, Loop

_REGISTERS = 28
"""Of the 32, for sums and factors: adding up takes a few more."""
_ADDING_UP = 4
"""Products that take as long as adding up the lanes of a sum: four halvings, each a move between
lanes and an addition, which the sums of a block share (measured on Zen 5: 256 x 256 by four columns
1.6 us, of which 0.55 are products)."""

PARTS = "parts"
"""The lanes of an accumulator, as a loop."""


def is_along_rows(spec: HardwareSpec) -> bool:
    """Whether an instruction adds all its products to one sum."""
    return not spec.instruction.computation.output.shape


def plan(dot: DotProduct, program: DerivedProgram, scheduled: Scheduled) -> KernelPlan:
    """A kernel on a dot product whose lanes are added up."""
    del program
    return dot_plan(dot, scheduled, PARTS, along_rows=True)


@cache
def registers(dot: DotProduct) -> RegisterModel:
    """What a block of its accumulators costs."""
    return register_model(dot, _REGISTERS, adding_up=_ADDING_UP, streams=True)


def lane_nest(dot: DotProduct, program: DerivedProgram, epilogue: Epilogue | None = None) -> Nest:
    """The nest with the lanes of the sums as a loop of their own, which are neighbours in both
    factors; raises :class:`LoweringError` where the layout does not suit the instruction."""
    nest = split_lanes(kernel_nest(program, epilogue))
    names = [lane_name(lane.name) for lane in program.lanes]
    lanes = [loop for loop in nest.inner if loop.name in names]
    if len(names) != 1 or [loop.extent for loop in lanes] != [LANES * dot.depth]:
        wanted = LANES * dot.depth
        raise LoweringError(f"{dot.name} along rows needs {wanted} neighbours that are one digit")
    lane = lanes[0]
    for operand in nest.operands[:2]:
        if operand.stride(lane.name) != 1:
            raise LoweringError(
                f"{dot.name} along rows needs operand {operand.parameter} at stride 1, "
                f"not {operand.stride(lane.name)}"
            )
    dot.check(nest)
    digits = Loop(PARTS, LANES, AxisKind.SPATIAL), replace(lane, extent=dot.depth)
    split = {lane.name: IndexExpr.of([IndexTerm(PARTS, dot.depth), IndexTerm(lane.name)])}

    def in_digits(operand: KernelOperand) -> KernelOperand:
        return replace(operand, access=operand.access.substitute(split))

    inner = tuple(loop for loop in nest.inner if loop is not lane)
    nest = nest.changed(in_digits, inner=(*inner, *digits))
    return replace(order_reductions(nest), borders=Borders.POINTS)
