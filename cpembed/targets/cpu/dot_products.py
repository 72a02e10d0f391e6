"""Vector instructions that multiply neighbours and add them to the lane in which they lie.

:class:`DotProduct` describes one: its registers, types and the text of a call. Its lanes are
columns, with the sums in registers and the first factor broadcast to all lanes (``column_*``), or
partial sums along a row, added up when the sum is complete (``sum_*``). The latter is for products
of few columns, which would leave most lanes of a matrix instruction idle: both factors are read in
place, once.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, partial

from cpembed.codegen.emit import kernel_plan
from cpembed.codegen.epilogue import Epilogue
from cpembed.codegen.instruction import UPDATE, InstructionText, Intrinsic, LaneSum, StoreText
from cpembed.codegen.nest import KernelOperand, Nest, Peeling, Prefetch
from cpembed.codegen.passes import order_reductions, split_axes
from cpembed.codegen.plan import HEADER, KernelPlan, read, storage_dtype
from cpembed.codegen.program_nest import kernel_nest, lane_name
from cpembed.errors import LoweringError
from cpembed.hw.instruction import HardwareSpec
from cpembed.ir.computation import AxisKind
from cpembed.ir.dtypes import is_signed, size_bytes
from cpembed.ir.index import IndexExpr, IndexTerm
from cpembed.targets.cpu.calibration import Calibration, model_constants
from cpembed.targets.cpu.estimate import BlockStep
from cpembed.targets.cpu.lowering import BackEnd
from cpembed.targets.cpu.register_blocks import (
    LaneRoles,
    RegisterModel,
    column_loops,
    lane_extent,
    lane_roles,
    row_loops,
)
from cpembed.transform.program import DerivedProgram, Loop


@dataclass(frozen=True)
class Registers:
    """Vector registers of an instruction set: their number, and the bytes of one."""

    count: int
    bytes: int


@dataclass(frozen=True)
class DotProduct:
    """Instruction ``C[row, lane] += sum(A[row, z] * B[lane, z])`` over ``depth`` neighbours z.

    C is one register. By default it has a single row, whose neighbours are the same for every lane.
    """

    name: str
    feature: str
    """CPU feature that provides it."""
    backend: str
    """Name of the back end in results."""
    registers: Registers
    depth: int
    """Number of neighbours."""
    factors: tuple[str, str]
    """Element types of the factors, in either order."""
    sums: str
    """Element type of the lanes."""
    timed: str
    """Product of a calibration that its time is derived from."""
    call: Callable[[str, str, str, bool], str]
    """``call(sums, first, second, signed_first)`` is the TVMScript of one instruction, on vectors
    of the types in memory, which are ``depth`` neighbours for each lane."""
    total: Callable[[str], str] | None = None
    """TVMScript of the sum of a vector's lanes."""
    spread: Callable[[str], str] | None = None
    """TVMScript that broadcasts a single value from memory, as ``call`` takes it; by default a
    vector of it."""
    rows: int = 1
    relative_time: float = 1.0
    """Time relative to ``timed``."""
    type_error: Callable[[str, str], str | None] | None = None
    """Returns the reason why two types cannot be multiplied; None if they can. Replaces
    ``factors``."""
    functions: str = ""
    """LLVM functions that the calls need."""
    attributes: tuple[str, ...] = ()
    """Target attributes for the compiler."""
    store: StoreText | None = None
    """Text of stores that are specific to the instruction set."""

    @property
    def sums_count(self) -> int:
        """Number of sums in a register."""
        return self.registers.bytes // size_bytes(self.sums)

    @property
    def lanes(self) -> int:
        """Number of columns of a register's sums."""
        return self.sums_count // self.rows

    def check_types(self, nest: Nest) -> None:
        """Raise :class:`LoweringError` if a nest multiplies other types."""
        first, second = (operand.dtype for operand in nest.operands[:2])
        reason = self.type_error(first, second) if self.type_error else None
        if reason is not None:
            raise LoweringError(reason)
        accepted = self.type_error is not None or sorted((first, second)) == sorted(self.factors)
        if not accepted or nest.sums != self.sums:
            raise LoweringError(
                f"{self.name} multiplies {' by '.join(self.factors)} into {self.sums}, not "
                f"{first} by {second} into {nest.sums}"
            )


