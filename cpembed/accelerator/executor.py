"""Execution of programs on this machine's processor: :func:`execute`.

The executor is generated from the machine's description (:mod:`cpembed.accelerator.machine_text`).
Memories begin unwritten, and whatever the machine leaves undefined is a fault: one line that names
the instruction, its number, the operand, the place and the remedy. Results are
:attr:`~cpembed.provenance.Provenance.EMULATED`: numbers and counts are right, cycles are those of
the description's costs.

Machines with channels are executed in an order that the seed selects among those that the signals
allow. Two accesses of which one writes must be ordered by signals in all of these orders, which
clocks of the units decide for this and every other order of the same program.

Times are exact for the described costs: an instruction starts when its unit is free, earlier ones
that touch the same rows, registers or lines of 64 bytes of a written tensor are over (machines with
channels: when its waits have signals), and the paths that its bytes take are free. Paths serve
instructions in the order of a run without limits of paths, which does not depend on bandwidths: so
no faster memory makes a program slower.
"""

from __future__ import annotations

import ctypes
import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import numpy as np

from cpembed.accelerator.cost import moved_entries, summed
from cpembed.accelerator.energy import energy_table
from cpembed.accelerator.faults import fault_text
from cpembed.accelerator.machine_text import machine_text
from cpembed.accelerator.program import Array, Program
from cpembed.accelerator.runtime_setup import Outcome, RuntimeSetup, TensorBuffer, fault_numbers
from cpembed.accelerator.trace import Trace, unroll
from cpembed.errors import ExecutionFault, ProgramError
from cpembed.hw.isa import InstructionSet, Synchronization
from cpembed.ir.dtypes import is_integer, numpy_dtype, size_bytes
from cpembed.steps import PhaseProgress, silent
from cpembed.targets.executor.program import TextCompiler

NATIVE = Path(__file__).parent / "native"

COMPILER = TextCompiler(
    kind="accelerator",
    name="accelerator_executor",
    folder_variable="CPEMBED_ACCELERATOR_EXECUTOR_CACHE",
    file="machine.cpp",
    language="c++",
    native=NATIVE,
    # Accesses are checked by the text itself, not by instrumentation.
    options=("-std=c++17", "-O3", "-fno-sanitize=thread", f"-I{NATIVE}"),
)

Direction = Literal["read", "write"]

LARGEST_MEMORY = 1 << 33
"""Maximum number of bytes of all tensors and memories of a run."""


@dataclass(frozen=True)
class Run:
    """Results of a run.

    Attributes
    ----------
    buffers : mapping of str to ndarray
        Buffer of each tensor after the run, flat, in its layout
        (:meth:`~cpembed.accelerator.program.MainTensor.array`).
    cycles : float
        Cycles until everything has ended.
    unit_cycles : mapping of str to float
        Cycles in which each unit was occupied.
    memory_cycles : mapping of str to float
        Cycles in which each path with a limited bandwidth was occupied.
    moved : mapping of (str, str) to int
        Bytes by memory and direction, ``read`` or ``write``.
    executions : mapping of str to int
        Executions of each instruction.
    energy : mapping of str to float
        Picojoules by memory, and those of the instructions themselves as ``instructions``.
    saturations : int
        Number of steps of sums that saturated.
    wraps : int
        Number of times that an execution made a sum of at most 32 bits leave its type, in which it
        wraps around.
    warnings : tuple of str
    """

    buffers: Mapping[str, Array]
    cycles: float
    unit_cycles: Mapping[str, float]
    memory_cycles: Mapping[str, float]
    moved: Mapping[tuple[str, Direction], int]
    executions: Mapping[str, int]
    energy: Mapping[str, float]
    saturations: int = 0
    wraps: int = 0
    warnings: tuple[str, ...] = ()

    @property
    def energy_pj(self) -> float:
        """Picojoules in total."""
        return sum(self.energy.values())

    def to_json(self) -> dict[str, Any]:
        """Return all numbers without the tensors."""
        return {
            "cycles": self.cycles,
            "unit_cycles": dict(self.unit_cycles),
            "memory_cycles": dict(self.memory_cycles),
            "moved_bytes": moved_entries(self.moved),
            "executions": dict(self.executions),
            "energy_pj": {**self.energy, "total": self.energy_pj},
            "saturations": self.saturations,
            "wraps": self.wraps,
            "warnings": list(self.warnings),
        }


