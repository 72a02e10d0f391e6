"""Estimated times of kernels of warp groups: what bounds them, and what a schedule changes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cpembed.driver.named import hardware_spec
from cpembed.targets.cuda.model import estimate, gpu
from cpembed.targets.cuda.warp_specialized.schedule import SpecializedPlan, SpecializedSchedule
from cpembed.targets.cuda.warp_specialized.space import SpecializedSpace
from cpembed.targets.cuda.warp_specialized.tiles import streamed_tiles
from cpembed.targets.cuda.warp_specialized.traffic import traffic
from cpembed.targets.cuda.warp_specialized.work import work_of
from tests.unit.targets.cuda.warp_specialized.products import lowered

H100 = gpu(hardware_spec("wgmma_f16"), "h100")

PEAK = 989.4e6
"""Dense operations of float16 in a microsecond: NVIDIA H100 white paper, SXM5."""


@pytest.mark.parametrize("size", [8192, 16384])
def test_large_products_reach_most_of_the_peak(size: int) -> None:
    _, product = lowered(f"gemm m={size} n={size} k={size}", "wgmma_f16", "fused")
    best = SpecializedSpace(product, H100).best()
    assert 0.85 < 2 * size**3 / best.cost / PEAK < 1
    # The traffic is what the emulator counts of smaller products: each stage's images.
    counts = traffic(SpecializedPlan(product, best.schedule))
    rows, columns = (n * tile for n, tile in zip(best.schedule.block, (64, 8), strict=True))
    shared = rows // best.schedule.sharers(0) + columns // best.schedule.sharers(1)
    blocks = -(-size // rows) * -(-size // columns)
    assert counts.image_bytes == blocks * shared * size * 2
    # Of the four warps of a group, each counts its part of an instruction.
    assert counts.products == blocks * best.schedule.block[0] * (size // 16) * 4


def test_even_ranges_keep_all_blocks_busy() -> None:
    """A turn and a little: whole tiles leave most blocks idle in the second one."""
    _, product = lowered("gemm m=2048 n=2048 k=8192", "wgmma_f16", "fused")
    whole = SpecializedSchedule(2, (1, 16), 4, 4, ("tensor", "tensor"), blocks=132)
    plan = SpecializedPlan(product, replace(whole, tile=(1, 15)))
    assert plan.order.tiles == 16 * 18
    times = [
        estimate(work_of(SpecializedPlan(product, schedule), H100), H100).us
        for schedule in (
            replace(whole, tile=(1, 15)),
            replace(whole, tile=(1, 15), streamed=True),
        )
    ]
    # 288 tiles are three turns of 132 blocks: 2.18 of them are enough.
    assert streamed_tiles(288, 132) == 24 + 132
    assert times[1] < 0.85 * times[0]


def test_sums_of_parts_are_traffic() -> None:
    _, product = lowered("gemm m=1024 n=1024 k=4096", "wgmma_f16", "fused")
    whole = SpecializedSchedule(1, (1, 16), 4, 4, ("tensor", "tensor"), blocks=100)
    streamed = SpecializedPlan(product, replace(whole, streamed=True))
    more = traffic(streamed).stored_bytes - traffic(SpecializedPlan(product, whole)).stored_bytes
    order = streamed.order
    # The last block of a tile clears its count.
    counts = (order.streamed_parts + order.divided_tiles) * 4
    assert more == order.streamed_parts * 64 * 128 * 4 + counts


def test_multicast_reads_a_factor_once_for_a_cluster() -> None:
    """Blocks above each other share columns: L2 reads their half of them, and all of the rows."""
    _, product = lowered("gemm m=4096 n=4096 k=4096", "wgmma_f16", "in_place_padded")
    alone = SpecializedSchedule(2, (1, 32), 4, 4, loads=("tensor", "tensor"), blocks=132)
    fetches = {
        cluster: work_of(SpecializedPlan(product, replace(alone, cluster=cluster)), H100).fetch
        for cluster in ((1, 1), (2, 1), (1, 2))
    }
    rows, columns = 128 * 64 * 2, 256 * 64 * 2
    assert fetches[1, 1].multicast == 0
    assert fetches[2, 1].multicast == columns / 2
    assert fetches[1, 2].multicast == rows / 2
    assert {fetch.bytes for fetch in fetches.values()} == {rows + columns}