def register_model(
    dot: DotProduct,
    registers: int,
    *,
    exposed_latency: float = 0.0,
    adding_up: float = 0.0,
    streams: bool,
) -> RegisterModel:
    """Return the cost of accumulator blocks in so many registers.

    One side of a block stays in registers besides the accumulators, while the other passes through
    one more. A load of a register takes as long as that of a line, whatever its width.

    Parameters
    ----------
    dot : DotProduct
        Instruction.
    registers : int
        Number of registers for the block.
    exposed_latency : float
        See :class:`BlockStep`.
    adding_up : float
        Number of products that take as long as what each accumulator costs besides its steps.
    streams : bool
        True if each row is a separate place in memory.
    """

    def fits(rows: int, columns: int) -> bool:
        return rows * columns + min(rows, columns) + 1 <= registers

    def step(nest: Nest, machine: Calibration, rows: int, columns: int) -> BlockStep:
        """Return the cost of a step: a row costs a load or a broadcast, a column a load."""
        product, latency = (
            dot.relative_time * machine.product_ns[dot.timed],
            machine.latency_ns[dot.timed],
        )
        split = 0.0 if streams else _split_share(dot, nest)
        return BlockStep(
            # A step adds to the sums of the step before, and waits for them.
            products_ns=max(rows * columns * product, latency),
            loads_ns=(rows + columns * (1 + split)) * machine.vector_line_ns[0],
            line_ns=machine.vector_line_ns,
            stored_lines=rows * columns * dot.registers.bytes / nest.line_bytes,
            streams=rows if streams else 1,
            aliased=streams and _are_aliased(nest, machine, rows),
            second_line_factor=1 + (split / columns if _are_adjacent(dot, nest) else split),
            task_ns=rows * columns * adding_up * product,
            exposed_latency=exposed_latency,
        )

    # Prefetching follows single streams: with a stream per row it would cost more than the few
    # results of such a tile.
    prefetched = frozenset[Prefetch]() if streams else frozenset(Prefetch)
    return RegisterModel(
        fits, step, model_constants().largest_side, dot.timed, prefetched=prefetched
    )


def _split_share(dot: DotProduct, nest: Nest) -> float:
    """Fraction of the second factor's loads that span two lines."""
    if dot.registers.bytes < nest.line_bytes:
        return 0.0
    second = nest.operands[1]
    distances = [second.stride(task.name) * task.unit for task in nest.tasks if task.steps > 1]
    distances += [second.stride(loop.name) for loop in nest.reductions if loop.extent > 1]
    # A load may begin at any multiple of what its loops move it by, up to a line.
    step = math.gcd(nest.line_bytes, *(move * size_bytes(second.dtype) for move in distances))
    return 1 - step / nest.line_bytes


def _are_adjacent(dot: DotProduct, nest: Nest) -> bool:
    """True if the columns of a tile follow each other in memory."""
    second = nest.operands[1]
    distances = [abs(second.stride(loop.name)) for loop in column_loops(nest)]
    return distances[-1:] == [dot.lanes * dot.depth]


def _are_aliased(nest: Nest, machine: Calibration, rows: int) -> bool:
    """True if so many rows of the first factor exceed the ways of the first-level cache."""
    # A way is as large as a page, so rows that are whole pages apart map to the same sets.
    first, page = nest.operands[0], model_constants().page_bytes
    distances = [first.stride(loop.name) * size_bytes(first.dtype) for loop in row_loops(nest)]
    way_count = machine.cache_bytes[0] // page
    return 0 < way_count < rows and bool(distances) and distances[-1] % page == 0


def _dot_plan(
    dot: DotProduct, nest: Nest, axis: str, *, row_distance: int = 0, along_rows: bool = False
) -> KernelPlan:
    """Return the plan of a kernel with accumulators along an axis.

    ``row_distance`` is that of the rows of the first factor which belong to one instruction, in
    elements. With ``along_rows``, lanes are partial sums of the stored one; else each is a sum.
    """
    first, second = (operand.dtype for operand in nest.operands[:2])
    intrinsic = Intrinsic(*dot_sources(dot, first, second, row_distance, broadcast=not along_rows))
    loops = 1 + (dot.depth > 1) + (dot.rows > 1)
    text = InstructionText(
        f"{dot.backend}_rows" if along_rows else dot.backend,
        unrolled={loop.name for loop in nest.steps},
        vectorized={axis},
        intrinsics={UPDATE: (intrinsic, -loops)},
        in_registers=True,
        store=None if along_rows else dot.store,
        lane_sum=LaneSum(axis, dot.total) if along_rows and dot.total else None,
        attributes=dot.attributes,
        functions=dot.functions,
    )
    return kernel_plan(nest, text)


