"""Requests for a kernel, and plans: what is built on which target, and why."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple

from cpembed.codegen.epilogue_request import EpilogueRequest
from cpembed.cost.machine.estimate import Estimate
from cpembed.cost.ranking import RankedCandidate
from cpembed.driver.named import hardware_spec
from cpembed.driver.options import KernelOptions
from cpembed.driver.result import SolveResult
from cpembed.driver.solve import Progress, TopCandidates, searches
from cpembed.embedding.constraint_set import Weights
from cpembed.errors import BackendUnavailable, SpecError, WorkloadError
from cpembed.hw.instruction import HardwareSpec
from cpembed.ir.computation import Computation
from cpembed.runtime.tuning.records import TunedChoice
from cpembed.targets.base import Target
from cpembed.targets.capabilities import Weighing, with_variants
from cpembed.targets.choice import Choice
from cpembed.targets.methods import MethodPlan
from cpembed.targets.portable import PORTABLE, PortableTarget
from cpembed.targets.registry import open_target
from cpembed.transform.methods.convolution import Rewritten
from cpembed.transform.methods.winograd import Winograd

AnyTarget = Target[Any, Any, Any]

SUMS = EpilogueRequest()
"""Epilogue that stores the sums unchanged, the default of a kernel."""


class Execution(NamedTuple):
    """Target that executes, portable code included, and why the instruction itself cannot."""

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
    first_only : bool
        Whether candidates that cannot be the first choice are left out, which saves most of the
        estimates.
    """

    workload: Computation
    target: str | HardwareSpec
    options: KernelOptions = KernelOptions()
    _: KW_ONLY
    progress: Progress | None = None
    epilogue: Any = None
    explains: bool = True
    first_only: bool = False

    @cached_property
    def execution(self) -> Execution:
        """Target that executes, opened once, and what the machine is missing.

        Raises
        ------
        BackendUnavailable
            If the target's own code is insisted on and something is missing.
        SpecError
            If a machine is named, and the target has no such machine or does not choose by it.
        """
        backend, machine = self.options.backend, self.options.machine
        spec = hardware_spec(self.target, self.workload, machine)
        try:
            target = open_target(spec)
            missing = target.missing()
        except BackendUnavailable as error:
            # No class executes the specification: as if this machine lacked the instruction.
            target, missing = PortableTarget(spec), (str(error),)
        if machine is not None and not target.follows_machine:
            raise SpecError(
                f"{spec.name}: --machine {machine} changes no kernel, which is chosen for one "
                "machine: leave it out, or read its times with solve --estimate"
            )
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


def candidate_searches(request: Request, target: AnyTarget) -> tuple[SolveResult, ...]:
    """Search each set, for as many of the best candidates as the target chooses among.

    Parameters
    ----------
    request : Request
        Workload and options.
    target : Target
        What executes: the request's target, or portable code.
    """
    workload, options, progress = request.workload, request.options, request.progress
    # A named candidate needs the ranking as far as its own place, and no weights but the set's.
    if options.named_candidate:
        returned = TopCandidates(options.rank or 1)
        return searches(workload, target.spec, options, returned, progress=progress)

    def reweigh(first: SolveResult) -> Weights | None:
        return target.weights(first.embeddings) if isinstance(target, Weighing) else None

    return searches(
        workload,
        target.spec,
        options,
        TopCandidates(target.policy.considered, target.policy.shortlist),
        reweigh=reweigh if isinstance(target, Weighing) else None,
        well_used=target.policy.well_used,
        progress=progress,
    )


def candidates_of(results: Sequence[SolveResult]) -> list[RankedCandidate]:
    """Return the candidates of several searches, in their order."""
    return [candidate for result in results for candidate in result.embeddings]


def considered(request: Request) -> tuple[RankedCandidate, ...]:
    """Return the target's candidates, variants included; none if it cannot execute here."""
    target, missing = request.execution
    if missing:
        return ()
    return tuple(with_variants(target, candidates_of(candidate_searches(request, target))))


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A candidate that is to be built.

    Parameters
    ----------
    target : Target
        Executes it: the target that was asked for, an alternative, or portable code.
    candidate : RankedCandidate
        Candidate that portable code is made of where nothing in ``choices`` has a program.
    choices : sequence of Choice
        Candidates with their schedules; the first that has a program is built.
    epilogue : Any
        Epilogue in the target's own form; None to store the sums.
    missing : tuple of str
        What keeps the target's instruction from being used; empty where it is used.
    insists : bool
        Whether portable code must not stand in.
    storing : EpilogueRequest, optional
        Output that the epilogue was made from; None if the epilogue is the caller's own, which
        portable code then stores too.
    """

    target: AnyTarget
    candidate: RankedCandidate
    choices: Sequence[Choice]
    epilogue: Any
    missing: tuple[str, ...] = ()
    insists: bool = False
    storing: EpilogueRequest | None = SUMS

    @property
    def native(self) -> bool:
        """True if the target's instruction is used."""
        return not isinstance(self.target, PortableTarget)

    def portable(self, *missing: str) -> Plan:
        """Return the plan with the same candidate as portable code.

        An epilogue that portable code does not have is left out: it stores the sums.
        """
        target, epilogue = PortableTarget(self.target.spec), self.epilogue
        if self.storing is not None:
            # The epilogue is in the form of the target that falls out; made anew for this one.
            epilogue = None
            with suppress(WorkloadError):
                epilogue = target.epilogue(self.candidate.program.unfused, self.storing)
        choice = Choice(self.candidate, None)
        return replace(self, target=target, choices=(choice,), epilogue=epilogue, missing=missing)


