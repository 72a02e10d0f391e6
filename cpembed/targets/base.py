"""The interface of a target: operations that the commands need of every machine.

A target is an object made from a hardware specification. Its six abstract methods turn a derived
program into something that runs. Whatever only some machines can do (tuning, libraries, traces,
other compilers) is a protocol in :mod:`cpembed.targets.capabilities`, which a target has by
defining its methods. :mod:`cpembed.targets.TEMPLATE` is a complete small target, to be copied.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, TypeVar

import msgspec
from numpy.typing import NDArray

from cpembed.codegen.epilogue_request import EpilogueRequest
from cpembed.cost.ranking import RankedCandidate
from cpembed.embedding.embedding import Embedding
from cpembed.hw.instruction import HardwareSpec
from cpembed.ir.computation import Computation
from cpembed.provenance import Provenance
from cpembed.runtime.measurement.runner import Timing
from cpembed.runtime.tuning.space import S, Space
from cpembed.transform.program import DerivedProgram

Array = NDArray[Any]

L = TypeVar("L")
"""Type of a program in the target's own terms, before any schedule."""
A = TypeVar("A")
"""Type of an artifact: a compiled kernel, a program of instructions."""

WELL_USED = 0.85
"""Default threshold of the utilisation from which the wider preset is not searched.

14 of 16 rows, all that images of 14, 28 and 56 columns fill, are above it."""

CONSIDERED = 8
"""Default number of embeddings, best by overheads, that a target's estimates are compared for."""

Row = tuple[str, str]
"""Line of a report: label and text."""


@dataclass(frozen=True)
class Execution:
    """Outputs of an artifact in their original layout.

    Parameters
    ----------
    outputs : tuple of ndarray
        One output for each mode that the artifact runs in (orders of warps, packed and unpacked
        operands); each of them is verified.
    provenance : Provenance
        Measured, simulated or emulated.
    """

    outputs: tuple[Array, ...]
    provenance: Provenance
    seconds: tuple[Array, ...] = ()
    """Second outputs of the same modes, if the epilogue has one."""


class Details:
    """Target-specific part of the result of a run; it has to survive pickling."""

    def to_json(self) -> dict[str, Any]:
        """Return the entries for the document of ``run --json``."""
        return {}

    def bench_json(self) -> dict[str, Any]:
        """Return the entries for a benchmark's row: numbers and texts."""
        return {}

    def rows(self) -> list[Row]:
        """Return the lines for the report."""
        return []


Shortlist = Callable[[tuple[RankedCandidate, ...]], tuple[RankedCandidate, ...]]


@dataclass(frozen=True, kw_only=True)
class ChoicePolicy:
    """Rules by which a target's estimates choose among the embeddings of a search.

    Parameters
    ----------
    considered : int
        Number of embeddings, best by overheads, that a search returns for the choice.
    compares_always : bool
        True to compare estimates even if only one constraint set was searched; otherwise the first
        embedding of that set is taken.
    tie_ratio : float
        Maximum ratio of two estimates that are considered equal; among equals, overheads decide.
    shortlist : callable, optional
        Selects, from the considered embeddings, those whose estimates are computed; all by default.
    well_used : float
        Utilisation under the narrow constraint set from which the wider one is not searched.
    """

    considered: int = CONSIDERED
    compares_always: bool = True
    tie_ratio: float = 1.0
    shortlist: Shortlist | None = None
    well_used: float = WELL_USED


class Target(ABC, Generic[L, S, A]):
    """Machine with one instruction, which executes derived programs."""

    provenance: Provenance = Provenance.MEASURED
    """Origin of its times."""
    unit: ClassVar[str] = "us"
    """Unit of its estimates and of the cost that tuning minimises: ``us`` or ``cycles``."""
    follows_machine: ClassVar[bool] = False
    """True if its kernels are chosen for the specification's first machine, which may be named."""
    takes_epilogues: ClassVar[bool] = False
    """True if its kernels may have the :class:`~cpembed.codegen.epilogue.Epilogue` of a network's
    product; else the host computes it from the sums. Libraries of networks have it anyway."""
    channels_last: ClassVar[bool] = False
    """True if its kernels read images of networks with the channels last; others are row-major."""
    policy: ClassVar[ChoicePolicy] = ChoicePolicy()
    """Rules by which its estimates choose an embedding."""

    def __init__(self, spec: HardwareSpec) -> None:
        self.spec = spec

    @property
    def described_machine(self) -> str | None:
        """Name of the described machine that its estimates are for; None for the host itself."""
        return None

    @abstractmethod
    def missing(self) -> tuple[str, ...]:
        """Return a message for each thing that this machine lacks to execute the instruction."""

    @abstractmethod
    def lower(self, program: DerivedProgram, epilogue: Any = None) -> L:
        """Express a program in the target's own terms.

        Parameters
        ----------
        program : DerivedProgram
            Proven program of an embedding.
        epilogue : Any
            Conversion of the sums before they are stored, from :meth:`epilogue`; None to store the
            sums.

        Raises
        ------
        LoweringError
            If the target cannot express it, with the reason.
        """

    @abstractmethod
    def space(self, lowered: L) -> Space[S]:
        """Return the schedules of a lowered program with their estimates."""

    @abstractmethod
    def build(self, lowered: L, schedule: S) -> A:
        """Build something that runs; called in a worker, so that a compiler may crash.

        Raises :class:`LoweringError` if the schedule has no program.
        """

    @abstractmethod
    def execute(self, artifact: A, inputs: Mapping[str, Array]) -> Execution:
        """Compute the outputs; called in a worker.

        Parameters
        ----------
        artifact : Any
            From :meth:`build`.
        inputs : mapping of str to ndarray
            Operands of the workload in their original layouts, by name, and the vectors of the
            epilogue.
        """

    @abstractmethod
    def time(self, artifact: A, inputs: Mapping[str, Array]) -> Timing:
        """Time the contraction on these inputs, and packing and unpacking around it.

        Called in a worker.
        """

    def epilogue(self, workload: Computation, storing: EpilogueRequest) -> Any:
        """Return the target's form of a requested output; None to store the sums.

        Called before the search. Raises :class:`~cpembed.errors.WorkloadError` for an output that
        the target cannot store.
        """
        return storing.epilogue(self.spec.name, workload.output.dtype)

    def executed_by(self, artifact: A) -> str:
        """Return the name of the executing back end for results."""
        return self.spec.backend or self.spec.name

    def require_executable(self, macs: int) -> None:
        """Refuse a workload that takes too long to execute here; nothing is refused by default.

        Parameters
        ----------
        macs : int
            Multiply-accumulates of the workload.

        Raises
        ------
        BackendUnavailable
            If executing them would take days.
        """

    def schedule_text(self, embedding: Embedding, schedule: S) -> str:
        """Describe a schedule for a report."""
        return str(schedule)

    def schedule_json(self, schedule: S) -> Any:
        """Return a schedule for documents, in JSON's own types."""
        # Through the encoder, so that it equals what a file gives back: tuples are lists there.
        return msgspec.json.decode(msgspec.json.encode(schedule))
