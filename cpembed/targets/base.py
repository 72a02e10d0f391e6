"""What a target is: everything above this folder sees only :class:`Target`.

A target is one object for each hardware specification. Its abstract members say how a derived
program becomes something that runs; what follows them has a default, which a target overrides where
it knows better. :mod:`cpembed.targets.TEMPLATE` is a complete small one, to be copied.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

import msgspec
from numpy.typing import NDArray

from cpembed.codegen.compiled import CompiledKernel, Processor
from cpembed.codegen.epilogue import Epilogue, Storing
from cpembed.codegen.packing import packed_before
from cpembed.codegen.tensorir import FunctionCalls, function_calls
from cpembed.cost.candidate import Candidate
from cpembed.cost.ranking import RankedCandidate
from cpembed.embedding.constraint_set import ConstraintSet, Weights
from cpembed.embedding.embedding import Embedding
from cpembed.errors import BackendUnavailable, LoweringError
from cpembed.hw.instruction import HardwareSpec
from cpembed.ir.computation import Computation
from cpembed.provenance import Provenance
from cpembed.runtime import worker
from cpembed.runtime.measurement.runner import Timing
from cpembed.runtime.measurement.verification import Expected, Verification
from cpembed.runtime.tuning.database import PlainTrial, Trial
from cpembed.runtime.tuning.session import CandidatePool, Task, Tuning
from cpembed.runtime.tuning.space import Proposal, S, Space
from cpembed.targets import tuned
from cpembed.targets.methods import Methods
from cpembed.transform.program import DerivedProgram

Array = NDArray[Any]

L = TypeVar("L")
"""A program in the target's own terms, before any schedule."""
A = TypeVar("A")
"""What is built: a compiled kernel, a program of instructions."""

CONSIDERED = 8
"""The best embeddings by their overheads, among which a target's estimates choose."""

Row = tuple[str, str]
"""A line of a report: what it is, and the text."""


@dataclass(frozen=True)
class Execution:
    """What an artifact computed: an output in its original layout for each way in which it runs,
    and how they came about."""

    outputs: tuple[Array, ...]
    provenance: Provenance


class Details:
    """What only one target says of a run; it has to survive pickling."""

    def to_json(self) -> dict[str, Any]:
        """Its part of the document of ``run --json``."""
        return {}

    def bench_json(self) -> dict[str, Any]:
        """Its part of a benchmark's row: numbers and texts."""
        return {}

    def rows(self) -> list[Row]:
        """Its lines of the report."""
        return []


