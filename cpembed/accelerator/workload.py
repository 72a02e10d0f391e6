"""One workload on an accelerator: planned, proven, emulated and compared with the reference."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from cpembed.accelerator.cost import moved_entries, summed
from cpembed.accelerator.energy import energy_table
from cpembed.accelerator.executor import (
    ProgramRuns,
    Run,
    compile_executor,
    execute,
    largest_difference,
    rounding_tolerance,
)
from cpembed.accelerator.lowering import OperatorPlan
from cpembed.accelerator.operator_search import OperatorSearch
from cpembed.accelerator.program import Array, Program
from cpembed.accelerator.proof import ProgramProof, prove
from cpembed.accelerator.specification import Specification, Statement
from cpembed.errors import LoweringError
from cpembed.hw.isa import InstructionSet
from cpembed.ir.computation import Computation
from cpembed.ir.dtypes import numpy_dtype
from cpembed.ir.reference import random_inputs, reference
from cpembed.provenance import Provenance
from cpembed.steps import PhaseProgress, silent


@dataclass(frozen=True, kw_only=True)
class WorkloadRun(ProgramRuns):
    """Outcome of a workload on an accelerator, compared with the reference.

    ``plans``, ``programs`` and ``proofs`` have one for each of the runs.
    """

    workload: Computation
    machine: InstructionSet
    plans: tuple[OperatorPlan, ...]
    programs: tuple[Program, ...]
    proofs: tuple[ProgramProof, ...]

    @property
    def estimated_cycles(self) -> float:
        """Cycles of all programs by their plans."""
        return math.fsum(plan.cost.cycles for plan in self.plans)

    @property
    def bound(self) -> float:
        """Lower bound on the cycles of programs with the same matches."""
        return math.fsum(plan.cycles_bound for plan in self.plans)

    def to_json(self) -> dict[str, Any]:
        """Return the document of ``run --json``."""
        return {
            "workload": str(self.workload),
            "target": self.machine.name,
            "provenance": Provenance.EMULATED.value,
            "programs": [
                {
                    "matches": list(plan.problem.instruction_lines),
                    "proven": proof.holds,
                    "mechanism": proof.mechanism,
                    "refusal": proof.refusal,
                    "tilings": plan.compared,
                }
                for plan, proof in zip(self.plans, self.proofs, strict=True)
            ],
            "cycles": self.cycles,
            "bound_cycles": self.bound,
            "estimated_cycles": self.estimated_cycles,
            "us": self.cycles / self.machine.clock_mhz,
            "unit_cycles": self.total("unit_cycles"),
            "executions": self.total("executions"),
            "bytes": moved_entries(self.total("moved")),
            "energy_pj": self.energy_pj,
            "energy_by_level_pj": self.total("energy"),
            "verified": self.is_right,
            "max_error": self.error,
            "tolerance": self.tolerance,
        }


def workload_specification(
    workload: Computation, arrays: Mapping[str, Array] | None = None
) -> Specification:
    """Return the specification of a workload whose weights are packed ahead.

    Parameters
    ----------
    workload : Computation
        Workload of one statement. Inputs after the first one are weights, unless they vary.
    arrays : mapping of str to ndarray, optional
        Values of the weights; by default zeros, which tilings do not depend on.
    """
    weights = [o for o in workload.inputs[1:] if not o.varies]
    names = {operand.name for operand in weights}
    constants = {
        o.name: np.broadcast_to(np.zeros((), numpy_dtype(o.dtype)), o.shape)
        if arrays is None
        else arrays[o.name]
        for o in weights
    }
    return Specification(
        workload.name,
        (Statement(workload),),
        tuple(o.name for o in workload.inputs if o.name not in names),
        tuple(o.name for o in workload.outputs),
        constants,
    )


def workload_plans(
    workload: Computation, machine: InstructionSet, arrays: Mapping[str, Array] | None = None
) -> tuple[OperatorPlan, ...]:
    """Return the best plans of a workload: those that ``run``, ``solve`` and ``explore`` cost.

    Parameters
    ----------
    workload : Computation
        Workload of one statement.
    machine : InstructionSet
    arrays : mapping of str to ndarray, optional
        Values of the weights, which the plans' programs hold; they change no cost.

    Raises
    ------
    LoweringError
        If no instructions compute it, or no tiling fits; the message says why.
    """
    plans = OperatorSearch(workload_specification(workload, arrays), machine).plans()
    if isinstance(plans, str):
        raise LoweringError(plans)
    return plans


def plan_document(plans: Sequence[OperatorPlan], machine: InstructionSet) -> dict[str, Any]:
    """Return the costs of plans, one program after the other, for documents."""
    table = energy_table(machine)
    levels = summed(table.by_level(plan.cost.executions, plan.cost.moved) for plan in plans)
    cycles = math.fsum(plan.cost.cycles for plan in plans)
    return {
        "provenance": Provenance.ESTIMATED.value,
        "programs": [list(plan.problem.instruction_lines) for plan in plans],
        "cycles": cycles,
        "bound_cycles": math.fsum(plan.cycles_bound for plan in plans),
        "us": cycles / machine.clock_mhz,
        "clock_mhz": machine.clock_mhz,
        "bytes": moved_entries(summed(plan.cost.moved for plan in plans)),
        "energy_by_level_pj": levels,
        "energy_sources": dict(table.sources),
    }


def run_workload(
    workload: Computation,
    machine: InstructionSet,
    seed: int = 0,
    progress: PhaseProgress = silent,
) -> WorkloadRun:
    """Plan a workload, prove its programs and emulate them on random data.

    Parameters
    ----------
    workload : Computation
        Workload of one statement. Inputs after the first one are packed ahead, as weights are,
        unless they are computed anew for every call.
    machine : InstructionSet
    seed : int, default 0
        Seed of the data, and of the order of units that signals leave open.
    progress : callable, optional
        Called before each phase with its name (``plan``, ``prove``, ``executor`` and ``emulate``)
        and 0.

    Raises
    ------
    LoweringError
        If no instructions compute it, or no tiling fits; the message says why.
    """
    progress("plan", 0)
    arrays = random_inputs(workload, seed)
    plans = workload_plans(workload, machine, arrays)
    programs = tuple(plan.program() for plan in plans)
    progress("prove", 0)
    proofs = tuple(map(prove, programs))
    progress("executor", 0)
    compile_executor(machine)
    progress("emulate", 0)
    contents: dict[str, Array] = dict(arrays)
    runs: list[Run] = []
    for program in programs:
        buffers = {n: tensor.buffer(contents.get(n)) for n, tensor in program.tensors.items()}
        run = execute(program, buffers, seed)
        assert program.specification is not None
        for name in program.specification.outputs:
            contents[name] = program.tensors[name].array(run.buffers[name])
        runs.append(run)
    expected = reference(workload, arrays)
    return WorkloadRun(
        workload=workload,
        machine=machine,
        plans=plans,
        programs=programs,
        proofs=proofs,
        runs=tuple(runs),
        error=largest_difference(contents[workload.output.name], expected),
        tolerance=rounding_tolerance(expected),
    )
