"""Vector instructions that multiply neighbours and add them to the lane that they lie in.

:class:`DotProduct` describes one: the registers, the types, and the text of a call. Lanes are
columns (:mod:`~cpembed.targets.cpu.outer_product`), or parts of one sum
(:mod:`~cpembed.targets.cpu.inner_product`).
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
from cpembed.codegen.plan import KernelPlan
from cpembed.codegen.program_nest import kernel_nest, lane_name
from cpembed.codegen.script import HEADER, read, storage_dtype
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
    """The vector registers of an instruction set: how many, and the bytes of one."""

    count: int
    bytes: int


@dataclass(frozen=True)
class DotProduct:
    """``C[row, lane] += sum(A[row, z] * B[lane, z])`` with ``depth`` neighbours z, where C is one
    register: by default a single row, whose neighbours are the same for every lane.

    ``feature`` is the CPU's that provides it; ``factors`` are the types of either factor, in either
    order, or ``refuses`` says of two types why they are not multiplied, None where they are;
    ``sums`` is the type of the lanes. It takes ``times`` as long as ``timed``, a product of a
    calibration.
    ``call(sums, first, second, signed_first)`` is TVMScript for one, of vectors of the types in
    memory, which are ``depth`` neighbours for each lane; ``total(vector)`` for the sum of a vector
    of lanes. ``spread(value)`` is what ``call`` takes for the first factor where that is one value
    for all lanes, of the value in memory; by default a vector of it. ``functions`` are those in
    LLVM's language that these call, ``attributes`` what the compiler is told, ``store`` writes them
    in a way of the instruction set's own.
    """

    name: str
    feature: str
    backend: str
    registers: Registers
    depth: int
    factors: tuple[str, str]
    sums: str
    timed: str
    call: Callable[[str, str, str, bool], str]
    total: Callable[[str], str] | None = None
    spread: Callable[[str], str] | None = None
    rows: int = 1
    times: float = 1.0
    refuses: Callable[[str, str], str | None] | None = None
    functions: str = ""
    attributes: tuple[str, ...] = ()
    store: StoreText | None = None

    @property
    def sums_count(self) -> int:
        """Sums in a register."""
        return self.registers.bytes // size_bytes(self.sums)

    @property
    def lanes(self) -> int:
        """Columns of a register's sums."""
        return self.sums_count // self.rows

    def check(self, nest: Nest) -> None:
        """Raise :class:`LoweringError` where a nest multiplies other types."""
        first, second = (operand.dtype for operand in nest.operands[:2])
        reason = self.refuses(first, second) if self.refuses else None
        if reason is not None:
            raise LoweringError(reason)
        taken = self.refuses is not None or sorted((first, second)) == sorted(self.factors)
        if not taken or nest.sums != self.sums:
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
    """What a block of accumulators costs in so many registers, where one side of it stays in them
    beside the accumulators while the other passes through one more. A load of a register takes as
    long as one of a line, whatever its width.

    ``exposed_latency``: see :class:`BlockStep`. ``adding_up`` products take as long as what each
    accumulator costs beside its steps; ``streams``: each row is a place of its own in memory.
    """

    def fits(rows: int, columns: int) -> bool:
        return rows * columns + min(rows, columns) + 1 <= registers

    def step(nest: Nest, machine: Calibration, rows: int, columns: int) -> BlockStep:
        """A row costs a load or a broadcast, a column a load."""
        product, latency = dot.times * machine.product_ns[dot.timed], machine.latency_ns[dot.timed]
        split = 0.0 if streams else _split_share(dot, nest)
        return BlockStep(
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

    # A row of a tile along rows is a stream of its own, and its results are few.
    prefetched = frozenset[Prefetch]() if streams else frozenset(Prefetch)
    return RegisterModel(
        fits, step, model_constants().largest_side, dot.timed, prefetched=prefetched
    )


def _split_share(dot: DotProduct, nest: Nest) -> float:
    """Of the second factor's loads, the share that lie in two lines, each as likely to begin at any
    multiple of what its loops move it by."""
    if dot.registers.bytes < nest.line_bytes:
        return 0.0
    second = nest.operands[1]
    moves = [second.stride(task.name) * task.unit for task in nest.tasks if task.steps > 1]
    moves += [second.stride(loop.name) for loop in nest.reductions if loop.extent > 1]
    step = math.gcd(nest.line_bytes, *(move * size_bytes(second.dtype) for move in moves))
    return 1 - step / nest.line_bytes


def _are_adjacent(dot: DotProduct, nest: Nest) -> bool:
    """Whether the columns of a tile follow each other in memory."""
    second = nest.operands[1]
    distances = [abs(second.stride(loop.name)) for loop in column_loops(nest)]
    return distances[-1:] == [dot.lanes * dot.depth]


def _are_aliased(nest: Nest, machine: Calibration, rows: int) -> bool:
    """Whether so many rows of the first factor lie whole ways of the first-level cache apart, each
    a page, and are more than it has."""
    first, page = nest.operands[0], model_constants().page_bytes
    distances = [first.stride(loop.name) * size_bytes(first.dtype) for loop in row_loops(nest)]
    ways = machine.cache_bytes[0] // page
    return 0 < ways < rows and bool(distances) and distances[-1] % page == 0


def dot_plan(
    dot: DotProduct, nest: Nest, axis: str, *, apart: int = 0, along_rows: bool = False
) -> KernelPlan:
    """A kernel with accumulators along ``axis``: each is a sum or, ``along_rows``, a part of the
    one that is stored. ``apart``: elements between the rows of the first factor that are one
    instruction's."""
    first, second = (operand.dtype for operand in nest.operands[:2])
    intrinsic = Intrinsic(*dot_sources(dot, first, second, apart, broadcast=not along_rows))
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
    dot: DotProduct, first: str, second: str, apart: int = 0, *, broadcast: bool = True
) -> tuple[str, str]:
    """Description (scalar loops) and implementation of one instruction: the first factor is the
    neighbours of its rows, ``apart`` from each other, for all lanes, or without ``broadcast`` as
    many for each lane."""
    sums, whole = dot.sums_count, dot.lanes * dot.depth
    given = (dot.rows - 1) * apart + dot.depth if broadcast else whole
    stored = storage_dtype(first), storage_dtype(second)
    head = f"""{HEADER}
def dot(
    A: T.Buffer(({given},), "{stored[0]}", offset_factor=1),
    B: T.Buffer(({whole},), "{stored[1]}", offset_factor=1),
    C: T.Buffer(({sums},), "{dot.sums}", offset_factor=1, scope="local"),
):
    with T.sblock("root"):
        T.reads(C[0:{sums}], A[0:{given}], B[0:{whole}])
        T.writes(C[0:{sums}])
"""
    each = dot.depth if broadcast else whole
    rows = [f'A.vload([{row * apart}], dtype="{stored[0]}x{each}")' for row in range(dot.rows)]
    factor = rows[0] if dot.rows == 1 else f"T.Shuffle([{', '.join(rows)}], {list(range(whole))})"
    if dot.spread is not None:
        factor = dot.spread("A[0]")
    elif each * dot.rows < whole:
        word = f'T.reinterpret({factor}, dtype="int{8 * each * size_bytes(first)}")'
        factor = f'T.reinterpret(T.broadcast({word}, {dot.lanes}), dtype="{stored[0]}x{whole}")'
    columns = f'B.vload([0], dtype="{stored[1]}x{whole}")'
    before = f'C.vload([0], dtype="{dot.sums}x{sums}")'
    implementation = f"""{head}
        C[T.ramp(0, 1, {sums})] = {dot.call(before, factor, columns, is_signed(first))}
"""
    return f"{head}{_loops(dot, first, second, apart, broadcast=broadcast)}", implementation


