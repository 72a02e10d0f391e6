"""The runtime's maps of fragments and those that kernels are generated from, written apart from
each other, agree."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from cpembed.targets.cuda.emulator.executor import Launch, compile_text
from cpembed.targets.cuda.instructions import INSTRUCTIONS, TensorCoreInstruction, fragments
from tests.unit.targets.cuda.emulator.running import (
    Array,
    needs_compiler,
    with_device_functions,
)

pytestmark = needs_compiler

PRODUCTS = [i for i in INSTRUCTIONS if i.kind == "mma"]
NUMPY = {
    "float16": np.dtype(np.float16), "bfloat16": np.dtype(ml_dtypes.bfloat16),
    "int8": np.dtype(np.int8), "uint8": np.dtype(np.uint8), "float32": np.dtype(np.float32),
    "int32": np.dtype(np.int32), "float8_e4m3fn": np.dtype(ml_dtypes.float8_e4m3fn),
    "float8_e5m2": np.dtype(ml_dtypes.float8_e5m2),
}  # fmt: skip

KERNEL = """
extern "C" __global__ void {name}_kernel(const unsigned* A, const unsigned* B, unsigned* C) {{
  unsigned a[{a}], b[{b}], c[{c}];
  for (int i = 0; i < {a}; i++) a[i] = A[threadIdx.x * {a} + i];
  for (int i = 0; i < {b}; i++) b[i] = B[threadIdx.x * {b} + i];
  for (int i = 0; i < {c}; i++) c[i] = C[threadIdx.x * {c} + i];
  {name}(c, a, b);
  for (int i = 0; i < {c}; i++) C[threadIdx.x * {c} + i] = c[i];
}}
"""


def kernels() -> str:
    return "".join(
        KERNEL.format(name=i.mma_function, a=i.registers[0], b=i.registers[1], c=i.registers[2])
        for i in PRODUCTS
    )


def spread(matrix: Array, fragment: str) -> Array:
    """The elements that each lane holds, by ``fragments.toml``."""
    per_lane, position = matrix.size // 32, fragments()[fragment].position
    places = [[position(lane, e) for e in range(per_lane)] for lane in range(32)]
    return np.array([[matrix[place] for place in row] for row in places], matrix.dtype)


def numbers(shape: tuple[int, int], dtype: str, seed: int) -> Array:
    low = 0 if dtype.startswith("u") else -5
    return np.random.default_rng(seed).integers(low, 6, shape).astype(NUMPY[dtype])


@pytest.mark.parametrize("instruction", PRODUCTS, ids=lambda i: i.mma_function)
def test_a_product_over_fragments_is_the_product(instruction: TensorCoreInstruction) -> None:
    m, n, k = instruction.m, instruction.n, instruction.k
    a, b, c = (
        numbers(shape, dtype, seed)
        for seed, (shape, dtype) in enumerate(
            [((m, k), instruction.a), ((k, n), instruction.b), ((m, n), instruction.c)]
        )
    )
    parts = [
        spread(matrix, fragment)
        for matrix, fragment in zip((a, b, c), instruction.fragments, strict=True)
    ]
    words = [np.ascontiguousarray(part).view(np.uint32) for part in parts]
    one = Launch(f"{instruction.mma_function}_kernel", (1, 1, 1), (32, 1, 1))
    compile_text(with_device_functions(kernels())).run(one, words)
    expected = a.astype(np.float64) @ b.astype(np.float64) + c.astype(np.float64)
    found = words[2].view(c.dtype).reshape(32, -1)
    wanted = spread(expected.astype(c.dtype), instruction.fragments[2])
    np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize(
    "instruction",
    [i for i in PRODUCTS if i.a.startswith("float8_") and i.c == "float32"],
    ids=lambda i: i.mma_function,
)
def test_every_code_of_eight_bits_is_its_number(instruction: TensorCoreInstruction) -> None:
    """Each of the 256 codes once times one, alone in its row of sums; as ml_dtypes has them."""
    codes = np.arange(256, dtype=np.uint8)
    one = Launch(f"{instruction.mma_function}_kernel", (1, 1, 1), (32, 1, 1))
    program = compile_text(with_device_functions(kernels()))
    for number in range(16):
        # Sixteen rows of a factor have one element each that is not zero.
        rows, some = np.arange(16), codes[16 * number : 16 * number + 16]
        a = np.zeros((16, 32), np.uint8)
        a[rows, (rows + number) % 32] = some
        b, c = np.ones((32, 8)).astype(NUMPY[instruction.b]), np.zeros((16, 8), np.float32)
        factors = (a.view(NUMPY[instruction.a]), b, c)
        words = [
            np.ascontiguousarray(spread(matrix, fragment)).view(np.uint32)
            for matrix, fragment in zip(factors, instruction.fragments, strict=True)
        ]
        program.run(one, words)
        expected = np.repeat(some.view(NUMPY[instruction.a]).astype(np.float32)[:, None], 8, 1)
        found = words[2].view(np.float32).reshape(32, -1)
        np.testing.assert_array_equal(found, spread(expected, instruction.fragments[2]))
