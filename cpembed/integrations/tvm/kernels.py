"""Kernels of recognised computations: the best embedding for which the target has a program."""
# pyright: basic

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from numpy.typing import NDArray
from tvm import tirx

from cpembed.codegen.recorded import FunctionCalls
from cpembed.cost.ranking import RankedCandidate
from cpembed.driver.named import hardware_spec
from cpembed.driver.plan import AnyTarget
from cpembed.driver.result import SolveResult
from cpembed.driver.solve import solve
from cpembed.embedding.constraint_set import ConstraintSet, load_constraint_set
from cpembed.errors import (
    BackendUnavailable,
    CpembedError,
    InvariantError,
    LoweringError,
    WorkloadError,
)
from cpembed.hw.instruction import HardwareSpec
from cpembed.integrations.tvm.fused import Fused, recognise_fused
from cpembed.ir.computation import Computation
from cpembed.runtime.tuning.records import Lookup
from cpembed.targets.capabilities import require_candidate, tensorir, with_variants
from cpembed.targets.choice import Choice, choices
from cpembed.targets.registry import open_target
from cpembed.targets.tuner import tuning_record

Array = NDArray[Any]

Build = Callable[[Any, Any], Any]
"""Makes the artifact of a lowered program and a schedule."""

# Number of candidates to try: only rarely does the best one have no program.
_CANDIDATES = 5


@dataclass(frozen=True, eq=False)
class Program:
    """Candidate with its schedule and epilogue, and the artifact that was built of them."""

    target: AnyTarget
    ranked: RankedCandidate
    schedule: Any
    epilogue: Any
    artifact: Any


@dataclass(frozen=True)
class Rejection:
    """Reason why there is no program, in one line."""

    reason: str


@dataclass(frozen=True)
class Machine:
    """Target and constraint set for embedding operators; equal operators are solved once."""

    target: AnyTarget
    constraints: str | ConstraintSet | None
    _solved: dict[Computation, SolveResult | Rejection] = field(
        default_factory=dict[Computation, "SolveResult | Rejection"], repr=False
    )

    @classmethod
    def open(cls, target: str | HardwareSpec, constraints: str | ConstraintSet | None) -> Machine:
        """Return the machine of a target.

        Raises :class:`BackendUnavailable` for a target that nothing executes here, and
        :class:`SpecError` for a wrong one.
        """
        spec = hardware_spec(target)
        opened = open_target(spec)
        if missing := opened.missing():
            raise BackendUnavailable(f"{spec.name}: {'; '.join(missing)}")
        return cls(opened, constraints)

    @property
    def spec(self) -> HardwareSpec:
        return self.target.spec

    def recognised(self, function: tirx.PrimFunc, name: str = "tensorir") -> Fused:
        """Return the product of a function with an epilogue that the target's kernels have.

        Raises :class:`WorkloadError` for any other function.
        """
        return recognise_fused(function, name, chains=self.target.takes_epilogues)

    def choose(
        self, workload: Computation, epilogue: Any, build: Build | None = None
    ) -> Program | Rejection:
        """Return the best candidate that has a program, or why there is none.

        Parameters
        ----------
        workload
            Computation to embed.
        epilogue
            Epilogue in the target's own form; None to store the sums.
        build
            Makes the artifact; None builds what the target executes.
        """
        solved = self.solve(workload)
        if isinstance(solved, Rejection):
            return solved
        reason = solved.why_nothing
        candidates = programs(self.target, solved, epilogue, build)
        # A tuned schedule was measured, so it goes before every estimate.
        for program in itertools.chain(self._tuned(solved, epilogue, build), candidates):
            if isinstance(program, Program):
                return program
            reason = program.reason
        return Rejection(reason)

    def _tuned(
        self, solved: SolveResult, epilogue: Any, build: Build | None
    ) -> Iterator[Program | Rejection]:
        """Yield the program that `cpembed tune` measured to be the fastest, if there is one."""
        name = self.constraints
        constraints = load_constraint_set(name) if isinstance(name, str) else name
        record = tuning_record(self.target, Lookup(solved.workload, epilogue, constraints))
        if record is not None:
            ranked = record.choice.ranked(solved.constraints.weights)
            choice = Choice(ranked, record.schedule, None, record.choice)
            yield _program(self.target, choice, epilogue, build)

    def solve(self, workload: Computation) -> SolveResult | Rejection:
        """Return the search for a computation's embeddings, or why there can be none."""
        if workload not in self._solved:
            top = _CANDIDATES
            policy = self.target.policy
            if policy.compares_always:
                # Such a target ranks by its own estimates: the best need not be among the first by
                # overheads.
                top = max(top, policy.considered)
            try:
                solved = solve(
                    workload,
                    self.spec,
                    constraints=self.constraints,
                    top=top,
                    keep=policy.shortlist,
                )
            except InvariantError:
                # A bug of cpembed is no reason to leave an operator to TVM.
                raise
            except CpembedError as error:
                solved = Rejection(str(error))
            self._solved[workload] = solved
        return self._solved[workload]


