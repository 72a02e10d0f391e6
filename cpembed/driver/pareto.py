"""The candidates worth choosing between: none is worse than another in every respect.

>>> from cpembed.driver.solve import workload
>>> layer = workload("conv2d n=1 c=12 h=10 w=10 k=32 r=3 s=3", target="avx512_vnni")
>>> result = pareto(layer, "avx512_vnni")
>>> [(item.rank, objectives(item).footprint_bytes) for item in result.candidates]
[(1, 12848)]
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Unpack

from cpembed.driver.solve import SearchOptions, SolveResult, solve
from cpembed.embedding.constraint_set import ConstraintSet
from cpembed.hw.instruction import HardwareSpec
from cpembed.ir.computation import Computation
from cpembed.selection.pareto import front, objectives
from cpembed.selection.ranking import RankedCandidate


@dataclass(frozen=True)
class ParetoResult:
    """The front of a search: ``solved.embeddings`` are its members, proven, with their ranks
    among all candidates. It is the whole front where ``solved.complete``."""

    solved: SolveResult

    @property
    def candidates(self) -> tuple[RankedCandidate, ...]:
        return self.solved.embeddings

    def to_json(self) -> dict[str, Any]:
        """The document of ``solve --pareto --json``: that of ``solve``, with the objectives."""
        document: dict[str, Any] = {**self.solved.to_json(), "pareto": True}
        for entry, item in zip(document["embeddings"], self.candidates, strict=True):
            entry["objectives"] = objectives(item)._asdict()
        return document


def pareto(
    workload: Computation,
    target: str | HardwareSpec,
    constraints: str | ConstraintSet | None = None,
    **options: Unpack[SearchOptions],
) -> ParetoResult:
    """The candidates that no other one dominates in MACs executed, bytes moved by packing, and
    footprint of all operands.

    Every embedding's program is derived, since its layouts decide; the members of the front are
    proven. Raises what :func:`~cpembed.driver.solve.solve` raises; an infeasible problem is a result.
    """
    return ParetoResult(solve(workload, target, constraints, top=None, keep=front, **options))
