"""Machine code of chains: tensor cores, nothing in local memory, no warnings of the text itself."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from cpembed.targets.cuda.chains.plan import ChainSchedule
from tests.unit.targets.cuda.chains.generated import chain_of, kernels_of, plan_of
from tests.unit.targets.cuda.machine_code import opcodes

pytestmark = pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc is not on the path")

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
