"""Plans: what is built on which target, and why."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from cpembed.codegen.epilogue import EpilogueRequest
from cpembed.cost.ranking import RankedCandidate
from cpembed.driver.request import SUMS, AnyTarget
from cpembed.driver.result import SolveResult
from cpembed.errors import WorkloadError
from cpembed.ir.computation import Computation
from cpembed.runtime.tuning.records import TunedChoice
from cpembed.targets.choice import Choice
from cpembed.targets.methods import MethodPlan
from cpembed.targets.portable import PortableTarget
from cpembed.transform.methods.convolution import Rewritten
from cpembed.transform.methods.winograd import Winograd


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
    asked : float, optional
        Its estimate, packing and unpacking included; None if it has no embedding, or an estimate of
        another kind.
    estimated : float, optional
        Estimate of the alternative.
    unit : str
        Unit of both estimates: ``us`` or ``cycles``.
    """

    solved: SolveResult
    asked: float | None = None
    estimated: float | None = None
    unit: str = "us"


@dataclass(frozen=True)
class Selection:
    """Candidate that runs, with the search that found it and the plan that builds it.

    Parameters
    ----------
    solved : SolveResult
        Search that the candidate belongs to.
    plan : Plan
        What is built.
    instead : Substitution, optional
        Why it runs on an alternative target; None if it is on the one that was asked for.
    """

    solved: SolveResult
    plan: Plan
    instead: Substitution | None = None

    @property
    def choice(self) -> Choice:
        """Candidate and schedule that are built first."""
        return self.plan.choices[0]

    @property
    def candidate(self) -> RankedCandidate:
        """Candidate that is built first."""
        return self.choice.candidate

    @property
    def tuned(self) -> TunedChoice[Any] | None:
        """Tuning record that made the choice, if one did."""
        return self.choice.tuned

    def to_json(self) -> dict[str, Any]:
        """Return why it runs, as a part of the document of ``explain --chosen --json``."""
        asked = self.solved if self.instead is None else self.instead.solved
        document: dict[str, Any] = {
            "target": asked.target.name,
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
        (:func:`~cpembed.transform.methods.accuracy.bound`).
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
