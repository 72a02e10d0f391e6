"""CUDA text of a kernel that does nothing but multiply, to measure the Tensor Cores' ceiling."""

from __future__ import annotations

from cpembed.targets.cuda.device import function
from cpembed.targets.cuda.instructions import INSTRUCTIONS, TensorCoreInstruction

THREADS = 256
PRODUCTS = 8
"""Number of independent products that a warp has under way."""

TURNS = 4096
"""Number of turns of each warp, with ``PRODUCTS`` each."""

NAMES = {"mma_f16": "mma_m16n8k16_f32_f16_f16", "mma_s8": "mma_m16n8k32_s32_s8_s8"}
"""Instruction of a target whose ceiling is measured."""


def instruction(target: str) -> TensorCoreInstruction:
    """Return the instruction of a target."""
    return next(i for i in INSTRUCTIONS if i.name == NAMES[target])


def ceiling_text(target: str) -> str:
    """Return a kernel ``ceiling_kernel(int* out)``.

    Each warp multiplies what is in its registers, which comes from ``out``, so that the compiler
    does not know it. The sums are stored if they are what they never are: nothing is left out.
    """
    mma = instruction(target)
    first, second, sums = mma.registers
    kind = {"float32": "float", "int32": "int"}[mma.c]
    return f"""{function(mma.mma_function)}
extern "C" __global__ void __launch_bounds__({THREADS}) ceiling_kernel(int* out) {{
  unsigned int value = out[threadIdx.x];
  unsigned int a[{first}], b[{PRODUCTS}][{second}];
  {kind} c[{PRODUCTS}][{sums}];
  for (int i = 0; i < {first}; ++i) a[i] = value;
#pragma unroll
  for (int j = 0; j < {PRODUCTS}; ++j) {{
    for (int i = 0; i < {second}; ++i) b[j][i] = value;
    for (int i = 0; i < {sums}; ++i) c[j][i] = 0;
  }}
#pragma unroll 4
  for (int turn = 0; turn < {TURNS}; ++turn) {{
#pragma unroll
    for (int j = 0; j < {PRODUCTS}; ++j) {mma.mma_function}(c[j], a, b[j]);
  }}
  {kind} total = 0;
#pragma unroll
  for (int j = 0; j < {PRODUCTS}; ++j) for (int i = 0; i < {sums}; ++i) total += c[j][i];
  if (total == ({kind})-12345) out[threadIdx.x] = 1;
}}
"""


def macs_per_block(target: str) -> int:
    """Return the number of multiply-adds of a block."""
    mma = instruction(target)
    return mma.m * mma.n * mma.k * THREADS // 32 * PRODUCTS * TURNS
