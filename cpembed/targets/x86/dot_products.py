"""The dot products of x86: VNNI's of four bytes, AVX512-BF16's of two values, AVX2's of several
instructions, fused multiply-adds of one value.
"""

from __future__ import annotations

import itertools
from dataclasses import replace
from functools import partial

from cpembed.ir.dtypes import dtype_info, is_integer, is_signed, size_bytes
from cpembed.targets.cpu.dot_products import DotProduct, Registers
from cpembed.targets.x86.down_converting_store import write_narrow_here

ZMM, YMM = Registers(32, 64), Registers(16, 32)

_VEX_ONLY = ("-avx512f",)
"""For instructions of CPUs without AVX-512: no register beyond theirs, nor an EVEX encoding."""
AVX2_ONLY = (*_VEX_ONLY, "-avxvnni")
"""Of CPUs without AVX-VNNI too, which LLVM makes use of where products are added to sums."""


def _bytes(registers: Registers, sums: str, first: str, second: str, signed_first: bool) -> str:
    """LLVM 22 and later take the factors as bytes; the intrinsic that TVM ships passes words."""
    unsigned, signed = (second, first) if signed_first else (first, second)
    name = f"llvm.x86.avx512.vpdpbusd.{8 * registers.bytes}"
    return _call(name, f"{sums}, {unsigned}, {signed}", f"int32x{registers.bytes // 4}")


def _bytes_total(registers: Registers, vector: str) -> str:
    return _call(f"llvm.vector.reduce.add.v{registers.bytes // 4}i32", vector, "int32")


def _call(name: str, arguments: str, dtype: str) -> str:
    number = f'T.llvm_lookup_intrinsic_id("{name}")'
    return f'T.call_llvm_pure_intrin({number}, {arguments}, dtype="{dtype}")'


def _pairs(sums: str, first: str, second: str, _: bool) -> str:
    return f'T.call_extern("float32x16", "{_PAIRS}", {sums}, {first}, {second})'


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
    name="vpdpbusd",
    feature="avx512_vnni",
    backend="x86.vnni",
    registers=ZMM,
    depth=4,
    factors=("uint8", "int8"),
    sums="int32",
    timed="vpdpbusd",
    call=partial(_bytes, ZMM),
    total=partial(_bytes_total, ZMM),
    store=write_narrow_here,
)
VPDPBUSD_YMM = DotProduct(
    name="vpdpbusd_ymm",
    feature="avx_vnni",
    backend="x86.avx_vnni",
    registers=YMM,
    depth=4,
    factors=("uint8", "int8"),
    sums="int32",
    timed="vpdpbusd_ymm",
    call=partial(_bytes, YMM),
    total=partial(_bytes_total, YMM),
    attributes=_VEX_ONLY,
)
VDPBF16PS = DotProduct(
    name="vdpbf16ps",
    feature="avx512_bf16",
    backend="x86.bf16",
    registers=ZMM,
    depth=2,
    factors=("bfloat16", "bfloat16"),
    sums="float32",
    timed="vdpbf16ps",
    call=_pairs,
    total=_pairs_total,
    functions=_FUNCTIONS,
    store=write_narrow_here,
)


def _words(sums: str, first: str, second: str, _: bool) -> str:
    words = ", ".join(f'T.cast({vector}, "int16x16")' for vector in (first, second))
    return f"{sums} + {_call('llvm.x86.avx2.pmadd.wd', words, 'int32x8')}"


def _no_bytes(first: str, second: str) -> str | None:
    if all(is_integer(dtype) and size_bytes(dtype) == 1 for dtype in (first, second)):
        return None
    return f"vpmaddwd multiplies bytes that are extended to 16 bits, not {first} by {second}"


def _saturating(sums: str, first: str, second: str, signed_first: bool) -> str:
    unsigned, signed = (second, first) if signed_first else (first, second)
    pairs = _call("llvm.x86.avx2.pmadd.ub.sw", f"{unsigned}, {signed}", "int16x16")
    ones = "T.broadcast(T.int16(1), 16)"
    return f"{sums} + {_call('llvm.x86.avx2.pmadd.wd', f'{pairs}, {ones}', 'int32x8')}"


def _saturates(first: str, second: str) -> str | None:
    """Of the extremes of two products, which are added in 16 bits."""
    reason = _no_bytes(first, second)
    if reason is not None or is_signed(first) == is_signed(second):
        return f"vpmaddubsw multiplies unsigned by signed bytes, not {first} by {second}"
    ranges = (dtype_info(dtype).integer_range for dtype in (first, second))
    products = [a * b for a, b in itertools.product(*ranges)]
    if 2 * min(products) >= -(2**15) and 2 * max(products) < 2**15:
        return None
    return (
        f"vpmaddubsw saturates: two products of {first} by {second} can add up to "
        f"{2 * min(products)}, beyond 16 bits; declare one factor uint7 or int7 where its values "
        "are no larger, or take avx2_int8"
    )


