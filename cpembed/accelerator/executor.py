"""Execution of programs on this machine's processor: :func:`execute`.

The executor is generated from the description of the machine (:mod:`cpembed.accelerator.machine_text`).
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
instructions in the order of a run in which each takes one cycle, which does not depend on costs: so
no cost that falls makes a program slower.
"""

from __future__ import annotations

import ctypes
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import numpy as np

from cpembed.accelerator.faults import fault_text
from cpembed.accelerator.machine_text import machine_text, whole_row_memories
from cpembed.accelerator.program import Array, MainTensor, Program
from cpembed.accelerator.trace import Trace, unroll
from cpembed.errors import ExecutionFault, ProgramError
from cpembed.hw.isa import InstructionSet, MemoryKind, Synchronization
from cpembed.ir.dtypes import numpy_dtype, size_bytes
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
            "moved_bytes": [
                {"memory": memory, "direction": direction, "bytes": count}
                for (memory, direction), count in self.moved.items()
            ],
            "executions": dict(self.executions),
            "energy_pj": {**self.energy, "total": self.energy_pj},
            "saturations": self.saturations,
            "warnings": list(self.warnings),
        }


class _Memory(ctypes.Structure):
    _fields_ = (
        ("rows", ctypes.c_int64), ("row_bytes", ctypes.c_int64), ("bank_rows", ctypes.c_int64),
        ("bytes_per_cycle", ctypes.c_double), ("latency", ctypes.c_double),
        ("kind", ctypes.c_int32), ("whole_rows", ctypes.c_int32),
    )  # fmt: skip


class _Tensor(ctypes.Structure):
    _fields_ = (
        ("bytes", ctypes.c_void_p), ("written", ctypes.c_void_p), ("elements", ctypes.c_int64),
        ("element_bytes", ctypes.c_int32), ("writable", ctypes.c_int32),
    )  # fmt: skip


class _Instruction(ctypes.Structure):
    _fields_ = (
        ("latency", ctypes.c_double), ("coefficients", ctypes.c_int64),
        ("unit", ctypes.c_int32), ("padding", ctypes.c_int32),
    )  # fmt: skip


class _Issue(ctypes.Structure):
    _fields_ = (
        ("instruction", ctypes.c_int32), ("waits", ctypes.c_int32), ("waits_end", ctypes.c_int32),
        ("signals", ctypes.c_int32), ("signals_end", ctypes.c_int32),
    )  # fmt: skip


class _Setup(ctypes.Structure):
    _fields_ = (
        ("memories", ctypes.c_void_p), ("tensors", ctypes.c_void_p),
        ("instructions", ctypes.c_void_p), ("coefficients", ctypes.c_void_p),
        ("issues", ctypes.c_void_p), ("lists", ctypes.c_void_p), ("depths", ctypes.c_void_p),
        ("seed", ctypes.c_uint64), ("memory_count", ctypes.c_int32),
        ("tensor_count", ctypes.c_int32), ("instruction_count", ctypes.c_int32),
        ("issue_count", ctypes.c_int32), ("unit_count", ctypes.c_int32),
        ("channel_count", ctypes.c_int32), ("synchronization", ctypes.c_int32),
        ("width", ctypes.c_int32),
    )  # fmt: skip


class Fault(ctypes.Structure):
    """A fault as the runtime tells it (``native/machine.h``)."""

    _fields_ = (
        ("code", ctypes.c_int32), ("issue", ctypes.c_int32), ("operand", ctypes.c_int32),
        ("memory", ctypes.c_int32), ("other_issue", ctypes.c_int32), ("detail", ctypes.c_int32),
        ("number", ctypes.c_int64), ("row", ctypes.c_int64), ("lane", ctypes.c_int64),
        ("first", ctypes.c_int64), ("second", ctypes.c_int64), ("other_number", ctypes.c_int64),
    )  # fmt: skip


class _Outcome(ctypes.Structure):
    _fields_ = (("fault", Fault), ("cycles", ctypes.c_double), ("saturations", ctypes.c_int64))


_KINDS = {MemoryKind.MAIN: 0, MemoryKind.ROWS: 1, MemoryKind.REGISTER: 2}
_SYNCHRONIZATIONS = {
    Synchronization.IN_ORDER: 0, Synchronization.INTERLOCKED: 1, Synchronization.CHANNELS: 2,
}  # fmt: skip


