"""Optional abilities of targets: a protocol for each, and the one function that asks for it.

A target has an ability if it defines the members of the protocol; it may name the protocol as a
base class to inherit defaults. The functions return the default for all other targets, so that no
caller tests for an ability itself. What targets store is in :mod:`cpembed.targets.outputs`, tuning
in :mod:`cpembed.targets.tuner`, im2col and Winograd in :mod:`cpembed.targets.methods`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from cpembed.codegen.compiled import CompiledKernel, Processor
from cpembed.codegen.epilogue import Epilogue
from cpembed.codegen.packing import packed_before
from cpembed.codegen.recorded import FunctionCalls, function_calls
from cpembed.cost.ranking import Candidate, RankedCandidate
from cpembed.embedding.constraint_set import Weights
from cpembed.errors import LoweringError
from cpembed.hw.instruction import HardwareSpec
from cpembed.ir.computation import Computation
from cpembed.runtime.measurement.runner import Timing
from cpembed.targets.base import Array, Details, Target
from cpembed.transform.program import DerivedProgram

AnyTarget = Target[Any, Any, Any]

# isinstance compares only the names of members with those of a protocol, so a member's name
# belongs to one ability.

OpenBaseline = Callable[[HardwareSpec, Epilogue | None], Any]
"""Loads a library for a target and an output to store."""


# ------------------------------------------------------------------- choosing among embeddings


@runtime_checkable
class HasVariants(Protocol):
    """Executes some candidates faster in another form, which no search has proven."""

    def variants(
        self, candidates: Sequence[RankedCandidate], *, fuses: bool = True
    ) -> Sequence[RankedCandidate]:
        """Return the candidates and their other forms; ``fuses``: adjacent axes may be fused."""
        ...

    def require(self, candidate: Candidate) -> None:
        """Prove a variant. Raises :class:`InvariantError` if that fails."""
        ...


@runtime_checkable
class Weighing(Protocol):
    """Ranks the embeddings of the wider preset by times of the machine."""

    def weights(self, first: Sequence[RankedCandidate]) -> Weights | None:
        """Return weights of the overheads; None to keep those of the constraint set.

        ``first`` are the best candidates of the narrow preset.
        """
        ...


def with_variants(
    target: AnyTarget, candidates: Sequence[RankedCandidate], *, fuses: bool = True
) -> Sequence[RankedCandidate]:
    """Return candidates with the variants that a target may execute faster.

    Parameters
    ----------
    target : Target
        Target that executes them.
    candidates : sequence of RankedCandidate
        Candidates of a search.
    fuses : bool
        True if adjacent axes may be fused.
    """
    if isinstance(target, HasVariants):
        return target.variants(candidates, fuses=fuses)
    return candidates


def require_candidate(target: AnyTarget, candidate: Candidate) -> None:
    """Prove a candidate if it is a variant. Raises :class:`InvariantError` if that fails."""
    if isinstance(target, HasVariants):
        target.require(candidate)


# ---------------------------------------------------------------------------------- dot products


class ColumnDot(Protocol):
    """Vector instruction that adds dot products of ``depth`` neighbours to each of its lanes.

    The first factor is shared by all lanes, and the second has the neighbours of each.
    """

    @property
    def name(self) -> str: ...

    @property
    def depth(self) -> int: ...

    @property
    def rows(self) -> int: ...

    @property
    def lanes(self) -> int: ...

    @property
    def functions(self) -> str:
        """LLVM functions that the calls need."""
        ...

    @property
    def attributes(self) -> tuple[str, ...]:
        """Target attributes for the compiler."""
        ...

    @property
    def call(self) -> Callable[[str, str, str, bool], str]:
        """TVMScript of one instruction, from ``(sums, first, second, signed_first)``."""
        ...


@runtime_checkable
class HasColumnDot(Protocol):
    """Executes its instruction by a dot product whose lanes are columns."""

    @property
    def column_dot(self) -> ColumnDot | None:
        """The dot product; None for an instruction of another shape."""
        ...


def column_dot(target: AnyTarget) -> ColumnDot | None:
    """Return the dot product with columns as lanes that executes a target's instruction."""
    return target.column_dot if isinstance(target, HasColumnDot) else None


# --------------------------------------------------------------------------- libraries, compilers


@runtime_checkable
class Linkable(Protocol):
    """Has kernels that a library can hold."""

    triple: str | None = None
    """LLVM's name of the machine that kernels are compiled for; None for this machine."""

    def planned(
        self, lowered: Any, schedule: Any, processor: Processor | None = None
    ) -> CompiledKernel:
        """Return a kernel of which nothing is compiled yet; arguments as for :meth:`Target.build`.

        ``processor`` receives the plans instead of a compiler. Raises :class:`LoweringError` if the
        schedule has no program.
        """
        ...


