"""Vector and matrix instructions of processors, from the manuals of Intel and Arm."""

from __future__ import annotations

import itertools
from collections.abc import Mapping

import numpy as np

from tests.unit.hw.shipped.facts import Array, Irregular, Model, facts


def vpdpbusd(broadcast: Array, register: Array, sums: Array) -> None:
    """SDM volume 2, VPDPBUSD: one group of four bytes per 32-bit lane."""
    for lane in range(len(sums)):
        for byte in range(4):
            sums[lane] += broadcast[byte] * register[4 * lane + byte]


def byte_pairs(broadcast: Array, register: Array, sums: Array) -> None:
    """SDM volume 2, PMADDWD on words, or PMOVZXBW's and PMOVSXBW's: one pair per 32-bit lane."""
    for lane in range(len(sums)):
        for byte in range(2):
            sums[lane] += broadcast[byte] * register[2 * lane + byte]


def vdpbf16ps(broadcast: Array, register: Array, sums: Array) -> None:
    """SDM volume 2, VDPBF16PS: one pair per 32-bit lane."""
    for lane in range(16):
        for half in range(2):
            sums[lane] += broadcast[half] * register[2 * lane + half]


def byte_dots_by_element(element: Array, register: Array, sums: Array) -> None:
    """Arm ARM, SDOT and UDOT (by element): the same four bytes for every 32-bit lane."""
    for lane in range(4):
        for byte in range(4):
            sums[lane] += register[4 * lane + byte] * element[byte]


def smmla(first: Array, second: Array, sums: Array) -> None:
    """Arm ARM, SMMLA: rows of eight bytes by rows of eight bytes, a 2 x 2 tile row by row."""
    for row, column, byte in itertools.product(range(2), range(2), range(8)):
        sums[2 * row + column] += first[8 * row + byte] * second[8 * column + byte]


