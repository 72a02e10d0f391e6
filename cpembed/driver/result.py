"""Results of searches, and their JSON documents."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from cpembed.cost.ranking import RankedCandidate
from cpembed.embedding.commute import Pairing
from cpembed.embedding.conflict import Conflict
from cpembed.embedding.constraint_set import ConstraintSet
from cpembed.embedding.cpsat import Status
from cpembed.embedding.result import SearchEffort, Seconds
from cpembed.hw.instruction import HardwareSpec
from cpembed.ir.computation import Computation


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
    def of(result: SolveResult) -> OtherSet:
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


@dataclass(frozen=True, kw_only=True)
class SolveResult:
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
    def is_stopped(self) -> bool:
        """True if it is not known whether there is a candidate: none was found, and a limit stopped
        this search or that of a wider set or of an alternative, or a part of the problem was not
        searched."""
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
        """Return the document that ``cpembed solve --json`` prints (``docs/usage.md``)."""
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
        document: dict[str, Any] = {"exchanged": True} if self.commuted else {}
        for name, preset in (("narrower", self.narrower), ("wider", self.wider)):
            if preset is not None:
                document[name] = preset.to_json()
        return document


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
