"""The target of warp groups: its schedules, their estimates, and a run through the front door."""

from __future__ import annotations

import random

import pytest

from cpembed.driver.named import hardware_spec, workload
from cpembed.driver.options import SearchOptions
from cpembed.driver.solve import TopCandidates, searches
from cpembed.errors import LoweringError
from cpembed.targets.cuda.warp_specialized.limits import check
from cpembed.targets.cuda.warp_specialized.schedule import SpecializedPlan, SpecializedSchedule
from cpembed.targets.cuda.warp_specialized.space import SpecializedSpace
from cpembed.targets.cuda.warp_specialized.target import HopperTarget
from cpembed.targets.registry import open_target
from tests.unit.targets.cuda.warp_specialized.products import SHARED_BYTES, lowered

PEAKS = {"wgmma_f16": 989.4e12, "wgmma_s8": 1978.9e12, "wgmma_f8": 1978.9e12}
"""Dense operations a second of an H100 SXM5 (NVIDIA H100 Tensor Core GPU Architecture)."""


def space(words: str, target: str) -> SpecializedSpace:
    opened = open_target(hardware_spec(target))
    assert isinstance(opened, HopperTarget)
    _, product = lowered(words, target, "in_place_padded")
    return opened.space(product)


@pytest.mark.parametrize("target", PEAKS)
def test_a_large_product_is_estimated_near_the_peak(target: str) -> None:
    """At least 85 % of it, and never beyond it."""
    best = space("gemm m=8192 n=8192 k=8192", target).ranked(1)[0]
    share = 2 * 8192**3 / (best.cost * 1e-6) / PEAKS[target]
    assert 0.85 <= share <= 1.0
    plan_blocks = best.schedule.block
    assert plan_blocks[0] * 64 * plan_blocks[1] * 8 >= 128 * 128


@pytest.mark.parametrize("words", ["gemm m=100 n=72 k=48", "gemm m=1 n=8 k=16"])
def test_every_ranked_schedule_can_be_executed(words: str) -> None:
    ranked = space(words, "wgmma_bf16").ranked()
    assert ranked
    _, product = lowered(words, "wgmma_bf16", "in_place_padded")
    for item in ranked:
        check(SpecializedPlan(product, item.schedule), SHARED_BYTES)


def test_neighbours_differ_in_one_choice() -> None:
    rng, around = random.Random(5), space("gemm m=300 n=200 k=256", "wgmma_f16")
    first = around.ranked(1)[0].schedule
    legal = 0
    for _ in range(60):
        other = around.neighbour(first, rng)
        assert other is not None
        names = [
            name
            for name in SpecializedSchedule.__dataclass_fields__
            if getattr(first, name) != getattr(other, name)
        ]
        assert len(names) == 1
        try:
            legal += around.scored(other).cost > 0
        except LoweringError:
            continue
    assert legal > 10


def test_factors_are_loaded_from_where_they_are() -> None:
    """Both matrices of a product in row-major order by TMA: B is then contiguous along columns."""
    best = space("gemm m=8192 n=8192 k=8192", "wgmma_f16").ranked(1)[0].schedule
    _, product = lowered("gemm m=8192 n=8192 k=8192", "wgmma_f16", "in_place_padded")
    plan = SpecializedPlan(product, best)
    assert best.loads == ("tensor", "tensor")
    assert not plan.packs(0)
    assert not plan.packs(1)
    assert [image.major for image in plan.images] == ["k", "mn"]


def test_padded_rows_are_compared_with_rows_of_any_pixels() -> None:
    """56 columns fill 56 of 64 rows: enough for other targets, which do not search further."""
    words = "conv2d n=16 c=64 h=56 w=56 k=64 r=3 s=3 pad=1 layout=NHWC"
    spec = hardware_spec("wgmma_f16")
    operator, options = workload(words, target=spec), SearchOptions()
    narrow = searches(operator, spec, options, TopCandidates(8), well_used=0.85)
    both = searches(
        operator, spec, options, TopCandidates(8), well_used=HopperTarget.policy.well_used
    )
    assert [result.utilisation for result in narrow] == [0.875]
    assert [result.utilisation for result in both] == [0.875, 1.0]


def test_few_tiles_take_no_longer_than_more() -> None:
    """All multiprocessors would divide them into so many parts that adding those takes longer."""
    words = "conv2d n=1 c=256 h=7 w=7 k={} r=5 s=5 pad=2 layout=NHWC"
    costs = [space(words.format(filters), "wgmma_f16").best().cost for filters in (8, 16)]
    assert costs[0] <= costs[1]
