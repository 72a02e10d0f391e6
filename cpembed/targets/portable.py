"""Portable code as a target: it verifies programs on any machine, without the instruction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from cpembed.codegen.compiled import CompiledKernel, Processor
from cpembed.codegen.epilogue_request import EpilogueRequest
from cpembed.codegen.recorded import Recorder
from cpembed.ir.computation import Computation
from cpembed.runtime.measurement.runner import Timing, measure
from cpembed.runtime.tuning.space import Scored, Space
from cpembed.targets.base import Array, Execution, Target
from cpembed.targets.capabilities import Linkable
from cpembed.targets.cpu.lowering import portable_kernel
from cpembed.transform.program import DerivedProgram

PORTABLE = "generic"
"""Name of the back end."""

_ROUNDS = 3
"""Number of timed rounds: portable code is slow, and its time matters little."""

_Program = tuple[DerivedProgram, Any]


# Portable code has nothing to choose: no schedule, and no estimate that could be compared.
class _OneSchedule(Space[None]):
    def ranked(self, limit: int | None = None) -> Sequence[Scored[None]]:
        return [self.scored(None)]

    def scored(self, schedule: None) -> Scored[None]:
        return Scored(0.0, schedule)


class PortableTarget(Target[_Program, None, CompiledKernel], Linkable):
    """Derived programs as plain loops."""

    def missing(self) -> tuple[str, ...]:
        return ()

    def lower(self, program: DerivedProgram, epilogue: Any = None) -> _Program:
        return program, epilogue

    def space(self, lowered: _Program) -> _OneSchedule:
        return _OneSchedule()

    def build(self, lowered: _Program, schedule: None) -> CompiledKernel:
        return portable_kernel(*lowered)

    def planned(
        self, lowered: _Program, schedule: None, processor: Processor | None = None
    ) -> CompiledKernel:
        return portable_kernel(*lowered, processor=processor or Recorder())

    def execute(self, artifact: CompiledKernel, inputs: Mapping[str, Array]) -> Execution:
        return Execution((artifact.run(inputs),), self.provenance)

    def time(self, artifact: CompiledKernel, inputs: Mapping[str, Array]) -> Timing:
        return measure(artifact, inputs, rounds=_ROUNDS)

    def epilogue(self, workload: Computation, storing: EpilogueRequest) -> Any:
        name = f"{self.spec.name} with the {PORTABLE} back end"
        storing.require_one_output(name)
        return storing.epilogue(name, workload.output.dtype)

    def executed_by(self, artifact: CompiledKernel) -> str:
        return PORTABLE