@runtime_checkable
class HasParts(Protocol):
    """Has kernels that threads of another kernel call, each with operands of its own."""

    def lower_part(self, program: DerivedProgram, epilogue: Epilogue | None) -> Any:
        """Lower a program as :meth:`Target.lower` does, for one thread."""
        ...


@runtime_checkable
class TensorIREmitter(Protocol):
    """Gives its programs as TensorIR functions for modules of TVM, which compiles them."""

    def tvm_target(self) -> str:
        """Return the kind of TVM target that the modules are compiled for."""
        ...

    def tensorir(
        self, lowered: Any, schedule: Any, constants: Mapping[str, Array]
    ) -> FunctionCalls:
        """Return the program as functions; see :func:`tensorir`."""
        ...


@runtime_checkable
class RelaxEmitter(Protocol):
    """Gives its programs as relax expressions, instead of a call that executes the artifact."""

    def emit_relax(
        self, builder: Any, artifact: Any, arguments: Mapping[str, Any], result: Any
    ) -> Any:
        """Return an expression.

        Parameters
        ----------
        builder : relax.BlockBuilder
            Builder of the module.
        artifact : Any
            From :meth:`Target.build`.
        arguments : mapping of str to relax.Expr or ndarray
            Operands by name.
        result : relax.StructInfo
            Type of the expression.
        """
        ...


def planned_kernel(
    target: AnyTarget, lowered: Any, schedule: Any, processor: Processor | None = None
) -> CompiledKernel | None:
    """Return the kernel of :meth:`Linkable.planned`; None if no C compiler can link its programs.

    Parameters
    ----------
    target : Target
        Target of the program.
    lowered, schedule, processor
        As for that method.
    """
    if isinstance(target, Linkable):
        return target.planned(lowered, schedule, processor)
    return None


def lower_part(target: AnyTarget, program: DerivedProgram, epilogue: Epilogue | None) -> Any:
    """Lower a program whose kernel each thread of another kernel calls for itself.

    Parameters
    ----------
    target : Target
    program : DerivedProgram
    epilogue : Epilogue or None

    Raises
    ------
    LoweringError
        If the target has no such kernels.
    """
    if isinstance(target, HasParts):
        return target.lower_part(program, epilogue)
    raise LoweringError(f"{target.spec.name} has no kernels that another one calls")


def cross_triple(target: AnyTarget) -> str | None:
    """Return LLVM's name of the other machine that kernels are compiled for, if it is another."""
    return target.triple if isinstance(target, Linkable) else None


def links_here(target: AnyTarget) -> bool:
    """True if a library of this machine can hold the target's kernels."""
    # Kernels for another machine can be in a library too, but not in one that is loaded here.
    return isinstance(target, Linkable) and target.triple is None


def has_tensorir(target: AnyTarget) -> bool:
    """True if :func:`tensorir` has functions of the target."""
    return isinstance(target, TensorIREmitter | Linkable)


def tensorir(
    target: AnyTarget, lowered: Any, schedule: Any, constants: Mapping[str, Array]
) -> FunctionCalls | None:
    """Return a program as TensorIR functions; None if the target has none.

    Parameters
    ----------
    target : Target
        Target of the program.
    lowered, schedule
        As for :meth:`Target.build`, which raises the same errors.
    constants : mapping of str to ndarray
        Inputs that are packed now, by operand, of as many elements as the workload's; all other
        weights, and vectors, are packed by functions that run before.
    """
    if isinstance(target, TensorIREmitter):
        return target.tensorir(lowered, schedule, constants)
    # A kernel that a C compiler could link is made of TensorIR functions already.
    kernel = planned_kernel(target, lowered, schedule)
    if kernel is None:
        return None
    return function_calls(kernel, packed_before(kernel.program.workload), constants)


def tvm_target(target: AnyTarget) -> str:
    """Return the kind of TVM target that modules with the target's programs are compiled for."""
    # Without an emitter, the functions are kernels for the processor.
    return target.tvm_target() if isinstance(target, TensorIREmitter) else "llvm"


# -------------------------------------------------------------------------- results and estimates


@runtime_checkable
class Described(Protocol):
    """Adds rows of its own to the result of a run."""

    def describe(self, artifact: Any, timing: Timing) -> Details:
        """Return the target-specific part of a result."""
        ...