def dot_sources(
    dot: DotProduct, first: str, second: str, row_distance: int = 0, *, broadcast: bool = True
) -> tuple[str, str]:
    """Return the description, as scalar loops, and the implementation of one instruction.

    Parameters
    ----------
    dot : DotProduct
        Instruction.
    first, second : str
        Element types of the factors.
    row_distance : int
        Elements between the rows of the first factor.
    broadcast : bool
        True if the neighbours of the first factor's rows feed all lanes; otherwise each lane has
        its own.

    Returns
    -------
    tuple of str
        Both as TVMScript.
    """
    sums, second_count = dot.sums_count, dot.lanes * dot.depth
    first_count = (dot.rows - 1) * row_distance + dot.depth if broadcast else second_count
    storage = storage_dtype(first), storage_dtype(second)
    head = f"""{HEADER}
def dot(
    A: T.Buffer(({first_count},), "{storage[0]}", offset_factor=1),
    B: T.Buffer(({second_count},), "{storage[1]}", offset_factor=1),
    C: T.Buffer(({sums},), "{dot.sums}", offset_factor=1, scope="local"),
):
    with T.sblock("root"):
        T.reads(C[0:{sums}], A[0:{first_count}], B[0:{second_count}])
        T.writes(C[0:{sums}])
"""
    neighbours = dot.depth if broadcast else second_count
    rows = [
        f'A.vload([{row * row_distance}], dtype="{storage[0]}x{neighbours}")'
        for row in range(dot.rows)
    ]
    factor = (
        rows[0] if dot.rows == 1 else f"T.Shuffle([{', '.join(rows)}], {list(range(second_count))})"
    )
    if dot.spread is not None:
        factor = dot.spread("A[0]")
    # The neighbours of all lanes are the same: broadcast as one integer, whose bytes are then read
    # as elements again.
    elif neighbours * dot.rows < second_count:
        word = f'T.reinterpret({factor}, dtype="int{8 * neighbours * size_bytes(first)}")'
        factor = (
            f'T.reinterpret(T.broadcast({word}, {dot.lanes}), dtype="{storage[0]}x{second_count}")'
        )
    columns = f'B.vload([0], dtype="{storage[1]}x{second_count}")'
    before = f'C.vload([0], dtype="{dot.sums}x{sums}")'
    implementation = f"""{head}
        C[T.ramp(0, 1, {sums})] = {dot.call(before, factor, columns, is_signed(first))}
"""
    return f"{head}{_loops(dot, first, second, row_distance, broadcast=broadcast)}", implementation


def _loops(dot: DotProduct, first: str, second: str, row_distance: int, *, broadcast: bool) -> str:
    """Return the scalar loops of an instruction."""
    loops = [("row", "r", dot.rows), ("lane", "i", dot.lanes), ("depth", "k", dot.depth)]
    # TVM simplifies loops of one iteration, so that the description would not match.
    loops = [loop for loop in loops if loop[2] > 1]
    names, axes = ", ".join(loop[0] for loop in loops), ", ".join(loop[1] for loop in loops)
    kinds = "S" * (len(loops) - (dot.depth > 1)) + "R" * (dot.depth > 1)
    step = "k" if dot.depth > 1 else "0"
    place = f"i * {dot.depth} + {step}"
    row = f"r * {row_distance} + " if dot.rows > 1 else ""
    left = read(f"A[{row}{step}]" if broadcast else f"A[{place}]", first, dot.sums)
    right = read(f"B[{place}]", second, dot.sums)
    total = f"C[r * {dot.lanes} + i]" if dot.rows > 1 else "C[i]"
    return f"""
        for {names} in T.grid({", ".join(str(extent) for *_, extent in loops)}):
            with T.sblock("update"):
                {axes} = T.axis.remap("{kinds}", [{names}])
                {total} = {total} + {left} * {right}
"""


def column_back_end(dot: DotProduct) -> BackEnd:
    """Return the code generator of a dot product whose lanes are columns."""
    nest = partial(_column_nest, dot)
    return BackEnd(
        nest,
        lambda _: column_registers(dot),
        partial(_column_plan, dot),
        partial(nest, unpadded=True),
    )


def _column_plan(dot: DotProduct, program: DerivedProgram, nest: Nest) -> KernelPlan:
    roles = lane_roles(program)
    row_distance = 0 if roles.row is None else nest.operands[0].stride(roles.row)
    return _dot_plan(dot, nest, roles.column, row_distance=row_distance)


