"""Candidates with their estimated times on a described machine, ranked by these where asked.

>>> from cpembed.api.solve import workload
>>> layer = workload("gemm m=64 n=64 k=64", target="vta_1x16x16")
>>> result = estimate(layer, "vta_1x16x16")
>>> result.machine.name, result.estimates[0].bound
('pynq_z1', 'write to dram')
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal, Unpack

from cpembed.api.solve import SearchOptions, SolveResult, explained, hardware_spec, searches
from cpembed.api.widening import best_of
from cpembed.embedding.constraint_set import ConstraintSet
from cpembed.errors import SpecError, TransformError
from cpembed.hw.instruction import HardwareSpec
from cpembed.hw.machine import Hierarchy
from cpembed.ir.computation import Computation
from cpembed.kernel.packing import packed_before
from cpembed.machine.estimate import Estimate, estimate_program, machine_of
from cpembed.selection.ranking import RankedCandidate
from cpembed.time_limit import Clock
from cpembed.transform.program import DerivedProgram

RankBy = Literal["overheads", "estimate"]

AMONG = 64
"""The best candidates by their overheads, among which those of the least estimate are looked for,
where not all are asked for."""


@dataclass(frozen=True)
class EstimateResult:
    """A search with the times of its candidates: ``estimates`` has, for each of
    ``solved.embeddings``, one on ``machine``, or says why there is none.

    Candidates keep their ranks by overheads, whatever ``ranked_by`` orders them; ``considered``
    have a time, by which they were compared.
    """

    solved: SolveResult
    machine: Hierarchy
    estimates: tuple[Estimate | str, ...]
    ranked_by: RankBy
    considered: int

    def to_json(self) -> dict[str, Any]:
        """The document of ``solve --estimate --json``: that of ``solve``, with the estimates."""
        document: dict[str, Any] = {
            **self.solved.to_json(),
            "machine": self.machine.name,
            "ranked_by": self.ranked_by,
            "considered": self.considered,
        }
        for entry, found in zip(document["embeddings"], self.estimates, strict=True):
            if isinstance(found, Estimate):
                entry["estimate"] = found.to_json()
            else:
                entry |= {"estimate": None, "estimate_missing": found}
        return document


def estimate(
    workload: Computation,
    target: str | HardwareSpec,
    machine: str | None = None,
    constraints: str | ConstraintSet | None = None,
    *,
    rank_by: RankBy = "overheads",
    top: int | None = 5,
    **options: Unpack[SearchOptions],
) -> EstimateResult:
    """As :func:`~cpembed.api.solve.solve`, with the time of each candidate on a machine of the
    target, by default its first one.

    Ranked by ``"estimate"``, those of the least time come first, packing included but for what is
    packed ahead, of the best :data:`AMONG` by overheads (of all where ``top`` is None). Raises
    :class:`~cpembed.errors.SpecError` where the target has no such machine, and what solving
    raises.
    """
    clock, spec = Clock(options.get("timeout")), hardware_spec(target)
    found = machine_of(spec, machine)
    known: dict[int, tuple[DerivedProgram, Estimate | str]] = {}

    def of(item: RankedCandidate) -> Estimate | str:
        program = item.candidate.program
        if id(program) not in known:
            # The program is kept, so that no other gets its id.
            known[id(program)] = program, _estimate(program, found)
        return known[id(program)][1]

    def fastest(ranked: tuple[RankedCandidate, ...]) -> tuple[RankedCandidate, ...]:
        return tuple(sorted(ranked, key=lambda item: _time(of(item)))[:top])

    by_time = rank_by == "estimate"
    results = searches(
        workload,
        spec,
        constraints,
        top=max(top, AMONG) if by_time and top is not None else top,
        keep=fastest if by_time else None,
        **options,
    )
    solved = best_of(results)
    if by_time and solved.embeddings:
        solved = min(
            (result for result in results if result.embeddings),
            key=lambda result: _time(of(result.embeddings[0])),
        )
        if solved.wider is not None and not solved.wider.searched:
            # A bound on how much is used, which is not what these are ranked by.
            solved = replace(solved, wider=None)
    solved = explained(solved, clock, options.get("progress"))
    estimates = tuple(of(item) for item in solved.embeddings)
    considered = sum(isinstance(time, Estimate) for _, time in known.values())
    return EstimateResult(solved, found, estimates, rank_by, considered)


def described_estimate(program: DerivedProgram, spec: HardwareSpec) -> Estimate | None:
    """The time on the first machine that the specification describes; None where it describes
    none, or one that cannot hold the program."""
    try:
        found = _estimate(program, machine_of(spec))
    except SpecError:
        return None
    return found if isinstance(found, Estimate) else None


def _estimate(program: DerivedProgram, machine: Hierarchy) -> Estimate | str:
    try:
        return estimate_program(program, machine, ahead=packed_before(program.workload))
    except TransformError as error:
        return str(error)


def _time(found: Estimate | str) -> float:
    return found.total_us if isinstance(found, Estimate) else float("inf")
