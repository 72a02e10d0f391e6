"""Sectors that copies of threads read: those that the emulator counts, of random kernels."""

from __future__ import annotations

import random

import numpy as np
import pytest

from cpembed.driver.named import hardware_spec, workload
from cpembed.driver.solve import solve
from cpembed.targets.cuda.build import CudaKernels
from cpembed.targets.cuda.multistage.reads import (
    LINE_SECTORS,
    SAMPLED_BLOCKS,
    SAMPLED_STAGES,
    StagedTile,
    count_reads,
    mean_reads,
)
from cpembed.targets.cuda.multistage.schedule import Plan
from cpembed.targets.cuda.target import CudaTarget
from cpembed.targets.cuda.warp_specialized.schedule import SpecializedPlan
from cpembed.targets.cuda.warp_specialized.target import HopperTarget
from cpembed.targets.cuda.warp_specialized.traffic import copied_tile
from tests.integration.test_tensor_core import WORKLOADS, schedule_for
from tests.unit.targets.cuda.emulator.running import needs_compiler

emulated = needs_compiler


def random_kernels(seed: int, name: str) -> CudaKernels:
    """Kernels of a random operator, embedding and schedule whose threads copy a factor."""
    rng = random.Random(f"{name} {seed}")
    spec = hardware_spec(name)
    target = HopperTarget(spec) if name.startswith("wgmma") else CudaTarget(spec)
    while True:
        operator = workload(rng.choice(list(WORKLOADS.values())), target=spec)
        embeddings = solve(operator, spec, constraints="fused", top=6).embeddings
        if not embeddings:
            continue
        lowered = target.lower(rng.choice(embeddings).candidate.program)
        if isinstance(target, CudaTarget):
            return target.build(lowered, schedule_for(rng))
        ranked = [item.schedule for item in target.space(lowered).ranked()]
        by_threads = [s for s in ranked if "threads" in s.loads and not s.streamed]
        if by_threads:
            return target.build(lowered, rng.choice(by_threads))


def gathered(plan: SpecializedPlan) -> tuple[int, int]:
    """Bytes and sectors of all copies of producers' threads."""
    rows, columns, batch = plan.blocks
    total = np.zeros(2, np.int64)
    for number, (blocks, times) in enumerate(((rows, columns), (columns, rows))):
        if plan.schedule.loads[number] == "threads":
            tile = copied_tile(plan, number)
            staged = StagedTile(plan.product, number, plan.operand(number), tile)
            reads = staged.reads(*map(np.arange, (batch, blocks, plan.steps)))
            total += times * np.array([reads.vectors * tile.width, reads.sectors], np.int64)
    return int(total[0]), int(total[1])


@emulated
@pytest.mark.quick(12)
@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("name", ["mma_f16", "mma_s8", "wmma_f16_8x32x16", "wgmma_f16"])
def test_sectors_are_those_that_the_emulator_counts(name: str, seed: int) -> None:
    kernels = random_kernels(seed, name)
    plan, counters = kernels.plan, kernels.count()
    expected = gathered(plan) if isinstance(plan, SpecializedPlan) else None
    if expected is None:
        assert isinstance(plan, Plan)
        expected = count_reads(plan)
    assert (counters.global_load_bytes, counters.global_load_sectors) == expected


@pytest.mark.quick(6)
@pytest.mark.parametrize("seed", range(30))
def test_means_are_of_all_stages_where_they_are_few(seed: int) -> None:
    """And the accesses of a stage share sectors and lines, but read no vector from nowhere."""
    plan = random_kernels(seed, "mma_f16").plan
    assert isinstance(plan, Plan)
    rows, columns, batch, _ = plan.blocks
    stages = -(-plan.product.tiles[3] // plan.schedule.depth)
    for number, blocks in enumerate((rows, columns)):
        tile, layout = plan.shared_tiles[number], plan.schedule.layouts[number]
        mean = mean_reads(plan.product, number, layout, tile)
        assert mean.distinct <= mean.sectors <= tile.copies
        assert mean.sectors / LINE_SECTORS <= mean.lines <= mean.sectors
        if batch <= 2 and blocks <= SAMPLED_BLOCKS and stages <= SAMPLED_STAGES:
            staged = StagedTile(plan.product, number, plan.operand(number), tile)
            reads = staged.reads(*map(np.arange, (batch, blocks, stages)))
            assert mean.sectors * batch * blocks * stages == pytest.approx(reads.sectors)
