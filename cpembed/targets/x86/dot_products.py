"""AVX-512 instructions that multiply neighbours and add them to the lane that they lie in.

:data:`VPDPBUSD` multiplies four bytes, :data:`VDPBF16PS` two bfloat16 values. Lanes are columns
(:mod:`~cpembed.targets.x86.dot_columns`), or parts of one sum
(:mod:`~cpembed.targets.x86.dot_rows`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from cpembed.errors import LoweringError
from cpembed.kernel.contraction import UPDATE, AddedUp, contraction_source
from cpembed.kernel.margins import bodies
from cpembed.kernel.nest import Nest
from cpembed.kernel.nest_text import block_name
from cpembed.kernel.plan import KernelPlan
from cpembed.kernel.script import HEADER, read, storage_dtype
from cpembed.targets.cpu.calibration import Calibration
from cpembed.targets.cpu.estimate import BlockStep
from cpembed.targets.cpu.fetched_columns import fetch_columns, in_turn
from cpembed.targets.cpu.fetched_results import fetch_results
from cpembed.targets.cpu.fetched_rows import fetch_rows
from cpembed.targets.cpu.register_blocks import RegisterModel, Scheduled
from cpembed.targets.x86.narrow_store import write_narrow_here

LANES = 16

_PLACES = 12
"""Rows or columns of a block at most: ways of the first-level cache. A block's rows often lie a
multiple of 4 KiB apart, and more of them evict each other (measured on Zen 5: 64 columns of 512
channels by one pixel, 7 or 9 at a time 3.6 to 4.2 us, 14 4.6, 16 5.5, 21 8.1)."""


@dataclass(frozen=True)
class DotProduct:
    """``C[lane] += sum(A[lane, z] * B[lane, z])`` with ``depth`` neighbours z in each of 16 lanes
    of 32 bits.

    ``feature`` is the CPU's that provides it; ``factors`` are the types of either factor, in either
    order, ``sums`` that of the lanes. ``call(sums, first, second, signed_first)`` is TVMScript for
    one, of vectors of the types in memory, ``total(vector)`` for the sum of a vector of lanes.
    ``functions`` are those in LLVM's language that these call.
    """

    name: str
    feature: str
    backend: str
    depth: int
    factors: tuple[str, str]
    sums: str
    call: Callable[[str, str, str, bool], str]
    total: Callable[[str], str]
    functions: str = ""

    def check(self, nest: Nest) -> None:
        """Raise :class:`LoweringError` where a nest multiplies other types."""
        first, second, _ = nest.operands
        if sorted((first.dtype, second.dtype)) != sorted(self.factors) or nest.sums != self.sums:
            raise LoweringError(
                f"{self.name} multiplies {' by '.join(self.factors)} into {self.sums}, not "
                f"{first.dtype} by {second.dtype} into {nest.sums}"
            )


def _bytes(sums: str, first: str, second: str, signed_first: bool) -> str:
    """LLVM 22 and later take the factors as 64 bytes; the intrinsic that TVM ships passes 16
    words."""
    unsigned, signed = (second, first) if signed_first else (first, second)
    number = 'T.llvm_lookup_intrinsic_id("llvm.x86.avx512.vpdpbusd.512")'
    return f'T.call_llvm_pure_intrin({number}, {sums}, {unsigned}, {signed}, dtype="int32x{LANES}")'


def _bytes_total(vector: str) -> str:
    number = f'T.llvm_lookup_intrinsic_id("llvm.vector.reduce.add.v{LANES}i32")'
    return f'T.call_llvm_pure_intrin({number}, {vector}, dtype="int32")'


def _pairs(sums: str, first: str, second: str, _: bool) -> str:
    return f'T.call_extern("float32x{LANES}", "{_PAIRS}", {sums}, {first}, {second})'


def _pairs_total(vector: str) -> str:
    return f'T.call_extern("float32", "{_TOTAL}", {vector})'


_PAIRS, _TOTAL = "cpembed_vdpbf16ps", "cpembed_total"
_FUNCTIONS = f"""
declare <16 x float> @llvm.x86.avx512bf16.dpbf16ps.512(<16 x float>, <32 x bfloat>, <32 x bfloat>)

define <16 x float> @{_PAIRS}(<16 x float> %c, <32 x i16> %a, <32 x i16> %b) alwaysinline {{
  %first = bitcast <32 x i16> %a to <32 x bfloat>
  %second = bitcast <32 x i16> %b to <32 x bfloat>
  %sums = call <16 x float> @llvm.x86.avx512bf16.dpbf16ps.512(
      <16 x float> %c, <32 x bfloat> %first, <32 x bfloat> %second)
  ret <16 x float> %sums
}}

declare float @llvm.vector.reduce.fadd.v16f32(float, <16 x float>)