def _loops(dot: DotProduct, first: str, second: str, apart: int, *, broadcast: bool) -> str:
    """What an instruction computes, point by point."""
    loops = [("row", "r", dot.rows), ("lane", "i", dot.lanes), ("depth", "k", dot.depth)]
    # Without loops of one iteration, of which the lanes' is none.
    loops = [loop for loop in loops if loop[2] > 1]
    names, axes = ", ".join(loop[0] for loop in loops), ", ".join(loop[1] for loop in loops)
    kinds = "S" * (len(loops) - (dot.depth > 1)) + "R" * (dot.depth > 1)
    step = "k" if dot.depth > 1 else "0"
    place = f"i * {dot.depth} + {step}"
    row = f"r * {apart} + " if dot.rows > 1 else ""
    one = read(f"A[{row}{step}]" if broadcast else f"A[{place}]", first, dot.sums)
    other = read(f"B[{place}]", second, dot.sums)
    total = f"C[r * {dot.lanes} + i]" if dot.rows > 1 else "C[i]"
    return f"""
        for {names} in T.grid({", ".join(str(extent) for *_, extent in loops)}):
            with T.sblock("update"):
                {axes} = T.axis.remap("{kinds}", [{names}])
                {total} = {total} + {one} * {other}
"""


def column_back_end(dot: DotProduct) -> BackEnd:
    """The code generator of a dot product whose lanes are columns."""
    nest = partial(column_nest, dot)
    return BackEnd(
        nest,
        lambda _: column_registers(dot),
        partial(column_plan, dot),
        partial(nest, unpadded=True),
    )


