"""A machine of one element with two memories and an instruction of its own; what is counted."""

from __future__ import annotations

import re
import subprocess

import numpy as np
import pytest

from cpembed.targets.scratchpad.executor import (
    COMPILER,
    HEADER,
    Counters,
    Shape,
    TransferCounts,
    compile_text,
)
from tests.unit.targets.scratchpad.executor.running import (
    Array,
    body,
    changed,
    fault,
    needs_compiler,
    read_only,
    run,
    small_integers,
)

pytestmark = needs_compiler

ACCELERATOR = Shape(1, 1, (2048, 1024), 64, 1, 1)
"""Operands of one byte in memory 0, sums of four bytes in memory 1."""

TEXT = """#include "scratchpad.h"
#include <stdint.h>

enum { M = 32, N = 48, K = 64, T = 16 };

/* 16 x 16 x 16; rows of the operands follow each other. */
static INSTRUCTION void execute(const int8_t *a, const int8_t *b, int32_t *c) {
  touch_call("execute", T, T, T);
  touch_read(a, T * T);
  touch_read(b, T * T);
  touch_read(c, T * T * 4);
  touch_write(c, T * T * 4);
  for (int i = 0; i < T; i++)
    for (int j = 0; j < T; j++)
      for (int k = 0; k < T; k++) c[i * T + j] += a[i * T + k] * b[k * T + j];
}

void kernel(const struct arguments *a) {
  int32_t *c = scratchpad(1, 0);
  for (int i = 0; i < M; i += T)
    for (int j = 0; j < N; j += T) {
      dma_reply r = 0;
      zero(c, T * T * 4);
      for (int k = 0; k < K; k += T) {
        int8_t *x = scratchpad(0, 512 * (k / T % 2)), *y = x + T * T;
        dma_get(x, (int8_t *)a->operand[0] + i * K + k, T * T, T, K, &r);
        dma_get(y, (int8_t *)a->operand[1] + k * N + j, T * T, T, N, &r);
        dma_wait(&r, 2);
        execute(x, y, c);
      }
      dma_put((int32_t *)a->operand[2] + i * N + j, c, T * T * 4, T * 4, N * 4, &r);
      dma_wait(&r, 1);
    }
}
"""

A = small_integers((32, 64), "int8", 0)
B = small_integers((64, 48), "int8", 1)


def operands() -> list[Array]:
    return [read_only(A), read_only(B), np.zeros((32, 48), np.int32)]


def test_product_by_an_instruction() -> None:
    arrays = operands()
    counters = run(compile_text(TEXT), arrays, ACCELERATOR)
    np.testing.assert_array_equal(arrays[2], A.astype(np.int32) @ B.astype(np.int32))
    tiles, steps = 2 * 3, 4
    assert counters == Counters(
        moved={
            (0, "get"): TransferCounts(tiles * steps, tiles * steps * 256, tiles * steps * 16),
            (1, "get"): TransferCounts(tiles * steps, tiles * steps * 256, tiles * steps * 16),
            (2, "put"): TransferCounts(tiles, tiles * 1024, tiles * 16),
        },
        gemms={},
        instructions={("execute", 16, 16, 16): tiles * steps},
        zeroed_bytes=tiles * 1024,
        row_vectors=0,
        column_vectors=0,
        barriers=0,
        peaks=(1024, 1024),
    )
    assert counters.bytes == tiles * (steps * 512 + 1024)
    assert counters.to_json()["moved"][2]["bytes"] == tiles * 1024


@pytest.mark.parametrize(
    "change, pattern",
    [
        (("dma_wait(&r, 2);\n", ""), "touch_read at line .* which dma_get at line .* still fills"),
        (("zero(c, T * T * 4);", ""), "touch_read at line .* byte 0 of memory 1, which was never"),
        (("scratchpad(1, 0)", "scratchpad(1, 4)"), "bytes 4 to 1027 of memory 1, which has 1024"),
    ],
)
def test_mutants(change: tuple[str, str], pattern: str) -> None:
    said = fault(compile_text(changed(TEXT, change)), operands(), ACCELERATOR)
    assert re.search(pattern, said), said


@pytest.mark.parametrize(
    "start, block, stride", [(0, 64, 64), (4, 64, 64), (60, 8, 100), (0, 4, 4)]
)
def test_transactions_are_those_that_blocks_touch(start: int, block: int, stride: int) -> None:
    blocks = 8
    program = body(
        f"""dma_reply r = 0;
        const char *from = (char *)a->operand[1] + {start};
        dma_get(scratchpad(0, 0), from, {blocks * block}, {block}, {stride}, &r);
        dma_wait(&r, 1);"""
    )
    arrays = [np.zeros(7, np.int8), read_only(np.zeros(2048, np.int8))]
    counters = run(program, arrays, ACCELERATOR)
    addresses = [start + n * stride for n in range(blocks)]
    touched = sum(len({byte // 64 for byte in range(at, at + block)}) for at in addresses)
    assert counters.moved == {(1, "get"): TransferCounts(1, blocks * block, touched)}


def test_blocks_go_where_they_belong() -> None:
    program = body(
        """dma_reply r = 0;
        char *x = scratchpad(0, 16);
        dma_get(x, (char *)a->operand[0] + 3, 20, 5, 11, &r);
        dma_wait(&r, 1);
        dma_put((char *)a->operand[1] + 1, x, 20, 4, 7, &r);
        dma_wait(&r, 1);"""
    )
    source, got = np.arange(64, dtype=np.int8), np.full(64, -1, np.int8)
    expected = got.copy()
    moved = np.concatenate([source[3 + 11 * n :][:5] for n in range(4)])
    for n in range(5):
        expected[1 + 7 * n :][:4] = moved[4 * n :][:4]
    for seed in range(4):
        arrays = [read_only(source), got.copy()]
        run(program, arrays, ACCELERATOR, seed)
        np.testing.assert_array_equal(arrays[1], expected)


def test_the_header_is_complete_on_its_own() -> None:
    """A user's compiler takes the text with nothing but the header."""
    words = [*COMPILER.command(), "-std=c11", "-Wall", "-Wextra", "-Werror", "-pedantic", "-x", "c"]
    words += [f"-I{HEADER.parent}", "-fsyntax-only", "-"]
    done = subprocess.run(words, input=TEXT, text=True, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
