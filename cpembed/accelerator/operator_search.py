"""Plans of an operator: instructions for its statements, in as few programs as can be planned.

A statement's result is where an instruction that computes it writes it. From there, instructions
carry values from the memories that they read to those that they write. Where no sequence of them
leads to where another statement reads the result, except through main memory, every program stores
and loads it.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache

from cpembed.accelerator.combinations import Combinations
from cpembed.accelerator.covering import with_covered_statements
from cpembed.accelerator.host import copy_cycles
from cpembed.accelerator.lowering import OperatorPlan, operator_plan
from cpembed.accelerator.main_layouts import has_own_order, may_reorder
from cpembed.accelerator.matching import Matching, match_statement
from cpembed.accelerator.problem import Objective, OperatorProblem, PlanningError
from cpembed.accelerator.program import MainTensor
from cpembed.accelerator.specification import Specification
from cpembed.hw.isa import InstructionSet, MemoryKind
from cpembed.ir.computation import Computation
from cpembed.ir.dtypes import bits

_COMBINATIONS = 16
"""Maximum number of combinations that are tried for each match of the largest statement."""
_SMALL = 4
"""Ratio of points from which on statements are small beside others, and may follow in a program."""

_WORTH = 0.95
"""Part of the cycles in the dimensions' own order that another order may have at most."""

_STALE = 2
"""Number of combinations in a row with no better plan after which no further one is tried."""

_REFUSED = 96
"""Number of combinations without a plan after which no further one is tried."""

Plans = tuple[OperatorPlan, ...]
"""Plans of consecutive statements, one program each."""


