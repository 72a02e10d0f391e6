"""Schedules and their estimates: what fits, what the estimate is made of, what it prefers."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest

from cpembed.driver.named import hardware_spec, workload
from cpembed.driver.solve import solve
from cpembed.errors import LoweringError
from cpembed.targets.cuda.lower import TiledProduct, lower
from cpembed.targets.cuda.model import estimate, gpu
from cpembed.targets.cuda.multistage.reads import SECTOR_BYTES, count_reads
from cpembed.targets.cuda.multistage.schedule import KernelSchedule, Plan, check
from cpembed.targets.cuda.multistage.traffic import traffic, work_of
from cpembed.targets.cuda.target import CudaSpace, CudaTarget
from cpembed.targets.cuda.warp_specialized.schedule import (
    SpecializedPlan,
    SpecializedProduct,
    SpecializedSchedule,
)

SPEC = hardware_spec("mma_f16")
A100 = gpu(SPEC, "a100")


def product(words: str, constraints: str = "fused", varies: bool = False) -> TiledProduct:
    given = workload(words, target=SPEC)
    if varies:
        first, second = given.inputs
        given = replace(given, inputs=(first, replace(second, varies=True)))
    found = solve(given, SPEC, constraints=constraints, top=1).embeddings[0]
    return lower(found.candidate.program, SPEC)


CONV = "conv2d n=1 c=64 h=14 w=14 k=64 r=3 s=3 pad=1 layout=NHWC"


def test_schedules_are_ranked_and_fit() -> None:
    space = CudaSpace(product(CONV), A100)
    ranked = space.ranked()
    assert len({item.schedule for item in ranked}) == len(ranked) > 100
    assert [round(item.cost, 3) for item in ranked] == sorted(round(i.cost, 3) for i in ranked)
    for item in ranked[:50]:
        assert isinstance(item.schedule, KernelSchedule)
        plan = Plan(space.product, item.schedule)
        check(plan, A100.shared_bytes)
        assert space.scored(item.schedule).cost == item.cost


def test_neighbours_differ_in_one_number() -> None:
    space, rng = CudaSpace(product(CONV), A100), random.Random(3)
    start = space.best().schedule
    for _ in range(50):
        other = space.neighbour(start, rng)
        assert other is not None
        different = [n for n in start.__dict__ if getattr(start, n) != getattr(other, n)]
        assert len(different) == 1


def test_an_estimate_is_never_below_what_the_units_can() -> None:
    found = product("gemm m=2048 n=2048 k=2048")
    space = CudaSpace(found, A100)
    macs = 2048**3
    # 1,024 multiply-adds a cycle and multiprocessor: A100 white paper.
    least = macs / (1024 * 108) / 1410
    best = space.best()
    assert least < best.cost < 1.5 * least
    assert isinstance(best.schedule, KernelSchedule)
    work = work_of(Plan(found, best.schedule), A100)
    assert work.dram_bytes >= 2 * 2048**2 * 2 + 4 * 2048**2


def test_a_split_gives_idle_multiprocessors_work() -> None:
    """A short and deep product: few blocks, unless its sums are split."""
    found = product("gemm m=64 n=64 k=16384")
    assert CudaSpace(found, A100).best().schedule.splits > 1


def test_groups_matter_where_factors_leave_l2() -> None:
    found = product("gemm m=16384 n=16384 k=4096")
    plain = KernelSchedule((2, 2), (4, 8), 2, 3)
    one, grouped = (
        work_of(Plan(found, replace(plain, group=group)), A100).dram_bytes for group in (1, 8)
    )
    assert grouped < one


@pytest.mark.parametrize(
    "schedule", [KernelSchedule((2, 2), (2, 4)), KernelSchedule((1, 1), (1, 1))]
)
def test_work_is_what_the_traffic_says(schedule: KernelSchedule) -> None:
    plan = Plan(product(CONV), schedule)
    work, found = work_of(plan, A100), traffic(plan)
    assert (work.blocks, work.warps, work.steps) == (found.blocks, found.warps, found.steps)
    moved = work.blocks * work.steps * work.fetch.bytes
    # Means are taken over some of the stages.
    assert moved == pytest.approx(SECTOR_BYTES * count_reads(plan)[1], rel=0.05)
    assert work.blocks * work.result.bytes == pytest.approx(found.stored_bytes)
    block = found.steps * (found.warps * found.stage.fragment_wavefronts + found.stage.copy_cycles)
    assert work.steps * (work.fetch.shared + work.compute.shared) == block
    # Rows of 64 bytes are half of a line each.
    assert found.stage.copy_cycles >= found.stage.copy_wavefronts
    parts = estimate(work, A100).parts
    assert parts["shared_us"] >= math.ceil(work.blocks / 108) * block / 1410


def test_packing_counts_but_for_weights() -> None:
    first = product("conv2d n=1 c=64 h=14 w=14 k=64 r=3 s=3 pad=1")
    last = product(CONV)
    plain = KernelSchedule((1, 1), (1, 1))
    assert [w.name for w in work_of(Plan(first, plain), A100).auxiliary] == ["packing"]
    assert work_of(Plan(last, plain), A100).auxiliary == ()
    split = replace(plain, splits=2)
    assert [w.name for w in work_of(Plan(last, split), A100).auxiliary] == ["reduction"]
    varying = Plan(product("conv2d n=1 c=64 h=14 w=14 k=64 r=3 s=3 pad=1", varies=True), plain)
    assert varying.packs(1)
    assert [w.name for w in work_of(varying, A100).auxiliary] == ["packing", "packing"]


def test_what_no_multiprocessor_holds_is_refused() -> None:
    found = product(CONV)
    with pytest.raises(LoweringError, match="shared memory"):
        check(Plan(found, KernelSchedule((4, 4), (4, 4), 4, 8)), A100.shared_bytes)


@pytest.mark.parametrize("machine", ["a100", "rtx_4090", "h100", "rtx_5090", "dgx_spark"])
def test_machines_with_tma_have_kernels_of_both_kinds(machine: str) -> None:
    unit = gpu(SPEC, machine)
    space = CudaSpace(product(CONV), unit)
    schedules = [item.schedule for item in space.ranked()]
    fed = [each for each in schedules if isinstance(each, SpecializedSchedule)]
    assert len(fed) < len(schedules)
    assert bool(fed) == (machine in ("h100", "rtx_5090", "dgx_spark"))
    rng = random.Random(5)
    for schedule in rng.sample(fed, min(20, len(fed))):
        plan = SpecializedPlan(SpecializedProduct(space.product), schedule)
        assert plan.shared_bytes <= unit.shared_bytes
        assert schedule.cluster == (1, 1)
        # Blocks that are there for good all fit at a time.
        resident = unit.resident(schedule.threads // 32, plan.shared_bytes, plan.registers)
        assert schedule.blocks <= max(1, resident) * unit.multiprocessors
        assert isinstance(space.neighbour(schedule, rng), SpecializedSchedule)
        assert space.scored(schedule).cost > 0
    if not fed:
        with pytest.raises(LoweringError, match="has no bulk copies for mma"):
            space.scored(SpecializedSchedule(1, (1, 1), warps=(1, 1)))


def test_the_target_builds_and_describes_warps_that_are_fed() -> None:
    target = CudaTarget(SPEC.for_machine("rtx_5090"))
    lowered = product("gemm m=64 n=32 k=64")
    schedule = SpecializedSchedule(1, (2, 2), 2, 3, ("tensor", "bulk"), warps=(1, 2))
    kernels = target.build(lowered, schedule)
    saved = target.saved(kernels, "layer", [])
    assert saved.text.architectures == ("sm_90", "sm_100", "sm_120")
    assert "cpembed_tensor_load_2d" in saved.text.source
    with pytest.raises(LoweringError, match="bulk copies load for their block"):
        target.build(lowered, replace(schedule, cluster=(2, 1), loads=("tensor", "tensor")))


@pytest.mark.parametrize(
    "words, packs",
    [
        ("conv2d n=1 c=8 h=4 w=4 k=8 r=1 s=1", False),
        ("conv2d_dgrad n=1 c=16 h=8 w=8 k=16 r=3 s=3 stride=2 phase=1,1", False),
        # Nine taps would gather every pixel of a large image nine times.
        ("conv2d n=64 c=64 h=56 w=56 k=256 r=3 s=3 pad=1", True),
    ],
)
def test_a_small_factor_is_read_where_it_is(words: str, packs: bool) -> None:
    """The kernel that packs takes longer than the product, which can read single elements."""
    tiled = product(words, "in_place_padded")
    assert any(layout.needs_packing for layout in tiled.first)
    assert not all(layout.needs_packing for layout in tiled.first)
    best = CudaSpace(tiled, A100).best().schedule
    assert tiled.first[best.layouts[0]].needs_packing is packs


@pytest.mark.parametrize("machine", ["a100", "rtx_5090"])
def test_why_no_schedule_fits(machine: str) -> None:
    tiled = product("batched_gemm b=70000 m=4 n=4 k=4")
    space = CudaSpace(tiled, gpu(SPEC, machine))
    if machine == "rtx_5090":
        # Persistent blocks take any batch.
        assert isinstance(space.best().schedule, SpecializedSchedule)
        return
    with pytest.raises(LoweringError, match=r"a100: a batch of 70,000: a grid has 65,535 in a row"):
        space.ranked()
