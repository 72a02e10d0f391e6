"""Operators divided between machine and host: programs for some statements, the rest by name.

Instructions may compute the sums of an operator and lack its last steps, such as a softmax or a
scale for each channel. Then the longest runs of statements that a plan was found for become
programs, and the host computes the statements between them on tensors in main memory.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from cpembed.accelerator.host import statement_us
from cpembed.accelerator.matching import match_statement
from cpembed.accelerator.operator_search import OperatorSearch, Plans, segment
from cpembed.accelerator.specification import Array, Specification
from cpembed.hw.isa import InstructionSet


@dataclass(frozen=True)
class HostPart:
    """Statements of an operator that the host computes between its programs.

    Attributes
    ----------
    specification : Specification
        The statements, with what they read and write in main memory.
    reason : str
        Why no program computes the first of them.
    us : float or None
        Estimated microseconds; None if the machine does not describe its host.
    after : int
        Number of the operator's programs that run before.
    """

    specification: Specification
    reason: str
    us: float | None
    after: int


@dataclass(frozen=True)
class Division:
    """Plans of some statements of a specification; the host computes the others.

    Attributes
    ----------
    firsts : tuple of int
        Number of the first statement of each plan.
    reasons : mapping of int to str
        Reason why no program computes a statement, by its number.
    """

    plans: Plans
    firsts: tuple[int, ...]
    reasons: Mapping[int, str]

    @staticmethod
    def of_plans(plans: Plans) -> Division:
        """Return the division of plans that compute every statement."""
        firsts, first = list[int](), 0
        for plan in plans:
            firsts.append(first)
            first += len(plan.problem.matches)
        return Division(plans, tuple(firsts), {})

    def with_faster_host(self, specification: Specification, machine: InstructionSet) -> Division:
        """Return the division in which the host computes what it is estimated to be faster at.

        Of several programs, those stay that take fewer cycles than the host; one stays anyway.
        """
        planned = sum(len(plan.problem.matches) for plan in self.plans)
        if planned != len(specification.statements):
            # Several instructions compute a statement of the specification.
            return self
        slower: dict[int, str] = {}
        for number, plan in enumerate(self.plans):
            us = _total_us(plan.problem.specification, machine)
            planned_us = plan.cost.cycles / machine.clock_mhz
            if us is not None and us < planned_us:
                slower[number] = f"the host takes {us:,.1f} us, a program {planned_us:,.1f} us"
        if not slower or len(slower) == len(self.plans):
            return self
        stays = [n for n in range(len(self.plans)) if n not in slower]
        return Division(
            tuple(self.plans[n] for n in stays),
            tuple(self.firsts[n] for n in stays),
            {**self.reasons, **{self.firsts[n]: reason for n, reason in slower.items()}},
        )

    def host_parts(
        self, specification: Specification, machine: InstructionSet
    ) -> tuple[HostPart, ...]:
        """Return what the host computes of a specification with these statements."""
        parts: list[HostPart] = []
        first = 0
        ends = [*self.firsts, len(specification.statements)]
        for after, end in enumerate(ends):
            if end > first:
                part = segment(specification, first, end)
                us = _total_us(part, machine)
                parts.append(HostPart(part, self.reasons.get(first, ""), us, after))
            if after < len(self.plans):
                first = end + len(self.plans[after].problem.matches)
        return tuple(parts)


def _total_us(specification: Specification, machine: InstructionSet) -> float | None:
    """Return the estimated microseconds of statements on the host; None without its figures."""
    us = [statement_us(s, machine) for s in specification.statements]
    return None if None in us else math.fsum(t for t in us if t is not None)


def host_values(
    parts: Sequence[HostPart], after: int, values: Mapping[str, Array]
) -> dict[str, Array]:
    """Compute what the host does after a number of programs.

    Parameters
    ----------
    parts : sequence of HostPart
    after : int
    values : mapping of str to ndarray
        Tensors of the specification that are there.

    Returns
    -------
    dict of str to ndarray
        Tensors that the host writes.
    """
    results: dict[str, Array] = {}
    for part in parts:
        if part.after == after:
            reads = {name: values[name] for name in part.specification.inputs}
            evaluated = part.specification.evaluate(reads)
            results |= {name: evaluated[name] for name in part.specification.outputs}
    return results


def divided(
    specification: Specification, machine: InstructionSet, alone_us: float | None
) -> Division | str:
    """Divide the statements of an operator between the machine and its host.

    Sums stay with the statement that begins them. The longest run of statements from each one on
    that can be planned becomes programs.

    Parameters
    ----------
    specification : Specification
    machine : InstructionSet
    alone_us : float or None
        Estimated microseconds of the whole operator on the host.

    Returns
    -------
    Division or str
        The reason in one line where no plan was found, or the host alone is estimated to be faster.
    """
    reasons = {
        number: match_statement(statement, machine).reason
        for number, statement in enumerate(specification.statements)
    }
    plans: list[Plans] = []
    firsts: list[int] = []
    bounds = list(_boundaries(specification))
    refusal, start = "", 0
    while start < len(bounds) - 1:
        outcome, end = _longest_run(specification, machine, bounds, start, reasons)
        if isinstance(outcome, str):
            refusal = refusal or outcome
            reasons[bounds[start]] = outcome
        else:
            of_run = Division.of_plans(outcome)
            firsts += [bounds[start] + first for first in of_run.firsts]
            plans.append(outcome)
        start = end
    division = Division(tuple(p for run in plans for p in run), tuple(firsts), reasons)
    if not division.plans:
        return refusal
    host = [part.us for part in division.host_parts(specification, machine)]
    if alone_us is not None and None not in host:
        cycles = math.fsum(plan.cost.cycles for plan in division.plans)
        total = cycles / machine.clock_mhz + math.fsum(us for us in host if us is not None)
        if total >= alone_us:
            return f"the host alone takes {alone_us:,.1f} us, with programs {total:,.1f} us"
    return division


def _boundaries(specification: Specification) -> Iterator[int]:
    """Yield the numbers of the statements that begin a run, and the one after the last."""
    for number, statement in enumerate(specification.statements):
        if not statement.accumulates:
            yield number
    yield len(specification.statements)


def _longest_run(
    specification: Specification,
    machine: InstructionSet,
    bounds: Sequence[int],
    start: int,
    reasons: Mapping[int, str],
) -> tuple[Plans | str, int]:
    """Return the plans of the longest run from a boundary on, and the boundary after it."""
    first = bounds[start]
    # A run ends before the first statement that no instruction computes.
    unmatched = next(
        (n for n in range(first, bounds[-1]) if reasons[n]), len(specification.statements)
    )
    ends = [n for n in range(start + 1, len(bounds)) if bounds[n] <= unmatched]
    refusal = reasons[unmatched] if not ends else ""
    for end in reversed(ends):
        plans = OperatorSearch(segment(specification, first, bounds[end]), machine).plans()
        if not isinstance(plans, str):
            return plans, end
        refusal = plans
    return refusal, start + 1