def programs(
    target: AnyTarget, solved: SolveResult, epilogue: Any, build: Build | None = None
) -> Iterator[Program | Rejection]:
    """Yield for each candidate, best first, its program or why it has none.

    Parameters
    ----------
    target
        Target of the programs.
    solved
        Search with the candidates.
    epilogue
        Epilogue in the target's own form; None to store the sums.
    build
        Makes the artifact; None builds what the target executes.
    """
    for choice in _ordered(target, solved, epilogue):
        if isinstance(choice, Rejection):
            yield choice
        else:
            yield _program(target, choice, epilogue, build)


def _program(
    target: AnyTarget, choice: Choice, epilogue: Any, build: Build | None
) -> Program | Rejection:
    ranked = choice.ranked
    try:
        require_candidate(target, ranked.candidate)
        lowered = target.lower(ranked.candidate.program, epilogue)
        artifact = (build or target.build)(lowered, choice.schedule)
    except LoweringError as error:
        return Rejection(str(error))
    return Program(target, ranked, choice.schedule, epilogue, artifact)


def _ordered(target: AnyTarget, solved: SolveResult, epilogue: Any) -> Iterator[Choice | Rejection]:
    """Yield the candidates by the target's estimates if it compares them, else by rank."""
    if not solved.embeddings:
        return
    groups = [(ranked,) for ranked in solved.embeddings]
    if target.policy.compares_always:
        groups = [tuple(with_variants(target, solved.embeddings))]
    for group in groups:
        try:
            # One group of all candidates if estimates are compared, else one for each candidate.
            ordered = choices(target, group, epilogue)
        except LoweringError as error:
            yield Rejection(str(error))
        else:
            yield from ordered if target.policy.compares_always else ordered[:1]


def _scheduled_programs(
    target: AnyTarget, solved: SolveResult, epilogue: Any, build: Build
) -> Iterator[Program]:
    """Yield all programs: round by round, each candidate's next best schedule."""
    spaces = [
        _candidate_programs(target, ranked, epilogue, build)
        for ranked in with_variants(target, solved.embeddings)
    ]
    # One schedule of each candidate at a time: a limit then cuts off bad schedules, not embeddings.
    while spaces:
        # Those that have another schedule for the next round.
        remaining: list[Iterator[Program]] = []
        for space in spaces:
            program = next(space, None)
            if program is not None:
                remaining.append(space)
                yield program
        spaces = remaining


def _candidate_programs(
    target: AnyTarget, ranked: RankedCandidate, epilogue: Any, build: Build
) -> Iterator[Program]:
    try:
        require_candidate(target, ranked.candidate)
        lowered = target.lower(ranked.candidate.program, epilogue)
        schedules = target.space(lowered).ranked()
    except LoweringError:
        return
    for scored in schedules:
        with suppress(LoweringError):
            artifact = build(lowered, scored.schedule)
            yield Program(target, ranked, scored.schedule, epilogue, artifact)


