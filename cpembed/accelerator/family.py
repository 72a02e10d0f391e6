"""The family of an instruction set whose keys vary, for the exploration of a design space.

A point gives values to keys of the file, which the ordinary reader builds in memory: sizes, rows,
banks, bandwidths, cycles, and instructions that are present or not. A layer costs what the planner
of operators estimates for its best programs there. A layer without a program is left out with the
reason.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Hashable, Mapping
from typing import Any, ClassVar

import msgspec

from cpembed.accelerator.operator_search import OperatorSearch
from cpembed.accelerator.workload import workload_specification
from cpembed.driver.bench_layers import NamedSuite, prepared_suite
from cpembed.errors import LoweringError, SpecError
from cpembed.exploration.described.family import (
    REMOVED,
    Choices,
    DescribedFamily,
    constants_of,
)
from cpembed.exploration.described.keys import ABSENT, read_key, replaced, require_place
from cpembed.graph.passes import prepare
from cpembed.hw.isa import InstructionSet
from cpembed.hw.isa_reader import read_instruction_set
from cpembed.hw.specification import SpecificationFile
from cpembed.ir.computation import Computation
from cpembed.provenance import Provenance
from cpembed.targets.family import Activity, Choice, Costs, Point, Value
from cpembed.workloads.suites import Layer

_ENERGY = "energy_pj"
"""Name of the energy among the counts of an activity."""


class LayerPrograms(msgspec.Struct, frozen=True, kw_only=True):
    """Best programs of a layer on a machine, with their estimates.

    ``moved`` are bytes by memory and direction, ``executions`` those of each instruction.
    """

    mapping: str
    cycles: float
    bound_cycles: float
    energy_pj: float
    executions: dict[str, int]
    moved: dict[str, float]


class AcceleratorFamily(DescribedFamily):
    """Machines of an instruction set by the values of some of its keys."""

    name: ClassVar[str] = "accelerator"
    analysis: ClassVar[Any] = LayerPrograms

    @property
    def default_objectives(self) -> tuple[str, ...]:
        """Time alone: energies are those that the file states, and areas are not described."""
        return ("time",)

    @property
    def silicon_flaw(self) -> str | None:
        """Reason why there is no area."""
        return "instruction sets describe no area, and the energies that their files state"

    def suite(self, name: str, shapes: Mapping[str, Any] | None) -> NamedSuite:
        return prepared_suite(
            name, lambda graph: prepare(graph, first="int8", second="int8"), shapes
        )

    def machine_of(self, point: Point) -> InstructionSet:
        """Return the machine of a point; raise :class:`SpecError` where there is none."""
        return read_instruction_set(self.tables(point), str(self.file.path))

    def flaw(self, point: Point) -> str | None:
        try:
            self.machine_of(point)
        except SpecError as error:
            return str(error).removeprefix(f"{self.file.path}: ")
        return None

    def clock_mhz(self, point: Point) -> float:
        return self.machine_of(point).clock_mhz

    def area_um2(self, point: Point) -> float:
        return math.nan

    def leakage_w(self, point: Point) -> float:
        return 0.0

    def energy_pj(self, point: Point, activity: Activity) -> float:
        return activity.counts[_ENERGY]

    def typed(self, layer: Layer) -> Computation:
        return layer.workload(None)

    def group(self, point: Point) -> Hashable:
        return self.digest(point)

    def analyse(self, point: Point, workload: Computation) -> LayerPrograms:
        machine = self.machine_of(point)
        specification = workload_specification(workload)
        plans = OperatorSearch(specification, machine).plans()
        if isinstance(plans, str):
            raise LoweringError(plans)
        executions: dict[str, int] = {}
        moved: dict[str, float] = {}
        for plan in plans:
            for name, count in plan.cost.executions.items():
                executions[name] = executions.get(name, 0) + count
            for (memory, direction), count in plan.cost.moved.items():
                key = f"{memory}.{direction}"
                moved[key] = moved.get(key, 0.0) + count
        return LayerPrograms(
            mapping="; ".join(line for plan in plans for line in plan.problem.instruction_lines),
            cycles=math.fsum(plan.cost.cycles for plan in plans),
            bound_cycles=math.fsum(plan.cycles_bound for plan in plans),
            energy_pj=math.fsum(plan.cost.energy_pj for plan in plans),
            executions=executions,
            moved=moved,
        )

    def bound(self, point: Point, analysis: Any) -> Costs | None:
        """Return the costs themselves: nothing is left to evaluate."""
        return Costs(analysis.cycles, analysis.energy_pj)

    def choices(self, point: Point, analysis: Any) -> tuple[Choice, ...]:
        counts = {**analysis.moved, _ENERGY: analysis.energy_pj}
        activity = Activity(analysis.cycles, Provenance.ESTIMATED, counts)
        details = msgspec.to_builtins(analysis)
        return (Choice(analysis.mapping, analysis.mapping, None, activity, details),)


def accelerator_family(
    file: SpecificationFile,
    labels: Mapping[str, Mapping[Value, Any]],
    mentioned: Collection[str],
    choices: Choices,
    error: Callable[[str, str], SpecError],
) -> AcceleratorFamily:
    """Return the family of an instruction set, whose keys and values are checked.

    Parameters
    ----------
    file, labels, mentioned, choices, error
        As for :func:`~cpembed.exploration.described.family.described_family`.

    Raises
    ------
    SpecError
        For the first fault.
    """
    for option, value in (("machine", choices.machine), ("technology", choices.technology)):
        if value is not None:
            raise SpecError(f"{file.path}: an instruction set has no {option} to choose")
    read_instruction_set(file.merged, str(file.path))
    for name, by_label in labels.items():
        key = read_key(name)
        try:
            require_place(file.merged, key)
            for label, value in by_label.items():
                # Values may be right only together; each has to keep the file readable as tables.
                replaced(file.merged, key, ABSENT if label == REMOVED else value)
        except SpecError as problem:
            raise error(name, str(problem)) from None
    constants = constants_of(file.merged, set(mentioned) - set(labels))
    named = {**labels, **{name: {value: value} for name, value in constants.items()}}
    return AcceleratorFamily(file, named, constants, choices)
