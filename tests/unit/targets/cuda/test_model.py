"""The time of a kernel by hand: what bounds it, which blocks are resident, what comes in rounds."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

import pytest

from cpembed.errors import LoweringError, SpecError
from cpembed.hw.loader import load_hardware_spec
from cpembed.targets.cuda.model import (
    Gpu,
    KernelWork,
    Phase,
    estimate,
    gpu,
    product_cycles,
    round_cycles,
)

SPEC = load_hardware_spec("wmma_f16_f16_8x32x16")


@pytest.fixture
def a100() -> Gpu:
    return gpu(SPEC, "a100")


def cycles(work: KernelWork, found: Gpu) -> float:
    """Of the kernel alone: no launch, no first and last access of L2."""
    us = estimate(work, found).us - found.unit.launch_us
    return us * found.clock_mhz - 2 * found.l2_cycles


WORK = KernelWork("some", 108, 4, 16_384, 64, steps=10, fetch=Phase(300), compute=Phase(100))


def test_figures_are_those_of_the_machines_files(a100: Gpu) -> None:
    assert (a100.multiprocessors, a100.clock_mhz, a100.architecture) == (108, 1410, "sm_80")
    assert (a100.product_cycles, a100.l2_bytes_each) == (16, 64)
    h100 = gpu(SPEC, "h100")
    assert (h100.multiprocessors, h100.architecture) == (132, "sm_90")
    assert h100.shared_bytes > a100.shared_bytes


@pytest.mark.parametrize(
    "warps, shared, registers, blocks",
    [
        (4, 0, 32, 16),  # 64 warps
        (1, 0, 32, 32),  # 32 blocks
        (4, 0, 128, 4),  # 65,536 registers, 4,096 a warp
        (2, 0, 33, 24),  # allotted by 256 to a warp: 1,280 instead of 1,056, 12 warps a scheduler
        (8, 48 * 1024, 32, 3),  # 164 KiB, 49 each
        (8, 163 * 1024, 32, 1),
        (8, 164 * 1024, 32, 0),
        (8, 0, 256, 0),
    ],
)
def test_blocks_of_a_multiprocessor(
    a100: Gpu, warps: int, shared: int, registers: int, blocks: int
) -> None:
    assert a100.resident(warps, shared, registers) == blocks


def test_a_block_alone_waits_for_one_thing_after_the_other(a100: Gpu) -> None:
    assert cycles(WORK, a100) == pytest.approx(10 * (300 + 100))
    ahead = replace(WORK, stages=3)
    # Two fetches are under way: a step takes 150 cycles, after the first fetch; none is under way
    # during the last step.
    assert cycles(ahead, a100) == pytest.approx(300 + 9 * 150 + 100)
    assert cycles(replace(WORK, stages=5), a100) == pytest.approx(300 + 10 * 100)


def test_resident_blocks_wait_together_until_a_unit_is_busy(a100: Gpu) -> None:
    assert estimate(WORK, a100).occupancy == 8
    eight = replace(WORK, blocks=8 * 108, compute=Phase(100, shared=20))
    # Each block is at shared memory for a twentieth of its time, where 7 others are as well; they
    # would wait the least if the four units were equally busy: 50 cycles each.
    assert cycles(eight, a100) == pytest.approx(10 * 400 + 7 * 50 / 20)
    busy = replace(WORK, blocks=8 * 108, compute=Phase(100, shared=100))
    assert cycles(busy, a100) == pytest.approx(8 * 10 * 100)
    # One more block on some multiprocessor is another round, of that block alone.
    more = replace(busy, blocks=8 * 108 + 1)
    assert cycles(more, a100) == pytest.approx(8 * 10 * 100 + 10 * 400)
    assert estimate(more, a100).waves == 2


def test_a_phase_takes_as_long_as_its_busiest_unit(a100: Gpu) -> None:
    """Barriers part the phases: units of different phases are never busy at the same time."""
    work = replace(WORK, fetch=Phase(10, issue=300), compute=Phase(10, shared=200))
    assert cycles(work, a100) == pytest.approx(10 * (300 + 200))
    ahead = replace(work, stages=2)
    assert cycles(ahead, a100) == pytest.approx(300 + 9 * 300 + 200)


def mean_value_analysis(delay: float, demands: Sequence[float], customers: int) -> float:
    """Cycle time of a closed network with exponential services (Reiser and Lavenberg, 1980)."""
    lengths = [0.0] * len(demands)
    total = 0.0
    for population in range(1, customers + 1):
        residence = [d * (1 + q) for d, q in zip(demands, lengths, strict=True)]
        total = delay + sum(residence)
        lengths = [population / total * r for r in residence]
    return total


@pytest.mark.parametrize("seed", range(20))
def test_rounds_are_bounded_by_queueing_networks(seed: int) -> None:
    """Not below the busiest unit and a block alone, nor above a network of random services."""
    chance = random.Random(seed)
    for _ in range(50):
        names = ("tensor", "shared", "issue", "l2")
        busy = {name: chance.choice([0.0, 1.0]) * chance.uniform(1, 100) for name in names}
        demand, blocks = sum(busy.values()), chance.randint(1, 32)
        delay = chance.uniform(0, 300)
        found = round_cycles(Phase(delay + demand), busy, blocks)
        assert found >= max(delay + demand, blocks * max(busy.values()))
        assert found <= mean_value_analysis(delay, list(busy.values()), blocks) * (1 + 1e-9)


def test_what_the_whole_gpu_moves_bounds_the_kernel(a100: Gpu) -> None:
    main = replace(WORK, dram_bytes=1e9)
    assert cycles(main, a100) == pytest.approx(1e9 / a100.dram_bytes)
    assert estimate(main, a100).bound == "dram_us"
    moved = replace(WORK, fetch=Phase(300, bytes=64_000))
    # The path of a multiprocessor before the GPU's: 6,912 bytes a cycle of all paths, 5,120 of L2.
    assert cycles(moved, a100) == pytest.approx(108 * 640_000 / 5120)


def test_other_kernels_are_launched_one_after_the_other(a100: Gpu) -> None:
    both = estimate(replace(WORK, auxiliary=(WORK, WORK)), a100)
    assert both.us == pytest.approx(3 * estimate(WORK, a100).us)
    assert [other.name for other in both.auxiliary] == ["some", "some"]


def test_products_wait_for_their_sums_or_for_the_tensor_cores(a100: Gpu) -> None:
    assert product_cycles(a100, 4, 1, 8).cycles == 8 * 33
    assert product_cycles(a100, 4, 4, 8).cycles == 4 * 8 * 16
    eight = product_cycles(a100, 8, 4, 8)
    assert (eight.cycles, eight.tensor, eight.issue) == (2 * 4 * 8 * 16, 2 * 4 * 8 * 16, 64)
    assert product_cycles(a100, 6, 4, 8).tensor == eight.tensor


def test_more_of_anything_never_takes_less(a100: Gpu) -> None:
    base = estimate(WORK, a100).us
    for field in ("cycles", "tensor", "shared", "issue", "bytes"):
        for amount in (10.0, 1e4):
            more = Phase(**{field: amount})
            assert estimate(replace(WORK, result=more), a100).us >= base
            assert estimate(replace(WORK, compute=WORK.compute + more), a100).us >= base
    assert estimate(replace(WORK, steps=20), a100).us > base
    assert estimate(replace(WORK, shared_bytes=100_000, blocks=864), a100).us > (
        estimate(replace(WORK, blocks=864), a100).us
    )


def test_what_no_multiprocessor_holds_and_what_no_file_describes() -> None:
    with pytest.raises(LoweringError, match="some: a multiprocessor of a100 holds no block"):
        estimate(replace(WORK, registers=256), gpu(SPEC, "a100"))
    with pytest.raises(SpecError, match="has no machine 'v100'; it has a100, h100, h200, rtx_5090"):
        gpu(SPEC, "v100")
    volta = replace(SPEC, machines={"v100": replace(SPEC.machines["a100"], name="v100")})
    with pytest.raises(SpecError, match=r"no figures of a GPU 'v100'.*a100, dgx_spark, h100"):
        gpu(volta)
    with pytest.raises(SpecError, match="vta_1x16x16 has no machine 'a100'; it has pynq_z1"):
        gpu(load_hardware_spec("vta_1x16x16"), "a100")


# ------------------------------------------------------------------- random work of any kind


def random_work(chance: random.Random) -> KernelWork:
    def phase() -> Phase:
        cycles, *busy = (chance.uniform(0, limit) for limit in (2000, 800, 800, 500, 60_000))
        return Phase(cycles, *busy)

    return KernelWork(
        "any",
        blocks=int(10 ** chance.uniform(0, 4.5)),
        warps=chance.choice([1, 2, 4, 8]),
        shared_bytes=chance.randrange(1, 150) * 1024,
        registers=chance.randrange(24, 240),
        steps=chance.randrange(1, 60),
        stages=chance.randrange(1, 5),
        fetch=phase(),
        compute=phase(),
        result=phase(),
        dram_bytes=10 ** chance.uniform(4, 9),
    )


def estimates(seed: int, found: Gpu, count: int = 200) -> list[tuple[KernelWork, float]]:
    chance = random.Random(seed)
    works = [random_work(chance) for _ in range(count)]
    resident = [w for w in works if found.resident(w.warps, w.shared_bytes, w.registers)]
    assert len(resident) > count / 2
    return [(work, estimate(work, found).us) for work in resident]


@pytest.mark.parametrize(
    "figure, slower",
    [
        ("l2_cycles", 2.0), ("l2_bytes", 0.5), ("l2_bytes_each", 0.5), ("dram_bytes", 0.5),
        ("clock_mhz", 0.5), ("multiprocessors", 0.5),
    ],
)  # fmt: skip
def test_a_worse_gpu_is_never_faster(a100: Gpu, figure: str, slower: float) -> None:
    value = getattr(a100, figure)
    worse = replace(a100, **{figure: type(value)(value * slower)})
    pairs = [(us, estimate(work, worse).us) for work, us in estimates(1, a100)]
    assert all(before <= after for before, after in pairs)
    assert any(before < after for before, after in pairs)


def test_large_kernels_take_time_in_proportion_to_their_blocks(a100: Gpu) -> None:
    for work, us in estimates(2, a100):
        if work.blocks > 40 * a100.multiprocessors:
            double = replace(work, blocks=2 * work.blocks, dram_bytes=2 * work.dram_bytes)
            assert 1.8 < estimate(double, a100).us / us < 2.02
            assert estimate(replace(work, blocks=work.blocks + 1), a100).us / us < 1.03


def test_fewer_resident_blocks_are_no_gain(a100: Gpu) -> None:
    """Up to the last round, which may be fuller than that of more resident blocks."""
    for work, us in estimates(3, a100):
        for change in ({"registers": 240}, {"shared_bytes": 150 * 1024}):
            larger = replace(work, **change)
            if a100.resident(larger.warps, larger.shared_bytes, larger.registers):
                assert estimate(larger, a100).us > 0.9 * us


def test_more_stages_are_no_loss(a100: Gpu) -> None:
    for work, us in estimates(4, a100):
        more = estimate(replace(work, stages=work.stages + 1), a100).us
        assert more <= us * (1 + 1e-12)
