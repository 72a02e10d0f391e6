"""The library's front door: what each command of the command line calls.

>>> import cpembed
>>> layer = cpembed.workload("conv2d n=1 c=16 h=8 w=8 k=16 r=3 s=3", target="vta_1x16x16")
>>> result = cpembed.solve(layer, "vta_1x16x16", constraints="strict")
>>> result.status.value, result.complete, result.embeddings[0].candidate.embedding.family
('optimal', True, {'x': (), 'y': ('k',), 'z': ('c',)})
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from cpembed.bulk import without_collection
from cpembed.cost.ranking import RankedCandidate
from cpembed.cost.search import find_best
from cpembed.embedding.checks import check_embedding
from cpembed.embedding.conflict import Conflict, explain_infeasible
from cpembed.embedding.constraint_set import ConstraintSet, Weights, load_constraint_set
from cpembed.embedding.cpsat import SearchLimits, Status
from cpembed.embedding.problem import LabelMismatch, match_graphs
from cpembed.embedding.result import Formulation, SearchEffort, Seconds, silent
from cpembed.errors import SpecError
from cpembed.hw.instruction import HardwareSpec
from cpembed.hw.loader import load_hardware_spec
from cpembed.ir.computation import Computation
from cpembed.ir.written import require_written
from cpembed.time_limit import Clock, OutOfTime, within
from cpembed.transform.proof import require
from cpembed.workloads.naming import parse_workload

DEFAULT_CONSTRAINTS = "in_place_padded"
"""What a command uses that is not told: any size fits, and no operand is copied beyond padding."""

_EXPLAINED, _PROVEN = 0.5, 1.0
"""Seconds that a reason gets where the search took all the time, and after the limit until proofs,
or that reason, are left."""

Progress = Callable[[str, int], None]
"""Called with a phase (``model``, ``search``, ``derive``, ``prove`` …) and a running count."""

Keep = Callable[[tuple[RankedCandidate, ...]], tuple[RankedCandidate, ...]]
"""Picks some of the ranked candidates."""


@dataclass(frozen=True)
class SolveResult:
    """Everything ``cpembed solve`` knows.

    ``embeddings`` are ranked and proven, at most as many as asked for; ``count`` and ``families``
    count all that were found. ``complete``: the model has no other embedding. ``top_proven``: none
    that is missing, found or not, is better than those that are returned. ``not_derivable``
    lists why embeddings of a user's own constraint set have no program; ``irregular`` of the count
    are no axis maps and never have one.
    """

    workload: Computation
    target: HardwareSpec
    constraints: ConstraintSet
    seed: int
    status: Status
    complete: bool
    count: int
    families: int
    seconds: Seconds
    total_seconds: float
    search: SearchEffort
    embeddings: tuple[RankedCandidate, ...]
    not_derivable: tuple[str, ...]
    conflict: Conflict | None
    irregular: int = 0
    top_proven: bool = True

    def to_json(self) -> dict[str, Any]:
        """The document that ``cpembed solve --json`` prints (``docs/usage.md``)."""
        document: dict[str, Any] = {
            "workload": workload_json(self.workload),
            "target": self.target.name,
            "instruction": str(self.target.instruction.computation),
            "constraints": self.constraints.name,
            "seed": self.seed,
            "status": self.status.value,
            "complete": self.complete,
            "top_proven": self.top_proven,
            "count": self.count,
            "families": self.families,
            "seconds": {
                "model": self.seconds.model,
                "solve": self.seconds.solve,
                "total": self.total_seconds,
            },
            "search": self.search.to_json(),
            "embeddings": [embedding_json(ranked) for ranked in self.embeddings],
        }
        if self.conflict is not None:
            document["conflict"] = self.conflict.to_json()
        if self.not_derivable:
            document["not_derivable"] = list(self.not_derivable)
        if self.irregular:
            document["irregular"] = self.irregular
        return document


def workload_json(workload: Computation) -> dict[str, Any]:
    return {
        "name": workload.name,
        "expression": str(workload),
        "axes": dict(workload.extents),
        "dtypes": {operand.name: operand.dtype for operand in workload.operands},
        "macs": workload.macs,
    }


def embedding_json(ranked: RankedCandidate) -> dict[str, Any]:
    embedding, program = ranked.candidate.embedding, ranked.candidate.program
    cost = ranked.overheads
    return {
        "rank": ranked.rank,
        "id": embedding.identifier(),
        "family": {axis: list(axes) for axis, axes in embedding.family.items()},
        # All of it, so that ``Embedding.from_json`` reads it; the origin of a candidate is 0.
        **{key: value for key, value in embedding.to_json().items() if key != "origin"},
        "mac_overhead": cost.mac_overhead,
        "data_overhead": cost.data_overhead,
        "utilisation": cost.utilisation,
        "score": ranked.score,
        "calls": cost.calls,
        "footprint": dict(cost.footprint),
        "packing_bytes": cost.packing_bytes,
        "in_place": list(cost.in_place),
        "rewrites": [rewrite.to_json() for rewrite in program.rewrites],
        "proven": True,
    }


def workload(words: str | Sequence[str], target: str | HardwareSpec | None = None) -> Computation:
    """A workload by the command line's naming; dtypes default to what the target takes."""
    spec = None if target is None else hardware_spec(target)
    given = words.split() if isinstance(words, str) else list(words)
    if spec is None:
        return parse_workload(given)
    parsed = parse_workload(given, default_dtypes(spec))
    is_expression = given and "[" in given[0]
    if not is_expression or any(word.startswith("dtype=") for word in given):
        return parsed
    problem = match_graphs(parsed, spec.instruction)
    if isinstance(problem, LabelMismatch):
        return parsed
    # An operand may have several roles, or another place in the expression than its role has.
    types = {
        problem.workload.operand(theirs).tensor: problem.instruction.dtypes[ours][0]
        for ours, theirs in problem.roles.items()
    }
    return parsed.with_dtypes(types)