# -- kernels of fused functions -------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Kernel:
    """Program of a fused function as TensorIR functions.

    Parameters
    ----------
    fused
        Product with its epilogue.
    program
        Program; its artifact is the calls of TensorIR functions.
    arguments
        Number of the function's parameter for each input that is not constant.
    filled
        Values of inputs whose elements are all the same.
    """

    fused: Fused
    program: Program
    arguments: Mapping[str, int]
    filled: Mapping[str, float]

    @property
    def ranked(self) -> RankedCandidate:
        return self.program.ranked

    @property
    def calls(self) -> FunctionCalls:
        return self.program.artifact

    @property
    def output(self) -> str:
        """Name of the result among the operands."""
        return self.fused.computation.output.name

    @property
    def embedding(self) -> str:
        return self.ranked.candidate.embedding.identifier()

    @property
    def stored(self) -> str:
        """Form in which results are stored: the epilogue, or the element type of the sums."""
        return str(self.fused.epilogue or self.fused.dtype)


def kernel_of(machine: Machine, fused: Fused, constants: Mapping[int, Array]) -> Kernel | Rejection:
    """Return the best kernel of a function, or why there is none.

    Parameters
    ----------
    machine
        Target and constraint set.
    fused
        Product with its epilogue.
    constants
        Contents of constant parameters, by number, which become part of the kernel.
    """
    try:
        inputs = _Inputs.from_function(fused, constants)
    except WorkloadError as error:
        return Rejection(str(error))
    return inputs.kernel(machine, fused)


def closed_kernel_of(machine: Machine, fused: Fused) -> Kernel | Rejection:
    """Return the best kernel whose inputs are all parameters or filled with one number."""
    try:
        inputs = _Inputs.from_function(fused, {}).filling()
    except WorkloadError as error:
        return Rejection(str(error))
    return inputs.kernel(machine, fused)


def closed_kernels_of(machine: Machine, fused: Fused) -> Iterator[Kernel]:
    """Yield the kernels of each candidate with each schedule, the best first."""
    inputs = _Inputs.from_function(fused, {}).filling()
    solved = machine.solve(fused.computation)
    if isinstance(solved, Rejection):
        return
    build = inputs.builder(machine)
    for program in _scheduled_programs(machine.target, solved, fused.epilogue, build):
        yield Kernel(fused, program, inputs.arguments, inputs.filled)


@dataclass(frozen=True)
class _Inputs:
    """Inputs of a kernel: parameters of the function, constants, and filled ones."""

    arguments: Mapping[str, int]
    contents: Mapping[str, Array]
    filled: Mapping[str, float]

    @classmethod
    def from_function(cls, fused: Fused, constants: Mapping[int, Array]) -> _Inputs:
        """Raises :class:`WorkloadError` for vectors of the epilogue that no kernel takes."""
        inputs: dict[str, int | Array] = {**fused.operands, **fused.vectors(constants)}
        arguments = {
            name: value
            for name, value in inputs.items()
            # A constant parameter becomes part of the kernel, and is packed with it.
            if isinstance(value, int) and value not in constants
        }
        contents = {
            name: constants[value] if isinstance(value, int) else value
            for name, value in inputs.items()
            if name not in arguments
        }
        return cls(arguments, contents, {})

    def filling(self) -> _Inputs:
        """Return the inputs with a number in place of each constant, which has equal elements."""
        # Without constant parameters only numbers are arrays: all elements are equal.
        filled = {name: values.reshape(-1)[0].item() for name, values in self.contents.items()}
        return _Inputs(self.arguments, {}, filled)

    def builder(self, machine: Machine) -> Build:
        def build(lowered: Any, schedule: Any) -> FunctionCalls:
            calls = tensorir(machine.target, lowered, schedule, self.contents)
            if calls is None:
                raise LoweringError(f"programs of {machine.spec.name} are no TensorIR functions")
            return calls

        return build

    def kernel(self, machine: Machine, fused: Fused) -> Kernel | Rejection:
        program = machine.choose(fused.computation, fused.epilogue, self.builder(machine))
        if isinstance(program, Rejection):
            return program
        return Kernel(fused, program, self.arguments, self.filled)