class Target(ABC, Generic[L, S, A]):
    """A machine with one instruction, which executes derived programs."""

    objective: str | None
    """What tuning minimises: the first of ``objectives``, unless :meth:`minimising` made this."""
    provenance: Provenance = Provenance.MEASURED
    """How its times come about."""
    unit: ClassVar[str] = "us"
    """Of its estimates and of what tuning minimises: ``us`` or ``cycles``."""

    def __init__(self, spec: HardwareSpec) -> None:
        self.spec = spec
        self.objective = next(iter(self.objectives), None)

    @abstractmethod
    def missing(self) -> tuple[str, ...]:
        """What this machine lacks to execute the instruction, in words; empty where nothing."""

    @abstractmethod
    def lower(self, program: DerivedProgram, epilogue: Any = None) -> L:
        """The program in the target's own terms, storing what ``epilogue`` says of the sums.

        Raises :class:`LoweringError`, which says why it has none.
        """

    @abstractmethod
    def space(self, lowered: L) -> Space[S]:
        """The schedules of a lowered program."""

    @abstractmethod
    def build(self, lowered: L, schedule: S) -> A:
        """Something that runs. It is called in the worker: a compiler that ends its process is
        survived.

        Raises :class:`LoweringError` where the schedule has no program.
        """

    @abstractmethod
    def execute(self, artifact: A, inputs: Mapping[str, Array]) -> Execution:
        """The outputs on inputs in their original layouts, by operand of the workload, and the
        vectors of the epilogue; in the worker."""

    @abstractmethod
    def time(self, artifact: A, inputs: Mapping[str, Array]) -> Timing:
        """How long the contraction takes on these inputs, and packing and unpacking around it; in
        the worker."""

    files: ClassVar[tuple[str, ...]] = ()
    """What it can write, by the options of ``run``: ``--save``, ``--trace``."""

    def save(self, artifact: A, path: Path) -> None:
        """Write what a user takes away.

        Raises :class:`LoweringError` where the target has nothing to be taken away.
        """
        raise LoweringError(f"{self.spec.name} has nothing to be saved: leave the file out")

    def save_trace(self, artifact: A, path: Path) -> None:
        """Write a timeline of the run.

        Raises :class:`LoweringError` where the target has none.
        """
        raise LoweringError(f"{self.spec.name} has no timeline: leave the trace out")

    triple: str | None = None
    """LLVM's name of the machine that its kernels are compiled for; None for this one."""
    instructions: ClassVar[str] = ""
    """How what :meth:`save` writes is used, for those who take it away."""

    links: ClassVar[bool] = False
    """Whether :meth:`planned` gives kernels."""

    def planned(
        self, lowered: L, schedule: S, processor: Processor | None = None
    ) -> CompiledKernel | None:
        """The kernel of :meth:`build`, of which nothing is compiled yet, for a library; None for a
        target whose programs no C compiler can link. ``processor``: what takes its plans in the
        place of a compiler.

        Raises as :meth:`build` does.
        """
        return None

    @property
    def methods(self) -> Methods | None:
        """The parts around the product of a convolution's method; None where it runs none."""
        return None

    @property
    def alternatives(self) -> tuple[str, ...]:
        """Targets that may run what this one cannot, or faster."""
        return self.spec.alternatives

    # ---------------------------------------------------------------- what is stored, and verified

    def epilogue(self, workload: Computation, storing: Storing) -> Any:
        """What is stored of the sums, checked before anything is searched; None for the sums.

        Raises :class:`~cpembed.errors.WorkloadError` for what this target does not store.
        """
        return storing.epilogue(self.spec.name, workload.output.dtype)

    def stored_type(self, workload: Computation, epilogue: Any) -> str:
        """The element type of the results."""
        return workload.output.dtype if epilogue is None else epilogue.dtype

    def vectors(self, expected: Expected, epilogue: Any, seed: int) -> dict[str, Array]:
        """Random inputs that the epilogue takes beside the operands."""
        return expected.vectors(epilogue, seed)

    def judge(
        self, expected: Expected, epilogue: Any, vectors: Mapping[str, Array], found: Array
    ) -> Verification:
        """Compare an output with the reference."""
        return expected.judge_stored(found, epilogue, vectors)

    # ------------------------------------------------------------------ which candidate, and how

    considered: ClassVar[int] = CONSIDERED
    """How many of the best of a search take part in the choice; :meth:`contenders` picks."""
    compares_always: ClassVar[bool] = True
    """Whether estimates choose also where one constraint set was searched; else its first."""
    equal: ClassVar[float] = 1.0
    """Estimates that differ by less say nothing of which is faster."""
    contenders: Callable[[tuple[RankedCandidate, ...]], tuple[RankedCandidate, ...]] | None = None
    """Picks, of the best that were found, those whose estimates are compared; all where None."""

    def weights(self, first: Sequence[RankedCandidate]) -> Weights | None:
        """Weights that rank what a wider set finds by the times that overheads take on the machine,
        given the best of the narrow set; None: those of the set."""
        return None

    weighs: ClassVar[bool] = False
    """Whether :meth:`weights` has any."""

    def variants(
        self, candidates: Sequence[RankedCandidate], *, fuses: bool = True
    ) -> Sequence[RankedCandidate]:
        """The candidates, and forms of them that this target may execute faster; ``fuses``: axes
        may be walked as one."""
        return candidates

    def require(self, candidate: Candidate) -> None:
        """Prove what no search has proven: a variant.

        Raises :class:`InvariantError` where that fails.
        """

    # ------------------------------------------------------------ operators of other compilers

    def exact(self, workload: Computation) -> Any:
        """What stores every bit of a result, in the type of the workload's output."""
        return None

    def requantized(self, shift: int, low: int, high: int, bias: tuple[int, ...]) -> Any:
        """What stores ``clip((sum + bias) >> shift, low, high)`` as int8, the bias over these
        dimensions of the output; None where the target does not do that."""
        return None

    def emit_relax(
        self, builder: Any, artifact: A, arguments: Mapping[str, Any], result: Any
    ) -> Any:
        """An expression of type ``result`` for an artifact on relax expressions or arrays, by
        operand, with a ``relax.BlockBuilder``; None where the general one is to be taken, which
        executes the artifact on operands in their original layouts
        (:mod:`cpembed.integrations.tvm.emit`)."""
        return None

    has_tensorir: ClassVar[bool] = False
    """Whether :meth:`tensorir` gives functions."""

    def tensorir(
        self, lowered: L, schedule: S, constants: Mapping[str, Array]
    ) -> FunctionCalls | None:
        """The program as TensorIR functions, for modules of TVM, which compiles them; None where it
        is no such program. ``constants``, inputs of as many elements as the workload's, are packed
        now, by operand; other weights, and vectors, by functions that prepare.

        Raises as :meth:`build` does.
        """
        kernel = self.planned(lowered, schedule)
        if kernel is None:
            return None
        return function_calls(kernel, packed_before(kernel.program.workload), constants)

    def tvm_target(self) -> str:
        """TVM's kind of target whose modules :meth:`tensorir` is for, and that modules which call
        its programs are compiled for."""
        return "llvm"

    # ------------------------------------------------------------------------------ what is said

    def executed_by(self, artifact: A) -> str:
        """What executed it, as results name it."""
        return self.spec.backend or self.spec.name

    def schedule_text(self, embedding: Embedding, schedule: S) -> str:
        """A schedule in words."""
        return str(schedule)

    def schedule_json(self, schedule: S) -> Any:
        """A schedule in documents, of JSON's own types."""
        return msgspec.json.decode(msgspec.json.encode(schedule))

    def describe(self, artifact: A, timing: Timing) -> Details:
        """What only this target says of a run."""
        return Details()

    def doubts(self, *, noisy: bool) -> tuple[str, ...]:
        """Why a time may be far from the estimate, the likely reason first."""
        return ("the model does not know this case",)

    def peak_gops(self) -> float | None:
        """Operations (two a multiply-accumulate) a nanosecond of the instruction on operands that
        stay in registers, on all threads; None where that is not known."""
        return None

    def copying_us(self, size: int, threads: int, *, reordered: bool) -> float | None:
        """Microseconds of reading or writing so many bytes beside others, elements in their order
        or not, by a kernel of the host; None where the target knows nothing of that."""
        return None

    def figures(self) -> str:
        """A digest of what its estimates depend on besides the specification."""
        return ""

    # ----------------------------------------------------------------------------------- tuning

    trial: type[Any] = PlainTrial
    """What is kept of a schedule that was tried."""
    objectives: tuple[str, ...] = ()
    """What tuning can minimise, the default first; empty where there is one thing only."""
    tunes_stored: ClassVar[bool] = True
    """Whether what is stored of the sums makes a difference to a schedule's time."""
    spread: ClassVar[float] = 2.0
    """Families of embeddings whose estimates differ by more are not tried first."""

    def minimising(self, objective: str | None) -> Target[L, S, A]:
        """The target with one of its objectives."""
        return self

    def untunable(self) -> str | None:
        """Why there is nothing to tune; None where there is."""
        return None

    def trial_key(
        self,
        workload: Computation,
        constraints: ConstraintSet,
        epilogue: Any,
        objective: str | None,
    ) -> dict[str, Any]:
        """Everything that the trials of a file depend on."""
        return tuned.trial_key(self, workload, constraints, epilogue, objective)

    def schedule_of(self, trial: Any) -> S:
        """The schedule that a trial is of."""
        raise NotImplementedError(f"{type(self).__name__} keeps no schedules")

    def require_schedule(self, candidate: Candidate, epilogue: Any, trial: Trial) -> None:
        """Raises :class:`LoweringError` for a schedule that the candidate does not have."""
        space = self.space(self.lower(candidate.program, epilogue))
        space.scored(self.schedule_of(trial))

    def open_tuning(
        self,
        task: Task,
        field: CandidatePool[S],
        epilogue: Any,
        folder: Path,
        call: Callable[..., Any] = worker.call,
    ) -> Tuning[Any, S]:
        """A search that is ready to run; ``call`` executes what may end its process, as
        :func:`cpembed.runtime.worker.call` does."""
        return tuned.open_tuning(self, task, field, epilogue, folder, call)

    def tuned_about(self, workload: Computation, epilogue: Any) -> dict[str, Any]:
        """What documents of tuning say beside workload, target and constraint set."""
        return {}

    def trial_call(
        self, proposal: Proposal[S], epilogue: Any
    ) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        """What gives the figure of a trial, and may end its process: a function of a module and its
        arguments. Its program is built, verified and timed."""
        return tuned.trial_call(self, proposal, epilogue)

    def trial_of(self, proposal: Proposal[S], figure: Any, error: str | None) -> Any:
        """The trial of a proposal with a figure, or the reason why it has none."""
        return tuned.trial_of(self, proposal, figure, error)

    def tried(
        self, proposal: Proposal[S], epilogue: Any, call: Callable[..., Any] = worker.call
    ) -> Any:
        """A trial of a proposal; what has no program, or ends its process, is a result."""
        return tuned.tried(self, proposal, epilogue, call)

    def tuning_rows(self, best: Any, untuned: Any) -> list[Row]:
        """What a report says of the best trial and of what runs untuned."""
        return [
            ("untuned", untuned.standing().removeprefix("best ")),
            ("tuned", best.standing().removeprefix("best ")),
        ]

    def trial_text(self, trial: Any) -> str:
        """A trial's schedule in words."""
        return self.schedule_text(Embedding.from_json(trial.embedding), self.schedule_of(trial))

    def trial_json(self, trial: Any) -> dict[str, Any]:
        """A trial in the document of ``tune --json``."""
        document: dict[str, Any] = trial.document()
        del document["error"]
        return document

    # --------------------------------------------------------------------------------- comparing

    @property
    def baselines(self) -> Mapping[str, Callable[[HardwareSpec, Epilogue | None], Any]]:
        """Other libraries that its kernels can be compared with, by name; each is loaded for a
        target and what is stored (:class:`~cpembed.runtime.baselines.Baseline`)."""
        return {}

    def storing_kernel(self, artifact: A, choice: Any, epilogue: Epilogue) -> Any:
        """Another kernel of the same choice that stores something else, for a comparison."""
        raise BackendUnavailable(f"{self.spec.name} is compared with no library")

    def throttle_probe(self) -> Any:
        """What says whether the instruction runs as fast as it can at the moment
        (:class:`~cpembed.runtime.measurement.interleaved.SpeedProbe`); None where nothing does."""
        return None