@dataclass
class _Buffer:
    """A tensor of a run: its elements, and which of them hold a value."""

    tensor: MainTensor
    array: Array
    written: Array
    is_writable: bool = field(default=True)


def execute(
    program: Program | Trace, buffers: Mapping[str, Array] | None = None, seed: int = 0
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
    tensors = _buffers(trace.program, buffers or {})
    return _Execution(trace, tensors, seed).run()


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
                raise ProgramError(f"{program.name}: {issue.instruction} has no operand {name}")
            tensor = program.tensors.get(address.tensor)
            if tensor is not None and numpy_dtype(tensor.dtype) != numpy_dtype(place.dtype):
                raise ProgramError(
                    f"{program.name}: operand {name} of {issue.instruction} has elements of "
                    f"{place.dtype}, and tensor {tensor.name} of {tensor.dtype}: declare it "
                    f"{place.dtype}, or use another instruction"
                )


def _buffers(program: Program, buffers: Mapping[str, Array]) -> list[_Buffer]:
    result: list[_Buffer] = []
    for name, tensor in program.tensors.items():
        dtype = numpy_dtype(tensor.dtype)
        if tensor.role in ("input", "constant"):
            if name not in buffers:
                raise ProgramError(f"{program.name}: no buffer of {tensor.role} {name}: pass one")
            array = np.ascontiguousarray(buffers[name]).reshape(-1)
            if array.dtype != dtype or array.size != tensor.elements:
                raise ProgramError(
                    f"{program.name}: the buffer of {name} has {array.size} elements of "
                    f"{array.dtype}: pass {tensor.elements} of {tensor.dtype}"
                )
            # A tensor that nobody writes: its elements hold values from the beginning.
            result.append(_Buffer(tensor, array.copy(), np.ones(array.size, np.uint8), False))
            continue
        margins = replace(tensor, dtype="uint8", fill=1)
        written = margins.buffer(np.zeros(tensor.shape, np.uint8))
        result.append(_Buffer(tensor, tensor.buffer(), written))
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
        ctypes.c_void_p, ctypes.POINTER(_Outcome), ctypes.c_void_p, ctypes.c_void_p,
        ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int, ctypes.c_int, ctypes.c_int,
    ]  # fmt: skip
    return library


