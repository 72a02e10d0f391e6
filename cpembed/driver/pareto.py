"""The candidates worth choosing between: none is worse than another in every respect.

>>> from cpembed.driver.named import workload
>>> layer = workload("conv2d n=1 c=12 h=10 w=10 k=32 r=3 s=3", target="avx512_vnni")
>>> result = pareto(layer, "avx512_vnni")
>>> [(item.rank, objectives(item).footprint_bytes) for item in result.candidates]
[(1, 12848)]
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from cpembed.cost.ranking import RankedCandidate, front, objectives
from cpembed.driver.options import SearchOptions, SolveOptions, merged, shared
from cpembed.driver.result import SolveResult
from cpembed.driver.solve import Progress, solve
from cpembed.hw.instruction import HardwareSpec
from cpembed.ir.computation import Computation


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
    options: SearchOptions | None = None,
    *,
    progress: Progress | None = None,
    **keywords: Any,
) -> ParetoResult:
    """Find the candidates that no other dominates in MACs, packing traffic and footprint.

    Every embedding's program is derived, since its layouts decide; the members of the front are
    proven.

    Parameters
    ----------
    workload : Computation
        Operator, from :func:`~cpembed.driver.named.workload`.
    target : str or HardwareSpec
        Target by name, file or value.
    options : SearchOptions, optional
        How to search; its fields may also be given as keywords.
    progress : callable, optional
        Called at each step with the stage and a count.
    """
    search = SolveOptions(
        top=None, **shared(merged(SearchOptions, options, keywords), SearchOptions)
    )
    return ParetoResult(solve(workload, target, search, keep=front, progress=progress))
