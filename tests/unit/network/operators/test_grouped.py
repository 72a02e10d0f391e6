"""Kernels of weight-only products against their definition, and that against plain numpy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from cpembed.graph.kinds import GroupedFormat, GroupedGather, GroupedProduct
from tests.unit.network.operators.running import check

Array = NDArray[Any]
RANDOM = np.random.default_rng(11)


def weights(form: GroupedFormat, zeros: str | None) -> tuple[Array, Array, list[Array], Array]:
    """Codes, scales by row, inputs of a kernel (words, scales, zero points), floats."""
    codes = RANDOM.integers(0, 2**form.bits, (form.rows, form.columns)).astype(np.uint8)
    scale = RANDOM.uniform(0.01, 0.1, (form.rows, form.groups)).astype(np.float32)
    zero = np.full(scale.shape, 2.0 ** (form.bits - 1))
    packed = [form.packed(codes), form.tiled(scale)]
    if zeros:
        zero = RANDOM.uniform(0, 2**form.bits, scale.shape)
        zero = zero.astype(zeros)
        packed.append(form.tiled(zero))
    of_column = np.arange(form.columns) // form.block
    floats = (codes.astype(np.float64) - zero[:, of_column]) * scale[:, of_column]
    return codes, scale, packed, floats


SHAPES = [
    # rows of weights, columns, bits, block
    (64, 128, 4, 32),
    (32, 64, 8, 16),
    (96, 64, 2, 32),
    (40, 100, 4, 32),
    (5, 33, 8, 16),
    (33, 50, 2, 50),
    (64, 300, 4, 300),
    (32, 48, 4, 12),
]


@pytest.mark.parametrize("shape", SHAPES)
def test_codes_are_what_was_packed(shape: tuple[int, int, int, int]) -> None:
    form = GroupedFormat(*shape)
    codes, scale, (words, tiled), _ = weights(form, None)
    assert words.nbytes == form.tiles * 32 * form.groups * form.padded_block * form.bits // 8
    np.testing.assert_array_equal(form.codes(words), codes)
    np.testing.assert_array_equal(form.by_row(tiled), scale)
    # Each column's place, read with a shift and a mask.
    for row, column in RANDOM.integers(0, [form.rows, form.columns], (50, 2)):
        group, inside = divmod(int(column), form.block)
        word, bit = form.place(inside)
        value = int(words[row // 32, group, word, row % 32]) & 0xFFFFFFFF
        assert value >> bit & (2**form.bits - 1) == codes[row, column]


@pytest.mark.parametrize("rows", [1, 2, 3, 4, 5, 8])
@pytest.mark.parametrize("zeros", [None, "uint8", "float32"])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.quick(30)
def test_products(shape: tuple[int, int, int, int], zeros: str | None, rows: int) -> None:
    form = GroupedFormat(*shape)
    _, _, packed, floats = weights(form, zeros)
    a = RANDOM.standard_normal((rows, form.columns)).astype(np.float32)
    bias = RANDOM.standard_normal(form.rows).astype(np.float32)
    kind = GroupedProduct((rows, form.rows), form, 2.0 ** (form.bits - 1), bool(zeros), True)
    inputs = [a, *packed, bias]
    (defined,) = kind.evaluate(inputs)
    np.testing.assert_allclose(defined, a @ floats.T + bias, rtol=1e-5, atol=1e-5)
    for threads in (1, 2):
        check(kind, inputs, threads=threads, tolerance=2e-5)


@pytest.mark.parametrize("rows", [1, 3, 7])
def test_special_values(rows: int) -> None:
    """An infinite or undefined activation reaches the results that the definition has it in."""
    form = GroupedFormat(40, 64, 4, 32)
    _, _, packed, _ = weights(form, None)
    a = RANDOM.standard_normal((rows, 64)).astype(np.float32)
    a[-1, 5], a[0, 40] = np.inf, np.nan
    kind = GroupedProduct((rows, 40), form, 8.0)
    check(kind, [a, *packed], tolerance=2e-5)


def test_scales_of_16_bits() -> None:
    form = GroupedFormat(64, 64, 4, 32)
    _, _, (words, scale), _ = weights(form, None)
    kind = GroupedProduct((1, 64), form, 8.0)
    a = RANDOM.standard_normal((1, 64)).astype(np.float32)
    check(kind, [a, words, scale.astype(np.float16)], tolerance=2e-5)


@pytest.mark.parametrize("zeros", [None, "uint8"])
@pytest.mark.parametrize("shape", SHAPES)
def test_gathered_rows(shape: tuple[int, int, int, int], zeros: str | None) -> None:
    form = GroupedFormat(*shape)
    _, _, packed, floats = weights(form, zeros)
    indices = RANDOM.integers(-form.rows, form.rows, (2, 3))
    kind = GroupedGather((2, 3, form.columns), form, 2.0 ** (form.bits - 1), bool(zeros))
    (defined,) = kind.evaluate([*packed, indices])
    np.testing.assert_allclose(defined, floats[indices], rtol=1e-6)
    check(kind, [*packed, indices], tolerance=1e-6)
