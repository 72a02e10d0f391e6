"""A product on a mesh with two buffers: right in all variants, counted, and mutants are caught."""

from __future__ import annotations

import dataclasses
import re

import numpy as np
import pytest

from cpembed.targets.scratchpad.executor import Shape, TransferCounts, compile_text
from tests.unit.targets.scratchpad.executor.running import (
    MESH,
    Array,
    body,
    changed,
    fault,
    needs_compiler,
    read_only,
    run,
    small_integers,
    text,
)

pytestmark = needs_compiler

A = small_integers((96, 160), "float32", 0)
B = small_integers((160, 64), "float32", 1)


def source(variant: int, *changes: tuple[str, str]) -> str:
    return f"#define VARIANT {variant}\n{changed(text('gemm.c'), *changes)}"


def operands(variant: int) -> list[Array]:
    shape = (96, 64) if variant & 4 else (64, 96)
    return [
        read_only(A.T if variant & 1 else A),
        read_only(B.T if variant & 2 else B),
        np.full(shape, np.nan, np.float32),
    ]


@pytest.mark.parametrize("variant", range(8))
def test_product(variant: int) -> None:
    program = compile_text(source(variant))
    for seed in (0, 1):
        arrays = operands(variant)
        counters = run(program, arrays, seed=seed)
        np.testing.assert_array_equal(arrays[2] if variant & 4 else arrays[2].T, A @ B)
    tiles, steps = 3 * 2, 5
    assert counters.gemms == {(32, 32, 32, variant): tiles * steps}
    # Every block of 16 bytes lies in one transaction of 128.
    fetched = TransferCounts(tiles * steps * 64, tiles * steps * 4096, tiles * steps * 64 * 4)
    assert counters.moved == {
        (0, "get"): fetched,
        (1, "get"): fetched,
        (2, "put"): TransferCounts(tiles * 64, 96 * 64 * 4, tiles * 64 * 4),
    }
    assert counters.zeroed_bytes == 96 * 64 * 4
    assert counters.peaks == (5 * 64,)
    single, vectors = tiles * steps * 32 * 32, tiles * steps * 32 * 32 // 4
    sent = (single, vectors) if variant & 4 else (vectors, single)
    assert (counters.row_vectors, counters.column_vectors) == sent


def test_a_run_is_the_same_for_the_same_seed() -> None:
    program = compile_text(source(3, ("dma_wait(&replies[buffer], 2);\n", "")))
    said = {fault(program, operands(3), seed=seed) for seed in (5, 5, 5)}
    assert len(said) == 1
    assert len({fault(program, operands(3), seed=seed) for seed in range(8)}) > 1


LINES = {
    "@get": "dma_get(scratchpad(0, A_AT",
    "@put": "dma_put(",
    "@wait": "dma_wait(&replies",
    "@gemm": " gemm(",
    "@zero": "zero(",
}


def matches(pattern: str, said: str, source: str) -> bool:
    """Whether a message is as the pattern says, with the lines of the text for their names."""
    lines = source.split("\n")
    for name, part in LINES.items():
        if name in pattern:
            number = next(n for n, line in enumerate(lines, 1) if part in line)
            pattern = pattern.replace(name, f"line {number}")
    return re.search(pattern, said) is not None


