"""Explanation of one candidate: its axes, its layouts rewrite by rewrite, and its rank.

>>> from cpembed.driver.named import workload
>>> layer = workload("gemm m=8 n=16 k=16", target="vta_1x16x16")
>>> story = explain(layer, "vta_1x16x16")
>>> [(step.rewrite.name, str(step.after)) for step in story.steps["C"]]
[('split', '[m, n.o, n.i] (8, 1, 16)')]
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from cpembed.driver.candidate_id import identified
from cpembed.driver.named import hardware_spec
from cpembed.driver.options import CandidateOptions, SearchOptions, SolveOptions, merged, shared
from cpembed.driver.result import Explanation, SolveResult, explanation_of
from cpembed.driver.solve import Progress, solve
from cpembed.hw.instruction import HardwareSpec
from cpembed.ir.computation import Computation
from cpembed.targets.capabilities import require_candidate

if TYPE_CHECKING:
    from cpembed.driver.options import MethodName
    from cpembed.driver.plan import Compared, Request, Selection


@dataclass(frozen=True, kw_only=True, repr=False)
class ChosenExplanation(Explanation):
    """Explanation of the candidate that runs, and why it does.

    Parameters
    ----------
    selection : Selection
        What runs.
    method : Compared, optional
        Methods of a convolution that were compared. Unless the implicit one is the fastest, the
        candidate is one of the product of another method.
    """

    selection: Selection
    method: Compared | None

    @property
    def workload(self) -> Computation:
        """Requested operator, whatever method computes it."""
        rewritten = None if self.method is None else self.method.rewritten
        return self.solved.workload if rewritten is None else rewritten.workload

    def choice_json(self) -> dict[str, Any]:
        """Return the members on why the candidate runs."""
        document = self.selection.to_json()
        return document if self.method is None else document | {"method": self.method.to_json()}


def explain(
    workload: Computation,
    target: str | HardwareSpec,
    options: CandidateOptions | None = None,
    *,
    progress: Progress | None = None,
    **keywords: Any,
) -> Explanation | SolveResult:
    """Show one candidate in full.

    Parameters
    ----------
    workload, target, progress
        As for :func:`~cpembed.driver.solve.solve`.
    options : CandidateOptions, optional
        Which candidate, by rank (the best by default) or id; its fields may also be given as
        keywords.

    Returns
    -------
    Explanation or SolveResult
        The search's result, with its conflict, if it found nothing.

    Raises
    ------
    WorkloadError
        If the rank or the id does not exist.
    """
    options = merged(CandidateOptions, options, keywords)
    if options.identifier is not None:
        spec = hardware_spec(target, workload)
        solved, candidate = identified(
            workload, spec, options.identifier, options, progress=progress
        )
        return explanation_of(solved, candidate)
    rank = options.rank or 1
    search = SolveOptions(top=rank + 1, **shared(options, SearchOptions))
    solved = solve(workload, target, search, progress=progress)
    if not solved.count:
        return solved
    return solved.explain(rank)


def explain_chosen(request: Request, method: MethodName = "auto") -> Explanation | SolveResult:
    """Explain the candidate that :func:`~cpembed.driver.run.run` runs, and why it does.

    Raises as :func:`~cpembed.driver.methods.chosen_method` does.
    """
    from cpembed.driver.methods import chosen_method

    result = chosen_method(request, method)
    if isinstance(result, SolveResult):
        return result
    selection, compared = result
    # A variant comes from no search, so nothing has proven it yet.
    require_candidate(selection.plan.target, selection.ranked.candidate)
    explanation = explanation_of(selection.solved, selection.ranked)
    parts = {field.name: getattr(explanation, field.name) for field in fields(explanation)}
    return ChosenExplanation(**parts, selection=selection, method=compared)