@dataclass(frozen=True)
class Substitution:
    """Reason why an alternative target runs instead of the one that was asked for.

    Parameters
    ----------
    solved : SolveResult
        Search of the target that was asked for.
    requested_cost : float, optional
        Its estimate, packing and unpacking included; None if it has no embedding, or an estimate of
        another kind.
    estimated : float, optional
        Estimate of the alternative.
    unit : str
        Unit of both estimates: ``us`` or ``cycles``.
    """

    solved: SolveResult
    requested_cost: float | None = None
    estimated: float | None = None
    unit: str = "us"


@dataclass(frozen=True)
class Selection:
    """Candidate that runs, with the search that found it and the plan that builds it.

    Parameters
    ----------
    solved : SolveResult
        Search that is reported. A target that weighs both presets may have the candidate from the
        other one.
    plan : Plan
        What is built.
    substitution : Substitution, optional
        Why it runs on an alternative target; None if it is on the one that was asked for.
    described : Estimate, optional
        Estimate of the described machine by which the candidate was chosen; None if another
        figure decided.
    """

    solved: SolveResult
    plan: Plan
    substitution: Substitution | None = None
    described: Estimate | None = None

    @property
    def requested(self) -> SolveResult:
        """Search of the requested target, even if an alternative runs."""
        return self.solved if self.substitution is None else self.substitution.solved

    @property
    def choice(self) -> Choice:
        """Candidate and schedule that are built first."""
        return self.plan.choices[0]

    @property
    def ranked(self) -> RankedCandidate:
        """Candidate that is built first."""
        return self.choice.ranked

    @property
    def tuned(self) -> TunedChoice[Any] | None:
        """Tuning record that made the choice, if one did."""
        return self.choice.tuned

    def to_json(self) -> dict[str, Any]:
        """Return why it runs, as a part of the document of ``explain --chosen --json``."""
        document: dict[str, Any] = {
            "target": self.requested.target.name,
            "executed": self.solved.target.name,
            "missing": list(self.plan.missing),
            "tuned": None if self.tuned is None else self.tuned.to_json(),
        }
        return document | self.choice.to_json(self.plan.target) if self.plan.native else document


@dataclass(frozen=True)
class MethodChoice:
    """Rewritten convolution with the kernel of its product.

    Parameters
    ----------
    plan : MethodPlan
        Parts around the product.
    product : Selection
        Kernel of the product.
    estimated : float
        Estimate of one call in microseconds, the parts included.
    """

    plan: MethodPlan
    product: Selection
    estimated: float

    @property
    def method(self) -> Rewritten:
        return self.plan.method

    @property
    def workload(self) -> Computation:
        """The convolution."""
        return self.method.convolution.workload

    def to_json(self) -> dict[str, Any]:
        method = self.method
        return {
            "product": str(self.plan.product),
            "extents": self.plan.product.extents,
            "products": self.plan.count,
            "relative_multiplications": method.relative_multiplications,
            "exact": not isinstance(method, Winograd) or method.is_exact,
            "estimated_us": self.estimated,
        }


@dataclass(frozen=True)
class Compared:
    """Method that runs, and those that it was compared with.

    Parameters
    ----------
    rewritten : MethodChoice, optional
        Method that runs; None for the implicit one.
    estimates : mapping of str to float
        Estimates in microseconds of the methods that were compared.
    refused : mapping of str to str
        Reasons why the other methods were rejected.
    """

    rewritten: MethodChoice | None
    estimates: Mapping[str, float]
    refused: Mapping[str, str] = field(default_factory=dict[str, str])

    @property
    def name(self) -> str:
        return "implicit" if self.rewritten is None else self.rewritten.method.name

    def to_json(self) -> dict[str, Any]:
        """Return the member ``method`` of documents."""
        details = {} if self.rewritten is None else self.rewritten.to_json()
        compared = {"estimates_us": dict(self.estimates), "refused": dict(self.refused)}
        return {"name": self.name, **compared, **details}


@dataclass(frozen=True)
class MethodError:
    """Error of a method's outputs against the convolution in float64.

    Parameters
    ----------
    largest, rms : float
        Largest error, and the root of the mean square.
    output : float
        Largest output in size.
    bound : float
        Largest bound of the method for data of these magnitudes
        (:func:`~cpembed.transform.methods.error_growth.bound`).
    """

    largest: float
    rms: float
    output: float
    bound: float

    def to_json(self) -> dict[str, Any]:
        return {
            "largest": self.largest,
            "rms": self.rms,
            "largest_output": self.output,
            "bound": self.bound,
        }