define float @{_TOTAL}(<16 x float> %parts) alwaysinline {{
  %total = call reassoc float @llvm.vector.reduce.fadd.v16f32(float -0.0, <16 x float> %parts)
  ret float %total
}}
"""
"""The compiler would turn values of type bfloat16 into float32 before they reach the instruction,
and add up the lanes one after the other."""

VPDPBUSD = DotProduct(
    "vpdpbusd", "avx512_vnni", "x86.vnni", 4, ("uint8", "int8"), "int32", _bytes, _bytes_total
)
VDPBF16PS = DotProduct(
    "vdpbf16ps",
    "avx512_bf16",
    "x86.bf16",
    2,
    ("bfloat16", "bfloat16"),
    "float32",
    _pairs,
    _pairs_total,
    _FUNCTIONS,
)

DOT_PRODUCTS = {dot.name: dot for dot in (VPDPBUSD, VDPBF16PS)}


def register_model(
    dot: DotProduct, registers: int, *, waits: float = 0.0, adding_up: float = 0.0, streams: bool
) -> RegisterModel:
    """What a block of accumulators costs in so many registers, where one side of it stays in them
    beside the accumulators while the other passes through one more.

    ``waits``: see :class:`BlockStep`. ``adding_up`` products take as long as what each accumulator
    costs beside its steps; ``streams``: each row is a place of its own in memory.
    """

    def fits(rows: int, columns: int) -> bool:
        return rows * columns + min(rows, columns) + 1 <= registers

    def step(nest: Nest, machine: Calibration, rows: int, columns: int) -> BlockStep:
        """A row costs a load of a line or a broadcast of 4 bytes, a column a load of a line."""
        del nest
        product, latency = machine.product_ns[dot.name], machine.latency_ns[dot.name]
        return BlockStep(
            products_ns=max(rows * columns * product, latency),
            loads_ns=(rows + columns) * machine.vector_line_ns[0],
            line_ns=machine.vector_line_ns,
            stored_lines=rows * columns,
            streams=rows if streams else 1,
            task_ns=rows * columns * adding_up * product,
            waits=waits,
        )

    return RegisterModel(fits, step, _PLACES, dot.name)


def dot_plan(
    dot: DotProduct, scheduled: Scheduled, lane: str, *, along_rows: bool = False
) -> KernelPlan:
    """A kernel with accumulators along ``lane``: each is a sum or, ``along_rows``, a part of the
    one that is stored."""
    nest = scheduled.nest
    # A row of such a block is a stream of its own, and its results are few.
    rows = scheduled.fetches_rows and not along_rows
    columns = scheduled.fetches_columns and not along_rows
    results = scheduled.fetches_results and not along_rows
    source = contraction_source(
        nest,
        scheduled.threads,
        unrolled={loop.name for loop in nest.inner if loop.name.endswith("_step")},
        vectorized={lane},
        added_up=AddedUp(lane, dot.total) if along_rows else None,
        results=None if along_rows else write_narrow_here,
        packing=scheduled.packing,
        shared=scheduled.shared,
        in_registers=True,
        each_step=[
            *([fetch_rows] if rows else []),
            *([fetch_columns] if columns else []),
            *([fetch_results] if results else []),
        ],
        ahead={*([1] if rows else []), *([in_turn(nest)] if columns else [])},
    )

    def schedule(work: Any) -> None:
        first, second = (operand.dtype for operand in nest.operands[:2])
        intrinsic = register_dot(dot, first, second, broadcast=not along_rows)
        for number in range(len(bodies(nest))):
            loops = work.get_loops(work.get_sblock(block_name(UPDATE, number), "main"))
            work.tensorize(loops[-2], intrinsic)

    backend = f"{dot.backend}_rows" if along_rows else dot.backend
    return KernelPlan(
        backend,
        source,
        schedule,
        copies=scheduled.copies,
        functions=dot.functions,
        original=nest.unpadded,
        in_registers=True,
    )


def register_dot(dot: DotProduct, first: str, second: str, *, broadcast: bool = True) -> str:
    """Register the intrinsic with TVM and return its name: the first factor is as many neighbours
    for all lanes, or without ``broadcast`` as many for each."""
    from tvm.s_tir import TensorIntrin

    from cpembed.kernel.runtime import tvm

    name = f"cpembed_{dot.name}_{first}_{'broadcast' if broadcast else 'rows'}"
    if TensorIntrin.get(name, allow_missing=True) is None:
        parse = tvm().script.from_source
        description, implementation = dot_sources(dot, first, second, broadcast=broadcast)
        TensorIntrin.register(name, parse(description), parse(implementation))
    return name


def dot_sources(
    dot: DotProduct, first: str, second: str, *, broadcast: bool = True
) -> tuple[str, str]:
    """Description (scalar loops) and implementation of one instruction: :func:`register_dot`."""
    whole = LANES * dot.depth
    given = dot.depth if broadcast else whole
    stored = storage_dtype(first), storage_dtype(second)
    head = f"""{HEADER}
def dot(
    A: T.Buffer(({given},), "{stored[0]}", offset_factor=1),
    B: T.Buffer(({whole},), "{stored[1]}", offset_factor=1),
    C: T.Buffer(({LANES},), "{dot.sums}", offset_factor=1, scope="local"),
):
    with T.sblock("root"):
        T.reads(C[0:{LANES}], A[0:{given}], B[0:{whole}])
        T.writes(C[0:{LANES}])
"""
    at = f"i * {dot.depth} + k"
    one = read(f"A[{'k' if broadcast else at}]", first, dot.sums)
    other = read(f"B[{at}]", second, dot.sums)
    description = f"""{head}
        for lane, depth in T.grid({LANES}, {dot.depth}):
            with T.sblock("update"):
                i, k = T.axis.remap("SR", [lane, depth])
                C[i] = C[i] + {one} * {other}
"""
    rows = f'A.vload([0], dtype="{stored[0]}x{given}")'
    if broadcast:
        word = f'T.reinterpret({rows}, dtype="int32")'
        rows = f'T.reinterpret(T.broadcast({word}, {LANES}), dtype="{stored[0]}x{whole}")'
    columns = f'B.vload([0], dtype="{stored[1]}x{whole}")'
    sums = f'C.vload([0], dtype="{dot.sums}x{LANES}")'
    implementation = f"""{head}
        C[T.ramp(0, 1, {LANES})] = {dot.call(sums, rows, columns, first == "int8")}
"""
    return description, implementation
