"""Candidates with their estimated times on a described machine, ranked by these where asked.

>>> from cpembed.driver.named import workload
>>> layer = workload("gemm m=64 n=64 k=64", target="vta_1x16x16")
>>> result = estimate(layer, "vta_1x16x16")
>>> result.machine.name, result.estimates[0].bound
('pynq_z1', 'write to dram')
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from cpembed.blocks import Displayed
from cpembed.codegen.packing import packed_before
from cpembed.cost.machine.estimate import Estimate, estimate_program, machine_of
from cpembed.cost.machine.nest import execution_nest
from cpembed.cost.ranking import RankedCandidate
from cpembed.driver.named import hardware_spec
from cpembed.driver.options import EstimateOptions, RankBy, merged
from cpembed.driver.presets import best_of
from cpembed.driver.result import SolveResult
from cpembed.driver.solve import Progress, TopCandidates, explained, searches
from cpembed.errors import SpecError, TransformError
from cpembed.hw.instruction import HardwareSpec
from cpembed.hw.machine import Hierarchy
from cpembed.ir.computation import Computation
from cpembed.time_limit import Clock
from cpembed.transform.program import DerivedProgram

_ROUNDING = 1 - 1e-9
"""Factor of lower bounds, which are sums in floating point."""

AMONG = 64
"""Number of the best candidates by overheads that are estimated to find those of the least time."""


@dataclass(frozen=True, repr=False)
class EstimateResult(Displayed):
    """Search with the estimated times of its candidates.

    Parameters
    ----------
    solved : SolveResult
        Search; its candidates keep their ranks by overheads, whatever orders them.
    machine : Hierarchy
        Machine that was estimated for.
    estimates : tuple of Estimate or str
        Estimate of each of ``solved.embeddings``, or the reason why there is none.
    ranked_by : str
        ``overheads`` or ``estimate``: what orders the candidates.
    considered : int
        Number of candidates that were compared: those with an estimate, and those that a lower
        bound tells to be slower.
    """

    solved: SolveResult
    machine: Hierarchy
    estimates: tuple[Estimate | str, ...]
    ranked_by: RankBy
    considered: int

    def to_json(self) -> dict[str, Any]:
        """Return the document of ``solve --estimate --json``."""
        document: dict[str, Any] = {
            **self.solved.to_json(),
            "machine": self.machine.name,
            "ranked_by": self.ranked_by,
            "considered": self.considered,
        }
        for entry, estimate in zip(document["embeddings"], self.estimates, strict=True):
            if isinstance(estimate, Estimate):
                entry["estimate"] = estimate.to_json()
            else:
                entry |= {"estimate": None, "estimate_missing": estimate}
        return document


def estimate(
    workload: Computation,
    target: str | HardwareSpec,
    options: EstimateOptions | None = None,
    *,
    progress: Progress | None = None,
    **keywords: Any,
) -> EstimateResult:
    """Search as :func:`~cpembed.driver.solve.solve` does, and estimate each candidate's time.

    Parameters
    ----------
    workload : Computation
        Operator, from :func:`~cpembed.driver.named.workload`.
    target : str or HardwareSpec
        Target by name, file or value.
    options : EstimateOptions, optional
        Machine and ranking; its fields may also be given as keywords. Ranked by ``"estimate"``,
        those of the least time come first, packing included but for what is packed ahead, of the
        best :data:`AMONG` by overheads (of all where ``top`` is None).
    progress : callable, optional
        Called at each step with the stage and a count.

    Raises
    ------
    SpecError
        If the target has no such machine.
    """
    options = merged(EstimateOptions, options, keywords)
    rank_by, top = options.rank_by, options.top
    clock, spec = Clock(options.timeout), hardware_spec(target, workload)
    machine = machine_of(spec, options.machine)
    estimated: dict[int, tuple[DerivedProgram, Estimate | str]] = {}
    # Numbers of candidates that a lower bound tells to be slower, by set that was searched.
    slower: list[int] = []

    def estimate_of(item: RankedCandidate) -> Estimate | str:
        program = item.program
        if id(program) not in estimated:
            # The program is kept, so that no other gets its id.
            estimated[id(program)] = program, _estimate(program, machine, options.objective)
        return estimated[id(program)][1]

    def fastest(ranked: tuple[RankedCandidate, ...]) -> tuple[RankedCandidate, ...]:
        if top is not None:
            possible = _possible(ranked, machine, top, lambda item: _time(estimate_of(item)))
            slower.append(len(ranked) - len(possible))
            ranked = possible
        return tuple(sorted(ranked, key=lambda item: _time(estimate_of(item)))[:top])

    # Estimates take longer than overheads: all are estimated only if all are to be returned.
    by_time = rank_by == "estimate"
    count = max(top, AMONG) if by_time and top is not None else top
    returned = TopCandidates(count, fastest if by_time else None)
    results = searches(workload, spec, options, returned, progress=progress)
    solved = best_of(results)
    if by_time and solved.embeddings:
        solved = min(
            (result for result in results if result.embeddings),
            key=lambda result: _time(estimate_of(result.embeddings[0])),
        )
        if solved.wider is not None and not solved.wider.searched:
            # A bound on how much is used, which is not what these are ranked by.
            solved = replace(solved, wider=None)
    solved = explained(solved, clock, progress)
    estimates = tuple(estimate_of(item) for item in solved.embeddings)
    considered = sum(isinstance(time, Estimate) for _, time in estimated.values()) + sum(slower)
    return EstimateResult(solved, machine, estimates, rank_by, considered)


def described_estimate(program: DerivedProgram, spec: HardwareSpec) -> Estimate | None:
    """Estimate a program on the first machine that a specification describes.

    Returns None if it describes none, or one that cannot hold the program.
    """
    try:
        estimate = _estimate(program, machine_of(spec))
    except SpecError:
        return None
    return estimate if isinstance(estimate, Estimate) else None


def least_us(program: DerivedProgram, machine: Hierarchy) -> float:
    """Return a lower bound of a program's estimate: all units execute it all the time."""
    calls = execution_nest(program, machine.layouts).calls
    return calls * machine.compute.cycles / machine.levels[0][0].units / machine.clock_mhz


