"""Dot products of x86: VNNI on bytes, AVX512-BF16 on pairs, AVX2 sequences, and FMA at depth 1."""

from __future__ import annotations

import itertools
from dataclasses import replace
from functools import partial

from cpembed.ir.dtypes import dtype_info, is_integer, is_signed, size_bytes
from cpembed.targets.cpu.dot_products import DotProduct, Registers
from cpembed.targets.x86.down_converting_store import YMM_STORES, intrinsic_call, write_narrow

ZMM, YMM = Registers(32, 64), Registers(16, 32)
WRITE_YMM = partial(write_narrow, registers=YMM_STORES)
"""Text of stores of sums in registers of 256 bits."""

_VEX_ONLY = ("-avx512f",)
"""Attributes for CPUs without AVX-512: neither its 16 further registers nor EVEX encodings."""
AVX2_ONLY = (*_VEX_ONLY, "-avxvnni")
"""Attributes for CPUs without AVX-VNNI either, which LLVM would use for sums of products."""
# Stated although the processor has them: kernels of several instructions may be compiled as one,
# and there none takes away what another one needs.
AVX512 = ("+avx512f",)
"""Attributes of kernels whose vectors have 512 bits."""


def _vpdpbusd(registers: Registers, sums: str, first: str, second: str, signed_first: bool) -> str:
    # LLVM 22 takes the factors as bytes; the intrinsic that TVM ships passes 32-bit words.
    unsigned, signed = (second, first) if signed_first else (first, second)
    name, dtype = f"x86.avx512.vpdpbusd.{8 * registers.bytes}", f"int32x{registers.bytes // 4}"
    return intrinsic_call(name, dtype, sums, unsigned, signed)


def _integer_total(registers: Registers, vector: str) -> str:
    return intrinsic_call(f"vector.reduce.add.v{registers.bytes // 4}i32", "int32", vector)


VPDPBUSD = DotProduct(
    name="vpdpbusd",
    feature="avx512_vnni",
    backend="x86.vnni",
    registers=ZMM,
    depth=4,
    factors=("uint8", "int8"),
    sums="int32",
    timed="vpdpbusd",
    call=partial(_vpdpbusd, ZMM),
    total=partial(_integer_total, ZMM),
    attributes=AVX512,
    store=write_narrow,
)
VPDPBUSD_YMM = replace(
    VPDPBUSD,
    name="vpdpbusd_ymm",
    feature="avx_vnni",
    backend="x86.avx_vnni",
    registers=YMM,
    timed="vpdpbusd_ymm",
    call=partial(_vpdpbusd, YMM),
    total=partial(_integer_total, YMM),
    attributes=(*_VEX_ONLY, "+avxvnni"),
    store=WRITE_YMM,
)


# ------------------------------------------------------------------------------ AVX2, on bytes


def _vpmaddwd(sums: str, first: str, second: str, _: bool) -> str:
    """VPMADDWD on 16 bits, to which bytes are widened, and VPADDD.

    The widening (VPMOVZXBW, VPMOVSXBW) leaves the loop: a row's serves all columns of a block, and
    a column's all rows.
    """
    words = (f'T.cast({vector}, "int16x16")' for vector in (first, second))
    return f"{sums} + {intrinsic_call('x86.avx2.pmadd.wd', 'int32x8', *words)}"


def _vpmaddubsw(sums: str, first: str, second: str, signed_first: bool) -> str:
    """Three instructions: VPMADDUBSW adds pairs, VPMADDWD by ones pairs of these, then VPADDD."""
    unsigned, signed = (second, first) if signed_first else (first, second)
    pairs = intrinsic_call("x86.avx2.pmadd.ub.sw", "int16x16", unsigned, signed)
    ones = "T.broadcast(T.int16(1), 16)"
    return f"{sums} + {intrinsic_call('x86.avx2.pmadd.wd', 'int32x8', pairs, ones)}"


def _bytes_error(first: str, second: str) -> str | None:
    if all(is_integer(dtype) and size_bytes(dtype) == 1 for dtype in (first, second)):
        return None
    return f"vpmaddwd multiplies bytes that are extended to 16 bits, not {first} by {second}"


def _words_error(first: str, second: str) -> str | None:
    narrow = [is_integer(dtype) and size_bytes(dtype) == 1 for dtype in (first, second)]
    words = [dtype == "int16" for dtype in (first, second)]
    if any(words) and all(a or b for a, b in zip(narrow, words, strict=True)):
        return None
    return f"vpmaddwd multiplies int16 by int16 or bytes, not {first} by {second}"


def _saturation_error(first: str, second: str) -> str | None:
    """Return why VPMADDUBSW is inexact, which adds two products in 16 bits; None if it is exact."""
    if _bytes_error(first, second) is not None or is_signed(first) == is_signed(second):
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
    type_error=_saturation_error,
    sums="int32",
    timed="vpdpbusd_ymm",
    relative_time=3.0,
    call=_vpmaddubsw,
    attributes=AVX2_ONLY,
    store=WRITE_YMM,
)
VPMADDWD = replace(
    VPMADDUBSW,
    name="vpmaddwd",
    backend="x86.avx2_madd",
    depth=2,
    factors=("uint8", "int8"),
    type_error=_bytes_error,
    # VPMADDWD, VPADDD, and what extends and broadcasts a row's bytes, which takes the same ports.
    relative_time=3.0,
    call=_vpmaddwd,
)
VPMADDWD_WORDS = replace(
    VPMADDWD,
    name="vpmaddwd on words",
    backend="x86.avx2_madd_words",
    factors=("int16", "int8"),
    type_error=_words_error,
    relative_time=2.0,
)


