"""AVX-512 VNNI: ``vpdpbusd`` with its accumulators kept in registers."""

from __future__ import annotations

from typing import Any

from cpembed.backends.blocking import order_reductions, split_lanes
from cpembed.backends.contract import KernelPlan
from cpembed.backends.contraction import UPDATE, contraction_source
from cpembed.backends.epilogue import Epilogue
from cpembed.backends.nest import Nest, kernel_nest
from cpembed.backends.script import HEADER
from cpembed.backends.x86.calibration import Calibration
from cpembed.backends.x86.estimate import BlockStep
from cpembed.backends.x86.register_blocks import RegisterModel, Scheduled
from cpembed.backends.x86.roles import LaneRoles, lane_extent, lane_roles
from cpembed.errors import LoweringError
from cpembed.transform.program import DerivedProgram

LANES = 16
DEPTH = 4
_REGISTERS = 24
"""Of the 32: blocks that want more ran no faster on Zen 4, and spilled in some layers."""

PLACES = 12
"""Rows or columns of a block at most: ways of the first-level cache. A block's rows often lie a
multiple of 4 KiB apart, and more of them evict each other (measured on Zen 5: 64 columns of 512
channels by one pixel, 7 or 9 at a time 3.6 to 4.2 us, 14 4.6, 16 5.5, 21 8.1)."""


def plan(program: DerivedProgram, scheduled: Scheduled) -> KernelPlan:
    """A kernel on ``vpdpbusd``."""
    return dot_plan("x86.vnni", scheduled, lane_roles(program).column)


def dot_plan(
    backend: str, scheduled: Scheduled, lane: str, *, along_rows: bool = False
) -> KernelPlan:
    """A kernel on ``vpdpbusd`` with accumulators along ``lane``: each is a sum or, ``along_rows``,
    a part of the one that is stored."""
    nest = scheduled.nest
    source = contraction_source(
        nest,
        scheduled.threads,
        unrolled={loop.name for loop in nest.inner if loop.name.endswith("_step")},
        vectorized={lane},
        added_up=lane if along_rows else None,
        packing=scheduled.packing,
        shared=scheduled.shared,
    )

    def schedule(work: Any) -> None:
        signed_first = nest.operands[0].dtype == "int8"
        intrinsic = register_dot(signed_first=signed_first, broadcast=not along_rows)
        loops = work.get_loops(work.get_sblock(UPDATE, "main"))
        work.tensorize(loops[-2], intrinsic)

    return KernelPlan(backend, source, schedule, copies=scheduled.copies)


def _fits(rows: int, columns: int) -> bool:
    """One side of the block stays in registers beside the accumulators while the other passes
    through one more."""
    return rows * columns + min(rows, columns) + 1 <= _REGISTERS


def _step(nest: Nest, machine: Calibration, rows: int, columns: int) -> BlockStep:
    """A row costs a broadcast of 4 bytes, a column a load of a line."""
    return BlockStep(
        products_ns=max(
            rows * columns * machine.product_ns["vpdpbusd"], machine.latency_ns["vpdpbusd"]
        ),
        loads_ns=(rows + columns) * machine.vector_line_ns[0],
        line_ns=machine.vector_line_ns,
        stored_lines=rows * columns,
    )


REGISTERS = RegisterModel(_fits, _step, PLACES, "vpdpbusd")


def lane_nest(program: DerivedProgram, epilogue: Epilogue | None = None) -> Nest:
    """Lanes in digits; raises :class:`LoweringError` where the layout does not suit the
    instruction."""
    nest = split_lanes(kernel_nest(program, epilogue))
    _check(nest, lane_roles(program))
    return order_reductions(nest)


def _check(nest: Nest, roles: LaneRoles) -> None:
    first, second, output = nest.operands
    if {first.dtype, second.dtype} != {"uint8", "int8"} or nest.sums != "int32":
        raise LoweringError(
            f"vpdpbusd multiplies uint8 by int8 into int32, not {first.dtype} by {second.dtype} "
            f"into {nest.sums}"
        )
    if roles.row is not None or (
        lane_extent(nest, roles.column),
        lane_extent(nest, roles.depth),
    ) != (LANES, DEPTH):
        raise LoweringError(f"vpdpbusd needs {LANES} lanes of {DEPTH} bytes, each lane one digit")
    wanted = (
        (first, roles.depth, 1),
        (second, roles.depth, 1),
        (second, roles.column, DEPTH),
        (output, roles.column, 1),
    )
    for operand, lane, stride in wanted:
        if operand.stride(lane) != stride:
            raise LoweringError(
                f"vpdpbusd needs {lane} of operand {operand.parameter} at stride {stride}, "
                f"not {operand.stride(lane)}"
            )


def register_dot(*, signed_first: bool, broadcast: bool = True) -> str:
    """Register the intrinsic with TVM and return its name: the first factor is four bytes for all
    lanes, or without ``broadcast`` as many for each.

    LLVM 22 and later take the factors as 64 bytes; the intrinsic that TVM ships passes 16 words.
    """
    from tvm.s_tir import TensorIntrin

    from cpembed.backends.runtime import tvm

    sign = "signed" if signed_first else "unsigned"
    name = f"cpembed_vpdpbusd_{sign}_{'broadcast' if broadcast else 'rows'}"
    if TensorIntrin.get(name, allow_missing=True) is None:
        parse = tvm().script.from_source
        description, implementation = dot_sources(signed_first=signed_first, broadcast=broadcast)
        TensorIntrin.register(name, parse(description), parse(implementation))
    return name


def dot_sources(*, signed_first: bool, broadcast: bool = True) -> tuple[str, str]:
    """Description (scalar loops) and implementation of one ``vpdpbusd``: :func:`register_dot`."""
    first, second = ("int8", "uint8") if signed_first else ("uint8", "int8")
    read = DEPTH if broadcast else LANES * DEPTH
    head = f"""{HEADER}
def dot(
    A: T.Buffer(({read},), "{first}", offset_factor=1),
    B: T.Buffer(({LANES * DEPTH},), "{second}", offset_factor=1),
    C: T.Buffer(({LANES},), "int32", offset_factor=1, scope="local"),
):
    with T.sblock("root"):
        T.reads(C[0:{LANES}], A[0:{read}], B[0:{LANES * DEPTH}])
        T.writes(C[0:{LANES}])
"""
    at = "k" if broadcast else f"i * {DEPTH} + k"
    description = f"""{head}
        for lane, depth in T.grid({LANES}, {DEPTH}):
            with T.sblock("update"):
                i, k = T.axis.remap("SR", [lane, depth])
                C[i] = C[i] + T.cast(A[{at}], "int32") * T.cast(B[i * {DEPTH} + k], "int32")
"""
    given = f'A.vload([0], dtype="{first}x{read}")'
    if broadcast:
        word = f'T.reinterpret({given}, dtype="int32")'
        given = f'T.reinterpret(T.broadcast({word}, {LANES}), dtype="{first}x64")'
    loaded = f'B.vload([0], dtype="{second}x64")'
    unsigned, signed = (loaded, given) if signed_first else (given, loaded)
    implementation = f"""{head}
        C[T.ramp(0, 1, {LANES})] = T.call_llvm_pure_intrin(
            T.llvm_lookup_intrinsic_id("llvm.x86.avx512.vpdpbusd.512"),
            C.vload([0], dtype="int32x{LANES}"),
            {unsigned},
            {signed},
            dtype="int32x{LANES}",
        )
"""
    return description, implementation
