"""Target class, which the registry names: turns a derived program into something that runs."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cpembed.codegen.epilogue_request import EpilogueRequest
from cpembed.embedding.embedding import Embedding
from cpembed.errors import WorkloadError
from cpembed.hw.instruction import HardwareSpec
from cpembed.hw.schema import spec_error
from cpembed.ir.computation import Computation
from cpembed.provenance import Provenance
from cpembed.runtime.measurement.runner import Quantiles, Timing
from cpembed.targets.base import Array, Details, Execution, Row, Target
from cpembed.targets.TEMPLATE.execute import Unit
from cpembed.targets.TEMPLATE.lower import Walk, lower
from cpembed.targets.TEMPLATE.schedule import Order, OrderSpace
from cpembed.transform.program import DerivedProgram


@dataclass(frozen=True)
class UnitDetails(Details):
    """Target-specific part of the result of a run."""

    executions: int
    cycles: int

    def to_json(self) -> dict[str, Any]:
        return {"executions": self.executions, "simulated_cycles": self.cycles}

    def bench_json(self) -> dict[str, Any]:
        return self.to_json()

    def rows(self) -> list[Row]:
        share = self.executions / self.cycles
        return [("simulated", f"{self.cycles:,} cycles, {share:.1%} of them executions")]


class TemplateTarget(Target[Walk, Order, Unit]):
    """Unit that is interpreted on this machine: its results are right, its cycles are counted."""

    provenance = Provenance.SIMULATED
    unit = "cycles"

    def __init__(self, spec: HardwareSpec) -> None:
        """Open the target; :class:`~cpembed.errors.SpecError` without a machine."""
        super().__init__(spec)
        if spec.machine is None:
            problem = "is missing: cycles need the clock and the bus"
            raise spec_error(spec.path or spec.name, ("machine",), problem)
        self.machine = spec.machine

    def missing(self) -> tuple[str, ...]:
        """Return nothing; a target that needs hardware returns what this machine lacks."""
        return ()

    def epilogue(self, workload: Computation, storing: EpilogueRequest) -> None:
        """Accept the sums only: the unit has no conversion."""
        # Called before the search, so that a request without a program fails at once.
        if storing != EpilogueRequest():
            raise WorkloadError(f"{self.spec.name} stores the sums: leave out what is to be stored")

    def lower(self, program: DerivedProgram, epilogue: Any = None) -> Walk:
        return lower(program, self.machine)

    def space(self, lowered: Walk) -> OrderSpace:
        return OrderSpace(lowered)

    def build(self, lowered: Walk, schedule: Order) -> Unit:
        return Unit(lowered, schedule)

    def execute(self, artifact: Unit, inputs: Mapping[str, Array]) -> Execution:
        return Execution((artifact.run(inputs),), self.provenance)

    def time(self, artifact: Unit, inputs: Mapping[str, Array]) -> Timing:
        # The cycles do not depend on the data, so those of the last run serve.
        if not artifact.cycles:
            artifact.run(inputs)
        us = artifact.cycles / self.machine.clock_mhz
        return Timing(
            self.provenance,
            artifact.walk.program.unfused.macs,
            Quantiles(us, us, us),
            cycles=artifact.cycles,
            clock_mhz=self.machine.clock_mhz,
        )

    def schedule_text(self, embedding: Embedding, schedule: Order) -> str:
        return f"loops {' '.join(schedule.loops)}"

    def schedule_of(self, trial: Any) -> Order:
        return Order(tuple(trial.schedule["loops"]))

    def describe(self, artifact: Unit, timing: Timing) -> UnitDetails:
        executions = math.prod(loop.extent for loop in artifact.walk.program.loops)
        return UnitDetails(executions, artifact.cycles)
