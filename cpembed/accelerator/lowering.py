"""Plans of one operator: tilings, their programs and what they cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from cpembed.accelerator.cost import ProgramCost, program_cost
from cpembed.accelerator.emission import Lowering
from cpembed.accelerator.pipeline import pipelined_cycles
from cpembed.accelerator.problem import (
    CapacityError,
    OperatorProblem,
    PlanningError,
    problem_variants,
)
from cpembed.accelerator.program import Program
from cpembed.accelerator.template import Template, exact_template, is_possible
from cpembed.accelerator.tiling import Candidate, SearchResult, Tiling, search, smallest_tiling
from cpembed.hw.isa import InstructionSet, Synchronization


@dataclass(frozen=True)
class OperatorPlan:
    """A plan of one operator: its tiling and what it costs.

    Attributes
    ----------
    rows : mapping of str to int
        Rows that its buffers need of each memory.
    cost : ProgramCost
        Executions, bytes and cycles of its program.
    cycles_bound, bytes_bound : float
        Bounds that hold for every program with these matches.
    compared : int
        Number of tilings that the search compared: all of its template.
    """

    problem: OperatorProblem
    machine: InstructionSet
    tiling: Tiling
    rows: Mapping[str, int]
    cost: ProgramCost
    cycles_bound: float
    bytes_bound: float
    compared: int

    @property
    def cycles(self) -> float:
        """Estimated cycles."""
        return self.cost.cycles

    @property
    def bound_cycles(self) -> float:
        """Bound of the cycles of every program with these matches."""
        return self.cycles_bound

    @property
    def is_proven(self) -> bool:
        """True if the estimate meets the bound of every program with these matches."""
        return self.cost.cycles <= self.cycles_bound * (1 + 1e-9)

    @property
    def working_rows(self) -> Mapping[str, int]:
        """Rows that its buffers need of each memory, without those of tensors that stay there."""
        return self.rows

    @property
    def gap(self) -> float:
        """Cycles over their bound, minus 1."""
        return self.cost.cycles / self.cycles_bound - 1 if self.cycles_bound else 0.0

    def program(self, base_rows: Mapping[str, int] | None = None) -> Program:
        """Return the program, with the buffers in each memory from a row on (0 by default)."""
        return self.placed(base_rows or {})[0]

    def placed(self, base_rows: Mapping[str, int]) -> tuple[Program, list[tuple[str, int]]]:
        """Return the program, and memory and first row of each copy of each of its buffers.

        Parameters
        ----------
        base_rows : mapping of str to int
            First row of the buffers in each memory; 0 where it is missing.
        """
        lowering = Lowering(exact_template(self.problem, self.machine), self.tiling)
        return lowering.program(base_rows), lowering.buffers.regions(base_rows)


_PLANS = 4
"""Maximum number of plans of an operator."""
_LOWERED = 6
"""Maximum number of variants of a problem whose programs are tried."""
_NEAR = 1.0
"""Gap of a plan from which on no further variant is tried."""


def operator_plans(problem: OperatorProblem, machine: InstructionSet) -> tuple[OperatorPlan, ...]:
    """Return plans of an operator, the fastest first, each of which needs fewer rows than the last.

    Parameters
    ----------
    problem : OperatorProblem
    machine : InstructionSet

    Raises
    ------
    PlanningError
        If the operator is rejected, with the reason and the remedy.
    """
    order = machine.synchronization
    if order is Synchronization.IN_ORDER:
        # No unit waits for another one there, so that rows are reused at no cost.
        return _variant_plans(replace(problem, reuses_rows=True), machine)
    try:
        return _variant_plans(problem, machine)
    except CapacityError:
        if order is Synchronization.CHANNELS:
            raise
        return _variant_plans(replace(problem, reuses_rows=True), machine)


def _variant_plans(problem: OperatorProblem, machine: InstructionSet) -> tuple[OperatorPlan, ...]:
    """Return the plans of the best variant of a problem."""
    refusal: PlanningError | None = None
    best: tuple[OperatorPlan, ...] = ()
    lowered = 0
    for variant in problem_variants(problem, is_possible):
        try:
            template = exact_template(variant, machine)
            lowered += 1
            # Most of what is refused is refused for every tiling, and at once for the smallest.
            check_addresses(template)
            plans = template_plans(template)
        except PlanningError as error:
            refusal = refusal or error
        else:
            if not best or plans[0].cost.cycles < best[0].cost.cycles:
                best = plans
        # Further variants are worth their time only while the plan is far from its bound.
        if lowered == _LOWERED or (best and best[0].gap < _NEAR):
            break
    if not best:
        raise refusal or PlanningError(f"rejected: {problem.specification.name} has no plan")
    return best


def check_addresses(template: Template) -> None:
    """Check that instructions can address the tensors of a template in its smallest tiles.

    Raises
    ------
    PlanningError
        If they cannot.
    """
    Lowering(template, smallest_tiling(template), checks_rows=False).program({})


def template_plans(template: Template, count: int = _PLANS) -> tuple[OperatorPlan, ...]:
    """Return plans of a template, the fastest first, each of which needs fewer rows than the last.

    Parameters
    ----------
    template : Template
    count : int
        Maximum number of plans, from 2 on.

    Raises
    ------
    PlanningError
        If no tiling has a program.
    """
    result = search(template)
    plans: list[OperatorPlan] = []
    refusal: PlanningError | None = None
    for candidate in _spread(result.candidates, count):
        try:
            plans.append(_plan(template, candidate, result))
        except PlanningError as error:
            refusal = refusal or error
    if not plans:
        raise refusal or PlanningError("rejected: no tiling has a program")
    return _plan_front(plans)


def _plan(template: Template, candidate: Candidate, result: SearchResult) -> OperatorPlan:
    lowering = Lowering(template, candidate.tiling)
    program = lowering.program({})
    return OperatorPlan(
        template.problem,
        template.machine,
        candidate.tiling,
        dict(lowering.buffers.rows),
        program_cost(program, pipelined_cycles(program, lowering.buffers.regions({}))),
        result.cycles_bound,
        result.bytes_bound,
        result.compared,
    )


def _plan_front(plans: Sequence[OperatorPlan]) -> tuple[OperatorPlan, ...]:
    """Return the plans with fewer cycles than all that need fewer bytes of rows."""

    def capacity(plan: OperatorPlan) -> int:
        memories = plan.machine.memories
        return sum(rows * memories[name].row_bytes for name, rows in plan.rows.items())

    front: list[OperatorPlan] = []
    for plan in sorted(plans, key=lambda p: (p.cost.cycles, p.cost.main_bytes, capacity(p))):
        if not front or capacity(plan) < capacity(front[-1]):
            front.append(plan)
    return tuple(front)


def _spread(candidates: Sequence[Candidate], count: int) -> list[Candidate]:
    """Return the fastest candidates, and others spread over the rest of the front."""
    if len(candidates) <= count:
        return list(candidates)
    half = count // 2
    if half == 1:
        return [candidates[0], candidates[-1]]
    rest = candidates[half:]
    step = (len(rest) - 1) / (half - 1)
    return [*candidates[:half], *(rest[round(k * step)] for k in range(half))]
