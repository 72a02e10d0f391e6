"""Which program of an operator: the best embedding that the machine can execute."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from cpembed.api.solve import SolveResult, hardware_spec, solve
from cpembed.embedding.constraint_set import ConstraintSet
from cpembed.errors import CpembedError, InvariantError, LoweringError
from cpembed.hw.instruction import HardwareSpec
from cpembed.ir.computation import Computation
from cpembed.selection.ranking import RankedCandidate
from cpembed.targets.vta.config import VtaConfig
from cpembed.targets.vta.lower import LoweredVta, lower
from cpembed.targets.vta.machine import vta_config
from cpembed.targets.vta.simulator import require_simulated
from cpembed.targets.vta.tail import Exact, Tail, Truncated

_TRIED = 5
"""Candidates that are tried before an operator is given up: programs that do not fit are rare."""


@dataclass(frozen=True)
class Choice:
    """A candidate and its VTA program."""

    ranked: RankedCandidate
    lowered: LoweredVta


@dataclass(frozen=True)
class Refused:
    """Why there is no program, in one line."""

    reason: str


@dataclass(frozen=True)
class Machine:
    """A VTA and the constraint set under which operators are embedded; equal operators are solved
    once."""

    spec: HardwareSpec
    config: VtaConfig
    constraints: str | ConstraintSet | None
    _solved: dict[Computation, SolveResult | Refused] = field(
        default_factory=dict[Computation, "SolveResult | Refused"], repr=False
    )

    @classmethod
    def of(cls, target: str | HardwareSpec, constraints: str | ConstraintSet | None) -> Machine:
        """Raises :class:`SpecError` for a target that is no VTA, or that cannot be simulated."""
        spec = hardware_spec(target)
        config = vta_config(spec)
        require_simulated(config)
        return cls(spec, config, constraints)

    def choose(self, workload: Computation, tail: Tail) -> Choice | Refused:
        """The best candidate that has a program, or why there is none."""
        solved = self._solve(workload)
        if isinstance(solved, Refused):
            return solved
        reason = why_nothing(solved)
        for found in programs(solved, self.config, tail):
            if isinstance(found, Choice):
                return found
            reason = found.reason
        return Refused(reason)

    def _solve(self, workload: Computation) -> SolveResult | Refused:
        if workload not in self._solved:
            try:
                solved = solve(workload, self.spec, self.constraints, top=_TRIED)
            except InvariantError:
                raise
            except CpembedError as error:
                solved = Refused(str(error))
            self._solved[workload] = solved
        return self._solved[workload]


def exact_tail(workload: Computation) -> Tail:
    """The form in which every bit of a result is kept."""
    return Truncated() if workload.output.dtype == "int8" else Exact()


def programs(solved: SolveResult, config: VtaConfig, tail: Tail) -> Iterator[Choice | Refused]:
    """For each candidate, best first, its program or why it has none."""
    for ranked in solved.embeddings:
        try:
            yield Choice(ranked, lower(ranked.candidate.program, config, tail=tail))
        except LoweringError as error:
            yield Refused(str(error))


def why_nothing(solved: SolveResult) -> str:
    """Why a search has no candidate."""
    if solved.conflict is not None:
        return solved.conflict.words[0]
    if solved.not_derivable:
        return solved.not_derivable[0]
    return f"no embedding under {solved.constraints.name}: {solved.status.value}"
