"""Plans of one operator: tilings, their programs and what they cost."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from cpembed.accelerator.bounds import bounds
from cpembed.accelerator.cost import ProgramCost, program_cost
from cpembed.accelerator.emission import Lowering
from cpembed.accelerator.pipeline import pipelined_cycles
from cpembed.accelerator.problem import (
    AddressingError,
    CapacityError,
    OperatorProblem,
    PlanningError,
    problem_variants,
)
from cpembed.accelerator.program import Program
from cpembed.accelerator.template import Template, exact_template, is_possible
from cpembed.accelerator.tiling import Tiling, smallest_tiling
from cpembed.accelerator.tiling_search import Candidate, TilingSearch
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
    def capacity_bytes(self) -> int:
        """Bytes of the rows that its buffers need."""
        memories = self.machine.memories
        return sum(rows * memories[name].row_bytes for name, rows in self.rows.items())

    def is_better(self, best: OperatorPlan | None) -> bool:
        """True if it has less of the objective than the best plan, or as much and fewer cycles."""
        return best is None or self._amounts() < best._amounts()

    def _amounts(self) -> tuple[float, float]:
        """Return the amount of the objective, and the cycles."""
        moved = self.cost.main_bytes if self.problem.objective == "bytes" else 0
        return moved, self.cycles

    def program(self, base_rows: Mapping[str, int] | None = None) -> Program:
        """Return the program, with the buffers in each memory from a row on (0 by default)."""
        return self.placed(base_rows or {})[0]

    def placed(self, base_rows: Mapping[str, int]) -> tuple[Program, list[tuple[str, int]]]:
        """Return the program, and memory and first row of each copy of each of its buffers.

        Buffers begin in a memory at its base row, 0 where there is none.
        """
        lowering = Lowering(exact_template(self.problem, self.machine), self.tiling)
        return lowering.program(base_rows), lowering.buffers.regions(base_rows)


_PROGRAMS = {"cycles": 24, "bytes": 6}
"""Maximum number of tilings of a variant of a problem whose programs are timed, by objective: the
search counts bytes exactly and estimates cycles."""
_WORTH = 0.95
"""Part of the best plan's cycles that a bound has to be below for a further plan to be tried."""
_TRUST = 1.3
"""Ratio of a tiling's estimate in the search to the best plan from which on it is not tried."""
_FIRST, _NEAR = 6, 1.1
"""Number of programs after which tilings have to be nearer to the best plan, and that ratio."""
_REFUSALS = 24
"""Maximum number of tilings of a variant of a problem that instructions may fail to address."""
_SMALLER = 2
"""Maximum number of further plans that need fewer rows than the best."""


def operator_plan(
    problem: OperatorProblem, machine: InstructionSet, below: float = math.inf
) -> OperatorPlan | None:
    """Return the fastest plan of an operator; None if it takes as many cycles as a limit.

    Parameters
    ----------
    problem : OperatorProblem
    machine : InstructionSet
    below : float, default infinity
        Cycles from which on a plan is of no use.

    Raises
    ------
    PlanningError
        If the operator is rejected, with the reason and the remedy.
    """
    plan = _best_plan(problem, machine, below)
    if plan is None or not _is_short_of_rows(plan):
        return plan
    try:
        # Larger tiles may be worth the waits for rows that other buffers had before.
        alternative = _reusing_plan(problem, machine, plan.cycles)
    except PlanningError:
        return plan
    return alternative if alternative is not None and alternative.is_better(plan) else plan


def _is_short_of_rows(plan: OperatorPlan) -> bool:
    """True if a plan could be faster with buffers that reuse rows."""
    machine = plan.machine
    if plan.problem.reuses_rows or machine.synchronization is not Synchronization.INTERLOCKED:
        return False
    if plan.cycles * _WORTH <= plan.cycles_bound:
        return False
    return any(2 * rows > machine.memories[name].rows for name, rows in plan.rows.items())


def template_plans(template: Template, count: int = 3) -> tuple[OperatorPlan, ...]:
    """Return plans of a template, the fastest first, each of which needs fewer rows than the last.

    Raises
    ------
    PlanningError
        If no tiling has a program.
    """
    plans = _VariantPlans([(bounds(template), 0, template)], None, has_smaller=True)
    best = plans.best()
    if best is None:
        return ()
    return (best, *itertools.islice(plans.smaller(best), count - 1))


def check_addresses(template: Template) -> None:
    """Check that instructions can address the tensors of a template in its smallest tiles.

    Raises
    ------
    PlanningError
        If they cannot.
    """
    Lowering(template, smallest_tiling(template), checks_rows=False).program({})


def _best_plan(
    problem: OperatorProblem, machine: InstructionSet, below: float
) -> OperatorPlan | None:
    """Return the fastest plan, with rows reused where that is free, or where nothing else fits."""
    order = machine.synchronization
    if order is Synchronization.IN_ORDER:
        # No unit waits for another one there, so that rows are reused at no cost.
        return _reusing_plan(problem, machine, below)
    try:
        return _VariantPlans.of_problem(problem, machine).best(below)
    except CapacityError:
        if order is Synchronization.CHANNELS:
            raise
        return _reusing_plan(problem, machine, below)