@dataclass(frozen=True, kw_only=True)
class ProgramRuns:
    """Runs of programs one after the other, and how far their results are from the expected ones.

    Attributes
    ----------
    error, tolerance : float
        Largest difference, and the one that rounding explains; 0 for integers that are right.
    """

    runs: tuple[Run, ...]
    error: float
    tolerance: float

    @property
    def is_right(self) -> bool:
        """True if the results are the expected ones."""
        return self.error <= self.tolerance

    @property
    def cycles(self) -> float:
        """Cycles of all programs, one after the other."""
        return math.fsum(run.cycles for run in self.runs)

    @property
    def energy_pj(self) -> float:
        """Picojoules of all programs."""
        return math.fsum(run.energy_pj for run in self.runs)

    def total(self, counts: str) -> dict[Any, float]:
        """Return the sums over all programs of a mapping that each :class:`Run` has."""
        return summed(getattr(run, counts) for run in self.runs)


_RELATIVE = 2e-5
"""Largest difference of floats, relative to the largest magnitude, since programs add in another
order than numpy."""


def largest_difference(actual: Array, expected: Array) -> float:
    """Return the largest difference; infinite if one is NaN where the other is not."""
    first, second = (a.reshape(-1).astype(np.float64) for a in (actual, expected))
    equal = (first == second) | (np.isnan(first) & np.isnan(second))
    if equal.all():
        return 0.0
    difference = np.abs(first[~equal] - second[~equal])
    return math.inf if np.isnan(difference).any() else float(difference.max())


def rounding_tolerance(expected: Array) -> float:
    """Return the difference from expected results that rounding explains."""
    if is_integer(str(expected.dtype)) or not expected.size:
        return 0.0
    finite = expected[np.isfinite(expected.astype(np.float64))].astype(np.float64)
    return _RELATIVE * float(np.abs(finite).max(initial=0.0))


def execute(
    program: Program | Trace,
    buffers: Mapping[str, Array] | None = None,
    seed: int = 0,
    progress: PhaseProgress = silent,
) -> Run:
    """Execute a program.

    Parameters
    ----------
    program
        The program, or its executions.
    buffers
        Flat buffer of each input and constant, in the layout of its tensor
        (:meth:`~cpembed.accelerator.program.MainTensor.buffer`). Other tensors begin with nothing
        but the fill of their margins.
    seed
        Seed of the order of execution of a machine with channels.
    progress
        Called before the machine's executor is compiled and before the program is executed, with
        the phase's name (``executor``, ``emulate``) and 0.

    Raises
    ------
    ExecutionFault
        If the program does what its machine leaves undefined.
    ProgramError
        If the program names what the machine does not have, or a buffer is missing.
    BackendUnavailable
        Without a C++ compiler.
    """
    trace = unroll(program) if isinstance(program, Program) else program
    check_places(trace.program)
    # Units with channels run ahead by any distance, so that all executions are stored.
    stored = trace.executions if _has_channels(trace.program) else 0
    if stored * trace.width * 16 > LARGEST_MEMORY:
        raise ProgramError(
            f"{trace.program.name}: {stored:,} executions are too many with channels: "
            "emulate a part of the program"
        )
    tensors = _buffers(trace.program, buffers or {})
    progress("executor", 0)
    compile_executor(trace.program.machine)
    progress("emulate", 0)
    return _Execution(trace, tensors, seed).run()


def compile_executor(machine: InstructionSet) -> None:
    """Compile the executor of a machine, unless it is cached: the first time takes some seconds.

    Raises :class:`~cpembed.errors.BackendUnavailable` without a C++ compiler.
    """
    _library(machine_text(machine))


def _has_channels(program: Program) -> bool:
    return program.machine.synchronization is Synchronization.CHANNELS