VPMADDUBSW = DotProduct(
    name="vpmaddubsw",
    feature="avx2",
    backend="x86.avx2_maddubs",
    registers=YMM,
    depth=4,
    factors=("uint7", "int8"),
    type_error=_saturates,
    sums="int32",
    timed="vpdpbusd_ymm",
    relative_time=3.0,
    call=_saturating,
    attributes=AVX2_ONLY,
)
"""Pairs of products, pairs of these by VPMADDWD with ones, and VPADDD: three instructions."""

VPMADDWD = DotProduct(
    name="vpmaddwd",
    feature="avx2",
    backend="x86.avx2_madd",
    registers=YMM,
    depth=2,
    factors=("uint8", "int8"),
    type_error=_no_bytes,
    sums="int32",
    timed="vpdpbusd_ymm",
    relative_time=2.0,
    call=_words,
    attributes=AVX2_ONLY,
)
"""Of bytes that VPMOVZXBW and VPMOVSXBW extend, a row's for all columns and a column's for all rows
of a block; and VPADDD."""


def _fused(registers: Registers, sums: str, first: str, second: str, _: bool) -> str:
    lanes = registers.bytes // 4
    return _call(f"llvm.fma.v{lanes}f32", f"{first}, {second}, {sums}", f"float32x{lanes}")


def _widened(registers: Registers, sums: str, first: str, second: str, signed: bool) -> str:
    """The second factor is widened here, the first by :func:`_spread_wide`."""
    wide = _upper_halves(registers, f'T.cast({second}, "uint32x{registers.bytes // 4}")')
    return _fused(registers, sums, first, wide, signed)


def _spread_wide(registers: Registers, value: str) -> str:
    """A value in both halves of each lane, of which the upper one is left: one instruction less
    than widening all lanes.
    """
    halves = f"T.broadcast({value}, {registers.bytes // 2})"
    return _upper_halves(
        registers, f'T.reinterpret({halves}, dtype="uint32x{registers.bytes // 4}")'
    )


def _upper_halves(registers: Registers, words: str) -> str:
    """float32 values, whose upper halves are the lower halves of words."""
    lanes = registers.bytes // 4
    shifted = f"T.shift_left({words}, T.broadcast(T.uint32(16), {lanes}))"
    return f'T.reinterpret({shifted}, dtype="float32x{lanes}")'


def _float_total(registers: Registers, vector: str) -> str:
    return f'T.call_extern("float32", "{_TOTAL}_{registers.bytes // 4}", {vector})'


def _adding_up(registers: Registers) -> str:
    """The sum of a register's lanes, in LLVM's language: in pairs, not one lane after the other."""
    lanes = registers.bytes // 4
    return f"""
declare float @llvm.vector.reduce.fadd.v{lanes}f32(float, <{lanes} x float>)

define float @{_TOTAL}_{lanes}(<{lanes} x float> %parts) alwaysinline {{
  %total = call reassoc float @llvm.vector.reduce.fadd.v{lanes}f32(
      float -0.0, <{lanes} x float> %parts)
  ret float %total
}}
"""


VFMADD231PS = DotProduct(
    name="vfmadd231ps",
    feature="avx512f",
    backend="x86.fma",
    registers=ZMM,
    depth=1,
    factors=("float32", "float32"),
    sums="float32",
    timed="vfmadd231ps",
    call=partial(_fused, ZMM),
    total=partial(_float_total, ZMM),
    functions=_adding_up(ZMM),
    store=write_narrow_here,
)
VFMADD231PS_YMM = replace(
    VFMADD231PS,
    name="vfmadd231ps_ymm",
    feature="fma",
    backend="x86.avx2_fma",
    registers=YMM,
    timed="vfmadd231ps_ymm",
    call=partial(_fused, YMM),
    total=partial(_float_total, YMM),
    functions=_adding_up(YMM),
    attributes=AVX2_ONLY,
    store=None,
)
VFMADD231PS_BF16 = replace(
    VFMADD231PS,
    name="vfmadd231ps_bf16",
    backend="x86.fma_widened",
    factors=("bfloat16", "bfloat16"),
    call=partial(_widened, ZMM),
    spread=partial(_spread_wide, ZMM),
    total=None,
    functions="",
)
VFMADD231PS_BF16_YMM = replace(
    VFMADD231PS_YMM,
    name="vfmadd231ps_bf16_ymm",
    backend="x86.avx2_fma_widened",
    factors=("bfloat16", "bfloat16"),
    call=partial(_widened, YMM),
    spread=partial(_spread_wide, YMM),
    total=None,
    functions="",
)
"""Of bfloat16 that is widened: a row's value for all columns, a column's for all rows of a
block."""

DOT_PRODUCTS = {
    dot.name: dot
    for dot in (
        VPDPBUSD,
        VDPBF16PS,
        VPDPBUSD_YMM,
        VPMADDUBSW,
        VPMADDWD,
        VFMADD231PS,
        VFMADD231PS_YMM,
        VFMADD231PS_BF16,
        VFMADD231PS_BF16_YMM,
    )
}
"""By name; where several would do, the first."""