def _reusing_plan(
    problem: OperatorProblem, machine: InstructionSet, below: float
) -> OperatorPlan | None:
    """Return the fastest plan whose buffers reuse rows."""
    return _VariantPlans.of_problem(replace(problem, reuses_rows=True), machine).best(below)


class _VariantPlans:
    """Plans of the variants of a problem, of which those with low bounds come first."""

    def __init__(
        self,
        variants: Sequence[tuple[tuple[float, float], int, Template]],
        refusal: PlanningError | None,
        *,
        has_smaller: bool = False,
    ) -> None:
        self.variants = sorted(variants, key=lambda v: v[:2])
        self.refusal = refusal
        self.has_smaller = has_smaller
        self.searches: dict[int, TilingSearch] = {}

    @classmethod
    def of_problem(cls, problem: OperatorProblem, machine: InstructionSet) -> _VariantPlans:
        """Return the plans of all variants of a problem that have a template."""
        refusal: PlanningError | None = None
        variants: list[tuple[tuple[float, float], int, Template]] = []
        for number, variant in enumerate(problem_variants(problem, is_possible)):
            try:
                template = exact_template(variant, machine)
            except PlanningError as error:
                refusal = refusal or error
            else:
                variants.append((bounds(template), number, template))
        return cls(variants, refusal)

    def best(self, below: float = math.inf) -> OperatorPlan | None:
        """Return the fastest plan below a limit; None if there is none but above it."""
        best: OperatorPlan | None = None
        is_limited = False
        for (cycles, moved), number, template in self.variants:
            if self.is_by_cycles and cycles >= below * _WORTH:
                is_limited = True
                break
            try:
                plan = self._variant_plan(template, number, (cycles, moved), below)
            except PlanningError as error:
                self.refusal = self.refusal or error
                continue
            if plan is None:
                is_limited = True
            elif plan.is_better(best):
                best, below = plan, self._limit(plan)
        if best is None and not is_limited:
            raise self.refusal or PlanningError("rejected: no variant of the operator has a plan")
        return best

    def _variant_plan(
        self, template: Template, number: int, limits: tuple[float, float], below: float
    ) -> OperatorPlan | None:
        search = TilingSearch(template, below, has_smaller=self.has_smaller)
        self.searches[number] = search
        best: OperatorPlan | None = None
        refusal: PlanningError | None = None
        programs = refused = 0
        most = _PROGRAMS[template.problem.objective]
        while programs < most and refused < _REFUSALS:
            candidate = search.next(below)
            trust = _TRUST if programs < _FIRST else _NEAR
            if candidate is None or candidate.cycles > below * trust:
                break
            if programs == _FIRST and best is None:
                break
            if self.is_by_cycles and limits[0] >= below * _WORTH:
                break
            try:
                plan = _plan(template, candidate, limits, search.compared)
            except PlanningError as error:
                if not programs and not refused:
                    # Most of what is refused is refused for every tiling, and for the smallest too.
                    check_addresses(template)
                refusal, refused = refusal or error, refused + 1
                if isinstance(error, AddressingError):
                    search.exclude(candidate, error.tensor)
                continue
            programs += 1
            if plan.cycles < below and plan.is_better(best):
                best, below = plan, self._limit(plan)
        if not programs and refusal is not None:
            raise refusal
        return best

    @property
    def is_by_cycles(self) -> bool:
        """True if the plan is to have the fewest cycles: then those of others limit the search."""
        return all(t.problem.objective == "cycles" for _, _, t in self.variants)

    def _limit(self, plan: OperatorPlan) -> float:
        """Return the cycles from which on another plan is of no use."""
        return plan.cycles if self.is_by_cycles else math.inf

    def smaller(self, best: OperatorPlan) -> Iterator[OperatorPlan]:
        """Yield plans of the same variant, each of which needs fewer rows than the one before."""
        for limits, number, template in self.variants:
            if template.problem is not best.problem:
                continue
            search, refused = self.searches[number], 0
            capacity, count = best.capacity_bytes, 0
            while count < _SMALLER and refused < _REFUSALS:
                candidate = search.next(capacity=capacity / 2)
                if candidate is None:
                    return
                try:
                    plan = _plan(template, candidate, limits, search.compared)
                except PlanningError as error:
                    refused += 1
                    if isinstance(error, AddressingError):
                        search.exclude(candidate, error.tensor)
                    continue
                capacity, count = plan.capacity_bytes, count + 1
                if plan.cycles >= best.cycles:
                    yield plan


def _plan(
    template: Template, candidate: Candidate, limits: tuple[float, float], compared: int
) -> OperatorPlan:
    lowering = Lowering(template, candidate.tiling)
    program = lowering.program({})
    return OperatorPlan(
        template.problem,
        template.machine,
        candidate.tiling,
        dict(lowering.buffers.rows),
        program_cost(program, pipelined_cycles(program, lowering.buffers.regions({}))),
        *limits,
        compared,
    )