def check_places(program: Program) -> None:
    """Check that operands of main memory have the element type of their tensor.

    Raises :class:`~cpembed.errors.ProgramError` otherwise, and if the memories and tensors together
    are larger than :data:`LARGEST_MEMORY`.
    """
    machine = program.machine
    total = sum(memory.capacity_bytes or 0 for memory in machine.memories.values())
    total += sum(t.elements * size_bytes(t.dtype) for t in program.tensors.values())
    if total > LARGEST_MEMORY:
        raise ProgramError(
            f"{program.name}: memories and tensors have {total:,} bytes, and at most "
            f"{LARGEST_MEMORY:,} are emulated: use smaller tensors"
        )
    for _, issue in program.issues():
        instruction = machine.instructions.get(issue.instruction)
        for name, address in issue.operands.items():
            place = None if instruction is None else instruction.places.get(name)
            if place is None:
                raise ProgramError(
                    f"{program.name}: {issue.place}{issue.instruction} has no operand {name}"
                )
            tensor = program.tensors.get(address.tensor)
            if tensor is not None and numpy_dtype(tensor.dtype) != numpy_dtype(place.dtype):
                raise ProgramError(
                    f"{program.name}: {issue.place}operand {name} of {issue.instruction} has "
                    f"elements of {place.dtype}, and tensor {tensor.name} of {tensor.dtype}: "
                    f"declare it {place.dtype}, or use another instruction"
                )


def _buffers(program: Program, buffers: Mapping[str, Array]) -> list[TensorBuffer]:
    result: list[TensorBuffer] = []
    for name, tensor in program.tensors.items():
        dtype = numpy_dtype(tensor.dtype)
        if tensor.is_loaded:
            if name not in buffers:
                raise ProgramError(f"{program.name}: no buffer of {tensor.role} {name}: pass one")
            array = np.ascontiguousarray(buffers[name]).reshape(-1)
            if array.dtype != dtype or array.size != tensor.elements:
                raise ProgramError(
                    f"{program.name}: the buffer of {name} has {array.size} elements of "
                    f"{array.dtype}: pass {tensor.elements} of {tensor.dtype}"
                )
            # A tensor that nobody writes: its elements hold values from the beginning.
            result.append(TensorBuffer(tensor, array.copy(), np.ones(array.size, np.uint8), False))
            continue
        margins = replace(tensor, dtype="uint8", fill=1)
        written = margins.buffer(np.zeros(tensor.shape, np.uint8))
        result.append(TensorBuffer(tensor, tensor.buffer(), written))
    return result


@lru_cache(maxsize=32)
def _library(text: str) -> ctypes.CDLL:
    library = ctypes.CDLL(str(COMPILER.compile(text)))
    library.executor_new.restype = ctypes.c_void_p
    library.executor_free.argtypes = [ctypes.c_void_p]
    library.executor_feed.argtypes = [
        ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int,
    ]  # fmt: skip
    library.executor_outcome.argtypes = [
        ctypes.c_void_p, ctypes.POINTER(Outcome), ctypes.c_void_p, ctypes.c_void_p,
        ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int, ctypes.c_int, ctypes.c_int,
    ]  # fmt: skip
    return library