def amx(group: int) -> Model:
    """SDM volume 2, TDPBSSD (group 4) and TDPBF16PS (group 2): rows of 64 bytes."""

    def model(a: Array, b: Array, c: Array) -> None:
        row = 16 * group
        for m in range(len(a) // row):
            for k, n, i in itertools.product(range(16), range(16), range(group)):
                c[m * 16 + n] += a[m * row + group * k + i] * b[k * row + group * n + i]

    return model


def lanes(left: Array, right: Array, sums: Array) -> None:
    """SDM volume 2, VPMULLD and VPADDD on widened bytes, or VFMADD231PS; Arm ARM, MLA (vector) on
    widened bytes: lane by lane."""
    for lane in range(len(sums)):
        sums[lane] += left[lane] * right[lane]


def fma(broadcast: Array, register: Array, sums: Array) -> None:
    """SDM volume 2, VFMADD231PS with a broadcast factor (VBROADCASTSS, or {1to16})."""
    for lane in range(len(sums)):
        sums[lane] += broadcast[0] * register[lane]


def dot(left: Array, right: Array, total: Array) -> None:
    """BLAS level 1."""
    total[0] += left @ right


LANES = (
    "arm_f32_lanes",
    "arm_int8",
    "avx2_bf16_fma",
    "avx2_f32_lanes",
    "avx2_lanes",
    "avx512_bf16_fma",
    "avx512_f32_lanes",
    "avx512_int8",
)

FMA = ("arm_f32", "avx2_bf16_outer", "avx2_f32", "avx512_bf16_outer", "avx512_f32")

MODELS: dict[str, Model] = {
    **dict.fromkeys(LANES, lanes),
    **dict.fromkeys(FMA, fma),
    "amx_bf16": amx(2),
    "amx_int8": amx(4),
    "arm_sdot": byte_dots_by_element,
    "arm_smmla": smmla,
    "arm_udot": byte_dots_by_element,
    "avx2_f32_dot": dot,
    "avx2_int7": vpdpbusd,
    "avx2_int16": byte_pairs,
    "avx2_int8": byte_pairs,
    "avx2_uint7": vpdpbusd,
    "avx512_bf16": vdpbf16ps,
    "avx512_bf16_dot": dot,
    "avx512_f32_dot": dot,
    "avx512_vnni": vpdpbusd,
    "avx512_vnni_dot": dot,
    "avx512_vnni_uint8": vpdpbusd,
    "avx_vnni": vpdpbusd,
    "avx_vnni_dot": dot,
    "avx_vnni_uint8": vpdpbusd,
}


def vpsadbw(inputs: Mapping[str, Array]) -> Array:
    """SDM volume 2, PSADBW: absolute differences of the eight bytes of each 64-bit lane."""
    a, b = inputs["A"], inputs["B"]
    return (np.maximum(a, b) - np.minimum(a, b)).astype(np.int64).sum(axis=1)


def vpmaddubsw(inputs: Mapping[str, Array]) -> Array:
    """SDM volume 2, PMADDUBSW: pairs of products, summed with signed saturation."""
    products = inputs["A"].astype(np.int64) * inputs["B"].astype(np.int64)
    return np.clip(products[:, 0] + products[:, 1], -(2**15), 2**15 - 1)


IRREGULAR: dict[str, Irregular] = {"avx2_maddubs": vpmaddubsw, "avx512_sad": vpsadbw}

BYTES = "int8 int8 int32, int8 uint8 int32, uint8 int8 int32, uint8 uint8 int32"
FLOATS = "float32 float32 float32"
HALVES = "bfloat16 bfloat16 float32"
VNNI = "avx512f avx512_vnni"

FACTS = {
    "avx512_vnni": facts("y 16, z 4", "x86", VNNI, "uint8 int8 int32", ""),
    "avx512_vnni_dot": facts("z 64", "x86", VNNI, "uint8 int8 int32", ""),
    "avx512_int8": facts("y 16", "x86", "avx512f avx512bw", BYTES, ""),
    "avx512_bf16": facts(
        "y 16, z 2", "x86", "avx512f avx512_bf16", "bfloat16 bfloat16 float32", ""
    ),
    "avx512_bf16_dot": facts("z 32", "x86", "avx512f avx512_bf16", "bfloat16 bfloat16 float32", ""),
    "avx512_bf16_fma": facts("y 16", "x86", "avx512f avx512bw", "bfloat16 bfloat16 float32", ""),
    "avx512_bf16_outer": facts("y 16", "x86", "avx512f avx512bw", HALVES, ""),
    "avx2_bf16_outer": facts("y 8", "x86", "avx2 fma", HALVES, ""),
    "avx2_bf16_fma": facts("y 8", "x86", "avx2 fma", HALVES, ""),
    "avx512_f32": facts("y 16", "x86", "avx512f", FLOATS, ""),
    "avx512_f32_dot": facts("z 16", "x86", "avx512f", FLOATS, ""),
    "avx512_f32_lanes": facts("y 16", "x86", "avx512f", FLOATS, ""),
    "avx2_f32": facts("y 8", "x86", "avx2 fma", FLOATS, ""),
    "avx2_f32_dot": facts("z 8", "x86", "avx2 fma", FLOATS, ""),
    "avx2_f32_lanes": facts("y 8", "x86", "avx2 fma", FLOATS, ""),
    "avx_vnni": facts("y 8, z 4", "x86", "avx2 avx_vnni", "uint8 int8 int32", ""),
    "avx2_int16": facts(
        "y 8, z 2",
        "x86",
        "avx2",
        "int16 int16 int32, int16 int8 int32, int16 uint8 int32",
        "",
    ),
    "avx2_int8": facts("y 8, z 2", "x86", "avx2", free=""),
    "avx_vnni_uint8": facts("y 8, z 4", "x86", "avx2 avx_vnni", free=""),
    "amx_int8": facts("x 16, y 16, z 64", "x86", "amx_tile amx_int8", BYTES, "A.x, C.x"),
    "amx_bf16": facts(
        "x 16, y 16, z 32", "x86", "amx_tile amx_bf16", "bfloat16 bfloat16 float32", "A.x, C.x"
    ),
    "arm_sdot": facts("y 4, z 4", "arm", "asimddp", "int8 int8 int32", ""),
    "arm_udot": facts("y 4, z 4", "arm", "asimddp", "uint8 uint8 int32", ""),
    "arm_smmla": facts("x 2, y 2, z 8", "arm", "i8mm", "int8 int8 int32", ""),
    "arm_f32": facts("y 4", "arm", "asimd", FLOATS, ""),
    "arm_f32_lanes": facts("y 4", "arm", "asimd", FLOATS, ""),
    "arm_int8": facts("y 4", "arm", "asimd", BYTES, ""),
}

PEAKS = {
    ("amx_int8", "xeon_8480"): 56 * 2.0 * 16 * 16 * 64 / 16,
    ("amx_bf16", "xeon_8480"): 56 * 2.0 * 16 * 16 * 32 / 16,
    ("avx512_vnni", "epyc_9755"): 128 * 2.7 * 128,
    ("avx512_vnni", "epyc_9654"): 96 * 2.4 * 64,
    ("avx512_vnni", "xeon_8480"): 56 * 2.0 * 128,
    ("avx_vnni", "epyc_9755"): 128 * 2.7 * 64,
    ("avx512_f32", "epyc_9755"): 128 * 2.7 * 32,
    ("avx512_f32", "epyc_9654"): 96 * 2.4 * 16,
    ("avx512_f32", "xeon_8480"): 56 * 2.0 * 32,
    ("avx2_f32", "epyc_9755"): 128 * 2.7 * 16,
    ("arm_sdot", "graviton2"): 64 * 2.5 * 32,
    ("arm_udot", "graviton2"): 64 * 2.5 * 32,
}
