"""``mma.sync`` in every shape and type that is emulated, against numpy.

The registers of the lanes are those of the PTX ISA's text, case by case.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

from cpembed.targets.cuda.emulator.executor import Launch, compile_text
from cpembed.targets.cuda.emulator.ptx.matrices import PRODUCTS
from tests.unit.targets.cuda.emulator.running import needs_compiler

Position = Callable[[int, int, int], tuple[int, int]]

NUMPY: dict[str, Any] = {
    "f16": np.float16, "bf16": ml_dtypes.bfloat16, "tf32": np.float32, "s8": np.int8,
    "u8": np.uint8, "e4m3": ml_dtypes.float8_e4m3fn, "e5m2": ml_dtypes.float8_e5m2,
    "f32": np.float32, "s32": np.int32,
}  # fmt: skip


def halves_a(group: int, thread: int, i: int) -> tuple[int, int]:
    row = group if i in (0, 1, 4, 5) else group + 8
    return row, thread * 2 + (i & 1) + (8 if i >= 4 else 0)


def halves_b(group: int, thread: int, i: int) -> tuple[int, int]:
    return thread * 2 + (i & 1) + (8 if i >= 2 else 0), group


def bytes_a(group: int, thread: int, i: int) -> tuple[int, int]:
    row = group if i < 4 or 8 <= i < 12 else group + 8
    return row, thread * 4 + (i & 3) + (16 if i >= 8 else 0)


def bytes_b(group: int, thread: int, i: int) -> tuple[int, int]:
    return thread * 4 + (i & 3) + (16 if i >= 4 else 0), group


def words_a(group: int, thread: int, i: int) -> tuple[int, int]:
    return group if i in (0, 2) else group + 8, thread if i in (0, 1) else thread + 4


def words_b(group: int, thread: int, i: int) -> tuple[int, int]:
    return thread if i == 0 else thread + 4, group


def sums(group: int, thread: int, i: int) -> tuple[int, int]:
    return group if i < 2 else group + 8, thread * 2 + (i & 1)


MAPS: dict[int, tuple[Position, Position]] = {
    1: (bytes_a, bytes_b),
    2: (halves_a, halves_b),
    4: (words_a, words_b),
}

CASES = [(shape, c, a, b) for (shape, c), types in PRODUCTS.items() for a, b in types]


def spread(matrix: NDArray[Any], position: Position) -> NDArray[np.uint32]:
    """The registers of the lanes."""
    count = matrix.size // 32
    held = np.array(
        [[matrix[position(n // 4, n % 4, i)] for i in range(count)] for n in range(32)],
        matrix.dtype,
    )
    return held.view(np.uint32)


def listed(first: int, count: int) -> str:
    return "{" + ", ".join(f"%{first + n}" for n in range(count)) + "}"


def kernel(shape: str, c: str, a: str, b: str, counts: tuple[int, int, int]) -> str:
    first, second, results = counts
    letter, kind = ("f", "float") if c == "f32" else ("r", "unsigned")
    vectors = [listed(0, results), listed(results, first), listed(results + first, second)]
    return (
        f'extern "C" __global__ void k(const unsigned* A, const unsigned* B, {kind}* C) {{ '
        f'asm volatile("mma.sync.aligned.{shape}.row.col.{c}.{a}.{b}.{c} '
        f'{", ".join([*vectors, vectors[0]])};" : '
        + ", ".join(f'"+{letter}"(C[threadIdx.x * {results} + {n}])' for n in range(results))
        + " : "
        + ", ".join(f'"r"(A[threadIdx.x * {first} + {n}])' for n in range(first))
        + ", "
        + ", ".join(f'"r"(B[threadIdx.x * {second} + {n}])' for n in range(second))
        + "); }"
    )


@needs_compiler
@pytest.mark.parametrize("shape, c, a, b", CASES)
def test_products_are_those_of_numpy(shape: str, c: str, a: str, b: str) -> None:
    depth, random = int(shape.split("k")[1]), np.random.default_rng(5)

    def matrix(rows: int, columns: int, kind: str) -> NDArray[Any]:
        low = 0 if kind == "u8" else -4
        return random.integers(low, 5, (rows, columns)).astype(NUMPY[kind])

    first, second, added = matrix(16, depth, a), matrix(depth, 8, b), matrix(16, 8, c)
    size = first.dtype.itemsize
    registers = [spread(first, MAPS[size][0]), spread(second, MAPS[size][1]), spread(added, sums)]
    counts = tuple(part.shape[1] for part in registers)
    text = kernel(shape, c, a, b, counts)  # type: ignore[arg-type]
    out = registers[2].copy()
    values = out.reshape(-1).view(np.float32 if c == "f32" else np.uint32)
    arguments = [registers[0].reshape(-1), registers[1].reshape(-1), values]
    compile_text(text).run(Launch("k", (1, 1, 1), (32, 1, 1)), arguments)
    right = first.astype(float) @ second.astype(float) + added.astype(float)
    expected = spread(right.astype(NUMPY[c]), sums)
    np.testing.assert_array_equal(values.view(np.uint32), expected.reshape(-1))
