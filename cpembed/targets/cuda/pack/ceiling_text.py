"""CUDA text of a kernel that does nothing but multiply, to measure the Tensor Cores' ceiling."""

from __future__ import annotations

from cpembed.targets.cuda.instructions import (
    INSTRUCTIONS,
    WARP_GROUP,
    WARP_GROUP_INSTRUCTIONS,
    TensorCoreInstruction,
)
from cpembed.targets.cuda.warp_specialized.device import function, product_name
from cpembed.targets.cuda.warp_specialized.layouts import ALIGNMENT, SharedImage

PRODUCTS = 8
"""Number of independent products that a warp has under way."""

COLUMNS = 256
"""Number of columns of a product of a warp group, the most that it can have."""

TURNS = 4096
"""Number of turns of each warp, with ``PRODUCTS`` each, or of each warp group, with one."""

NAMES = {
    "mma_f16": "mma_m16n8k16_f32_f16_f16",
    "mma_s8": "mma_m16n8k32_s32_s8_s8",
    "wgmma_f16": "wgmma_m64n8k16_f32_f16_f16",
    "wgmma_s8": "wgmma_m64n8k32_s32_s8_s8",
    "wgmma_f8": "wgmma_m64n8k32_f32_e4m3_e4m3",
}
"""Instruction of a target whose ceiling is measured."""


def instruction(target: str) -> TensorCoreInstruction:
    """Return the instruction of a target."""
    every = (*INSTRUCTIONS, *WARP_GROUP_INSTRUCTIONS)
    return next(each for each in every if each.name == NAMES[target])


def threads(target: str) -> int:
    """Return the number of threads of a block."""
    return WARP_GROUP if instruction(target).kind == "wgmma" else 256


def ceiling_text(target: str) -> str:
    """Return a kernel ``ceiling_kernel(int* out)``.

    Each warp multiplies what is in its registers, each warp group what is in shared memory. It
    comes from ``out``, so that the compiler does not know it. The sums are stored if they are what
    they never are: nothing is left out.
    """
    each = instruction(target)
    return _group_text(each) if each.kind == "wgmma" else _warp_text(each)


def _kernel(each: TensorCoreInstruction, size: int, body: str) -> str:
    """Return the kernel around statements that make ``total``."""
    kind = _sums(each)
    return f"""extern "C" __global__ void __launch_bounds__({size}) ceiling_kernel(int* out) {{
  unsigned int value = out[threadIdx.x];
{body}  if (total == ({kind})-12345) out[threadIdx.x] = 1;
}}
"""


def _sums(each: TensorCoreInstruction) -> str:
    return {"float32": "float", "int32": "int"}[each.c]


def _warp_text(mma: TensorCoreInstruction) -> str:
    first, second, sums = mma.registers
    kind = _sums(mma)
    body = f"""  unsigned int a[{first}], b[{PRODUCTS}][{second}];
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
"""
    return f"{function(mma.mma_function)}\n{_kernel(mma, 256, body)}"


def _group_text(wgmma: TensorCoreInstruction) -> str:
    depth_bytes = 32
    first, second = (SharedImage(rows, depth_bytes) for rows in (wgmma.m, COLUMNS))
    count = wgmma.registers[2] * COLUMNS // wgmma.n
    product = product_name(wgmma, COLUMNS)
    names = (
        product, "cpembed_matrix_descriptor", "cpembed_wgmma_fence", "cpembed_wgmma_commit",
        "cpembed_wgmma_wait_0", "cpembed_proxy_fence",
    )  # fmt: skip
    size, kind = first.bytes + second.bytes, _sums(wgmma)
    body = f"""  __shared__ __align__({ALIGNMENT}) unsigned int factors[{size // 4}];
  for (int i = threadIdx.x; i < {size // 4}; i += {WARP_GROUP}) factors[i] = value;
  cpembed_proxy_fence();
  __syncthreads();
  unsigned long long a = cpembed_matrix_descriptor(factors, (long long){first.descriptor.bits}ull);
  unsigned long long b = cpembed_matrix_descriptor(factors + {first.bytes // 4}, (long long)\
{second.descriptor.bits}ull);
  {kind} c[{count}];
#pragma unroll
  for (int i = 0; i < {count}; ++i) c[i] = 0;
  cpembed_wgmma_fence();
#pragma unroll 4
  for (int turn = 0; turn < {TURNS}; ++turn) {product}(c, a, b, 1);
  cpembed_wgmma_commit();
  cpembed_wgmma_wait_0();
  {kind} total = 0;
#pragma unroll
  for (int i = 0; i < {count}; ++i) total += c[i];
"""
    functions = "\n".join(map(function, names))
    return f"{functions}\n{_kernel(wgmma, WARP_GROUP, body)}"


def macs_per_block(target: str) -> int:
    """Return the number of multiply-adds of a block."""
    each = instruction(target)
    if each.kind == "wgmma":
        return each.m * COLUMNS * each.k * TURNS
    return each.m * each.n * each.k * threads(target) // 32 * PRODUCTS * TURNS
