"""Vectors without a dot product: lanes that multiply and add, their sums in registers.

For what no matrix instruction can be embedded in: a depthwise convolution has a filter of its own
for each channel, so nothing is shared between lanes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cache, partial

from cpembed.codegen.emit import kernel_plan
from cpembed.codegen.epilogue import Epilogue
from cpembed.codegen.instruction import InstructionText, StoreText
from cpembed.codegen.nest import Nest, Peeling, TileLoop
from cpembed.codegen.passes import can_tile, split_axes
from cpembed.codegen.plan import KernelPlan
from cpembed.codegen.program_nest import kernel_nest, lane_name
from cpembed.errors import LoweringError
from cpembed.targets.cpu.calibration import Calibration
from cpembed.targets.cpu.dot_products import Registers
from cpembed.targets.cpu.estimate import BlockStep
from cpembed.targets.cpu.lowering import BackEnd
from cpembed.targets.cpu.register_blocks import RegisterModel, lane_extent, row_loops
from cpembed.transform.program import DerivedProgram

_SUMS_SHARE = 2
"""One register in so many is for sums: the others hold what is widened, which the taps of a filter
share."""
_UNROLLED = 160
"""Products at most that are written one after the other. What taps have in common is then widened
once: the compiler sees that it is the same. With more of them it keeps more than registers hold."""


@dataclass(frozen=True)
class LaneProduct:
    """A multiplication and an addition lane by lane, of what is widened to the lanes' type.

    It takes ``times`` as long, with the widening that it shares, as ``timed``, a product of a
    calibration. ``attributes`` are what the compiler is told, ``store`` writes sums in a way of
    the instruction set's own.
    """

    backend: str
    registers: Registers
    timed: str
    times: float
    attributes: tuple[str, ...] = ()
    store: StoreText | None = None


def lane_back_end(product: LaneProduct) -> BackEnd:
    """The code generator of an instruction that multiplies lane by lane."""
    return BackEnd(
        lane_nest,
        lambda _: lane_registers(product),
        partial(lane_plan, product),
        partial(lane_nest, unpadded=True),
    )


def lane_plan(product: LaneProduct, program: DerivedProgram, nest: Nest) -> KernelPlan:
    """A kernel on vectors."""
    axis = _lane(program)
    text = InstructionText(
        product.backend,
        unrolled=_unrolled(nest, axis),
        vectorized={axis},
        vectorized_update=True,
        in_registers=True,
        store=product.store,
        attributes=product.attributes,
    )
    return kernel_plan(nest, text)


def _unrolled(nest: Nest, lane: str) -> set[str]:
    """The steps of the block, and of the reductions as many inner ones as are short."""
    steps = [loop for loop in nest.inner if loop.name != lane]
    found = {loop.name for loop in steps}
    products = math.prod(loop.extent for loop in steps)
    for loop in reversed(nest.reductions):
        products *= loop.extent
        if products > _UNROLLED:
            break
        found.add(loop.name)
    return found


@cache
def lane_registers(product: LaneProduct) -> RegisterModel:
    """What a block of its accumulators costs."""
    sums, timed = product.registers.count // _SUMS_SHARE, product.timed

    def fits(rows: int, columns: int) -> bool:
        return rows * columns <= sums

    def step(nest: Nest, machine: Calibration, rows: int, columns: int) -> BlockStep:
        """A product has a row of its own to widen, and shares its column's weights."""
        products = product.times * rows * columns + columns
        return BlockStep(
            products_ns=max(products * machine.product_ns[timed], machine.latency_ns[timed]),
            loads_ns=(rows + 1) * columns * machine.vector_line_ns[0],
            line_ns=machine.vector_line_ns,
            stored_lines=rows * columns * product.registers.bytes / nest.line_bytes,
        )

    return RegisterModel(fits, step, sums, timed, rows=_along, columns=_all_move)


def _along(nest: Nest) -> tuple[TileLoop, ...]:
    """Of the loops that share the second factor, the one whose points are next to each other:
    neighbours share most of what the taps of a filter read, and that before registers overflow."""
    return tuple([loop for loop in row_loops(nest) if loop.steps > 1][-1:])


def _all_move(nest: Nest) -> tuple[TileLoop, ...]:
    """Loops over further lanes: they move every operand, and share nothing but cache lines."""
    found = (
        loop
        for loop in nest.tasks
        if all(loop.name in operand.access.iterators for operand in nest.operands)
        and can_tile(nest, loop)
    )
    return tuple(sorted(found, key=lambda loop: -abs(nest.operands[1].stride(loop.name))))


def _lane(program: DerivedProgram) -> str:
    """The one axis of the instruction, which all operands walk."""
    computation = program.instruction.computation
    names = [axis.name for axis in computation.axes]
    if len(names) != 1 or any(
        computation.access(operand.name).index[0].single_iterator != names[0]
        for operand in computation.operands
        if operand.shape
    ):
        raise LoweringError(f"{program.instruction.name} is not a product lane by lane")
    return lane_name(names[0])


def lane_nest(
    program: DerivedProgram, epilogue: Epilogue | None = None, *, unpadded: bool = False
) -> Nest:
    """Lanes in digits; raises :class:`LoweringError` where the layout does not suit vectors;
    ``unpadded`` as in :func:`~cpembed.codegen.program_nest.kernel_nest`."""
    lane = _lane(program)
    nest = split_axes(kernel_nest(program, epilogue, unpadded=unpadded))
    extent = program.extents[program.instruction.computation.axes[0].name]
    if lane_extent(nest, lane) != extent:
        raise LoweringError(f"vectors need {extent} lanes that are one digit")
    for operand in nest.operands:
        if operand.stride(lane) != 1:
            raise LoweringError(
                f"vectors need the lanes of operand {operand.parameter} at stride 1, "
                f"not {operand.stride(lane)}"
            )
    return replace(nest, peeling=Peeling.EVERY)