def column_plan(dot: DotProduct, program: DerivedProgram, nest: Nest) -> KernelPlan:
    """A kernel on a dot product."""
    roles = lane_roles(program)
    apart = 0 if roles.row is None else nest.operands[0].stride(roles.row)
    return dot_plan(dot, nest, roles.column, apart=apart)


@cache
def column_registers(dot: DotProduct) -> RegisterModel:
    """What a block of its accumulators costs."""
    return register_model(
        dot,
        dot.registers.count - model_constants().spare_registers,
        exposed_latency=model_constants().waits,
        streams=False,
    )


def column_nest(
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


PARTIAL_SUMS = "parts"
"""The lanes of an accumulator, as a loop."""


def adds_to_one_sum(spec: HardwareSpec) -> bool:
    """Whether an instruction adds all its products to one sum."""
    return not spec.instruction.computation.output.shape


def sum_back_end(dot: DotProduct) -> BackEnd:
    """The code generator of a dot product along rows."""
    return BackEnd(partial(sum_nest, dot), lambda _: sum_registers(dot), partial(sum_plan, dot))


def sum_plan(dot: DotProduct, program: DerivedProgram, nest: Nest) -> KernelPlan:
    """A kernel on a dot product whose lanes are added up."""
    del program
    return dot_plan(dot, nest, PARTIAL_SUMS, along_rows=True)


@cache
def sum_registers(dot: DotProduct) -> RegisterModel:
    """What a block of its accumulators costs."""
    constants = model_constants()
    adding_up = constants.halving_products * (dot.lanes.bit_length() - 1)
    registers = dot.registers.count - constants.lane_sum_registers
    return register_model(dot, registers, adding_up=adding_up, streams=True)


def sum_nest(dot: DotProduct, program: DerivedProgram, epilogue: Epilogue | None = None) -> Nest:
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
    digits = Loop(PARTIAL_SUMS, dot.lanes, AxisKind.SPATIAL), replace(lane, extent=dot.depth)
    split = {lane.name: IndexExpr.of([IndexTerm(PARTIAL_SUMS, dot.depth), IndexTerm(lane.name)])}

    def in_digits(operand: KernelOperand) -> KernelOperand:
        return replace(operand, access=operand.access.substitute(split))

    inner = tuple(loop for loop in nest.inner if loop is not lane)
    nest = nest.changed(in_digits, inner=(*inner, *digits))
    return replace(order_reductions(nest), peeling=Peeling.POINTS)