@cache
def column_registers(dot: DotProduct) -> RegisterModel:
    """Return the cost of blocks of accumulators whose lanes are columns."""
    return register_model(
        dot,
        dot.registers.count - model_constants().spare_registers,
        exposed_latency=model_constants().waits,
        streams=False,
    )


def _column_nest(
    dot: DotProduct,
    program: DerivedProgram,
    epilogue: Epilogue | None = None,
    *,
    unpadded: bool = False,
) -> Nest:
    """Return the nest with lanes in digits, if the layout suits the instruction."""
    nest = split_axes(kernel_nest(program, epilogue, unpadded=unpadded))
    dot.check_types(nest)
    _check_lanes(dot, nest, lane_roles(program))
    # Tiles of several rows would need many peeled bodies at the halo, each slow to compile.
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
    # Vectors are loaded and stored as they lie in memory.
    requirements = (
        (first, roles.depth, 1),
        (second, roles.depth, 1),
        (second, roles.column, dot.depth),
        (output, roles.column, 1),
    )
    for operand, lane, stride in requirements:
        if lane is not None and operand.stride(lane) != stride:
            raise LoweringError(
                f"{dot.name} needs {lane} of operand {operand.parameter} at stride {stride}, "
                f"not {operand.stride(lane)}"
            )
    # The rows are read by one instruction, at multiples of a distance.
    if roles.row is not None and first.stride(roles.row) < 0:
        raise LoweringError(f"{dot.name} needs the rows of operand {first.parameter} in order")


PARTIAL_SUMS = "parts"
"""Name of the loop over the lanes of an accumulator that are partial sums."""


def adds_to_one_sum(spec: HardwareSpec) -> bool:
    """True if an instruction adds all its products to one sum."""
    return not spec.instruction.computation.output.shape


def sum_back_end(dot: DotProduct) -> BackEnd:
    """Return the code generator of a dot product whose lanes are partial sums."""

    def plan(_: DerivedProgram, nest: Nest) -> KernelPlan:
        return _dot_plan(dot, nest, PARTIAL_SUMS, along_rows=True)

    return BackEnd(partial(_sum_nest, dot), lambda _: sum_registers(dot), plan)


@cache
def sum_registers(dot: DotProduct) -> RegisterModel:
    """Return the cost of blocks of accumulators whose lanes are partial sums."""
    constants = model_constants()
    adding_up = constants.halving_products * (dot.lanes.bit_length() - 1)
    registers = dot.registers.count - constants.lane_sum_registers
    return register_model(dot, registers, adding_up=adding_up, streams=True)


def _sum_nest(dot: DotProduct, program: DerivedProgram, epilogue: Epilogue | None = None) -> Nest:
    """Return the program's nest with its instruction axis split into two loops.

    The outer loop runs over the partial sums and is vectorized; the inner one runs over the
    ``depth`` products that the instruction adds to each sum. Raises :class:`LoweringError` unless
    the axis is one digit of ``lanes * depth`` points at stride 1 in both factors.
    """
    nest = split_axes(kernel_nest(program, epilogue))
    names = [lane_name(lane.name) for lane in program.instruction_axes]
    lanes = [loop for loop in nest.inner if loop.name in names]
    neighbours = dot.lanes * dot.depth
    if len(names) != 1 or [loop.extent for loop in lanes] != [neighbours]:
        raise LoweringError(
            f"{dot.name} along rows needs {neighbours} neighbours that are one digit"
        )
    lane = lanes[0]
    for operand in nest.operands[:2]:
        if operand.stride(lane.name) != 1:
            raise LoweringError(
                f"{dot.name} along rows needs operand {operand.parameter} at stride 1, "
                f"not {operand.stride(lane.name)}"
            )
    dot.check_types(nest)
    # The lane becomes two loops: one over the partial sums, which is vectorized, and one over the
    # neighbours that an instruction adds to each.
    digits = Loop(PARTIAL_SUMS, dot.lanes, AxisKind.SPATIAL), replace(lane, extent=dot.depth)
    split = {lane.name: IndexExpr.sum([IndexTerm(PARTIAL_SUMS, dot.depth), IndexTerm(lane.name)])}

    def in_digits(operand: KernelOperand) -> KernelOperand:
        return replace(operand, access=operand.access.substitute(split))

    inner = tuple(loop for loop in nest.inner if loop is not lane)
    nest = nest.changed(in_digits, inner=(*inner, *digits))
    return replace(order_reductions(nest), peeling=Peeling.POINTS)
