"""Registers of kernels: those that the limit admits have no local memory."""

from __future__ import annotations

import math
import random
import shutil
from typing import Any, cast

import pytest

from cpembed.codegen.epilogue import Epilogue
from cpembed.driver.named import hardware_spec, workload
from cpembed.driver.solve import solve
from cpembed.errors import LoweringError
from cpembed.targets.cuda.multistage.schedule import (
    MAX_REGISTERS,
    PAIR_REGISTERS,
    KernelSchedule,
    Plan,
    check,
    most_registers,
)
from cpembed.targets.cuda.target import CudaSpace, CudaTarget
from cpembed.targets.cuda.warp_specialized.target import HopperTarget
from experiments.studies.tensor_core_workloads.run import compile_kernel

WORKLOADS = (
    "gemm m=511 n=500 k=1000",
    "gemm m=512 n=512 k=512 trans_b=1",
    "conv2d n=1 c=20 h=28 w=28 k=128 r=3 s=3 pad=1 layout=NHWC",
    "conv2d n=1 c=64 h=28 w=28 k=120 r=3 s=3 pad=1 stride=2 layout=NHWC",
    "conv3d n=1 c=32 d=6 h=9 w=9 k=64 t=3 r=3 s=3 layout=NDHWC",
    # Results are stored element by element.
    "capsule_conv2d n=2 c=24 k=48 u=4 h=8 w=23 r=2 s=1 pad=1",
)


def random_plan(rng: random.Random, target: CudaTarget, words: str, least: int) -> Plan:
    """A plan that the limit admits, with at least so many registers."""
    operator = workload(words, target=target.spec)
    embeddings = solve(operator, target.spec, constraints="fused", top=8).embeddings
    product = target.lower(rng.choice(embeddings).candidate.program)
    while True:
        drawn = {name: rng.choice(values) for name, values in CudaSpace.choices.items()}
        layouts = tuple(rng.randrange(len(f)) for f in (product.first, product.second))
        known = {name: drawn[name] for name in ("warps", "tile", "depth", "stages")}
        plan = Plan(product, KernelSchedule(**cast(Any, known), layouts=cast(Any, layouts)))
        try:
            check(plan, target.gpu.shared_bytes)
        except LoweringError:
            continue
        if most_registers(plan) >= least:
            return plan


def test_steps_in_pairs_need_more_registers() -> None:
    target = CudaTarget(hardware_spec("mma_f16"))
    plan = random_plan(random.Random(1), target, WORKLOADS[0], 0)
    for depth, more in ((1, PAIR_REGISTERS), (2, 0), (4, 0)):
        schedule = KernelSchedule((2, 2), (4, 8), depth, 2)
        other = Plan(plan.product, schedule)
        assert most_registers(other) - other.registers >= more
        if most_registers(other) > MAX_REGISTERS:
            with pytest.raises(LoweringError, match="registers of 255"):
                check(other, target.gpu.shared_bytes)
    # Beside 128 sums there is no room for pairs.
    assert most_registers(Plan(plan.product, KernelSchedule((2, 2), (4, 8), 1, 2))) > MAX_REGISTERS


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("nvcc") is None, reason="missing: nvcc")
@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("name", ["mma_f16", "mma_bf16", "mma_s8", "mma_f16_f16"])
def test_kernels_at_the_limit_do_not_spill(name: str, seed: int) -> None:
    target = CudaTarget(hardware_spec(name))
    plan = random_plan(random.Random(seed), target, WORKLOADS[seed % len(WORKLOADS)], 216)
    source = target.build(plan.product, plan.schedule).text.source
    for architecture in ("sm_80", "sm_90a", "sm_120a"):
        report = compile_kernel(source, architecture)
        assert not report["local_bytes"], (architecture, plan.schedule)
        assert "error" not in report


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("nvcc") is None, reason="missing: nvcc")
@pytest.mark.parametrize("seed", range(6))
def test_results_of_single_elements_do_not_spill(seed: int) -> None:
    """Of warp groups with many columns, whose strips have many elements of a lane."""
    name = ("wgmma_f16", "wgmma_f8")[seed % 2]
    target, rng = HopperTarget(hardware_spec(name)), random.Random(seed)
    operator = workload(WORKLOADS[-1], target=target.spec)
    embeddings = solve(operator, target.spec, constraints="fused", top=8).embeddings
    epilogue = Epilogue("float16", bias=True, relu=True)
    product = target.lower(rng.choice(embeddings).candidate.program, epilogue)
    ranked = target.space(product).ranked()
    wide = [item for item in ranked if math.prod(item.schedule.tile) >= 24]
    source = target.build(product, rng.choice(wide).schedule).text.source
    report = compile_kernel(source, "sm_90a")
    assert not report["local_bytes"]
    assert "error" not in report