class _Execution:
    """A run and the numbers that it passes to the runtime."""

    def __init__(self, trace: Trace, tensors: list[TensorBuffer], seed: int) -> None:
        self._trace, self._tensors = trace, tensors
        self._machine: InstructionSet = trace.program.machine
        self._memories = list(self._machine.memories.values())
        self._counts = Counter[int]()
        self._setup = RuntimeSetup(trace, tensors, seed)

    def run(self) -> Run:
        library = _library(machine_text(self._machine))
        executor = library.executor_new(ctypes.byref(self._setup.structure))
        try:
            return self._run(library, executor)
        finally:
            library.executor_free(executor)

    def _run(self, library: ctypes.CDLL, executor: int) -> Run:
        pieces = iter(self._trace)
        piece = next(pieces, None)
        issues = np.zeros(0, np.int32)
        records = np.zeros((0, max(1, self._trace.width)), np.int64)
        history: list[tuple[Any, Any]] = []
        succeeded = True
        while succeeded and piece is not None:
            following = next(pieces, None)
            issues, records = piece.issues, piece.records
            if _has_channels(self._trace.program):
                history.append((issues, records))
            else:
                history = [(issues, records)]
            is_last = following is None
            succeeded = library.executor_feed(
                executor, records.ctypes.data, issues.ctypes.data, len(issues), is_last
            )
            counts: list[int] = np.bincount(issues).tolist()
            self._counts.update(dict(enumerate(counts)))
            piece = following
        outcome, arrays = self._outcome(library, executor)
        if not succeeded:
            raise ExecutionFault(self._fault(outcome, history))
        self._check_outputs()
        return self._result(outcome, *arrays)

    def _fault(self, outcome: Outcome, history: list[tuple[Any, Any]]) -> str:
        # Of machines without channels, only the last piece is there; its first number is that of
        # all executions before.
        is_partial = not _has_channels(self._trace.program)
        executed = sum(self._counts.values())
        first = executed - sum(len(issues) for issues, _ in history) if is_partial else 0

        def record(number: int) -> Any:
            position = number - first
            for issues, records in history:
                if 0 <= position < len(issues):
                    return records[position]
                position -= len(issues)
            return None

        return fault_text(self._trace, fault_numbers(outcome), record)

    def _outcome(
        self, library: ctypes.CDLL, executor: int
    ) -> tuple[Outcome, tuple[Array, Array, Array, Array]]:
        outcome = Outcome()
        units, memories = len(self._machine.units), len(self._memories)
        channels = len(self._machine.channels)
        arrays = (
            np.zeros(units), np.zeros(memories), np.zeros(2 * memories, np.int64),
            np.zeros(channels, np.int64),
        )  # fmt: skip
        if not _has_channels(self._trace.program):
            channels = 0
        pointers = [array.ctypes.data for array in arrays]
        library.executor_outcome(
            executor, ctypes.byref(outcome), *pointers, units, memories, channels
        )
        return outcome, arrays

    def _check_outputs(self) -> None:
        for buffer in self._tensors:
            if buffer.tensor.role != "output" or buffer.written.all():
                continue
            tensor = buffer.tensor
            inside = replace(tensor, dtype="uint8").array(buffer.written)
            element = np.unravel_index(int(np.argmin(inside)), tensor.shape)
            raise ExecutionFault(
                f"{self._trace.program.name}: output {tensor.name} is incomplete: nothing writes "
                f"element {[int(i) for i in element]}, nor {int((inside == 0).sum()) - 1} others: "
                "store it"
            )

    def _result(self, outcome: Outcome, busy: Array, paths: Array, bits: Array, left: Array) -> Run:
        machine = self._machine
        executions = Counter(dict.fromkeys(machine.instructions, 0))
        for number, count in self._counts.items():
            executions[self._trace.issues[number].instruction] += count
        moved: dict[tuple[str, Direction], int] = {}
        for number, memory in enumerate(self._memories):
            read, write = (int(-(-b // 8)) for b in bits[2 * number : 2 * number + 2])
            moved[memory.name, "read"], moved[memory.name, "write"] = read, write
        warnings = [
            f"{count} signals of channel {channel.name} are left over"
            for channel, count in zip(machine.channels, left.tolist(), strict=True)
            if count
        ]
        if outcome.wraps:
            warnings.append(f"{outcome.wraps} sums wrapped around: they are beyond their type")
        return Run(
            buffers={buffer.tensor.name: buffer.array for buffer in self._tensors},
            cycles=outcome.cycles,
            unit_cycles=dict(zip(machine.units, busy.tolist(), strict=True)),
            memory_cycles={
                memory.name: float(paths[number])
                for number, memory in enumerate(self._memories)
                if np.isfinite(memory.bytes_per_cycle)
            },
            moved=moved,
            executions=dict(executions),
            energy=energy_table(machine).by_level(executions, moved),
            saturations=outcome.saturations,
            wraps=outcome.wraps,
            warnings=tuple(warnings),
        )