def hardware_spec(name: str | HardwareSpec) -> HardwareSpec:
    """A hardware specification by shipped name or by the path of a TOML file."""
    return name if isinstance(name, HardwareSpec) else load_hardware_spec(name)


def default_dtypes(spec: HardwareSpec) -> tuple[str, ...]:
    """First choice of each operand's dtype: inputs in order, then the output."""
    return tuple(spec.instruction.dtypes[o.name][0] for o in spec.instruction.computation.operands)


@without_collection()
def solve(
    workload: Computation,
    target: str | HardwareSpec,
    constraints: str | ConstraintSet = DEFAULT_CONSTRAINTS,
    *,
    top: int | None = 5,
    keep: Keep | None = None,
    weights: Weights | None = None,
    timeout: float | None = None,
    seed: int = 0,
    search: str | Formulation = Formulation.AUTO,
    progress: Progress | None = None,
) -> SolveResult:
    """Every embedding of the target's instruction in the workload, ranked; the best ones proven.

    ``top`` None returns (and proves) all of them; ``keep`` picks those that are returned (and
    proven) out of these. ``timeout`` bounds the search in seconds of wall time: a search that it
    stops has ``complete`` false; its best are the best of all only where ``top_proven``. Programs
    are derived and proven in little more time than that: those that are not by then are missing,
    and the status is ``unknown`` where all are. ``search``
    says which model is searched and with which assets ("auto", "digits", "scalar", "portfolio", see
    :class:`~cpembed.embedding.result.Formulation`); the answer does not depend on it.

    Raises :class:`~cpembed.errors.SpecError` or :class:`~cpembed.errors.WorkloadError` for wrong
    input. An infeasible problem is a result with a ``conflict``.
    """
    clock = Clock(timeout)
    report = progress or silent
    spec = hardware_spec(target)
    chosen = load_constraint_set(constraints) if isinstance(constraints, str) else constraints
    if weights is not None:
        chosen = replace(chosen, weights=weights)
    limits = SearchLimits(seconds=timeout, seed=seed)
    way = _formulation(search)
    require_written(workload)
    best = find_best(workload, spec.instruction, chosen, top, limits, report, way)
    found, ranking, proven = best.found, best.ranking, best.proven
    candidates: list[RankedCandidate] = []

    def prove_all() -> None:
        for number, item in enumerate((keep or tuple)(ranking.candidates), 1):
            report("prove", number)
            if found.problem is not None:
                check_embedding(found.problem, chosen, item.candidate.embedding)
            require(item.candidate.program)
            candidates.append(item)

    try:
        within(clock.left(_PROVEN), prove_all)
    except OutOfTime:
        found, proven = found.cut(len(candidates)), False
    conflict = None
    if found.status is Status.INFEASIBLE:
        report("explain", 0)
        conflict = _conflict(workload, spec, chosen, limits, clock)
    return SolveResult(
        workload,
        spec,
        chosen,
        seed,
        found.status,
        found.complete,
        len(found.embeddings) + len(found.irregular),
        found.families,
        found.seconds,
        clock.passed,
        found.effort,
        tuple(candidates),
        ranking.refused,
        conflict,
        len(found.irregular),
        proven,
    )


def _conflict(
    workload: Computation,
    spec: HardwareSpec,
    constraints: ConstraintSet,
    limits: SearchLimits,
    clock: Clock,
) -> Conflict:
    """Why nothing fits, as far as it can be found in what is left of the time and a little more."""
    left = clock.left()
    if left is not None:
        limits = replace(limits, seconds=max(left, _EXPLAINED))
    try:
        return within(
            clock.left(_PROVEN),
            lambda: explain_infeasible(workload, spec.instruction, constraints, limits),
        )
    except OutOfTime:
        return Conflict((), (), ("the time was over before a reason was found",), minimal=False)


def _formulation(search: str | Formulation) -> Formulation:
    try:
        return Formulation(search)
    except ValueError:
        known = ", ".join(way.value for way in Formulation)
        raise SpecError(f"search {search!r} is not known: choose one of {known}") from None
