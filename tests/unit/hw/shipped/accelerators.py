"""Matrix units beside a processor, from their makers' descriptions."""

from __future__ import annotations

import itertools

from tests.unit.hw.shipped.facts import Array, Model, facts


def vta_gemm(batch: int, block: int) -> Model:
    """acc[b][o] += inp[b][i] * wgt[o][i] (VTA hardware guide)."""

    def model(inp: Array, wgt: Array, acc: Array) -> None:
        for b, o, i in itertools.product(range(batch), range(block), range(block)):
            acc[b * block + o] += inp[b * block + i] * wgt[o * block + i]

    return model


def gemmini(a: Array, b: Array, c: Array) -> None:
    """Gemmini's README, weights stationary: B stays in the array, a row of A enters each cycle, and
    what comes out is added to a row of the accumulator."""
    for row in range(16):
        for column in range(16):
            c[row * 16 + column] += a[row * 16 : row * 16 + 16] @ b[column::16]


def sw26010(a: Array, b: Array, c: Array) -> None:
    """swATOP, section 4.1: spm_gemm of the least sizes, on 8 x 8 cores with a block of each matrix.
    In each of eight steps a column of cores sends its A along rows, a row its B along columns."""
    blocks = a.reshape(8, 4, 8, 1), b.reshape(8, 1, 8, 1)
    sums = c.reshape(8, 4, 8, 1)
    for step, row, column in itertools.product(range(8), repeat=3):
        sent_a = blocks[0][row, :, step, :]
        sent_b = blocks[1][step, :, column, :]
        sums[row, :, column, :] += sent_a @ sent_b


def nvdla(a: Array, b: Array, c: Array) -> None:
    """NVDLA's hardware manual, unit description of the convolution MAC: an atomic operation
    multiplies eight channels of a pixel by those of each of eight kernels."""
    for kernel in range(8):
        c[kernel] += a @ b[kernel * 8 : kernel * 8 + 8]


MODELS: dict[str, Model] = {
    "gemmini_16x16": gemmini,
    "nvdla_small": nvdla,
    "sw26010": sw26010,
    "vta_1x16x16": vta_gemm(1, 16),
    "vta_8x8x8": vta_gemm(8, 8),
}

VTA = "int8 int8 int32, int8 int8 int8"

FACTS = {
    "gemmini_16x16": facts("x 16, y 16, z 16", "scratchpad", "", "int8 int8 int32"),
    "nvdla_small": facts("y 8, z 8", "scratchpad", "", "int8 int8 int32", "B.y"),
    "sw26010": facts(
        "x 32, y 8, z 8",
        "scratchpad",
        "",
        "float32 float32 float32",
        "A.x, A.z, B.y, B.z, C.x, C.y",
    ),
    "vta_1x16x16": facts("x 1, y 16, z 16", "vta", "", VTA, ""),
    "vta_8x8x8": facts("x 8, y 8, z 8", "vta", "", VTA, ""),
}

PEAKS = {
    ("gemmini_16x16", "rocket_soc"): 256.0,
    ("nvdla_small", "soc"): 64.0,
    # A quarter of 3.06 TFlops, by which a multiply-add is two: 371 products a nanosecond with the
    # clock of 1.45 GHz, 3 % less than the paper's peak.
    ("sw26010", "core_group"): 371.2,
    ("vta_1x16x16", "pynq_z1"): 25.6,
    ("vta_8x8x8", "pynq_z1"): 51.2,
}
