"""Requests for a kernel, and the candidates that its target chooses among."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from functools import cached_property
from typing import Any, NamedTuple

from cpembed.codegen.epilogue import EpilogueRequest
from cpembed.cost.ranking import RankedCandidate
from cpembed.driver.named import hardware_spec
from cpembed.driver.options import KernelOptions
from cpembed.driver.result import SolveResult
from cpembed.driver.solve import Progress, TopCandidates, searches
from cpembed.embedding.constraint_set import Weights
from cpembed.errors import BackendUnavailable
from cpembed.hw.instruction import HardwareSpec
from cpembed.ir.computation import Computation
from cpembed.targets.base import Target
from cpembed.targets.portable import PORTABLE, PortableTarget
from cpembed.targets.registry import open_target

AnyTarget = Target[Any, Any, Any]

SUMS = EpilogueRequest()
"""Output of the sums as they are, which is what a kernel stores unless it is asked for more."""


class Execution(NamedTuple):
    """Target that executes, portable code included, and what keeps its instruction from it."""

    target: AnyTarget
    missing: tuple[str, ...]


@dataclass(frozen=True)
class Request:
    """A kernel that is asked for.

    Parameters
    ----------
    workload : Computation
        Operator.
    target : str or HardwareSpec
        Target by name, file or value.
    options : KernelOptions
        Which candidate, by which back end, with which output.
    progress : callable, optional
        Called at each step with the stage and a count.
    epilogue : Any
        Epilogue in the target's own form, which replaces the output that the options name.
    explains : bool
        Whether a search that is infeasible is explained.
    """

    workload: Computation
    target: str | HardwareSpec
    options: KernelOptions = KernelOptions()
    _: KW_ONLY
    progress: Progress | None = None
    epilogue: Any = None
    explains: bool = True

    @cached_property
    def execution(self) -> Execution:
        """Target that executes, opened once, and what the machine is missing.

        Raises
        ------
        BackendUnavailable
            If the target's own code is insisted on and something is missing.
        """
        spec, backend = hardware_spec(self.target), self.options.backend
        try:
            target = open_target(spec)
            missing = target.missing()
        except BackendUnavailable as error:
            target, missing = PortableTarget(spec), (str(error),)
        if backend == "native" and missing:
            raise BackendUnavailable(
                f"{spec.name}: {'; '.join(missing)}; else use the generic back end"
            )
        if backend == PORTABLE or missing:
            target = PortableTarget(spec)
        return Execution(target, missing)

    @property
    def stores_sums(self) -> bool:
        """True if nothing happens to the sums before they are stored."""
        return self.epilogue is None and self.options.storing == SUMS


def search_for(request: Request, target: AnyTarget) -> tuple[SolveResult, ...]:
    """Search each set, for as many of the best candidates as the target chooses among.

    Parameters
    ----------
    request : Request
        Workload and options.
    target : Target
        What executes: the request's target, or portable code.
    """
    workload, options, progress = request.workload, request.options, request.progress
    if options.named_candidate:
        returned = TopCandidates(options.rank or 1)
        return searches(workload, target.spec, options, returned, progress=progress)

    def reweigh(first: SolveResult) -> Weights | None:
        return target.weights(first.embeddings)

    return searches(
        workload,
        target.spec,
        options,
        TopCandidates(target.considered, target.contenders),
        reweigh=reweigh if target.weighs else None,
        progress=progress,
    )


def candidates_of(results: Sequence[SolveResult]) -> list[RankedCandidate]:
    """Return the candidates of several searches, in their order."""
    return [candidate for result in results for candidate in result.embeddings]


def considered(request: Request) -> tuple[RankedCandidate, ...]:
    """Return what the target chooses among, variants too; nothing if it does not execute here."""
    target, missing = request.execution
    if missing:
        return ()
    return tuple(target.variants(candidates_of(search_for(request, target))))
