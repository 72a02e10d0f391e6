"""Which program of an operator: the best embedding that the target can execute."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from cpembed.cost.ranking import RankedCandidate
from cpembed.driver.named import hardware_spec
from cpembed.driver.request import AnyTarget
from cpembed.driver.result import SolveResult
from cpembed.driver.solve import solve
from cpembed.embedding.constraint_set import ConstraintSet, load_constraint_set
from cpembed.errors import BackendUnavailable, CpembedError, InvariantError, LoweringError
from cpembed.hw.instruction import HardwareSpec
from cpembed.ir.computation import Computation
from cpembed.runtime.tuning.records import Lookup, tuned_choice
from cpembed.targets.choice import Choice, choices
from cpembed.targets.registry import open_target

Make = Callable[[Any, Any], Any]

_TRIED = 5
"""Candidates that are tried before an operator is given up: programs that do not fit are rare."""


@dataclass(frozen=True, eq=False)
class Program:
    """A candidate with its schedule, and what was built of them on a target; ``epilogue`` is what
    it stores."""

    target: AnyTarget
    ranked: RankedCandidate
    schedule: Any
    epilogue: Any
    artifact: Any


@dataclass(frozen=True)
class Refused:
    """Why there is no program, in one line."""

    reason: str


@dataclass(frozen=True)
class Machine:
    """A target and the constraint set under which operators are embedded; equal operators are
    solved once."""

    target: AnyTarget
    constraints: str | ConstraintSet | None
    _solved: dict[Computation, SolveResult | Refused] = field(
        default_factory=dict[Computation, "SolveResult | Refused"], repr=False
    )

    @classmethod
    def of(cls, named: str | HardwareSpec, constraints: str | ConstraintSet | None) -> Machine:
        """Raises :class:`BackendUnavailable` for a target that nothing executes here, and
        :class:`SpecError` for a wrong one."""
        spec = hardware_spec(named)
        target = open_target(spec)
        if missing := target.missing():
            raise BackendUnavailable(f"{spec.name}: {'; '.join(missing)}")
        return cls(target, constraints)

    @property
    def spec(self) -> HardwareSpec:
        return self.target.spec

    def choose(
        self, workload: Computation, epilogue: Any, make: Make | None = None
    ) -> Program | Refused:
        """The best candidate that has a program, or why there is none."""
        solved = self.solve(workload)
        if isinstance(solved, Refused):
            return solved
        reason = solved.why_nothing
        for found in itertools.chain(
            self._tuned(solved, epilogue, make), programs(self.target, solved, epilogue, make)
        ):
            if isinstance(found, Program):
                return found
            reason = found.reason
        return Refused(reason)

    def _tuned(
        self, solved: SolveResult, epilogue: Any, make: Make | None
    ) -> Iterator[Program | Refused]:
        """The fastest that `cpembed tune` measured, if it did."""
        named = self.constraints
        under = load_constraint_set(named) if isinstance(named, str) else named
        kept = tuned_choice(self.target, Lookup(solved.workload, epilogue, under))
        if kept is not None:
            ranked = kept.ranked(solved.constraints.weights)
            choice = Choice(ranked, self.target.schedule_of(kept.trial), None, kept)
            yield _program(self.target, choice, epilogue, make)

    def solve(self, workload: Computation) -> SolveResult | Refused:
        """The search for embeddings, or why there is none to be made."""
        if workload not in self._solved:
            top = max(_TRIED, self.target.considered) if self.target.compares_always else _TRIED
            try:
                solved = solve(
                    workload,
                    self.spec,
                    constraints=self.constraints,
                    top=top,
                    keep=self.target.contenders,
                )
            except InvariantError:
                raise
            except CpembedError as error:
                solved = Refused(str(error))
            self._solved[workload] = solved
        return self._solved[workload]


def programs(
    target: AnyTarget, solved: SolveResult, epilogue: Any, make: Make | None = None
) -> Iterator[Program | Refused]:
    """For each candidate, best first, its program or why it has none; ``make`` makes the artifact
    of a lowered program and a schedule, where that is not what the target builds."""
    for choice in _ordered(target, solved, epilogue):
        if isinstance(choice, Refused):
            yield choice
            continue
        yield _program(target, choice, epilogue, make)


def _program(
    target: AnyTarget, choice: Choice, epilogue: Any, make: Make | None
) -> Program | Refused:
    candidate = choice.candidate.candidate
    try:
        target.require(candidate)
        lowered = target.lower(candidate.program, epilogue)
        artifact = (make or target.build)(lowered, choice.schedule)
    except LoweringError as error:
        return Refused(str(error))
    return Program(target, choice.candidate, choice.schedule, epilogue, artifact)


def scheduled(
    target: AnyTarget, solved: SolveResult, epilogue: Any, make: Make
) -> Iterator[Program]:
    """All programs of all candidates: of each candidate in turn, its next best schedule."""
    ranked = target.variants(solved.embeddings)
    spaces: list[Iterator[Program]] = [_schedules(target, item, epilogue, make) for item in ranked]
    while spaces:
        left: list[Iterator[Program]] = []
        for space in spaces:
            found = next(space, None)
            if found is not None:
                left.append(space)
                yield found
        spaces = left


def _schedules(
    target: AnyTarget, ranked: RankedCandidate, epilogue: Any, make: Make
) -> Iterator[Program]:
    try:
        target.require(ranked.candidate)
        lowered = target.lower(ranked.candidate.program, epilogue)
        found = target.space(lowered).ranked()
    except LoweringError:
        return
    for scored in found:
        with suppress(LoweringError):
            artifact = make(lowered, scored.schedule)
            yield Program(target, ranked, scored.schedule, epilogue, artifact)


def _ordered(target: AnyTarget, solved: SolveResult, epilogue: Any) -> Iterator[Choice | Refused]:
    """By the target's estimates, where it compares by them; else in the order of the ranking."""
    if not solved.embeddings:
        return
    if target.compares_always:
        try:
            yield from choices(target, target.variants(solved.embeddings), epilogue)
        except LoweringError as error:
            yield Refused(str(error))
        return
    for ranked in solved.embeddings:
        try:
            yield choices(target, (ranked,), epilogue)[0]
        except LoweringError as error:
            yield Refused(str(error))
