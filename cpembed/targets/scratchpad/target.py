"""Machines with scratchpads as targets: numbers are emulated, times are estimated."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from cpembed.codegen.epilogue_request import EpilogueRequest
from cpembed.embedding.embedding import Embedding
from cpembed.errors import LoweringError, WorkloadError
from cpembed.hw.instruction import HardwareSpec
from cpembed.ir.computation import Computation
from cpembed.provenance import Provenance
from cpembed.runtime.measurement.runner import Timing
from cpembed.targets.base import Array, ChoicePolicy, Details, Execution, Row, Target
from cpembed.targets.scratchpad.boxes import BoxProduct, lower
from cpembed.targets.scratchpad.executor import (
    COMPILER,
    INSTRUCTIONS,
    Counters,
    ScratchpadProgram,
    program,
    save,
)
from cpembed.targets.scratchpad.machine import ScratchpadMachine, scratchpad_machine
from cpembed.targets.scratchpad.methods import ScratchpadMethodProgram, ScratchpadMethods
from cpembed.targets.scratchpad.schedule import Plan, Schedule
from cpembed.targets.scratchpad.space import ScratchpadSpace
from cpembed.transform.program import DerivedProgram

SEEDS = (1, 2)
"""Seeds of two orders in which PEs run and transfers end: a result that depends on the order is
wrong."""


@dataclass(frozen=True, kw_only=True)
class ScratchpadDetails(Details):
    """Counters of a run, and its estimated time."""

    machine: str
    estimated_us: float
    parts: Mapping[str, float]
    """Estimated microseconds of the product by activity."""
    counters: Counters
    """Counters of the product."""
    operands: tuple[str, ...]
    """Names of the counted operands by number."""
    used: Mapping[str, tuple[int, int]]
    """Bytes used, and bytes, of each memory of a PE."""
    around_us: float = 0.0
    """Estimated microseconds of the parts around the product of a method."""
    around: Mapping[str, Counters] = field(default_factory=dict[str, Counters])
    """Counters of the parts of a method, by name."""

    def to_json(self) -> dict[str, Any]:
        around: dict[str, Any] = {}
        if self.around:
            around = {
                "parts": {name: counters.to_json() for name, counters in self.around.items()},
                "estimated_parts_us": self.around_us,
                "estimated_product_us": self.estimated_us - self.around_us,
            }
        return {
            **self.bench_json(),
            **{f"estimated_{name}": value for name, value in self.parts.items()},
            "counters": self.counters.to_json(),
            **around,
            "scratchpads": {
                name: {"used_bytes": used, "bytes": room}
                for name, (used, room) in self.used.items()
            },
        }

    def bench_json(self) -> dict[str, Any]:
        return {"estimated_us": self.estimated_us, "machine": self.machine}

    def rows(self) -> list[Row]:
        counters, parts = self.counters, self.parts
        transfers = [
            f"{count.bytes:,} bytes {'stored' if direction == 'put' else 'loaded'} of "
            f"{self.operands[number]}"
            for (number, direction), count in sorted(counters.moved.items())
        ]
        calls = sum(counters.gemms.values()) + sum(counters.instructions.values())
        estimated = (
            f"{self.estimated_us:.4g} us on {self.machine}: transfers "
            f"{parts['transferring_us']:.4g} us, executions {parts['executing_us']:.4g} us"
        )
        if self.around:
            estimated += f"; the parts around the product {self.around_us:.4g} us"
        return [
            ("estimated", estimated),
            ("counted", f"{calls:,} executions; " + "; ".join(transfers)),
            *(
                (name, f"{used:,} of {room:,} bytes used of each PE's")
                for name, (used, room) in self.used.items()
            ),
        ]


class ScratchpadTarget(Target[BoxProduct, Schedule, ScratchpadProgram]):
    """Emulated scratchpad machine.

    The C text of a plan is compiled for this host and executed by fibers in place of the machine's
    processing elements.
    """

    provenance = Provenance.EMULATED
    instructions = INSTRUCTIONS
    policy = ChoicePolicy(considered=32)

    def __init__(self, spec: HardwareSpec) -> None:
        """Raise :class:`~cpembed.errors.SpecError` for a specification without a machine."""
        super().__init__(spec)
        self.machine: ScratchpadMachine = scratchpad_machine(spec)

    @cached_property
    def _missing(self) -> tuple[str, ...]:
        return COMPILER.missing()

    @property
    def described_machine(self) -> str | None:
        return self.machine.name

    @property
    def methods(self) -> ScratchpadMethods:
        return ScratchpadMethods(self.machine)

    def missing(self) -> tuple[str, ...]:
        return self._missing

    def epilogue(self, workload: Computation, storing: EpilogueRequest) -> None:
        if storing != EpilogueRequest():
            raise WorkloadError(f"{self.spec.name} stores the sums: leave out what is to be stored")

    def lower(self, program: DerivedProgram, epilogue: Any = None) -> BoxProduct:
        if epilogue is not None:
            raise LoweringError(f"{self.spec.name} stores the sums and nothing else")
        return lower(program, self.machine)

    def space(self, lowered: BoxProduct) -> ScratchpadSpace:
        return ScratchpadSpace(lowered)

    def build(self, lowered: BoxProduct, schedule: Schedule) -> ScratchpadProgram:
        return program(Plan(lowered, schedule))

    def execute(self, artifact: ScratchpadProgram, inputs: Mapping[str, Array]) -> Execution:
        # A kernel that does not wait for a transfer gives other results in another order.
        outputs = tuple(artifact.run(inputs, seed) for seed in SEEDS)
        return Execution(outputs, self.provenance)

    def time(self, artifact: ScratchpadProgram, inputs: Mapping[str, Array]) -> Timing:
        return Timing(self.provenance, artifact.plan.product.program.unfused.macs, None)

    def save(self, artifact: ScratchpadProgram, path: Path) -> None:
        save(artifact, path)

    def schedule_text(self, embedding: Embedding, schedule: Schedule) -> str:
        return str(schedule)

    def peak_gops(self) -> float | None:
        # A granule takes ``cycles`` of the described machine.
        machine = self.machine
        return 2 * self.spec.instruction.macs / machine.cycles * machine.clock_mhz / 1000

    def executed_by(self, artifact: ScratchpadProgram) -> str:
        machine = self.machine
        return f"{machine.rows} x {machine.columns} emulated PEs"

    def describe(
        self, artifact: ScratchpadProgram | ScratchpadMethodProgram, timing: Timing
    ) -> ScratchpadDetails:
        if isinstance(artifact, ScratchpadMethodProgram):
            # Counters and memories are those of the product; the parts around it add their
            # estimate.
            product = self.describe(artifact.product, timing)
            around_us = artifact.plan.parts_us
            return replace(
                product,
                estimated_us=product.estimated_us + around_us,
                around_us=around_us,
                around=dict(artifact.counters),
            )
        plan = artifact.plan
        scored = self.space(plan.product).scored(plan.schedule)
        used = zip(self.machine.memories, plan.used, self.machine.capacities, strict=True)
        assert artifact.counters is not None
        return ScratchpadDetails(
            machine=self.machine.name,
            estimated_us=scored.cost,
            parts=scored.parts,
            counters=artifact.counters,
            operands=tuple(operand.name for operand in plan.product.operands),
            used={name: (used_bytes, room) for name, used_bytes, room in used},
        )