MUTANTS = {
    "no wait": (
        [("dma_wait(&replies[buffer], 2);\n", "")],
        r"gemm's A at @gemm .* reads bytes 0 to 15 of memory 0, which dma_get at @get .* fills",
    ),
    "waits for one": (
        [("dma_wait(&replies[buffer], 2)", "dma_wait(&replies[buffer], 1)")],
        r"dma_wait at @wait .* waits for 1 transfers of the 2",
    ),
    "waits for three": (
        [("dma_wait(&replies[buffer], 2)", "dma_wait(&replies[buffer], 3)")],
        r"dma_wait at @wait .* never ends: it waits for 3 transfers, and 2 were started",
    ),
    "swapped reply words": (
        [("&replies[1 - buffer]", "&replies[buffer]")],
        r"dma_wait at @wait .* waits for 2 transfers of the 4",
    ),
    "one buffer": (
        [("A_AT + buffer * A_BYTES), from", "A_AT), from")],
        r"dma_get at @get .* writes bytes 0 to 63 of memory 0, which dma_get at @get",
    ),
    "wrong buffer": (
        [("A_AT + buffer * A_BYTES),\n", "A_AT + (1 - buffer) * A_BYTES),\n")],
        r"gemm's A at @gemm .* reads bytes 64 to 79 of memory 0, which dma_get at @get",
    ),
    "put not waited for": (
        [("  dma_wait(&stored, 1);\n", "")],
        r"zero at @zero .* writes bytes 256 to 319 of memory 0, which dma_put at @put .* reads",
    ),
    "C is not zeroed": (
        [("  zero(c, C_BYTES);\n", "")],
        r"gemm's C at @gemm .* reads byte 256 of memory 0, which was never written",
    ),
    "stride": (
        [("(over_n ? N : M) * 4, &stored", "(over_n ? N : M) * 4 + 8192, &stored")],
        r"dma_put at @put .* out of bounds: bytes \d+ to \d+ of operand 2, which has 24576",
    ),
    "stride, misaligned": (
        [("stride = (column_major ? M : K) * 4", "stride = (column_major ? M : K) * 4 + 2")],
        r"dma_get at @get .* a stride of 386, which is no multiple of 4",
    ),
    "the same block of C": (
        [("j + PE_COLUMN * NB, over_n ? N : M", "j, over_n ? N : M")],
        r"dma_put at @put .* of operand 2, which PE .* writes by dma_put at @put .* without sync",
    ),
    "other sizes": (
        [("gemm(TILE_M, TILE_N", "gemm(TILE_M, PE_ROW == 3 ? 64 : TILE_N")],
        r"gemm at @gemm .* has n = \d+, while PE \(\d, \d\) calls it at @gemm .* with \d+",
    ),
    "some do not come": (
        [("    gemm(TILE_M", "    if (PE_ROW || PE_COLUMN) gemm(TILE_M")],
        r"deadlock: PE \(0, 0\) has ended; PE \(0, 1\) and 62 others wait in gemm at @gemm",
    ),
    "lanes": (
        [("TILE_M = 32", "TILE_M = 16")],
        r"gemm at @gemm .* vectorised over 2 elements of M a PE, which is no multiple of 4 lanes",
    ),
    "main memory by a plain load": (
        [("zero(c, C_BYTES);", "zero(c, C_BYTES), c[0] = *(float *)a->operand[0];")],
        r"a load at @zero .* of operand 0 in main memory, which only DMA reaches",
    ),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_mutants(name: str) -> None:
    changes, pattern = MUTANTS[name]
    mutant = source(3, *changes)
    program = compile_text(mutant)
    for seed in (0, 1, 2):
        said = fault(program, operands(3), seed=seed)
        assert re.match(r"(PE \(\d, \d\): |deadlock)", said)
        assert matches(pattern, said, mutant), said


def test_a_scratchpad_that_is_one_byte_too_small() -> None:
    program = compile_text(source(3))
    run(program, operands(3), dataclasses.replace(MESH, memories=(320,)))
    said = fault(program, operands(3), dataclasses.replace(MESH, memories=(319,)))
    pattern = "zero at @zero .* bytes 256 to 319 of memory 0, which has 319"
    assert matches(pattern, said, source(3)), said


PRODUCT = """
  float *x = scratchpad(0, 0), *y = scratchpad(0, 4096), *z = scratchpad(0, 8192);
  int m = M / PE_ROWS, n = N / PE_COLUMNS, ka = K / PE_COLUMNS, kb = K / PE_ROWS;
  int sa = sizeof(ELEMENT_A), sb = sizeof(ELEMENT_B), sc = sizeof(ELEMENT_C);
  dma_reply r = 0;
  char *from = (char *)a->operand[0] + (PE_ROW * m * K + PE_COLUMN * ka) * sa;
  dma_get(x, from, m * ka * sa, ka * sa, K * sa, &r);
  from = (char *)a->operand[1] + (PE_ROW * kb * N + PE_COLUMN * n) * sb;
  dma_get(y, from, kb * n * sb, n * sb, N * sb, &r);
  char *c = (char *)a->operand[2] + (PE_ROW * m * N + PE_COLUMN * n) * sc;
  dma_get(z, c, m * n * sc, n * sc, N * sc, &r);
  dma_wait(&r, 3);
  gemm(M, N, K, x, ka, y, n, z, n, VECTORISED_OVER_N);
  dma_put(c, z, m * n * sc, n * sc, N * sc, &r);
  dma_wait(&r, 1);
"""


@pytest.mark.parametrize(
    "rows, columns, elements",
    [
        (1, 1, "float32 float32 float32"),
        (2, 3, "float64 float64 float64"),
        (4, 2, "int8 int8 int32"),
        (1, 4, "uint8 int8 int32"),
        (3, 2, "int16 int16 int32"),
    ],
)
def test_other_meshes_and_elements(rows: int, columns: int, elements: str) -> None:
    m, n, k = 12, 24, 24
    c_names = {"float32": "float", "float64": "double"}
    types = elements.split()
    defines = "".join(
        f"#define ELEMENT_{name} {c_names.get(t, f'{t}_t')}\n"
        for name, t in zip("ABC", types, strict=True)
    )
    head = f"#include <stdint.h>\n{defines}enum {{ M = {m}, N = {n}, K = {k} }};\n"
    program = compile_text(
        f'{head}#include "scratchpad.h"\nvoid kernel(const struct arguments *a) {{{PRODUCT}}}\n'
    )
    a, b, c = (
        np.abs(small_integers(size, t, seed)).astype(t)
        for seed, (size, t) in enumerate(zip([(m, k), (k, n), (m, n)], types, strict=True))
    )
    got = c.copy()
    shape = Shape(rows, columns, (16384,), 64, 1, 1, lanes=2)
    run(program, [read_only(a), read_only(b), got], shape)
    np.testing.assert_array_equal(got, c + a.astype(c.dtype) @ b.astype(c.dtype))


def test_a_product_by_register_communication() -> None:
    """What ``gemm`` does, written with the mesh's own functions: one number a block."""
    program = body(
        """  float *p = scratchpad(0, 0), sum = 0;
  dma_reply r = 0;
  long at = PE_ROW * PE_COLUMNS + PE_COLUMN;
  dma_get(p, (float *)a->operand[0] + at, 4, 4, 0, &r);
  dma_get(p + 1, (float *)a->operand[1] + at, 4, 4, 0, &r);
  dma_wait(&r, 2);
  for (int step = 0; step < PE_ROWS; step++) {
    float x = p[0], y = p[1];
    if (PE_COLUMN == step) row_put(&x, 4, ALL_OTHERS); else row_get(&x, 4);
    if (PE_ROW == step) column_put(&y, 4, ALL_OTHERS); else column_get(&y, 4);
    sum += x * y;
    sync_all();  // Others send in the next step.
  }
  p[2] = sum;
  dma_put((float *)a->operand[2] + at, p + 2, 4, 4, 0, &r);
  dma_wait(&r, 1);"""
    )
    x, y = small_integers((8, 8), "float32", 0), small_integers((8, 8), "float32", 1)
    for depth in (1, 4):
        got = np.zeros((8, 8), np.float32)
        shape = dataclasses.replace(MESH, fifo_depth=depth)
        counters = run(program, [read_only(x), read_only(y), got], shape, seed=depth)
        np.testing.assert_array_equal(got, x @ y)
        assert (counters.row_vectors, counters.column_vectors) == (64, 64)
