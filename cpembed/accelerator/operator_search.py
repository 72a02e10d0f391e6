"""Plans of an operator: instructions for its statements, in as few programs as can be planned."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from cpembed.accelerator.lowering import OperatorPlan, operator_plan
from cpembed.accelerator.matching import Match, Matching, match_statement
from cpembed.accelerator.problem import OperatorProblem, PlanningError
from cpembed.accelerator.specification import Specification
from cpembed.hw.isa import InstructionSet

_COMBINATIONS = 16
"""Maximum number of combinations that are tried for each match of the largest statement."""

_STALE = 2
"""Number of combinations in a row with no better plan after which no further one is tried."""

Plans = tuple[OperatorPlan, ...]
"""Plans of consecutive statements, one program each."""


class OperatorSearch:
    """Search for plans of a specification's statements, in as few programs as can be planned."""

    def __init__(self, specification: Specification, machine: InstructionSet) -> None:
        self.specification = specification
        self.machine = machine
        self.matchings = [match_statement(s, machine) for s in self.specification.statements]
        self.keeps_order = True
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
            plans = self._from(0)
            if plans is not None:
                return plans
        outcome = self.outcomes[0, len(self.matchings)]
        assert isinstance(outcome, str)
        return outcome

    def _from(self, first: int) -> Plans | None:
        """Return the plans of the statements from ``first`` on, the longest first program."""
        count = len(self.matchings)
        if first == count:
            return ()
        for after in range(count, first, -1):
            if after < count and self.specification.statements[after].accumulates:
                # Sums stay where they are until they are complete.
                continue
            plan = self._segment(first, after)
            rest = None if isinstance(plan, str) else self._from(after)
            if rest is not None and not isinstance(plan, str):
                return plan, *rest
        return None

    def _segment(self, first: int, after: int) -> OperatorPlan | str:
        if (first, after) not in self.outcomes:
            part = segment(self.specification, first, after)
            self.outcomes[first, after] = self._plan(part, self.matchings[first:after])
        return self.outcomes[first, after]

    def _plan(self, part: Specification, matchings: Sequence[Matching]) -> OperatorPlan | str:
        """Return the best plan of one program, or why there is none."""
        best: OperatorPlan | None = None
        reason, stale = "", 0
        for matches in _combinations(matchings):
            problem = OperatorProblem(part, matches, keeps_order=self.keeps_order)
            plan: OperatorPlan | None = None
            try:
                # Combinations whose bound is no better are not planned.
                plan = operator_plan(problem, self.machine, best.cycles if best else math.inf)
            except PlanningError as error:
                reason = reason or str(error)
            best = plan or best
            stale = stale + 1 if best is not None and plan is None else 0
            if stale == _STALE:
                break
        return best or reason or "rejected: no combination of instructions fits"


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


def _combinations(matchings: Sequence[Matching]) -> Iterator[tuple[Match, ...]]:
    """Yield combinations of one match of each statement, those of the largest one in turn.

    The fewest cycles come first. Matches that need a tensor with different dimensions in the lanes
    of a row are not combined.
    """
    largest = max(matchings, key=lambda m: m.statement.computation.macs)
    for match in sorted(largest.matches, key=lambda m: m.cycles):
        choices = [
            (match,) if matching is largest else sorted(matching.matches, key=lambda m: m.cycles)
            for matching in matchings
        ]
        yield from itertools.islice(_consistent(choices, {}), _COMBINATIONS)


def _consistent(
    choices: Sequence[Sequence[Match]], lanes: Mapping[str, frozenset[int]]
) -> Iterator[tuple[Match, ...]]:
    """Yield one match of each choice such that all agree on the dimensions in lanes."""
    if not choices:
        yield ()
        return
    for match in choices[0]:
        dimensions = _lane_dimensions(match)
        if all(lanes.get(tensor, place) == place for tensor, place in dimensions.items()):
            for matches in _consistent(choices[1:], {**lanes, **dimensions}):
                yield match, *matches


def _lane_dimensions(match: Match) -> dict[str, frozenset[int]]:
    """Return the dimensions of tensors that executions find in the lanes of a row."""
    instruction = match.instruction
    dimensions: dict[str, frozenset[int]] = {}
    for operand, access in match.accesses.items():
        place = instruction.places[operand]
        index = instruction.computation.access(operand).index
        lanes = {index[place.dimensions.index(digit.axis)] for digit in place.lanes}
        lane_axes = {
            digit.axis
            for expression in lanes
            for axis in expression.iterators
            for digit in match.axes.get(axis, ())
            if digit.count > 1
        }
        if lane_axes:
            dimensions[access.operand] = frozenset(
                d for d, e in enumerate(access.index) if lane_axes.intersection(e.iterators)
            )
    return dimensions
