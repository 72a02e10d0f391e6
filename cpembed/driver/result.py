"""Results of searches, and their JSON documents."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from cpembed.blocks import Displayed
from cpembed.cost.ranking import RankedCandidate
from cpembed.driver.options import DEFAULT_CONSTRAINTS
from cpembed.embedding.commute import Pairing
from cpembed.embedding.conflict import Conflict
from cpembed.embedding.constraint_set import ConstraintSet
from cpembed.embedding.cpsat import Status
from cpembed.embedding.result import SearchEffort, Seconds
from cpembed.errors import TransformError, WorkloadError
from cpembed.hw.instruction import HardwareSpec
from cpembed.ir.computation import Computation
from cpembed.transform.layout import Step, layout, original_layout, replay
from cpembed.transform.program import DerivedProgram


@dataclass(frozen=True)
class OtherSet:
    """Use of the instruction under another constraint set.

    Parameters
    ----------
    constraints : str
        Name of the set.
    utilisation : float
        Useful share of the instruction's multiplications in the best candidate, 0 if there is none;
        without a search, a bound that no candidate exceeds.
    searched : bool
        Whether the set was searched.
    proven : bool
        False if a limit stopped the search, so that a better candidate may be missing.
    """

    constraints: str
    utilisation: float
    searched: bool
    proven: bool = True

    @staticmethod
    def of_result(result: SolveResult) -> OtherSet:
        """Return the use of a searched set."""
        name = result.constraints.name
        return OtherSet(name, result.utilisation, searched=True, proven=result.top_proven)

    def to_json(self) -> dict[str, Any]:
        return {
            "constraints": self.constraints,
            "utilisation": self.utilisation,
            "searched": self.searched,
            "proven": self.proven,
        }


@dataclass(frozen=True, kw_only=True, repr=False)
class SolveResult(Displayed):
    """Result of a search: what ``cpembed solve`` prints.

    Parameters
    ----------
    workload, target, constraints, seed : Computation, HardwareSpec, ConstraintSet, int
        What was searched.
    pairing : Pairing
        Operands of the workload and the instruction, paired once for all that follows the search.
    status : Status
        ``optimal``, ``feasible``, ``infeasible`` or ``unknown``.
    complete : bool
        True if the set has no embedding that was not found.
    count, families : int
        Numbers of all embeddings that were found, and of their mapping families.
    seconds, total_seconds : Seconds, float
        Time of building and solving models, and of the whole search, in seconds.
    search : SearchEffort
        Model, variables and conflicts of the solver.
    embeddings : tuple of RankedCandidate
        Best candidates, ranked and proven, at most as many as asked for.
    not_derivable : tuple of str
        Reasons why embeddings of a user's own constraint set have no program.
    conflict : Conflict, optional
        Explanation of an infeasible problem.
    irregular : int
        Number of embeddings that are no axis maps and never have a program.
    top_proven : bool
        True if no embedding that is missing, found or not, is better than those returned.
    commuted : bool
        True if the factors have each other's roles, because in their own nothing fits.
    narrower, wider : OtherSet, optional
        Presets that were searched before and after this one, or a bound on the wider one.
    unsearched : tuple of str
        Parts of the set that no model was posted for.
    timeout : float, optional
        Time limit in seconds.
    stopped_alternatives : tuple of str
        Alternative targets whose search a limit stopped.
    """

    workload: Computation
    target: HardwareSpec
    constraints: ConstraintSet
    seed: int
    pairing: Pairing = field(repr=False)
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
    commuted: bool = False
    narrower: OtherSet | None = None
    wider: OtherSet | None = None
    unsearched: tuple[str, ...] = ()
    timeout: float | None = None
    stopped_alternatives: tuple[str, ...] = ()

    @property
    def best(self) -> RankedCandidate | None:
        """Best candidate; None without one."""
        return self.embeddings[0] if self.embeddings else None

    def of_rank(self, rank: int) -> RankedCandidate:
        """Return the candidate of a rank, among those that the search returned.

        Raises
        ------
        TransformError
            If no embedding has a program.
        WorkloadError
            If there is no such rank.
        """
        if not self.embeddings:
            reason = self.not_derivable[0] if self.not_derivable else "they are not axis maps"
            raise TransformError(
                f"no program can be derived from the embeddings of {self.constraints.name}: "
                f"{reason}; use --constraints {DEFAULT_CONSTRAINTS}"
            )
        if rank > len(self.embeddings):
            last = len(self.embeddings)
            allowed = "1" if last == 1 else f"1 to {last}"
            raise WorkloadError(
                f"there is no candidate of rank {rank}: {self.target.name} has {allowed} in "
                f"{self.workload.name} under {self.constraints.name}"
            )
        return self.embeddings[rank - 1]

    def explain(self, rank: int = 1) -> Explanation:
        """Show one candidate in full; raises as :meth:`of_rank`.

        Parameters
        ----------
        rank : int
            Rank of the candidate, from 1.
        """
        return explanation_of(self, self.of_rank(rank))

    @property
    def is_stopped(self) -> bool:
        """True if it is unknown whether there is a candidate.

        None was found, and a limit stopped this search or that of a wider set or of an alternative,
        or a part of the problem was not searched.
        """
        is_open = self.status is Status.UNKNOWN or not self.complete or bool(self.open_searches)
        return is_open and not self.embeddings

    @property
    def open_searches(self) -> tuple[str, ...]:
        """The wider set and the alternatives whose searches a limit stopped."""
        wider = self.wider
        sets = () if wider is None or wider.proven else (wider.constraints,)
        return (*sets, *self.stopped_alternatives)

    @property
    def stopped_by(self) -> str:
        """The limit that stopped a search: without one of time it is the solver's memory."""
        return "memory limit" if self.timeout is None else "time limit"

    @property
    def why_stopped(self) -> str:
        """Continuation of "no candidate …": the limit that stopped the search, and the remedy."""
        if self.unsearched:
            return f"was found, which is no proof; not searched: {'; '.join(self.unsearched)}"
        smaller = "take a smaller workload or a narrower set"
        remedy = smaller if self.timeout is None else "give a longer --timeout"
        return f"was found and proven before the {self.stopped_by}: {remedy}"

    @property
    def utilisation(self) -> float:
        """Useful share of the instruction in the best candidate; 0 without one."""
        return self.embeddings[0].overheads.utilisation if self.embeddings else 0.0

    @property
    def occupancy(self) -> float:
        """Occupied share of the instruction in the best candidate; 0 without one."""
        return self.embeddings[0].overheads.occupancy if self.embeddings else 0.0

    @property
    def why_nothing(self) -> str:
        """Reason in one line why there is no candidate, and what might have one."""
        if not self.open_searches:
            return self._why_nothing
        listed = ", ".join(self.open_searches)
        return f"{self._why_nothing}; {listed} not searched to the end: give a longer --timeout"

    @property
    def _why_nothing(self) -> str:
        if self.conflict is not None:
            reason, wider = self.conflict.words[0], self.wider
            if wider is None or wider.searched:
                return reason
            return f"{reason}; {wider.constraints} might use up to {wider.utilisation:.1%} of it"
        more = "" if self.complete else ", and there may be other embeddings"
        if self.not_derivable:
            return f"no program: {self.not_derivable[0]}{more}"
        if self.count:
            return f"no program: the embeddings found are not axis maps{more}"
        return f"no candidate {self.why_stopped}"

    def to_json(self) -> dict[str, Any]:
        """Return the document that ``cpembed solve --json`` prints (``docs/reference/json.md``)."""
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
        if self.unsearched:
            document["unsearched"] = list(self.unsearched)
        if self.conflict is not None:
            document["conflict"] = self.conflict.to_json()
        if self.stopped_alternatives:
            document["stopped_alternatives"] = list(self.stopped_alternatives)
        if self.not_derivable:
            document["not_derivable"] = list(self.not_derivable)
        if self.irregular:
            document["irregular"] = self.irregular
        return document | self.sets_json()

    def sets_json(self) -> dict[str, Any]:
        """Return the members on commuted operands and on the other presets."""
        # The document's member keeps its first name, which scripts of users read.
        document: dict[str, Any] = {"exchanged": True} if self.commuted else {}
        for name, preset in (("narrower", self.narrower), ("wider", self.wider)):
            if preset is not None:
                document[name] = preset.to_json()
        return document