def _possible(
    ranked: tuple[RankedCandidate, ...],
    machine: Hierarchy,
    top: int,
    time: Callable[[RankedCandidate], float],
) -> tuple[RankedCandidate, ...]:
    """Return the candidates that can be among the fastest, in their order.

    Parameters
    ----------
    ranked
        The candidates.
    machine
        The machine.
    top
        Number of the fastest candidates that are asked for.
    time
        Returns the estimated time of a candidate.
    """
    # Most candidates take longer by their executions alone than the fastest one takes: an estimate,
    # which takes a hundred times as long as its bound, would tell nothing more.
    bounds = [least_us(item.program, machine) for item in ranked]
    times: list[float] = []
    possible: list[int] = []
    for place in sorted(range(len(ranked)), key=lambda n: bounds[n]):
        if len(times) >= top and bounds[place] * _ROUNDING > sorted(times)[top - 1]:
            break
        times.append(time(ranked[place]))
        possible.append(place)
    return tuple(ranked[place] for place in sorted(possible))


def _estimate(
    program: DerivedProgram, machine: Hierarchy, objective: str = "cycles"
) -> Estimate | str:
    ahead = packed_before(program.workload)
    try:
        return estimate_program(program, machine, ahead=ahead, objective=objective)
    except TransformError as error:
        return str(error)


def _time(estimate: Estimate | str) -> float:
    """Return the cost by which candidates are ranked: the time, or another objective's."""
    if not isinstance(estimate, Estimate):
        return float("inf")
    return estimate.total_us if estimate.objective == "cycles" else estimate.cost
