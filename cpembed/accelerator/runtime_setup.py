"""Numbers that the runtime of the executor takes and gives (``native/machine.h``)."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from cpembed.accelerator.faults import FaultNumbers
from cpembed.accelerator.machine_text import whole_row_memories
from cpembed.accelerator.program import Array, MainTensor
from cpembed.accelerator.trace import Trace
from cpembed.hw.isa import MemoryKind, Synchronization
from cpembed.ir.dtypes import size_bytes


@dataclass
class TensorBuffer:
    """A tensor of a run: its elements, and which of them hold a value (as bytes)."""

    tensor: MainTensor
    array: Array
    written: Array
    is_writable: bool = True


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


class _Fault(ctypes.Structure):
    _fields_ = (
        ("code", ctypes.c_int32), ("issue", ctypes.c_int32), ("operand", ctypes.c_int32),
        ("memory", ctypes.c_int32), ("other_issue", ctypes.c_int32), ("detail", ctypes.c_int32),
        ("number", ctypes.c_int64), ("row", ctypes.c_int64), ("lane", ctypes.c_int64),
        ("first", ctypes.c_int64), ("second", ctypes.c_int64), ("other_number", ctypes.c_int64),
    )  # fmt: skip


class Outcome(ctypes.Structure):
    """Outcome of a run: its fault, if it has one, cycles, and sums that saturated or wrapped."""

    _fields_ = (
        ("fault", _Fault), ("cycles", ctypes.c_double), ("saturations", ctypes.c_int64),
        ("wraps", ctypes.c_int64),
    )  # fmt: skip


_KINDS = {MemoryKind.MAIN: 0, MemoryKind.ROWS: 1, MemoryKind.REGISTER: 2}
_SYNCHRONIZATIONS = {
    Synchronization.IN_ORDER: 0, Synchronization.INTERLOCKED: 1, Synchronization.CHANNELS: 2,
}  # fmt: skip


class RuntimeSetup:
    """Arrays of a run for the runtime, which have to live as long as it does.

    Parameters
    ----------
    trace : Trace
    tensors : sequence of TensorBuffer
        In the order of the program's tensors.
    seed : int
        Seed of the order of execution.
    """

    def __init__(self, trace: Trace, tensors: Sequence[TensorBuffer], seed: int) -> None:
        self._trace, self._tensors = trace, tensors
        self._machine = trace.program.machine
        self._memories = list(self._machine.memories.values())
        self._alive: list[Any] = []
        self.structure = self._setup(seed)

    def _keep(self, array: Any) -> int:
        self._alive.append(array)
        return ctypes.addressof(array)

    def _setup(self, seed: int) -> _Setup:
        machine = self._machine
        return _Setup(
            memories=self._keep(self._memory_array()),
            tensors=self._keep(self._tensor_array()),
            **self._instruction_arrays(),
            **self._issue_arrays(),
            depths=self._keep(_array(ctypes.c_int64, [c.depth for c in machine.channels])),
            seed=seed % 2**64,
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


def fault_numbers(outcome: Outcome) -> FaultNumbers:
    """Return the fault that a run ended with."""
    names = FaultNumbers.__dataclass_fields__
    return FaultNumbers(**{name: getattr(outcome.fault, name) for name in names})


def _array(kind: Any, entries: list[Any]) -> Any:
    # At least one: an empty array has no address.
    return (kind * max(1, len(entries)))(*entries)