@dataclass(frozen=True, kw_only=True, repr=False)
class Explanation(Displayed):
    """One candidate in full: its layouts rewrite by rewrite, and its neighbours in the ranking.

    Parameters
    ----------
    solved : SolveResult
        Search that ranked it.
    candidate : RankedCandidate
        The candidate.
    steps : mapping of str to tuple of Step
        Rewrites of each workload operand, in the order of the instruction's operands; none for an
        operand that is used as it is.
    better, worse : RankedCandidate, optional
        Neighbours in the ranking.
    """

    solved: SolveResult
    candidate: RankedCandidate
    steps: Mapping[str, tuple[Step, ...]]
    better: RankedCandidate | None
    worse: RankedCandidate | None

    @property
    def workload(self) -> Computation:
        """Operator that is explained."""
        return self.solved.workload

    @property
    def program(self) -> DerivedProgram:
        """Program of the candidate."""
        return self.candidate.program

    @property
    def reasons(self) -> tuple[str, ...]:
        """Sentences on why the candidate ranks where it does."""
        return ranking_reasons(self.solved, self.candidate, self.better, self.worse)

    def to_json(self) -> dict[str, Any]:
        """Return the document of ``explain --json``."""
        program = self.program
        return {
            "workload": workload_json(self.workload),
            "target": self.solved.target.name,
            "instruction": str(program.instruction.computation),
            "constraints": self.solved.constraints.name,
            "status": self.solved.status.value,
            "complete": self.solved.complete,
            "count": self.solved.count,
            "embedding": embedding_json(self.candidate),
            "candidate": self.candidate.identifier,
            "ranking_of": self.candidate.constraints,
            **self.choice_json(),
            "loops": [
                {"name": loop.name, "extent": loop.extent, "kind": loop.kind.value}
                for loop in program.loops
            ],
            "axis_map": {axis: str(index) for axis, index in program.axis_map.items()},
            "operands": [self._operand_json(role) for role in program.roles],
            "ranking": list(self.reasons),
            **self.solved.sets_json(),
        }

    def choice_json(self) -> dict[str, Any]:
        """Return the members on why the candidate runs: none, as nothing was chosen."""
        return {}

    def _operand_json(self, role: str) -> dict[str, Any]:
        operand = self.program.role(role)
        return {
            "name": operand.name,
            "role": role,
            "dtype": operand.dtype,
            "original": original_layout(self.program, operand.name).to_json(),
            "packed": layout(self.program, operand).to_json(),
            "access": [str(index) for index in operand.access],
            "in_place": operand.is_identity,
            "rewrites": [
                {
                    **step.rewrite.to_json(),
                    "before": step.before.to_json(),
                    "after": step.after.to_json(),
                }
                for step in self.steps[operand.name]
            ],
        }


