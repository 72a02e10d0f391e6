"""Registers of kernels: estimates beside ptxas, and kernels that limits admit need no memory."""

from __future__ import annotations

import math
import random
from typing import Any, cast

import pytest

from benchmarks.gpu.registers import compute
from cpembed.codegen.epilogue import Epilogue
from cpembed.driver.named import hardware_spec, workload
from cpembed.driver.solve import solve
from cpembed.errors import LoweringError
from cpembed.targets.cuda.build import cuda_text
from cpembed.targets.cuda.model import gpu
from cpembed.targets.cuda.multistage.registers import (
    PAIR_MARGIN,
    PLACE_REGISTERS,
    REGISTER_MARGIN,
    ROW_REGISTERS,
    may_spill,
    most_registers,
    product_registers,
    resident_blocks,
)
from cpembed.targets.cuda.multistage.schedule import KernelSchedule, Plan, check
from cpembed.targets.cuda.target import CudaSpace, CudaTarget
from cpembed.targets.cuda.warp_specialized.target import HopperTarget
from experiments.studies.tensor_core_workloads.run import compile_kernel
from tests.unit.targets.cuda.emulator.running import needs_nvcc

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
    for depth, margin in ((1, REGISTER_MARGIN + PAIR_MARGIN), (2, REGISTER_MARGIN)):
        other = Plan(plan.product, KernelSchedule((2, 2), (4, 8), depth, 2))
        assert most_registers(other) == other.registers + margin


def test_schedules_that_may_spill_are_refused() -> None:
    target = CudaTarget(hardware_spec("mma_f16"))
    product = random_plan(random.Random(2), target, WORKLOADS[3], 0).product
    for tile in ((4, 8), (8, 8)):
        plan = Plan(product, KernelSchedule((2, 2), tile, 2, 3))
        assert may_spill(plan) == (tile == (8, 8))
        if may_spill(plan):
            with pytest.raises(LoweringError, match="registers of 255"):
                check(plan, target.gpu.shared_bytes)
        else:
            check(plan, target.gpu.shared_bytes)


@needs_nvcc
@pytest.mark.parametrize("words", ["m=5120 n=768", "m=5124 n=768", "m=5120 n=700", "m=5124 n=700"])
def test_blocks_that_are_not_filled_take_registers(words: str) -> None:
    """What is refused for it has local memory, and what is not refused has none."""
    target = CudaTarget(hardware_spec("mma_f16", machine="h100"))
    operator = workload(f"gemm {words} k=2048", target=target.spec)
    ranked = solve(operator, target.spec, constraints="fused", top=1).embeddings[0]
    product = target.lower(ranked.candidate.program)
    plan = Plan(product, KernelSchedule((2, 2), (4, 8), 4, 2))
    assert may_spill(plan) == (words == "m=5124 n=700")
    text = cuda_text(plan, "sm_80").source
    report = compile_kernel(text, "sm_90a")
    assert (report["local_bytes"] > 0) == may_spill(plan)


def test_a_thread_holds_places_by_depth_or_by_tiles() -> None:
    """Of rows along the depth each depth has a place, of transposed ones each tile."""
    target = CudaTarget(hardware_spec("mma_f16"))
    for words, extra in (("trans_b=1", 2 * 2), ("trans_a=1 trans_b=1", 2)):
        operator = workload(f"gemm m=512 n=512 k=512 {words}", target=target.spec)
        ranked = solve(operator, target.spec, constraints="in_place", top=1).embeddings[0]
        product = target.lower(ranked.candidate.program)
        plans = [Plan(product, KernelSchedule((2, 2), (2, 4), d, 2)) for d in (2, 4)]
        images = [plan.shared_tiles for plan in plans]
        places = [
            product_registers(product.instruction, (2, 4), depth, tiles)
            for depth, tiles in zip((2, 4), images, strict=True)
        ]
        # A place of each of two more depths, of the factors that are not transposed.
        assert places[1] - places[0] == PLACE_REGISTERS * extra, words


def test_rows_at_no_fixed_distance_need_addresses() -> None:
    """An image of 28 pixels a row, of which 16 are a tile: rows of tiles begin anywhere."""
    target = CudaTarget(hardware_spec("mma_f16"))
    gemm = random_plan(random.Random(2), target, WORKLOADS[1], 0).product
    image = random_plan(random.Random(2), target, WORKLOADS[3], 0).product
    schedule = KernelSchedule((2, 2), (4, 4), 2, 3)
    plain, gathered = Plan(gemm, schedule), Plan(image, schedule)
    turns = gathered.copy_turns(0)
    assert min(plain.copying, gathered.copying) > 1
    assert plain.row_distance(0) is not None
    assert gathered.row_distance(0) is None
    assert gathered.registers >= plain.registers + ROW_REGISTERS * turns - 8


@pytest.mark.parametrize("threads", [32, 64, 128, 160, 256, 512])
def test_launch_bounds_are_what_a_multiprocessor_has_registers_for(threads: int) -> None:
    smallest = gpu(hardware_spec("mma_f16"), "rtx_5090")
    for count in range(24, 256):
        blocks = resident_blocks(count, threads)
        # The number of blocks is limited by itself, to 24 on that GPU.
        resident = smallest.resident(threads // 32, 0, count)
        assert blocks == max(1, resident)


@needs_nvcc
@pytest.mark.quick(3)
@pytest.mark.parametrize("number", range(1000, 1060))
def test_estimates_are_near_to_what_ptxas_takes(number: int) -> None:
    """Of random kernels, of 24 and more registers; and none has local memory."""
    row = compute(number)
    if "error" in row:
        pytest.skip(row["error"])
    assert not any(row["local_bytes"].values()), row
    taken = [-(-count // 8) * 8 for count in row["registers"].values()]
    assert row["estimated"] - 40 <= min(taken), row
    # Without a loop ptxas is free to take registers for the addresses of all stages.
    if row["copies_in_loop"]:
        assert max(taken) <= row["estimated"] + 40, row


@pytest.mark.slow
@needs_nvcc
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
@needs_nvcc
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
