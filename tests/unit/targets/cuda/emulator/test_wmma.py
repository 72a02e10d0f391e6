"""WMMA: products in all shapes, types and layouts, and what depends on a layout of fragments."""

from __future__ import annotations

from functools import cache
from itertools import product

import ml_dtypes
import numpy as np
import pytest

from cpembed.targets.cuda.emulator.executor import Launch, Program, compile_text
from tests.unit.targets.cuda.emulator.running import (
    fault,
    needs_compiler,
    small_integers,
    text,
    total,
    with_device_functions,
)

pytestmark = needs_compiler

SHAPES = {"m16n16k16": (16, 16), "m32n8k16": (32, 8), "m8n32k16": (8, 32)}
TYPES = ("f16_f32", "f16_f16", "bf16_f32", "s8_s32", "u8_s32")
NUMPY = {
    "f16": np.float16, "bf16": ml_dtypes.bfloat16, "s8": np.int8, "u8": np.uint8,
    "f32": np.float32, "s32": np.int32,
}  # fmt: skip
CUDA = {
    "f16": "half", "bf16": "nv_bfloat16", "s8": "signed char", "u8": "unsigned char",
    "f32": "float", "s32": "int",
}  # fmt: skip


@cache
def wmma() -> Program:
    """``wmma.cu`` with a kernel for each shape and types."""
    kernels = [text("wmma.cu")]
    for (shape, (m, n)), types in product(SHAPES.items(), TYPES):
        factor, sums = types.split("_")
        a, c = CUDA[factor], CUDA[sums]
        kernels.append(
            f'extern "C" __global__ void functions_{shape}_{types}({a}* A, {a}* B, {c}* C, '
            f"int pitch) {{ PRODUCT({shape}, {m}, {n}, {factor}, {a}, {sums}, {c}, "
            f"{sums}_{factor}_{factor}); }}"
        )
    return compile_text(with_device_functions("\n".join(kernels)))


def warp(kernel: str) -> Launch:
    return Launch(kernel, (1, 1, 1), (32, 1, 1))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("types", TYPES)
def test_products_through_device_functions(shape: str, types: str) -> None:
    (m, n), (factor, sums) = SHAPES[shape], types.split("_")
    a = small_integers((m, 16), "int8", 1).astype(NUMPY[factor])
    b = small_integers((n, 16), "int8", 2).astype(NUMPY[factor])
    found = np.zeros((m, n), NUMPY[sums])
    counters = wmma().run(warp(f"functions_{shape}_{types}"), [a, b, found, 16])
    np.testing.assert_array_equal(found, a.astype(np.float64) @ b.astype(np.float64).T)
    assert list(counters.mma.values()) == [1]
    assert total(counters, "wmma.load.") == 2
    assert counters.barriers == 0


@pytest.mark.parametrize("layouts", ["rr", "rc", "cr", "cc"])
def test_products_through_the_interface_of_cpp(layouts: str) -> None:
    a, b = small_integers((16, 16), "float16", 1), small_integers((16, 16), "float16", 2)
    c, found = small_integers((16, 16), "float32", 3), np.zeros((16, 16), np.float32)
    wmma().run(warp(f"interface_{layouts}"), [a, b, c, found])
    first, second = (
        factor.T if by == "c" else factor for factor, by in zip((a, b), layouts, strict=True)
    )
    turned = layouts[0] == "c"
    expected = 2 * (first.astype(np.float32) @ second + (c.T if turned else c))
    np.testing.assert_array_equal(found, expected.T if turned else expected)


def test_rows_side_by_side_cost_fewer_wavefronts_than_rows_in_the_same_banks() -> None:
    """Rows of 32 bytes: 8 pieces of 16 bytes are 8 rows, two of which share banks."""
    a, b = small_integers((16, 16), "float16", 1), small_integers((16, 16), "float16", 2)
    found = np.zeros((16, 16), np.float32)
    loads = {}
    for pitch in (16, 24, 32):
        counters = wmma().run(warp("functions_m16n16k16_f16_f32"), [a, b, found, pitch])
        np.testing.assert_array_equal(found, a.astype(np.float32) @ b.T)
        # Less those of reading the 256 sums back, one word a lane.
        loads[pitch] = counters.shared_load_wavefronts - 8
    pieces = 2 * 4  # Of 8 rows of 16 bytes, in both factors.
    assert loads == {16: 2 * pieces, 24: pieces, 32: 4 * pieces}


def test_a_layout_of_fragments_that_is_taken_for_granted_is_wrong() -> None:
    a, found = small_integers((16, 16), "float16", 1), np.zeros(256, np.float32)
    wmma().run(warp("assumes_a_layout"), [a, found])
    assert not np.array_equal(found, a.reshape(-1))
    np.testing.assert_array_equal(np.sort(found), np.sort(a.reshape(-1)))


@pytest.mark.parametrize(
    "offset, ld, said",
    [(8, 16, "is misaligned"), (0, 20, "needs lines that begin 16 bytes apart"), (0, 8, "lines")],
)
def test_tiles_have_to_be_aligned(offset: int, ld: int, said: str) -> None:
    a, found = np.zeros(1024, np.float16), np.zeros(32, np.float16)
    assert said in fault(wmma(), warp("misaligned"), [a, found, offset, ld])


def test_reading_a_stored_tile_needs_a_barrier() -> None:
    line = fault(wmma(), warp("no_barrier"), [np.zeros(32, np.float32)])
    assert "data race in shared memory: thread" in line
    assert "which warp 0 wrote" in line


def test_a_warp_has_to_be_whole() -> None:
    arguments = [np.zeros(256, np.float16), np.zeros(256, np.float32)]
    launch = Launch("assumes_a_layout", (1, 1, 1), (16, 1, 1))
    assert "needs all 32 lanes" in fault(wmma(), launch, arguments)