def explanation_of(solved: SolveResult, candidate: RankedCandidate) -> Explanation:
    """Explain a candidate of a search: replay its rewrites and look up its neighbours.

    The candidate may be a variant, or one that tuning ranked by another set; it then has no
    neighbours in this ranking.
    """
    ranked = {item.rank: item for item in solved.embeddings}
    same_rank = ranked.get(candidate.rank)
    is_ranked = same_rank is not None and same_rank.identifier == candidate.identifier
    program = candidate.program
    return Explanation(
        solved=solved,
        candidate=candidate,
        steps={operand.name: replay(program, operand.name) for operand in program.operands},
        better=ranked.get(candidate.rank - 1) if is_ranked else None,
        worse=ranked.get(candidate.rank + 1) if is_ranked else None,
    )


def ranking_reasons(
    solved: SolveResult,
    candidate: RankedCandidate,
    better: RankedCandidate | None,
    worse: RankedCandidate | None,
) -> tuple[str, ...]:
    """Return sentences on why a candidate ranks where it does.

    Parameters
    ----------
    solved : SolveResult
        Search that ranked it.
    candidate : RankedCandidate
        The candidate.
    better, worse : RankedCandidate, optional
        Its neighbours in the ranking.
    """
    weights, cost = solved.constraints.weights, candidate.overheads
    extra_macs = cost.executed_macs - cost.macs
    extra_data = cost.packed_data - cost.data
    score = (
        f"score {candidate.score:.6g}: the norm of {weights.mac:g} x {extra_macs:,} extra MACs and "
        f"{weights.data:g} x {extra_data:,} extra elements; 0 is perfect"
    )
    sentences = [score]
    if better is not None:
        sentences.append(f"behind #{better.rank}: {_compare(better, candidate)}")
    if worse is not None:
        sentences.append(f"ahead of #{worse.rank}: {_compare(candidate, worse)}")
    if solved.count == 1 and candidate.constraints == solved.constraints.name:
        extent = "" if solved.complete else " found so far"
        sentences.append(f"it is the only candidate{extent} under {solved.constraints.name}")
    return tuple(sentences)


def _compare(first: RankedCandidate, second: RankedCandidate) -> str:
    """Return the criterion between two neighbours of the ranking, the better one first."""
    a, b = first.overheads, second.overheads
    if first.score != second.score:
        return (
            f"score {first.score:.6g} against {second.score:.6g} "
            f"(MACs x{a.mac_overhead:.4g} against x{b.mac_overhead:.4g}, "
            f"data x{a.data_overhead:.4g} against x{b.data_overhead:.4g})"
        )
    if a.calls != b.calls:
        return f"equal scores, {a.calls:,} executions against {b.calls:,}"
    if a.packing_bytes != b.packing_bytes:
        return f"equal scores, packing moves {a.packing_bytes:,} bytes against {b.packing_bytes:,}"
    return "equal in score, executions and packing: the order of their axis maps decides"


def workload_json(workload: Computation) -> dict[str, Any]:
    """Return the member ``workload`` of documents."""
    return {
        "name": workload.name,
        "expression": str(workload),
        "axes": dict(workload.extents),
        "dtypes": {operand.name: operand.dtype for operand in workload.operands},
        "macs": workload.macs,
    }


def embedding_json(ranked: RankedCandidate) -> dict[str, Any]:
    """Return an entry of the member ``embeddings`` of documents."""
    embedding, program = ranked.embedding, ranked.program
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
