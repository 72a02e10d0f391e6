"""Plans of warp groups that no kernel is generated for, each for its reason."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from cpembed.errors import LoweringError
from cpembed.targets.cuda.warp_specialized.limits import check
from cpembed.targets.cuda.warp_specialized.schedule import SpecializedPlan, SpecializedSchedule
from tests.unit.targets.cuda.warp_specialized.products import SHARED_BYTES, lowered

GOOD = SpecializedSchedule(1, (1, 8), 4, 3, ("threads", "bulk"))

REASONS: dict[str, tuple[dict[str, Any], str]] = {
    "no stage ahead": ({"stages": 1}, "stages from 2"),
    "four groups": ({"groups": 4}, "groups from 1 to 3"),
    "too many columns": ({"tile": (1, 33)}, "no instruction of 264 columns"),
    "long rows": ({"depth": 8}, "rows of a stage have 128, 64, 32 bytes"),
    "no such layout": ({"layouts": (7, 0)}, "layouts of the factors"),
    "empty part": ({"splits": 3, "depth": 2}, "a part of the reduction has no stage"),
    "much memory": ({"stages": 12, "tile": (2, 16)}, "bytes of shared memory of"),
    "many registers": ({"groups": 2, "tile": (2, 32), "stages": 2, "depth": 1}, "registers of 2"),
}


def plan(**changes: Any) -> SpecializedPlan:
    _, product = lowered("gemm m=300 n=256 k=128", "wgmma_f16", "fused")
    return SpecializedPlan(product, replace(GOOD, **changes))


def test_a_plan_within_all_limits() -> None:
    check(plan(), SHARED_BYTES)


@pytest.mark.parametrize("name", REASONS)
def test_the_limit_that_a_plan_exceeds(name: str) -> None:
    changes, reason = REASONS[name]
    with pytest.raises(LoweringError, match=reason):
        check(plan(**changes), SHARED_BYTES)


def test_bytes_have_no_view_along_rows() -> None:
    """A column of 8-bit elements cannot be transposed by the instruction, so B has to be packed."""
    _, product = lowered("gemm m=300 n=256 k=128", "wgmma_s8", "fused")
    assert all(view.operand.needs_packing for view in product.views(1, 8, 4))


def test_parts_of_sums_beyond_32_bits() -> None:
    _, product = lowered("gemm m=46336 n=46336 k=128", "wgmma_f16", "fused")
    with pytest.raises(LoweringError, match="more than 32 bits: split"):
        check(SpecializedPlan(product, replace(GOOD, splits=2)), SHARED_BYTES)


def test_padded_tiles_beyond_32_bits() -> None:
    _, product = lowered("gemm m=46272 n=46400 k=128", "wgmma_f16", "fused")
    with pytest.raises(LoweringError, match="offsets in operand C reach"):
        check(SpecializedPlan(product, replace(GOOD, groups=2)), SHARED_BYTES)
