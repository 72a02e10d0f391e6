"""The dot-product and matrix instructions of Arm's cores, executed by such a core or emulated."""

from __future__ import annotations

import platform
from collections.abc import Mapping

from cpembed.codegen.compiled import CompiledKernel, Processor
from cpembed.codegen.host_cpu import cpu_features
from cpembed.errors import BackendUnavailable
from cpembed.hw.instruction import HardwareSpec
from cpembed.provenance import Provenance
from cpembed.runtime.measurement.runner import Timing
from cpembed.targets.arm.dot_products import DOT_PRODUCTS, LANES
from cpembed.targets.arm.emulated import TRIPLE, EmulatedProcessor
from cpembed.targets.arm.emulator import emulator, missing
from cpembed.targets.arm.machine import core
from cpembed.targets.base import Array
from cpembed.targets.cpu.calibration import Calibration
from cpembed.targets.cpu.dot_products import column_back_end
from cpembed.targets.cpu.lane_products import lane_back_end
from cpembed.targets.cpu.lowering import BackEnd
from cpembed.targets.cpu.space import Objective
from cpembed.targets.cpu.target import CpuTarget


def back_end(spec: HardwareSpec) -> BackEnd | None:
    """The code generator that a specification's CPU features and element types ask for."""
    instruction = spec.instruction
    names = [operand.name for operand in instruction.computation.inputs]
    types = {tuple(choice[name] for name in names) for choice in instruction.dtype_choices}
    for dot in DOT_PRODUCTS:
        if dot.feature in spec.cpu_features and dot.factors in types:
            return column_back_end(dot)
    return lane_back_end(LANES) if "asimd" in spec.cpu_features else None


def is_arm() -> bool:
    """Whether this machine executes AArch64's instructions itself."""
    return platform.machine() == "aarch64"


class ArmTarget(CpuTarget):
    """On another machine an emulator executes kernels, on one thread: right numbers, no time."""

    def __init__(self, spec: HardwareSpec, objective: Objective = "total") -> None:
        super().__init__(spec, objective)
        self.provenance = Provenance.MEASURED if is_arm() else Provenance.EMULATED
        self.triple = None if is_arm() else TRIPLE

    def missing(self) -> tuple[str, ...]:
        if back_end(self.spec) is None:
            return (self._no_kernel(),)
        if not is_arm():
            return () if emulator() else (missing(),)
        lacking = [name for name in self.spec.cpu_features if name not in cpu_features()]
        return (f"this machine lacks CPU feature {' and '.join(lacking)}",) if lacking else ()

    @property
    def back_end(self) -> BackEnd:
        found = back_end(self.spec)
        if found is None:
            raise BackendUnavailable(self._no_kernel())
        return found

    def _no_kernel(self) -> str:
        return (
            f"no kernel of the back end {self.spec.backend} is for {self.spec.name}: there are "
            "those of arm_sdot, arm_udot, arm_smmla and arm_int8, by cpu_features and element types"
        )

    @property
    def processor(self) -> Processor:
        return super().processor if is_arm() else EmulatedProcessor()

    @property
    def machine(self) -> Calibration:
        return core(self.processor.thread_count())

    def time(self, artifact: CompiledKernel, inputs: Mapping[str, Array]) -> Timing:
        if is_arm():
            return super().time(artifact, inputs)
        return Timing(self.provenance, artifact.program.workload.macs, None)