class _Execution:
    """A run and the numbers that it passes to the runtime."""

    def __init__(self, trace: Trace, tensors: list[_Buffer], seed: int) -> None:
        self._trace, self._tensors, self._seed = trace, tensors, seed
        self._machine: InstructionSet = trace.program.machine
        self._memories = list(self._machine.memories.values())
        self._counts = Counter[int]()
        # Arrays that the runtime reads have to live as long as it does.
        self._alive: list[Any] = []

    def run(self) -> Run:
        library = _library(machine_text(self._machine))
        setup = self._setup()
        executor = library.executor_new(ctypes.byref(setup))
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
            if self._machine.synchronization is Synchronization.CHANNELS:
                history.append((issues, records))
            else:
                history = [(issues, records)]
            is_last = following is None
            succeeded = library.executor_feed(
                executor, records.ctypes.data, issues.ctypes.data, len(issues), is_last
            )
            self._counts.update(dict(enumerate(np.bincount(issues).tolist())))
            piece = following
        outcome, arrays = self._outcome(library, executor)
        if not succeeded:
            raise ExecutionFault(self._fault(outcome.fault, history))
        self._check_outputs()
        return self._result(outcome, *arrays)

    def _fault(self, fault: Fault, history: list[tuple[Any, Any]]) -> str:
        # Of machines without channels, only the last piece is there; its first number is that of
        # all executions before.
        is_partial = self._machine.synchronization is not Synchronization.CHANNELS
        done = sum(self._counts.values())
        first = done - sum(len(issues) for issues, _ in history) if is_partial else 0

        def record(number: int) -> Any:
            position = number - first
            for issues, records in history:
                if 0 <= position < len(issues):
                    return records[position]
                position -= len(issues)
            return None

        return fault_text(self._trace, fault, record)

    def _outcome(
        self, library: ctypes.CDLL, executor: int
    ) -> tuple[_Outcome, tuple[Array, Array, Array, Array]]:
        outcome = _Outcome()
        units, memories = len(self._machine.units), len(self._memories)
        channels = len(self._machine.channels)
        arrays = (
            np.zeros(units), np.zeros(memories), np.zeros(2 * memories, np.int64),
            np.zeros(channels, np.int64),
        )  # fmt: skip
        if self._machine.synchronization is not Synchronization.CHANNELS:
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

    def _result(
        self, outcome: _Outcome, busy: Array, paths: Array, bits: Array, left: Array
    ) -> Run:
        machine = self._machine
        executions = Counter({name: 0 for name in machine.instructions})
        for number, count in self._counts.items():
            executions[self._trace.issues[number].instruction] += count
        moved: dict[tuple[str, Direction], int] = {}
        energy = {
            "instructions": sum(
                machine.instructions[name].energy_pj * count for name, count in executions.items()
            )
        }
        for number, memory in enumerate(self._memories):
            read, write = (int(-(-b // 8)) for b in bits[2 * number : 2 * number + 2])
            moved[memory.name, "read"], moved[memory.name, "write"] = read, write
            energy[memory.name] = (read + write) * memory.energy_pj_per_byte
        warnings = [
            f"{count} signals of channel {channel.name} are left over"
            for channel, count in zip(machine.channels, left.tolist(), strict=True)
            if count
        ]
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
            energy=energy,
            saturations=outcome.saturations,
            warnings=tuple(warnings),
        )

    # -- numbers for the runtime ------------------------------------------------------------------

    def _keep(self, array: Any) -> int:
        self._alive.append(array)
        return ctypes.addressof(array)

    def _setup(self) -> _Setup:
        machine = self._machine
        return _Setup(
            memories=self._keep(self._memory_array()),
            tensors=self._keep(self._tensor_array()),
            **self._instruction_arrays(),
            **self._issue_arrays(),
            depths=self._keep(_array(ctypes.c_int64, [c.depth for c in machine.channels])),
            seed=self._seed % 2**64,
            memory_count=len(self._memories),
            tensor_count=len(self._tensors),
            instruction_count=len(machine.instructions),
            issue_count=len(self._trace.issues),
            unit_count=len(machine.units),
            channel_count=len(machine.channels),
            synchronization=_SYNCHRONIZATIONS[machine.synchronization],
            width=self._trace.width,
        )

    def _memory_array(self) -> Any:
        whole_rows = whole_row_memories(self._machine)
        entries = [
            _Memory(
                rows=memory.rows,
                row_bytes=memory.row_bytes,
                bank_rows=max(1, memory.bank_rows),
                bytes_per_cycle=memory.bytes_per_cycle,
                latency=memory.latency_cycles,
                kind=_KINDS[memory.kind],
                whole_rows=whole_rows.get(memory.name, False),
            )
            for memory in self._memories
        ]
        return _array(_Memory, entries)

    def _tensor_array(self) -> Any:
        entries = [
            _Tensor(
                bytes=buffer.array.ctypes.data,
                written=buffer.written.ctypes.data,
                elements=buffer.tensor.elements,
                element_bytes=size_bytes(buffer.tensor.dtype),
                writable=buffer.is_writable,
            )
            for buffer in self._tensors
        ]
        return _array(_Tensor, entries)

    def _instruction_arrays(self) -> dict[str, int]:
        coefficients: list[float] = []
        entries: list[_Instruction] = []
        for instruction in self._machine.instructions.values():
            unit = self._machine.units.index(instruction.unit)
            entries.append(_Instruction(instruction.latency_cycles, len(coefficients), unit, 0))
            coefficients += [coefficient for _, coefficient in instruction.cycles]
        return {
            "instructions": self._keep(_array(_Instruction, entries)),
            "coefficients": self._keep(_array(ctypes.c_double, coefficients)),
        }

    def _issue_arrays(self) -> dict[str, int]:
        instructions = list(self._machine.instructions)
        channels = [channel.name for channel in self._machine.channels]
        lists: list[int] = []
        entries: list[_Issue] = []
        for issue in self._trace.issues:
            first = len(lists)
            lists += [channels.index(name) for name in issue.waits]
            middle = len(lists)
            lists += [channels.index(name) for name in issue.signals]
            number = instructions.index(issue.instruction)
            entries.append(_Issue(number, first, middle, middle, len(lists)))
        return {
            "issues": self._keep(_array(_Issue, entries)),
            "lists": self._keep(_array(ctypes.c_int32, lists)),
        }


def _array(kind: Any, entries: list[Any]) -> Any:
    # At least one: an empty array has no address.
    return (kind * max(1, len(entries)))(*entries)
