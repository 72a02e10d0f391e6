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
from cpembed.codegen.epilogue_request import EpilogueRequest
from cpembed.cost.machine.estimate import Estimate, machine_of
from cpembed.cost.machine.nest import execution_nest
from cpembed.cost.ranking import RankedCandidate
from cpembed.driver.candidate_time import (
    BACK_END,
    CandidateTime,
    back_end_time,
    described_time,
    description_estimate,
    modelled_target,
)
from cpembed.driver.named import hardware_spec
from cpembed.driver.options import EstimateOptions, RankBy, merged
from cpembed.driver.presets import best_of
from cpembed.driver.result import SolveResult
from cpembed.driver.solve import Progress, TopCandidates, explained, searches
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
        Estimate of each of ``solved.embeddings`` by the description of the machine, which is that
        of its best program, or the reason why there is none.
    times : tuple of CandidateTime or str
        Time of each of them that every command states: by the model of the back end, for the
        program that it writes, or of the estimate where nothing executes the machine. The reason if
        there is none, such as why the back end rejects a candidate.
    ranked_by : str
        ``overheads`` or ``estimate``: what orders the candidates.
    considered : int
        Number of candidates that were compared: those with an estimate, and those that a lower
        bound tells to be slower.
    """

    solved: SolveResult
    machine: Hierarchy
    estimates: tuple[Estimate | str, ...]
    times: tuple[CandidateTime | str, ...]
    ranked_by: RankBy
    considered: int

    @property
    def is_by_back_end(self) -> bool:
        """True if times are those of the programs that a back end writes."""
        return any(isinstance(t, CandidateTime) and t.origin == BACK_END for t in self.times)

    def to_json(self) -> dict[str, Any]:
        """Return the document of ``solve --estimate --json``."""
        document: dict[str, Any] = {
            **self.solved.to_json(),
            "machine": self.machine.name,
            "ranked_by": self.ranked_by,
            "considered": self.considered,
        }
        for entry, time in zip(document["embeddings"], self.times, strict=True):
            if isinstance(time, CandidateTime):
                entry["time"] = time.to_json()
            else:
                entry |= {"time": None, "time_missing": time}
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
    workload, target, progress
        As for :func:`~cpembed.driver.solve.solve`.
    options : EstimateOptions, optional
        Machine and ranking; its fields may also be given as keywords. Ranked by ``"estimate"``,
        those of the least time come first, packing included but for what is packed ahead, of the
        best :data:`AMONG` by overheads (of all where ``top`` is None).

    Raises
    ------
    SpecError
        If the target has no such machine.
    """
    options = merged(EstimateOptions, options, keywords)
    rank_by, top = options.rank_by, options.top
    clock, spec = Clock(options.timeout), hardware_spec(target, workload, options.machine)
    times = _Times(workload, spec, machine_of(spec), options)
    # Numbers of candidates that a lower bound tells to be slower, by set that was searched.
    slower: list[int] = []

    def fastest(ranked: tuple[RankedCandidate, ...]) -> tuple[RankedCandidate, ...]:
        if top is not None and times.executes is None:
            possible = _possible(ranked, times.machine, top, times.rank)
            slower.append(len(ranked) - len(possible))
            ranked = possible
        return tuple(sorted(ranked, key=times.rank)[:top])

    # Estimates take longer than overheads: all are estimated only if all are to be returned.
    by_time = rank_by == "estimate"
    count = max(top, times.among) if by_time and top is not None else top
    returned = TopCandidates(count, fastest if by_time else None)
    results = searches(workload, spec, options, returned, progress=progress)
    solved = best_of(results)
    if by_time and solved.embeddings:
        solved = min(
            (result for result in results if result.embeddings),
            key=lambda result: times.rank(result.embeddings[0]),
        )
        if solved.wider is not None and not solved.wider.searched:
            # A bound on how much is used, which is not what these are ranked by.
            solved = replace(solved, wider=None)
    solved = explained(solved, clock, progress)
    return EstimateResult(
        solved,
        times.machine,
        tuple(map(times.estimate, solved.embeddings)),
        tuple(map(times.time, solved.embeddings)),
        rank_by,
        times.count + sum(slower),
    )


class _Times:
    """Times of candidates, each computed once.

    ``executes`` is the target whose model gives them; None where only the description does.
    """

    def __init__(
        self,
        workload: Computation,
        spec: HardwareSpec,
        machine: Hierarchy,
        options: EstimateOptions,
    ) -> None:
        self.machine = machine
        self.objective = options.objective
        by_description = options.objective != "cycles"
        several = len(workload.statements) > 1
        self.executes = None if by_description or several else modelled_target(spec)
        # Other targets model one machine; of one that is named the description tells the time.
        if options.machine is not None and self.executes is not None:
            self.executes = self.executes if self.executes.follows_machine else None
        if self.executes is not None:
            self.epilogue = self.executes.epilogue(workload, EpilogueRequest())
        # Programs are kept, so that no other gets their ids.
        self.estimates: dict[int, tuple[DerivedProgram, Estimate | str]] = {}
        self.times: dict[int, tuple[DerivedProgram, CandidateTime | str]] = {}

    @property
    def among(self) -> int:
        """Number of the best candidates by overheads among which the fastest are looked for."""
        if self.executes is None or not self.executes.policy.compares_always:
            return AMONG
        # Those among which `run` chooses, so that the fastest here is what it executes.
        return self.executes.policy.considered

    @property
    def count(self) -> int:
        """Number of candidates that have a time."""
        return sum(isinstance(time, CandidateTime) for _, time in self.times.values())

    def estimate(self, item: RankedCandidate) -> Estimate | str:
        """Return the estimate by the description, or why there is none."""
        program = item.program
        if id(program) not in self.estimates:
            estimate = description_estimate(program, self.machine, self.objective)
            self.estimates[id(program)] = program, estimate
        return self.estimates[id(program)][1]

    def time(self, item: RankedCandidate) -> CandidateTime | str:
        """Return the time that every command states, or why there is none."""
        program = item.program
        if id(program) not in self.times:
            self.times[id(program)] = program, self._time(item)
        return self.times[id(program)][1]

    def _time(self, item: RankedCandidate) -> CandidateTime | str:
        if self.executes is not None:
            return back_end_time(self.executes, item, self.epilogue)
        estimate = self.estimate(item)
        return estimate if isinstance(estimate, str) else described_time(estimate)

    def rank(self, item: RankedCandidate) -> float:
        """Return what candidates are ranked by: the time, or another objective's cost."""
        time = self.time(item)
        if isinstance(time, str):
            return float("inf")
        if self.objective == "cycles":
            return time.total_us
        estimate = self.estimate(item)
        return estimate.cost if isinstance(estimate, Estimate) else float("inf")


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