# ------------------------------------------------------------------- float32 and bfloat16


def _fused(registers: Registers, sums: str, first: str, second: str, _: bool) -> str:
    lanes = registers.bytes // 4
    return intrinsic_call(f"fma.v{lanes}f32", f"float32x{lanes}", first, second, sums)


def _widened(registers: Registers, sums: str, first: str, second: str, signed: bool) -> str:
    # The first factor arrives widened, by _spread_wide.
    wide = _upper_halves(registers, f'T.cast({second}, "uint32x{registers.bytes // 4}")')
    return _fused(registers, sums, first, wide, signed)


def _spread_wide(registers: Registers, value: str) -> str:
    # Broadcast to both halves of each lane; the shift then moves the lower half up. This takes one
    # instruction less than widening all lanes.
    halves = f"T.broadcast({value}, {registers.bytes // 2})"
    return _upper_halves(
        registers, f'T.reinterpret({halves}, dtype="uint32x{registers.bytes // 4}")'
    )


def _upper_halves(registers: Registers, words: str) -> str:
    """Return the float32 values whose upper halves, bfloat16, are the lower halves of words."""
    lanes = registers.bytes // 4
    shifted = f"T.shift_left({words}, T.broadcast(T.uint32(16), {lanes}))"
    return f'T.reinterpret({shifted}, dtype="float32x{lanes}")'


_TOTAL = "cpembed_total"


def _float_total(registers: Registers, vector: str) -> str:
    return f'T.call_extern("float32", "{_TOTAL}_{registers.bytes // 4}", {vector})'


def _total_function(registers: Registers) -> str:
    # `reassoc` lets LLVM add in pairs; it would otherwise add one lane after the other.
    lanes = registers.bytes // 4
    return f"""
declare float @llvm.vector.reduce.fadd.v{lanes}f32(float, <{lanes} x float>)

define float @{_TOTAL}_{lanes}(<{lanes} x float> %parts) alwaysinline {{
  %total = call reassoc float @llvm.vector.reduce.fadd.v{lanes}f32(
      float -0.0, <{lanes} x float> %parts)
  ret float %total
}}
"""


_PAIRS = "cpembed_vdpbf16ps"
# Functions in LLVM's language, because TVM would turn values of type bfloat16 into float32 before
# they reach the instruction.
_PAIRS_FUNCTION = f"""
declare <16 x float> @llvm.x86.avx512bf16.dpbf16ps.512(<16 x float>, <32 x bfloat>, <32 x bfloat>)

define <16 x float> @{_PAIRS}(<16 x float> %c, <32 x i16> %a, <32 x i16> %b) alwaysinline {{
  %first = bitcast <32 x i16> %a to <32 x bfloat>
  %second = bitcast <32 x i16> %b to <32 x bfloat>
  %sums = call <16 x float> @llvm.x86.avx512bf16.dpbf16ps.512(
      <16 x float> %c, <32 x bfloat> %first, <32 x bfloat> %second)
  ret <16 x float> %sums
}}
"""


def _pairs(sums: str, first: str, second: str, _: bool) -> str:
    return f'T.call_extern("float32x16", "{_PAIRS}", {sums}, {first}, {second})'


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
    functions=_total_function(ZMM),
    attributes=AVX512,
    store=write_narrow,
)
VDPBF16PS = replace(
    VFMADD231PS,
    name="vdpbf16ps",
    feature="avx512_bf16",
    backend="x86.bf16",
    depth=2,
    factors=("bfloat16", "bfloat16"),
    timed="vdpbf16ps",
    call=_pairs,
    functions=_PAIRS_FUNCTION + _total_function(ZMM),
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
    functions=_total_function(YMM),
    attributes=AVX2_ONLY,
    store=WRITE_YMM,
)
VFMADD231PS_BF16, VFMADD231PS_BF16_YMM = (
    replace(
        dot,
        name=dot.name.replace("ps", "ps_bf16"),
        backend=f"{dot.backend}_widened",
        factors=("bfloat16", "bfloat16"),
        call=partial(_widened, dot.registers),
        spread=partial(_spread_wide, dot.registers),
        total=None,
        functions="",
    )
    for dot in (VFMADD231PS, VFMADD231PS_YMM)
)

DOT_PRODUCTS = {
    dot.name: dot
    for dot in (
        VPDPBUSD,
        VDPBF16PS,
        VPDPBUSD_YMM,
        VPMADDUBSW,
        VPMADDWD_WORDS,
        VPMADDWD,
        VFMADD231PS,
        VFMADD231PS_YMM,
        VFMADD231PS_BF16,
        VFMADD231PS_BF16_YMM,
    )
}
"""Dot products by name; of equally suitable ones of a CPU feature, the first is used."""
