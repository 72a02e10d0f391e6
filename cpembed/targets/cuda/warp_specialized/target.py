"""Warp groups of Hopper as a target: kernels are generated as CUDA text and executed here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import msgspec

from cpembed.provenance import Provenance
from cpembed.runtime.measurement.runner import Timing
from cpembed.runtime.tuning.database import PlainTrial
from cpembed.targets.base import Array, ChoicePolicy, Row, Target
from cpembed.targets.cuda.build import CudaKernels
from cpembed.targets.cuda.chains.target import ChainTarget
from cpembed.targets.cuda.emulator.executor import COMPILER
from cpembed.targets.cuda.instructions import LANES, WARP_GROUP
from cpembed.targets.cuda.lower import lower
from cpembed.targets.cuda.model import Gpu, gpu
from cpembed.targets.cuda.saving.target import SavingTarget
from cpembed.targets.cuda.target import CudaDetails
from cpembed.targets.cuda.tuning import CudaTuner
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


class HopperTarget(
    ChainTarget, SavingTarget, Target[SpecializedProduct, SpecializedSchedule, CudaKernels]
):
    """Emulated warp groups; times are estimates for the first GPU of the specification."""

    provenance = Provenance.EMULATED
    follows_machine = True
    tuner = CudaTuner
    # TMA reads rows of pixels that carry from line to line as fast as any, so that padding of an
    # image's lines to the instruction's rows gains nothing.
    policy = ChoicePolicy(well_used=1.0)

    @cached_property
    def gpu(self) -> Gpu:
        return gpu(self.spec)

    @property
    def described_machine(self) -> str | None:
        return next(iter(self.spec.machines), None)

    def missing(self) -> tuple[str, ...]:
        return COMPILER.missing()

    def lower(self, program: DerivedProgram, epilogue: Any = None) -> SpecializedProduct:
        return SpecializedProduct(lower(program, self.spec, epilogue))

    def space(self, lowered: SpecializedProduct) -> SpecializedSpace:
        return SpecializedSpace(lowered, self.gpu)

    def build(self, lowered: SpecializedProduct, schedule: SpecializedSchedule) -> CudaKernels:
        plan = SpecializedPlan(lowered, schedule)
        check(plan, self.gpu.shared_bytes)
        return CudaKernels(plan, cuda_text(plan))

    def time(self, artifact: CudaKernels, inputs: Mapping[str, Array]) -> Timing:
        # Emulation takes no time that says anything of a GPU; the estimate is in the details.
        return Timing(self.provenance, artifact.plan.product.program.unfused.macs, None)

    def schedule_of(self, trial: PlainTrial) -> SpecializedSchedule:
        return self.schedule_from(trial.schedule)

    def schedule_from(self, document: Mapping[str, Any]) -> SpecializedSchedule:
        """Return the schedule of :meth:`schedule_json`."""
        return msgspec.convert(document, SpecializedSchedule)

    def describe(self, artifact: CudaKernels, timing: Timing) -> HopperDetails:
        plan = artifact.plan
        assert isinstance(plan, SpecializedPlan)
        scored = self.space(plan.lowered).scored(plan.schedule)
        return HopperDetails(artifact.counters, scored.cost, self.gpu.name)