class OperatorSearch:
    """Search for plans of a specification's statements, in as few programs as can be planned.

    What no single instruction computes is covered by several, with statements of their own.

    Parameters
    ----------
    specification : Specification
    machine : InstructionSet
    objective : str, default "cycles"
        What the plans are to have the least of: ``cycles``, or ``bytes`` to and from main memory.
    """

    def __init__(
        self,
        specification: Specification,
        machine: InstructionSet,
        objective: Objective = "cycles",
    ) -> None:
        self.objective: Objective = objective
        self.specification = with_covered_statements(specification, machine)
        self.machine = machine
        self.matchings = [match_statement(s, machine) for s in self.specification.statements]
        self.crossings = crossing_tensors(self.matchings, machine)
        self.keeps_order = True
        self.best: dict[int, Plans | None] = {}
        self.outcomes: dict[tuple[int, int], OperatorPlan | str] = {}
        self.ordered_outcomes: dict[tuple[int, int], OperatorPlan | str] = {}

    def plans(self) -> Plans | str:
        """Return the best plans, or why there are none.

        Inputs and outputs in another order of their dimensions cost the host's copies to and from
        their own order.
        """
        alternatives = self.alternatives()
        if isinstance(alternatives, str):
            return alternatives
        if self.objective == "bytes":
            return alternatives[0]
        return min(alternatives, key=lambda plans: self._cost(plans)[0] + self._copied(plans))

    def alternatives(self) -> tuple[Plans, ...] | str:
        """Return the best plans in the dimensions' own order, and faster ones in another.

        Other operators find tensors in the order of their dimensions. Another one may let
        instructions copy them in fewer steps, or in tiles that their own order does not allow.

        Returns
        -------
        tuple of Plans or str
            One or two alternatives; or why there is none.
        """
        reason = next((m.reason for m in self.matchings if not m.matches), "")
        reason = reason or _backward_reads(self.specification)
        if reason:
            return reason
        ordered = self._with_common_layouts(self._from(0))
        if ordered is not None and self.objective == "bytes":
            return (ordered,)
        self.keeps_order = False
        self.ordered_outcomes, self.outcomes = self.outcomes, {}
        self.best.clear()
        reordered = self._with_common_layouts(self._from(0))
        alternatives = [p for p in (ordered, reordered) if p is not None]
        if not alternatives:
            outcome = self.outcomes[0, len(self.matchings)]
            assert isinstance(outcome, str)
            return outcome
        if len(alternatives) == 2 and not (
            self._cost(alternatives[1]) < self._cost(alternatives[0])
            and _agree_between(alternatives[1])
        ):
            alternatives.pop()
        return tuple(alternatives)

    def _copied(self, plans: Plans) -> float:
        """Return the host's cycles of changing the layouts of inputs and outputs."""
        tensors = {n: t for plan in plans for n, t in plan.program().tensors.items()}
        names = {*self.specification.inputs, *self.specification.outputs} & {*tensors}
        return math.fsum(
            copy_cycles(math.prod(tensors[n].shape), self.machine)
            for n in names
            if not has_own_order(tensors[n])
        )

    def _with_common_layouts(self, plans: Plans | None) -> Plans | None:
        """Return plans that find what earlier ones write in the layout in which these write it.

        A plan for which no combination of instructions reads that layout stays as it is.
        """
        if plans is None:
            return None
        written: dict[str, MainTensor] = {}
        agreed: list[OperatorPlan] = []
        first = 0
        for original in plans:
            plan = original
            after = first + len(plan.problem.matches)
            tensors = plan.program().tensors
            needs = {n: replace(written[n], role="input") for n in tensors if n in written}
            if any(replace(tensors[n], role="input") != layout for n, layout in needs.items()):
                part = segment(self.specification, first, after)
                outcome = self._plan(part, self.matchings[first:after], "", needs)
                plan = plan if isinstance(outcome, str) else outcome
            outputs = plan.problem.specification.outputs
            written |= {n: t for n, t in plan.program().tensors.items() if n in outputs}
            agreed.append(plan)
            first = after
        return tuple(agreed)

    def _from(self, first: int) -> Plans | None:
        """Return the plans of the statements from ``first`` on, those with the longest programs.

        Where all results pass through main memory in any case, two programs are an alternative.
        """
        count = len(self.matchings)
        if first == count:
            return ()
        if first not in self.best:
            end = self._last_end(first)
            ends = [end] if end == count or self._is_large(first, end) else [count, end]
            options = (self._longest(first, last) for last in ends)
            self.best[first] = min(
                (plans for plans in options if plans is not None), key=self._cost, default=None
            )
            if self.best[first] is None and count not in ends:
                self.best[first] = self._longest(first, count)
        return self.best[first]

    def _is_large(self, first: int, end: int) -> bool:
        """True if what follows an end is large beside what is before it."""
        points = [s.computation.macs for s in self.specification.statements[first:]]
        return _SMALL * max(points[end - first :]) > max(points[: end - first])

    def _longest(self, first: int, end: int) -> Plans | None:
        """Return the plans of the statements from ``first`` on, the longest program to an end."""
        for after in range(end, first, -1):
            count = len(self.matchings)
            if after < count and self.specification.statements[after].accumulates:
                # Sums stay where they are until they are complete.
                continue
            plan = self._segment(first, after)
            rest = None if isinstance(plan, str) else self._from(after)
            if rest is not None and not isinstance(plan, str):
                return plan, *rest
        return None

    def _cost(self, plans: Plans) -> tuple[float, float]:
        """Return the cycles and bytes of plans, those of the objective first."""
        cycles = math.fsum(p.cost.cycles for p in plans)
        moved = sum(p.cost.main_bytes for p in plans)
        return (cycles, moved) if self.objective == "cycles" else (moved, cycles)

    def _last_end(self, first: int) -> int:
        """Return the first end at which all results pass through main memory in any case."""
        count = len(self.matchings)
        statements = self.specification.statements
        for after in range(first + 1, count):
            written = {s.output.tensor for s in statements[first:after]}
            read = {o.tensor for s in statements[after:] for o in s.reads}
            read |= {s.output.tensor for s in statements[after:] if s.accumulates}
            passed = written & read
            if passed and passed <= self.crossings and not statements[after].accumulates:
                return after
        return count

    def _segment(self, first: int, after: int) -> OperatorPlan | str:
        if (first, after) not in self.outcomes:
            part = segment(self.specification, first, after)
            ordered = self.ordered_outcomes.get((first, after), "")
            self.outcomes[first, after] = self._plan(part, self.matchings[first:after], ordered)
        return self.outcomes[first, after]

    def _plan(
        self,
        part: Specification,
        matchings: Sequence[Matching],
        ordered: OperatorPlan | str,
        layouts: Mapping[str, MainTensor] | None = None,
    ) -> OperatorPlan | str:
        """Return the best plan of one program, or why there is none.

        Parameters
        ----------
        part : Specification
            Statements of the program.
        matchings : sequence of Matching
        ordered : OperatorPlan or str
            The best plan in the dimensions' own order, than which another order has to be better.
        layouts : mapping of str to MainTensor, optional
            Layouts of tensors that are decided.
        """
        best = None if isinstance(ordered, str) else ordered
        reason, stale, refused = "", 0, 0
        combinations = (
            matches
            for group in Combinations(part, matchings, self.machine, self.keeps_order)
            for matches in itertools.islice(group, _COMBINATIONS)
        )
        for matches in combinations:
            problem = OperatorProblem(
                part,
                matches,
                layouts=layouts or {},
                keeps_order=self.keeps_order,
                objective=self.objective,
            )
            if not isinstance(ordered, str) and not may_reorder(problem, self.machine):
                stale += 1
                if stale == _STALE:
                    break
                continue
            # Combinations whose bound is no better are not planned.
            below = best.cycles if best is not None and self.objective == "cycles" else math.inf
            if best is not None and best is ordered:
                below *= _WORTH
            plan: OperatorPlan | None = None
            try:
                plan = operator_plan(problem, self.machine, below)
            except PlanningError as error:
                reason = reason or str(error)
                refused += 1
            if plan is not None and plan.is_better(best):
                best, stale = plan, 0
            elif best is not None:
                stale += 1
            if stale == _STALE or (best is None and refused == _REFUSED):
                break
        return best or reason or "rejected: no combination of instructions fits"


