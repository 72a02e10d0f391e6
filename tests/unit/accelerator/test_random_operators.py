"""Operators of random sizes on every machine: products with bias and requantization, convolutions,
depthwise ones, pooling, residuals and softmax are right and proven, or refused in one line."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from cpembed.accelerator.proof import prove
from cpembed.hw.isa import InstructionSet
from cpembed.hw.isa_reader import load_instruction_set
from tests.compilers import needs_executor
from tests.unit.accelerator.planned_programs import LAYERS, planned
from tests.unit.accelerator.test_planned_mutants import effect

pytestmark = needs_executor

TINY = str(Path(__file__).parents[2] / "targets" / "tiny_accelerator.toml")
NPU = str(Path(__file__).parents[3] / "examples" / "accelerator" / "npu.toml")
MACHINES = (
    "gemmini", "tpu_like", "nvdla_like", "ethos_u_like", "qkv_attention", "vta_isa", TINY, NPU,
)  # fmt: skip


def extents(draw: random.Random, machine: InstructionSet) -> dict[str, int]:
    """Return random extents; those of images stay small, since programs are executed."""
    image = {axis: draw.randint(1, 7) for axis in "pq"}
    image |= {"r": draw.choice([1, 2, 3]), "s": draw.choice([1, 2, 3])}
    depths = {axis: draw.choice([1, 3, 8, 16, 17, 32, draw.randint(1, 70)]) for axis in "ck"}
    if machine.name == "qkv_attention":
        # Its rows are whole.
        return {**image, **depths, "i": 64 * draw.randint(1, 3), "j": 64, "k": 64}
    return {**image, **depths, "i": draw.randint(1, 70), "j": draw.randint(1, 70)}


@pytest.mark.quick(8)
@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("target", MACHINES, ids=lambda t: Path(t).stem)
def test_operators_of_random_sizes_are_right_and_proven(target: str, seed: int) -> None:
    machine = load_instruction_set(target)
    draw = random.Random(f"{machine.name}{seed}")
    sizes = extents(draw, machine)
    for name in draw.sample(list(LAYERS), 4):
        result = planned(name, machine, sizes)
        if isinstance(result, str):
            assert result.startswith("rejected: ")
            assert "\n" not in result
            continue
        _, programs = result
        for program in programs:
            proof = prove(program)
            assert proof.holds, f"{name} {sizes}: {proof.refusal}"
            assert effect(program, proof, seeds=1) == "right", f"{name} {sizes}"
