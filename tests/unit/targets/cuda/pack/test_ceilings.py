"""Kernels that measure a device's ceilings."""

from __future__ import annotations

import subprocess
from pathlib import Path

import numpy as np
import pytest

from cpembed.targets.cuda.emulator.executor import Launch, compile_text
from cpembed.targets.cuda.pack import ceiling_text
from tests.unit.targets.cuda.emulator.running import needs_compiler, needs_nvcc


@needs_compiler
@pytest.mark.parametrize("target", ceiling_text.NAMES)
def test_a_block_multiplies_as_often_as_it_says(
    target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ceiling_text, "TURNS", 2)
    instruction, threads = ceiling_text.instruction(target), ceiling_text.threads(target)
    program = compile_text(ceiling_text.ceiling_text(target))
    out = np.full(threads, 0x3C3C3C3C, np.int32)
    counters = program.run(Launch("ceiling_kernel", (1, 1, 1), (threads, 1, 1)), [out])
    columns = ceiling_text.COLUMNS if instruction.kind == "wgmma" else instruction.n
    macs = instruction.m * columns * instruction.k
    # Counters count warps; a product of a warp group is executed by four of them.
    executed = sum(counters.mma.values()) * 32 // instruction.threads
    assert executed * macs == ceiling_text.macs_per_block(target)
    assert (out == 0x3C3C3C3C).all()


@needs_nvcc
@pytest.mark.parametrize("target", [name for name in ceiling_text.NAMES if name[0] == "w"])
def test_products_of_warp_groups_are_not_serialised(target: str, tmp_path: Path) -> None:
    (tmp_path / "ceiling.cu").write_text(ceiling_text.ceiling_text(target))
    command = ["nvcc", "-cubin", "-arch=sm_90a", "-Xptxas=-v", "ceiling.cu"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done
    assert "serialized" not in done.stderr + done.stdout
    assert "warning" not in done.stderr + done.stdout
    assert "0 bytes spill stores" in done.stderr + done.stdout