@dataclass(frozen=True)
class HostTimes:
    """Times of a processor, by which kernels between products are estimated.

    The defaults are published ones of a server core.

    Attributes
    ----------
    operation_ns : float
        Time of an operation on a vector of eight float32 in registers, among independent ones.
    load_line_ns : tuple of four float
        Time of a 64-byte load from L1, L2, L3 and memory, in sequence.
    store_line_ns : tuple of three float
        Time of a 64-byte store to lines in L1, in L2, and beyond.
    cache_bytes : tuple of three int
        Sizes of L1 data, L2 and L3; 0 if unknown.
    call_us, launch_us : float
        Time to call a kernel of one part, and of a part per thread, without work.
    """

    operation_ns: float = 0.2
    load_line_ns: tuple[float, float, float, float] = (0.2, 0.53, 2.1, 11.7)
    store_line_ns: tuple[float, float, float] = (0.4, 1.6, 3.0)
    cache_bytes: tuple[int, int, int] = (48 << 10, 2 << 20, 32 << 20)
    call_us: float = 0.4
    launch_us: float = 2.0

    def level(self, size: float) -> int:
        """Return the nearest cache that holds so many bytes: 0 to 2, or 3 for memory."""
        for level, capacity in enumerate(self.cache_bytes):
            if size <= capacity:
                return level
        return 3


@runtime_checkable
class Calibrated(Protocol):
    """Estimates by constants that were measured on a machine."""

    def calibration_digest(self) -> str:
        """Return a digest of all constants that estimates depend on besides the specification."""
        ...

    def host_times(self) -> HostTimes:
        """Return the times of the processor that runs kernels between products."""
        ...

    def least_us(self, workload: Computation) -> float:
        """Return a lower bound of the estimates of all kernels of a workload."""
        ...

    def part_us(self, program: DerivedProgram, schedule: Any) -> float:
        """Return the estimate of a kernel that one thread calls as a part of another one.

        Operands are packed before, and near.
        """
        ...


@runtime_checkable
class HasDoubts(Protocol):
    """Knows why its estimates may be wrong."""

    def doubts(self, *, noisy: bool) -> tuple[str, ...]:
        """Return likely reasons for a time far from its estimate; ``noisy``: times varied."""
        ...


@runtime_checkable
class HasPeak(Protocol):
    """Has a known maximum throughput."""

    def peak_gops(self) -> float | None:
        """Return the instruction's maximum throughput on all threads; None if unknown.

        Operations (two per multiply-accumulate) per nanosecond, on operands in registers.
        """
        ...


@runtime_checkable
class Comparable(Protocol):
    """Can be compared with other libraries in ``bench``."""

    def baselines(self) -> Mapping[str, OpenBaseline]:
        """Return functions that load a :class:`~cpembed.runtime.baselines.Baseline` by name."""
        ...

    def storing_kernel(self, artifact: Any, choice: Any, epilogue: Epilogue) -> Any:
        """Build the kernel of the same choice that stores another output.

        ``artifact`` is the kernel of ``choice``, which has the candidates of the model.
        """
        ...


@runtime_checkable
class HasSpeedProbe(Protocol):
    """Can tell whether its instruction is throttled, by other guests of a core or by heat."""

    def throttle_probe(self) -> Any:
        """Return a probe that tells whether the instruction runs at full speed at the moment.

        A :class:`~cpembed.runtime.measurement.interleaved.SpeedProbe`; None if there is none.
        """
        ...


def details(target: AnyTarget, artifact: Any, timing: Timing) -> Details:
    """Return the target-specific part of a result.

    Parameters
    ----------
    target, artifact, timing
        Target, what it has executed, and its times.
    """
    return target.describe(artifact, timing) if isinstance(target, Described) else Details()


def calibration_digest(target: AnyTarget) -> str:
    """Return a digest of the measured constants that a target's estimates depend on."""
    return target.calibration_digest() if isinstance(target, Calibrated) else ""


def host_times(target: AnyTarget) -> HostTimes:
    """Return the times of the processor that runs a target's kernels between products."""
    return target.host_times() if isinstance(target, Calibrated) else HostTimes()


def least_us(target: AnyTarget, workload: Computation) -> float:
    """Return a lower bound in microseconds of the estimates of all kernels of a workload."""
    return target.least_us(workload) if isinstance(target, Calibrated) else 0.0


UNKNOWN_CASE = "the model does not know this case"
"""Reason for a wrong estimate if no other is known."""


def doubts(target: AnyTarget, *, noisy: bool) -> tuple[str, ...]:
    """Return likely reasons for a time far from its estimate, the likeliest first."""
    return target.doubts(noisy=noisy) if isinstance(target, HasDoubts) else (UNKNOWN_CASE,)


def baselines(target: AnyTarget) -> Mapping[str, OpenBaseline]:
    """Return the libraries that a target's kernels can be compared with, by name."""
    return target.baselines() if isinstance(target, Comparable) else {}


def throttle_probe(target: AnyTarget) -> Any:
    """Return the probe of :meth:`HasSpeedProbe.throttle_probe`; None if there is none."""
    return target.throttle_probe() if isinstance(target, HasSpeedProbe) else None


def peak_gops(target: AnyTarget) -> float | None:
    """Return operations (two per multiply-accumulate) per nanosecond at most; None if unknown."""
    return target.peak_gops() if isinstance(target, HasPeak) else None
