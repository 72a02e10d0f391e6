"""The instructions of x86 processors: AMX, AVX512-VNNI, AVX512-BF16, AVX-512 and AVX2 vectors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cpembed.errors import LoweringError
from cpembed.targets.cpu.lowering import BackEnd, Lowered
from cpembed.targets.cpu.target import CpuTarget
from cpembed.targets.x86.back_ends import back_end, no_back_end, shapes_taken
from cpembed.targets.x86.baselines import openers
from cpembed.targets.x86.features import missing_features
from cpembed.targets.x86.roofline import instruction_peak_gops
from cpembed.targets.x86.throttling import ThrottlingProbe
from cpembed.transform.program import DerivedProgram


class X86Target(CpuTarget):
    """Which code generator it has, a CPU feature of the specification decides."""

    def missing(self) -> tuple[str, ...]:
        lacking = no_back_end(self.spec)
        if lacking is not None:
            return (lacking,)
        features = missing_features(self.spec)
        return (f"this machine lacks {' and '.join(features)}",) if features else ()

    @property
    def back_end(self) -> BackEnd:
        return back_end(self.spec)

    def lower(self, program: DerivedProgram, epilogue: Any = None) -> Lowered:
        try:
            return super().lower(program, epilogue)
        except LoweringError as error:
            raise LoweringError(f"{error}{shapes_taken(self.spec)}") from error

    def peak_gops(self) -> float | None:
        return instruction_peak_gops(self.spec)

    def throttle_probe(self) -> ThrottlingProbe | None:
        return ThrottlingProbe.of(self.spec)

    @property
    def baselines(self) -> Mapping[str, Any]:
        return openers()
