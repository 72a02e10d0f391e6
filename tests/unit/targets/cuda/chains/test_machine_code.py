"""Machine code of chains: tensor cores, nothing in local memory, no warnings of the text itself."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import numpy as np
import pytest

from benchmarks.gpu.main_loop import Instruction, kind, listing, usual_turn
from benchmarks.gpu.main_loop import kernels as machine_code
from benchmarks.gpu.peers import PRODUCT
from cpembed.targets.cuda.chains.build import ChainKernels
from cpembed.targets.cuda.chains.plan import ChainSchedule
from tests.unit.targets.cuda.chains.generated import (
    chain_of,
    group_plan_of,
    kernels_of,
    plan_of,
)
from tests.unit.targets.cuda.emulator.running import needs_nvcc
from tests.unit.targets.cuda.machine_code import disassembler, opcodes

pytestmark = needs_nvcc

CASES = {
    "heads of 64": ("attention b=1 h=2 q=512 k=512 d=64 causal", "registers", (4, 1), 1, 4, 8),
    "two tiles of rows": ("attention b=1 h=2 q=512 k=512 d=64", "registers", (4, 1), 2, 2, 8),
    "heads of 128": ("attention b=1 h=2 q=512 k=512 d=128 causal", "registers", (4, 1), 1, 4, 16),
    "heads of 256": ("attention b=1 h=2 q=512 k=512 d=256", "registers", (4, 1), 1, 1, 32),
    "bfloat16": (
        "attention b=1 h=4 kv=1 q=512 k=500 d=128 lengths mask dtype=bfloat16",
        "registers", (8, 1), 1, 2, 16,
    ),
    "layers": ("mlp m=512 k=256 n=1024 p=192 act=gelu bias", "registers", (4, 1), 1, 2, 24),
    "bytes": ("mlp m=512 k=256 n=1024 p=192 act=relu dtype=int8", "registers", (4, 1), 1, 1, 24),
    "shared memory": ("mlp m=512 k=256 n=512 p=256 act=silu", "shared memory", (2, 4), 1, 4, 32),
    "convolution": (
        "conv_pointwise n=1 c=64 h=56 w=56 k=64 r=3 s=3 m=128 pad=1 act=relu",
        "registers", (4, 1), 1, 2, 16,
    ),
}  # fmt: skip

PRELUDE = {"174", "177"}
"""Warnings of what TVM puts before every text: functions that nothing calls."""


@pytest.mark.quick(1)
@pytest.mark.parametrize("architecture", ["sm_80", "sm_90", "sm_120"])
@pytest.mark.parametrize("name", CASES)
def test_kernels_need_no_local_memory(name: str, architecture: str, tmp_path: Path) -> None:
    words, via, warps, rows, chunk, columns = CASES[name]
    schedule = ChainSchedule(via, warps, rows, chunk, columns)  # pyright: ignore[reportArgumentType]
    kernels = kernels_of(plan_of(chain_of(words), schedule))
    text, cubin = tmp_path / "kernel.cu", tmp_path / "kernel.cubin"
    text.write_text(kernels.text.source)
    options = ["-cubin", f"-arch={architecture}", "-std=c++17", "-O3", "-Xptxas", "-v"]
    done = subprocess.run(
        ["nvcc", *options, "-o", str(cubin), str(text)], capture_output=True, text=True, check=True
    )
    assert set(re.findall(r"warning #(\d+)-D", done.stderr)) <= PRELUDE
    frames = re.findall(
        r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", done.stderr
    )
    assert set(frames) == {("0", "0", "0")}
    if architecture == "sm_80":
        code = opcodes(cubin)["chain_kernel"]
        assert not any(opcode.startswith(("LDL", "STL")) for opcode in code)
        assert any(opcode.startswith(("HMMA", "IMMA")) for opcode in code)
        assert any(opcode.startswith("LDGSTS") for opcode in code)


def compiled(kernels: ChainKernels, architecture: str, folder: Path) -> list[Instruction]:
    """Return a usual turn of the main loop."""
    text, cubin = folder / "kernel.cu", folder / "kernel.cubin"
    text.write_text(kernels.text.source)
    command = ["nvcc", "-cubin", f"-arch={architecture}", "-std=c++17", "-O3"]
    subprocess.run([*command, "-o", str(cubin), str(text)], capture_output=True, check=True)
    if disassembler() is None:
        pytest.skip("nvdisasm is not there: pip install nvidia-cuda-nvdisasm")
    return usual_turn(machine_code(listing(cubin))["chain_kernel"], PRODUCT)


def test_the_loop_of_attention_computes_few_addresses(tmp_path: Path) -> None:
    """For 128 products of a warp, half of them of scores; Triton 3.9 has 58 of them."""
    schedule = ChainSchedule("registers", (4, 1), 2, 4, 8, 3)
    plan = plan_of(chain_of("attention b=1 h=2 q=1024 k=1024 d=64"), schedule)
    turn = compiled(kernels_of(plan), "sm_80", tmp_path)
    arithmetic = re.compile(r"F|MUFU|SHFL|VOTE")
    assert sum(re.match(PRODUCT, i.opcode) is not None for i in turn) == 128
    integer = [i for i in turn if kind(i) == "integer" and not arithmetic.match(i.opcode)]
    assert len(integer) < 58
    assert len(turn) < 640


def test_softmax_of_warp_groups_overlaps_with_products(tmp_path: Path) -> None:
    """Its powers are computed before the wait for the second product, not behind it."""
    chain = chain_of("attention b=1 h=2 q=512 k=512 d=128")
    schedule = ChainSchedule("registers", (2, 1), 1, 8, 16, 2)
    plan = group_plan_of(chain, np.random.default_rng(0), lambda *_: schedule, number=0)
    turn = [f"{i.opcode} {i.operands}" for i in compiled(kernels_of(plan), "sm_90a", tmp_path)]
    (issued,) = (n for n, text in enumerate(turn) if re.match(r"WARPGROUP.DEPBAR.*gsb0, 0x1", text))
    (waited,) = (n for n, text in enumerate(turn) if re.match(r"WARPGROUP.DEPBAR.*gsb0, 0x0", text))
    powers = [n for n, text in enumerate(turn) if text.startswith("MUFU.EX2")]
    assert len(powers) >= 64
    assert sum(issued < n < waited for n in powers) >= 62
