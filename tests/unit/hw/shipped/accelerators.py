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


MODELS: dict[str, Model] = {
    "gemmini_16x16": gemmini,
    "vta_1x16x16": vta_gemm(1, 16),
    "vta_8x8x8": vta_gemm(8, 8),
}

VTA = "int8 int8 int32, int8 int8 int8"

FACTS = {
    "gemmini_16x16": facts("x 16, y 16, z 16", None, "", "int8 int8 int32"),
    "vta_1x16x16": facts("x 1, y 16, z 16", "vta", "", VTA, ""),
    "vta_8x8x8": facts("x 8, y 8, z 8", "vta", "", VTA, ""),
}

PEAKS = {
    ("gemmini_16x16", "rocket_soc"): 256.0,
    ("vta_1x16x16", "pynq_z1"): 25.6,
    ("vta_8x8x8", "pynq_z1"): 51.2,
}
