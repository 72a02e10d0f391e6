"""Device functions of sm_90a: operands of their PTX, and what nvcc makes of them."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from cpembed.errors import InvariantError
from cpembed.targets.cuda.instructions import WARP_GROUP_INSTRUCTIONS, TensorCoreInstruction
from cpembed.targets.cuda.warp_specialized.device import (
    column_counts,
    function,
    product_name,
    tensor_load_name,
)
from tests.unit.targets.cuda.emulator.running import needs_nvcc
from tests.unit.targets.cuda.machine_code import opcodes

NAMES = [i.name for i in WARP_GROUP_INSTRUCTIONS]
BY_NAME = {i.name: i for i in WARP_GROUP_INSTRUCTIONS}


@pytest.mark.parametrize("name", NAMES)
def test_columns_of_a_product(name: str) -> None:
    """PTX ISA, wgmma.mma_async: every multiple of 8 up to 256; of integers 8, 16, 24, 32, 48, …"""
    counts = column_counts(BY_NAME[name])
    if BY_NAME[name].c == "int32":
        assert counts == (8, 16, 24, *range(32, 257, 16))
    else:
        assert counts == tuple(range(8, 257, 8))


@pytest.mark.parametrize("registers", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_every_operand_of_a_product_is_bound_once(name: str, registers: bool) -> None:
    instruction = BY_NAME[name]
    for columns in column_counts(instruction):
        text = function(product_name(instruction, columns, registers=registers))
        template, outputs, inputs = re.findall(r'asm volatile\("(.*?)" : (.*?) : (.*) : ', text)[0]
        bound = len(re.findall(r'"\+?[frl]"\(', outputs + inputs))
        assert sorted({int(n) for n in re.findall(r"%(\d+)", template)}) == [*range(bound)]
        sums = 64 * columns * {"float16": 2}.get(instruction.c, 4) // 4 // 128
        assert outputs.count('"+') == sums
        # A is a descriptor or four registers; then come that of B and the predicate.
        assert bound == sums + (4 if registers else 1) + 2


def test_names() -> None:
    for name in (tensor_load_name(2), tensor_load_name(4, 2, multicast=True), "cpembed_load_4"):
        assert f" {name}(" in function(name)
    with pytest.raises(InvariantError, match="no product of 40 columns"):
        product_name(BY_NAME["wgmma_m64n8k32_s32_s8_u8"], 40)
    for name in ("cpembed_wgmma_wait_7", "cpembed_wgmma_mma_m64n12k16_f32_f16_f16"):
        with pytest.raises(InvariantError, match=f"no device function is called {name}"):
            function(name)


def kernel(instruction: TensorCoreInstruction, columns: int, transposed: str) -> str:
    name = product_name(instruction, columns, transposed=transposed)
    kind = {"float32": "float", "int32": "int"}.get(instruction.c, "unsigned")
    count = columns // 8 * instruction.registers[2]
    stores = "".join(f"out[threadIdx.x * {count} + {n}] = c[{n}];" for n in range(count))
    return f"""
extern "C" __global__ void __launch_bounds__(128) k_{name}({kind}* out, unsigned long long d) {{
  {kind} c[{count}];
#pragma unroll
  for (int i = 0; i < {count}; ++i) c[i] = 0;
  cpembed_wgmma_fence();
  {name}(c, d, d + 2, 0);
  {name}(c, d + 4, d + 6, 1);
  cpembed_wgmma_commit();
  cpembed_wgmma_wait_0();
  {stores}
}}
"""


@needs_nvcc
@pytest.mark.slow
def test_products_are_one_instruction_each(tmp_path: Path) -> None:
    kernels = dict[str, str]()
    for instruction in WARP_GROUP_INSTRUCTIONS:
        for columns in (8, 24, 256):
            for transposed in ("", "a", "b", "ab") if instruction.k == 16 else ("",):
                name = product_name(instruction, columns, transposed=transposed)
                kernels[name] = kernel(instruction, columns, transposed)
    names = [*kernels, *(f"cpembed_wgmma_{n}" for n in ("fence", "commit", "wait_0"))]
    source = "".join(map(function, names)) + "".join(kernels.values())
    text, cubin = tmp_path / "k.cu", tmp_path / "k.cubin"
    text.write_text(source)
    options = ["-cubin", "-arch=sm_90a", "-std=c++17", "-Xptxas", "-v"]
    done = subprocess.run(
        ["nvcc", *options, "-o", str(cubin), str(text)], capture_output=True, text=True, check=True
    )
    # C7510 and its like: products that wait for each other.
    assert "warning" not in done.stderr
    assert "Potential Performance Loss" not in done.stderr
    assert not re.search(r"[1-9]\d* bytes spill", done.stderr)
    for name, found in opcodes(cubin).items():
        products = [code for code in found if "GMMA." in code]
        columns = re.search(r"n(\d+)k", name)
        assert columns is not None
        assert len(products) == 2
        assert all(f".64x{columns[1]}x" in code for code in products)
