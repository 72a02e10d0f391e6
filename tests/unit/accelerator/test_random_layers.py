"""Random layers on every machine: planned, proven, executed, and counted as they were planned."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from cpembed.accelerator.workload import run_workload
from cpembed.hw.isa_reader import load_instruction_set
from cpembed.workloads.naming import parse_workload
from tests.compilers import needs_executor

pytestmark = needs_executor

TINY = Path(__file__).parents[2] / "targets" / "tiny_accelerator.toml"
MACHINES = (TINY, "gemmini", "tpu_like", "nvdla_like", "ethos_u_like")


def random_layer(seed: int) -> list[str]:
    rng = random.Random(seed)
    if rng.random() < 0.5:
        return ["gemm", *(f"{axis}={rng.randint(1, 70)}" for axis in "mnk")]
    window = rng.choice([1, 1, 3, 5])
    return [
        "conv2d",
        "n=1",
        f"c={rng.choice([1, 3, 4, 8, 16, 20, 32])}",
        f"h={rng.randint(window, 14)}",
        f"w={rng.randint(window, 14)}",
        f"k={rng.choice([1, 4, 8, 16, 24, 32])}",
        f"r={window}",
        f"s={window}",
        f"pad={rng.choice([0, window // 2])}",
        f"stride={rng.choice([1, 1, 2])}",
        "layout=NHWC",
    ]


@pytest.mark.quick(10)
@pytest.mark.parametrize("seed", range(40))
@pytest.mark.parametrize("target", MACHINES, ids=lambda target: Path(target).stem)
def test_a_random_layer_is_right_proven_and_counted(target: str | Path, seed: int) -> None:
    words = random_layer(seed)
    if target == TINY and "k=1" in words:
        pytest.skip("its zeros are eight lanes, and a single channel has no lanes")
    machine = load_instruction_set(target)
    workload = parse_workload(words)
    result = run_workload(workload, machine, seed)
    # Products of bytes in sums of 32 bits, which the reference computes exactly.
    assert result.error == result.tolerance == 0
    assert [proof.refusal for proof in result.proofs if not proof.holds] == []
    for plan, run in zip(result.plans, result.runs, strict=True):
        executed = {name: count for name, count in run.executions.items() if count}
        assert dict(plan.cost.executions) == executed
        assert run.moved[machine.main.name, "read"] == plan.cost.moved[machine.main.name, "read"]
    moved = result.total("moved")
    assert moved[machine.main.name, "write"] >= 4 * workload.output.elements
    assert result.bound <= result.cycles
