"""Vector instructions without a dot product: lanes that multiply and add.

They serve operators that no matrix instruction can be embedded in: a depthwise convolution has a
filter for each channel, so nothing is shared between lanes. The sums stay in registers.
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
from cpembed.targets.cpu.calibration import Calibration, product_ns
from cpembed.targets.cpu.dot_products import Registers
from cpembed.targets.cpu.estimate import BlockStep
from cpembed.targets.cpu.lowering import BackEnd
from cpembed.targets.cpu.register_blocks import RegisterModel, lane_extent, row_loops
from cpembed.transform.program import DerivedProgram

_SUMS_SHARE = 2
"""One register in so many holds sums; the others hold widened values, which the taps of a filter
share."""
_UNROLLED = 160
"""Maximum number of unrolled products. The compiler then widens what taps have in common only once;
with more products it keeps more values than there are registers."""


@dataclass(frozen=True)
class LaneProduct:
    """Multiplication and addition lane by lane, on values that are widened to the lanes' type."""

    backend: str
    """Name of the back end in results."""
    registers: Registers
    timed: str
    """Product of a calibration that its time is derived from."""
    relative_time: float
    """Time relative to ``timed``, the shared widening included."""
    attributes: tuple[str, ...] = ()
    """Target attributes for the compiler."""
    store: StoreText | None = None
    """Text of stores that are specific to the instruction set."""


def lane_back_end(product: LaneProduct) -> BackEnd:
    """Return the code generator of an instruction that multiplies lane by lane."""
    return BackEnd(
        _lane_nest,
        lambda _: _lane_registers(product),
        partial(_lane_plan, product),
        lambda machine: product.relative_time * product_ns(machine, product.timed),
        partial(_lane_nest, unpadded=True),
    )


def _lane_plan(product: LaneProduct, program: DerivedProgram, nest: Nest) -> KernelPlan:
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
    """Return the block's loops, and as many inner reduction loops as are short."""
    steps = [loop for loop in nest.inner if loop.name != lane]
    unrolled = {loop.name for loop in steps}
    products = math.prod(loop.extent for loop in steps)
    for loop in reversed(nest.reductions):
        # The innermost loops are a filter's taps, which share values.
        products *= loop.extent
        if products > _UNROLLED:
            break
        unrolled.add(loop.name)
    return unrolled


@cache
def _lane_registers(product: LaneProduct) -> RegisterModel:
    sums, timed = product.registers.count // _SUMS_SHARE, product.timed

    def fits(rows: int, columns: int) -> bool:
        return rows * columns <= sums

    def step(nest: Nest, machine: Calibration, rows: int, columns: int) -> BlockStep:
        # Each product widens a row of its own and shares its column's weights.
        products = product.relative_time * rows * columns + columns
        return BlockStep(
            products_ns=max(products * machine.product_ns[timed], machine.latency_ns[timed]),
            # Lanes share nothing, so each column loads its rows and its weights.
            loads_ns=(rows + 1) * columns * machine.vector_line_ns[0],
            line_ns=machine.vector_line_ns,
            stored_lines=rows * columns * product.registers.bytes / nest.line_bytes,
        )

    return RegisterModel(fits, step, sums, timed, rows=_inner_row_loop, columns=_lane_loops)


def _inner_row_loop(nest: Nest) -> tuple[TileLoop, ...]:
    """Return the loop that shares the second factor whose points are closest in memory."""
    # Neighbours share most of what the taps of a filter read, before registers overflow.
    return tuple([loop for loop in row_loops(nest) if loop.steps > 1][-1:])


def _lane_loops(nest: Nest) -> tuple[TileLoop, ...]:
    """Return the loops over further lanes, whose points share nothing but cache lines."""
    loops = (
        loop
        for loop in nest.tasks
        if all(loop.name in operand.access.iterators for operand in nest.operands)
        and can_tile(nest, loop)
    )
    return tuple(sorted(loops, key=lambda loop: -abs(nest.operands[1].stride(loop.name))))


def _lane(program: DerivedProgram) -> str:
    """Name of the only axis of the instruction, which all operands walk."""
    computation = program.instruction.computation
    names = [axis.name for axis in computation.axes]
    if len(names) != 1 or any(
        computation.access(operand.name).index[0].single_iterator != names[0]
        for operand in computation.operands
        if operand.shape
    ):
        raise LoweringError(f"{program.instruction.name} is not a product lane by lane")
    return lane_name(names[0])


def _lane_nest(
    program: DerivedProgram, epilogue: Epilogue | None = None, *, unpadded: bool = False
) -> Nest:
    """Return the nest with lanes in digits, if the layout suits vectors."""
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
