"""Dot products along rows, whose lanes are parts of one sum.

For products of few columns, which leave most lanes of a matrix instruction idle: both factors are
read as they lie, once, and the lanes of a sum are added up when it is whole.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache, partial

from cpembed.codegen.epilogue import Epilogue
from cpembed.codegen.nest import KernelOperand, Nest, Peeling
from cpembed.codegen.passes import order_reductions, split_axes
from cpembed.codegen.plan import KernelPlan
from cpembed.codegen.program_nest import kernel_nest, lane_name
from cpembed.errors import LoweringError
from cpembed.hw.instruction import HardwareSpec
from cpembed.ir.computation import AxisKind
from cpembed.ir.index import IndexExpr, IndexTerm
from cpembed.targets.cpu.build import BackEnd
from cpembed.targets.cpu.dot_products import DotProduct, dot_plan, register_model
from cpembed.targets.cpu.figures import figures
from cpembed.targets.cpu.register_blocks import RegisterModel
from cpembed.transform.program import DerivedProgram, Loop

PARTS = "parts"
"""The lanes of an accumulator, as a loop."""


def is_along_rows(spec: HardwareSpec) -> bool:
    """Whether an instruction adds all its products to one sum."""
    return not spec.instruction.computation.output.shape


def back_end(dot: DotProduct) -> BackEnd:
    """The code generator of a dot product along rows."""
    return BackEnd(partial(lane_nest, dot), lambda _: registers(dot), partial(plan, dot))


def plan(dot: DotProduct, program: DerivedProgram, nest: Nest) -> KernelPlan:
    """A kernel on a dot product whose lanes are added up."""
    del program
    return dot_plan(dot, nest, PARTS, along_rows=True)


@cache
def registers(dot: DotProduct) -> RegisterModel:
    """What a block of its accumulators costs."""
    constants = figures()
    adding_up = constants.halving_products * (dot.lanes.bit_length() - 1)
    registers = dot.registers.count - constants.lane_sum_registers
    return register_model(dot, registers, adding_up=adding_up, streams=True)


def lane_nest(dot: DotProduct, program: DerivedProgram, epilogue: Epilogue | None = None) -> Nest:
    """The nest with the lanes of the sums as a loop of their own, which are neighbours in both
    factors; raises :class:`LoweringError` where the layout does not suit the instruction."""
    nest = split_axes(kernel_nest(program, epilogue))
    names = [lane_name(lane.name) for lane in program.instruction_axes]
    lanes = [loop for loop in nest.inner if loop.name in names]
    wanted = dot.lanes * dot.depth
    if len(names) != 1 or [loop.extent for loop in lanes] != [wanted]:
        raise LoweringError(f"{dot.name} along rows needs {wanted} neighbours that are one digit")
    lane = lanes[0]
    for operand in nest.operands[:2]:
        if operand.stride(lane.name) != 1:
            raise LoweringError(
                f"{dot.name} along rows needs operand {operand.parameter} at stride 1, "
                f"not {operand.stride(lane.name)}"
            )
    dot.check(nest)
    digits = Loop(PARTS, dot.lanes, AxisKind.SPATIAL), replace(lane, extent=dot.depth)
    split = {lane.name: IndexExpr.of([IndexTerm(PARTS, dot.depth), IndexTerm(lane.name)])}

    def in_digits(operand: KernelOperand) -> KernelOperand:
        return replace(operand, access=operand.access.substitute(split))

    inner = tuple(loop for loop in nest.inner if loop is not lane)
    nest = nest.changed(in_digits, inner=(*inner, *digits))
    return replace(order_reductions(nest), peeling=Peeling.POINTS)
