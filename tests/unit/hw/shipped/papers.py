"""Instructions of papers that no machine here executes, and irregular ones."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from tests.unit.hw.shipped.facts import Array, Irregular, Model, facts


def axpy(scalar: Array, vector: Array, sums: Array) -> None:
    """BLAS level 1."""
    sums += scalar[0] * vector


def dot(left: Array, right: Array, total: Array) -> None:
    """BLAS level 1."""
    total[0] += left @ right


def gemv(matrix: Array, vector: Array, sums: Array) -> None:
    """BLAS level 2, rows one after the other."""
    for row in range(16):
        sums[row] += matrix[16 * row : 16 * row + 16] @ vector


def pointwise_conv(image: Array, filters: Array, output: Array) -> None:
    """A 1x1 convolution: every pixel by itself, its channels 16 elements apart."""
    for pixel in range(16):
        for k in range(4):
            output[16 * k + pixel] += image[pixel::16] @ filters[4 * k : 4 * k + 4]


def gemm(a: Array, b: Array, c: Array) -> None:
    """BLAS level 3, rows one after the other."""
    c += (a.reshape(16, 16) @ b.reshape(16, 16)).ravel()


MODELS: dict[str, Model] = {
    "axpy": axpy,
    "dot": dot,
    "gemm_16x16x16": gemm,
    "gemv": gemv,
    "pointwise_conv": pointwise_conv,
}


def complex_mac(inputs: Mapping[str, Array]) -> Array:
    """Complex arithmetic on interleaved numbers; exact in float64, then wrapped at 32 bits."""
    a, b = (inputs[name].astype(np.float64) @ np.array([1, 1j]) for name in "AB")
    product = a @ b
    return np.stack([product.real, product.imag], axis=-1).astype(np.int64).astype(np.int32)


def pre_add_dot(inputs: Mapping[str, Array]) -> Array:
    """UG579: P = P + (A + D) * B, twice."""
    a, d, b = (inputs[name].astype(np.int64) for name in "ADB")
    return (a + d) @ b


def requantize(inputs: Mapping[str, Array]) -> Array:
    """Fixed-point multiplication by M / 2^16, rounding towards minus infinity, then clipping."""
    a, m, b = (inputs[name].astype(np.int64) for name in "AMB")
    return np.clip((a * m + b) // 2**16, -128, 127)


IRREGULAR: dict[str, Irregular] = {
    "complex_mac": complex_mac,
    "pre_add_dot": pre_add_dot,
    "requantize": requantize,
}

BYTES = "int8 int8 int32"

FACTS = {
    "axpy": facts("x 16", None, "", BYTES, ""),
    "dot": facts("z 16", None, "", BYTES, ""),
    "gemm_16x16x16": facts("x 16, y 16, z 16", None, "", BYTES, "A.x, B.z, C.x"),
    "gemv": facts("x 16, z 16", None, "", BYTES, "A.x"),
    "pointwise_conv": facts("k 4, p 4, q 4, c 4", None, "", BYTES, "A.c, A.p, B.k, C.k, C.p"),
}
