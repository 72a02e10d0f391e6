"""Plans of an operator: instructions for its statements, in as few programs as can be planned."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace

from cpembed.accelerator.combinations import Combinations
from cpembed.accelerator.covering import with_covered_statements
from cpembed.accelerator.crossings import crossing_tensors
from cpembed.accelerator.lowering import OperatorPlan, operator_plans
from cpembed.accelerator.matching import Match, Matching, match_statement
from cpembed.accelerator.problem import OperatorProblem, PlanningError
from cpembed.accelerator.specification import Specification
from cpembed.accelerator.template import make_template
from cpembed.hw.isa import InstructionSet

_COMBINATIONS = 16
"""Maximum number of combinations that are tried for each match of the largest statement."""
_FAILURES = 4
"""Number of matches without a plan after which the best plan is taken."""
_PLANS = 2
"""Number of matches of the largest statement of which the best plans are compared."""


Plans = tuple[OperatorPlan, ...]
"""Plans of consecutive statements, one program each."""


class OperatorSearch:
    """Search for plans of a specification's statements, in as few programs as can be planned.

    What no single instruction computes is covered by several, with statements of their own.
    """

    def __init__(self, specification: Specification, machine: InstructionSet) -> None:
        self.specification = with_covered_statements(specification, machine)
        self.machine = machine
        self.matchings = [match_statement(s, machine) for s in self.specification.statements]
        self.crossings = crossing_tensors(self.matchings, machine)
        self.keeps_order = True
        self.best: dict[int, Plans | None] = {}
        self.outcomes: dict[tuple[int, int], OperatorPlan | str] = {}

    def plans(self) -> Plans | str:
        """Return the plans, or why there are none."""
        reason = next((m.reason for m in self.matchings if not m.matches), "")
        if reason:
            return reason
        for keeps_order in (True, False):
            # Another order of dimensions is the last resort: other operators do not read it.
            self.keeps_order = keeps_order
            self.outcomes.clear()
            self.best.clear()
            plans = self._from(0)
            if plans is not None:
                return plans
        outcome = self.outcomes[0, len(self.matchings)]
        assert isinstance(outcome, str)
        return outcome

    def _from(self, first: int) -> Plans | None:
        """Return the plans of the statements from ``first`` on, those with the longest programs.

        Where all results pass through main memory in any case, two programs are an alternative.
        """
        count = len(self.matchings)
        if first == count:
            return ()
        if first not in self.best:
            end = self._last_end(first)
            options = [self._longest(first, count)]
            if end < count:
                options.append(self._longest(first, end))
            # Results that pass through main memory in any case cost no more in two programs.
            self.best[first] = min(
                (plans for plans in options if plans is not None), key=_cost, default=None
            )
        return self.best[first]

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
            self.outcomes[first, after] = self._plan(part, self.matchings[first:after])
        return self.outcomes[first, after]

    def _plan(self, part: Specification, matchings: Sequence[Matching]) -> OperatorPlan | str:
        """Return the best plan of one program, or why there is none."""
        best: OperatorPlan | None = None
        reason, planned, failed = "", 0, 0
        for combinations in Combinations(part, matchings, self.machine, self.keeps_order):
            plan = self._first_plan(part, itertools.islice(combinations, _COMBINATIONS))
            if isinstance(plan, str):
                reason = reason or plan
                failed += best is not None
            else:
                planned += 1
                if best is None or plan.cost.cycles < best.cost.cycles:
                    best = plan
            if planned == _PLANS or failed == _FAILURES:
                break
        return best or reason

    def _first_plan(
        self, part: Specification, combinations: Iterator[tuple[Match, ...]]
    ) -> OperatorPlan | str:
        """Return the plan of the first combination that has one, or why the first has none."""
        reason = ""
        for matches in combinations:
            problem = OperatorProblem(part, matches, keeps_order=self.keeps_order)
            try:
                # Most combinations that no tiling fits have no template either.
                make_template(problem, self.machine)
                return operator_plans(problem, self.machine)[0]
            except PlanningError as error:
                reason = reason or str(error)
        return reason or "rejected: no combination of instructions fits"


def _cost(plans: Plans) -> tuple[float, int]:
    """Return the cycles and bytes of plans, by which they are compared."""
    return sum(p.cost.cycles for p in plans), sum(p.cost.main_bytes for p in plans)


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
