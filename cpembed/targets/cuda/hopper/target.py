"""Warp groups of Hopper as a target: kernels are generated as CUDA text and executed here."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

from cpembed.embedding.embedding import Embedding
from cpembed.provenance import Provenance
from cpembed.runtime.measurement.runner import Timing
from cpembed.targets.base import Array, Execution, Target
from cpembed.targets.cuda.build import INSTRUCTIONS, CudaKernels, save
from cpembed.targets.cuda.executor import COMPILER, Order
from cpembed.targets.cuda.hopper.build import cuda_text
from cpembed.targets.cuda.hopper.limits import check
from cpembed.targets.cuda.hopper.schedule import HopperPlan, HopperProduct, HopperSchedule
from cpembed.targets.cuda.hopper.space import HopperSpace
from cpembed.targets.cuda.lower import lower
from cpembed.targets.cuda.model import Gpu, gpu
from cpembed.targets.cuda.target import CudaDetails
from cpembed.transform.program import DerivedProgram


class HopperTarget(Target[HopperProduct, HopperSchedule, CudaKernels]):
    """Emulated warp groups; times are estimates for the first GPU of the specification."""

    provenance = Provenance.EMULATED
    follows_machine = True
    instructions = INSTRUCTIONS

    @cached_property
    def gpu(self) -> Gpu:
        return gpu(self.spec)

    @property
    def described_machine(self) -> str | None:
        return next(iter(self.spec.machines), None)

    def missing(self) -> tuple[str, ...]:
        return COMPILER.missing()

    def lower(self, program: DerivedProgram, epilogue: Any = None) -> HopperProduct:
        return HopperProduct(lower(program, self.spec, epilogue))

    def space(self, lowered: HopperProduct) -> HopperSpace:
        return HopperSpace(lowered, self.gpu)

    def build(self, lowered: HopperProduct, schedule: HopperSchedule) -> CudaKernels:
        plan = HopperPlan(lowered, schedule)
        check(plan, self.gpu.shared_bytes)
        return CudaKernels(plan, cuda_text(plan))

    def execute(self, artifact: CudaKernels, inputs: Mapping[str, Array]) -> Execution:
        # Two orders of the warps: a result that depends on the order is wrong.
        outputs = tuple(artifact.run(inputs, order) for order in (Order.REVERSE, Order.FORWARD))
        return Execution(outputs, self.provenance)

    def time(self, artifact: CudaKernels, inputs: Mapping[str, Array]) -> Timing:
        # Emulation takes no time that says anything of a GPU; the estimate is in the details.
        return Timing(self.provenance, artifact.plan.product.program.unfused.macs, None)

    def save(self, artifact: CudaKernels, path: Path) -> None:
        save(artifact, path)

    def schedule_text(self, embedding: Embedding, schedule: HopperSchedule) -> str:
        return str(schedule)

    def describe(self, artifact: CudaKernels, timing: Timing) -> CudaDetails:
        plan = artifact.plan
        assert isinstance(plan, HopperPlan)
        scored = self.space(plan.lowered).scored(plan.schedule)
        return CudaDetails(artifact.counters, scored.cost, self.gpu.name)

    def executed_by(self, artifact: CudaKernels) -> str:
        return "emulated CUDA"