def _agree_between(plans: Plans) -> bool:
    """True if programs find what passes between them in one order of its dimensions."""
    orders: dict[str, object] = {}
    for plan in plans:
        for name, tensor in plan.program().tensors.items():
            order = tensor.order, tuple(sorted(tensor.blocks.items()))
            if tensor.role != "constant" and orders.setdefault(name, order) != order:
                return False
    return True


def _backward_reads(specification: Specification) -> str:
    """Return the reason where a statement reads a tensor backwards, which no box describes."""
    for statement in specification.statements:
        for access in (*statement.computation.reads, statement.computation.statement.store):
            if any(t.coefficient < 0 for index in access.index for t in index.terms):
                return (
                    f"rejected: {statement.computation} walks {access.operand} backwards: reverse "
                    "it, or the host computes it"
                )
    return ""


def segment(specification: Specification, first: int, after: int) -> Specification:
    """Return the specification of some consecutive statements.

    Parameters
    ----------
    specification : Specification
    first, after : int
        Number of the first statement, and of the one after the last.
    """
    statements = specification.statements[first:after]
    if len(statements) == len(specification.statements):
        return specification
    written = {s.output.tensor for s in statements}
    read = {o.tensor for s in statements for o in s.reads}
    before = {s.output.tensor for s in specification.statements[:first]}
    before.update(specification.inputs)
    later = {o.tensor for s in specification.statements[after:] for o in s.reads}
    return replace(
        specification,
        statements=statements,
        inputs=tuple(n for n in specification.operands if n in read and n in before),
        outputs=tuple(
            n
            for n in specification.operands
            if n in written and (n in later or n in specification.outputs)
        ),
        constants={n: a for n, a in specification.constants.items() if n in read},
    )


# -- crossings -------------------------------------------------------------------------------------


@lru_cache(maxsize=64)
def _reached(machine: InstructionSet) -> dict[str, frozenset[str]]:
    """Return the memories to which instructions carry values of a memory without main memory."""
    edges: dict[str, set[str]] = {
        m.name: {m.name} for m in machine.memories.values() if m.kind is MemoryKind.ROWS
    }
    for instruction in machine.instructions.values():
        written = {instruction.places[o].memory for o in instruction.outputs} & edges.keys()
        for operand in instruction.inputs:
            edges.get(instruction.places[operand].memory, set()).update(written)
    for through, further in edges.items():
        for reached in edges.values():
            if through in reached:
                reached.update(further)
    return {start: frozenset(ends) for start, ends in edges.items()}


def crossing_tensors(matchings: Sequence[Matching], machine: InstructionSet) -> frozenset[str]:
    """Return the tensors that every program stores to main memory and loads again."""
    written: dict[str, set[str]] = {}
    read: dict[str, set[str]] = {}
    for matching in matchings:
        computation = matching.statement.computation
        for match in matching.matches:
            for operand, access in match.accesses.items():
                tensor = computation.operand(access.operand).tensor
                memory = match.instruction.places[operand].memory
                is_output = operand in match.instruction.outputs
                (written if is_output else read).setdefault(tensor, set()).add(memory)
    reached = _reached(machine)
    return frozenset(
        tensor
        for tensor, starts in written.items()
        if tensor in read
        and not any(reached.get(start, frozenset()) & read[tensor] for start in starts)
    )


def compulsory_bytes(
    specification: Specification, matchings: Sequence[Matching], machine: InstructionSet
) -> int:
    """Return a lower bound of the bytes to and from main memory of every program.

    Inputs and outputs cross once, and results that cannot stay on chip are stored and loaded
    besides. The programs are those that compute each statement by an instruction that matches it.

    Parameters
    ----------
    specification : Specification
        Inputs and outputs of which all elements are needed.
    matchings : sequence of Matching
        Matches of its statements.
    machine : InstructionSet
    """
    crossings = dict.fromkeys((*specification.inputs, *specification.constants), 1)
    crossings |= dict.fromkeys(specification.outputs, 1)
    for tensor in crossing_tensors(matchings, machine):
        if any(_is_read_whole(m.statement.computation, tensor) for m in matchings):
            crossings[tensor] = 2
    return sum(
        count * math.prod(operand.shape) * bits(operand.dtype) // 8
        for tensor, count in crossings.items()
        for operand in [specification.operands[tensor]]
    )


def _is_read_whole(computation: Computation, tensor: str) -> bool:
    """True if a statement reads every element of a tensor."""
    for access in computation.reads:
        operand = computation.operand(access.operand)
        if operand.tensor != tensor:
            continue
        iterators = [e.single_iterator for e in access.index]
        extents = [computation.extents[i] if i is not None else 0 for i in iterators]
        if len(set(iterators)) == len(iterators) and tuple(extents) == tuple(operand.shape):
            return True
    return False
