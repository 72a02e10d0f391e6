"""Warp groups of Hopper as a target: kernels are generated as CUDA text and executed here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from cpembed.runtime.measurement.runner import Timing
from cpembed.targets.base import ChoicePolicy, Row
from cpembed.targets.cuda.build import CudaKernels
from cpembed.targets.cuda.instructions import LANES, WARP_GROUP
from cpembed.targets.cuda.lower import lower
from cpembed.targets.cuda.target import CudaDetails, EmulatedTarget
from cpembed.targets.cuda.warp_specialized.build import cuda_text
from cpembed.targets.cuda.warp_specialized.limits import check
from cpembed.targets.cuda.warp_specialized.schedule import (
    SpecializedPlan,
    SpecializedProduct,
    SpecializedSchedule,
)
from cpembed.targets.cuda.warp_specialized.space import SpecializedSpace
from cpembed.transform.program import DerivedProgram


@dataclass(frozen=True)
class HopperDetails(CudaDetails):
    """Counters of a run, with those of asynchronous copies and products."""

    def rows(self) -> list[Row]:
        counters = self.counters
        # Counters count warps; a product is executed by those of a group.
        products = sum(counters.mma.values()) * LANES // WARP_GROUP
        rows = [
            *(row for row in super().rows() if row[0] != "counted"),
            ("counted", f"{products:,} products of the instruction"),
            ("factors", f"{counters.wgmma_wavefronts:,} wavefronts read by products"),
        ]
        if counters.multicast_bytes:
            rows.append(("multicast", f"{counters.multicast_bytes:,} bytes to further blocks"))
        return rows


class HopperTarget(EmulatedTarget[SpecializedProduct, SpecializedSchedule]):
    """Emulated warp groups."""

    # TMA reads rows of pixels that carry from line to line as fast as any, so that padding of an
    # image's lines to the instruction's rows gains nothing.
    policy = ChoicePolicy(well_used=1.0)

    def lower(self, program: DerivedProgram, epilogue: Any = None) -> SpecializedProduct:
        return SpecializedProduct(lower(program, self.spec, epilogue))

    def space(self, lowered: SpecializedProduct) -> SpecializedSpace:
        return SpecializedSpace(lowered, self.gpu)

    def build(self, lowered: SpecializedProduct, schedule: SpecializedSchedule) -> CudaKernels:
        plan = SpecializedPlan(lowered, schedule)
        check(plan, self.gpu.shared_bytes)
        return CudaKernels(plan, cuda_text(plan))

    def schedule_from(self, document: Mapping[str, Any]) -> SpecializedSchedule:
        return msgspec.convert(document, SpecializedSchedule)

    def describe(self, artifact: CudaKernels, timing: Timing) -> HopperDetails:
        plan = artifact.plan
        assert isinstance(plan, SpecializedPlan)
        scored = self.space(plan.lowered).scored(plan.schedule)
        return HopperDetails(artifact.counters, scored.cost, self.gpu.name)
