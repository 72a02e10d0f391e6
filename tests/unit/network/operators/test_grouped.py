"""Kernels of weight-only products against their definition, and that against plain numpy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from cpembed.graph.kinds import GroupedFormat, GroupedGather, GroupedProduct, GroupQuantize
from cpembed.network.operators import grouped_integers
from cpembed.network.operators.grouped_instruction import CODES, group_selection, group_workload
from cpembed.transform.program import pack
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
@pytest.mark.quick(12)
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
@pytest.mark.quick(4)
def test_gathered_rows(shape: tuple[int, int, int, int], zeros: str | None) -> None:
    form = GroupedFormat(*shape)
    _, _, packed, floats = weights(form, zeros)
    indices = RANDOM.integers(-form.rows, form.rows, (2, 3))
    kind = GroupedGather((2, 3, form.columns), form, 2.0 ** (form.bits - 1), bool(zeros))
    (defined,) = kind.evaluate([*packed, indices])
    np.testing.assert_allclose(defined, floats[indices], rtol=1e-6)
    check(kind, [*packed, indices], tolerance=1e-6)


# -- activations of bytes -------------------------------------------------------------------------


@pytest.mark.parametrize("columns, block", [(64, 32), (100, 32), (33, 16), (48, 12), (300, 300)])
@pytest.mark.quick(2)
def test_groups_are_rounded(columns: int, block: int) -> None:
    """Each group by itself, with every special value; halves of two levels go to the even one."""
    form = GroupedFormat(1, columns, 4, block)
    rows = RANDOM.standard_normal((9, columns)).astype(np.float32)
    rows[1] = 0
    rows[2, 3], rows[3, 5], rows[4, 0] = np.nan, np.inf, -np.inf
    rows[5] = 1e-44
    rows[6] = np.linspace(-127, 127, columns).round() / 2
    rows[7, :block] = -0.0
    rows[8] *= np.float32(1e38)
    kind = GroupQuantize(columns, block, form.padded_block)
    levels, scale, sums = kind.evaluate([rows])
    for row, group in np.ndindex(9, form.groups):
        part = rows[row, group * block : (group + 1) * block]
        inside = levels[row, group, : len(part)]
        assert not levels[row, group, len(part) :].any()
        assert sums[row, group] == inside.sum(dtype=np.int64)
        if np.isfinite(part).all():
            # The scale of subnormal numbers has few bits, or none.
            step = np.abs(part).max() / 127
            assert np.abs(inside * float(scale[row, group]) - part).max() <= 0.502 * step + 1e-38
        else:
            assert not np.isfinite(scale[row, group])
            assert not inside.any()
    check(kind, [rows], threads=2)


@pytest.mark.parametrize("instruction", ["native", "portable"])
@pytest.mark.parametrize("rows", [1, 2, 4, 7])
@pytest.mark.parametrize("zeros", [None, "uint8", "float32"])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.quick(8)
def test_products_of_bytes(
    shape: tuple[int, int, int, int],
    zeros: str | None,
    rows: int,
    instruction: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if instruction == "portable":
        monkeypatch.setattr(grouped_integers, "group_instruction", lambda columns: None)
    form = GroupedFormat(*shape)
    _, _, packed, floats = weights(form, zeros)
    a = RANDOM.standard_normal((rows, form.columns)).astype(np.float32)
    activations = GroupQuantize(form.columns, form.block, form.padded_block).evaluate([a])
    zero = 2.0 ** (form.bits - 1)
    kind = GroupedProduct((rows, form.rows), form, zero, bool(zeros), integers=True)
    inputs = [*activations, *packed]
    (defined,) = kind.evaluate(inputs)
    of_column = np.arange(form.columns) // form.block
    inside = np.arange(form.columns) % form.block
    rounded = activations[0][:, of_column, inside] * activations[1][:, of_column]
    np.testing.assert_allclose(defined, rounded @ floats.T, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(defined, a @ floats.T, atol=0.02 * np.abs(defined).max())
    check(kind, inputs, threads=2, tolerance=2e-5)


def test_the_largest_sums_are_exact() -> None:
    """Codes of 15 and activations of 127, of which an instruction adds two in 16 bits."""
    form = GroupedFormat(32, 64, 4, 64)
    packed = [form.packed(np.full((32, 64), 15, np.uint8)), form.tiled(np.ones((32, 1), "f4"))]
    for level in (127, -127):
        levels = np.full((1, 1, 64), level, np.int8)
        sums = levels.sum(axis=2, dtype=np.int32)
        kind = GroupedProduct((1, 32), form, 0.0, integers=True)
        inputs = [levels, np.ones((1, 1), np.float32), sums, *packed]
        np.testing.assert_array_equal(kind.evaluate(inputs)[0], np.float32(64 * 15 * level))
        check(kind, inputs)


@pytest.mark.parametrize("rows", [1, 4, 9])
@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("integers", [False, True])
def test_every_code_at_every_place_of_a_word(bits: int, rows: int, integers: bool) -> None:
    """One activation of 1 at a time leaves the code: each value beside zeros and beside ones.

    Nothing is rounded, so that results are equal.
    """
    codes_of_word, values = 32 // bits, 2**bits
    form = GroupedFormat(2 * values * codes_of_word, codes_of_word, bits, codes_of_word)
    codes = np.empty((2, codes_of_word, values, codes_of_word), np.uint8)
    codes[0], codes[1] = 0, values - 1
    for place in range(codes_of_word):
        codes[:, place, :, place] = np.arange(values)
    codes = codes.reshape(form.rows, form.columns)
    packed = [form.packed(codes), form.tiled(np.ones((form.rows, 1), np.float32))]
    identity = np.eye(codes_of_word, dtype=np.int8)
    # A kernel of the same number of rows for all places; the last ones are repeated.
    for start in range(0, codes_of_word, rows):
        taken = np.arange(start, start + rows) % codes_of_word
        ones = identity[taken]
        activations: list[Array] = [ones.astype(np.float32)]
        if integers:
            sums = np.ones((rows, 1), np.int32)
            activations = [ones[:, None], np.ones((rows, 1), np.float32), sums]
        kind = GroupedProduct((rows, form.rows), form, 0.0, integers=integers)
        inputs = [*activations, *packed]
        np.testing.assert_array_equal(kind.evaluate(inputs)[0], codes.T[taken])
        check(kind, inputs)


def test_an_unpacked_word_is_a_register_of_the_embedding() -> None:
    """What a kernel unpacks of the words of some rows is what the proven program reads as the
    second factor of its instruction."""
    selection = group_selection(32)
    if selection is None:
        pytest.skip("this processor has no dot product of four signed by unsigned bytes")
    program = selection.ranked.program
    form = GroupedFormat(32, 32, 4, 32)
    codes = RANDOM.integers(0, 16, (32, 32)).astype(np.uint8)
    second = group_workload(32).inputs[1]
    assert second.dtype == CODES
    # Operands are in the order of the instruction's, whose second factor has the lanes.
    operand = program.operands[1]
    lanes = next(a.extent for a in program.instruction.computation.axes if a.name == "y")
    registers = pack(operand, codes.T.reshape(second.shape)).reshape(-1, 4 * lanes)
    words = form.packed(codes)[0, 0].view(np.uint32)
    unpacked = {
        (word[first : first + lanes] >> np.uint32(4 * phase) & np.uint32(0x0F0F0F0F)).tobytes()
        for word in words
        for phase in range(2)
        for first in range(0, 32, lanes)
    }
    assert {register.astype(np.uint8).tobytes() for register in registers} == unpacked
